//! Calls whose key is revoked or expires while they run. Each ends soon, is charged for what was computed, and says so.

use std::time::Duration;

use headrace_call_api::{BodyRefusal, BodySource, Credentials, ObjectMethod, ObjectOperation, RequestTarget};
use headrace_call_state::Answer;
use headrace_domain::{CallOutcome, Clock, Endpoint, KeyId, NanoDollars, SystemClock};
use headrace_identity::{ExposeSecret, NewKey};
use serde_json::{Value, json};

use crate::world::{Arrival, MODEL, Script, Setup, World, ask, chat_body, read};

/// Far more than the promised two seconds, for busy machines.
const IN_TIME: Duration = Duration::from_secs(60);

fn dollars(text: &str) -> NanoDollars {
    NanoDollars::from_dollars(text).unwrap()
}

fn key_of(world: &World) -> KeyId {
    world.directory.list()[0].id.clone()
}

fn revoke(world: &World) {
    world.directory.revoke(&key_of(world), "test", SystemClock::new().now()).unwrap();
}

/// Waits until the engine has this many jobs.
async fn begun(world: &World, jobs: usize) {
    while world.engine.jobs.lock().unwrap().len() < jobs {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn ended(answer: Answer) -> String {
    tokio::time::timeout(IN_TIME, read(answer)).await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_when_its_key_is_revoked_and_pays_for_what_was_computed() {
    let in_words = |endpoint, stream| match endpoint {
        Endpoint::Responses => json!({"model": MODEL, "stream": stream, "input": "say ha"}),
        Endpoint::Completions => {
            json!({"model": MODEL, "stream": stream, "max_tokens": 10, "prompt": "say ha"})
        }
        _ => chat_body(stream),
    };
    for endpoint in
        [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses]
    {
        for stream in [true, false] {
            let world = World::new(Setup::default());
            world.script(Script::ThenWait(3));
            let call = world.call(endpoint, in_words(endpoint, stream));
            let body = if stream {
                let answer = call.await;
                assert_eq!(answer.status, 200);
                begun(&world, 1).await;
                revoke(&world);
                ended(answer).await
            } else {
                let ((), answer) = tokio::join!(
                    async {
                        begun(&world, 1).await;
                        revoke(&world);
                    },
                    async { tokio::time::timeout(IN_TIME, call).await.expect("it ends") }
                );
                assert_eq!(answer.status, 401, "{endpoint:?}");
                ended(answer).await
            };
            let what = format!("{endpoint:?}, stream {stream}: {body}");
            assert!(body.contains("was revoked while the call ran") && !body.contains("[DONE]"), "{what}");
            assert!(!body.contains("message_stop") && !body.contains("response.completed"), "{what}");
            let left = world.balance_when_idle().await;
            let trace = world.last_trace();
            assert!(trace.cost > NanoDollars::ZERO, "{what}");
            assert_eq!(left.get(), dollars("1").get() - trace.cost.get(), "{what}");
            assert_eq!(trace.loss, NanoDollars::ZERO, "{what}");
            assert!(matches!(trace.outcome, CallOutcome::Cancelled { .. }), "{what}: {:?}", trace.outcome);
            assert_eq!(*world.engine.cancelled.lock().unwrap(), 1, "its blocks are free");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_when_its_key_expires_and_the_calls_of_other_keys_go_on() {
    let mut world = World::new(Setup::default());
    world.script(Script::ThenWait(2));
    let other = world.chat(true).await;
    let now = SystemClock::new().now();
    let expires = Some(now.after(Duration::from_secs(2)));
    let new = NewKey { expires, ..NewKey::new(world.org.clone(), world.project.clone(), "short") };
    let (_, secret) = world.directory.create_key(new, "test", now).unwrap();
    world.key = secret.expose_secret().to_owned();
    let answer = world.chat(true).await;
    assert_eq!(answer.status, 200);
    let body = ended(answer).await;
    assert!(body.contains("expired while the call ran") && body.contains("expired_api_key"), "{body}");
    let ends = async {
        while world.gateway.in_flight() > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(IN_TIME, ends).await.expect("the call of the expired key ends");
    // Longer than a call needs to notice the end of its key.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.gateway.in_flight(), 1, "the other key's call");
    drop(other);
    world.balance_when_idle().await;
}

/// A body that arrives when its sender decides.
struct Late(tokio::sync::oneshot::Receiver<Vec<u8>>);

impl BodySource for Late {
    async fn read(self) -> Result<bytes::Bytes, BodyRefusal> {
        self.0.await.map(Into::into).map_err(|_| BodyRefusal::Incomplete)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_body_comes_after_the_revocation_is_refused() {
    let world = World::new(Setup::default());
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let Arrival { head, .. } = world.arrival(Endpoint::ChatCompletions, String::new());
    let arrival = Arrival { head, body: Late(receiver) };
    let gateway = std::sync::Arc::clone(&world.gateway);
    let call = tokio::spawn(async move { ask(&gateway, arrival).await });
    while world.gateway.in_flight() == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    revoke(&world);
    sender.send(chat_body(false).to_string().into_bytes()).unwrap();
    let answer = call.await.unwrap();
    assert_eq!(answer.status, 401);
    assert!(world.engine.jobs.lock().unwrap().is_empty());
    assert_eq!(world.balance_when_idle().await, dollars("1"));
}

async fn look(world: &World, key: &str, path: &str, query: &[(&str, &str)]) -> Answer {
    let authorization = Some(format!("Bearer {key}").into_bytes());
    let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let credentials = Credentials { authorization, ..Credentials::default() };
    let operation = ObjectOperation { method: ObjectMethod::Get, path: path.to_owned(), query };
    let mut head = world.head(RequestTarget::Object(operation));
    head.caller.credentials = credentials;
    ask(&world.gateway, Arrival { head, body: bytes::Bytes::new() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_in_the_background_ends_with_its_key_and_what_follows_it_with_its_own() {
    let world = World::new(Setup::default());
    world.script(Script::ThenWait(3));
    let new = || NewKey::new(world.org.clone(), world.project.clone(), "follower");
    let now = SystemClock::new().now();
    let (follower, secret) = world.directory.create_key(new(), "test", now).unwrap();
    let (_, steady) = world.directory.create_key(new(), "test", now).unwrap();
    let (follows, steady) = (secret.expose_secret().to_owned(), steady.expose_secret().to_owned());
    let asked = json!({"model": MODEL, "input": "say ha", "background": true, "stream": true});
    let first = world.call(Endpoint::Responses, asked).await;
    begun(&world, 1).await;
    let id = world.engine.jobs.lock().unwrap()[0].request.to_string().replace("req_", "resp_");
    let path = format!("responses/{id}");
    let stream = [("stream", "true")];
    let followed = look(&world, &follows, &path, &stream).await;
    let steadily = look(&world, &steady, &path, &stream).await;
    assert_eq!((followed.status, steadily.status), (200, 200));
    // The follower's own key is revoked: its stream ends, but the response continues.
    world.directory.revoke(&follower.id, "test", now).unwrap();
    let body = ended(followed).await;
    assert!(body.contains("response.output_text.delta"), "{body}");
    assert!(body.contains("\"type\":\"error\"") && body.contains("invalid_api_key"), "{body}");
    assert!(!body.contains("[DONE]"), "{body}");
    assert_eq!(world.gateway.in_flight(), 2, "the response, and the task that stores it");
    // The key of the response is revoked: it ends for all its followers.
    let key = world.directory.list().into_iter().find(|key| key.name == "first").unwrap();
    world.directory.revoke(&key.id, "test", now).unwrap();
    for answer in [first, steadily] {
        let body = ended(answer).await;
        assert!(body.contains("was revoked") && !body.contains("[DONE]"), "{body}");
    }
    world.balance_when_idle().await;
    assert!(world.last_trace().cost > NanoDollars::ZERO);
    let stored = ended(look(&world, &steady, &path, &[]).await).await;
    let stored: Value = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored["status"], "failed", "{stored}");
    let replayed = ended(look(&world, &steady, &path, &stream).await).await;
    assert!(replayed.contains("response.failed") && !replayed.contains("[DONE]"), "{replayed}");
}
