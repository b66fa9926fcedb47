//! The holder of an identity provider's token. Must not know how a token is verified.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The holder of an identity provider's token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenUser {
    /// The provider (`iss`).
    pub issuer: Arc<str>,
    /// The provider's id of the user (`sub`). Unique together with the issuer.
    pub subject: Arc<str>,
    /// The role that a rule of the issuer gives the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Arc<str>>,
}

impl fmt::Display for TokenUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.subject, self.issuer)?;
        self.role.as_ref().map_or(Ok(()), |role| write!(f, ", role {role}"))
    }
}
