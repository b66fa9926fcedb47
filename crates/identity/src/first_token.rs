//! A user whom a token shows for the first time. Plain data. Must not know records.

use headrace_domain::OrgId;

use crate::UserLogin;

/// A user without a record, as its token describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstToken {
    /// The organisation in which the token counts.
    pub org: OrgId,
    /// Issuer and subject of the token.
    pub login: UserLogin,
    /// The name for display that the token claims.
    pub display_name: Option<String>,
}
