//! What the gateway checks before it asks for a body: the sender, and whether the sender has funds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{BodyRefusal, BodySource, CallService, Credentials};
use headrace_domain::{Endpoint, NanoDollars, Stage, is_partition};
use headrace_identity::RateLimits;

use crate::world::{Arrival, Setup, World, ask, chat_body, header, model, model_list, read, request_trace};

/// How long the upload of a body takes.
const UPLOAD: Duration = Duration::from_millis(500);
/// Longer than a test runs.
const NEVER: Duration = Duration::from_secs(3_600);

/// A body with a slow upload, which notes that it was asked for.
struct Slow {
    asked: Arc<AtomicBool>,
    upload: Duration,
    body: Result<Bytes, BodyRefusal>,
}

impl BodySource for Slow {
    async fn read(self) -> Result<Bytes, BodyRefusal> {
        self.asked.store(true, Ordering::SeqCst);
        tokio::time::sleep(self.upload).await;
        self.body
    }
}

fn slow(world: &World, body: Result<Bytes, BodyRefusal>) -> (Arc<AtomicBool>, Arrival<Slow>) {
    slow_for(UPLOAD, world, body)
}

fn slow_for(
    upload: Duration,
    world: &World,
    body: Result<Bytes, BodyRefusal>,
) -> (Arc<AtomicBool>, Arrival<Slow>) {
    let asked = Arc::new(AtomicBool::new(false));
    let whole = world.arrival(Endpoint::ChatCompletions, String::new());
    let body = Slow { asked: Arc::clone(&asked), upload, body };
    (asked, Arrival { head: whole.head, body })
}

