//! Clients that authenticate with a certificate: from a name of the certificate to a principal. Must not know TLS.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use headrace_domain::{OrgId, ProjectId, TokenUser, UnixNanos};
use headrace_identity::{
    Directory, IdentityError, ModelAccess, Principal, RateLimits, ServiceAccountGrant, UserGrant,
};

use crate::TokenRefusal;

/// The issuer of users whom a certificate names, in traces.
const ISSUER: &str = "client certificate";

/// Who has a certificate with one of these names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRule {
    /// The names: URIs as they are, and host names after `dns:`. Compared byte by byte.
    pub names: Vec<String>,
    /// The organisation. `None` for that of the project or the service account.
    pub org: Option<OrgId>,
    /// Whose calls the client makes.
    pub holder: CertificateHolder,
    /// The models that the client may use.
    pub models: ModelAccess,
    /// Limits of the client.
    pub limits: RateLimits,
}

/// Whose calls a client with a certificate makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateHolder {
    /// Those of a user of its own, in this project.
    Project(ProjectId),
    /// Those of the service account with this id or name.
    ServiceAccount(String),
}

/// The clients that authenticate with a certificate. A reload replaces them.
pub struct CertificateUsers {
    by_name: ArcSwap<HashMap<String, CertificateUser>>,
    directory: Arc<Directory>,
}

/// A client, with the principal that was last built for it.
struct CertificateUser {
    grant: CertificateGrant,
    built: ArcSwapOption<BuiltPrincipal>,
}

/// What a certificate grants.
enum CertificateGrant {
    User(UserGrant),
    ServiceAccount(ServiceAccountGrant),
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
    /// [`TokenRefusal::NoProject`] if the rule names a project, an organisation or a service account that does not exist.
    /// [`TokenRefusal::InactiveAccount`] if the service account is not active.
    pub fn find(&self, names: &[String]) -> Option<Result<Arc<Principal>, TokenRefusal>> {
        let users = self.by_name.load();
        let user = names.iter().find_map(|name| users.get(name))?;
        // Read before a principal is built, so that a change meanwhile is noticed at the next look-up.
        let version = self.directory.principals_version();
        if let Some(built) = user.built.load().as_ref().filter(|built| built.version == version) {
            return Some(Ok(Arc::clone(&built.principal)));
        }
        let principal = match &user.grant {
            CertificateGrant::User(grant) => self.directory.user_principal(grant),
            CertificateGrant::ServiceAccount(grant) => self.directory.service_account_principal(grant),
        };
        let refusal = |error| match error {
            IdentityError::InactiveUser(_) => TokenRefusal::InactiveAccount,
            _ => TokenRefusal::NoProject { claim: None },
        };
        Some(principal.map(Arc::new).map_err(refusal).inspect(|principal| {
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
    for CertificateRule { names, org, holder, models, limits } in rules {
        for name in names {
            let user = TokenUser { issuer: ISSUER.into(), subject: name.as_str().into(), role: None };
            let (user, org, models, limits) = (Arc::new(user), org.clone(), models.clone(), *limits);
            let grant = match holder.clone() {
                CertificateHolder::Project(project) => {
                    // The handshake has checked how long the certificate is valid.
                    let expires = UnixNanos::new(u64::MAX);
                    CertificateGrant::User(UserGrant { user, org, project, models, limits, expires })
                }
                CertificateHolder::ServiceAccount(account) => {
                    CertificateGrant::ServiceAccount(ServiceAccountGrant {
                        user,
                        account,
                        org,
                        models,
                        limits,
                    })
                }
            };
            let built = ArcSwapOption::empty();
            users.entry(name.clone()).or_insert(CertificateUser { grant, built });
        }
    }
    users
}
