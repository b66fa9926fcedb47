//! The list of routes: path, access and summary, one line each. The OpenAPI document and the access table are generated
//! from it.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{ApiMethodRouter, delete_with, get_with, patch_with, post_with, put_with};
use aide::openapi::{Components, Info, OpenApi, Operation, ReferenceOr, SecurityScheme};
use aide::operation::{OperationHandler, OperationInput, OperationOutput};
use aide::transform::TransformOperation;
use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};

use crate::access::{ADMINS, AccessTable, BILLING, DEVELOPERS, OWNERS, ROOT, RouteRoles, VIEWERS};
use crate::app::AdminApp;
use crate::guard::{guard, outside};
use crate::pages;
use crate::problem::ApiProblem;
use crate::routes::{
    document, events, house, money, operators, places, playground, requests, served, session, words,
};
use crate::who::{CSRF_HEADER, USUAL_COOKIE};
use headrace_domain::AdminCode;

/// The summary of the playground's call routes.
const PLAY: &str = "A call of the house as the project in `x-headrace-project`, made once under its `Idempotency-Key`: the same again reads the same answer, also while it comes";

/// Every route of the API.
fn routes() -> RouteList {
    RouteList { api: ApiRouter::new(), access: AccessTable::default() }
        .get("/openapi.json", RouteRoles::Anyone, "This document", document::show)
        .post("/session", RouteRoles::Anyone, "Sign in, by a link that works once or by a key", session::begin)
        .get("/session", VIEWERS, "Who is signed in, and what that role may call", session::show)
        .delete("/session", VIEWERS, "Sign out", session::end)
        .get("/status", VIEWERS, "How the server does", house::status)
        .get("/operators", OWNERS, "Operators, by id", operators::list)
        .post("/operators", OWNERS, "Create an operator; the key is shown this once", operators::create)
        .delete(
            "/operators/{id}",
            OWNERS,
            "Revoke an operator: neither key nor session is good any longer",
            operators::revoke,
        )
        .post("/operators/{id}/link", OWNERS, "A link that signs an operator in once", operators::link)
        .get("/orgs", VIEWERS, "Organisations, by id", places::list_orgs)
        .post("/orgs", ADMINS, "Create an organisation", places::create_org)
        .patch("/orgs/{id}", ADMINS, "Change an organisation's limits or regions", places::change_org)
        .get("/projects", VIEWERS, "Projects, by id", places::list_projects)
        .post("/projects", ADMINS, "Create a project, with its account in the ledger", places::create_project)
        .patch("/projects/{id}", ADMINS, "Change a project's limits", places::change_project)
        .get("/keys", VIEWERS, "Keys, by id, without their secrets", places::list_keys)
        .post("/keys", DEVELOPERS, "Create a key; its secret is shown this once", places::create_key)
        .patch("/keys/{id}", DEVELOPERS, "Change a key's limits or regions", places::change_key)
        .post("/keys/{id}/revoke", DEVELOPERS, "Revoke a key: it is dead at once", places::revoke_key)
        .get("/credit", BILLING, "Balances and budgets, by project", money::credit)
        .post(
            "/projects/{id}/credit",
            BILLING,
            "Add money to the balance of a project's organisation, or take it back",
            money::grant,
        )
        .get(
            "/projects/{id}/grants",
            BILLING,
            "Grants and corrections of a project's organisation, newest first",
            money::grants,
        )
        .put("/projects/{id}/budget", BILLING, "Set or remove a project's budget", money::budget)
        .get("/ledger/totals", BILLING, "Sums over the ledger", money::totals)
        .post("/ledger/verify", BILLING, "Check every invariant of the ledger", money::verify)
        .post(
            "/ledger/accounts",
            ADMINS,
            "Open an account without money for every project that has none, after a ledger was lost",
            money::open_accounts,
        )
        .post(
            "/ledger/clock",
            ADMINS,
            "Set the ledger's time back to the clock's, after a start on a clock that was ahead",
            money::set_clock,
        )
        .get("/holds", BILLING, "Money that calls in flight hold", money::holds)
        .get("/prices", VIEWERS, "Prices, by model and date", served::prices)
        .get("/models", VIEWERS, "What is served", served::models)
        .get("/models/{name}/inspect", DEVELOPERS, "What a served model's files hold, and the memory that they need", served::inspect)
        .get("/checkpoints", ADMINS, "Checkpoints that other programs have stored on the server's machine, by name", served::checkpoints)
        .get("/checkpoints/{name}/inspect", ADMINS, "What a stored checkpoint holds, and the memory that it needs", served::inspect_checkpoint)
        .post("/models/{name}/render", DEVELOPERS, "Exactly what a model sees of a call, token by token, and what that costs", words::render)
        .post("/models/{name}/tokenize", DEVELOPERS, "The tokens of a text, or the text of tokens", words::tokenize)
        .get("/models/{name}/doctor", DEVELOPERS, "What is wrong with a model's files, and the way out", words::doctor)
        .get("/routes", VIEWERS, "Names that lead to several models", served::routes)
        .post(
            "/routes/{name}/resume",
            ADMINS,
            "Put models of a route on trial again that were taken out",
            served::resume_route,
        )
        .get("/upstreams", VIEWERS, "Servers that calls are sent on to", served::upstreams)
        .post("/upstreams/{name}/drain", ADMINS, "Have an upstream take no new calls", served::drain)
        .post("/upstreams/{name}/resume", ADMINS, "Have an upstream take calls again", served::resume)
        .post("/upstreams/{name}/probe", ADMINS, "Ask an upstream now what it serves", served::probe)
        .post("/reload", ADMINS, "Read the configuration again: all of it, or nothing", house::reload)
        .get("/settings", VIEWERS, "Every setting, its value and where that comes from", house::settings)
        .get("/margin", BILLING, "What calls brought, and what others charged for them", house::margin)
        .get(
            "/shadow",
            BILLING,
            "How models that get copies of calls compare with those that answered",
            house::shadow,
        )
        .get("/audit", ADMINS, "Who did what, newest first", house::audit)
        .get("/requests", VIEWERS, "Calls, newest first, by who made them, how they went and what they cost", requests::search)
        .get("/requests/compare", VIEWERS, "How two calls differ", requests::compare)
        .get("/requests/{id}", VIEWERS, "One call's trace", requests::one)
        .get("/requests/{id}/explain", VIEWERS, "Where a call's time and money went, in words", requests::explain)
        .get("/requests/{id}/beside", VIEWERS, "What ran beside a call", requests::beside)
        .get("/requests/{id}/cost", VIEWERS, "What a call cost, term by term", requests::cost)
        .get("/usage", VIEWERS, "What was used, by whom and when", requests::usage)
        .get("/statement", BILLING, "A project's month", requests::statement)
        .get("/cache", VIEWERS, "How caches did, and why they missed", requests::cache)
        .get("/now", VIEWERS, "The house as it is now", requests::now)
        .get("/events", VIEWERS, "Server-sent events: `now` each second, `call` as one ends, `changed` as something is administered", events::watch)
        .post("/playground/chat/completions", DEVELOPERS, PLAY, playground::chat)
        .post("/playground/responses", DEVELOPERS, PLAY, playground::responses)
        .post("/playground/messages", DEVELOPERS, PLAY, playground::messages)
        .post("/playground/tokenize", DEVELOPERS, "The tokens of a text or a conversation, as a project's model has them; free", playground::tokenize)
        .post("/playground/stop", DEVELOPERS, "Let go of the call that is being made under an `Idempotency-Key`", playground::stop)
}

