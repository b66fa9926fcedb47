//! Every shape of load against a scripted server, over real sockets and in short real times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "common/server.rs"]
mod server;

use std::collections::HashSet;
use std::time::Duration;

use headrace_bench::{
    AgentRole, Api, ArrivalSpread, BenchConfig, BenchError, BenchReport, ConversationTurns, LoadShape,
    PauseLength, RunPlan, RunSnapshot, RunWatcher, SharedPrefix, StopRule, TokenLength, TraceCall, Warmup,
    read_trace, run, write_trace,
};
use serde_json::Value;
use server::{Script, Server};
use tokio_util::sync::CancellationToken;

/// The longest that a run may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One user with `requests` short calls.
fn config(server: &Server, requests: u64) -> BenchConfig {
    let mut config = BenchConfig::new(server.url.clone());
    config.stop = StopRule { requests: Some(requests), duration: None };
    config.shape.prompt = TokenLength::constant(40);
    config.shape.output = TokenLength::constant(8);
    config
}

async fn measure(config: &BenchConfig) -> BenchReport {
    let mut unwatched = ();
    let running = run(config, &mut unwatched, CancellationToken::new());
    tokio::time::timeout(PATIENCE, running).await.expect("the run does not end").unwrap()
}

fn content(body: &Value) -> &str {
    body["messages"][0]["content"].as_str().unwrap()
}

#[tokio::test]
async fn closed_loop_keeps_every_user_at_one_call() {
    let server = Server::start(Script { gap: ms(1), gather: 5, ..Script::default() }).await;
    let mut config = config(&server, 30);
    config.load = LoadShape::Closed { users: 5, think: PauseLength::NONE };
    config.warmup = Warmup::Calls(5);
    let report = measure(&config).await;
    assert_eq!((report.calls.ok, report.calls.warmup, report.calls.failed), (30, 5, 0));
    assert_eq!((server.bodies().len(), server.most_in_flight()), (35, 5));
    assert_eq!((report.server.model.as_str(), report.server.context_window), ("scripted", Some(100_000)));
    // 35 words and 5 template tokens, as the server counts them.
    assert_eq!((report.tokens.prompt_per_call.min, report.tokens.prompt_per_call.max), (40.0, 40.0));
    assert_eq!((report.tokens.output, report.tokens.cached), (240, Some(600)));
    assert_eq!((report.latency.itl_ms.count, report.latency.from_due.ttft_ms.count), (30 * 7, 30));
    let ttft = report.latency.from_sent.ttft_ms;
    assert!(ttft.min >= 2.0 && ttft.max <= report.elapsed_s * 1e3 + 1.0, "{ttft:?} {}", report.elapsed_s);
    assert!(report.rates.due_per_s.is_none() && report.rates.output_tokens_per_s > 0.0);
    let texts: HashSet<String> = server.bodies().iter().map(|body| content(body).to_owned()).collect();
    assert_eq!(texts.len(), 35);
}

#[tokio::test]
async fn users_think_between_calls() {
    let server = Server::start(Script::default()).await;
    let mut config = config(&server, 4);
    config.load = LoadShape::Closed { users: 1, think: "60ms".parse().unwrap() };
    let report = measure(&config).await;
    assert!(report.elapsed_s >= 0.18, "{}", report.elapsed_s);
    // Three pauses and four answers, rounded to a millisecond.
    let answers_ms = 4.0 * report.latency.from_due.e2e_ms.mean;
    assert!(answers_ms + 180.0 <= report.elapsed_s * 1e3 + 1.0, "thinking is no latency: {report:?}");
}

#[tokio::test]
async fn open_loop_sends_at_its_rate_whatever_the_answers_do() {
    // No call is answered before all are sent.
    let server = Server::start(Script { gather: 40, ..Script::default() }).await;
    let mut config = config(&server, 40);
    config.load = LoadShape::Open { rate: 100.0, arrivals: ArrivalSpread::Poisson };
    let report = measure(&config).await;
    assert_eq!((report.calls.ok, server.most_in_flight()), (40, 40));
    let due = report.rates.due_per_s.unwrap();
    assert!((50.0..200.0).contains(&due), "{due}");
}

