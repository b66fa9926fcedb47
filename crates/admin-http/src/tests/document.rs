//! The OpenAPI document and the router agree: every route is in both, and has a row in the table of access here.

use super::*;

/// The expected access of every route, independent of the router: o(wner), a(dmin), b(illing), d(eveloper), v(iewer) of the
/// whole server, the same in capitals for those of one organisation, and - for clients that are not signed in.
pub(super) const EXPECTED: &[(&str, &str)] = &[
    ("DELETE /operators/{id}", "oO"),
    ("DELETE /scim/{id}", "oO"),
    ("DELETE /service-accounts/{id}", "oaOA"),
    ("DELETE /session", "oabdvOABDV"),
    ("DELETE /tiers/{id}", "oa"),
    ("DELETE /budgets/{id}", "oab"),
    ("DELETE /free-tiers/{id}", "oab"),
    ("GET /free-tiers", "oabOAB"),
    ("GET /lots", "oabOAB"),
    ("POST /lots/{id}/end", "oab"),
    ("POST /orgs/{id}/lots", "oab"),
    ("POST /orgs/{id}/payments", "oab"),
    ("PUT /free-tiers/{id}", "oab"),
    ("PUT /projects/{id}/low-balance", "oabOAB"),
    ("GET /budgets", "oabOAB"),
    ("GET /budget-alerts", "oabOAB"),
    ("POST /budgets/{id}/raise", "oab"),
    ("PUT /budgets/{id}", "oab"),
    ("DELETE /users/{id}", "oaOA"),
    ("GET /audit", "oaOA"),
    ("GET /audit/head", "oa"),
    ("GET /cache", "oabdv"),
    ("GET /checkpoints", "oa"),
    ("GET /checkpoints/{name}/inspect", "oa"),
    ("GET /credit", "oabOAB"),
    ("GET /events", "oabdv"),
    ("GET /gateways", "oabdv"),
    ("GET /groups", "oaOA"),
    ("GET /holds", "oab"),
    ("GET /keys", "oabdvOABDV"),
    ("GET /ledger/totals", "oab"),
    ("GET /margin", "oab"),
    ("GET /models", "oabdvOABDV"),
    ("GET /models/{name}/doctor", "oad"),
    ("GET /models/{name}/inspect", "oad"),
    ("GET /now", "oabdv"),
    ("GET /openapi.json", "oabdv-OABDV"),
    ("GET /operators", "oO"),
    ("GET /orgs", "oabdvOABDV"),
    ("GET /prices", "oabdvOABDV"),
    ("GET /projects", "oabdvOABDV"),
    ("GET /projects/{id}/grants", "oabOAB"),
    ("GET /requests", "oabdvOABDV"),
    ("GET /requests/compare", "oabdvOABDV"),
    ("GET /requests/{id}", "oabdvOABDV"),
    ("GET /requests/{id}/beside", "oabdv"),
    ("GET /requests/{id}/content", "oadOAD"),
    ("GET /requests/{id}/cost", "oabdvOABDV"),
    ("GET /requests/{id}/explain", "oabdvOABDV"),
    ("GET /requests/{id}/receipt", "oabdvOABDV"),
    ("GET /requests/{id}/scores", "oabdvOABDV"),
    ("POST /requests/{id}/scores", "oadOAD"),
    ("GET /datasets", "oad"),
    ("POST /datasets", "oad"),
    ("GET /datasets/{id}", "oad"),
    ("DELETE /datasets/{id}", "oad"),
    ("POST /forget", "oa"),
    ("GET /routes", "oabdv"),
    ("GET /scim", "oO"),
    ("GET /service-accounts", "oadOAD"),
    ("GET /service-accounts/{id}", "oadOAD"),
    ("GET /session", "oabdvOABDV"),
    ("GET /settings", "oabdv"),
    ("GET /shadow", "oab"),
    ("GET /statement", "oabOAB"),
    ("GET /sign-in", "oabdv-OABDV"),
    ("GET /sign-in/{name}", "oabdv-OABDV"),
    ("GET /sign-in/{name}/callback", "oabdv-OABDV"),
    ("GET /status", "oabdv"),
    ("GET /tiers", "oabdv"),
    ("GET /upstreams", "oabdv"),
    ("GET /usage", "oabdvOABDV"),
    ("GET /users", "oaOA"),
    ("GET /users/{id}", "oaOA"),
    ("PATCH /groups/{id}", "oaOA"),
    ("PATCH /keys/{id}", "oadOAD"),
    ("PATCH /orgs/{id}", "oa"),
    ("PATCH /projects/{id}", "oaOA"),
    ("PATCH /users/{id}", "oaOA"),
    ("POST /keys", "oadOAD"),
    ("POST /keys/{id}/revoke", "oadOAD"),
    ("POST /keys/{id}/rotate", "oadOAD"),
    ("POST /ledger/accounts", "oa"),
    ("POST /ledger/clock", "oa"),
    ("POST /ledger/verify", "oab"),
    ("POST /models/{name}/render", "oad"),
    ("POST /models/{name}/tokenize", "oad"),
    ("POST /operators", "oO"),
    ("POST /operators/{id}/link", "oO"),
    ("POST /orgs", "oa"),
    ("POST /playground/chat/completions", "oadOAD"),
    ("POST /playground/messages", "oadOAD"),
    ("POST /playground/responses", "oadOAD"),
    ("POST /playground/stop", "oadOAD"),
    ("POST /playground/tokenize", "oadOAD"),
    ("POST /projects", "oaOA"),
    ("POST /projects/{id}/credit", "oab"),
    ("POST /receipt-keys/rotate", "o"),
    ("POST /reload", "oa"),
    ("POST /requests/{id}/refund", "oab"),
    ("POST /routes/{name}/resume", "oa"),
    ("POST /scim", "oO"),
    ("POST /service-accounts", "oaOA"),
    ("POST /service-accounts/{id}/activate", "oaOA"),
    ("POST /service-accounts/{id}/deactivate", "oaOA"),
    ("POST /session", "oabdv-OABDV"),
    ("POST /tiers", "oa"),
    ("POST /upstreams/{name}/drain", "oa"),
    ("POST /upstreams/{name}/probe", "oa"),
    ("POST /upstreams/{name}/resume", "oa"),
    ("POST /users", "oaOA"),
    ("POST /users/{id}/activate", "oaOA"),
    ("POST /users/{id}/deactivate", "oaOA"),
    ("GET /invoice-draft", "oabOAB"),
    ("GET /invoices", "oabOAB"),
    ("GET /invoices/{id}", "oabOAB"),
    ("GET /invoices/{id}/csv", "oabOAB"),
    ("GET /invoices/{id}/html", "oabOAB"),
    ("POST /invoices", "oab"),
    ("POST /invoices/{id}/credit-note", "oab"),
    ("GET /webhooks", "oab"),
    ("GET /webhook-deliveries", "oab"),
    ("POST /webhooks/{id}/resume", "oa"),
    ("POST /webhooks/{id}/test", "oa"),
    ("PUT /keys/{id}/tier", "oa"),
    ("PUT /orgs/{id}/tier", "oa"),
    ("PUT /projects/{id}/budget", "oabOAB"),
    ("PUT /projects/{id}/tier", "oa"),
    ("PUT /tiers/{id}", "oa"),
];

