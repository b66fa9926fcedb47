//! SCIM 2.0 (RFC 7643, RFC 7644) at `/scim/v2`: an identity provider keeps the users and groups of one organisation. Each
//! request carries a credential of its own kind. Must not know roles of operators, keys or calls.

mod filter;
mod patch;
mod problem;
mod resources;
pub(crate) mod routes;
mod schemas;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use headrace_identity::{
    AccountId, AccountKind, Directory, GroupProfile, GroupRecord, ScimCredentialRecord, UserProfile,
    UserRecord,
};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use crate::app::AdminApp;
use crate::input::read;
use crate::who::peer;
use filter::ScimFilter;
use patch::PatchOperation;
use problem::{ScimKind, ScimProblem};
use resources::{group_json, read_group, read_user, user_json};
use routes::ScimTarget;
use schemas::MAX_ROWS;

/// The path of the service.
pub(crate) const ROOT: &str = "/scim/v2";
/// Maximum size of a body, in bytes: a group of some tens of thousands of members.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Maximum number of requests whose bodies are read or answered at once.
const MAX_AT_ONCE: usize = 8;
/// Resources of a page if the client names no number.
const USUAL_ROWS: usize = 100;

/// The state of the routes.
#[derive(Clone)]
pub(crate) struct ScimService {
    app: AdminApp,
    turns: Arc<Semaphore>,
}

impl ScimService {
    pub(crate) fn new(app: AdminApp) -> Self {
        Self { app, turns: Arc::new(Semaphore::new(MAX_AT_ONCE)) }
    }
}

/// A request whose credential is valid, on its way to the directory.
struct ScimCall {
    credential: ScimCredentialRecord,
    /// `scheme://host/scim/v2`, for locations.
    base: String,
    app: AdminApp,
    query: ScimQuery,
    /// The version that the client names in `If-Match`.
    expected: Option<u64>,
}

/// The parameters of a request.
#[derive(Debug, Default)]
struct ScimQuery {
    filter: Option<String>,
    start_index: Option<i64>,
    count: Option<i64>,
    attributes: Vec<String>,
    excluded: Vec<String>,
}

