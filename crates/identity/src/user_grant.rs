//! What a token of an identity provider grants to its holder. Must not know tokens or providers.

use std::sync::Arc;

use headrace_domain::{KeyId, OrgId, ProjectId, TokenUser, UnixNanos};

use crate::{ModelAccess, RateLimits};

/// What a token grants to its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserGrant {
    /// The id of the user, in place of a key's.
    pub key: KeyId,
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
