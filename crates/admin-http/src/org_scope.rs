//! What an operator of one organisation may call, and whether the subject of a request belongs to the organisation. A route
//! without a rule is closed to such operators. Must not know what a route does.

use headrace_admin::AdminError;
use headrace_domain::{AdminCode, KeyId, OrgId, ProjectId};
use headrace_identity::{AccountId, AccountKind, IdentityError, OperatorId, OperatorRecord};

use crate::app::AdminApp;
use crate::problem::ApiProblem;

/// The subject that a path names by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathSubject {
    Project,
    Key,
    Account(AccountKind),
    Operator,
}

/// What an operator of one organisation may do at a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrgRule {
    /// The handler shows and changes only what belongs to the organisation, or the route shows what every caller may know.
    Handler,
    /// The path names the subject, which must belong to the organisation.
    Path(PathSubject),
}

use OrgRule::{Handler, Path};
use PathSubject::{Account, Key, Operator, Project};

const USER: OrgRule = Path(Account(AccountKind::User));
const SERVICE_ACCOUNT: OrgRule = Path(Account(AccountKind::ServiceAccount));
const GROUP: OrgRule = Path(Account(AccountKind::Group));
const SCIM: OrgRule = Path(Account(AccountKind::ScimCredential));

/// The routes that operators of one organisation may call, as far as their role allows.
const ROUTES: &[(&str, OrgRule)] = &[
    ("DELETE /operators/{id}", Path(Operator)),
    ("DELETE /scim/{id}", SCIM),
    ("DELETE /service-accounts/{id}", SERVICE_ACCOUNT),
    ("DELETE /session", Handler),
    ("DELETE /users/{id}", USER),
    ("GET /audit", Handler),
    ("GET /budget-alerts", Handler),
    ("GET /budgets", Handler),
    ("GET /credit", Handler),
    ("GET /free-tiers", Handler),
    ("GET /groups", Handler),
    ("GET /invoice-draft", Handler),
    ("GET /invoices", Handler),
    ("GET /invoices/{id}", Handler),
    ("GET /invoices/{id}/csv", Handler),
    ("GET /invoices/{id}/html", Handler),
    ("GET /keys", Handler),
    ("GET /lots", Handler),
    ("GET /models", Handler),
    ("GET /operators", Handler),
    ("GET /orgs", Handler),
    ("GET /prices", Handler),
    ("GET /projects", Handler),
    ("GET /projects/{id}/grants", Path(Project)),
    ("GET /requests", Handler),
    ("GET /requests/compare", Handler),
    ("GET /requests/{id}", Handler),
    ("GET /requests/{id}/content", Handler),
    ("GET /requests/{id}/cost", Handler),
    ("GET /requests/{id}/explain", Handler),
    ("GET /requests/{id}/receipt", Handler),
    ("GET /requests/{id}/scores", Handler),
    ("GET /scim", Handler),
    ("GET /service-accounts", Handler),
    ("GET /service-accounts/{id}", SERVICE_ACCOUNT),
    ("GET /session", Handler),
    ("GET /statement", Handler),
    ("GET /usage", Handler),
    ("GET /users", Handler),
    ("GET /users/{id}", USER),
    ("PATCH /groups/{id}", GROUP),
    ("PATCH /keys/{id}", Path(Key)),
    ("PATCH /projects/{id}", Path(Project)),
    ("PATCH /users/{id}", USER),
    ("POST /keys", Handler),
    ("POST /keys/{id}/revoke", Path(Key)),
    ("POST /keys/{id}/rotate", Path(Key)),
    ("POST /operators", Handler),
    ("POST /operators/{id}/link", Path(Operator)),
    ("POST /playground/chat/completions", Handler),
    ("POST /playground/messages", Handler),
    ("POST /playground/responses", Handler),
    ("POST /playground/stop", Handler),
    ("POST /playground/tokenize", Handler),
    ("POST /projects", Handler),
    ("POST /requests/{id}/scores", Handler),
    ("POST /scim", Handler),
    ("POST /service-accounts", Handler),
    ("POST /service-accounts/{id}/activate", SERVICE_ACCOUNT),
    ("POST /service-accounts/{id}/deactivate", SERVICE_ACCOUNT),
    ("POST /users", Handler),
    ("POST /users/{id}/activate", USER),
    ("POST /users/{id}/deactivate", USER),
    ("PUT /projects/{id}/budget", Path(Project)),
    ("PUT /projects/{id}/low-balance", Path(Project)),
];

/// Whether operators of one organisation may call a route, such as `GET /keys`, as far as their role allows.
pub(crate) fn is_open(route: &str) -> bool {
    rule_of(route).is_some()
}

