//! Every path of the service with its methods, in one table. Any other path is 404. Must not know what a request does.

use headrace_identity::AccountKind;

/// What a path is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScimTarget {
    /// A search by POST for resources of these kinds (RFC 7644, 3.4.3).
    Search(&'static [AccountKind]),
    /// A description of the service: the name of the path's first segment.
    Description(&'static str),
    /// The users or groups of the organisation, or the one with the id in the path.
    Resources(AccountKind),
}

/// A path of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScimRoute {
    /// The methods that the path takes.
    pub(crate) methods: &'static [&'static str],
    /// The path below the root. `{id}` at its end is one segment.
    pub(crate) path: &'static str,
    pub(super) target: ScimTarget,
}

/// All paths. The first that matches decides.
pub(crate) const ROUTES: &[ScimRoute] = &[
    search("/.search", &[AccountKind::User, AccountKind::Group]),
    search("/Users/.search", &[AccountKind::User]),
    search("/Groups/.search", &[AccountKind::Group]),
    description("/ServiceProviderConfig", "ServiceProviderConfig"),
    description("/ResourceTypes", "ResourceTypes"),
    description("/ResourceTypes/{id}", "ResourceTypes"),
    description("/Schemas", "Schemas"),
    description("/Schemas/{id}", "Schemas"),
    list("/Users", AccountKind::User),
    one("/Users/{id}", AccountKind::User),
    list("/Groups", AccountKind::Group),
    one("/Groups/{id}", AccountKind::Group),
];

const fn search(path: &'static str, kinds: &'static [AccountKind]) -> ScimRoute {
    ScimRoute { methods: &["POST"], path, target: ScimTarget::Search(kinds) }
}

const fn description(path: &'static str, name: &'static str) -> ScimRoute {
    ScimRoute { methods: &["GET"], path, target: ScimTarget::Description(name) }
}

const fn list(path: &'static str, kind: AccountKind) -> ScimRoute {
    ScimRoute { methods: &["GET", "POST"], path, target: ScimTarget::Resources(kind) }
}

const fn one(path: &'static str, kind: AccountKind) -> ScimRoute {
    ScimRoute { methods: &["GET", "PUT", "PATCH", "DELETE"], path, target: ScimTarget::Resources(kind) }
}

/// The route of a path below the root, without slashes at its ends, and the id in it. `None` if there is no such path.
pub(super) fn find(path: &str) -> Option<(&'static ScimRoute, Option<&str>)> {
    ROUTES.iter().find_map(|route| {
        let known = route.path.trim_start_matches('/');
        match known.strip_suffix("{id}") {
            None => (path == known).then_some((route, None)),
            Some(before) => {
                let id = path.strip_prefix(before).filter(|id| !id.is_empty() && !id.contains('/'))?;
                Some((route, Some(id)))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_where_the_table_says() {
        for (path, expected) in [
            ("Users", Some(("/Users", None))),
            ("Users/usr_1", Some(("/Users/{id}", Some("usr_1")))),
            ("Users/.search", Some(("/Users/.search", None))),
            ("Schemas/urn:a:b", Some(("/Schemas/{id}", Some("urn:a:b")))),
            ("ServiceProviderConfig/x", None),
            ("Users/usr_1/x", None),
            ("users", None),
            ("Bulk", None),
            ("", None),
        ] {
            assert_eq!(find(path).map(|(route, id)| (route.path, id)), expected, "{path}");
        }
    }
}
