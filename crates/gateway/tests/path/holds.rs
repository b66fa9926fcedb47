//! Money and limits: never oversold, all or nothing, and no byte of a success before its hold is on the disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headrace_call_api::CallService;
use headrace_domain::{CallOutcome, NanoDollars, Stage};
use headrace_identity::RateLimits;
use headrace_ledger::{AppendFault, LedgerOperation};

use crate::world::{Script, Setup, World, header, read};

/// Abuse 11: 64 calls at once, balance for one.
#[tokio::test(flavor = "multi_thread")]
async fn of_64_calls_at_once_with_balance_for_one_one_runs() {
    let probe = World::new(Setup::default());
    probe.chat(false).await;
    let _ = probe.balance_when_idle().await;
    let needed = probe.last_trace().held;

    let world = Arc::new(World::new(Setup { credit: needed, ..Setup::default() }));
    world.script(Script::ThenWait(1));
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let answer = world.chat(true).await;
                let retry = header(&answer, "retry-after").map(str::to_owned);
                (answer.status, retry, answer)
            })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    assert_eq!(answers.iter().filter(|(status, ..)| *status == 200).count(), 1);
    let refused: Vec<_> = answers.iter().filter(|(status, ..)| *status == 402).collect();
    assert_eq!(refused.len(), 63);
    assert!(
        refused.iter().all(|(_, retry, _)| retry.is_some()),
        "held by their own call in flight: try again"
    );
    assert_eq!(world.engine.jobs.lock().unwrap().len(), 1, "one execution");
    drop(answers);
    assert!(!world.balance_when_idle().await.is_negative());
}

