//! Calls with an idempotency key: one execution and one charge, and the same bytes for every repeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{IdempotencyHeader, RequestHead, RequestTarget};
use headrace_call_state::{Answer, AnswerBody};
use headrace_catalog::EncoderOutput;
use headrace_domain::{CallOutcome, Clock, Endpoint, HoldId, NanoDollars, ProjectId, RequestId, UnixNanos};
use headrace_gateway::IdempotencyConfig;
use headrace_identity::{EndpointAccess, ExposeSecret, ModelAccess, NewKey, RateLimits};
use headrace_ledger::{GrantKind, LedgerOperation};
use headrace_objects::{AnswerRecord, AnswerStore, MemoryAnswers, ObjectError};
use serde_json::{Value, json};

use crate::world::{Arrival, MODEL, Script, Setup, World, ask, chat_body, header, read, trace_of};

/// The path of an endpoint.
fn path(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::ChatCompletions => "/v1/chat/completions",
        Endpoint::Completions => "/v1/completions",
        Endpoint::Messages => "/v1/messages",
        Endpoint::Responses => "/v1/responses",
        Endpoint::Embeddings => "/v1/embeddings",
        Endpoint::Rerank => "/v1/rerank",
        Endpoint::Score => "/v1/score",
    }
}

/// The same head with an idempotency key.
pub(crate) fn keyed(mut head: RequestHead, key: &str, target: &str) -> RequestHead {
    let (value, target) = (key.as_bytes().to_vec(), target.to_owned());
    head.caller.idempotency = Some(Box::new(IdempotencyHeader { value, is_repeated: false, target }));
    head
}

pub(crate) async fn send(world: &World, key: &str, endpoint: Endpoint, body: &Value) -> Answer {
    let head = keyed(world.head(RequestTarget::Call(endpoint)), key, &format!("POST {}", path(endpoint)));
    ask(&world.gateway, Arrival { head, body: Bytes::from(body.to_string()) }).await
}

/// What a client sees of an answer: its status, its bytes, and the request that first got them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SeenAnswer {
    status: u16,
    content_type: &'static str,
    text: String,
    replay_of: Option<String>,
    code: String,
}

async fn see(answer: Answer) -> SeenAnswer {
    let (status, content_type) = (answer.status, answer.content_type);
    let is_replayed = header(&answer, "idempotent-replayed") == Some("true");
    let replay_of = header(&answer, "x-headrace-original-request").map(str::to_owned);
    assert_eq!(is_replayed, replay_of.is_some());
    let wait = header(&answer, "retry-after").map(|wait| wait.parse::<u64>().unwrap());
    let retries = header(&answer, "x-should-retry").map(str::to_owned);
    let text = read(answer).await;
    let said: Value = serde_json::from_str(&text).unwrap_or_default();
    let code = said["error"]["code"].as_str().or(said["error"]["details"]["code"].as_str());
    let code = code.unwrap_or_default().to_owned();
    assert_eq!(wait.is_some(), status == 409 && code != "idempotency_answer_gone" || status == 503, "{text}");
    assert_eq!(
        retries.as_deref() == Some("false"),
        status == 422 || code == "idempotency_answer_gone",
        "{text}"
    );
    SeenAnswer { status, content_type, text, replay_of, code }
}

fn jobs(world: &World) -> usize {
    world.engine.jobs.lock().unwrap().len()
}

/// The endpoints that run calls, each with a body.
fn calls() -> Vec<(Endpoint, Value)> {
    let messages = json!([{"role": "user", "content": "say ha"}]);
    vec![
        (Endpoint::ChatCompletions, json!({"model": MODEL, "max_tokens": 10, "messages": messages})),
        (Endpoint::Completions, json!({"model": MODEL, "max_tokens": 10, "prompt": "say ha"})),
        (Endpoint::Messages, json!({"model": MODEL, "max_tokens": 10, "messages": messages})),
        (Endpoint::Responses, json!({"model": MODEL, "max_output_tokens": 10, "input": "say ha"})),
    ]
}

