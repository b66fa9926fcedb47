//! Organisations, projects and keys.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, SecretText};
use headrace_domain::{AdminCode, Endpoint, KeyId, ModelName, OrgId, ProjectId, Region, TierName};
use headrace_identity::{
    AddressList, EndpointAccess, KeyChange, KeyDetails, KeyRecord, ModelAccess, OrgRecord, ProjectRecord,
    Revocation,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::org_scope::{check_org, check_project, is_within};
use crate::page::{PageQuery, RowPage};
use crate::problem::ApiProblem;
use crate::project_records::ProjectRecords;
use crate::routes::{ById, CreatedBody};
use crate::values::{AddressText, Limits, Name, Time, Title, regions, residency, said};
use crate::who::AuthenticatedOperator;

const ORGS: &str = "orgs";
const PROJECTS: &str = "projects";
const KEYS: &str = "keys";

/// An organisation: the account that pays.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Org {
    id: String,
    /// The limits that all its projects share.
    limits: Limits,
    /// The regions in which its calls may run. `null` if they may run anywhere.
    regions: Option<Vec<String>>,
    created: Time,
    /// Its tier.
    tier: Option<String>,
}

impl From<OrgRecord> for Org {
    fn from(of: OrgRecord) -> Self {
        let OrgRecord { id, limits, regions: pins, created, tier } = of;
        Self {
            id: id.to_string(),
            limits: limits.into(),
            regions: regions(pins),
            created: Time(created),
            tier: tier.map(String::from),
        }
    }
}

/// A project. Budgets are set per project.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Project {
    id: String,
    /// The organisation that pays.
    org: String,
    /// The limits that all its keys share.
    limits: Limits,
    created: Time,
    /// Its tier.
    tier: Option<String>,
    /// What is recorded of its calls.
    records: ProjectRecords,
}

impl From<ProjectRecord> for Project {
    fn from(of: ProjectRecord) -> Self {
        let ProjectRecord { id, org, limits, created, tier, records } = of;
        Self {
            id: id.to_string(),
            org: org.to_string(),
            limits: limits.into(),
            created: Time(created),
            tier: tier.map(String::from),
            records: records.into(),
        }
    }
}

/// A key, without its secret.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Key {
    id: String,
    org: String,
    project: String,
    name: String,
    /// The secret's last four characters. Empty if the secret is too short to show any.
    hint: String,
    /// The models that the key may use. `null` if it may use all, including models added later.
    models: Option<Vec<String>>,
    /// The endpoints that the key may call. `null` if it may call all.
    endpoints: Option<Vec<&'static str>>,
    limits: Limits,
    /// The regions in which its calls may run, within those of its organisation. `null` if it has none of its own.
    regions: Option<Vec<String>>,
    /// Until when the secret before the last rotation is valid.
    former_until: Option<Time>,
    created: Time,
    expires: Option<Time>,
    revoked: Option<Time>,
    /// The person or team that the key belongs to.
    owner: Option<String>,
    /// The addresses from which the key may be used. Empty if it may be used from every address.
    allowed_ips: Vec<String>,
    /// When the key was last used, to about a minute.
    last_used: Option<Time>,
    /// Its tier.
    tier: Option<String>,
}

impl From<KeyRecord> for Key {
    fn from(of: KeyRecord) -> Self {
        Self {
            id: of.id.to_string(),
            org: of.org.to_string(),
            project: of.project.to_string(),
            name: of.name,
            hint: of.hint,
            models: match of.models {
                ModelAccess::All => None,
                ModelAccess::Only(models) => Some(models.iter().map(ToString::to_string).collect()),
            },
            endpoints: match of.endpoints {
                EndpointAccess::All => None,
                EndpointAccess::Only(endpoints) => {
                    Some(endpoints.iter().map(|endpoint| endpoint.name()).collect())
                }
            },
            limits: of.limits.into(),
            regions: regions(of.regions),
            former_until: of.former_until.map(Time),
            created: Time(of.created),
            expires: of.expires.map(Time),
            revoked: of.revoked.map(Time),
            owner: of.details.owner,
            allowed_ips: of.details.allowed_ips.ranges().iter().map(ToString::to_string).collect(),
            last_used: of.last_used.map(Time),
            tier: of.tier.map(String::from),
        }
    }
}

