//! How calls end: completed, cancelled, stalled, failed, panicked. Each is settled once and traced once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use headrace_call_api::{AnswerFrames, BrokenBody, CallService, TransportOutlet};
use headrace_call_state::AnswerBody;
use headrace_domain::{CallOutcome, Clock, Endpoint, NanoDollars, Stage, SystemClock};
use headrace_ledger::{LedgerOperation, Receipt};

use crate::world::{
    ANSWER_TOKENS, Script, Setup, World, chat_body, header, read, read_to_the_end, request_trace,
};

/// Nano-dollars per token at $1 per million. Output costs four times that.
const INPUT: i64 = 1_000;
const OUTPUT: i64 = 4_000;

fn dollars(text: &str) -> NanoDollars {
    NanoDollars::from_dollars(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completed_call_is_charged_its_usage_and_traced_over_every_stage() {
    for stream in [false, true] {
        let world = World::new(Setup::default());
        let answer = world.chat(stream).await;
        assert_eq!(answer.status, 200);
        let id = header(&answer, "x-request-id").unwrap().to_owned();
        let body = read(answer).await;
        assert_eq!(body.contains("[DONE]"), stream, "{body}");
        let balance = world.balance_when_idle().await;
        let trace = world.last_trace();
        assert_eq!(trace.request_id.to_string(), id);
        let cost = i64::try_from(trace.usage.input).unwrap() * INPUT + i64::from(ANSWER_TOKENS) * OUTPUT;
        assert_eq!(trace.cost.get(), cost);
        assert_eq!(balance.get(), dollars("1").get() - cost);
        assert!(trace.held >= trace.cost);
        assert_eq!(trace.outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] });
        for stage in [
            Stage::Connect,
            Stage::Authenticate,
            Stage::Parse,
            Stage::Authorize,
            Stage::Route,
            Stage::Render,
            Stage::Cache,
            Stage::Hold,
            Stage::Place,
            Stage::Postprocess,
            Stage::Deliver,
            Stage::Settle,
        ] {
            assert!(trace.stages.iter().any(|span| span.stage == stage), "{stage} is in the trace");
        }
        assert!(!serde_json::to_string(&*trace).unwrap().contains("CANARY"), "no prompt text in a trace");
        let shown = world.request(request_trace(&id), "").await;
        assert_eq!(shown.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_and_whole_answers_say_the_same_for_several_choices_and_prompts() {
    let world = World::new(Setup::default());
    let mut body =
        serde_json::json!({"model": "alias", "prompt": ["one", "two"], "n": 2, "max_tokens": 3, "seed": 1});
    let whole: serde_json::Value =
        serde_json::from_str(&read(world.call(Endpoint::Completions, body.clone()).await).await).unwrap();
    assert_eq!(whole["choices"].as_array().unwrap().len(), 4);
    body["stream"] = true.into();
    let streamed = read(world.call(Endpoint::Completions, body).await).await;
    let mut texts = vec![String::new(); 4];
    for data in
        streamed.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
    {
        let chunk: serde_json::Value = serde_json::from_str(data).unwrap();
        for choice in chunk["choices"].as_array().unwrap() {
            texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap_or("");
        }
    }
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(whole["choices"][index]["text"].as_str().unwrap(), text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_cancels_the_engine_and_pays_for_what_was_computed() {
    let world = World::new(Setup::default());
    world.script(Script::ThenWait(3));
    let answer = world.chat(true).await;
    assert_eq!(answer.status, 200);
    drop(answer);
    let balance = world.balance_when_idle().await;
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 1);
    let trace = world.last_trace();
    assert!(matches!(&trace.outcome, CallOutcome::Cancelled { .. }), "{:?}", trace.outcome);
    assert_eq!(trace.usage.output, 3);
    assert_eq!(trace.cost.get(), i64::try_from(trace.usage.input).unwrap() * INPUT + 3 * OUTPUT);
    assert_eq!(balance, dollars("1").checked_sub(trace.cost).unwrap());
}

/// Waits until the engine has a job.
async fn begun(world: &World) {
    while world.engine.jobs.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_before_the_head_cancels_too() {
    let world = World::new(Setup::default());
    world.script(Script::ThenWait(0));
    tokio::select! {
        answer = world.chat(false) => panic!("it is answered with {}", answer.status),
        () = begun(&world) => {}
    }
    let _ = world.balance_when_idle().await;
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 1);
}

/// Abuse 9: an SSE reader stalls after the first token.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stalls_is_cut_off_and_pays_for_what_was_written() {
    let world = World::new(Setup { stall: Duration::from_secs(1), ..Setup::default() });
    world.script(Script::ThenWait(400));
    // The hold covers all of it, so that the charge is bounded by what was written and not by the hold.
    let mut body = chat_body(true);
    body["max_tokens"] = 400.into();
    let answer = world.call(Endpoint::ChatCompletions, body).await;
    let AnswerBody::Stream(mut delivery) = answer.body else { panic!("a stream") };
    let first = std::future::poll_fn(|cx| delivery.poll_frame(cx)).await.unwrap().unwrap();
    assert!(!first.is_empty());
    // The client reads nothing more, but stays connected.
    let _ = world.balance_when_idle().await;
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 1, "its blocks are free");
    let trace = world.last_trace();
    assert!(matches!(&trace.outcome, CallOutcome::Cancelled { why } if why.contains("read nothing")));
    let full = i64::try_from(trace.usage.input).unwrap() * INPUT + 400 * OUTPUT;
    assert!(trace.cost.get() < full, "not the full charge: {} of {full}", trace.cost);
    assert_eq!(trace.cost.get() + trace.loss.get(), full, "the rest is our loss");
    assert!(trace.loss.get() > 0);
    let after = std::future::poll_fn(|cx| delivery.poll_frame(cx)).await;
    assert_eq!(
        after,
        Some(Err(BrokenBody)),
        "what nobody paid for is not handed out, and it does not end well"
    );
}

/// Frames that the transport took have not left it. Its reader counts as stalled like one that takes nothing here, and
/// no sooner.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stalls_behind_what_the_transport_holds_is_cut_off_as_well() {
    struct Full(std::time::Instant);
    impl TransportOutlet for Full {
        fn blocked_for(&self) -> Duration {
            self.0.elapsed()
        }
    }
    let world = World::new(Setup { stall: Duration::from_secs(1), ..Setup::default() });
    world.script(Script::ThenWait(4));
    let answer = world.chat(true).await;
    let AnswerBody::Stream(mut delivery) = answer.body else { panic!("a stream") };
    delivery.set_outlet(std::sync::Arc::new(Full(std::time::Instant::now())));
    // The transport takes every frame, so nothing ever waits here.
    let mut last = None;
    while let Some(frame) = std::future::poll_fn(|cx| delivery.poll_frame(cx)).await {
        let ended = frame.is_err();
        last = Some(frame);
        if ended {
            break;
        }
    }
    assert_eq!(last, Some(Err(BrokenBody)));
    let _ = world.balance_when_idle().await;
    let trace = world.last_trace();
    assert!(matches!(&trace.outcome, CallOutcome::Cancelled { why } if why.contains("read nothing")));
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 1);
}