#[tokio::test]
async fn bursts_arrive_together() {
    let server = Server::start(Script { gather: 8, ..Script::default() }).await;
    let mut config = config(&server, 16);
    config.load = LoadShape::Open { rate: 80.0, arrivals: ArrivalSpread::Bursts(8) };
    config.record = true;
    let report = measure(&config).await;
    assert_eq!(report.calls.ok, 16);
    assert!(server.most_in_flight() >= 8, "{}", server.most_in_flight());
    let due: Vec<f64> = report.trace.iter().map(|call| call.at_ms).collect();
    assert!(due[0] == due[7] && due[7] < due[8] && due[8] == due[15], "{due:?}");
}

#[tokio::test]
async fn a_duration_ends_the_sending_and_waits_for_what_is_in_flight() {
    let server = Server::start(Script { first: ms(100), ..Script::default() }).await;
    let mut config = config(&server, 1);
    config.stop = StopRule { requests: None, duration: Some(ms(500)) };
    config.warmup = Warmup::Time(ms(200));
    config.load = LoadShape::Open { rate: 100.0, arrivals: ArrivalSpread::Gamma(100.0) };
    config.record = true;
    let planned: Vec<Duration> =
        RunPlan::new(&config).sessions().map(|session| session.at).take_while(|at| *at < ms(700)).collect();
    let warm = planned.iter().filter(|at| **at < ms(200)).count();
    assert!((15..=25).contains(&warm) && (40..=60).contains(&(planned.len() - warm)), "{planned:?}");
    // A busy machine may come to the last calls when the time is over. Then another run shows them.
    let mut whole = false;
    for _ in 0..20 {
        let report = measure(&config).await;
        assert_eq!(report.window_s, 0.5);
        let calls = report.calls;
        assert_eq!((calls.sent, calls.unsent, calls.cut_off), (calls.ok, 0, 0));
        assert_eq!(report.trace.len() as u64, calls.warmup + calls.ok);
        for (call, planned) in report.trace.iter().zip(&planned) {
            assert!((call.at_ms - planned.as_secs_f64() * 1e3).abs() < 0.01, "{} {planned:?}", call.at_ms);
        }
        whole = report.trace.len() == planned.len() && calls.warmup == warm as u64;
        if whole {
            break;
        }
    }
    assert!(whole, "no run sent all of {}", planned.len());
}

/// The server stalls for a second. Only one call is in flight, so the generator cannot send the calls that become due
/// meanwhile. From sending, the stall is one slow call in a hundred. From due, the latencies show what users would have
/// seen.
#[tokio::test]
async fn a_stall_shows_in_every_call_that_was_due_in_it() {
    let stall = Some((30, ms(1_000)));
    let server = Server::start(Script { stall, ..Script::default() }).await;
    let mut config = config(&server, 150);
    config.shape.output = TokenLength::constant(2);
    config.max_in_flight = 1;
    config.load = LoadShape::Open { rate: 60.0, arrivals: ArrivalSpread::Gamma(1_000.0) };
    let report = measure(&config).await;
    assert_eq!(report.calls.ok, 150);
    let (due, sent) = (report.latency.from_due.ttft_ms, report.latency.from_sent.ttft_ms);
    let lag = report.latency.send_lag_ms;
    assert!(due.p99 > 850.0 && due.p90 > 500.0, "{due:?}");
    assert!(sent.max >= 1_000.0 && lag.p90 > 400.0, "{sent:?} {lag:?}");
    // What is counted from sending has nothing of the wait before it.
    assert!((sent.mean + lag.mean - due.mean).abs() < 0.01, "{sent:?} {lag:?} {due:?}");
    // The limit of calls in flight delayed them, and the report says so.
    assert!(report.generator.waited_for_place > 40 && report.generator.in_flight_max == 1);
    assert!(report.remarks.iter().any(|remark| remark.contains("--max-in-flight")), "{:?}", report.remarks);
}

