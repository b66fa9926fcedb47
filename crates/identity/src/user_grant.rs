//! What a token of an identity provider grants to its holder. Must not know tokens or providers.

use std::sync::Arc;

use headrace_domain::{KeyId, OrgId, ProjectId, TokenUser, UnixNanos};

use crate::{ModelAccess, RateLimits};

/// The id under which the limits and traces of a token's holder are kept: `user_` and 128 bits of a hash of organisation,
/// issuer and subject. A holder has one id in each organisation, so what one of them decides about its user concerns no
/// other. `None` never happens for a hash, whose digits make a valid id.
pub(crate) fn token_user_id(org: &OrgId, issuer: &str, subject: &str) -> Option<KeyId> {
    let mut hasher = blake3::Hasher::new_derive_key("headrace 2026 id of a token's user v2");
    for part in [org.as_str(), issuer, subject] {
        // The length separates the parts, so no two users share an input.
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        hasher.update(&length.to_le_bytes()).update(part.as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    KeyId::new(&format!("user_{}", hash.get(..32)?)).ok()
}

/// What a token grants to its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserGrant {
    /// The user.
    pub user: Arc<TokenUser>,
    /// The organisation. `None` for that of the project.
    pub org: Option<OrgId>,
    /// The project.
    pub project: ProjectId,
    /// The models that the user may ask for.
    pub models: ModelAccess,
    /// Limits of the user.
    pub limits: RateLimits,
    /// When the token is no longer accepted.
    pub expires: UnixNanos,
}

/// What a client certificate grants to a service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccountGrant {
    /// The certificate, as a user of its authority.
    pub user: Arc<TokenUser>,
    /// The id (`svc_…`) or the name of the service account.
    pub account: String,
    /// The organisation of the service account. A name needs it.
    pub org: Option<OrgId>,
    /// The models that the service account may ask for.
    pub models: ModelAccess,
    /// Limits of the service account.
    pub limits: RateLimits,
}