/// Builder of the list of routes.
struct RouteList {
    api: ApiRouter<AdminApp>,
    access: AccessTable,
}

macro_rules! method {
    ($name:ident, $with:ident, $method:ident) => {
        fn $name<H, I, O, T>(self, path: &str, access: RouteRoles, says: &str, handler: H) -> Self
        where
            H: Handler<T, AdminApp> + OperationHandler<I, O>,
            I: OperationInput,
            O: OperationOutput,
            T: 'static,
        {
            let route = $with(handler, |operation| describe(operation, &Method::$method, path, access, says));
            self.add(&Method::$method, path, access, route)
        }
    };
}

impl RouteList {
    method!(get, get_with, GET);
    method!(post, post_with, POST);
    method!(put, put_with, PUT);
    method!(patch, patch_with, PATCH);
    method!(delete, delete_with, DELETE);

    fn add(
        mut self,
        method: &Method,
        path: &str,
        access: RouteRoles,
        route: ApiMethodRouter<AdminApp>,
    ) -> Self {
        let path = format!("{ROOT}{path}");
        self.api = self.api.api_route(&path, route);
        self.access.put(method, path, access);
        self
    }
}

fn describe<'t>(
    mut operation: TransformOperation<'t>,
    method: &Method,
    path: &str,
    access: RouteRoles,
    says: &str,
) -> TransformOperation<'t> {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let id: Vec<String> =
        std::iter::once(method.as_str().to_ascii_lowercase()).chain(words.map(str::to_owned)).collect();
    let tag = path.split('/').nth(1).unwrap_or_default().to_owned();
    let told: &mut Operation = operation.inner_mut();
    if access != RouteRoles::Anyone {
        told.security =
            ["cookie", "key"].map(|scheme| [(scheme.to_owned(), Vec::new())].into_iter().collect()).into();
    }
    operation.id(&id.join("_")).summary(says).tag(&tag).description(&format!("For: {}.", access.words()))
}