/// The generator itself stalls for half a second on its only thread. Calls that became due meanwhile waited for it.
#[tokio::test]
async fn a_stall_of_the_generator_shows_too() {
    struct Stalls(u32);
    impl RunWatcher for Stalls {
        fn show(&mut self, _snapshot: &RunSnapshot) {
            self.0 += 1;
            if self.0 == 1 {
                std::thread::sleep(ms(500));
            }
        }
    }
    let server = Server::start(Script::default()).await;
    let mut config = config(&server, 150);
    config.shape.output = TokenLength::constant(2);
    config.load = LoadShape::Open { rate: 100.0, arrivals: ArrivalSpread::Gamma(1_000.0) };
    let report = run(&config, &mut Stalls(0), CancellationToken::new()).await.unwrap();
    assert_eq!(report.calls.ok, 150);
    let (due, lag) = (report.latency.from_due.ttft_ms, report.latency.send_lag_ms);
    assert!(due.max > 450.0 && due.p90 > 250.0 && lag.p90 > 250.0, "{due:?} {lag:?}");
    assert!(report.remarks.iter().any(|remark| remark.contains("could not keep up")), "{:?}", report.remarks);
}

#[tokio::test]
async fn calls_that_could_not_be_sent_are_counted_and_are_no_goodput() {
    let server = Server::start(Script { first: ms(150), ..Script::default() }).await;
    let mut config = config(&server, 1);
    config.stop = StopRule { requests: None, duration: Some(ms(400)) };
    config.max_in_flight = 2;
    config.load = LoadShape::Open { rate: 100.0, arrivals: ArrivalSpread::Gamma(1_000.0) };
    config.slo = "e2e=10s".parse().ok();
    let report = measure(&config).await;
    let (calls, goodput) = (report.calls, report.goodput.unwrap());
    assert!(calls.unsent > 20 && calls.ok < 15, "{calls:?}");
    assert_eq!((goodput.offered, goodput.good), (calls.ok + calls.unsent, calls.ok));
    assert!(report.remarks.iter().any(|remark| remark.contains("never sent")), "{:?}", report.remarks);
}

#[tokio::test]
async fn shared_prefixes_are_shared_by_their_groups() {
    let server = Server::start(Script::default()).await;
    let mut config = config(&server, 40);
    config.shape.prompt = TokenLength::constant(64);
    config.shape.prefix = Some(SharedPrefix { tokens: 48, groups: 2, share: 0.75 });
    config.load = LoadShape::Closed { users: 4, think: PauseLength::NONE };
    let report = measure(&config).await;
    assert_eq!((report.tokens.prompt_per_call.min, report.tokens.prompt_per_call.max), (64.0, 64.0));
    let mut beginnings: Vec<(String, usize)> = Vec::new();
    for body in server.bodies() {
        let beginning: Vec<&str> = content(&body).split(' ').take(43).collect();
        let beginning = beginning.join(" ");
        match beginnings.iter_mut().find(|(known, _)| *known == beginning) {
            Some((_, count)) => *count += 1,
            None => beginnings.push((beginning, 1)),
        }
    }
    let shared: usize = beginnings.iter().filter(|(_, count)| *count > 1).map(|(_, count)| count).sum();
    assert_eq!(beginnings.iter().filter(|(_, count)| *count > 1).count(), 2);
    assert!((20..40).contains(&shared), "{shared}");
}

