//! Operators: list, create, revoke, and make sign-in links.

use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply};
use headrace_domain::OrgId;
use headrace_identity::{AccountId, OperatorId, OperatorRecord, OperatorScope, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::org_scope::check_org;
use crate::page::{PageQuery, RowPage};
use crate::problem::ApiProblem;
use crate::routes::{ById, CreatedBody};
use crate::values::{Name, Time, Title};
use crate::who::AuthenticatedOperator;

const CHANGED: &str = "operators";

/// An operator, without the key.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Operator {
    id: String,
    /// The display name.
    name: String,
    /// `owner`, `admin`, `billing`, `developer` or `viewer`.
    role: &'static str,
    /// The only organisation in which the operator has the role. `null` for all of them.
    org: Option<String>,
    /// The user that the operator is.
    user: Option<String>,
    /// The last four characters of the key.
    hint: String,
    created: Time,
    /// `null` if the operator is not revoked.
    revoked: Option<Time>,
}

impl From<OperatorRecord> for Operator {
    fn from(of: OperatorRecord) -> Self {
        let OperatorRecord { id, name, role, org, user, hint, created, revoked } = of;
        Self {
            id: id.to_string(),
            name,
            role: role.name(),
            org: org.map(|org| org.to_string()),
            user: user.map(String::from),
            hint,
            created: Time(created),
            revoked: revoked.map(Time),
        }
    }
}

/// An operator to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewOperator {
    /// Unique among the operators that are not revoked.
    #[schemars(with = "Title")]
    name: String,
    /// Ignored for a user.
    role: RoleName,
    /// The only organisation in which the operator has the role. If absent, it has the role in all of them.
    #[schemars(with = "Option<Name>")]
    org: Option<OrgId>,
    /// The user that the operator is: `usr_…`. Its role is then the user's, in the user's organisation.
    #[schemars(with = "Option<Name>")]
    user: Option<AccountId>,
}

/// A role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Role")]
pub(crate) enum RoleName {
    Owner,
    Admin,
    Billing,
    Developer,
    Viewer,
}

impl From<RoleName> for Role {
    fn from(of: RoleName) -> Self {
        match of {
            RoleName::Owner => Self::Owner,
            RoleName::Admin => Self::Admin,
            RoleName::Billing => Self::Billing,
            RoleName::Developer => Self::Developer,
            RoleName::Viewer => Self::Viewer,
        }
    }
}

/// An operator and the key.
#[derive(Serialize, JsonSchema)]
pub(crate) struct OperatorCreated {
    operator: Operator,
    /// Shown this once.
    key: String,
}

/// A link that works once.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SignInLink {
    /// The whole address. Browsers never send the part after `#`.
    link: String,
    expires: Time,
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<Operator>>, ApiProblem> {
    let AdminReply::Operators(operators) = app.run(&who, AdminCommand::ListOperators).await? else {
        return Err(ApiProblem::internal("the command answered with something else"));
    };
    let own = |operator: &OperatorRecord| who.operator.org.is_none() || operator.org == who.operator.org;
    let operators = operators.into_iter().filter(own).map(Operator::from);
    Ok(Json(RowPage::by(operators, query.limit, query.cursor.as_deref(), |operator| operator.id.clone())))
}

pub(crate) async fn create(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(new): JsonBody<NewOperator>,
) -> Result<CreatedBody<OperatorCreated>, ApiProblem> {
    let scope = match (who.operator.org.clone().or(new.org), new.user) {
        (_, Some(user)) => OperatorScope::User(user),
        (Some(org), None) => OperatorScope::Org(org),
        (None, None) => OperatorScope::Server,
    };
    let user = match &scope {
        OperatorScope::User(user) => app.directory().user(user).map(|user| user.org),
        OperatorScope::Org(org) => Some(org.clone()),
        OperatorScope::Server => None,
    };
    if let Some(org) = &user {
        check_org(&who.operator, org)?;
    }
    let create = AdminCommand::CreateOperator { name: new.name, role: new.role.into(), scope };
    match app.run(&who, create).await? {
        AdminReply::OperatorCreated { operator, key } => {
            app.changed(CHANGED);
            Ok(CreatedBody(OperatorCreated { operator: operator.into(), key: key.expose().to_owned() }))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn revoke(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<OperatorId>>,
) -> Result<NoContent, ApiProblem> {
    app.run(&who, AdminCommand::RevokeOperator { id: id.clone() }).await?;
    app.sessions().end_all(&id);
    // A failed write is harmless: the operator is revoked, so a stored session no longer signs in.
    let _ = app.store_sessions().await;
    app.changed(CHANGED);
    Ok(NoContent)
}

pub(crate) async fn link(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<OperatorId>>,
) -> Result<CreatedBody<SignInLink>, ApiProblem> {
    match app.run(&who, AdminCommand::LinkOperator { id }).await? {
        AdminReply::SignInLink { link, expires } => {
            Ok(CreatedBody(SignInLink { link: link.expose().to_owned(), expires: Time(expires) }))
        }
        other => Err(unexpected(other)),
    }
}
