//! Users, service accounts and groups.

use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json};
use headrace_admin::{
    AccountAct, AccountReply, AdminCommand, AdminError, AdminReply, GroupMapping, UserChange,
};
use headrace_domain::{OrgId, ProjectId, TierName};
use headrace_identity::{
    AccountId, AccountRecord, GroupRecord, IdentityError, Role, ServiceAccountRecord, UserLogin, UserProfile,
    UserRecord,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::org_scope::{check_org, check_project};
use crate::page::RowPage;
use crate::problem::ApiProblem;
use crate::routes::operators::RoleName;
use crate::routes::{ById, CreatedBody};
use crate::values::{Name, Time, Title, said};
use crate::who::AuthenticatedOperator;

const USERS: &str = "users";
const SERVICE_ACCOUNTS: &str = "service-accounts";

/// A user of an organisation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "User")]
pub(crate) struct UserView {
    id: String,
    org: String,
    /// Unique in the organisation, in any case.
    name: String,
    display_name: Option<String>,
    email: Option<String>,
    /// The user's id at the identity provider.
    external_id: Option<String>,
    /// The issuer and subject of the user's tokens.
    login: Option<LoginBody>,
    /// The user's own role in the organisation.
    role: Option<&'static str>,
    /// The role in force: the most powerful of the user's own and those of its groups. `null` while the user is not active.
    effective_role: Option<&'static str>,
    /// The names of the user's groups.
    groups: Vec<String>,
    /// Whether the user's keys, tokens and sessions work.
    active: bool,
    created: Time,
    changed: Time,
    /// Whether the user's first token made the record, and no identity provider or operator has created the user since.
    by_token: bool,
    /// When a token of the user was last accepted, to the minute.
    last_seen: Option<Time>,
}

impl UserView {
    fn of(app: &AdminApp, user: UserRecord) -> Self {
        let UserRecord { id, org, profile, created, changed, by_token, last_seen, .. } = user;
        let groups = app.directory().groups_of_user(&id);
        Self {
            effective_role: app.directory().role_of_user(&id).map(Role::name),
            groups: groups.into_iter().map(|group| group.profile.name).collect(),
            id: id.to_string(),
            org: org.to_string(),
            email: profile.email().map(str::to_owned),
            name: profile.name,
            display_name: profile.display_name,
            external_id: profile.external_id,
            login: profile.login.map(|UserLogin { issuer, subject }| LoginBody { issuer, subject }),
            role: profile.role.map(Role::name),
            active: profile.active,
            created: Time(created),
            changed: Time(changed),
            by_token,
            last_seen: last_seen.map(Time),
        }
    }
}

/// The issuer and subject of a user's tokens.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "UserLogin")]
pub(crate) struct LoginBody {
    /// The `iss` of the tokens.
    #[schemars(length(min = 1, max = 256))]
    issuer: String,
    /// The `sub` of the tokens.
    #[schemars(length(min = 1, max = 256))]
    subject: String,
}

impl From<LoginBody> for UserLogin {
    fn from(LoginBody { issuer, subject }: LoginBody) -> Self {
        Self { issuer, subject }
    }
}

/// A user to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewUser {
    #[schemars(with = "Name")]
    org: OrgId,
    /// Unique in the organisation, in any case.
    #[schemars(with = "Title")]
    name: String,
    #[schemars(with = "Option<Title>")]
    display_name: Option<String>,
    #[schemars(with = "Option<Title>")]
    email: Option<String>,
    /// The user's id at the identity provider.
    #[schemars(with = "Option<Title>")]
    external_id: Option<String>,
    /// The issuer and subject of the user's tokens.
    login: Option<LoginBody>,
    /// The user's role in the organisation.
    role: Option<RoleName>,
}

