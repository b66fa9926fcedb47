//! Responses: stored before the client gets them, continued by later calls, and run in the background, with every
//! failure in between.

use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    CallService, ObjectMethod, ObjectOperation, RequestAdmission, RequestTarget, SessionId,
};
use headrace_domain::{CallOutcome, Clock, Endpoint, NanoDollars};
use headrace_gateway::GatewayAdmission;
use headrace_identity::{ExposeSecret, NewKey};
use headrace_objects::ObjectLimits;
use serde_json::{Value, json};

use crate::world::{MODEL, Script, Setup, World, header, read};

fn body(more: &Value) -> Value {
    let mut body = json!({"model": MODEL, "max_output_tokens": 10, "input": "say ha"});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The status and body of the answer to a look-up.
async fn look(world: &World, method: ObjectMethod, path: &str) -> (u16, Value) {
    let operation = ObjectOperation { method, path: path.to_owned(), query: Vec::new() };
    let answer = world.request(RequestTarget::Object(operation), "").await;
    let status = answer.status;
    (status, serde_json::from_str(&read(answer).await).unwrap())
}

async fn ask(world: &World, more: &Value) -> (u16, Value) {
    let answer = world.call(Endpoint::Responses, body(more)).await;
    let status = answer.status;
    (status, serde_json::from_str(&read(answer).await).unwrap())
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_found_as_it_was_told_and_gone_on_from() {
    let world = World::new(Setup::default());
    let (status, told) = ask(&world, &json!({})).await;
    assert_eq!((status, &told["status"]), (200, &json!("completed")));
    assert_eq!(
        look(&world, ObjectMethod::Get, &format!("responses/{}", id(&told))).await,
        (200, told.clone())
    );
    let (_, further) = ask(&world, &json!({"input": "more", "previous_response_id": id(&told)})).await;
    let whole = json!({"store": false, "input": [
        {"role": "user", "content": "say ha"}, {"role": "assistant", "content": told["output"][0]["content"][0]["text"]},
        {"role": "user", "content": "more"},
    ]});
    let (_, sent) = ask(&world, &whole).await;
    assert_eq!(further["usage"], sent["usage"]);
    let jobs = world.engine.jobs.lock().unwrap().clone();
    assert_eq!(jobs[1].prompt, jobs[2].prompt);
    let (status, _) = look(&world, ObjectMethod::Get, &format!("responses/{}", id(&sent))).await;
    assert_eq!(status, 404, "it was not to be stored");
    let before = world.balance_when_idle().await;
    let (status, refused) = ask(&world, &json!({"previous_response_id": "resp_none"})).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("previous_response_not_found")));
    assert_eq!(world.balance_when_idle().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_stored_is_not_told_as_if_it_were() {
    let objects = ObjectLimits { max_object_bytes: 300, ..ObjectLimits::default() };
    let world = World::new(Setup { objects, ..Setup::default() });
    let before = world.balance_when_idle().await;
    let (status, refused) = ask(&world, &json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (413, &json!("objects_full")));
    assert_eq!(refused["error"]["limit"]["limit"], 300);
    assert_eq!(world.balance_when_idle().await, before, "an answer that is not given is not charged");
    // The first event of a stream would contain its id, so nothing of it goes out.
    let answer = world.call(Endpoint::Responses, body(&json!({"stream": true}))).await;
    assert_eq!(answer.status, 413);
    assert_eq!(world.balance_when_idle().await, before);
    let (status, told) = ask(&world, &json!({"store": false})).await;
    assert_eq!((status, &told["status"]), (200, &json!("completed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_room_to_store_it_a_response_is_refused_before_it_is_computed() {
    let objects = ObjectLimits { max_total_bytes: 0, ..ObjectLimits::default() };
    let world = World::new(Setup { objects, ..Setup::default() });
    for more in [json!({}), json!({"stream": true}), json!({"background": true})] {
        let answer = world.call(Endpoint::Responses, body(&more)).await;
        assert_eq!(answer.status, 507, "{more}");
        let told: Value = serde_json::from_str(&read(answer).await).unwrap();
        assert_eq!(told["error"]["code"], "disk_full", "{told}");
    }
    assert!(world.engine.jobs.lock().unwrap().is_empty());
    let (status, told) = ask(&world, &json!({"store": false})).await;
    assert_eq!((status, &told["status"]), (200, &json!("completed")), "what stores nothing is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_could_not_pay_stores_nothing_and_may_look_and_remove() {
    let poor = World::new(Setup { credit: NanoDollars::ZERO, ..Setup::default() });
    for path in [
        "files",
        "uploads",
        "uploads/upload_1/parts",
        "batches",
        "messages/batches",
        "conversations",
        "conversations/conv_1/items",
    ] {
        assert_eq!(look(&poor, ObjectMethod::Post, path).await.0, 402, "{path}");
    }
    for method in [ObjectMethod::Get, ObjectMethod::Delete] {
        assert_eq!(look(&poor, method, "conversations/conv_1").await.0, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn money_a_response_in_the_background_is_paid_for_as_far_as_it_came() {
    let world = World::new(Setup::default());
    world.script(Script::ThenWait(3));
    let before = world.balance_when_idle().await;
    let (status, begun) = ask(&world, &json!({"background": true})).await;
    assert_eq!((status, &begun["status"]), (200, &json!("queued")));
    let path = format!("responses/{}", id(&begun));
    assert_eq!(look(&world, ObjectMethod::Get, &path).await.1["status"], "queued");
    while world.engine.jobs.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Its client went away long ago, and it continues.
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 0);
    let (status, cancelled) = look(&world, ObjectMethod::Post, &format!("{path}/cancel")).await;
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")));
    assert!(world.balance_when_idle().await < before, "what was computed is paid for");
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 1);
    assert!(matches!(world.last_trace().outcome, CallOutcome::Cancelled { .. }));
    assert_eq!(look(&world, ObjectMethod::Get, &path).await.1["status"], "cancelled");
    assert_eq!(look(&world, ObjectMethod::Delete, &path).await.0, 200);
    assert_eq!(look(&world, ObjectMethod::Get, &path).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_in_the_background_that_fails_says_so() {
    for script in [Script::Full, Script::ThenFail(2), Script::ThenDie(2)] {
        let world = World::new(Setup::default());
        world.script(script);
        world.engine.may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
        let (_, begun) = ask(&world, &json!({"background": true})).await;
        let path = format!("responses/{}", id(&begun));
        let mut found = begun.clone();
        for _ in 0..12_000 {
            found = look(&world, ObjectMethod::Get, &path).await.1;
            if found["status"] != "queued" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(found["status"], "failed", "{script:?}: {found}");
        assert!(found["error"]["message"].is_string(), "{script:?}: {found}");
        assert_eq!(found["id"], begun["id"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stop_cut_off_has_failed_after_the_next_start() {
    let world = World::new(Setup::default());
    world.script(Script::ThenWait(1));
    let (_, begun) = ask(&world, &json!({"background": true})).await;
    // As the next process does, which finds it in the same store.
    assert_eq!(world.gateway.resources().fail_unfinished().await, Ok(1));
    let (_, found) = look(&world, ObjectMethod::Get, &format!("responses/{}", id(&begun))).await;
    assert_eq!((&found["status"], &found["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert_eq!(world.gateway.resources().fail_unfinished().await, Ok(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_until_what_is_in_the_background_is_stored() {
    let world = World::new(Setup::default());
    let (_, begun) = ask(&world, &json!({"background": true})).await;
    assert_eq!(world.gateway.drain(Duration::from_secs(20)).await, 0);
    let (_, found) = look(&world, ObjectMethod::Get, &format!("responses/{}", id(&begun))).await;
    assert_eq!(found["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_stored_before_its_id_is_told_and_as_it_ended_however_it_did() {
    for (script, status) in [(Script::ThenWait(3), "cancelled"), (Script::ThenFail(3), "failed")] {
        let world = World::new(Setup::default());
        world.script(script);
        let answer = world.call(Endpoint::Responses, body(&json!({"stream": true}))).await;
        assert_eq!(answer.status, 200);
        let request = header(&answer, "x-request-id").unwrap();
        let path = format!("responses/{}", request.replace("req_", "resp_"));
        let (found, begun) = look(&world, ObjectMethod::Get, &path).await;
        assert_eq!(found, 200, "the client knows it from now on: {begun}");
        assert_eq!(begun["status"], "in_progress", "{script:?}");
        if status == "cancelled" {
            drop(answer);
        } else {
            world.engine.may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
            assert!(read(answer).await.contains("event: response.failed"));
        }
        world.balance_when_idle().await;
        let (_, ended) = look(&world, ObjectMethod::Get, &path).await;
        assert_eq!((&ended["status"], &ended["id"]), (&json!(status), &begun["id"]), "{script:?}");
    }
}

/// A responses socket whose handshake was admitted.
struct Socket(GatewayAdmission);

impl Socket {
    fn open(world: &World) -> Self {
        Self(world.gateway.admit(world.head(RequestTarget::SocketHandshake)).ok().unwrap())
    }

    fn session(&self) -> Option<SessionId> {
        self.0.session()
    }
}

/// A turn on a socket. Returns the status of its answer, and the last response that its events have, or the refusal.
async fn turn(world: &World, socket: &Socket, more: &Value) -> (u16, Value) {
    let mut message = body(more);
    message["type"] = json!("response.create");
    let message = Bytes::from(message.to_string());
    let answer = world.request(RequestTarget::SocketTurn { session: socket.session(), message }, "").await;
    let (status, text) = (answer.status, read(answer).await);
    if status != 200 {
        return (status, serde_json::from_str(&text).unwrap());
    }
    let mut data =
        text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let last: Value = serde_json::from_str(data.next_back().unwrap()).unwrap();
    (status, last["response"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_of_a_connection_goes_on_from_what_was_not_stored() {
    let world = World::new(Setup::default());
    let turns = Socket::open(&world);
    let (_, first) = turn(&world, &turns, &json!({"store": false})).await;
    let (status, second) =
        turn(&world, &turns, &json!({"store": false, "input": "more", "previous_response_id": id(&first)}))
            .await;
    assert_eq!((status, &second["previous_response_id"]), (200, &first["id"]));
    let (status, third) = turn(
        &world,
        &turns,
        &json!({"store": false, "input": "and more", "previous_response_id": id(&second)}),
    )
    .await;
    assert_eq!(status, 200);
    // It equals the prompt of the whole conversation.
    let said = |told: &Value| told["output"][0]["content"][0]["text"].clone();
    let whole = json!({"store": false, "input": [
        {"role": "user", "content": "say ha"}, {"role": "assistant", "content": said(&first)},
        {"role": "user", "content": "more"}, {"role": "assistant", "content": said(&second)},
        {"role": "user", "content": "and more"},
    ]});
    let (_, sent) = ask(&world, &whole).await;
    assert_eq!(third["usage"], sent["usage"]);
    let jobs = world.engine.jobs.lock().unwrap().clone();
    assert_eq!(jobs[2].prompt, jobs[3].prompt);
    // Only the newest response is kept, only on this connection, and nothing on the disk.
    for (turns, from) in [(&turns, &first), (&turns, &second), (&Socket::open(&world), &third)] {
        let (status, refused) = turn(&world, turns, &json!({"previous_response_id": id(from)})).await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("previous_response_not_found")));
    }
    assert_eq!(look(&world, ObjectMethod::Get, &format!("responses/{}", id(&third))).await.0, 404);
    // The rejected turns removed nothing.
    let (status, _) =
        turn(&world, &turns, &json!({"store": false, "previous_response_id": id(&third)})).await;
    assert_eq!(status, 200);
    drop(turns);
    world.balance_when_idle().await;
}

/// Ids of sessions can be guessed, so a turn of another key, even of the same project, has no session.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_another_key_neither_reads_nor_changes_a_session() {
    let world = World::new(Setup::default());
    let socket = Socket::open(&world);
    let (_, first) = turn(&world, &socket, &json!({"store": false})).await;
    let new = NewKey::new(world.org.clone(), world.project.clone(), "second");
    let (_, secret) = world.directory.create_key(new, "test", world.clock.now()).unwrap();
    for (more, status) in [(json!({"previous_response_id": id(&first)}), 400), (json!({}), 200)] {
        let mut message = body(&more);
        (message["type"], message["store"]) = (json!("response.create"), json!(false));
        let message = Bytes::from(message.to_string());
        let mut head = world.head(RequestTarget::SocketTurn { session: socket.session(), message });
        head.caller.credentials.authorization = Some(format!("Bearer {}", secret.expose_secret()).into());
        let admission = world.gateway.admit(head).ok().unwrap();
        let answer = world.gateway.serve(admission, Bytes::new()).await;
        assert_eq!(answer.status, status, "{more}");
        read(answer).await;
    }
    let next = json!({"store": false, "previous_response_id": id(&first)});
    assert_eq!(turn(&world, &socket, &next).await.0, 200);
    world.balance_when_idle().await;
}

/// As the Open Responses specification requires: a client whose turn failed to continue a response sends the whole
/// conversation again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_turn_failed_to_go_on_from_is_not_gone_on_from_any_more() {
    let world = World::new(Setup::default());
    let result = json!([{"type": "function_call_output", "call_id": "call_none", "output": "x"}]);
    for (wrong, code) in [
        (json!({"input": result}), "invalid_value"),
        (json!({"temperature": 9}), "decimal_above_max_value"),
        (json!({"model": "nobody"}), "model_not_found"),
        (json!({"max_output_tokens": 1 << 30}), "integer_above_max_value"),
    ] {
        let turns = Socket::open(&world);
        let (_, first) = turn(&world, &turns, &json!({"store": false})).await;
        let with = |more: &Value| {
            let mut more = more.clone();
            (more["store"], more["previous_response_id"]) = (false.into(), first["id"].clone());
            more
        };
        // A failed turn that does not continue the response has no effect on it.
        let (status, _) = turn(&world, &turns, &json!({"temperature": 9, "store": false})).await;
        assert_eq!(status, 400);
        let (status, refused) = turn(&world, &turns, &with(&wrong)).await;
        assert!(status >= 400, "{wrong}");
        assert_eq!(refused["error"]["code"], code, "{wrong}");
        let (status, refused) = turn(&world, &turns, &with(&json!({}))).await;
        assert_eq!(
            (status, &refused["error"]["code"]),
            (400, &json!("previous_response_not_found")),
            "{wrong}"
        );
    }
    // A message that was rejected before it became a call, as at the admission check.
    let turns = Socket::open(&world);
    let (_, first) = turn(&world, &turns, &json!({"store": false})).await;
    let next = json!({"store": false, "previous_response_id": id(&first)});
    for message in ["{".to_owned(), next.to_string()] {
        let target = RequestTarget::SocketTurn { session: turns.session(), message: Bytes::from(message) };
        let mut stranger = world.head(target);
        stranger.caller.credentials = Default::default();
        assert_eq!(world.gateway.admit(stranger).err().unwrap().status, 401);
    }
    assert_eq!(turn(&world, &turns, &next).await.0, 400);
    world.balance_when_idle().await;
}
