//! Which roles may call a route. A route without an entry is nobody's. Must not know what a route does.

use headrace_identity::Role;

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Whoever asks, signed in or not.
    Anyone,
    /// Operators with one of these roles.
    Of(&'static [Role]),
}

/// Everybody who is signed in.
pub(crate) const VIEWERS: Access =
    Access::Of(&[Role::Owner, Role::Admin, Role::Billing, Role::Developer, Role::Viewer]);
/// Who sees and moves money.
pub(crate) const BILLING: Access = Access::Of(&[Role::Owner, Role::Admin, Role::Billing]);
/// Who makes keys and tries models.
pub(crate) const DEVELOPERS: Access = Access::Of(&[Role::Owner, Role::Admin, Role::Developer]);
/// Who changes how the house runs.
pub(crate) const ADMINS: Access = Access::Of(&[Role::Owner, Role::Admin]);
/// Who makes operators.
pub(crate) const OWNERS: Access = Access::Of(&[Role::Owner]);

impl Access {
    /// Whether a role is among them.
    pub(crate) fn allows(self, role: Role) -> bool {
        match self {
            Self::Anyone => true,
            Self::Of(roles) => roles.contains(&role),
        }
    }

    /// In words, for the document.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Anyone => "anyone".to_owned(),
            Self::Of(roles) => roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", "),
        }
    }
}