/// The engine is done and the money is settled. Bytes that wait for a reader that takes nothing are discarded all the
/// same.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_nobody_reads_is_let_go() {
    for stream in [false, true] {
        let world = World::new(Setup { stall: Duration::from_secs(1), ..Setup::default() });
        let answer = world.chat(stream).await;
        assert_eq!(answer.status, 200);
        assert_eq!(world.gateway.in_flight(), 1, "until its last byte is taken");
        let balance = world.balance_when_idle().await;
        assert_eq!(balance, dollars("1").checked_sub(world.last_trace().cost).unwrap(), "it ran to its end");
        let (text, end) = read_to_the_end(answer).await;
        assert_eq!((text.as_str(), end), ("", Err(BrokenBody)));
    }
}

/// A call that waits or runs longer than its money is held ends before its hold does. Work without a hold would be
/// free.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_before_its_hold_does_and_is_settled() {
    let world = World::new(Setup { hold: Duration::from_secs(2), ..Setup::default() });
    world.script(Script::ThenWait(0));
    let answer = tokio::time::timeout(Duration::from_secs(60), world.chat(false)).await.expect("it ends");
    assert_eq!(answer.status, 504);
    let body = read(answer).await;
    assert!(body.contains("call_too_long") && body.contains("hold_lifetime"), "{body}");
    assert_eq!(world.balance_when_idle().await, dollars("1"), "nothing was delivered");
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 1, "its blocks are free");

    world.script(Script::ThenWait(2));
    let begun = std::time::Instant::now();
    let body = read(world.chat(true).await).await;
    assert!(begun.elapsed() > Duration::from_millis(1_700), "its own hold counts, not the server's age");
    assert!(body.contains("call_too_long") && !body.contains("[DONE]"), "{body}");
    let left = world.balance_when_idle().await;
    let trace = world.last_trace();
    assert!(trace.cost > NanoDollars::ZERO, "what was delivered is charged");
    assert_eq!(left.get(), dollars("1").get() - trace.cost.get());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let expired = world.ledger.transact(vec![LedgerOperation::ExpireHolds], SystemClock::new().now());
    let receipts = expired.verdicts.into_iter().map(|verdict| verdict.into_result().unwrap());
    assert!(
        receipts
            .into_iter()
            .all(|receipt| matches!(receipt, Receipt::ReleasedMany { holds, .. } if holds.is_empty()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ended_for_its_length_says_so_to_a_reader_who_looks_later() {
    let stall = Duration::from_secs(60);
    let world = World::new(Setup { hold: Duration::from_secs(2), stall, ..Setup::default() });
    world.script(Script::ThenWait(2));
    let answer = world.chat(true).await;
    while *world.engine.cancelled.lock().unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let body = read(answer).await;
    assert!(body.contains("call_too_long") && !body.contains("[DONE]"), "{body}");
    let _ = world.balance_when_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_after_the_first_byte_is_an_error_event_and_never_looks_like_success() {
    let world = World::new(Setup::default());
    world.script(Script::ThenFail(2));
    let answer = world.chat(true).await;
    assert_eq!(answer.status, 200);
    world.engine.may_fail.store(true, Ordering::SeqCst);
    let body = read(answer).await;
    assert!(body.contains("not_finite") && !body.contains("[DONE]"), "{body}");
    let _ = world.balance_when_idle().await;
    let trace = world.last_trace();
    assert!(matches!(trace.outcome, CallOutcome::Failed { .. }));
    // The same answer, not streamed: an error status, and no charge.
    let answer = world.chat(false).await;
    assert_eq!(answer.status, 500);
    let _ = world.balance_when_idle().await;
    let trace = world.last_trace();
    assert_eq!(trace.cost, NanoDollars::ZERO);
    assert!(trace.loss > NanoDollars::ZERO, "what was computed is our loss");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_panics_or_is_full_costs_nothing_and_the_next_call_is_served() {
    let world = World::new(Setup::default());
    for (script, status, retry) in [(Script::Panic, 500, None), (Script::Full, 503, Some("3"))] {
        world.script(script);
        let answer = world.chat(true).await;
        assert_eq!((answer.status, header(&answer, "retry-after")), (status, retry));
        assert_eq!(world.balance_when_idle().await, dollars("1"));
    }
    world.script(Script::Answer);
    assert_eq!(world.chat(false).await.status, 200);
}

/// Tokens are charged when they become visible. The opening of an answer shows none of those whose text is held back.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_seen_the_head_of_an_answer_and_no_text_pays_nothing() {
    for (script, pays) in [(Script::HeldThenFail(3), false), (Script::ThenFail(3), true)] {
        let world = World::new(Setup::default());
        world.script(script);
        let answer = world.chat(true).await;
        assert_eq!(answer.status, 200);
        let AnswerBody::Stream(mut delivery) = answer.body else { panic!("a stream") };
        let mut seen = String::new();
        while !seen.contains(if pays { "ha ha ha" } else { "assistant" }) {
            let frame = std::future::poll_fn(|cx| delivery.poll_frame(cx)).await.unwrap().unwrap();
            let texts = String::from_utf8(frame.to_vec()).unwrap();
            let chunks = texts.lines().filter_map(|line| line.strip_prefix("data: "));
            for chunk in chunks.map(|data| serde_json::from_str::<serde_json::Value>(data).unwrap()) {
                let delta = &chunk["choices"][0]["delta"];
                seen += delta["role"].as_str().unwrap_or_default();
                seen += delta["content"].as_str().unwrap_or_default();
            }
        }
        world.engine.may_fail.store(true, Ordering::SeqCst);
        while std::future::poll_fn(|cx| delivery.poll_frame(cx)).await.is_some_and(|frame| frame.is_ok()) {}
        let _ = world.balance_when_idle().await;
        let trace = world.last_trace();
        let all = i64::try_from(trace.usage.input).unwrap() * INPUT + 3 * OUTPUT;
        let expected = if pays { (all, 0) } else { (0, all) };
        assert_eq!((trace.cost.get(), trace.loss.get()), expected, "{script:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_refuses_new_calls_and_cuts_off_the_rest_settled() {
    let world = World::new(Setup::default());
    world.script(Script::ThenWait(2));
    let answer = world.chat(true).await;
    let reader = tokio::spawn(read(answer));
    assert_eq!(world.gateway.drain(Duration::from_millis(50)).await, 1);
    let body = reader.await.unwrap();
    assert!(body.contains("shutting_down") && !body.contains("[DONE]"), "{body}");
    assert_eq!(world.chat(false).await.status, 503);
    let _ = world.balance_when_idle().await;
}
