//! A panic anywhere on the path costs one answer and nothing else: the hold ends once, the lease goes back, the client
//! is answered, the trace is written and the next call is served.

use std::sync::atomic::Ordering;
use std::time::Duration;

use headrace_call_api::CallService;
use headrace_call_state::Answer;
use headrace_domain::{CallOutcome, Endpoint, NanoDollars, is_partition};
use headrace_identity::RateLimits;
use headrace_ledger::AppendFault;

use crate::world::{Script, Setup, World, chat_body, header, read_to_the_end};

/// The course of a call during which something panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Course {
    Whole,
    Streamed,
    Explained,
    /// The client leaves after the first tokens.
    Left,
    /// The client stays and reads nothing.
    Stalled,
    EngineFails,
    EngineIsFull,
    /// The hold does not reach the disk.
    NotHeld,
}

const COURSES: [Course; 8] = [
    Course::Whole,
    Course::Streamed,
    Course::Explained,
    Course::Left,
    Course::Stalled,
    Course::EngineFails,
    Course::EngineIsFull,
    Course::NotHeld,
];

impl Course {
    fn prepare(self, world: &World) {
        world.engine.may_fail.store(true, Ordering::SeqCst);
        world.script(match self {
            Self::Left | Self::Stalled => Script::ThenWait(3),
            Self::EngineFails => Script::ThenFail(2),
            Self::EngineIsFull => Script::Full,
            Self::Whole | Self::Streamed | Self::Explained | Self::NotHeld => Script::Answer,
        });
        if self == Self::NotHeld {
            world.journal.fail_append(1, AppendFault::NotWritten);
        }
    }

    async fn call(self, world: &World) -> Answer {
        let mut body = chat_body(!matches!(self, Self::Whole | Self::Explained));
        if self == Self::Explained {
            body["headrace"] = serde_json::json!({"explain": true});
        }
        world.call(Endpoint::ChatCompletions, body).await
    }
}

fn one_at_a_time() -> Setup {
    let limits = RateLimits { requests_per_minute: None, tokens_per_minute: None, concurrency: Some(1) };
    Setup { limits, stall: Duration::from_millis(40), ..Setup::default() }
}

/// Reads the answer as the course requires, waits until everything is settled and checks the balance.
async fn finish_and_check(world: &World, course: Course, answer: Answer, before: NanoDollars, what: &str) {
    let id = header(&answer, "x-request-id").expect("every answer names its request").to_owned();
    let status = answer.status;
    match course {
        Course::Left => drop(answer),
        Course::Stalled => {
            let _ = world.balance_when_idle().await;
            let _ = read_to_the_end(answer).await;
        }
        _ => {
            let (text, end) = read_to_the_end(answer).await;
            let is_good = status == 200 && end.is_ok() && !text.contains("error");
            assert!(is_good || status >= 500 || end.is_err() || !text.contains("[DONE]"), "{what}: {text}");
        }
    }
    let after = world.balance_when_idle().await;
    let traces = world.traces.0.lock().unwrap();
    let own: Vec<_> = traces.iter().filter(|trace| trace.request_id.to_string() == id).collect();
    assert_eq!(own.len(), 1, "{what}: one trace");
    assert!(is_partition(&own[0].stages, own[0].duration_ns), "{what}: {:?}", own[0].stages);
    let charged = before.checked_sub(after).unwrap();
    if !matches!(&own[0].outcome, CallOutcome::Failed { message, .. } if message.starts_with("a panic")) {
        assert_eq!(charged, own[0].cost, "{what}: the trace says what was charged");
    }
    assert_eq!(world.ledger.totals().open_holds, 0, "{what}");
    assert_eq!(world.limits.metrics().leases, 0, "{what}: the lease is back");
}

async fn until_ready(world: &World) {
    for _ in 0..30_000 {
        if world.gateway.not_ready(None).is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the ledger stays down");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_at_any_reading_of_the_clock_loses_no_money_no_trace_and_no_answer() {
    for course in COURSES {
        let world = World::new(one_at_a_time());
        let mut n = 0;
        loop {
            n += 1;
            let what = format!("{course:?}, reading {n}");
            let before = world.balance_when_idle().await;
            course.prepare(&world);
            world.clock.panic_at(n);
            let answer = course.call(&world).await;
            finish_and_check(&world, course, answer, before, &what).await;
            let done = world.clock.is_armed();
            world.clock.panic_at(0);
            until_ready(&world).await;
            world.script(Script::Answer);
            let mut next = Course::Whole.call(&world).await;
            if course == Course::NotHeld && next.status == 503 {
                // The panic came before the hold, so this call met the planned failure instead.
                until_ready(&world).await;
                next = Course::Whole.call(&world).await;
            }
            assert_eq!(next.status, 200, "{what}: the next call is served");
            let _ = read_to_the_end(next).await;
            if done {
                break;
            }
        }
        assert!(n > 8, "{course:?} reads the clock {n} times: the sweep saw the whole call");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_panics_gets_a_record_of_the_call_all_the_same() {
    for course in COURSES {
        let world = World::new(one_at_a_time());
        let before = world.balance_when_idle().await;
        course.prepare(&world);
        world.traces.2.store(true, Ordering::SeqCst);
        let answer = course.call(&world).await;
        finish_and_check(&world, course, answer, before, &format!("{course:?}")).await;
    }
}