/// Builds the router that is served.
pub(crate) fn router(app: AdminApp) -> Router {
    let RouteList { api, access } = routes();
    let access = Arc::new(access);
    // The OpenAPI document that is served is the committed one, not this one.
    let api = api.finish_api(&mut OpenApi::default());
    let pages = app.pages();
    api.route_layer(from_fn_with_state((app.clone(), Arc::clone(&access)), guard))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(move |request: Request| async move { pages::answer(pages, &request) })
        .layer(from_fn_with_state(app.clone(), outside))
        .layer(axum::Extension(access))
        .with_state(app)
}

async fn method_not_allowed() -> Response {
    ApiProblem::new(AdminCode::Method, "this route does not take this method").into_response()
}

/// Generates the OpenAPI document from the router.
pub fn openapi() -> OpenApi {
    let mut document = OpenApi {
        info: Info {
            title: "Headrace admin API".to_owned(),
            description: Some(format!(
                "What operators do, over HTTP. Sign in for a session (cookie `{USUAL_COOKIE}`, named by the listener's port; acts then need the header `{CSRF_HEADER}`), or send \
                 `Authorization: Bearer` with an operator's key. Bodies are JSON; fields that are not known are refused. Times are UTC. \
                 Lists come in pages: go on with `cursor` as long as `next` is there."
            )),
            version: "1".to_owned(),
            ..Info::default()
        },
        components: Some(Components::default()),
        ..OpenApi::default()
    };
    let RouteList { api, .. } = routes();
    let _: Router<AdminApp> = api.finish_api(&mut document);
    let schemes = [
        (
            "cookie",
            SecurityScheme::ApiKey {
                location: aide::openapi::ApiKeyLocation::Cookie,
                name: USUAL_COOKIE.to_owned(),
                description: Some("Named by the listener's port".to_owned()),
                extensions: Default::default(),
            },
        ),
        (
            "key",
            SecurityScheme::Http {
                scheme: "bearer".to_owned(),
                bearer_format: None,
                description: None,
                extensions: Default::default(),
            },
        ),
    ];
    let components = document.components.get_or_insert_default();
    for (name, scheme) in schemes {
        components.security_schemes.insert(name.to_owned(), ReferenceOr::Item(scheme));
    }
    document
}
