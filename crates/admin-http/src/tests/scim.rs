//! SCIM as identity providers use it: Entra ID's and Okta's requests, errors, and what a deactivation ends.

use super::*;

/// Sends a request as an identity provider does: without `User-Agent`, with a credential of its own.
async fn send(world: &TestWorld, secret: &str, method: &str, path: &str, body: Value) -> TestAnswer {
    let bearer = format!("Bearer {secret}");
    let method: Method = method.parse().unwrap();
    world.call(method, &format!("/scim/v2{path}"), &[("authorization", &bearer)], body).await
}

async fn credential(world: &TestWorld, org: &str, issuer: Option<&str>) -> (String, String) {
    let new = json!({ "org": org, "issuer": issuer, "subject": "external_id" });
    let made = world.by(Role::Owner, Method::POST, "/scim", new).await;
    assert_eq!(made.status.as_u16(), 201, "{made:?}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&made.body["credential"]["id"]), text(&made.body["secret"]))
}

#[tokio::test]
async fn entra_provisions_changes_and_deprovisions_a_user() {
    let world = TestWorld::new();
    let (_, secret) = credential(&world, "o", Some("https://login")).await;
    let call = |method: &'static str, path: String, body: Value| {
        let (world, secret) = (&world, secret.as_str());
        async move { send(world, secret, method, &path, body).await }
    };
    let found = call("GET", "/Users?filter=userName+eq+%22ann%40x.com%22".to_owned(), Value::Null).await;
    assert_eq!((found.status.as_u16(), &found.body["totalResults"]), (200, &json!(0)));
    let new = json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User", "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"],
        "externalId": "0a21f0f2", "userName": "Ann@x.com", "active": true,
        "emails": [{ "primary": true, "type": "work", "value": "ann@x.com" }],
        "meta": { "resourceType": "User" }, "name": { "familyName": "Lee", "givenName": "Ann" },
        "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": { "department": "x" },
    });
    let made = call("POST", "/Users".to_owned(), new.clone()).await;
    assert_eq!(made.status.as_u16(), 201, "{made:?}");
    assert_eq!(made.headers["content-type"], "application/scim+json");
    let id = made.body["id"].as_str().unwrap().to_owned();
    assert_eq!(made.headers["location"].to_str().unwrap(), format!("http://{HOST}/scim/v2/Users/{id}"));
    assert_eq!(
        (&made.headers["etag"], &made.body["meta"]["version"]),
        (&"W/\"1\"".parse().unwrap(), &json!("W/\"1\""))
    );
    let twice = call("POST", "/Users".to_owned(), new).await;
    assert_eq!(
        (twice.status.as_u16(), &twice.body["scimType"], &twice.body["status"]),
        (409, &json!("uniqueness"), &json!("409"))
    );
    for filter in
        ["userName eq \"ANN@X.COM\"", "externalId eq \"0a21f0f2\"", "id eq \"ID\"", "displayName eq \"Ann\""]
    {
        let count = u64::from(!filter.starts_with("displayName"));
        let filter = filter
            .replace("ID\"", &format!("{id}\""))
            .replace(' ', "+")
            .replace('"', "%22")
            .replace('@', "%40");
        let found = call("GET", format!("/Users?filter={filter}"), Value::Null).await;
        assert_eq!(found.body["totalResults"], count, "{filter}: {found:?}");
    }
    // The user owns a key, and has a token: both end with it.
    let key = json!({ "project": "p", "name": "k", "owner": id });
    let key = world.by(Role::Admin, Method::POST, "/keys", key).await;
    let directory = Arc::clone(&world.parts.directory);
    let works = move || directory.authenticate(key.body["secret"].as_str().unwrap(), NOW).is_ok();
    let user = headrace_identity::AccountId::new(&id).unwrap();
    let login = world.parts.directory.user(&user).unwrap().profile.login.unwrap();
    assert_eq!((login.issuer.as_str(), login.subject.as_str()), ("https://login", "0a21f0f2"));
    assert!(works());
    let off = json!({ "schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": [
        { "op": "Replace", "path": "active", "value": "False" },
        { "op": "Add", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:manager", "value": "x" },
    ]});
    let patched = call("PATCH", format!("/Users/{id}"), off).await;
    assert_eq!((patched.status.as_u16(), &patched.body["active"]), (200, &json!(false)), "{patched:?}");
    assert!(!works());
    let on = json!({ "Operations": [{ "op": "Replace", "value": { "active": true } }] });
    assert_eq!(call("PATCH", format!("/Users/{id}"), on).await.status.as_u16(), 200);
    assert!(works());
    assert_eq!(call("DELETE", format!("/Users/{id}"), Value::Null).await.status.as_u16(), 204);
    assert!(!works());
    let gone = call("GET", format!("/Users/{id}"), Value::Null).await;
    assert_eq!(
        (gone.status.as_u16(), &gone.body["schemas"][0]),
        (404, &json!("urn:ietf:params:scim:api:messages:2.0:Error"))
    );
    let rows = world.parts.directory.audit_of("user.deactivate", Some(&id), 9).unwrap();
    assert!(rows[0].entry.actor.starts_with("SCIM (scim_"), "{rows:?}");
}

