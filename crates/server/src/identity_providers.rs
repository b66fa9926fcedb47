//! The identity providers whose tokens the gateway accepts, and those at which operators sign in, from the settings. Must not know how a token is verified.

use std::sync::Arc;

use headrace_config::ServerSettings;
use headrace_identity::Directory;
use headrace_jwt::{DocumentSource, GrantValue, HttpDocuments, IssuerConfig, ProviderClient, SignInConfig};
use headrace_terminal::output;

/// Issuers, each with the source of its documents.
type IssuersWithSources = Vec<(IssuerConfig, Arc<dyn DocumentSource>)>;
/// Identity providers of operators, each with its client.
type ProvidersWithClients = Vec<(SignInConfig, Arc<dyn ProviderClient>)>;

/// The identity providers of callers, each with the source of its documents. Warns of rules that name a project or an
/// organisation that does not exist yet. Asks no provider.
///
/// # Errors
/// Returns why no HTTP client for a provider can be built.
pub(crate) fn of_callers(
    config: &ServerSettings,
    directory: &Directory,
) -> Result<IssuersWithSources, String> {
    let with_documents = |issuer: &IssuerConfig| {
        warn_of_missing(issuer, directory);
        let documents = HttpDocuments::new(issuer.extra_roots_pem.as_deref());
        let documents =
            documents.map_err(|error| format!("identity provider `{}`: {error}", issuer.issuer))?;
        Ok((issuer.clone(), Arc::new(documents) as Arc<dyn DocumentSource>))
    };
    config.issuers.iter().map(with_documents).collect()
}

/// The identity providers of operators, each with its HTTP client. Asks no provider.
///
/// # Errors
/// Returns why no HTTP client for a provider can be built.
pub(crate) fn of_operators(config: &ServerSettings) -> Result<ProvidersWithClients, String> {
    let with_client = |provider: &SignInConfig| {
        let client = HttpDocuments::new(provider.extra_roots_pem.as_deref());
        let client = client.map_err(|error| format!("admin.sign_in: `{}`: {error}", provider.name))?;
        Ok((provider.clone(), Arc::new(client) as Arc<dyn ProviderClient>))
    };
    config.admin.sign_in.iter().map(with_client).collect()
}

fn warn_of_missing(issuer: &IssuerConfig, directory: &Directory) {
    // The first start creates its project later.
    if directory.projects().is_empty() {
        return;
    }
    for rule in &issuer.rules {
        if let GrantValue::Fixed(project) = &rule.project
            && directory.project(project).is_none()
        {
            output::note(&format!(
                "warning: a rule of the identity provider `{}` names the project `{project}`, which does not exist: \
                 create it with `headrace projects create`",
                issuer.issuer
            ));
        }
        if let Some(GrantValue::Fixed(org)) = &rule.org
            && directory.org(org).is_none()
        {
            output::note(&format!(
                "warning: a rule of the identity provider `{}` names the organisation `{org}`, which does not exist: \
                 create it with `headrace orgs create`",
                issuer.issuer
            ));
        }
    }
}