/// An organisation to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewOrg {
    #[schemars(with = "Name")]
    id: OrgId,
    /// If absent, the configured default applies.
    limits: Option<Limits>,
    /// The regions in which its calls may run. If absent, they may run anywhere.
    #[schemars(with = "Option<Vec<Name>>")]
    regions: Option<Vec<Region>>,
}

/// A change of a key. An absent field stays as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedKey {
    /// The new limits. They replace all limits.
    limits: Option<Limits>,
    /// The new regions in which its calls may run. `null` if they may run anywhere.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<Vec<Name>>")]
    regions: Option<Option<Vec<Region>>>,
    /// The new owner: 1 to 128 bytes. `null` to remove it.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<Title>")]
    owner: Option<Option<String>>,
    /// The new addresses from which the key may be used. They replace all addresses. Empty for every address.
    #[schemars(with = "Option<Vec<AddressText>>")]
    allowed_ips: Option<AddressList>,
}

/// A change of an organisation. An absent field stays as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// The new limits. They replace all limits.
    limits: Option<Limits>,
    /// The new regions in which its calls may run. `null` if they may run anywhere.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Option<Vec<Name>>")]
    regions: Option<Option<Vec<Region>>>,
}

/// A project to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewProject {
    /// Unique across organisations.
    #[schemars(with = "Name")]
    id: ProjectId,
    #[schemars(with = "Name")]
    org: OrgId,
    /// If absent, the configured default applies.
    limits: Option<Limits>,
}

/// A change of a project. An absent field stays as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedProject {
    /// The new limits. They replace all limits.
    limits: Option<Limits>,
    /// What is recorded of its calls from now on. It replaces both values.
    records: Option<ProjectRecords>,
}

/// A key to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKey {
    #[schemars(with = "Name")]
    project: ProjectId,
    /// The name to find the key by.
    #[schemars(with = "Title")]
    name: String,
    /// The models that the key may use. If absent, it may use all, including models added later.
    #[schemars(with = "Option<Vec<Title>>")]
    models: Option<Vec<ModelName>>,
    /// The endpoints that the key may call. If absent, it may call all.
    endpoints: Option<Vec<EndpointName>>,
    /// If absent, the configured default applies.
    limits: Option<Limits>,
    /// The regions in which its calls may run. If absent, only its organisation's regions apply.
    #[schemars(with = "Option<Vec<Name>>")]
    regions: Option<Vec<Region>>,
    /// When the key expires.
    expires: Option<Time>,
    /// The person or team that the key belongs to: 1 to 128 bytes.
    #[schemars(with = "Option<Title>")]
    owner: Option<String>,
    /// The addresses from which the key may be used. If absent, it may be used from every address.
    #[schemars(with = "Option<Vec<AddressText>>")]
    allowed_ips: Option<AddressList>,
    /// The key's tier.
    #[schemars(with = "Option<Name>")]
    tier: Option<TierName>,
}

/// An endpoint in the access list of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndpointName(Endpoint);

const ENDPOINTS: [Endpoint; 7] = [
    Endpoint::ChatCompletions,
    Endpoint::Completions,
    Endpoint::Messages,
    Endpoint::Responses,
    Endpoint::Embeddings,
    Endpoint::Rerank,
    Endpoint::Score,
];

impl<'de> Deserialize<'de> for EndpointName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let found = ENDPOINTS.into_iter().find(|endpoint| endpoint.name() == text);
        found.map(Self).ok_or_else(|| {
            let names = ENDPOINTS.map(Endpoint::name).join(", ");
            serde::de::Error::custom(format!("must be one of {names}"))
        })
    }
}

impl JsonSchema for EndpointName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Endpoint".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": ENDPOINTS.map(Endpoint::name) })
    }
}

/// A key and its secret.
#[derive(Serialize, JsonSchema)]
pub(crate) struct KeyCreated {
    key: Key,
    /// Shown this once.
    secret: String,
    /// The models that the key may use but that are not served now.
    unserved: Vec<String>,
}

/// How a key is rotated.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRotation {
    /// For how many seconds the secret before it stays valid. At most a year. 0 ends it at once.
    overlap_seconds: u64,
}

/// A key and its new secret.
#[derive(Serialize, JsonSchema)]
pub(crate) struct KeyRotated {
    key: Key,
    /// Shown this once.
    secret: String,
}

