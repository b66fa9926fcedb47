//! From the credential of a request to the principal: an API key, or a JWT of an identity provider. Must not know what
//! the request asks for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use headrace_call_api::{Credentials, PeerAddress};
use headrace_call_state::{Rejection, unauthenticated};
use headrace_domain::{Code, Stage};
use headrace_identity::{AuthRefusal, Principal, credential, is_token};
use headrace_jwt::{KeyWait, ShownCertificate, TokenRefusal};
use headrace_limits::QuotaFetch;

use crate::Gateway;
use crate::state::caller_scopes;

impl Gateway {
    /// Returns the principal of these credentials, if it may call from this address. Nothing is counted. Does no I/O.
    pub(crate) fn find_principal(
        &self,
        credentials: &Credentials,
        peer: PeerAddress,
    ) -> Result<Arc<Principal>, Rejection> {
        let shown = credential(credentials.authorization.as_deref(), credentials.x_api_key.as_deref());
        let by_certificate = self.find_by_certificate(credentials);
        let shown = match (shown, by_certificate.as_ref()) {
            (Err(AuthRefusal::Missing), Some(found)) => {
                return found.clone().map_err(|refusal| refused(&refusal));
            }
            (Err(AuthRefusal::Missing), None) if credentials.certificate.is_some() => {
                return Err(certificate_not_mapped());
            }
            (shown, _) => shown.map_err(|refusal| unauthenticated(&refusal))?,
        };
        let (parts, now) = (self.parts(), self.parts().clock.now());
        if !is_token(shown) && by_certificate.is_some() {
            return Err(key_beside_certificate());
        }
        if !is_token(shown) {
            let address = peer.address.ip();
            let found = parts.directory.authenticate_from(shown, address, now);
            return found.map_err(|refusal| match refusal {
                AuthRefusal::Address => not_from_here(address),
                refusal => unauthenticated(&refusal),
            });
        }
        let tokens = parts.tokens.as_ref().filter(|tokens| tokens.has_issuers());
        let tokens = tokens.ok_or_else(not_configured)?;
        let certificate = match (credentials.certificate.as_deref(), &by_certificate) {
            (None, _) => ShownCertificate::None,
            (Some(shown), None) => ShownCertificate::Plain(&shown.sha256),
            (Some(shown), Some(_)) => ShownCertificate::Credential(&shown.sha256),
        };
        tokens.authenticate_with(shown, certificate, now).map_err(|refusal| refused(&refusal))
    }

    /// The principal of the client's certificate. `None` if there is no certificate, or no rule for it.
    fn find_by_certificate(&self, credentials: &Credentials) -> Option<Result<Arc<Principal>, TokenRefusal>> {
        let certificate = credentials.certificate.as_ref()?;
        self.parts().certificates.as_ref()?.find(&certificate.names)
    }

    /// Returns a future to await before a request of this principal is admitted. `None` if its limits are kept in this
    /// process.
    pub(crate) fn fetch_limits(&self, principal: &Principal) -> Option<QuotaFetch> {
        let parts = self.parts();
        parts.limits.fetch_quota(&caller_scopes(principal), 1, parts.clock.now())
    }

    /// Returns a future to await before a request with these credential headers is admitted, if an identity provider
    /// must be asked for a key first. Returns `None` for almost every request.
    pub(crate) fn wait_for_keys(
        &self,
        authorization: Option<&[u8]>,
        x_api_key: Option<&[u8]>,
    ) -> Option<KeyWait> {
        let tokens = self.parts().tokens.as_ref().filter(|tokens| tokens.has_issuers())?;
        let shown = credential(authorization, x_api_key).ok().filter(|shown| is_token(shown))?;
        tokens.wait_for_keys(shown, self.parts().clock.now())
    }
}

/// The rejection of a valid key from an address that is not in its list.
fn not_from_here(address: IpAddr) -> Rejection {
    let message = format!(
        "The API key may not be used from {}: the address is not in the key's `allowed_ips`. Call from an allowed address, \
         or ask the operator to add it.",
        address.to_canonical()
    );
    Rejection::new(Code::AddressNotAllowed, message)
}

/// The rejection of a token while no issuer is configured.
fn not_configured() -> Rejection {
    Rejection::new(
        Code::JwtNotConfigured,
        "JWTs are not configured on this server, and the credential is one: it has two dots. Send an API key, `sk-…`. \
         Operators: add `[[identity.issuers]]` with the `issuer` of your identity provider.",
    )
}

/// The rejection of a request whose only credential is a certificate without a rule.
fn certificate_not_mapped() -> Rejection {
    Rejection::new(
        Code::TokenNotMapped,
        "The client certificate is valid, and none of its URI and DNS names gives access. Send an API key or a token, or \
         ask the operator for a rule in `[[identity.certificates]]`.",
    )
}

/// The rejection of an API key beside a certificate that gives access by itself.
fn key_beside_certificate() -> Rejection {
    Rejection::new(
        Code::ConflictingCredentials,
        "The connection has a client certificate that gives access, and the request has an API key. Send one of them.",
    )
}

/// The rejection of a token.
fn refused(refusal: &TokenRefusal) -> Rejection {
    let code = match refusal {
        TokenRefusal::Expired => Code::ExpiredToken,
        TokenRefusal::KeysUnavailable { .. } => Code::IdentityProviderUnavailable,
        TokenRefusal::NotMapped { .. } | TokenRefusal::NoProject { .. } | TokenRefusal::UnknownUser => {
            Code::TokenNotMapped
        }
        TokenRefusal::InactiveUser | TokenRefusal::InactiveAccount => Code::UserInactive,
        TokenRefusal::TooLong { .. }
        | TokenRefusal::Malformed { .. }
        | TokenRefusal::Algorithm
        | TokenRefusal::Type
        | TokenRefusal::CriticalExtension
        | TokenRefusal::UnknownIssuer
        | TokenRefusal::UnknownKey
        | TokenRefusal::OtherAlgorithm
        | TokenRefusal::Signature
        | TokenRefusal::Claim { .. }
        | TokenRefusal::Audience
        | TokenRefusal::NotYetValid { .. }
        | TokenRefusal::Bound
        | TokenRefusal::NoCertificate
        | TokenRefusal::OtherCertificate => Code::InvalidToken,
        TokenRefusal::TwoCredentials => Code::ConflictingCredentials,
    };
    let rejection = Rejection::new(code, refusal.to_string());
    match refusal {
        TokenRefusal::KeysUnavailable { retry_after } => {
            // Whole seconds, rounded up.
            rejection.retry_after(Duration::from_secs(retry_after.as_secs().saturating_add(1)))
        }
        _ => rejection,
    }
}

/// The rejection of a token whose user was deactivated while the body of its request arrived.
pub(crate) fn user_inactive() -> Rejection {
    refused(&TokenRefusal::InactiveUser).at(Stage::Authenticate)
}

/// The rejection of a token that expired while the body of its request arrived.
pub(crate) fn token_expired() -> Rejection {
    refused(&TokenRefusal::Expired).at(Stage::Authenticate)
}
