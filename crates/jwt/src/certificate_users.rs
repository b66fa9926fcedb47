//! Clients that authenticate with a certificate: from a name of the certificate to a principal. Must not know TLS.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use headrace_domain::{OrgId, ProjectId, TokenUser, UnixNanos};
use headrace_identity::{Directory, ModelAccess, Principal, RateLimits, UserGrant};

use crate::TokenRefusal;

/// The issuer of users whom a certificate names, in traces.
const ISSUER: &str = "client certificate";

/// Who has a certificate with one of these names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRule {
    /// The names: URIs as they are, and host names after `dns:`. Compared byte by byte.
    pub names: Vec<String>,
    /// The organisation. `None` for that of the project.
    pub org: Option<OrgId>,
    /// The project.
    pub project: ProjectId,
    /// The models that the client may use.
    pub models: ModelAccess,
    /// Limits of the client.
    pub limits: RateLimits,
}

/// The clients that authenticate with a certificate. A reload replaces them.
pub struct CertificateUsers {
    by_name: ArcSwap<HashMap<String, CertificateUser>>,
    directory: Arc<Directory>,
}

/// A client, with the principal that was last built for it.
struct CertificateUser {
    grant: UserGrant,
    built: ArcSwapOption<BuiltPrincipal>,
}

/// A principal, and the version of the directory that it was built from.
struct BuiltPrincipal {
    principal: Arc<Principal>,
    version: u64,
}

impl CertificateUsers {
    /// Creates the clients of these rules. If two rules have the same name, the first one decides.
    pub fn new(rules: &[CertificateRule], directory: Arc<Directory>) -> Self {
        Self { by_name: ArcSwap::from_pointee(users(rules)), directory }
    }

    /// Replaces the rules.
    pub fn replace(&self, rules: &[CertificateRule]) {
        self.by_name.store(Arc::new(users(rules)));
    }

    /// Returns the principal of a certificate with these names. `None` if no rule has one of them.
    ///
    /// # Errors
    /// [`TokenRefusal::NoProject`] if the rule names a project or an organisation that does not exist.
    pub fn find(&self, names: &[String]) -> Option<Result<Arc<Principal>, TokenRefusal>> {
        let users = self.by_name.load();
        let user = names.iter().find_map(|name| users.get(name))?;
        // Read before a principal is built, so that a change meanwhile is noticed at the next look-up.
        let version = self.directory.principals_version();
        if let Some(built) = user.built.load().as_ref().filter(|built| built.version == version) {
            return Some(Ok(Arc::clone(&built.principal)));
        }
        let principal = self.directory.user_principal(&user.grant).map(Arc::new);
        Some(principal.map_err(|_| TokenRefusal::NoProject { claim: None }).inspect(|principal| {
            let principal = Arc::clone(principal);
            user.built.store(Some(Arc::new(BuiltPrincipal { principal, version })));
        }))
    }
}

impl fmt::Debug for CertificateUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateUsers").field("names", &self.by_name.load().len()).finish_non_exhaustive()
    }
}

fn users(rules: &[CertificateRule]) -> HashMap<String, CertificateUser> {
    let mut users = HashMap::new();
    for CertificateRule { names, org, project, models, limits } in rules {
        for name in names {
            let user = TokenUser { issuer: ISSUER.into(), subject: name.as_str().into(), role: None };
            let grant = UserGrant {
                user: Arc::new(user),
                org: org.clone(),
                project: project.clone(),
                models: models.clone(),
                limits: *limits,
                // The handshake has checked how long the certificate is valid.
                expires: UnixNanos::new(u64::MAX),
            };
            let built = ArcSwapOption::empty();
            users.entry(name.clone()).or_insert(CertificateUser { grant, built });
        }
    }
    users
}
