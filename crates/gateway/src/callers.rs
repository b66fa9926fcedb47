//! From the credential of a request to the principal: an API key, or a JWT of an identity provider. Must not know what
//! the request asks for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use headrace_call_api::{Credentials, PeerAddress};
use headrace_call_state::{Rejection, unauthenticated};
use headrace_domain::{Code, Stage};
use headrace_identity::{AuthRefusal, Principal, credential, is_token};
use headrace_jwt::{KeyWait, TokenRefusal};

use crate::Gateway;

impl Gateway {
    /// Returns the principal of these credentials, if it may call from this address. Nothing is counted. Does no I/O.
    pub(crate) fn find_principal(
        &self,
        credentials: &Credentials,
        peer: PeerAddress,
    ) -> Result<Arc<Principal>, Rejection> {
        let shown = credential(credentials.authorization.as_deref(), credentials.x_api_key.as_deref());
        let shown = shown.map_err(|refusal| unauthenticated(&refusal))?;
        let (parts, now) = (self.parts(), self.parts().clock.now());
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
        tokens.authenticate(shown, now).map_err(|refusal| refused(&refusal))
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

/// The rejection of a token.
fn refused(refusal: &TokenRefusal) -> Rejection {
    let code = match refusal {
        TokenRefusal::Expired => Code::ExpiredToken,
        TokenRefusal::KeysUnavailable { .. } => Code::IdentityProviderUnavailable,
        TokenRefusal::NotMapped { .. } | TokenRefusal::NoProject { .. } => Code::TokenNotMapped,
        TokenRefusal::InactiveUser => Code::UserInactive,
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
        | TokenRefusal::Bound => Code::InvalidToken,
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

/// The rejection of a token that expired while the body of its request arrived.
pub(crate) fn token_expired() -> Rejection {
    refused(&TokenRefusal::Expired).at(Stage::Authenticate)
}