/// A change of a user. An absent field stays as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedUser {
    #[schemars(with = "Option<Title>")]
    name: Option<String>,
    /// `null` to remove it.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<Title>")]
    display_name: Option<Option<String>>,
    /// `null` to remove it.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<Title>")]
    email: Option<Option<String>>,
    /// `null` to remove it.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<Title>")]
    external_id: Option<Option<String>>,
    /// `null` to remove it.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<LoginBody>")]
    login: Option<Option<LoginBody>>,
    /// `null` to remove it. Groups may still give a role.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<RoleName>")]
    role: Option<Option<RoleName>>,
}

/// A service account: a program that owns keys of a project.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ServiceAccount")]
pub(crate) struct ServiceAccountView {
    id: String,
    org: String,
    project: String,
    name: String,
    /// Whether its keys work.
    active: bool,
    created: Time,
    changed: Time,
}

impl From<ServiceAccountRecord> for ServiceAccountView {
    fn from(of: ServiceAccountRecord) -> Self {
        let ServiceAccountRecord { id, org, project, name, active, created, changed, .. } = of;
        let (created, changed) = (Time(created), Time(changed));
        Self {
            id: id.to_string(),
            org: org.to_string(),
            project: project.to_string(),
            name,
            active,
            created,
            changed,
        }
    }
}

/// A service account to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewServiceAccount {
    #[schemars(with = "Name")]
    project: ProjectId,
    /// Unique in the organisation, in any case.
    #[schemars(with = "Title")]
    name: String,
}

/// A group of users.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Group")]
pub(crate) struct GroupView {
    id: String,
    org: String,
    name: String,
    /// The number of members.
    members: u64,
    /// The role in the organisation that the group gives its members.
    role: Option<&'static str>,
    /// The tier that restricts the members' keys and tokens.
    tier: Option<String>,
    created: Time,
    changed: Time,
}

impl From<GroupRecord> for GroupView {
    fn from(of: GroupRecord) -> Self {
        let GroupRecord { id, org, profile, created, changed, .. } = of;
        Self {
            id: id.to_string(),
            org: org.to_string(),
            name: profile.name,
            members: u64::try_from(profile.members.len()).unwrap_or(u64::MAX),
            role: profile.role.map(Role::name),
            tier: profile.tier.map(String::from),
            created: Time(created),
            changed: Time(changed),
        }
    }
}

/// What a group gives its members. An absent field stays as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedGroup {
    /// The role in the organisation. `null` for none.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<RoleName>")]
    role: Option<Option<RoleName>>,
    /// The tier. `null` for none. Only operators of the whole server may change it.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<Name>")]
    tier: Option<Option<TierName>>,
}

/// A filter for accounts, and the requested page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountsQuery {
    /// Only those of this organisation.
    #[schemars(with = "Option<Name>")]
    org: Option<OrgId>,
    /// The maximum number of rows: 1 to 500.
    #[schemars(range(min = 1, max = 500))]
    limit: Option<u32>,
    /// The cursor: the `next` of the previous page.
    cursor: Option<String>,
}

impl AccountsQuery {
    /// The organisation that is shown. Without a filter, that of the operator.
    pub(crate) fn org(&self, who: &AuthenticatedOperator) -> Result<Option<OrgId>, ApiProblem> {
        match &self.org {
            Some(org) => check_org(&who.operator, org).map(|()| Some(org.clone())),
            None => Ok(who.operator.org.clone()),
        }
    }

    pub(crate) fn page<T>(
        &self,
        rows: impl Iterator<Item = T>,
        key: impl Fn(&T) -> String,
    ) -> Json<RowPage<T>> {
        Json(RowPage::by(rows, self.limit, self.cursor.as_deref(), key))
    }
}

fn unknown(id: &AccountId) -> ApiProblem {
    AdminError::from(IdentityError::UnknownAccount(id.to_string())).into()
}

pub(crate) async fn run(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: AccountAct,
) -> Result<AccountReply, ApiProblem> {
    match app.run(who, AdminCommand::Accounts { act }).await? {
        AdminReply::Accounts(reply) => Ok(reply),
        other => Err(unexpected(other)),
    }
}

