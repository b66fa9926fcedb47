//! Prompt tools: requests reach the program within their limits, and its answers come back.

use super::*;

#[tokio::test]
async fn prompts_texts_and_files_are_asked_for_by_the_models_name() {
    let world = TestWorld::new();
    let body = json!({ "messages": [{ "role": "user", "content": "x" }] });
    let ask = json!({ "body": body, "dialect": "messages", "after": body });
    let seen = world.by(Role::Developer, Method::POST, "/models/a%2Fm/render", ask).await;
    assert_eq!(seen.status.as_u16(), 200, "{seen:?}");
    assert_eq!(seen.body, json!({ "body": body, "dialect": "Messages", "after": body }));
    let ask = json!({ "ids": [1, 2] });
    let seen = world.by(Role::Developer, Method::POST, "/models/a%2Fm/tokenize", ask).await;
    assert_eq!(seen.body, json!({ "text": null, "ids": [1, 2] }));
    let seen = world.by(Role::Developer, Method::GET, "/models/a%2Fm/doctor", Value::Null).await;
    assert_eq!(seen.body, json!({ "findings": [] }));
    let seen = world.by(Role::Developer, Method::GET, "/models/a%2Fm/inspect", Value::Null).await;
    assert_eq!(seen.body, json!({ "path": "/m", "layers": 2 }));
    for (method, path, ask, status, code) in [
        (Method::GET, "/models/b/inspect", Value::Null, 404, "unknown_model"),
        (Method::GET, "/models/b/doctor", Value::Null, 404, "unknown_model"),
        (Method::POST, "/models/b/tokenize", json!({ "text": "x" }), 404, "unknown_model"),
        (Method::POST, "/models/a%2Fm/tokenize", json!({}), 400, "invalid"),
        (Method::POST, "/models/a%2Fm/tokenize", json!({ "text": "x", "ids": [1] }), 400, "invalid"),
        (Method::POST, "/models/a%2Fm/render", json!({ "body": {}, "dialect": "odd" }), 400, "invalid"),
        (Method::POST, "/models/a%2Fm/render", json!({ "body": {}, "odd": 1 }), 400, "invalid"),
        (
            Method::POST,
            "/models/a%2Fm/render",
            json!({ "body": { "x": "y".repeat(1 << 20) } }),
            413,
            "too_large",
        ),
        (Method::POST, "/models/a%2Fm/tokenize", json!({ "text": "y".repeat(64 << 10) }), 413, "too_large"),
    ] {
        let refused = world.by(Role::Developer, method, path, ask).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (status, code), "{path}");
    }
    let long = json!({ "body": { "messages": "y".repeat(512 << 10) } });
    let seen = world.by(Role::Developer, Method::POST, "/models/a%2Fm/render", long).await;
    assert_eq!(seen.status.as_u16(), 200, "a prompt may be longer than an act");
}

#[tokio::test]
async fn stored_checkpoints_are_listed_by_page_and_inspected_by_name() {
    let world = TestWorld::new();
    let ask = |path: &'static str| world.by(Role::Admin, Method::GET, path, Value::Null);
    let first = ask("/checkpoints?limit=1").await;
    assert_eq!((first.status.as_u16(), &first.body["data"][0]["name"]), (200, &json!("a/one")), "{first:?}");
    let next = format!("/checkpoints?cursor={}", first.body["next"].as_str().unwrap());
    let rest = world.by(Role::Admin, Method::GET, &next, Value::Null).await;
    assert_eq!(rest.body["data"][0]["path"], "/two:1b", "{rest:?}");
    assert_eq!((&rest.body["next"], ask("/checkpoints?cursor=x").await.code()), (&Value::Null, "invalid"));
    let one = ask("/checkpoints/a%2Fone/inspect").await;
    assert_eq!((one.status.as_u16(), one.body), (200, json!({ "path": "/a/one" })));
    let none = ask("/checkpoints/none/inspect").await;
    assert_eq!((none.status.as_u16(), none.code()), (404, "unknown_checkpoint"));
}