#[tokio::test]
async fn conversations_grow_by_the_servers_answers() {
    let server = Server::start(Script::default()).await;
    let mut config = config(&server, 6);
    config.shape.turns = ConversationTurns::Chat(3);
    config.shape.turn_tokens = TokenLength::constant(10);
    let report = measure(&config).await;
    assert_eq!(report.calls.ok, 6);
    let lengths: Vec<usize> =
        server.bodies().iter().map(|body| body["messages"].as_array().unwrap().len()).collect();
    assert_eq!(lengths, [1, 3, 5, 1, 3, 5]);
    let last = &server.bodies()[5]["messages"];
    assert_eq!(last[1]["content"], "word ".repeat(8));
    assert_eq!(last[2]["content"].as_str().unwrap().split(' ').count(), 10);
    // 40 tokens, then twice the answer's 8, 10 more, and 5 template tokens for each message.
    assert_eq!((report.tokens.prompt_per_call.min, report.tokens.prompt_per_call.max), (40.0, 96.0));
}

#[tokio::test]
async fn agents_append_results_without_a_pause() {
    let server = Server::start(Script::default()).await;
    let mut config = config(&server, 4);
    config.load = LoadShape::Closed { users: 1, think: "1h".parse().unwrap() };
    config.shape.turns = ConversationTurns::Agent { hops: 3, role: AgentRole::Tool };
    assert_eq!(measure(&config).await.calls.ok, 4);
    let bodies = server.bodies();
    let roles: Vec<&str> =
        bodies[3]["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool"]);
}

#[tokio::test]
async fn plain_completions_streamed_and_whole() {
    for stream in [true, false] {
        let server = Server::start(Script::default()).await;
        let mut config = config(&server, 5);
        config.api = Api::Completions;
        config.stream = stream;
        config.ignore_eos = true;
        let report = measure(&config).await;
        assert_eq!((report.calls.ok, report.tokens.output), (5, 40));
        assert_eq!(report.tokens.prompt_per_call.mean, 40.0);
        let bodies = server.bodies();
        assert!(bodies.iter().all(|body| body["prompt"].is_string() && body["ignore_eos"] == true));
        let first = if stream { 5 } else { 0 };
        assert_eq!(report.latency.from_due.ttft_ms.count, first);
        assert_eq!(report.latency.from_due.e2e_ms.count, 5);
    }
}

#[tokio::test]
async fn a_run_is_recorded_and_played_again() {
    let server = Server::start(Script::default()).await;
    let mut config = config(&server, 12);
    config.load = LoadShape::Open { rate: 100.0, arrivals: ArrivalSpread::Poisson };
    config.shape.output = "uniform:3..9".parse().unwrap();
    config.shape.prefix = Some(SharedPrefix { tokens: 20, groups: 1, share: 0.5 });
    config.record = true;
    let first = measure(&config).await;
    let mut written = Vec::new();
    write_trace(&mut written, &first.trace).unwrap();
    let calls = read_trace(written.as_slice()).unwrap();
    let asked = server.bodies();
    config.stop = StopRule { requests: None, duration: None };
    config.load = LoadShape::Replay { calls, speed: 2.0 };
    let again = measure(&config).await;
    assert_eq!((again.calls.ok, again.tokens.output), (12, first.tokens.output));
    assert_eq!(again.tokens.prompt, first.tokens.prompt);
    let wanted = |bodies: &[Value]| {
        let mut lengths: Vec<u64> = bodies.iter().map(|body| body["max_tokens"].as_u64().unwrap()).collect();
        lengths.sort_unstable();
        lengths
    };
    assert_eq!(wanted(&server.bodies()[12..]), wanted(&asked));
    // At twice the speed the arrivals take half the time.
    let span = |report: &BenchReport| report.trace.last().unwrap().at_ms - report.trace[0].at_ms;
    assert!((span(&again) * 2.0 - span(&first)).abs() < 1.0, "{} {}", span(&again), span(&first));
}