#[tokio::test]
async fn groups_keep_their_members_and_give_roles_that_operators_set() {
    let world = TestWorld::new();
    let (_, secret) = credential(&world, "o", None).await;
    let call = |method: &'static str, path: String, body: Value| {
        let (world, secret) = (&world, secret.as_str());
        async move { send(world, secret, method, &path, body).await }
    };
    let mut ids = Vec::new();
    for name in ["ann", "bob", "eve"] {
        let made = call("POST", "/Users".to_owned(), json!({ "userName": name })).await;
        ids.push(made.body["id"].as_str().unwrap().to_owned());
    }
    let member = |id: &str| json!({ "value": id });
    let new = json!({ "displayName": "Eng", "externalId": "g1", "members": [member(&ids[0])] });
    let group = call("POST", "/Groups".to_owned(), new).await;
    assert_eq!(group.status.as_u16(), 201, "{group:?}");
    let path = format!("/Groups/{}", group.body["id"].as_str().unwrap());
    let patch = |operations: Value| call("PATCH", path.clone(), json!({ "Operations": operations }));
    let members = |answer: TestAnswer| {
        let all = answer.body["members"].as_array().cloned().unwrap_or_default();
        let place = |one: &Value| ids.iter().position(|id| one["value"] == id.as_str()).unwrap();
        let mut all: Vec<_> = all.iter().map(place).collect();
        all.sort_unstable();
        all
    };
    let added = json!([{ "op": "Add", "path": "members", "value": [member(&ids[1]), member(&ids[2])] }]);
    assert_eq!(members(patch(added).await), [0, 1, 2]);
    let removed = json!([{ "op": "Remove", "path": "members", "value": [member(&ids[1])] }]);
    assert_eq!(members(patch(removed).await), [0, 2], "by value");
    let nothing = patch(json!([{ "op": "Remove", "path": "members", "value": [] }])).await;
    assert_eq!((nothing.status.as_u16(), &nothing.body["scimType"]), (400, &json!("noTarget")));
    let unknown = patch(json!([{ "op": "Add", "path": "members", "value": [member("usr_none")] }])).await;
    assert_eq!((unknown.status.as_u16(), &unknown.body["scimType"]), (400, &json!("invalidValue")));
    let list = call(
        "GET",
        "/Groups?excludedAttributes=members&filter=displayName+eq+%22eng%22".to_owned(),
        Value::Null,
    )
    .await;
    assert_eq!(
        (&list.body["totalResults"], &list.body["Resources"][0]["members"]),
        (&json!(1), &Value::Null)
    );
    let user = call("GET", format!("/Users/{}", ids[0]), Value::Null).await;
    assert_eq!(user.body["groups"][0]["display"], "Eng");

    let map = json!({ "role": "billing" });
    let mapped = world.by(Role::Admin, Method::PATCH, &path.replace("/Groups", "/groups"), map).await;
    assert_eq!(mapped.status.as_u16(), 200, "{mapped:?}");
    let shown = world.by(Role::Admin, Method::GET, &format!("/users/{}", ids[0]), Value::Null).await;
    assert_eq!((&shown.body["effective_role"], &shown.body["groups"]), (&json!("billing"), &json!(["Eng"])));
    let renamed = json!({ "displayName": "Engineers", "members": [member(&ids[2])] });
    let put = call("PUT", path.clone(), renamed).await;
    assert_eq!((put.status.as_u16(), &put.body["displayName"]), (200, &json!("Engineers")));
    let groups = world.by(Role::Admin, Method::GET, "/groups", Value::Null).await;
    assert_eq!(
        groups.body["data"][0]["role"], "billing",
        "the identity provider does not decide about roles"
    );
    let page = call("GET", "/Users?startIndex=2&count=1".to_owned(), Value::Null).await;
    let page = &page.body;
    assert_eq!(
        (&page["totalResults"], &page["startIndex"], &page["itemsPerPage"]),
        (&json!(3), &json!(2), &json!(1))
    );
    assert_eq!(call("DELETE", path, Value::Null).await.status.as_u16(), 204);
}

