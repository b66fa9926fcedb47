//! The discovery document of a provider (OpenID Connect Discovery 1.0). Must not know what its addresses are used for.

use serde::Deserialize;

use crate::config::provider_url;
use crate::documents::DocumentSource;

/// A discovery document whose issuer and addresses are checked.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DiscoveryDocument {
    issuer: String,
    pub(crate) jwks_uri: String,
    pub(crate) authorization_endpoint: Option<String>,
    pub(crate) token_endpoint: Option<String>,
    pub(crate) userinfo_endpoint: Option<String>,
    /// How clients may authenticate at the token endpoint. `None` for `client_secret_basic`.
    pub(crate) token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

impl DiscoveryDocument {
    /// Fetches the document of an issuer.
    ///
    /// # Errors
    /// The address of the document and the cause.
    pub(crate) async fn fetch(source: &dyn DocumentSource, issuer: &str) -> Result<Self, String> {
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let document = source.fetch(&url).await.map_err(|error| format!("{url}: {error}"))?;
        let found: Self = serde_json::from_slice(&document.body)
            .map_err(|error| format!("{url}: the document has no `issuer` and `jwks_uri`: {error}"))?;
        // Otherwise one provider could present the keys of another one (OpenID Connect Discovery 1.0, 4.3).
        if found.issuer != issuer {
            return Err(format!(
                "{url}: the document is for the issuer `{}`; write the setting `issuer` exactly so",
                found.issuer
            ));
        }
        let endpoints = [
            ("jwks_uri", Some(&found.jwks_uri)),
            ("authorization_endpoint", found.authorization_endpoint.as_ref()),
            ("token_endpoint", found.token_endpoint.as_ref()),
            ("userinfo_endpoint", found.userinfo_endpoint.as_ref()),
        ];
        for (name, address) in endpoints {
            let checked = address.map_or(Ok(()), |address| provider_url(address));
            checked.map_err(|why| format!("{url}: `{name}` {why}"))?;
        }
        Ok(found)
    }
}
