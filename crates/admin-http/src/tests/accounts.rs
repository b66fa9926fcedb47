//! Users and service accounts over HTTP.

use super::*;

async fn ok(world: &TestWorld, method: Method, path: &str, body: Value) -> Value {
    let answer = world.by(Role::Admin, method.clone(), path, body).await;
    assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
    answer.body
}

#[tokio::test]
async fn users_and_service_accounts_are_created_changed_deactivated_and_removed() {
    let world = TestWorld::new();
    let login = json!({ "issuer": "https://login", "subject": "1" });
    let new =
        json!({ "org": "o", "name": "ann", "email": "ann@example.com", "login": login, "role": "viewer" });
    let user = ok(&world, Method::POST, "/users", new.clone()).await;
    assert_eq!((&user["email"], &user["login"], &user["active"]), (&new["email"], &login, &json!(true)));
    let again = world.by(Role::Admin, Method::POST, "/users", new).await;
    assert_eq!((again.status.as_u16(), again.code()), (409, "exists"));
    let path = format!("/users/{}", user["id"].as_str().unwrap());
    let change = json!({ "email": null, "display_name": "Ann", "role": null, "login": null });
    let changed = ok(&world, Method::PATCH, &path, change).await;
    for (field, expected) in [
        ("email", Value::Null),
        ("display_name", json!("Ann")),
        ("role", Value::Null),
        ("login", Value::Null),
        ("name", json!("ann")),
    ] {
        assert_eq!(changed[field], expected, "{field}");
    }
    let key = json!({ "project": "p", "name": "k", "owner": user["id"] });
    let key = ok(&world, Method::POST, "/keys", key).await;
    let account =
        ok(&world, Method::POST, "/service-accounts", json!({ "project": "p", "name": "ci" })).await;
    let account_path = format!("/service-accounts/{}", account["id"].as_str().unwrap());
    let works = || world.parts.directory.authenticate(key["secret"].as_str().unwrap(), NOW).is_ok();
    assert!(works());
    for path in [&path, &account_path] {
        for (act, active) in [("deactivate", false), ("deactivate", false), ("activate", true)] {
            let shown = ok(&world, Method::POST, &format!("{path}/{act}"), Value::Null).await;
            assert_eq!(shown["active"], active);
            assert_eq!(ok(&world, Method::GET, path, Value::Null).await, shown);
        }
        assert_eq!(works(), path.starts_with("/users"), "the key works until its owner is removed");
        ok(&world, Method::DELETE, path, Value::Null).await;
        let gone = world.by(Role::Admin, Method::GET, path, Value::Null).await;
        assert_eq!((gone.status.as_u16(), gone.code()), (404, "unknown_account"));
    }
    assert!(!works(), "the key of a removed user");
    let audit = ok(&world, Method::GET, "/audit", Value::Null).await;
    let acts: Vec<_> =
        audit["data"].as_array().unwrap().iter().map(|row| row["act"].as_str().unwrap()).collect();
    for act in [
        "user.create",
        "user.change",
        "user.deactivate",
        "user.activate",
        "user.remove",
        "service_account.create",
        "service_account.remove",
    ] {
        assert!(acts.contains(&act), "{act}: {acts:?}");
    }
}

#[tokio::test]
async fn the_session_of_an_operator_ends_with_its_user() {
    let world = TestWorld::new();
    let user =
        ok(&world, Method::POST, "/users", json!({ "org": "o", "name": "ann", "role": "viewer" })).await;
    let id = user["id"].as_str().unwrap();
    let new = json!({ "name": "ann", "role": "owner", "user": id });
    let made = world.by(Role::Owner, Method::POST, "/operators", new).await;
    assert_eq!(made.body["operator"]["role"], "viewer", "{made:?}");
    let key = made.body["key"].as_str().unwrap();
    let (cookie, _) = world.sign_in_by(key).await;
    let status = |headers: Vec<(&'static str, String)>| {
        let world = &world;
        async move {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            world.call(Method::GET, "/admin/v1/session", &headers, Value::Null).await.status.as_u16()
        }
    };
    let by_session = || status(vec![("cookie", cookie.clone())]);
    let by_key = || status(vec![("authorization", format!("Bearer {key}"))]);
    assert_eq!((by_session().await, by_key().await), (200, 200));
    ok(&world, Method::POST, &format!("/users/{id}/deactivate"), Value::Null).await;
    assert_eq!((by_session().await, by_key().await), (401, 401));
}
