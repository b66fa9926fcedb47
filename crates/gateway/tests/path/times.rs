//! Where a call's time went, for calls of every kind. The spans of each trace partition it, for any engine report and
//! any end of the call.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{AnswerFrames, BodyRefusal, BodySource, Credentials};
use headrace_call_state::{Answer, AnswerBody};
use headrace_domain::{CallOutcome, Endpoint, EngineTrace, Stage, TraceRecord, is_partition};
use serde_json::{Value, json};

use crate::world::{Arrival, MODEL, Script, Setup, World, ask, chat_body, header, read, trace_of};

/// What an engine may report about a job's times, in nanoseconds: the truth, nothing, and nonsense.
fn claims() -> Vec<EngineTrace> {
    let claim = |queue_ns, prefill_ns, decode_ns| EngineTrace {
        queue_ns,
        prefill_ns,
        decode_ns,
        steps: 3,
        ..EngineTrace::default()
    };
    vec![
        EngineTrace::default(),
        claim(1_000, 2_000, 3_000),
        claim(0, 0, 0),
        claim(50_000_000, 70_000_000, 90_000_000),
        claim(0, 3_600_000_000_000, 0),
        claim(u64::MAX, u64::MAX, u64::MAX),
        EngineTrace { preemptions: 7, ..claim(20_000, 0, 20_000) },
    ]
}

fn check(record: &TraceRecord, what: &str) {
    let text = format!("{what}: {:?} of {} ns", record.stages, record.duration_ns);
    assert!(is_partition(&record.stages, record.duration_ns), "{text}");
    assert_eq!(record.server_ns() + record.client_ns(), record.duration_ns, "{text}");
    if let (Some(first), Some(prefill)) = (record.first_token_ns, record.span(Stage::Prefill)) {
        assert!(prefill.start_ns + prefill.duration_ns <= first && first <= record.duration_ns, "{text}");
    }
}

/// Reads an answer with a pause before each piece.
pub(crate) async fn read_slowly(answer: Answer, pause: Duration) {
    if let AnswerBody::Stream(mut delivery) = answer.body {
        loop {
            tokio::time::sleep(pause).await;
            if poll_fn(|cx| delivery.poll_frame(cx)).await.is_none() {
                return;
            }
        }
    }
}