/// Waking the writer for each call alone costs more than the call. On one thread all calls request their holds before
/// the first call's second turn.
#[tokio::test]
async fn what_calls_of_one_moment_hold_is_written_together_streamed_or_not() {
    for stream in [false, true] {
        let world = World::new(Setup::default());
        let _ = world.balance_when_idle().await;
        let before = world.journal.contents().rows.len();
        let answers = futures_util::future::join_all((0..32).map(|_| async {
            let answer = world.chat(stream).await;
            assert_eq!(answer.status, 200);
            read(answer).await
        }));
        answers.await;
        let _ = world.balance_when_idle().await;
        let rows = world.journal.contents().rows.len() - before;
        assert!(rows <= 6, "32 holds and 32 settlements in {rows} rows, streamed: {stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_balance_is_402_without_retry_after() {
    let world = World::new(Setup { credit: NanoDollars::new(5), ..Setup::default() });
    let answer = world.chat(false).await;
    assert_eq!((answer.status, header(&answer, "retry-after")), (402, None));
    let body = read(answer).await;
    assert!(body.contains("out_of_money") && body.contains("\"stage\":\"hold\""), "{body}");
}

/// Invariant 17: if the ledger refuses, what the limits gave is returned.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_the_ledger_gives_the_limits_back() {
    let limits =
        RateLimits { requests_per_minute: Some(3), tokens_per_minute: Some(200), concurrency: Some(1) };
    let world = World::new(Setup { credit: NanoDollars::new(5), limits, ..Setup::default() });
    for _ in 0..3 {
        assert_eq!(world.chat(false).await.status, 402, "tokens and place came back each time");
    }
    assert_eq!(world.limits.metrics().leases, 0);
    assert_eq!(world.limits.metrics().abandoned, 0);
    assert_eq!(world.chat(false).await.status, 429, "the requests stay counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_journal_nothing_leaves_and_nothing_is_charged() {
    let world = World::new(Setup::default());
    let before = world.balance_when_idle().await;
    // An append that reports an error may have written nevertheless. Then the hold is open and must be ended.
    for (stream, fault) in [
        (false, AppendFault::NotWritten),
        (true, AppendFault::NotWritten),
        (false, AppendFault::Written),
        (true, AppendFault::Written),
    ] {
        world.journal.fail_append(1, fault);
        let answer = world.chat(stream).await;
        assert_eq!(answer.status, 503, "no success without a durable hold");
        assert!(header(&answer, "retry-after").is_some());
        let body = read(answer).await;
        assert!(body.contains("journal_unavailable") && !body.contains("ha "), "{body}");
        // The ledger recovers by itself, with the balance it had.
        for _ in 0..3_000 {
            if world.gateway.not_ready(None).is_empty() && world.gateway.in_flight() == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(world.balance_when_idle().await, before);
        assert_eq!(world.ledger.totals().open_holds, 0, "{fault:?}");
    }
    assert_eq!(world.chat(false).await.status, 200, "the next call is served");
}

/// If a hold ended before its call did, the call was not paid for, and no record says that it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_hold_had_expired_is_traced_as_unpaid() {
    let world = World::new(Setup::default());
    world.script(Script::ThenFail(2));
    let answer = world.chat(true).await;
    assert_eq!(answer.status, 200);
    let much_later = headrace_domain::UnixNanos::new(u64::MAX / 2);
    world.ledger.transact(vec![LedgerOperation::ExpireHolds], much_later).durable.await.unwrap();
    assert_eq!(world.ledger.health().expired, 1);
    world.engine.may_fail.store(true, Ordering::SeqCst);
    let _ = read(answer).await;
    assert_eq!(world.balance_when_idle().await, NanoDollars::from_dollars("1").unwrap());
    let trace = world.last_trace();
    assert_eq!(trace.cost, NanoDollars::ZERO);
    assert!(trace.loss > NanoDollars::ZERO, "what was used is our loss");
    let CallOutcome::Failed { stage: Stage::Settle, message } = &trace.outcome else {
        panic!("{:?}", trace.outcome)
    };
    assert!(message.contains("not charged") && message.contains("Expired"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_nothing_left_is_told_so_and_not_what_a_call_costs() {
    let world = World::new(Setup { credit: NanoDollars::ZERO, ..Setup::default() });
    let answer = world.chat(false).await;
    assert_eq!((answer.status, header(&answer, "retry-after")), (402, None));
    let body = read(answer).await;
    assert!(body.contains("Out of money: the balance is") && !body.contains("can cost"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_refuse_with_their_numbers_and_are_given_back() {
    let limits = RateLimits { requests_per_minute: Some(2), tokens_per_minute: None, concurrency: Some(1) };
    let world = World::new(Setup { limits, ..Setup::default() });
    world.script(Script::ThenWait(1));
    let running = world.chat(true).await;
    assert_eq!(running.status, 200);
    assert_eq!(header(&running, "x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(header(&running, "x-ratelimit-remaining-requests"), Some("1"));
    let refused = world.chat(false).await;
    assert_eq!(refused.status, 429);
    assert!(header(&refused, "retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let body = read(refused).await;
    assert!(body.contains("concurrency") && body.contains("\"stage\":\"hold\""), "{body}");
    drop(running);
    let _ = world.balance_when_idle().await;
    world.script(Script::Answer);
    assert_eq!(world.chat(false).await.status, 200, "the place in flight was given back");
    let refused = world.chat(false).await;
    assert_eq!(refused.status, 429);
    assert_eq!(header(&refused, "x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(header(&refused, "x-ratelimit-remaining-requests"), Some("0"));
    assert!(header(&refused, "x-ratelimit-reset-requests").is_some());
    assert!(read(refused).await.contains("requests_per_minute"));
    assert_eq!(world.limits.metrics().leases, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_tokens_of_a_minute_are_given_back_and_a_call_that_can_never_fit_is_told_so() {
    let limits = RateLimits { requests_per_minute: None, tokens_per_minute: Some(120), concurrency: None };
    let world = World::new(Setup { limits, ..Setup::default() });
    for _ in 0..3 {
        let answer = world.chat(false).await;
        assert_eq!(answer.status, 200, "each holds its maximum and gives back what it did not use");
        read(answer).await;
        let _ = world.balance_when_idle().await;
    }
    let mut body = crate::world::chat_body(false);
    body["max_tokens"] = 400.into();
    let answer = world.call(headrace_domain::Endpoint::ChatCompletions, body).await;
    assert_eq!((answer.status, header(&answer, "retry-after")), (400, None));
}
