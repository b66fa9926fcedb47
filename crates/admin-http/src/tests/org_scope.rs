//! Operators of one organisation: what they see and change, and that others answer as missing.

use super::*;

/// Adds the organisation `other` with a project, a key, a user, a service account, a group's worth of records and an operator.
struct OtherOrg {
    key: String,
    user: String,
    account: String,
    operator: String,
    scim: String,
}

async fn other_org(world: &TestWorld) -> OtherOrg {
    let by = |path: &'static str, body: Value| async move {
        let answer = world.by(Role::Owner, Method::POST, path, body).await;
        assert_eq!(answer.status.as_u16(), 201, "{path}: {answer:?}");
        answer.body
    };
    by("/orgs", json!({ "id": "other" })).await;
    by("/projects", json!({ "id": "app", "org": "other" })).await;
    let id = |value: &Value| value["id"].as_str().unwrap().to_owned();
    let key = by("/keys", json!({ "project": "app", "name": "k" })).await;
    let user = by("/users", json!({ "org": "other", "name": "eve", "role": "admin" })).await;
    let account = by("/service-accounts", json!({ "project": "app", "name": "ci" })).await;
    let operator = by("/operators", json!({ "name": "eve", "role": "admin", "org": "other" })).await;
    let scim = by("/scim", json!({ "org": "other" })).await;
    OtherOrg {
        key: id(&key["key"]),
        user: id(&user),
        account: id(&account),
        operator: id(&operator["operator"]),
        scim: id(&scim["credential"]),
    }
}