#[tokio::test]
async fn a_replayed_conversation_keeps_its_order_and_its_times() {
    let server = Server::start(Script { first: ms(100), ..Script::default() }).await;
    let mut config = config(&server, 1);
    config.stop = StopRule { requests: None, duration: None };
    let call = |at_ms, prompt| TraceCall {
        at_ms,
        prompt_tokens: Some(prompt),
        output_tokens: Some(4),
        session: Some("a".into()),
        ..TraceCall::default()
    };
    config.load =
        LoadShape::Replay { calls: vec![call(0.0, 40), call(10.0, 60), call(400.0, 90)], speed: 1.0 };
    config.record = true;
    // On a busy machine the answers may come after the third call's time. Then another run is tried.
    let mut in_time = false;
    for _ in 0..20 {
        let report = measure(&config).await;
        assert_eq!((report.calls.ok, server.most_in_flight()), (3, 1));
        let at: Vec<f64> = report.trace.iter().map(|call| call.at_ms).collect();
        let measured: Vec<_> = report.trace.iter().map(|call| call.measured.clone().unwrap()).collect();
        let ended = |call: usize| at[call] + measured[call].e2e_ms - 0.01;
        // The second call waits for the first answer, and the third for its time and for the second answer.
        assert!(at[1] >= ended(0) && ended(0) > 99.0, "{at:?} {measured:?}");
        assert!(at[2] >= ended(1) && at[2] >= 400.0, "{at:?} {measured:?}");
        // The lag counts from when the call could be sent.
        let lag = measured.iter().map(|call| call.lag_ms).fold(0.0, f64::max);
        assert!((report.latency.send_lag_ms.max - lag).abs() < 0.01, "{:?}", report.latency.send_lag_ms);
        in_time = at[1] < 400.0 && at[2] == 400.0;
        if in_time {
            break;
        }
    }
    assert!(in_time, "no run sent the third call at its time");
}

#[tokio::test]
async fn failures_are_counted_and_the_good_go_on() {
    let server = Server::start(Script { refuse_every: Some(4), ..Script::default() }).await;
    let mut config = config(&server, 20);
    config.slo = "ttft=10s".parse().ok();
    config.load = LoadShape::Closed { users: 4, think: PauseLength::NONE };
    let report = measure(&config).await;
    assert_eq!((report.calls.ok, report.calls.failed), (15, 5));
    let [error] = report.errors.as_slice() else { panic!("{:?}", report.errors) };
    assert_eq!((error.class.as_str(), error.calls), ("429 rate_limit_exceeded", 5));
    assert_eq!(error.example, "slow down");
    assert_eq!(report.goodput.unwrap().share, 0.75);
}

#[tokio::test]
async fn streams_that_break_off_and_calls_that_take_too_long_are_failures() {
    let server = Server::start(Script { break_off: true, ..Script::default() }).await;
    let report = measure(&config(&server, 2)).await;
    assert_eq!((report.calls.failed, report.errors[0].class.as_str()), (2, "cut off"));
    let server = Server::start(Script { first: ms(5_000), ..Script::default() }).await;
    let mut config = config(&server, 1);
    // Only the call has the timeout: nothing else is asked.
    (config.model, config.tokens_per_word) = (Some("scripted".to_owned()), Some(1.0));
    config.timeout = ms(500);
    let report = measure(&config).await;
    assert_eq!((report.calls.failed, report.errors[0].class.as_str()), (1, "timeout"));
}

#[tokio::test]
async fn a_call_whose_kept_connection_is_closed_is_sent_once_more_and_no_more() {
    for (requests_per_connection, ok, again) in [(u64::MAX, 6, 0), (2, 6, 2), (0, 0, 6)] {
        let server = Server::start(Script { requests_per_connection, ..Script::default() }).await;
        let mut config = config(&server, 6);
        // Only the planned calls are sent, without calibration calls.
        (config.model, config.tokens_per_word) = (Some("scripted".to_owned()), Some(1.0));
        let report = measure(&config).await;
        assert_eq!((report.calls.ok, report.calls.failed), (ok, 6 - ok), "{:?}", report.errors);
        assert_eq!(report.generator.sent_again, again);
        assert_eq!(report.remarks.iter().any(|remark| remark.contains("sent once more")), again > 0);
    }
}