/// Why operators of one organisation may not call a route that is closed to them, and which operators may. `words` names
/// the roles that the route admits.
pub(crate) fn closed_reason(route: &str, words: &str) -> String {
    match route {
        "PUT /free-tiers/{id}" | "DELETE /free-tiers/{id}" => format!(
            "a free tier is money that the provider of this server gives: an operator of the whole server sets it, with \
             one of these roles: {words}. An operator of one organisation may list the free tiers that apply to it"
        ),
        _ => {
            "an operator of one organisation may not call this route: it concerns the whole server".to_owned()
        }
    }
}

fn rule_of(route: &str) -> Option<OrgRule> {
    ROUTES.iter().find(|(known, _)| *known == route).map(|(_, rule)| *rule)
}

/// Whether an operator has its role in this organisation.
pub(crate) fn is_within(operator: &OperatorRecord, org: &OrgId) -> bool {
    operator.org.as_ref().is_none_or(|own| own == org)
}

/// Checks that the subject of a path belongs to the operator's organisation. `id` is the id in the path, decoded.
///
/// # Errors
/// The error for a subject that does not exist.
pub(crate) fn check_path(
    app: &AdminApp,
    operator: &OperatorRecord,
    route: &str,
    id: Option<&str>,
) -> Result<(), ApiProblem> {
    let (Some(Path(subject)), Some(org)) = (rule_of(route), &operator.org) else { return Ok(()) };
    let Some(id) = id else {
        return Err(ApiProblem::new(AdminCode::Role, "the path does not name what this operator may change"));
    };
    // The handler refuses a malformed id, which it reads in the same way.
    let directory = app.directory();
    let (found, unknown) = match subject {
        Project => {
            let Ok(id) = ProjectId::new(id) else { return Ok(()) };
            (directory.project(&id).map(|project| project.org), IdentityError::UnknownProject(id))
        }
        Key => {
            let Ok(id) = KeyId::new(id) else { return Ok(()) };
            (directory.key(&id).map(|key| key.org), IdentityError::UnknownKey(id))
        }
        Account(kind) => {
            let Ok(id) = AccountId::new(id) else { return Ok(()) };
            let found = match kind {
                _ if id.kind() != kind => None,
                AccountKind::User => directory.user(&id).map(|user| user.org),
                AccountKind::ServiceAccount => directory.service_account(&id).map(|account| account.org),
                AccountKind::Group => directory.group(&id).map(|group| group.org),
                AccountKind::ScimCredential => {
                    let all = directory.scim_credentials(None);
                    all.into_iter().find(|credential| credential.id == id).map(|credential| credential.org)
                }
            };
            (found, IdentityError::UnknownAccount(id.to_string()))
        }
        Operator => {
            let Ok(id) = OperatorId::new(id) else { return Ok(()) };
            let operators = app.sessions().operators().list();
            let found = operators.into_iter().find(|operator| operator.id == id);
            (found.and_then(|operator| operator.org), IdentityError::UnknownOperator(id.to_string()))
        }
    };
    match found {
        Some(found) if found == *org => Ok(()),
        _ => Err(AdminError::from(unknown).into()),
    }
}

/// Checks that a project belongs to the operator's organisation.
///
/// # Errors
/// The error for a project that does not exist.
pub(crate) fn check_project(
    app: &AdminApp,
    operator: &OperatorRecord,
    project: &ProjectId,
) -> Result<(), ApiProblem> {
    let found = app.directory().project(project).filter(|found| is_within(operator, &found.org));
    match found {
        None if operator.org.is_some() => {
            Err(AdminError::from(IdentityError::UnknownProject(project.clone())).into())
        }
        _ => Ok(()),
    }
}

/// Checks that an organisation is the operator's.
///
/// # Errors
/// The error for an organisation that does not exist.
pub(crate) fn check_org(operator: &OperatorRecord, org: &OrgId) -> Result<(), ApiProblem> {
    match is_within(operator, org) {
        true => Ok(()),
        false => Err(AdminError::from(IdentityError::UnknownOrg(org.clone())).into()),
    }
}

/// Narrows the filters of a query about calls to the operator's organisation.
///
/// # Errors
/// The error for an organisation that does not exist, if the filters name another one.
pub(crate) fn narrow(
    operator: &OperatorRecord,
    named: &mut Vec<(&'static str, String)>,
) -> Result<(), ApiProblem> {
    let Some(org) = &operator.org else { return Ok(()) };
    if let Some((_, other)) = named.iter().find(|(name, value)| *name == "org" && value != org.as_str()) {
        let message = format!("there is no organisation `{other}`");
        return Err(ApiProblem::new(AdminCode::UnknownOrg, message).at(Some("org")));
    }
    named.retain(|(name, _)| *name != "org");
    named.push(("org", org.to_string()));
    Ok(())
}
