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
use axum::routing::any;

use crate::access::{ADMINS, AccessTable, BILLING, DEVELOPERS, OWNERS, ROOT, RouteRoles, VIEWERS};
use crate::app::AdminApp;
use crate::guard::{guard, outside};
use crate::pages;
use crate::problem::ApiProblem;
use crate::routes::{
    accounts, budgets, contents, document, events, free_tiers, gateway_list, gateways, invoices, lots, money,
    operators, places, playground, receipt_keys, refunds, requests, scim_credentials, served, server,
    session, sign_in, tiers, webhooks, words,
};
use crate::scim::{self, ScimService};
use crate::who::{CSRF_HEADER, USUAL_COOKIE};
use headrace_domain::AdminCode;

/// The summary of the playground's call routes.
const PLAY: &str = "Make a call as the project in `x-headrace-project`. Each `Idempotency-Key` makes one call; a repeated request reads the same answer, even while the answer is streaming";

/// Every route of the API.
fn routes() -> RouteList {
    RouteList { api: ApiRouter::new(), access: AccessTable::default() }
        .get("/openapi.json", RouteRoles::Anyone, "This document", document::show)
        .post("/session", RouteRoles::Anyone, "Sign in with a one-time link or a key", session::begin)
        .get("/session", VIEWERS, "The signed-in operator, and the routes of that role", session::show)
        .delete("/session", VIEWERS, "Sign out", session::end)
        .get("/sign-in", RouteRoles::Anyone, "The identity providers at which operators sign in", sign_in::list)
        .get("/sign-in/{name}", RouteRoles::Anyone, "Begin to sign in at an identity provider: leads the browser to it", sign_in::begin)
        .get("/sign-in/{name}/callback", RouteRoles::Anyone, "End of a sign-in: the provider leads the browser here", sign_in::end)
        .get("/status", VIEWERS, "The server's status", server::status)
        .get("/gateways", VIEWERS, "Gateways that share the ledger, with their state and their load", gateway_list::list)
        .get("/operators", OWNERS, "Operators, by id", operators::list)
        .post("/operators", OWNERS, "Create an operator; the key is shown only once", operators::create)
        .delete(
            "/operators/{id}",
            OWNERS,
            "Revoke an operator's key and sessions",
            operators::revoke,
        )
        .post("/operators/{id}/link", OWNERS, "Create a one-time sign-in link for an operator", operators::link)
        .get("/orgs", VIEWERS, "Organisations, by id", places::list_orgs)
        .post("/orgs", ADMINS, "Create an organisation", places::create_org)
        .patch("/orgs/{id}", ADMINS, "Change an organisation's limits or regions", places::change_org)
        .get("/projects", VIEWERS, "Projects, by id", places::list_projects)
        .post("/projects", ADMINS, "Create a project, with its account in the ledger", places::create_project)
        .patch("/projects/{id}", ADMINS, "Change a project's limits", places::change_project)
        .get("/keys", VIEWERS, "Keys, by id, without their secrets", places::list_keys)
        .post("/keys", DEVELOPERS, "Create a key; the secret is shown only once", places::create_key)
        .patch("/keys/{id}", DEVELOPERS, "Change a key's limits, regions, owner or addresses", places::change_key)
        .post("/keys/{id}/rotate", DEVELOPERS, "Give a key another secret; it is shown only once", places::rotate_key)
        .post("/keys/{id}/revoke", DEVELOPERS, "Revoke a key, effective immediately", places::revoke_key)
        .get("/users", ADMINS, "Users, by id", accounts::list_users)
        .post("/users", ADMINS, "Create a user of an organisation", accounts::create_user)
        .get("/users/{id}", ADMINS, "One user", accounts::show_user)
        .patch("/users/{id}", ADMINS, "Change a user's data, login or role", accounts::change_user)
        .delete("/users/{id}", ADMINS, "Remove a user; its keys and tokens stay refused", accounts::remove_user)
        .post("/users/{id}/deactivate", ADMINS, "End a user's keys, tokens, sessions and running calls", accounts::deactivate_user)
        .post("/users/{id}/activate", ADMINS, "Let a user's keys and tokens work again", accounts::activate_user)
        .get("/service-accounts", DEVELOPERS, "Service accounts, by id", accounts::list_service_accounts)
        .post("/service-accounts", ADMINS, "Create a service account of a project", accounts::create_service_account)
        .get("/service-accounts/{id}", DEVELOPERS, "One service account", accounts::show_service_account)
        .delete("/service-accounts/{id}", ADMINS, "Remove a service account; its keys stay refused", accounts::remove_service_account)
        .post("/service-accounts/{id}/deactivate", ADMINS, "End a service account's keys and running calls", accounts::deactivate_service_account)
        .post("/service-accounts/{id}/activate", ADMINS, "Let a service account's keys work again", accounts::activate_service_account)
        .get("/groups", ADMINS, "Groups of users, by id", accounts::list_groups)
        .patch("/groups/{id}", ADMINS, "Change the role or the tier that a group gives its members", accounts::change_group)
        .get("/scim", OWNERS, "SCIM credentials, by id, without their secrets", scim_credentials::list)
        .post("/scim", OWNERS, "Create a SCIM credential; the secret is shown only once", scim_credentials::create)
        .delete("/scim/{id}", OWNERS, "Revoke a SCIM credential", scim_credentials::revoke)
        .get("/tiers", VIEWERS, "Tiers, by name", tiers::list)
        .post("/tiers", ADMINS, "Create a tier; it has no effect until it is assigned", tiers::create)
        .put("/tiers/{id}", ADMINS, "Replace the rules of a tier, for all that have it", tiers::change)
        .delete("/tiers/{id}", ADMINS, "Delete a tier that is assigned to none", tiers::remove)
        .put("/orgs/{id}/tier", ADMINS, "Assign a tier to an organisation, or none", tiers::assign_to_org)
        .put("/projects/{id}/tier", ADMINS, "Assign a tier to a project, or none", tiers::assign_to_project)
        .put("/keys/{id}/tier", ADMINS, "Assign a tier to a key, or none", tiers::assign_to_key)
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
        .post("/requests/{id}/refund", BILLING, "Give back a call's charge, or a part of it; the same reference again is the same refund", refunds::refund)
        .put("/projects/{id}/budget", BILLING, "Set or remove a project's budget", money::budget)
        .get("/lots", BILLING, "Lots and contracts that have not ended, in the order in which they were made", lots::list)
        .post("/orgs/{id}/lots", BILLING, "Make a lot or a contract; the same reference again is the same lot", lots::make)
        .post("/lots/{id}/end", BILLING, "End a lot; what is left of it is expired money", lots::end)
        .post("/orgs/{id}/payments", BILLING, "Record a payment of what an organisation owes under its contracts", lots::pay)
        .put("/projects/{id}/low-balance", BILLING, "Set what happens to a project's calls that the money does not cover", lots::set_low_balance)
        .get("/free-tiers", BILLING, "Free tiers with their use, by name", free_tiers::list)
        .put("/free-tiers/{id}", BILLING, "Set a free tier, or change the one of this name", free_tiers::set)
        .delete("/free-tiers/{id}", BILLING, "Remove a free tier", free_tiers::remove)
        .get("/budgets", BILLING, "Budget rules with their use, by name", budgets::list)
        .put("/budgets/{id}", BILLING, "Set a budget rule, or change the one of this name", budgets::set)
        .delete("/budgets/{id}", BILLING, "Remove a budget rule", budgets::remove)
        .post("/budgets/{id}/raise", BILLING, "Raise the limit of a budget rule for a time", budgets::raise)
        .get("/budget-alerts", BILLING, "The newest alerts of budget rules, at most 1,000", budgets::alerts)
        .get("/invoices", BILLING, "Final invoices, by number", invoices::list)
        .post("/invoices", BILLING, "Give the invoice of a month that is over its number; it never changes", invoices::finish)
        .get("/invoice-draft", BILLING, "The invoice of an organisation for a month, as it is now", invoices::draft)
        .get("/invoices/{id}", BILLING, "A final invoice", invoices::one)
        .post("/invoices/{id}/credit-note", BILLING, "Make the credit note for refunds since a final invoice", invoices::credit)
        .get("/invoices/{id}/csv", BILLING, "A final invoice as comma-separated values", invoices::csv)
        .get("/invoices/{id}/html", BILLING, "A final invoice as a page to print", invoices::html)
        .get("/webhooks", BILLING, "Endpoints that receive events, with their last result", webhooks::list)
        .get("/webhook-deliveries", BILLING, "The newest deliveries of events, at most 200", webhooks::deliveries)
        .post("/webhooks/{id}/test", ADMINS, "Send a test event to an endpoint now", webhooks::test)
        .post("/webhooks/{id}/resume", ADMINS, "Send events again to an endpoint that answered 410", webhooks::resume)
        .get("/ledger/totals", BILLING, "Totals of the ledger", money::totals)
        .post("/ledger/verify", BILLING, "Check every invariant of the ledger", money::verify)
        .post(
            "/ledger/accounts",
            ADMINS,
            "After the loss of a ledger: open an account with a balance of zero for every project without an account",
            money::open_accounts,
        )
        .post(
            "/ledger/clock",
            ADMINS,
            "Set the ledger's time back to the clock's time, after a start with a clock that was ahead",
            money::set_clock,
        )
        .get("/holds", BILLING, "Holds of calls in flight", money::holds)
        .get("/prices", VIEWERS, "Prices, by model and date", served::prices)
        .get("/models", VIEWERS, "Models that the server serves", served::models)
        .get("/models/{name}/inspect", DEVELOPERS, "Content of a served model's files, and their memory", served::inspect)
        .get("/checkpoints", ADMINS, "Checkpoints that other programs stored on the server's machine, by name", served::checkpoints)
        .get("/checkpoints/{name}/inspect", ADMINS, "Content of a stored checkpoint, and its memory", served::inspect_checkpoint)
        .post("/models/{name}/render", DEVELOPERS, "The exact tokens of a call, with their origin and cost", words::render)
        .post("/models/{name}/tokenize", DEVELOPERS, "The tokens of a text, or the text of tokens", words::tokenize)
        .get("/models/{name}/doctor", DEVELOPERS, "Faults of a model's files, and their remedies", words::doctor)
        .get("/routes", VIEWERS, "Routes: names that are served by several models", served::routes)
        .post(
            "/routes/{name}/resume",
            ADMINS,
            "Restart the stopped canaries of a route",
            served::resume_route,
        )
        .get("/upstreams", VIEWERS, "Upstream servers", served::upstreams)
        .post("/upstreams/{name}/drain", ADMINS, "Drain an upstream: send no new calls to it", served::drain)
        .post("/upstreams/{name}/resume", ADMINS, "Resume an upstream: send calls to it again", served::resume)
        .post("/upstreams/{name}/probe", ADMINS, "Query the models of an upstream now", served::probe)
        .post("/reload", ADMINS, "Reload the configuration; the server applies either all of it or nothing", server::reload)
        .get("/settings", VIEWERS, "Every setting, with its value and the value's origin", server::settings)
        .get("/margin", BILLING, "Revenue of calls and charges of upstreams", server::margin)
        .get(
            "/shadow",
            BILLING,
            "Comparison of shadow models with the originals",
            server::shadow,
        )
        .get("/audit", ADMINS, "The audit log, newest first", server::audit)
        .get("/audit/head", ADMINS, "The signed end of the audit log", server::audit_head)
        .get("/requests", VIEWERS, "Calls, newest first, filtered by caller, outcome, cost and more", requests::search)
        .get("/requests/compare", VIEWERS, "Comparison of two calls", requests::compare)
        .get("/requests/{id}", VIEWERS, "One call's trace", requests::one)
        .get("/requests/{id}/explain", VIEWERS, "Explanation of a call's time and cost, in words", requests::explain)
        .get("/requests/{id}/beside", VIEWERS, "Concurrent work of a call: what ran in the same engine steps", requests::beside)
        .get("/requests/{id}/content", DEVELOPERS, "Recorded request and answer of a call", requests::content)
        .get("/requests/{id}/scores", VIEWERS, "Scores of a call, by name", contents::scores)
        .post("/requests/{id}/scores", DEVELOPERS, "Give a call a score, in place of the one of the same name", contents::score)
        .get("/datasets", DEVELOPERS, "Datasets of recorded requests and answers, by name", contents::datasets)
        .post("/datasets", DEVELOPERS, "Create a dataset from recorded requests and answers", contents::create_dataset)
        .get("/datasets/{id}", DEVELOPERS, "Items of a dataset, in order", contents::dataset_items)
        .delete("/datasets/{id}", DEVELOPERS, "Delete a dataset", contents::remove_dataset)
        .post("/forget", ADMINS, "Remove everything that names a user, from all stores", contents::forget)
        .get("/requests/{id}/cost", VIEWERS, "Cost of a call, by term", requests::cost)
        .get("/requests/{id}/receipt", VIEWERS, "Signed receipt of a call", requests::receipt)
        .post("/receipt-keys/rotate", OWNERS, "Make another key that signs receipts; older receipts stay valid", receipt_keys::rotate)
        .get("/usage", VIEWERS, "Usage by caller and time", requests::usage)
        .get("/statement", BILLING, "Statement of a project for one month", requests::statement)
        .get("/cache", VIEWERS, "Prefix cache hit rates, and reasons for misses", requests::cache)
        .get("/now", VIEWERS, "The server's current state", requests::now)
        .get("/events", VIEWERS, "Server-sent events: `now` each second, `call` when a call ends, `changed` after an administrative change", events::watch)
        .post("/playground/chat/completions", DEVELOPERS, PLAY, playground::chat)
        .post("/playground/responses", DEVELOPERS, PLAY, playground::responses)
        .post("/playground/messages", DEVELOPERS, PLAY, playground::messages)
        .post("/playground/tokenize", DEVELOPERS, "The tokens of a text or a conversation for a project's model; free of charge", playground::tokenize)
        .post("/playground/stop", DEVELOPERS, "Cancel the call with this `Idempotency-Key`", playground::stop)
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
    let inner: &mut Operation = operation.inner_mut();
    if access != RouteRoles::Anyone {
        inner.security =
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
        .merge(scim_router(&app))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(move |request: Request| async move { pages::answer(pages, &request) })
        .layer(from_fn_with_state(app.clone(), outside))
        .layer(axum::Extension(access))
        .with_state(app.clone())
        // Other gateways use the address that they read, which need not be a name of this listener.
        .merge(gateways::router(app))
}

/// The routes of identity providers. They have credentials of their own kind.
fn scim_router(app: &AdminApp) -> Router<AdminApp> {
    let service = ScimService::new(app.clone());
    let below = format!("{}/{{*path}}", scim::ROOT);
    Router::new().route(scim::ROOT, any(scim::serve)).route(&below, any(scim::serve)).with_state(service)
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
                "Administration of the server over HTTP. Sign in for a session (cookie `{USUAL_COOKIE}`, with the listener's port in its name; changes then need the header `{CSRF_HEADER}`), or send \
                 `Authorization: Bearer` with an operator's key. Bodies are JSON. Unknown fields are refused. Times are UTC. \
                 Lists have pages: while an answer has `next`, send its value as `cursor` for the next page."
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
                description: Some("The name contains the listener's port".to_owned()),
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