/// Sends a call twice, and then another one under its key.
async fn check(world: &World, endpoint: Endpoint, body: &Value) {
    let (before, balance) = (jobs(world), world.balance_when_idle().await);
    let first = send(world, "\"key-1\"", endpoint, body).await;
    let id = header(&first, "x-request-id").unwrap().to_owned();
    let first = see(first).await;
    assert_eq!((first.status, first.replay_of.as_deref()), (200, None), "{endpoint:?}: {}", first.text);
    let charged = world.balance_when_idle().await;
    assert!(charged < balance && jobs(world) == before + 1);
    for key in ["key-1", "\"key-1\""] {
        let again = send(world, key, endpoint, body).await;
        let request: RequestId = header(&again, "x-request-id").unwrap().parse().unwrap();
        let again = see(again).await;
        assert_eq!(again, SeenAnswer { replay_of: Some(id.clone()), ..first.clone() }, "{endpoint:?}");
        let record = world.traces.0.lock().unwrap().iter().find(|one| one.request_id == request).cloned();
        let record = record.expect("a replay is traced");
        assert_eq!(record.replay_of, Some(id.parse().unwrap()));
        assert_eq!((record.cost, record.usage.total()), (NanoDollars::ZERO, 0));
        assert_eq!(record.stream, body["stream"] == true);
        assert!(matches!(record.outcome, CallOutcome::Completed { .. }));
    }
    let mut other = body.clone();
    other["temperature"] = json!(0.5);
    let mismatch = see(send(world, "key-1", endpoint, &other).await).await;
    assert_eq!((mismatch.status, &*mismatch.code), (422, "idempotency_mismatch"), "{}", mismatch.text);
    let elsewhere = keyed(world.head(RequestTarget::Call(endpoint)), "key-1", "POST /v1/elsewhere");
    let elsewhere = Arrival { head: elsewhere, body: Bytes::from(body.to_string()) };
    assert_eq!(see(ask(&world.gateway, elsewhere).await).await.status, 422);
    assert_eq!((jobs(world), world.balance_when_idle().await), (before + 1, charged), "nothing else ran");
    let unkeyed = world.call(endpoint, body.clone()).await;
    assert_eq!((unkeyed.status, header(&unkeyed, "idempotent-replayed")), (200, None));
    read(unkeyed).await;
    assert_eq!(jobs(world), before + 2, "a call without a key runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_gets_the_first_answer_and_costs_nothing() {
    for stream in [false, true] {
        for (endpoint, mut body) in calls() {
            body["stream"] = json!(stream);
            let world = World::new(Setup::default());
            check(&world, endpoint, &body).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_for_an_encoder_gets_the_first_answer() {
    for (endpoint, makes, body) in [
        (
            Endpoint::Embeddings,
            EncoderOutput::Vectors { width: 4 },
            json!({"model": MODEL, "input": [[1, 2], [3]]}),
        ),
        (Endpoint::Rerank, EncoderOutput::Scores, json!({"model": MODEL, "query": "a", "documents": ["b"]})),
    ] {
        let world = World::new(Setup { makes: Some(makes), ..Setup::default() });
        world.script(Script::Encode(if endpoint == Endpoint::Rerank { 1 } else { 4 }));
        let first = see(send(&world, "k", endpoint, &body).await).await;
        let (ran, balance) = (jobs(&world), world.balance_when_idle().await);
        let again = see(send(&world, "k", endpoint, &body).await).await;
        assert_eq!((first.status, again.status), (200, 200), "{}", first.text);
        assert!(first.replay_of.is_none() && again.replay_of.is_some() && again.text == first.text);
        assert_eq!((jobs(&world), world.balance_when_idle().await), (ran, balance));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_call_runs_its_repeats_wait_and_after_its_client_left_its_answer_is_gone() {
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
        let world = World::new(Setup::default());
        world.script(Script::ThenWait(3));
        let mut body = chat_body(true);
        body["max_tokens"] = json!(100);
        let first = send(&world, "k", endpoint, &body).await;
        assert_eq!(first.status, 200);
        let running = see(send(&world, "k", endpoint, &body).await).await;
        assert_eq!(running.status, 409, "{}", running.text);
        assert!(running.text.contains("still running (req_"), "{}", running.text);
        let other = see(send(&world, "k", endpoint, &chat_body(true)).await).await;
        assert_eq!(other.status, 422, "another body is refused while the first one runs");
        let AnswerBody::Stream(stream) = first.body else { panic!("a stream") };
        drop(stream);
        let charged = world.balance_when_idle().await;
        assert!(charged < NanoDollars::from_dollars("1").unwrap(), "what was computed is charged");
        world.script(Script::Answer);
        for _ in 0..2 {
            let gone = see(send(&world, "k", endpoint, &body).await).await;
            assert_eq!(gone.status, 409, "{}", gone.text);
            assert!(gone.text.contains("has run (req_") && gone.text.contains("not stored"), "{}", gone.text);
        }
        assert_eq!((jobs(&world), world.balance_when_idle().await), (1, charged));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gave_up_waiting_gets_the_answer_later() {
    for is_keyed in [true, false] {
        let world = Arc::new(World::new(Setup::default()));
        world.script(Script::ThenAnswer(3));
        let body = chat_body(false);
        let client = tokio::spawn({
            let (world, body) = (Arc::clone(&world), body.clone());
            async move {
                if is_keyed {
                    send(&world, "k", Endpoint::ChatCompletions, &body).await
                } else {
                    world.call(Endpoint::ChatCompletions, body).await
                }
            }
        });
        while jobs(&world) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.abort();
        assert!(client.await.is_err());
        if !is_keyed {
            world.balance_when_idle().await;
            assert_eq!(
                *world.engine.cancelled.lock().unwrap(),
                1,
                "a call without a key ends with its client"
            );
            continue;
        }
        let running = see(send(&world, "k", Endpoint::ChatCompletions, &body).await).await;
        assert_eq!(running.code, "idempotency_in_flight");
        world.engine.may_fail.store(true, Ordering::SeqCst);
        let charged = world.balance_when_idle().await;
        let answer = see(send(&world, "k", Endpoint::ChatCompletions, &body).await).await;
        assert_eq!((answer.status, answer.replay_of.is_some()), (200, true), "{}", answer.text);
        assert!(answer.text.contains("ha ha ha"));
        assert_eq!((jobs(&world), world.balance_when_idle().await), (1, charged));
        assert_eq!(*world.engine.cancelled.lock().unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twins_run_once_and_all_get_the_same_bytes_in_the_end() {
    let world = Arc::new(World::new(Setup::default()));
    for stream in [false, true] {
        let (before, balance) = (jobs(&world), world.balance_when_idle().await);
        let key = format!("twins {stream}");
        let twins: Vec<_> = (0..64)
            .map(|_| {
                let (world, key) = (Arc::clone(&world), key.clone());
                tokio::spawn(async move {
                    let body = chat_body(stream);
                    for _ in 0..600 {
                        let seen = see(send(&world, &key, Endpoint::ChatCompletions, &body).await).await;
                        if seen.status != 409 {
                            return seen;
                        }
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    panic!("the first one does not end")
                })
            })
            .collect();
        let mut answers = Vec::new();
        for twin in twins {
            answers.push(twin.await.unwrap());
        }
        assert!(answers.iter().all(|answer| answer.status == 200 && answer.text == answers[0].text));
        assert_eq!(answers.iter().filter(|answer| answer.replay_of.is_none()).count(), 1);
        assert_eq!(jobs(&world), before + 1);
        let charged = balance.checked_sub(world.balance_when_idle().await).unwrap();
        let alone = world.call(Endpoint::ChatCompletions, chat_body(stream)).await;
        assert_eq!(charged, trace_of(&world, alone).await.cost, "one charge");
        world.balance_when_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_without_a_charge_frees_its_key() {
    let world = World::new(Setup::default());
    let body = chat_body(false);
    let send = async || see(send(&world, "k", Endpoint::ChatCompletions, &body).await).await;
    let funds = NanoDollars::from_dollars("1").unwrap();
    // A refusal by the engine, and a failure after some tokens.
    world.engine.may_fail.store(true, Ordering::SeqCst);
    for (script, status) in [(Script::Full, 503), (Script::ThenFail(2), 500), (Script::Panic, 500)] {
        world.script(script);
        let answer = self::send(&world, "k", Endpoint::ChatCompletions, &body).await;
        assert!(answer.status >= 500, "{script:?}: {} and not {status}", answer.status);
        read(answer).await;
        assert_eq!(world.balance_when_idle().await, funds, "{script:?}");
    }
    world.script(Script::Answer);
    // A refusal before the hold, and one by the hold.
    let take_back = |amount: NanoDollars| LedgerOperation::Grant {
        org: world.org.clone(),
        amount,
        kind: GrantKind::Paid,
        reference: "test".to_owned(),
    };
    let change =
        |amount| world.ledger.transact(vec![take_back(amount)], world.clock.now()).durable.wait().unwrap();
    change(NanoDollars::new(1 - funds.get()));
    assert_eq!(send().await.status, 402, "one nano-dollar is too little");
    change(NanoDollars::new(-1));
    assert_eq!(send().await.status, 402, "nothing is left");
    change(funds);
    let first = send().await;
    assert_eq!((first.status, &first.replay_of), (200, &None), "{}", first.text);
    // A replay costs nothing, so it needs no funds.
    change(NanoDollars::new(-world.balance_when_idle().await.get()));
    let again = send().await;
    assert_eq!((again.status, again.replay_of.is_some()), (200, true), "{}", again.text);
    let fresh = see(self::send(&world, "another", Endpoint::ChatCompletions, &body).await).await;
    assert_eq!(fresh.status, 402);
    let other = see(self::send(&world, "k", Endpoint::ChatCompletions, &chat_body(true)).await).await;
    assert_eq!(other.status, 422, "{}", other.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_its_project_and_needs_the_rights_of_the_request() {
    let world = World::new(Setup::default());
    let now = world.clock.now();
    let other = ProjectId::new("other").unwrap();
    world
        .directory
        .create_project(other.clone(), world.org.clone(), RateLimits::default(), "test", now)
        .unwrap();
    let open = LedgerOperation::OpenProject { org: world.org.clone(), project: other.clone() };
    world.ledger.transact(vec![open], now).durable.wait().unwrap();
    let key = |project: &ProjectId, name: &str| NewKey::new(world.org.clone(), project.clone(), name);
    let create = |new: NewKey| {
        let (_, secret) = world.directory.create_key(new, "test", now).unwrap();
        secret.expose_secret().to_owned()
    };
    let sibling = create(key(&world.project, "sibling"));
    let embeds = EndpointAccess::Only([Endpoint::Embeddings].into());
    let embeds = create(NewKey { endpoints: embeds, ..key(&world.project, "embeds") });
    let models = ModelAccess::Only(["elsewhere".parse().unwrap()].into());
    let elsewhere = create(NewKey { models, ..key(&world.project, "elsewhere") });
    let foreign = create(key(&other, "foreign"));
    let body = chat_body(false);
    let first = see(send(&world, "k", Endpoint::ChatCompletions, &body).await).await;
    let as_key = async |secret: &str| {
        let mut head = keyed(
            world.head(RequestTarget::Call(Endpoint::ChatCompletions)),
            "k",
            "POST /v1/chat/completions",
        );
        head.caller.credentials.authorization = Some(format!("Bearer {secret}").into_bytes());
        see(ask(&world.gateway, Arrival { head, body: Bytes::from(body.to_string()) }).await).await
    };
    let of_sibling = as_key(&sibling).await;
    assert_eq!((of_sibling.text.as_str(), of_sibling.replay_of.is_some()), (first.text.as_str(), true));
    assert_eq!(as_key(&embeds).await.code, "endpoint_not_entitled");
    assert_eq!(as_key(&elsewhere).await.code, "model_not_found");
    assert_eq!(as_key("sk-unknown").await.status, 401);
    let of_foreign = as_key(&foreign).await;
    assert_eq!((of_foreign.status, &of_foreign.replay_of), (200, &None), "it runs for itself");
    assert_eq!(jobs(&world), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_is_no_key_is_named() {
    let world = World::new(Setup::default());
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
        let long = "k".repeat(300);
        for (key, is_repeated, why) in [
            ("", false, "is empty"),
            (long.as_str(), false, "has 300 bytes"),
            ("\"k", false, "begins with a quote"),
            ("clé", false, "another character"),
            ("a, a", true, "more than once"),
        ] {
            let mut head = keyed(world.head(RequestTarget::Call(endpoint)), key, "POST /v1/x");
            head.caller.idempotency.as_mut().unwrap().is_repeated = is_repeated;
            let answer =
                ask(&world.gateway, Arrival { head, body: Bytes::from(chat_body(false).to_string()) }).await;
            let status = answer.status;
            let said: Value = serde_json::from_str(&read(answer).await).unwrap();
            let message = said["error"]["message"].as_str().unwrap();
            assert_eq!(status, 400);
            assert!(
                message.starts_with("`Idempotency-Key`: it must have 1 to 255 ") && message.contains(why),
                "{said}"
            );
            let kind = said["error"]["type"].as_str().unwrap();
            assert_eq!(kind, "invalid_request_error", "{said}");
        }
    }
    assert_eq!(jobs(&world), 0);
}

/// Fails, or returns other bytes than were stored.
struct FaultyAnswers {
    store: MemoryAnswers,
    fault: AtomicU32,
}

const WRITES: u32 = 1;
const READS: u32 = 2;
const BYTES: u32 = 3;

impl AnswerStore for FaultyAnswers {
    fn put(&self, answer: &AnswerRecord) -> Result<(), ObjectError> {
        if self.fault.load(Ordering::SeqCst) == WRITES {
            return Err(ObjectError::Unavailable { why: "the test says so".to_owned() });
        }
        self.store.put(answer)
    }

    fn body(
        &self,
        project: &ProjectId,
        hold: HoldId,
        now: UnixNanos,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        let body = self.store.body(project, hold, now)?;
        match self.fault.load(Ordering::SeqCst) {
            READS => Err(ObjectError::Unavailable { why: "the test says so".to_owned() }),
            BYTES => Ok(body.map(|mut body| {
                body[0] ^= 1;
                body
            })),
            _ => Ok(body),
        }
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        self.store.sweep(now)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_stored_is_gone_and_never_runs_again() {
    let small = IdempotencyConfig { max_answer_bytes: 40, ..IdempotencyConfig::default() };
    let none = IdempotencyConfig { keep: Duration::ZERO, ..IdempotencyConfig::default() };
    let brief = IdempotencyConfig { keep: Duration::from_nanos(1), ..IdempotencyConfig::default() };
    let usual = IdempotencyConfig::default();
    for (idempotency, fault, status, code) in [
        (small, 0, 409, "idempotency_answer_gone"),
        (none, 0, 409, "idempotency_answer_gone"),
        (brief, 0, 409, "idempotency_answer_gone"),
        (usual, WRITES, 409, "idempotency_answer_gone"),
        (usual, BYTES, 409, "idempotency_answer_gone"),
        (usual, READS, 503, "objects_unavailable"),
        (usual, 0, 200, ""),
    ] {
        let answers =
            Arc::new(FaultyAnswers { store: MemoryAnswers::new(1 << 20), fault: AtomicU32::new(fault) });
        let world = World::new(Setup {
            idempotency,
            answers: Arc::clone(&answers) as Arc<dyn AnswerStore>,
            ..Setup::default()
        });
        for stream in [false, true] {
            let body = chat_body(stream);
            let key = format!("{stream}");
            let first = see(send(&world, &key, Endpoint::ChatCompletions, &body).await).await;
            assert_eq!(first.status, 200, "{}", first.text);
            let (ran, balance) = (jobs(&world), world.balance_when_idle().await);
            let again = see(send(&world, &key, Endpoint::ChatCompletions, &body).await).await;
            assert_eq!(
                (again.status, &*again.code),
                (status, code),
                "{idempotency:?} {fault}: {}",
                again.text
            );
            assert_eq!((jobs(&world), world.balance_when_idle().await), (ran, balance));
        }
        assert_eq!(answers.store.is_empty(), fault == WRITES || idempotency == none || idempotency == small);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_in_the_background_is_begun_once() {
    let world = World::new(Setup::default());
    let body = json!({"model": MODEL, "max_output_tokens": 10, "input": "say ha", "background": true});
    let send = async |body: &Value| see(send(&world, "k", Endpoint::Responses, body).await).await;
    let first = send(&body).await;
    assert_eq!((first.status, first.text.contains("queued")), (200, true), "{}", first.text);
    let charged = world.balance_when_idle().await;
    let again = send(&body).await;
    assert_eq!((again.status, &again.text), (200, &first.text));
    assert!(again.replay_of.is_some());
    assert_eq!((jobs(&world), world.balance_when_idle().await), (1, charged));
    let mut other = body.clone();
    other["input"] = json!("say ho");
    assert_eq!(send(&other).await.status, 422);
    // The events of a stream are read from the response itself.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let send = async || see(self::send(&world, "s", Endpoint::Responses, &streamed).await).await;
    assert_eq!(send().await.status, 200);
    assert_eq!(send().await.code, "idempotency_answer_gone");
    world.balance_when_idle().await;
    assert_eq!(jobs(&world), 2);
}