/// Answers every request below [`ROOT`].
pub(crate) async fn serve(State(service): State<ScimService>, request: Request) -> Response {
    match answer(&service, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn answer(service: &ScimService, request: Request) -> Result<Response, ScimProblem> {
    let app = &service.app;
    let shown = request.headers().get(header::AUTHORIZATION);
    let secret = shown.and_then(bearer).ok_or_else(ScimProblem::unauthorized)?;
    let credential = app.by_scim(secret, peer(&request))?;
    let _turn = service.turns.acquire().await.map_err(|_| ScimProblem::internal())?;
    let path = request.uri().path().strip_prefix(ROOT).unwrap_or_default().trim_matches('/').to_owned();
    let base = format!("{}{ROOT}", app.url());
    let query = ScimQuery::parse(request.uri())?;
    let expected = expected_version(request.headers())?;
    let known = request.headers().get(header::IF_NONE_MATCH).cloned();
    let method = request.method().clone();
    let mut call = ScimCall { credential, base, app: app.clone(), query, expected };
    let (route, id) =
        routes::find(&path).ok_or_else(|| ScimProblem::not_found("there is no such resource"))?;
    if !route.methods.contains(&method.as_str()) {
        return Err(ScimProblem::method());
    }
    let kind = match route.target {
        ScimTarget::Search(kinds) => {
            call.query = ScimQuery::of_search(&document(request).await?)?;
            let list = blocking(call, move |call| call.list(kinds)).await;
            return list.map(|list| body(StatusCode::OK, &list));
        }
        ScimTarget::Description(name) => {
            let found = schemas::find(name, id, &call.base).flatten();
            let found = found.ok_or_else(|| ScimProblem::not_found("there is no such schema or type"))?;
            return Ok(body(StatusCode::OK, &found));
        }
        ScimTarget::Resources(kind) => kind,
    };
    let id = id.map(|id| AccountId::new(id).ok().filter(|id| id.kind() == kind));
    let id = match id {
        Some(None) => return Err(gone(kind)),
        Some(Some(id)) => Some(id),
        None => None,
    };
    match (method, id) {
        (Method::GET, None) => {
            blocking(call, move |call| call.list(&[kind])).await.map(|list| body(StatusCode::OK, &list))
        }
        (Method::GET, Some(id)) => {
            let found = blocking(call, move |call| call.show(kind, &id)).await?;
            let is_known = known.is_some() && known.as_ref() == etag(&found).as_ref();
            Ok(if is_known {
                StatusCode::NOT_MODIFIED.into_response()
            } else {
                resource(StatusCode::OK, &found)
            })
        }
        (Method::POST, None) => {
            let new = document(request).await?;
            let made = blocking(call, move |call| call.create(kind, &new)).await?;
            Ok(resource(StatusCode::CREATED, &made))
        }
        (Method::PUT, Some(id)) => {
            let new = document(request).await?;
            let changed = blocking(call, move |call| call.replace(kind, &id, &new)).await?;
            Ok(resource(StatusCode::OK, &changed))
        }
        (Method::PATCH, Some(id)) => {
            let operations = PatchOperation::parse_all(&document(request).await?)?;
            let changed = blocking(call, move |call| call.patch(kind, &id, &operations)).await?;
            Ok(resource(StatusCode::OK, &changed))
        }
        (Method::DELETE, Some(id)) => {
            blocking(call, move |call| call.remove(kind, &id)).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        _ => Err(ScimProblem::method()),
    }
}

/// Runs work on the directory off the event loop.
async fn blocking<T: Send + 'static>(
    call: ScimCall,
    work: impl FnOnce(&ScimCall) -> Result<T, ScimProblem> + Send + 'static,
) -> Result<T, ScimProblem> {
    let app = call.app.clone();
    app.blocking(move || work(&call)).await?
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// Reads a body. Its content type may be anything: clients send `application/scim+json` or `application/json`.
async fn document(request: Request) -> Result<Value, ScimProblem> {
    let bytes = read(request, MAX_BODY_BYTES).await?;
    let wrong = |error: serde_json::Error| {
        ScimProblem::bad(ScimKind::InvalidSyntax, format!("the body is no JSON: {error}"))
    };
    let value: Value = serde_json::from_slice(&bytes).map_err(wrong)?;
    match value.is_object() {
        true => Ok(value),
        false => Err(ScimProblem::bad(ScimKind::InvalidSyntax, "the body is no JSON object")),
    }
}

/// The version in `If-Match`. `None` without one, and for `*`.
fn expected_version(headers: &HeaderMap) -> Result<Option<u64>, ScimProblem> {
    let Some(shown) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = shown.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let number = text.trim_start_matches("W/").trim_matches('"').parse();
    number.map(Some).map_err(|_| ScimProblem::precondition())
}

fn body(status: StatusCode, value: &Value) -> Response {
    let text = serde_json::to_vec(value).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/scim+json")], Body::from(text)).into_response()
}

fn etag(resource: &Value) -> Option<HeaderValue> {
    resource["meta"]["version"].as_str().and_then(|text| HeaderValue::from_str(text).ok())
}

/// A resource with its location and version.
fn resource(status: StatusCode, value: &Value) -> Response {
    let mut response = body(status, value);
    let location = value["meta"]["location"].as_str().and_then(|text| HeaderValue::from_str(text).ok());
    for (name, value) in [(header::LOCATION, location), (header::ETAG, etag(value))] {
        if let Some(value) = value {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn gone(kind: AccountKind) -> ScimProblem {
    ScimProblem::not_found(format!("there is no such {}", kind.name()))
}

impl ScimQuery {
    fn parse(uri: &Uri) -> Result<Self, ScimProblem> {
        let mut query = Self::default();
        let wrong = |_| ScimProblem::bad(ScimKind::InvalidSyntax, "the query cannot be read");
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(wrong)?;
        let names = |value: &str| value.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        let number = |name: &str, value: &str| {
            let wrong = || ScimProblem::bad(ScimKind::InvalidValue, format!("`{name}` is no number"));
            value.parse::<i64>().map(Some).map_err(|_| wrong())
        };
        for (name, value) in pairs {
            match name.as_str() {
                "filter" => query.filter = Some(value),
                "startIndex" => query.start_index = number("startIndex", &value)?,
                "count" => query.count = number("count", &value)?,
                "attributes" => query.attributes = names(&value),
                "excludedAttributes" => query.excluded = names(&value),
                // Sorting is not supported, and the service says so.
                _ => {}
            }
        }
        Ok(query)
    }

    /// The parameters in the body of a search.
    ///
    /// # Errors
    /// [`ScimKind::InvalidValue`] for a parameter of another type.
    fn of_search(body: &Value) -> Result<Self, ScimProblem> {
        let wrong = |name: &str, kind: &str| {
            ScimProblem::bad(ScimKind::InvalidValue, format!("`{name}` is no {kind}"))
        };
        let given = |name: &str| patch::field(body, name).filter(|value| !value.is_null());
        let number = |name: &str| {
            let value = given(name);
            value.map(|value| value.as_i64().ok_or_else(|| wrong(name, "number"))).transpose()
        };
        let names = |name: &str| -> Result<Vec<String>, ScimProblem> {
            let Some(value) = given(name) else { return Ok(Vec::new()) };
            let texts =
                value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
            let texts = texts.flatten().ok_or_else(|| wrong(name, "list of names"))?;
            Ok(texts.into_iter().map(|text| text.trim().to_ascii_lowercase()).collect())
        };
        let filter = given("filter");
        let filter = filter.map(|value| value.as_str().ok_or_else(|| wrong("filter", "text"))).transpose()?;
        Ok(Self {
            filter: filter.map(str::to_owned),
            start_index: number("startIndex")?,
            count: number("count")?,
            attributes: names("attributes")?,
            excluded: names("excludedAttributes")?,
        })
    }

    /// Removes what the client does not want. `schemas` and `id` always stay.
    fn select(&self, resource: &mut Value) {
        let Some(fields) = resource.as_object_mut() else { return };
        let top = |name: &String| name.split('.').next().unwrap_or_default().to_owned();
        let wanted: Vec<String> = self.attributes.iter().map(top).collect();
        fields.retain(|name, _| {
            let lower = name.to_ascii_lowercase();
            let always = matches!(lower.as_str(), "schemas" | "id");
            always || ((wanted.is_empty() || wanted.contains(&lower)) && !self.excluded.contains(&lower))
        });
    }
}

impl ScimCall {
    fn directory(&self) -> &Directory {
        self.app.directory()
    }

    fn actor(&self) -> String {
        format!("SCIM ({})", self.credential.id)
    }

    fn user(&self, id: &AccountId) -> Result<UserRecord, ScimProblem> {
        let user = self.directory().user(id).filter(|user| user.org == self.credential.org);
        user.ok_or_else(|| gone(AccountKind::User))
    }

    fn group(&self, id: &AccountId) -> Result<GroupRecord, ScimProblem> {
        let group = self.directory().group(id).filter(|group| group.org == self.credential.org);
        group.ok_or_else(|| gone(AccountKind::Group))
    }

    fn of_user(&self, user: &UserRecord) -> Value {
        let mut json = user_json(user, &self.directory().groups_of_user(&user.id), &self.base);
        self.query.select(&mut json);
        json
    }

    fn of_group(&self, group: &GroupRecord) -> Value {
        let has_members = !self.query.excluded.iter().any(|name| name == "members");
        let mut json = group_json(group, has_members, &self.base);
        self.query.select(&mut json);
        json
    }

    fn show(&self, kind: AccountKind, id: &AccountId) -> Result<Value, ScimProblem> {
        match kind {
            AccountKind::Group => self.group(id).map(|group| self.of_group(&group)),
            _ => self.user(id).map(|user| self.of_user(&user)),
        }
    }

    /// A page of the resources of these kinds that meet the filter, one kind after the other.
    fn list(&self, kinds: &[AccountKind]) -> Result<Value, ScimProblem> {
        let filter = self.query.filter.as_deref().map(ScimFilter::parse).transpose()?;
        let start = usize::try_from(self.query.start_index.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
        let count =
            self.query.count.map_or(USUAL_ROWS, |count| usize::try_from(count).unwrap_or(0)).min(MAX_ROWS);
        let users = if kinds.contains(&AccountKind::User) { self.users(filter.as_ref()) } else { Vec::new() };
        let groups =
            if kinds.contains(&AccountKind::Group) { self.groups(filter.as_ref()) } else { Vec::new() };
        let skipped_groups = (start - 1).saturating_sub(users.len());
        let mut rows: Vec<Value> =
            users.iter().skip(start - 1).take(count).map(|user| self.of_user(user)).collect();
        let left = count - rows.len();
        rows.extend(groups.iter().skip(skipped_groups).take(left).map(|group| self.of_group(group)));
        Ok(json!({
            "schemas": ["urn:ietf:params:scim:api:messages:2.0:ListResponse"],
            "totalResults": users.len() + groups.len(),
            "startIndex": start,
            "itemsPerPage": rows.len(),
            "Resources": rows,
        }))
    }

    fn users(&self, filter: Option<&ScimFilter>) -> Vec<UserRecord> {
        let org = &self.credential.org;
        let mut users = match filter.and_then(ScimFilter::user_name) {
            Some(name) => self.directory().user_named(org, name).into_iter().collect(),
            None => self.directory().users(Some(org)),
        };
        users.retain(|user| filter.is_none_or(|filter| filter.matches_user(user)));
        users
    }

    fn groups(&self, filter: Option<&ScimFilter>) -> Vec<GroupRecord> {
        let mut groups = self.directory().groups(Some(&self.credential.org));
        groups.retain(|group| filter.is_none_or(|filter| filter.matches_group(group)));
        groups
    }

    /// The issuer and subject of a user's tokens, if the credential names an issuer.
    fn set_login(&self, profile: &mut UserProfile) {
        resources::set_login(profile, self.credential.issuer.as_deref(), self.credential.subject);
    }

    fn create(&self, kind: AccountKind, new: &Value) -> Result<Value, ScimProblem> {
        let (org, now) = (self.credential.org.clone(), self.app.now());
        if kind == AccountKind::Group {
            let mut profile = GroupProfile::new("");
            read_group(new, &mut profile)?;
            let group = self.directory().create_group(org, profile, &self.actor(), now)?;
            return Ok(self.of_group(&group));
        }
        let mut profile = UserProfile::new("");
        read_user(new, &mut profile)?;
        self.set_login(&mut profile);
        let user = self.directory().create_user(org, profile, &self.actor(), now)?;
        Ok(self.of_user(&user))
    }

    fn replace(&self, kind: AccountKind, id: &AccountId, new: &Value) -> Result<Value, ScimProblem> {
        self.change(kind, id, |_| Ok(new.clone()))
    }

    fn patch(
        &self,
        kind: AccountKind,
        id: &AccountId,
        operations: &[PatchOperation],
    ) -> Result<Value, ScimProblem> {
        self.change(kind, id, |mut before| {
            let fields = before.as_object_mut().map(std::mem::take).unwrap_or_default();
            let fields: Map<String, Value> = patch::apply(fields, kind, operations)?;
            Ok(Value::Object(fields))
        })
    }

    /// Changes a resource: `change` makes the new document of the one before.
    fn change(
        &self,
        kind: AccountKind,
        id: &AccountId,
        change: impl Fn(Value) -> Result<Value, ScimProblem>,
    ) -> Result<Value, ScimProblem> {
        let (actor, now, directory) = (self.actor(), self.app.now(), self.directory());
        // The directory has errors of its own. What the document does wrong is kept beside them.
        let fault = std::cell::RefCell::new(None);
        let keep = |problem: ScimProblem| {
            *fault.borrow_mut() = Some(problem);
            headrace_identity::IdentityError::Invalid { field: "body", why: "is not valid" }
        };
        let done = if kind == AccountKind::Group {
            self.group(id)?;
            let apply = |profile: &mut GroupProfile| {
                let before = resources::group_document(profile);
                read_group(&change(before).map_err(keep)?, profile).map_err(keep)
            };
            let group = directory.change_group_at(id, self.expected, &actor, now, apply);
            group.map(|group| self.of_group(&group))
        } else {
            self.user(id)?;
            let apply = |profile: &mut UserProfile| {
                let before = resources::user_document(profile);
                read_user(&change(before).map_err(keep)?, profile).map_err(keep)?;
                self.set_login(profile);
                Ok(())
            };
            let user = directory.change_user_at(id, self.expected, &actor, now, apply);
            user.map(|user| self.of_user(&user))
        };
        done.map_err(|error| fault.take().unwrap_or_else(|| error.into()))
    }

    fn remove(&self, kind: AccountKind, id: &AccountId) -> Result<(), ScimProblem> {
        match kind {
            AccountKind::Group => self.group(id).map(drop)?,
            _ => self.user(id).map(drop)?,
        }
        Ok(self.directory().remove_account(id, &self.actor(), self.app.now())?)
    }
}
