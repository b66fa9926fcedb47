//! Which roles may call a route. A route without an entry is nobody's. Must not know what a route does.

use std::collections::BTreeMap;

use axum::http::Method;
use headrace_identity::Role;

/// Where the API begins.
pub(crate) const ROOT: &str = "/admin/v1";

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

/// Who may call what, by method and path.
#[derive(Debug, Default)]
pub(crate) struct AccessTable(BTreeMap<(String, String), Access>);

impl AccessTable {
    /// Says who may call a route, by its whole path.
    pub(crate) fn put(&mut self, method: &Method, path: String, access: Access) {
        self.0.insert((path, method.as_str().to_owned()), access);
    }

    /// Who may call a route; `None`: nobody.
    pub(crate) fn of(&self, method: &Method, path: &str) -> Option<Access> {
        // Whoever may read may ask what reading would say.
        let method = if *method == Method::HEAD { Method::GET.as_str() } else { method.as_str() };
        self.0.get(&(path.to_owned(), method.to_owned())).copied()
    }

    /// Every route, as `GET /status`, with who may call it.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (String, Access)> {
        self.0.iter().map(|((path, method), access)| {
            (format!("{method} {}", path.strip_prefix(ROOT).unwrap_or(path)), *access)
        })
    }
}