async fn settled(world: &World) -> Vec<std::sync::Arc<TraceRecord>> {
    world.balance_when_idle().await;
    std::mem::take(&mut *world.traces.0.lock().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_spans_of_every_call_partition_its_time() {
    let world =
        World::new(Setup { stall: Duration::from_millis(400), buffer_bytes: 2_000, ..Setup::default() });
    let mut checked = 0;
    for (round, claim) in claims().into_iter().enumerate() {
        *world.engine.trace.lock().unwrap() = claim;
        for stream in [false, true] {
            calls_that_end_well(&world, stream).await;
            calls_that_do_not(&world, stream).await;
        }
        for record in settled(&world).await {
            check(&record, &format!("claim {round}"));
            checked += 1;
        }
    }
    assert!(checked >= 7 * 2 * 15, "{checked}");
}

async fn calls_that_end_well(world: &World, stream: bool) {
    let with = |key: &str, value: Value| {
        let mut body = chat_body(stream);
        body[key] = value;
        body
    };
    world.script(Script::Answer);
    for body in [
        chat_body(stream),
        with("n", json!(5)),
        with("max_tokens", json!(1)),
        with("headrace", json!({"explain": true})),
    ] {
        let answer = world.call(Endpoint::ChatCompletions, body).await;
        assert_eq!(answer.status, 200);
        let text = read(answer).await;
        if let Some(at) = text.find("\"stages\":") {
            assert!(text[at..].contains("\"place\""), "{text}");
        }
    }
    let prompts =
        json!({"model": MODEL, "prompt": ["one", "two", "three"], "stream": stream, "max_tokens": 3, "n": 2});
    read(world.call(Endpoint::Completions, prompts).await).await;
    let message = json!({"model": MODEL, "max_tokens": 3, "stream": stream, "messages": [{"role": "user", "content": "u"}]});
    read(world.call(Endpoint::Messages, message).await).await;
}

async fn calls_that_do_not(world: &World, stream: bool) {
    let chat = || world.chat(stream);
    // Rejected, at the admission check and at each later stage.
    let mut stranger = world.arrival(Endpoint::ChatCompletions, chat_body(stream).to_string());
    stranger.head.caller.credentials = Credentials::default();
    assert_eq!(ask(&world.gateway, stranger).await.status, 401);
    for (key, value) in [("model", json!("nosuch")), ("n", json!(-1)), ("max_tokens", json!(600))] {
        let mut body = chat_body(stream);
        body[key] = value;
        assert!(world.call(Endpoint::ChatCompletions, body).await.status >= 400);
    }
    for script in [Script::Full, Script::TooLate { for_good: true }, Script::Panic] {
        world.script(script);
        assert!(chat().await.status >= 400);
    }
    // The engine fails, before and after the first token.
    world.engine.may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
    for tokens in [0, 3] {
        world.script(Script::ThenFail(tokens));
        read(chat().await).await;
    }
    // The client goes away, before its answer and in the middle of it; reads slowly; stops reading.
    for tokens in [0, 3] {
        world.script(Script::ThenWait(tokens));
        let _ = tokio::time::timeout(Duration::from_millis(5), chat()).await;
    }
    if stream {
        world.script(Script::ThenWait(3));
        drop(chat().await);
        world.script(Script::Answer);
        read_slowly(chat().await, Duration::from_millis(10)).await;
        world.script(Script::ThenWait(100));
        let stalled = chat().await;
        world.balance_when_idle().await;
        drop(stalled);
    }
}

/// The time of a slow reader does not count as the server's.
#[tokio::test(flavor = "multi_thread")]
async fn time_in_which_the_reader_does_not_read_is_the_clients() {
    let world = World::new(Setup { buffer_bytes: 1, ..Setup::default() });
    // A busy machine adds waits to both sides, but not in every one of many calls.
    let mut shown = false;
    for _ in 0..20 {
        let answer = world.chat(true).await;
        let id = header(&answer, "x-request-id").unwrap().to_owned();
        read_slowly(answer, Duration::from_millis(40)).await;
        let records = settled(&world).await;
        let record = records.iter().find(|record| record.request_id.to_string() == id).unwrap();
        check(record, "a slow reader");
        assert!(matches!(record.outcome, CallOutcome::Completed { .. }));
        assert!(record.client_ns() >= 40_000_000, "{:?}", record.stages);
        // In these tests a call begins when its world does, so its `connect` span is long.
        let connected = record.span(Stage::Connect).unwrap().duration_ns;
        // A client that reads at once has no such time.
        let at_once = trace_of(&world, world.chat(true).await).await;
        let reader = at_once.span(Stage::Reader);
        shown = record.server_ns() - connected < record.client_ns()
            && reader.is_none_or(|span| span.duration_ns < 10_000_000);
        if shown {
            break;
        }
    }
    assert!(shown, "of 20 calls no reader's time is the reader's");
}

/// A body whose upload takes this long.
pub(crate) struct Upload(pub(crate) Bytes, pub(crate) Duration);

impl BodySource for Upload {
    async fn read(self) -> Result<Bytes, BodyRefusal> {
        tokio::time::sleep(self.1).await;
        Ok(self.0)
    }
}

/// The time of a slow upload does not count as the server's, nor towards the time to the first token.
#[tokio::test(flavor = "multi_thread")]
async fn time_in_which_the_body_is_on_its_way_is_the_clients() {
    let world = World::new(Setup::default());
    let Arrival { head, body } = world.arrival(Endpoint::ChatCompletions, chat_body(true).to_string());
    let arrival = Arrival { head, body: Upload(body, Duration::from_millis(300)) };
    let record = trace_of(&world, ask(&world.gateway, arrival).await).await;
    check(&record, "a slow upload");
    assert!(record.client_ns() >= 300_000_000, "{:?}", record.stages);
    let (first, server) = (record.first_token_ns.unwrap(), record.time_to_first_token_ns().unwrap());
    assert!(first - server >= 300_000_000, "{first} {server}");
}