#[tokio::test]
async fn a_credential_reaches_only_its_organisation_and_ends_when_it_is_revoked() {
    let world = TestWorld::new();
    for (path, body) in
        [("/orgs", json!({ "id": "other" })), ("/users", json!({ "org": "other", "name": "eve" }))]
    {
        let made = world.by(Role::Owner, Method::POST, path, body).await;
        assert_eq!(made.status.as_u16(), 201, "{made:?}");
    }
    let eve = world.parts.directory.users(None)[0].id.to_string();
    let (id, secret) = credential(&world, "o", None).await;
    for (method, body) in [
        ("GET", Value::Null),
        ("PUT", json!({ "userName": "x" })),
        ("PATCH", json!({ "Operations": [] })),
        ("DELETE", Value::Null),
    ] {
        let refused = send(&world, &secret, method, &format!("/Users/{eve}"), body).await;
        assert_eq!(refused.status.as_u16(), 404, "{method}: {refused:?}");
    }
    let member = json!({ "displayName": "g", "members": [{ "value": eve }] });
    assert_eq!(send(&world, &secret, "POST", "/Groups", member).await.status.as_u16(), 400);
    assert_eq!(send(&world, &secret, "GET", "/Users", Value::Null).await.body["totalResults"], 0);
    // Credentials of other kinds open nothing here, and this one opens nothing else.
    for other in [world.key(Role::Owner), "sk-test", "a.b.c", ""] {
        let refused = send(&world, other, "GET", "/Users", Value::Null).await;
        assert_eq!(refused.status.as_u16(), 401, "{other}");
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
    }
    let bearer = format!("Bearer {secret}");
    let elsewhere =
        world.call(Method::GET, "/admin/v1/status", &[("authorization", &bearer)], Value::Null).await;
    assert_eq!(elsewhere.status.as_u16(), 401);
    let gone = world.by(Role::Owner, Method::DELETE, &format!("/scim/{id}"), Value::Null).await;
    assert_eq!(gone.status.as_u16(), 204, "{gone:?}");
    assert_eq!(send(&world, &secret, "GET", "/Users", Value::Null).await.status.as_u16(), 401);
}

