//! The event stream: its events, and its end with the session.

use futures_util::StreamExt;

use super::*;

async fn watch(world: &TestWorld, cookie: &str) -> axum::response::Response {
    let request = Request::get("/admin/v1/events").header("host", HOST).header("cookie", cookie);
    world.open(request.body(Body::empty()).unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn the_house_calls_and_changes_are_told_until_the_session_is_over() {
    let world = TestWorld::new();
    let (cookie, _) = world.sign_in(Role::Viewer).await;
    let answer = watch(&world, &cookie).await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut events = answer.into_body().into_data_stream();
    assert_eq!(events.next().await.unwrap().unwrap(), "event: now\ndata: {\"in_flight\":0}\n\n");
    world.ended.send(json!({ "id": "req_1" })).unwrap();
    assert_eq!(events.next().await.unwrap().unwrap(), "event: call\ndata: {\"id\":\"req_1\"}\n\n");
    let made = world.by(Role::Admin, Method::POST, "/orgs", json!({ "id": "new" })).await;
    assert_eq!(made.status, StatusCode::CREATED);
    assert_eq!(events.next().await.unwrap().unwrap(), "event: changed\ndata: {\"what\":\"orgs\"}\n\n");
    assert!(events.next().await.unwrap().unwrap().starts_with(b"event: now"), "each second");
    let id = world.operator(Role::Viewer).id.clone();
    world.execute(AdminCommand::RevokeOperator { id });
    assert!(events.next().await.is_none(), "whoever is revoked sees no more");
}

#[tokio::test(start_paused = true)]
async fn as_many_look_on_as_may_and_a_place_is_given_back() {
    let world = TestWorld::new();
    let (cookie, _) = world.sign_in(Role::Viewer).await;
    let mut open = Vec::new();
    let refused = loop {
        let answer = watch(&world, &cookie).await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
        open.push(answer);
        assert!(open.len() < 1_000, "it is bounded");
    };
    assert_eq!(refused.status().as_u16(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    drop(open.pop());
    assert_eq!(watch(&world, &cookie).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn an_operator_who_looks_on_everywhere_leaves_places_and_answers_to_others() {
    let world = TestWorld::new();
    let (viewer, _) = world.sign_in(Role::Viewer).await;
    let mut open = Vec::new();
    loop {
        let answer = watch(&world, &viewer).await;
        if answer.status() != StatusCode::OK {
            break;
        }
        open.push(answer);
    }
    let (other, _) = world.sign_in(Role::Owner).await;
    assert_eq!(watch(&world, &other).await.status(), StatusCode::OK, "another operator looks on");
    let asked = world.by(Role::Viewer, Method::GET, "/status", Value::Null).await;
    assert_eq!(asked.status, StatusCode::OK, "and the first one is answered");
}

#[tokio::test]
async fn answers_that_are_not_read_are_bounded_by_operator() {
    let world = TestWorld::new();
    let (viewer, _) = world.sign_in(Role::Viewer).await;
    let ask = || async {
        let request = Request::get("/admin/v1/status").header("host", HOST).header("cookie", &viewer);
        world.open(request.body(Body::empty()).unwrap()).await
    };
    let mut unread = Vec::new();
    let refused = loop {
        let answer = ask().await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
        unread.push(answer);
        assert!(unread.len() < CONNECTIONS, "it is bounded");
    };
    assert_eq!(refused.status().as_u16(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(world.by(Role::Owner, Method::GET, "/status", Value::Null).await.status, StatusCode::OK);
    drop(unread);
    assert_eq!(ask().await.status(), StatusCode::OK);
}

#[tokio::test]
async fn calls_are_asked_for_by_name() {
    let world = TestWorld::new();
    let get = |path: &'static str| world.by(Role::Owner, Method::GET, path, Value::Null);
    let found = get("/requests?org=acme&slower_than_ms=50&limit=7").await;
    assert_eq!(found.body["data"], json!([["org", "acme"], ["slower_than_ms", "50"]]));
    let found = get("/requests?moderation=dry_run&content_rule=tickets").await;
    assert_eq!(found.body["data"], json!([["moderation", "dry_run"], ["content_rule", "tickets"]]));
    let unknown = get("/requests?colour=blue").await;
    assert_eq!((unknown.status.as_u16(), unknown.code()), (400, "invalid"));
    for (path, what) in [
        ("", "Trace"),
        ("/explain", "Explain"),
        ("/beside", "Beside"),
        ("/cost", "Cost"),
        ("/receipt", "Receipt"),
    ] {
        let path = format!("/requests/req_1{path}");
        let one = world.by(Role::Viewer, Method::GET, &path, Value::Null).await;
        assert_eq!(one.body["what"], what, "{path}");
    }
    assert_eq!(get("/requests/req_9").await.status.as_u16(), 404);
    assert_eq!(get("/requests/compare?a=req_1&b=req_1").await.status.as_u16(), 200);
    assert_eq!(get("/requests/compare?a=req_1&b=req_9").await.status.as_u16(), 404);
    assert_eq!(get("/requests/compare?a=req_1").await.status.as_u16(), 400);
    assert_eq!(get("/usage?by=org&interval=day").await.body, json!([["by", "org"], ["interval", "day"]]));
    assert_eq!(get("/statement?project=p&month=2026-11").await.body["month"], "2026-11");
    assert_eq!(get("/statement?project=none&month=2026-11").await.status.as_u16(), 404);
    assert_eq!(get("/cache?by=org").await.body, json!([["by", "org"]]));
    assert_eq!(get("/now").await.body["in_flight"], 0);
}