#[tokio::test]
async fn a_failed_turn_leaves_out_the_rest_of_its_conversation() {
    let server = Server::start(Script { refuse_every: Some(2), ..Script::default() }).await;
    let mut config = config(&server, 4);
    config.shape.turns = ConversationTurns::Chat(4);
    let report = measure(&config).await;
    assert_eq!((report.calls.ok, report.calls.failed, report.calls.abandoned), (1, 1, 2));
}

#[tokio::test]
async fn tokens_are_counted_by_usage_and_gaps_by_events() {
    let server = Server::start(Script { per_event: 4, gap: ms(4), ..Script::default() }).await;
    let report = measure(&config(&server, 3)).await;
    assert_eq!((report.tokens.output, report.tokens.per_event, report.latency.itl_ms.count), (24, 4.0, 3));
}

#[tokio::test]
async fn a_server_without_usage_is_weighed_by_tokenize_or_guessed() {
    for (tokenize, source, words) in [(true, "tokenize", 40), (false, "assumed", 31)] {
        let server = Server::start(Script { usage: false, tokenize, ..Script::default() }).await;
        let report = measure(&config(&server, 2)).await;
        assert_eq!(report.gauge.source, source);
        assert_eq!(content(&server.bodies()[0]).split(' ').count(), words);
        assert_eq!((report.tokens.output, report.tokens.without_usage), (16, 2));
    }
}

struct CancelAfter(u64, CancellationToken);

impl RunWatcher for CancelAfter {
    fn show(&mut self, snapshot: &RunSnapshot) {
        if snapshot.ended >= self.0 {
            self.1.cancel();
        }
    }
}

#[tokio::test]
async fn a_cancelled_run_reports_what_it_has() {
    let server = Server::start(Script { most_answers: 6, ..Script::default() }).await;
    let mut config = config(&server, 1_000_000);
    config.load = LoadShape::Closed { users: 3, think: PauseLength::NONE };
    let cancel = CancellationToken::new();
    let mut watch = CancelAfter(6, cancel.clone());
    let running = run(&config, &mut watch, cancel);
    let report = tokio::time::timeout(PATIENCE, running).await.expect("it is not cancelled").unwrap();
    assert!(report.cut_short && report.calls.ok == 6 && report.calls.cut_off >= 1, "{:?}", report.calls);
    assert!(report.remarks[0].contains("cut short"));
}

#[tokio::test]
async fn what_makes_no_run_is_said_before_any_load() {
    let server = Server::start(Script { context_window: 60, ..Script::default() }).await;
    let mut long = config(&server, 1);
    long.shape.prompt = "uniform:60..70".parse().unwrap();
    let error = run(&long, &mut (), CancellationToken::new()).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("--prompt-tokens") && said.contains("context of 60"), "{said}");

    let server = Server::start(Script { context_window: 9, ..Script::default() }).await;
    let error = run(&config(&server, 1), &mut (), CancellationToken::new()).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("no load was sent") && said.contains("400 context_length_exceeded"), "{said}");

    let gone = BenchConfig::new("http://127.0.0.1:1");
    let error = run(&gone, &mut (), CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, BenchError::Server(_)), "{error}");
    let named = BenchConfig { model: Some("m".into()), ..gone };
    let error = run(&named, &mut (), CancellationToken::new()).await.unwrap_err();
    assert!(
        matches!(&error, BenchError::Probe { .. }) && error.to_string().contains("no load was sent"),
        "{error}"
    );

    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let error = run(&config(&server, 1), &mut (), cancelled).await.unwrap_err();
    assert!(matches!(error, BenchError::Cancelled));
    assert!(server.bodies().is_empty());
}