async fn set(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: AccountAct,
) -> Result<AccountRecord, ApiProblem> {
    match run(app, who, act).await? {
        AccountReply::Set(account) => Ok(*account),
        other => Err(unexpected(AdminReply::Accounts(other))),
    }
}

fn other_kind() -> ApiProblem {
    ApiProblem::internal("the command answered with something else")
}

pub(crate) async fn list_users(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<AccountsQuery>,
) -> Result<Json<RowPage<UserView>>, ApiProblem> {
    let users = app.directory().users(query.org(&who)?.as_ref()).into_iter();
    let page = RowPage::by(users, query.limit, query.cursor.as_deref(), |user| user.id.to_string());
    let data = page.data.into_iter().map(|user| UserView::of(&app, user)).collect();
    Ok(Json(RowPage { data, next: page.next }))
}

pub(crate) async fn show_user(
    State(app): State<AdminApp>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<Json<UserView>, ApiProblem> {
    let user = app.directory().user(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(UserView::of(&app, user)))
}

pub(crate) async fn create_user(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(new): JsonBody<NewUser>,
) -> Result<CreatedBody<UserView>, ApiProblem> {
    check_org(&who.operator, &new.org)?;
    let NewUser { org, name, display_name, email, external_id, login, role } = new;
    let role = role.map(Role::from);
    may_give(&who, role)?;
    let mut profile = UserProfile::new(&name);
    let change = UserChange {
        name: None,
        display_name,
        email,
        external_id,
        login: login.map(Into::into),
        role: Some(role),
    };
    change.apply(&mut profile);
    match set(&app, &who, AccountAct::CreateUser { org, profile: Box::new(profile) }).await? {
        AccountRecord::User(user) => {
            app.changed(USERS);
            Ok(CreatedBody(UserView::of(&app, user)))
        }
        _ => Err(other_kind()),
    }
}

/// Checks that an operator may give a role. No operator gives a more powerful role than its own.
fn may_give(who: &AuthenticatedOperator, role: Option<Role>) -> Result<(), ApiProblem> {
    match role {
        Some(role) if role < who.operator.role => {
            let message = format!("the role {} may not give the role {role}", who.operator.role);
            Err(ApiProblem::new(headrace_domain::AdminCode::Role, message).at(Some("role")))
        }
        _ => Ok(()),
    }
}

pub(crate) async fn change_user(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
    JsonBody(change): JsonBody<ChangedUser>,
) -> Result<Json<UserView>, ApiProblem> {
    let ChangedUser { name, display_name, email, external_id, login, role } = change;
    let none = || UserLogin { issuer: String::new(), subject: String::new() };
    let role = role.map(|role| role.map(Role::from));
    may_give(&who, role.flatten())?;
    if role.is_some() {
        // Neither may it take a more powerful role away.
        may_give(&who, app.directory().user(&id).and_then(|user| user.profile.role))?;
    }
    let change = UserChange {
        name,
        display_name: display_name.map(Option::unwrap_or_default),
        email: email.map(Option::unwrap_or_default),
        external_id: external_id.map(Option::unwrap_or_default),
        login: login.map(|login| login.map_or_else(none, Into::into)),
        role,
    };
    match set(&app, &who, AccountAct::ChangeUser { id, change }).await? {
        AccountRecord::User(user) => {
            app.changed(USERS);
            Ok(Json(UserView::of(&app, user)))
        }
        _ => Err(other_kind()),
    }
}

pub(crate) async fn deactivate_user(
    app: State<AdminApp>,
    who: Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<Json<UserView>, ApiProblem> {
    set_user_active(app, who, id, false).await
}

pub(crate) async fn activate_user(
    app: State<AdminApp>,
    who: Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<Json<UserView>, ApiProblem> {
    set_user_active(app, who, id, true).await
}

async fn set_user_active(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    id: AccountId,
    active: bool,
) -> Result<Json<UserView>, ApiProblem> {
    app.directory().user(&id).ok_or_else(|| unknown(&id))?;
    run(&app, &who, AccountAct::SetActive { id: id.clone(), active }).await?;
    app.changed(USERS);
    let user = app.directory().user(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(UserView::of(&app, user)))
}

pub(crate) async fn remove_user(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<NoContent, ApiProblem> {
    app.directory().user(&id).ok_or_else(|| unknown(&id))?;
    run(&app, &who, AccountAct::Remove { id }).await?;
    app.changed(USERS);
    Ok(NoContent)
}

pub(crate) async fn list_service_accounts(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<AccountsQuery>,
) -> Result<Json<RowPage<ServiceAccountView>>, ApiProblem> {
    let all = app.directory().service_accounts(query.org(&who)?.as_ref());
    Ok(query.page(all.into_iter().map(ServiceAccountView::from), |account| account.id.clone()))
}

pub(crate) async fn show_service_account(
    State(app): State<AdminApp>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<Json<ServiceAccountView>, ApiProblem> {
    Ok(Json(app.directory().service_account(&id).ok_or_else(|| unknown(&id))?.into()))
}

pub(crate) async fn create_service_account(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(new): JsonBody<NewServiceAccount>,
) -> Result<CreatedBody<ServiceAccountView>, ApiProblem> {
    let NewServiceAccount { project, name } = new;
    check_project(&app, &who.operator, &project)?;
    match set(&app, &who, AccountAct::CreateServiceAccount { project, name }).await? {
        AccountRecord::ServiceAccount(account) => {
            app.changed(SERVICE_ACCOUNTS);
            Ok(CreatedBody(account.into()))
        }
        _ => Err(other_kind()),
    }
}

pub(crate) async fn deactivate_service_account(
    app: State<AdminApp>,
    who: Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<Json<ServiceAccountView>, ApiProblem> {
    set_service_account_active(app, who, id, false).await
}

pub(crate) async fn activate_service_account(
    app: State<AdminApp>,
    who: Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<Json<ServiceAccountView>, ApiProblem> {
    set_service_account_active(app, who, id, true).await
}

async fn set_service_account_active(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    id: AccountId,
    active: bool,
) -> Result<Json<ServiceAccountView>, ApiProblem> {
    app.directory().service_account(&id).ok_or_else(|| unknown(&id))?;
    run(&app, &who, AccountAct::SetActive { id: id.clone(), active }).await?;
    app.changed(SERVICE_ACCOUNTS);
    Ok(Json(app.directory().service_account(&id).ok_or_else(|| unknown(&id))?.into()))
}

pub(crate) async fn remove_service_account(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
) -> Result<NoContent, ApiProblem> {
    app.directory().service_account(&id).ok_or_else(|| unknown(&id))?;
    run(&app, &who, AccountAct::Remove { id }).await?;
    app.changed(SERVICE_ACCOUNTS);
    Ok(NoContent)
}

pub(crate) async fn list_groups(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<AccountsQuery>,
) -> Result<Json<RowPage<GroupView>>, ApiProblem> {
    let all = app.directory().groups(query.org(&who)?.as_ref());
    Ok(query.page(all.into_iter().map(GroupView::from), |group| group.id.clone()))
}

pub(crate) async fn change_group(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<AccountId>>,
    JsonBody(change): JsonBody<ChangedGroup>,
) -> Result<Json<GroupView>, ApiProblem> {
    let ChangedGroup { role, tier } = change;
    if tier.is_some() && who.operator.org.is_some() {
        let message = "only operators of the whole server assign tiers";
        return Err(ApiProblem::new(headrace_domain::AdminCode::Role, message).at(Some("tier")));
    }
    let role = role.map(|role| role.map(Role::from));
    may_give(&who, role.flatten())?;
    if role.is_some() {
        may_give(&who, app.directory().group(&id).and_then(|group| group.profile.role))?;
    }
    match set(&app, &who, AccountAct::MapGroup { id, change: GroupMapping { role, tier } }).await? {
        AccountRecord::Group(group) => {
            app.changed(USERS);
            Ok(Json(group.into()))
        }
        _ => Err(other_kind()),
    }
}