/// Every route of the router, such as `GET /status`, from the generated document.
pub(super) fn walked() -> Vec<String> {
    let document = serde_json::to_value(crate::openapi()).unwrap();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.strip_prefix("/admin/v1").unwrap();
        let methods = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
        let taken = methods.iter().filter(|method| item.get(**method).is_some());
        found.extend(taken.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    found.sort();
    found
}

#[test]
fn the_committed_document_is_the_routers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let made = format!("{}\n", serde_json::to_string_pretty(&crate::openapi()).unwrap());
    if std::env::var_os("HEADRACE_BLESS").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert!(
        committed == made,
        "openapi.json is not what the router makes: HEADRACE_BLESS=1 cargo test -p headrace-admin-http writes it anew"
    );
}

#[test]
fn every_reference_in_the_document_leads_somewhere_and_ids_are_unique() {
    let document = serde_json::to_value(crate::openapi()).unwrap();
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    let mut ids: Vec<_> =
        text.split("\"operationId\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), count), (EXPECTED.len(), EXPECTED.len()));
}

#[tokio::test]
async fn what_is_no_route_is_told_as_such() {
    let world = TestWorld::new();
    for (method, path, status) in [
        (Method::GET, "/admin/v1/nothing", 404),
        (Method::GET, "/admin", 404),
        (Method::GET, "/admin/v2/status", 404),
        (Method::GET, "/admin/v1/status/", 404),
        (Method::GET, "/nothing.js", 404),
        (Method::POST, "/", 405),
        (Method::PUT, "/admin/v1/status", 405),
        (Method::GET, "/", 200),
    ] {
        let answer = world.call(method.clone(), path, &[], Value::Null).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {answer:?}");
        assert!(answer.headers.contains_key(header::CONTENT_SECURITY_POLICY), "{method} {path}");
        assert_eq!(status >= 400, !answer.code().is_empty(), "{method} {path}: {answer:?}");
    }
    let page = world.call(Method::GET, "/", &[], Value::Null).await;
    let etag = page.headers[header::ETAG].to_str().unwrap().to_owned();
    let again = world.call(Method::GET, "/", &[("if-none-match", &etag)], Value::Null).await;
    assert_eq!(again.status.as_u16(), 304);
}

/// The routes of each command. A new command does not compile here before it is listed with its routes.
macro_rules! commands {
    ($($command:ident => $($route:literal)|*;)*) => {
        const fn _every_command_is_named(command: &AdminCommand) {
            match command { $(AdminCommand::$command { .. } => {})* }
        }
        const COMMANDS: &[&[&str]] = &[$(&[$($route),*]),*];
    };
}

commands! {
    Status => "GET /status" | "GET /ledger/totals" | "GET /gateways";
    Now => "GET /now" | "GET /events";
    RecentCalls => "GET /requests";
    Reload => "POST /reload";
    Upstreams => "GET /upstreams" | "POST /upstreams/{name}/drain" | "POST /upstreams/{name}/resume" | "POST /upstreams/{name}/probe";
    Routes => "GET /routes" | "POST /routes/{name}/resume";
    CreateKey => "POST /keys";
    // Keys are lent only to users with access to the data directory, never over HTTP. The playground makes calls
    // without a key.
    LendKey => "POST /playground/chat/completions";
    ListKeys => "GET /keys";
    RotateKey => "POST /keys/{id}/rotate";
    RevokeKey => "POST /keys/{id}/revoke";
    CreateOrg => "POST /orgs";
    ListOrgs => "GET /orgs";
    CreateProject => "POST /projects";
    ListProjects => "GET /projects";
    SetOrgLimits => "PATCH /orgs/{id}";
    SetOrgRegions => "PATCH /orgs/{id}";
    SetKeyRegions => "PATCH /keys/{id}";
    SetKeyLimits => "PATCH /keys/{id}";
    Tiers => "GET /tiers" | "POST /tiers" | "PUT /tiers/{id}" | "DELETE /tiers/{id}" | "PUT /orgs/{id}/tier" | "PUT /projects/{id}/tier" | "PUT /keys/{id}/tier";
    Accounts => "GET /users" | "POST /users" | "GET /users/{id}" | "PATCH /users/{id}" | "DELETE /users/{id}" | "POST /users/{id}/deactivate" | "POST /users/{id}/activate" | "GET /service-accounts" | "POST /service-accounts" | "GET /service-accounts/{id}" | "DELETE /service-accounts/{id}" | "POST /service-accounts/{id}/deactivate" | "POST /service-accounts/{id}/activate" | "GET /groups" | "PATCH /groups/{id}" | "GET /scim" | "POST /scim" | "DELETE /scim/{id}";
    ChangeKey => "PATCH /keys/{id}";
    SetProjectLimits => "PATCH /projects/{id}";
    SetProjectRecords => "PATCH /projects/{id}";
    Contents => "GET /requests/{id}/scores" | "POST /requests/{id}/scores" | "GET /datasets" | "POST /datasets" | "GET /datasets/{id}" | "DELETE /datasets/{id}" | "POST /forget";
    GrantCredit => "POST /projects/{id}/credit";
    CorrectCredit => "POST /projects/{id}/credit";
    Lots => "GET /lots" | "POST /orgs/{id}/lots" | "POST /lots/{id}/end" | "POST /orgs/{id}/payments" | "PUT /projects/{id}/low-balance" | "GET /free-tiers" | "PUT /free-tiers/{id}" | "DELETE /free-tiers/{id}";
    Refund => "POST /requests/{id}/refund";
    ListGrants => "GET /projects/{id}/grants";
    ShowCredit => "GET /credit";
    RotateReceiptKey => "POST /receipt-keys/rotate";
    Invoices => "POST /invoices/{id}/credit-note" | "GET /invoices" | "POST /invoices" | "GET /invoice-draft" | "GET /invoices/{id}" | "GET /invoices/{id}/csv" | "GET /invoices/{id}/html";
    Webhooks => "GET /webhooks" | "GET /webhook-deliveries" | "POST /webhooks/{id}/test" | "POST /webhooks/{id}/resume";
    Budgets => "GET /budgets" | "PUT /budgets/{id}" | "DELETE /budgets/{id}" | "POST /budgets/{id}/raise" | "GET /budget-alerts";
    SetBudget => "PUT /projects/{id}/budget";
    OpenAccounts => "POST /ledger/accounts";
    SetLedgerClock => "POST /ledger/clock";
    ShowAudit => "GET /audit";
    AuditLog => "GET /audit/head";
    CreateOperator => "POST /operators";
    ListOperators => "GET /operators";
    RevokeOperator => "DELETE /operators/{id}";
    LinkOperator => "POST /operators/{id}/link";
}

#[test]
fn every_command_has_its_route() {
    let routes = walked();
    for route in COMMANDS.concat() {
        assert!(routes.iter().any(|known| known == route), "{route}");
    }
}