fn chat() -> Bytes {
    Bytes::from(chat_body(false).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_for_a_body_who_is_unknown_or_could_not_pay() {
    let rich = World::new(Setup::default());
    let poor = World::new(Setup { credit: NanoDollars::ZERO, ..Setup::default() });
    let none = RateLimits { requests_per_minute: Some(0), ..RateLimits::default() };
    let limited = World::new(Setup { limits: none, ..Setup::default() });
    for (world, known, status, code) in [
        (&rich, false, 401, "missing_api_key"),
        (&poor, true, 402, "out_of_money"),
        (&limited, true, 400, "requests_per_minute"),
        (&rich, true, 200, "chat.completion"),
    ] {
        let (asked, mut arrival) = slow(world, Ok(chat()));
        if !known {
            arrival.head.caller.credentials = Credentials::default();
        }
        let answer = ask(&world.gateway, arrival).await;
        assert_eq!(answer.status, status, "{code}");
        let body = read(answer).await;
        assert!(body.contains(code), "{body}");
        assert_eq!(asked.load(Ordering::SeqCst), status == 200, "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_an_upload_is_the_clients_and_a_span_of_its_own() {
    let world = World::new(Setup::default());
    let (_, mut arrival) = slow(&world, Ok(chat()));
    arrival.head.caller.started_mono_ns = world.gateway_ns();
    assert_eq!(ask(&world.gateway, arrival).await.status, 200);
    let _ = world.balance_when_idle().await;
    let trace = world.last_trace();
    let took = |stage| Duration::from_nanos(trace.span(stage).unwrap().duration_ns);
    assert!(took(Stage::Receive) >= UPLOAD, "{:?}", took(Stage::Receive));
    // It is counted once: in no other span.
    assert!(is_partition(&trace.stages, trace.duration_ns), "{:?}", trace.stages);

    let refusal = BodyRefusal::MemoryOfKey { limit_bytes: 10, observed_bytes: 11 };
    let (_, arrival) = slow(&world, Err(refusal));
    let answer = ask(&world.gateway, arrival).await;
    assert_eq!(answer.status, 429);
    let body = read(answer).await;
    for part in ["request_memory_per_key", "\"stage\":\"receive\"", "\"retry_after_s\":1", "\"observed\":11"]
    {
        assert!(body.contains(part), "{part}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_calls_that_had_come_in_but_not_begun() {
    let world = World::new(Setup { render_inline_bytes: 0, ..Setup::default() });
    let (asked, arrival) = slow(&world, Ok(chat()));
    let gateway = Arc::clone(&world.gateway);
    let call = tokio::spawn(async move {
        let answer = ask(&gateway, arrival).await;
        (answer.status, read(answer).await)
    });
    while !asked.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.gateway.in_flight(), 1, "it counts before its body is here");
    assert_eq!(world.gateway.drain(Duration::from_secs(60)).await, 0);
    let (status, body) = call.await.unwrap();
    assert!(status == 200 && body.contains("ha"), "{body}");
    assert_eq!(world.chat(false).await.status, 503, "a call that comes while it drains is refused");
    let _ = world.balance_when_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_in_a_drains_time_is_not_waited_for() {
    let world = World::new(Setup::default());
    let (asked, arrival) = slow_for(NEVER, &world, Ok(chat()));
    let gateway = Arc::clone(&world.gateway);
    let call = tokio::spawn(async move { ask(&gateway, arrival).await });
    while !asked.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.gateway.drain(UPLOAD / 4).await, 1);
    let answer = call.await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(read(answer).await.contains("shutting_down"));
}

fn limited(requests: u32, concurrency: u32) -> World {
    let limits = RateLimits {
        requests_per_minute: Some(requests),
        concurrency: Some(concurrency),
        ..RateLimits::default()
    };
    World::new(Setup { limits, ..Setup::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_refused_after_the_door_count_and_give_their_place_back() {
    let world = limited(3, 1);
    let with = |key: &str, value: serde_json::Value| {
        let mut body = chat_body(false);
        body[key] = value;
        body
    };
    for (body, status) in [
        (with("n", "many".into()), 400),
        (with("model", "no-such".into()), 404),
        (with("max_tokens", 600.into()), 400),
        (chat_body(false), 429),
    ] {
        let answer = world.call(Endpoint::ChatCompletions, body).await;
        assert_eq!(answer.status, status);
        assert!(status != 429 || read(answer).await.contains("requests_per_minute"));
    }
    let metrics = world.limits.metrics();
    assert_eq!((metrics.leases, metrics.abandoned), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_its_place_from_the_door_on_and_whoever_leaves_gives_it_back() {
    let world = limited(9, 1);
    let (asked, arrival) = slow_for(NEVER, &world, Ok(chat()));
    let gateway = Arc::clone(&world.gateway);
    let call = tokio::spawn(async move { ask(&gateway, arrival).await });
    while !asked.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let refused = world.chat(false).await;
    assert_eq!(refused.status, 429);
    assert!(read(refused).await.contains("concurrency"));
    call.abort();
    assert!(call.await.is_err());
    assert_eq!(world.chat(false).await.status, 200);
    assert_eq!(world.limits.metrics().abandoned, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn look_ups_count_as_requests() {
    let world = limited(3, 1);
    assert_eq!(world.request(model_list(), "").await.status, 200);
    assert_eq!(world.request(model("no-such"), "").await.status, 404);
    assert_eq!(world.request(request_trace("no-id"), "").await.status, 404);
    for answer in [
        world.request(model_list(), "").await,
        world.request(model("demo"), "").await,
        world.request(request_trace("req_00000000000000000000000000000001"), "").await,
        world.chat(false).await,
    ] {
        assert_eq!(answer.status, 429);
        assert!(header(&answer, "retry-after").is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_looked_for_once_in_the_store_and_then_waited_for_in_memory() {
    let world = World::new(Setup::default());
    assert_eq!(world.chat(false).await.status, 200);
    let _ = world.balance_when_idle().await;
    let record = world.last_trace();
    let id = record.request_id.to_string();
    assert_eq!(world.request(request_trace(&id), "").await.status, 200);
    assert_eq!(world.traces.1.load(Ordering::SeqCst), 0);

    world.traces.0.lock().unwrap().clear();
    let gateway = Arc::clone(&world.gateway);
    let arrival = Arrival { head: world.head(request_trace(&id)), body: Bytes::new() };
    let question = tokio::spawn(async move { ask(&gateway, arrival).await });
    while world.traces.1.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.traces.0.lock().unwrap().push(record);
    assert_eq!(question.await.unwrap().status, 200);
    assert_eq!(world.traces.1.load(Ordering::SeqCst), 1);

    world.traces.0.lock().unwrap().clear();
    let many = (0..300).map(|_| world.request(request_trace(&id), ""));
    let statuses: Vec<u16> =
        futures_util::future::join_all(many).await.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 404).count(), 256);
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 44);
}