/// A key that is revoked.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeyRevoked {
    id: String,
    /// `written`: on the disk. `noted`: in the reserve file on the disk. `in_memory`: in force, but a restart before it
    /// is written restores the key.
    durability: &'static str,
    /// Why it is not written. `null` if it is.
    why: Option<String>,
}

/// A filter for projects, and the requested page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProjectsQuery {
    /// Only projects of this organisation.
    #[schemars(with = "Option<Name>")]
    org: Option<OrgId>,
    /// The maximum number of rows: 1 to 500.
    #[schemars(range(min = 1, max = 500))]
    limit: Option<u32>,
    /// The cursor: the `next` of the previous page.
    cursor: Option<String>,
}

/// A filter for keys, and the requested page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeysQuery {
    /// Only keys of this project.
    #[schemars(with = "Option<Name>")]
    project: Option<ProjectId>,
    /// The maximum number of rows: 1 to 500.
    #[schemars(range(min = 1, max = 500))]
    limit: Option<u32>,
    /// The cursor: the `next` of the previous page.
    cursor: Option<String>,
}

pub(crate) async fn list_orgs(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<Org>>, ApiProblem> {
    let orgs = app.directory().orgs().into_iter().filter(|org| is_within(&who.operator, &org.id));
    let orgs = orgs.map(Org::from);
    Ok(Json(RowPage::by(orgs, query.limit, query.cursor.as_deref(), |org| org.id.clone())))
}

pub(crate) async fn create_org(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(new): JsonBody<NewOrg>,
) -> Result<CreatedBody<Org>, ApiProblem> {
    let NewOrg { id, limits, regions } = new;
    let create = AdminCommand::CreateOrg { id, limits: limits.map(Into::into), regions: residency(regions) };
    match app.run(&who, create).await? {
        AdminReply::OrgCreated(org) => {
            app.changed(ORGS);
            Ok(CreatedBody(org.into()))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn change_org(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<OrgId>>,
    JsonBody(change): JsonBody<Change>,
) -> Result<Json<Org>, ApiProblem> {
    let unknown = || {
        ApiProblem::from(headrace_admin::AdminError::from(headrace_identity::IdentityError::UnknownOrg(
            id.clone(),
        )))
    };
    app.directory().org(&id).ok_or_else(unknown)?;
    if let Some(limits) = change.limits {
        app.run(&who, AdminCommand::SetOrgLimits { org: id.clone(), limits: limits.into() }).await?;
    }
    if let Some(regions) = change.regions {
        let regions = residency(regions);
        app.run(&who, AdminCommand::SetOrgRegions { org: id.clone(), regions }).await?;
    }
    app.changed(ORGS);
    Ok(Json(app.directory().org(&id).ok_or_else(unknown)?.into()))
}

pub(crate) async fn list_projects(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<ProjectsQuery>,
) -> Result<Json<RowPage<Project>>, ApiProblem> {
    let of = |project: &ProjectRecord| query.org.as_ref().is_none_or(|org| project.org == *org);
    let own = |project: &ProjectRecord| is_within(&who.operator, &project.org);
    let projects = app.directory().projects().into_iter().filter(own).filter(of).map(Project::from);
    Ok(Json(RowPage::by(projects, query.limit, query.cursor.as_deref(), |project| project.id.clone())))
}

pub(crate) async fn create_project(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(new): JsonBody<NewProject>,
) -> Result<CreatedBody<Project>, ApiProblem> {
    let NewProject { id, org, limits } = new;
    check_org(&who.operator, &org)?;
    match app.run(&who, AdminCommand::CreateProject { id, org, limits: limits.map(Into::into) }).await? {
        AdminReply::ProjectCreated(project) => {
            app.changed(PROJECTS);
            Ok(CreatedBody(project.into()))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn change_project(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<ProjectId>>,
    JsonBody(change): JsonBody<ChangedProject>,
) -> Result<Json<Project>, ApiProblem> {
    if change.limits.is_none() && change.records.is_none() {
        return Err(ApiProblem::form(None, "give `limits`, `records` or both"));
    }
    if let Some(records) = change.records {
        let set = AdminCommand::SetProjectRecords { project: id.clone(), records: records.into() };
        app.run(&who, set).await?;
    }
    if let Some(limits) = change.limits {
        app.run(&who, AdminCommand::SetProjectLimits { project: id.clone(), limits: limits.into() }).await?;
    }
    app.changed(PROJECTS);
    let project = app.directory().project(&id);
    Ok(Json(project.ok_or_else(|| ApiProblem::not_found("the project is gone"))?.into()))
}

pub(crate) async fn list_keys(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<KeysQuery>,
) -> Result<Json<RowPage<Key>>, ApiProblem> {
    let of = |key: &KeyRecord| query.project.as_ref().is_none_or(|project| key.project == *project);
    let own = |key: &KeyRecord| is_within(&who.operator, &key.org);
    let keys = app.directory().list().into_iter().filter(own).filter(of).map(Key::from);
    Ok(Json(RowPage::by(keys, query.limit, query.cursor.as_deref(), |key| key.id.clone())))
}

pub(crate) async fn create_key(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(new): JsonBody<NewKey>,
) -> Result<CreatedBody<KeyCreated>, ApiProblem> {
    check_project(&app, &who.operator, &new.project)?;
    if new.tier.is_some() && who.operator.org.is_some() {
        let message = "only operators of the whole server assign tiers";
        return Err(ApiProblem::new(AdminCode::Role, message).at(Some("tier")));
    }
    let create = AdminCommand::CreateKey {
        project: new.project,
        name: new.name,
        models: new.models,
        endpoints: new
            .endpoints
            .map(|names| names.into_iter().map(|EndpointName(endpoint)| endpoint).collect()),
        limits: new.limits.map(Into::into),
        regions: residency(new.regions),
        expires: new.expires.map(|Time(at)| at),
        secret: None::<SecretText>,
        details: KeyDetails { owner: new.owner, allowed_ips: new.allowed_ips.unwrap_or_default() },
        tier: new.tier,
    };
    match app.run(&who, create).await? {
        AdminReply::KeyCreated { key, secret, unserved } => {
            app.changed(KEYS);
            let unserved = unserved.iter().map(ToString::to_string).collect();
            Ok(CreatedBody(KeyCreated { key: key.into(), secret: secret.expose().to_owned(), unserved }))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn change_key(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<KeyId>>,
    JsonBody(change): JsonBody<ChangedKey>,
) -> Result<Json<Key>, ApiProblem> {
    let unknown = || {
        ApiProblem::from(headrace_admin::AdminError::from(headrace_identity::IdentityError::UnknownKey(
            id.clone(),
        )))
    };
    app.directory().key(&id).ok_or_else(unknown)?;
    // What can be refused goes first.
    if change.owner.is_some() || change.allowed_ips.is_some() {
        let owner = change.owner.map(Option::unwrap_or_default);
        let change = KeyChange { owner, allowed_ips: change.allowed_ips };
        app.run(&who, AdminCommand::ChangeKey { id: id.clone(), change }).await?;
    }
    if let Some(regions) = change.regions {
        let regions = residency(regions);
        app.run(&who, AdminCommand::SetKeyRegions { key: id.clone(), regions }).await?;
    }
    if let Some(limits) = change.limits {
        app.run(&who, AdminCommand::SetKeyLimits { key: id.clone(), limits: limits.into() }).await?;
    }
    app.changed(KEYS);
    Ok(Json(app.directory().key(&id).ok_or_else(unknown)?.into()))
}

pub(crate) async fn rotate_key(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<KeyId>>,
    JsonBody(KeyRotation { overlap_seconds }): JsonBody<KeyRotation>,
) -> Result<Json<KeyRotated>, ApiProblem> {
    match app.run(&who, AdminCommand::RotateKey { id, overlap_seconds }).await? {
        AdminReply::KeyRotated { key, secret } => {
            app.changed(KEYS);
            Ok(Json(KeyRotated { key: key.into(), secret: secret.expose().to_owned() }))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn revoke_key(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<KeyId>>,
) -> Result<Json<KeyRevoked>, ApiProblem> {
    match app.run(&who, AdminCommand::RevokeKey { id }).await? {
        AdminReply::KeyRevoked { id, how } => {
            app.changed(KEYS);
            let (durability, why) = match how {
                Revocation::Written => ("written", None),
                Revocation::Noted { why } => ("noted", Some(why)),
                Revocation::InMemory { why } => ("in_memory", Some(why)),
            };
            Ok(Json(KeyRevoked { id: id.to_string(), durability, why }))
        }
        other => Err(unexpected(other)),
    }
}
