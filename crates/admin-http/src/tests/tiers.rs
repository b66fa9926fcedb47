//! Tiers, owners and addresses over the admin API.

use super::*;

async fn ok(world: &TestWorld, role: Role, method: Method, path: &str, body: Value) -> Value {
    let answer = world.by(role, method.clone(), path, body).await;
    assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
    answer.body
}

#[tokio::test]
async fn tiers_are_made_assigned_and_removed_when_nothing_has_them() {
    let world = TestWorld::new();
    let (get, post, put, delete) = (Method::GET, Method::POST, Method::PUT, Method::DELETE);
    let rules = json!({ "models": ["m"], "max_context_tokens": 100, "reasoning": false, "limits": { "concurrency": 2 } });
    let made =
        ok(&world, Role::Admin, post.clone(), "/tiers", json!({ "name": "basic", "rules": rules })).await;
    assert_eq!((&made["models"], &made["max_context_tokens"]), (&json!(["m"]), &json!(100)));
    assert_eq!((&made["max_output_tokens"], &made["reasoning"]), (&Value::Null, &json!(false)));
    let twice = world.by(Role::Admin, post.clone(), "/tiers", json!({ "name": "basic", "rules": {} })).await;
    assert_eq!((twice.status.as_u16(), twice.code()), (409, "exists"));
    let zero = json!({ "name": "zero", "rules": { "max_output_tokens": 0 } });
    let zero = world.by(Role::Admin, post.clone(), "/tiers", zero).await;
    assert_eq!(zero.code(), "invalid", "{zero:?}");
    ok(&world, Role::Admin, post.clone(), "/orgs", json!({ "id": "acme" })).await;
    ok(&world, Role::Admin, post.clone(), "/projects", json!({ "id": "web", "org": "acme" })).await;
    let key = json!({ "project": "web", "name": "ci", "owner": "team", "allowed_ips": ["10.0.0.0/8"], "tier": "basic" });
    let key = ok(&world, Role::Developer, post.clone(), "/keys", key).await["key"].clone();
    let shown = (&key["owner"], &key["allowed_ips"], &key["tier"], &key["last_used"]);
    assert_eq!(shown, (&json!("team"), &json!(["10.0.0.0/8"]), &json!("basic"), &Value::Null));
    let path = format!("/keys/{}", key["id"].as_str().unwrap());
    let change = json!({ "owner": null, "allowed_ips": ["2001:db8::1"] });
    let changed = ok(&world, Role::Developer, Method::PATCH, &path, change).await;
    assert_eq!((&changed["owner"], &changed["allowed_ips"]), (&Value::Null, &json!(["2001:db8::1"])));
    let wrong =
        world.by(Role::Developer, Method::PATCH, &path, json!({ "allowed_ips": ["10.0.0.1/8"] })).await;
    assert_eq!(wrong.code(), "invalid");
    assert!(wrong.body.to_string().contains("write 10.0.0.0/8"), "{wrong:?}");

    let tier = |name: Value| json!({ "tier": name });
    for path in ["/orgs/acme/tier", "/projects/web/tier"] {
        let assigned = ok(&world, Role::Admin, put.clone(), path, tier(json!("basic"))).await;
        assert_eq!(assigned, tier(json!("basic")));
    }
    let unknown = world.by(Role::Admin, put.clone(), "/orgs/acme/tier", tier(json!("none"))).await;
    assert_eq!((unknown.status.as_u16(), unknown.code()), (404, "unknown_tier"));
    let unknown = world.by(Role::Admin, put.clone(), "/orgs/none/tier", tier(json!("basic"))).await;
    assert_eq!(unknown.code(), "unknown_org");
    for (list, id) in [("/orgs", "acme"), ("/projects", "web")] {
        let rows = ok(&world, Role::Viewer, get.clone(), list, Value::Null).await;
        let row = rows["data"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap().clone();
        assert_eq!(row["tier"], "basic");
    }
    let in_use = world.by(Role::Admin, delete.clone(), "/tiers/basic", Value::Null).await;
    assert_eq!((in_use.status.as_u16(), in_use.code()), (409, "tier_in_use"));
    let wider = ok(&world, Role::Admin, put.clone(), "/tiers/basic", json!({})).await;
    assert_eq!(
        (&wider["models"], &wider["reasoning"]),
        (&Value::Null, &json!(true)),
        "all rules are replaced"
    );
    for path in ["/orgs/acme/tier".to_owned(), "/projects/web/tier".to_owned(), format!("{path}/tier")] {
        assert_eq!(ok(&world, Role::Admin, put.clone(), &path, tier(Value::Null)).await, tier(Value::Null));
    }
    ok(&world, Role::Admin, delete.clone(), "/tiers/basic", Value::Null).await;
    let gone = world.by(Role::Admin, delete, "/tiers/basic", Value::Null).await;
    assert_eq!(gone.code(), "unknown_tier");
    let none = ok(&world, Role::Viewer, get, "/tiers", Value::Null).await;
    assert_eq!(none["data"], json!([]));
}
