//! Playground calls: made once under a key, as a project, in an operator's name.

use futures_util::StreamExt;

use super::*;

fn call(world: &TestWorld, role: Role, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::post(format!("/admin/v1/playground/{path}"))
        .header("host", HOST)
        .header("authorization", format!("Bearer {}", world.key(role)))
        .header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(r#"{"model":"m"}"#)).unwrap()
}

const PROJECT: (&str, &str) = ("x-headrace-project", "p");

#[tokio::test(start_paused = true)]
async fn enter_ten_times_and_a_reload_give_one_execution() {
    let world = TestWorld::new();
    let headers = [PROJECT, ("idempotency-key", "k-1")];
    let send = || world.open(call(&world, Role::Developer, "chat/completions", &headers));
    // Ten requests, and the first page disconnects before its answer is complete.
    let first = send().await;
    assert_eq!(first.headers()["x-request-id"], "req_1");
    let mut pieces = first.into_body().into_data_stream();
    let begun = pieces.next().await.unwrap().unwrap();
    assert_eq!(begun, "chat/completions 1 as p by developer");
    drop(pieces);
    for _ in 0..9 {
        let again = world.send(call(&world, Role::Developer, "chat/completions", &headers)).await;
        assert_eq!(
            (again.status.as_u16(), &again.body),
            (200, &json!("chat/completions 1 as p by developer end"))
        );
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert_eq!(again.headers["x-request-id"], "req_1");
    }
    assert_eq!(world.played.calls.load(Ordering::SeqCst), 1);
    let AdminReply::Audit(rows) = world.execute(AdminCommand::ShowAudit { last: 1, before: None }) else {
        panic!()
    };
    assert_eq!((rows[0].act.as_str(), rows[0].subject.as_str()), ("playground.call", "k-1"));
    assert_eq!(rows[0].actor, world.operator(Role::Developer).actor());
    let other = world.send(call(&world, Role::Owner, "chat/completions", &headers)).await;
    assert_eq!(other.body, "chat/completions 2 as p by owner end", "a key is its operator's own");
}

#[tokio::test(start_paused = true)]
async fn what_a_call_lacks_is_named_and_nothing_runs() {
    let world = TestWorld::new();
    let long = "k".repeat(256);
    for (headers, status, field) in [
        (&[][..], 400, "x-headrace-project"),
        (&[PROJECT], 400, "idempotency-key"),
        (&[PROJECT, ("idempotency-key", "")], 400, "idempotency-key"),
        (&[PROJECT, ("idempotency-key", "a b")], 400, "idempotency-key"),
        (&[PROJECT, ("idempotency-key", &long)], 400, "idempotency-key"),
        (&[("x-headrace-project", "none"), ("idempotency-key", "k")], 404, "x-headrace-project"),
    ] {
        let answer = world.send(call(&world, Role::Developer, "messages", headers)).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.body["error"]["field"]),
            (status, &json!(field)),
            "{headers:?}"
        );
    }
    assert_eq!(world.played.calls.load(Ordering::SeqCst), 0);
    let headers = [PROJECT, ("idempotency-key", "k")];
    world.send(call(&world, Role::Developer, "messages", &headers)).await;
    let reused = world.send(call(&world, Role::Developer, "responses", &headers)).await;
    assert_eq!((reused.status.as_u16(), reused.code()), (422, "idempotency_key_reused"));
    for _ in 0..2 {
        let free = world.send(call(&world, Role::Developer, "tokenize", &[PROJECT])).await;
        assert_eq!(free.status.as_u16(), 200, "{free:?}");
    }
    assert_eq!(world.played.calls.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_stopped_by_its_key() {
    let world = TestWorld::new();
    let headers = [PROJECT, ("idempotency-key", "k")];
    let answer = world.open(call(&world, Role::Developer, "chat/completions", &headers)).await;
    let mut pieces = answer.into_body().into_data_stream();
    pieces.next().await.unwrap().unwrap();
    let others = world.send(call(&world, Role::Owner, "stop", &[("idempotency-key", "k")])).await;
    assert_eq!(others.status.as_u16(), 404, "nobody else's call is stopped");
    let stopped = world.send(call(&world, Role::Developer, "stop", &[("idempotency-key", "k")])).await;
    assert_eq!(stopped.status.as_u16(), 204, "{stopped:?}");
    let last = pieces.next().await.unwrap().unwrap();
    let last = std::str::from_utf8(&last).unwrap();
    assert!(
        last.starts_with("event: error\ndata: {\"error\":{\"code\":\"stopped\""),
        "it does not look whole: {last}"
    );
    assert!(pieces.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_is_gone_is_not_made_twice() {
    let world = TestWorld::new();
    let headers = [PROJECT, ("idempotency-key", "k")];
    let first = world.send(call(&world, Role::Developer, "chat/completions", &headers)).await;
    assert_eq!(first.status.as_u16(), 200, "{first:?}");
    world.clock.advance(crate::plays::KEPT);
    let gone = world.send(call(&world, Role::Developer, "chat/completions", &headers)).await;
    assert_eq!((gone.status.as_u16(), gone.code()), (410, "begun_before"), "{gone:?}");
    assert_eq!(world.played.calls.load(Ordering::SeqCst), 1);
    // Restarted, over the same audit log.
    let again = world.again();
    let gone = again.send(call(&again, Role::Developer, "chat/completions", &headers)).await;
    assert_eq!((gone.status.as_u16(), gone.code()), (410, "begun_before"), "{gone:?}");
    assert_eq!(world.played.calls.load(Ordering::SeqCst), 1);
    let others = again.send(call(&again, Role::Owner, "chat/completions", &headers)).await;
    assert_eq!(others.status.as_u16(), 200, "a key is one operator's: {others:?}");
}
