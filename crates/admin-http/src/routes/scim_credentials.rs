//! Credentials of identity providers. Must not know the protocol.

use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json};
use headrace_admin::{AccountAct, AccountReply, AdminReply};
use headrace_domain::OrgId;
use headrace_identity::{AccountId, ScimCredentialRecord, ScimSubject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::org_scope::check_org;
use crate::page::RowPage;
use crate::problem::ApiProblem;
use crate::routes::accounts::{AccountsQuery, run};
use crate::routes::{ById, CreatedBody};
use crate::values::{Name, Time};
use crate::who::AuthenticatedOperator;

/// A credential with which an identity provider keeps users and groups by SCIM.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ScimCredential")]
pub(crate) struct ScimView {
    id: String,
    org: String,
    /// The last four characters of the secret.
    hint: String,
    /// The issuer of the users' tokens.
    issuer: Option<String>,
    created: Time,
    revoked: Option<Time>,
}

impl From<ScimCredentialRecord> for ScimView {
    fn from(of: ScimCredentialRecord) -> Self {
        let ScimCredentialRecord { id, org, hint, issuer, created, revoked, .. } = of;
        let (created, revoked) = (Time(created), revoked.map(Time));
        Self { id: id.to_string(), org: org.to_string(), hint, issuer, created, revoked }
    }
}

/// A SCIM credential to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewScim {
    #[schemars(with = "Name")]
    org: OrgId,
    /// The issuer of the users' tokens, if they call with tokens.
    #[schemars(length(min = 1, max = 256))]
    issuer: Option<String>,
    /// The attribute that equals the subject of the tokens.
    #[serde(default)]
    subject: SubjectName,
}

/// The attribute of a SCIM user that equals the subject of its tokens.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ScimSubject")]
pub(crate) enum SubjectName {
    #[default]
    ExternalId,
    UserName,
}

/// A SCIM credential and its secret.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ScimCreated {
    credential: ScimView,
    /// Shown this once.
    secret: String,
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<AccountsQuery>,
) -> Result<Json<RowPage<ScimView>>, ApiProblem> {
    let all = app.directory().scim_credentials(query.org(&who)?.as_ref());
    Ok(query.page(all.into_iter().map(ScimView::from), |credential| credential.id.clone()))
}

pub(crate) async fn create(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(NewScim { org, issuer, subject }): JsonBody<NewScim>,
) -> Result<CreatedBody<ScimCreated>, ApiProblem> {
    check_org(&who.operator, &org)?;
    let subject = match subject {
        SubjectName::ExternalId => ScimSubject::ExternalId,
        SubjectName::UserName => ScimSubject::UserName,
    };
    match run(&app, &who, AccountAct::CreateScim { org, issuer, subject }).await? {
        AccountReply::ScimCreated { credential, secret } => {
            app.changed("scim");
            Ok(CreatedBody(ScimCreated { credential: credential.into(), secret: secret.expose().to_owned() }))
        }
        other => Err(unexpected(AdminReply::Accounts(other))),
    }
}

pub(crate) async fn revoke(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<NoContent, ApiProblem> {
    run(&app, &who, AccountAct::RevokeScim { id }).await?;
    app.changed("scim");
    Ok(NoContent)
}