/// The path with every byte of the segment after the first one percent-encoded. Routes decode it.
fn with_escaped_id(path: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let escape = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let segments = path.split('/').enumerate();
    let segments = segments.map(|(at, text)| if at == 2 { escape(text) } else { text.to_owned() });
    let path = segments.collect::<Vec<_>>().join("/");
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

#[tokio::test]
async fn what_belongs_to_another_organisation_answers_as_missing() {
    let world = TestWorld::new();
    let other = other_org(&world).await;
    let key = world.org_operator(Role::Owner);
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    let OtherOrg { key, user, account, operator, scim } = &other;
    let invoice = json!({ "org": "other", "month": "2020-01" });
    let made = world.by(Role::Owner, Method::POST, "/invoices", invoice).await;
    assert_eq!((made.status.as_u16(), made.body["number"].as_str()), (201, Some("INV-1")), "{made:?}");
    let get = |path: &str| ("GET", path.to_owned(), Value::Null);
    let rows = [
        ("PATCH", "/projects/app".to_owned(), json!({ "limits": {} })),
        ("PUT", "/projects/app/budget".to_owned(), json!({ "limit": "1" })),
        ("PUT", "/projects/app/low-balance".to_owned(), json!({ "policy": "cap" })),
        get("/lots?org=other"),
        get("/invoices/INV-1"),
        get("/invoices/INV-1/csv"),
        get("/invoices/INV-1/html"),
        get("/invoice-draft?org=other&month=2026-11"),
        get("/projects/app/grants"),
        get("/statement?project=app&month=2026-11"),
        ("POST", "/projects".to_owned(), json!({ "id": "x", "org": "other" })),
        ("POST", "/keys".to_owned(), json!({ "project": "app", "name": "x" })),
        ("PATCH", format!("/keys/{key}"), json!({ "owner": "x" })),
        ("POST", format!("/keys/{key}/rotate"), json!({ "overlap_seconds": 0 })),
        ("POST", format!("/keys/{key}/revoke"), json!({})),
        ("POST", "/users".to_owned(), json!({ "org": "other", "name": "x" })),
        get(&format!("/users/{user}")),
        ("PATCH", format!("/users/{user}"), json!({ "role": null })),
        ("POST", format!("/users/{user}/deactivate"), json!({})),
        ("DELETE", format!("/users/{user}"), json!({})),
        ("POST", "/service-accounts".to_owned(), json!({ "project": "app", "name": "x" })),
        get(&format!("/service-accounts/{account}")),
        ("POST", format!("/service-accounts/{account}/deactivate"), json!({})),
        ("DELETE", format!("/service-accounts/{account}"), json!({})),
        ("DELETE", format!("/operators/{operator}"), json!({})),
        ("DELETE", format!("/operators/{}", world.operator(Role::Viewer).id), json!({})),
        ("POST", format!("/operators/{operator}/link"), json!({})),
        ("POST", "/operators".to_owned(), json!({ "name": "x", "role": "viewer", "user": user })),
        ("POST", "/scim".to_owned(), json!({ "org": "other" })),
        ("DELETE", format!("/scim/{scim}"), json!({})),
        get("/credit?org=other"),
        get("/users?org=other"),
        get("/usage?org=other"),
        get("/requests?org=other"),
        get("/requests/req_other"),
        get("/requests/req_other/cost"),
        get("/requests/req_other/receipt"),
        get("/requests/compare?a=req_1&b=req_other"),
    ];
    for (method, path, body) in rows {
        let method: Method = method.parse().unwrap();
        for path in [path.clone(), with_escaped_id(&path)] {
            let whole = format!("/admin/v1{path}");
            let refused = world.call(method.clone(), &whole, &headers, body.clone()).await;
            assert_eq!(refused.status.as_u16(), 404, "{method} {path}: {refused:?}");
        }
    }
    let get = |path: &'static str| world.call(Method::GET, path, &headers, Value::Null);
    let (foreign, missing) = (get("/admin/v1/invoices/INV-1").await, get("/admin/v1/invoices/INV-9").await);
    assert_eq!(foreign.body.to_string().replace("INV-1", "INV-9"), missing.body.to_string());
    let listed = get("/admin/v1/invoices").await;
    assert_eq!((listed.status.as_u16(), &listed.body), (200, &json!([])), "{listed:?}");
    let played = world
        .call(
            Method::POST,
            "/admin/v1/playground/tokenize",
            &[headers[0], ("x-headrace-project", "app")],
            json!({}),
        )
        .await;
    assert_eq!(played.status.as_u16(), 404, "{played:?}");
    // Nothing of it happened.
    for (path, count) in [("/keys", 1), ("/users", 1), ("/service-accounts", 1), ("/scim", 1)] {
        let all = world.by(Role::Owner, Method::GET, path, Value::Null).await;
        assert_eq!(all.body["data"].as_array().unwrap().len(), count, "{path}");
    }
}

#[tokio::test]
async fn lists_show_the_organisation_and_changes_stay_within_it() {
    let world = TestWorld::new();
    other_org(&world).await;
    let key = world.org_operator(Role::Owner);
    let bearer = format!("Bearer {key}");
    let call = |method: Method, path: String, body: Value| {
        let (world, bearer) = (&world, bearer.as_str());
        async move {
            let answer =
                world.call(method, &format!("/admin/v1{path}"), &[("authorization", bearer)], body).await;
            assert!(answer.status.is_success(), "{path}: {answer:?}");
            answer.body
        }
    };
    let session = call(Method::GET, "/session".to_owned(), Value::Null).await;
    assert_eq!(session["org"], "o");
    let may: Vec<_> =
        session["may"].as_array().unwrap().iter().map(|route| route.as_str().unwrap()).collect();
    assert!(may.contains(&"GET /keys") && !may.contains(&"GET /status") && !may.contains(&"POST /reload"));
    let post = |path: &str, body: Value| call(Method::POST, path.to_owned(), body);
    post("/projects", json!({ "id": "lab", "org": "o" })).await;
    let user = post("/users", json!({ "org": "o", "name": "ann", "role": "developer" })).await;
    let owner = user["id"].as_str().unwrap();
    post("/keys", json!({ "project": "lab", "name": "k", "owner": owner })).await;
    post("/service-accounts", json!({ "project": "lab", "name": "ci" })).await;
    let operator = post("/operators", json!({ "name": "bob", "role": "viewer" })).await;
    assert_eq!(operator["operator"]["org"], "o", "an operator of one organisation creates no others");
    let of_user = post("/operators", json!({ "name": "ann", "role": "viewer", "user": owner })).await;
    assert_eq!(
        (&of_user["operator"]["role"], &of_user["operator"]["user"]),
        (&json!("developer"), &json!(owner))
    );
    post("/scim", json!({ "org": "o" })).await;
    for (path, field, expected) in [
        ("/orgs", "id", vec!["o"]),
        ("/projects", "org", vec!["o", "o"]),
        ("/keys", "org", vec!["o"]),
        ("/users", "org", vec!["o"]),
        ("/service-accounts", "org", vec!["o"]),
        ("/scim", "org", vec!["o"]),
        ("/credit", "org", vec!["o", "o"]),
        ("/operators", "org", vec!["o", "o", "o"]),
    ] {
        let rows = call(Method::GET, path.to_owned(), Value::Null).await;
        let found: Vec<_> =
            rows["data"].as_array().unwrap().iter().map(|row| row[field].as_str().unwrap()).collect();
        assert_eq!(found, expected, "{path}");
    }
    for path in ["/requests", "/usage", "/usage?org=o"] {
        let asked = call(Method::GET, path.to_owned(), Value::Null).await;
        let named = if path == "/requests" { &asked["data"] } else { &asked };
        assert_eq!(named, &json!([["org", "o"]]), "{path}: the records are asked for the organisation only");
    }
    let one = call(Method::GET, "/requests/req_1".to_owned(), Value::Null).await;
    assert_eq!(one["id"], "req_1");
}

#[tokio::test]
async fn no_operator_gives_a_role_that_is_more_powerful_than_its_own() {
    let world = TestWorld::new();
    let key = world.org_operator(Role::Admin);
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    let create = |role: &str| {
        let body = json!({ "org": "o", "name": role, "role": role });
        world.call(Method::POST, "/admin/v1/users", &headers, body)
    };
    assert_eq!(create("owner").await.status.as_u16(), 403);
    let made = create("admin").await;
    assert_eq!(made.status.as_u16(), 201, "{made:?}");
    let path = format!("/admin/v1/users/{}", made.body["id"].as_str().unwrap());
    let up = world.call(Method::PATCH, &path, &headers, json!({ "role": "owner" })).await;
    assert_eq!((up.status.as_u16(), up.code()), (403, "role"));
    let owner = world
        .by(Role::Owner, Method::POST, "/users", json!({ "org": "o", "name": "top", "role": "owner" }))
        .await;
    let path = format!("/admin/v1/users/{}", owner.body["id"].as_str().unwrap());
    let down = world.call(Method::PATCH, &path, &headers, json!({ "role": "viewer" })).await;
    assert_eq!(down.status.as_u16(), 403, "nor takes one away");
    let tier = json!({ "project": "p", "name": "k", "tier": "basic" });
    let tier = world.call(Method::POST, "/admin/v1/keys", &headers, tier).await;
    assert_eq!((tier.status.as_u16(), tier.code()), (403, "role"));
}

#[tokio::test]
async fn budgets_and_their_counters_are_those_of_the_organisation() {
    use headrace_admin::{BudgetAlertView, BudgetCounterView, BudgetRuleView};
    use headrace_ledger::{BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow};

    use crate::routes::budget_scope::{is_alert_of, rule_within};

    let world = TestWorld::new();
    let other = other_org(&world).await;
    let made = json!({ "project": "p", "name": "k" });
    let key = world.by(Role::Owner, Method::POST, "/keys", made).await.body["key"]["id"].clone();
    let key = key.as_str().unwrap();
    let (directory, org) = (&world.parts.directory, OrgId::new("o").unwrap());
    let rule = |scope, of: Option<&str>, subject: Option<&str>| BudgetRule {
        name: "b".parse().unwrap(),
        scope,
        org: of.map(|of| OrgId::new(of).unwrap()),
        subject: subject.map(Into::into),
        tier: None,
        window: BudgetWindow::Day,
        zone: "UTC".into(),
        measure: BudgetMeasure::Requests,
        limit: 9,
        is_hard: true,
        thresholds: Vec::new(),
        origin: BudgetOrigin::Operator,
    };
    let counter = |subject: &str| BudgetCounterView {
        subject: subject.to_owned(),
        used: 1,
        reserved: 0,
        left: 8,
        resets: None,
        alerted: Vec::new(),
    };
    // A rule, the subjects of its counters, and those that the organisation sees. `None` if it does not see the rule.
    let foreign = other.key.as_str();
    type Row<'a> = (BudgetRule, Vec<&'a str>, Option<Vec<&'a str>>);
    let rows: [Row<'_>; 11] = [
        (rule(BudgetScope::Org, None, None), vec!["o", "other"], Some(vec!["o"])),
        (rule(BudgetScope::Org, None, Some("other")), vec!["other"], None),
        (rule(BudgetScope::Org, Some("other"), None), vec!["other"], None),
        (rule(BudgetScope::Project, None, None), vec!["app", "p", "gone"], Some(vec!["p"])),
        (rule(BudgetScope::Project, None, Some("app")), vec!["app"], None),
        (rule(BudgetScope::Key, None, None), vec![foreign, key, "key_gone"], Some(vec![key])),
        (rule(BudgetScope::Key, None, Some(foreign)), vec![foreign], None),
        (rule(BudgetScope::User, None, None), vec!["user_unknown"], Some(vec![])),
        (rule(BudgetScope::User, Some("o"), None), vec!["user_unknown"], Some(vec!["user_unknown"])),
        (rule(BudgetScope::Model, None, None), vec!["o/m", "other/m", "other/o/m"], Some(vec!["o/m"])),
        (rule(BudgetScope::Model, None, Some("m")), vec!["other/m"], Some(vec![])),
    ];
    for (rule, subjects, expected) in rows {
        let counters = subjects.iter().map(|subject| counter(subject)).collect();
        let of = BudgetRuleView { rule: rule.clone(), raise: None, limit: 9, counters };
        let seen = rule_within(directory, &org, of.clone());
        let seen = seen.map(|of| of.counters.into_iter().map(|of| of.subject).collect::<Vec<_>>());
        let expected: Option<Vec<String>> = expected.map(|all| all.into_iter().map(str::to_owned).collect());
        assert_eq!(seen, expected, "{rule:?}");
        for subject in subjects {
            let alert = BudgetAlertView {
                at: NOW,
                name: rule.name.clone(),
                subject: subject.to_owned(),
                percent: 100,
                used: 9,
                limit: 9,
                measure: None,
                resets: None,
            };
            let is_seen = expected.as_ref().is_some_and(|seen| seen.contains(&alert.subject));
            assert_eq!(is_alert_of(directory, &org, std::slice::from_ref(&of), &alert), is_seen, "{subject}");
            assert!(!is_alert_of(directory, &org, &[], &alert), "a rule that was removed");
        }
    }
    // Over HTTP: the rule of another organisation is not listed.
    for (name, org) in [("all", Value::Null), ("own", json!("o")), ("theirs", json!("other"))] {
        let rule =
            json!({ "scope": "project", "window": "day", "measure": "requests", "limit": "5", "org": org });
        let set = world.by(Role::Billing, Method::PUT, &format!("/budgets/{name}"), rule).await;
        assert!(set.status.is_success(), "{set:?}");
    }
    let bearer = format!("Bearer {}", world.org_operator(Role::Billing));
    let headers = [("authorization", bearer.as_str())];
    let listed = world.call(Method::GET, "/admin/v1/budgets", &headers, Value::Null).await;
    let names: Vec<_> =
        listed.body["data"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["all", "own"], "{listed:?}");
    let alerts = world.call(Method::GET, "/admin/v1/budget-alerts", &headers, Value::Null).await;
    assert_eq!((alerts.status.as_u16(), alerts.body), (200, json!([])));
    let removed = world.call(Method::DELETE, "/admin/v1/budgets/own", &headers, Value::Null).await;
    assert_eq!(removed.status.as_u16(), 403, "operators of one organisation change no rules");
}

/// Sets a free tier by an operator of the whole server.
async fn set_free_tier(world: &TestWorld, name: &str, more: Value) {
    let mut tier = json!({ "scope": "project", "window": "day", "measure": "requests", "limit": "2" });
    more.as_object().unwrap().iter().for_each(|(field, value)| tier[field] = value.clone());
    let set = world.by(Role::Billing, Method::PUT, &format!("/free-tiers/{name}"), tier).await;
    assert!(set.status.is_success(), "{set:?}");
}

#[tokio::test]
async fn free_tiers_are_listed_for_the_organisation_and_set_by_the_provider_only() {
    let world = TestWorld::new();
    let other = other_org(&world).await;
    set_free_tier(&world, "all", json!({})).await;
    set_free_tier(&world, "all-orgs", json!({ "scope": "org" })).await;
    set_free_tier(&world, "own", json!({ "org": "o" })).await;
    set_free_tier(&world, "own-project", json!({ "subject": "p" })).await;
    set_free_tier(&world, "theirs", json!({ "org": "other" })).await;
    set_free_tier(&world, "their-org", json!({ "scope": "org", "subject": "other" })).await;
    set_free_tier(&world, "their-project", json!({ "subject": "app" })).await;
    set_free_tier(&world, "their-key", json!({ "scope": "key", "subject": other.key })).await;
    let names = |listed: &TestAnswer| -> Vec<String> {
        let rows = listed.body.as_array().unwrap_or_else(|| panic!("{listed:?}"));
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = world.by(Role::Billing, Method::GET, "/free-tiers", Value::Null).await;
    assert_eq!(names(&all).len(), 8);
    for role in [Role::Owner, Role::Admin, Role::Billing] {
        let bearer = format!("Bearer {}", world.org_operator(role));
        let headers = [("authorization", bearer.as_str())];
        let call = |method: Method, path: &'static str, body: Value| world.call(method, path, &headers, body);
        let listed = call(Method::GET, "/admin/v1/free-tiers", Value::Null).await;
        assert_eq!(names(&listed), ["all", "all-orgs", "own", "own-project"], "{role:?}");
        // An existing free tier and a missing one, an own and a foreign one: the answer is the same.
        let tier = |org: &str| json!({ "scope": "project", "window": "day", "measure": "requests", "limit": "9", "org": org });
        for (method, path, body) in [
            (Method::PUT, "/admin/v1/free-tiers/own", tier("o")),
            (Method::PUT, "/admin/v1/free-tiers/theirs", tier("other")),
            (Method::PUT, "/admin/v1/free-tiers/new", tier("o")),
            (Method::DELETE, "/admin/v1/free-tiers/own", Value::Null),
            (Method::DELETE, "/admin/v1/free-tiers/theirs", Value::Null),
            (Method::DELETE, "/admin/v1/free-tiers/missing", Value::Null),
        ] {
            let refused = call(method, path, body).await;
            assert_eq!((refused.status.as_u16(), refused.code()), (403, "role"), "{path}: {refused:?}");
            let said = refused.body.to_string();
            for part in ["the provider of this server gives", "owner", "admin", "billing", "may list"] {
                assert!(said.contains(part), "{path}: {said}");
            }
        }
    }
    let after = world.by(Role::Billing, Method::GET, "/free-tiers", Value::Null).await;
    assert_eq!(after.body, all.body, "nothing was changed");
}

#[tokio::test]
async fn free_tiers_show_the_counters_of_the_organisation() {
    use headrace_admin::{BudgetCounterView, FreeTierView};
    use headrace_ledger::{BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow, FreeTier};

    use crate::routes::budget_scope::free_tier_within;

    let world = TestWorld::new();
    other_org(&world).await;
    let (directory, org) = (&world.parts.directory, OrgId::new("o").unwrap());
    for (scope, subjects, own) in
        [(BudgetScope::Org, ["o", "other"], ["o"]), (BudgetScope::Project, ["app", "p"], ["p"])]
    {
        let rule = BudgetRule {
            name: "daily".parse().unwrap(),
            scope,
            org: None,
            subject: None,
            tier: None,
            window: BudgetWindow::Day,
            zone: "UTC".into(),
            measure: BudgetMeasure::Requests,
            limit: 9,
            is_hard: true,
            thresholds: Vec::new(),
            origin: BudgetOrigin::Operator,
        };
        let counter = |subject: &str| BudgetCounterView {
            subject: subject.to_owned(),
            used: 1,
            reserved: 0,
            left: 8,
            resets: None,
            alerted: Vec::new(),
        };
        let counters = subjects.into_iter().map(counter).collect();
        let of = FreeTierView { tier: FreeTier { rule, models: None }, counters };
        let seen = free_tier_within(directory, &org, of).unwrap();
        let seen: Vec<_> = seen.counters.iter().map(|of| (of.subject.as_str(), of.left)).collect();
        assert_eq!(seen, own.map(|subject| (subject, 8)), "{scope:?}");
    }
}

#[tokio::test]
async fn the_audit_log_shows_the_rows_of_the_organisation() {
    let world = TestWorld::new();
    let other = other_org(&world).await;
    let by = |path: &str, body: Value| {
        let path = path.to_owned();
        let world = &world;
        async move { world.by(Role::Owner, Method::POST, &path, body).await }
    };
    let key = by("/keys", json!({ "project": "p", "name": "k" })).await.body["key"]["id"].clone();
    let user = by("/users", json!({ "org": "o", "name": "ann" })).await.body["id"].clone();
    let path = format!("/users/{}", user.as_str().unwrap());
    assert!(world.by(Role::Owner, Method::DELETE, &path, Value::Null).await.status.is_success());
    by("/projects/p/credit", json!({ "amount": "5", "kind": "paid", "reference": "r" })).await;
    by("/projects/app/credit", json!({ "amount": "5", "kind": "paid", "reference": "r" })).await;
    let bearer = format!("Bearer {}", world.org_operator(Role::Admin));
    let headers = [("authorization", bearer.as_str())];
    let page = async |query: &str| {
        let path = format!("/admin/v1/audit{query}");
        let answer = world.call(Method::GET, &path, &headers, Value::Null).await;
        assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
        answer.body
    };
    let whole = page("").await;
    let rows = |page: &Value| -> Vec<(String, String)> {
        let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
        let rows = page["data"].as_array().unwrap();
        rows.iter().map(|row| (text(row, "act"), text(row, "subject"))).collect()
    };
    let acts: Vec<_> = rows(&whole).into_iter().map(|(act, _)| act).collect();
    let expected = [
        "operator.create",
        "credit.grant",
        "user.remove",
        "user.create",
        "key.create",
        "project.create",
        "org.create",
    ];
    assert_eq!(acts, expected, "{whole}");
    let text = whole.to_string();
    for foreign in [&other.key, &other.user, &other.account, &other.operator, &other.scim] {
        assert!(!text.contains(foreign.as_str()), "{foreign} in {text}");
    }
    assert!(text.contains(key.as_str().unwrap()) && !text.contains("\"other\"") && !text.contains("\"app\""));
    // Page by page.
    let (mut read, mut cursor) = (Vec::new(), String::new());
    loop {
        let part = page(&format!("?limit=2{cursor}")).await;
        read.extend(rows(&part));
        let Some(next) = part["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(read, rows(&whole));
}
