//! The roles that may call a route. No role may call a route without an entry. Must not know what a route does.

use std::collections::BTreeMap;

use axum::http::Method;
use headrace_identity::Role;

/// The prefix of every path of the API.
pub(crate) const ROOT: &str = "/admin/v1";

/// The access rule of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteRoles {
    /// Every client, signed in or not.
    Anyone,
    /// Only operators with one of these roles.
    Of(&'static [Role]),
}

/// Every operator.
pub(crate) const VIEWERS: RouteRoles =
    RouteRoles::Of(&[Role::Owner, Role::Admin, Role::Billing, Role::Developer, Role::Viewer]);
/// The roles that see and move money.
pub(crate) const BILLING: RouteRoles = RouteRoles::Of(&[Role::Owner, Role::Admin, Role::Billing]);
/// The roles that create keys and try models.
pub(crate) const DEVELOPERS: RouteRoles = RouteRoles::Of(&[Role::Owner, Role::Admin, Role::Developer]);
/// The roles that change how the server runs.
pub(crate) const ADMINS: RouteRoles = RouteRoles::Of(&[Role::Owner, Role::Admin]);
/// The roles that create operators.
pub(crate) const OWNERS: RouteRoles = RouteRoles::Of(&[Role::Owner]);

impl RouteRoles {
    /// Returns whether `role` has access.
    pub(crate) fn allows(self, role: Role) -> bool {
        match self {
            Self::Anyone => true,
            Self::Of(roles) => roles.contains(&role),
        }
    }

    /// The roles as text for the OpenAPI document.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Anyone => "anyone".to_owned(),
            Self::Of(roles) => roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The access rules of all routes, by method and path.
#[derive(Debug, Default)]
pub(crate) struct AccessTable(BTreeMap<(String, String), RouteRoles>);

impl AccessTable {
    /// Sets the access rule of a route. `path` is the whole path.
    pub(crate) fn put(&mut self, method: &Method, path: String, access: RouteRoles) {
        self.0.insert((path, method.as_str().to_owned()), access);
    }

    /// The access rule of a route. `None` if the route has no entry and so no client may call it.
    pub(crate) fn of(&self, method: &Method, path: &str) -> Option<RouteRoles> {
        // A role with access to GET also has access to HEAD.
        let method = if *method == Method::HEAD { Method::GET.as_str() } else { method.as_str() };
        self.0.get(&(path.to_owned(), method.to_owned())).copied()
    }

    /// Every route, such as `GET /status`, with its access rule.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (String, RouteRoles)> {
        self.0.iter().map(|((path, method), access)| {
            (format!("{method} {}", path.strip_prefix(ROOT).unwrap_or(path)), *access)
        })
    }
}
