//! The seam from operators to the users that some of them are. Must not know keys.

use headrace_domain::OrgId;

use crate::role::Role;
use crate::{AccountId, UserLogin};

/// The roles of users in their organisations.
pub trait UserRoles: Send + Sync {
    /// The role of an active user in its organisation. `None` if it has none, is not active or does not exist.
    fn role_of(&self, user: &AccountId) -> Option<Role>;

    /// The organisation of a user. `None` if there is no such user, or it was removed.
    fn org_of(&self, user: &AccountId) -> Option<OrgId>;

    /// Returns whether the organisations that `counts` accepts have users with this login, and none of them is active.
    fn is_deprovisioned(&self, login: &UserLogin, counts: &dyn Fn(&OrgId) -> bool) -> bool;

    /// Whether an organisation exists.
    fn has_org(&self, org: &OrgId) -> bool;
}