#[tokio::test]
async fn versions_methods_and_descriptions() {
    let world = TestWorld::new();
    let (_, secret) = credential(&world, "o", None).await;
    let made = send(&world, &secret, "POST", "/Users", json!({ "userName": "ann" })).await;
    let path = format!("/scim/v2/Users/{}", made.body["id"].as_str().unwrap());
    let bearer = format!("Bearer {secret}");
    let versioned = |method: Method, name: &'static str, version: &'static str, body: Value| {
        let (world, headers, path) =
            (&world, [("authorization", bearer.as_str()), (name, version)], path.as_str());
        async move { world.call(method, path, &headers, body).await.status.as_u16() }
    };
    let put = json!({ "userName": "ann", "displayName": "Ann" });
    assert_eq!(versioned(Method::PUT, "if-match", "W/\"7\"", put.clone()).await, 412);
    assert_eq!(versioned(Method::PUT, "if-match", "W/\"1\"", put.clone()).await, 200);
    assert_eq!(versioned(Method::GET, "if-none-match", "W/\"2\"", Value::Null).await, 304);
    for (method, path, status) in [
        ("GET", "/ServiceProviderConfig", 200),
        ("GET", "/ResourceTypes", 200),
        ("GET", "/ResourceTypes/Group", 200),
        ("GET", "/Schemas/urn:ietf:params:scim:schemas:core:2.0:User", 200),
        ("GET", "/Schemas/none", 404),
        ("POST", "/Schemas", 405),
        ("PATCH", "/Users", 405),
        ("GET", "/Users/key_1", 404),
        ("GET", "/Nothing", 404),
        ("GET", "/Users?filter=password+eq+%22x%22", 400),
        ("GET", "/Users?count=x", 400),
        ("POST", "/Users", 400),
    ] {
        let answer =
            send(&world, &secret, method, path, if method == "GET" { Value::Null } else { json!({}) }).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_search_by_post_pages_over_both_kinds_and_selects_attributes() {
    let world = TestWorld::new();
    let (_, secret) = credential(&world, "o", None).await;
    for name in ["ann", "bob", "cy"] {
        let made = send(&world, &secret, "POST", "/Users", json!({ "userName": name })).await;
        assert_eq!(made.status.as_u16(), 201, "{made:?}");
    }
    let made = send(&world, &secret, "POST", "/Groups", json!({ "displayName": "team" })).await;
    assert_eq!(made.status.as_u16(), 201, "{made:?}");
    for (path, body, total, names) in [
        ("/.search", json!({}), 4, vec!["ann", "bob", "cy", "team"]),
        ("/.search", json!({ "startIndex": 3, "count": 2 }), 4, vec!["cy", "team"]),
        ("/.search", json!({ "startIndex": 4 }), 4, vec!["team"]),
        ("/.search", json!({ "startIndex": 5 }), 4, vec![]),
        ("/.search", json!({ "count": 0 }), 4, vec![]),
        ("/.search", json!({ "filter": "displayName eq \"team\"" }), 1, vec!["team"]),
        ("/Users/.search", json!({ "filter": "userName eq \"BOB\"" }), 1, vec!["bob"]),
        ("/Groups/.search", json!({ "filter": null }), 1, vec!["team"]),
    ] {
        let found = send(&world, &secret, "POST", path, body.clone()).await;
        let name = |row: &Value| {
            let name = row["userName"].as_str().or_else(|| row["displayName"].as_str());
            name.unwrap().to_owned()
        };
        let mut rows: Vec<String> = found.body["Resources"].as_array().unwrap().iter().map(name).collect();
        // Users are in the order of their ids, which are random.
        if body.get("startIndex").is_none() {
            rows.sort();
            assert_eq!(rows, names, "{path} {body}");
        }
        assert_eq!((rows.len(), &found.body["totalResults"]), (names.len(), &json!(total)), "{path} {body}");
        assert_eq!(
            rows.last().map(String::as_str) == Some("team"),
            names.last() == Some(&"team"),
            "{path} {body}"
        );
    }
    let selected = json!({ "attributes": ["userName"], "filter": "userName eq \"ann\"" });
    let found = send(&world, &secret, "POST", "/Users/.search", selected).await;
    let fields = found.body["Resources"][0].as_object().unwrap();
    assert!(fields.contains_key("userName") && !fields.contains_key("active"), "{fields:?}");
    for bad in [json!({ "count": "x" }), json!({ "attributes": "userName" }), json!({ "filter": 1 })] {
        let refused = send(&world, &secret, "POST", "/.search", bad.clone()).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.body["scimType"]),
            (400, &json!("invalidValue")),
            "{bad}"
        );
    }
    assert_eq!(send(&world, &secret, "GET", "/.search", Value::Null).await.status.as_u16(), 405);
}
