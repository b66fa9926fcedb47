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
    let get = |path: &str| ("GET", path.to_owned(), Value::Null);
    let rows = [
        ("PATCH", "/projects/app".to_owned(), json!({ "limits": {} })),
        ("PUT", "/projects/app/budget".to_owned(), json!({ "limit": "1" })),
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
