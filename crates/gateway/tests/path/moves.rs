//! A prompt that its worker refuses, or loses before any output, goes to the next worker. The client sees one answer
//! and pays for one, and the trace lists both attempts.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_catalog::{Catalog, CatalogOffer};
use headrace_domain::{
    Attempt, AttemptOutcome, CallOutcome, Clock, Endpoint, ModelName, NanoDollars, RoundOutcome, is_partition,
};
use headrace_engine_api::Engine;
use headrace_fleet::{Fleet, Worker, WorkerSite};
use headrace_ledger::prices::{CostList, PriceList};
use serde_json::{Value, json};

use crate::world::{MODEL, Script, Scripted, Setup, World, chat_body, header, read, read_to_the_end};

/// A world whose workers follow these scripts: `w0`, which wins ties, `w1` and so on.
fn workers(scripts: &[Script]) -> (World, Vec<Arc<Scripted>>) {
    let world = World::new(Setup::default());
    let name = ModelName::new(MODEL).unwrap();
    let engines: Vec<_> = scripts.iter().map(|script| Scripted::new(*script)).collect();
    let worker = |(at, engine): (usize, &Arc<Scripted>)| {
        Worker::new(&format!("w{at}"), name.clone(), Arc::clone(engine) as Arc<dyn Engine>)
    };
    serve_by(&world, Fleet::new(engines.iter().enumerate().map(worker)));
    (world, engines)
}

/// Makes these workers serve the world's model.
fn serve_by(world: &World, fleet: Fleet) {
    let prices = json!([{"model": MODEL, "input": 1_000_000_000i64, "output": 4_000_000_000i64}]);
    let offer = CatalogOffer {
        models: world.gateway.catalog().models().cloned().collect(),
        aliases: BTreeMap::new(),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(prices).unwrap()).unwrap(),
        costs: CostList::default(),
        fleet: Arc::new(fleet),
        judge: None,
        weights: BTreeMap::new(),
        names: headrace_catalog::NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

/// Engines at upstreams that take ids: the answer names only the upstream that it came from, and each upstream receives
/// its own trace context.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_by_ids_names_the_upstream_that_it_came_from() {
    for (scripts, expected) in [
        ([Script::Answer, Script::Answer], "one"),
        ([Script::Full, Script::Answer], "two"),
        ([Script::ThenDie(0), Script::Answer], "two"),
    ] {
        let world = World::new(Setup::default());
        let engines = scripts.map(Scripted::new);
        let worker = |(name, engine): (&str, &Arc<Scripted>)| {
            let engine = Arc::clone(engine) as Arc<dyn Engine>;
            let model = ModelName::new(MODEL).unwrap();
            Worker::new(&format!("{name}/theirs"), model, engine).at(&Arc::new(WorkerSite::new(name)))
        };
        let fleet = Fleet::new(["one", "two"].into_iter().zip(&engines).map(worker));
        serve_by(&world, fleet);
        for stream in [false, true] {
            let answer = world.chat(stream).await;
            assert_eq!((answer.status, header(&answer, "x-headrace-upstream")), (200, Some(expected)));
            read(answer).await;
            world.balance_when_idle().await;
            let trace = world.last_trace();
            assert_eq!(trace.upstream.as_deref(), Some(expected));
            let told = |engine: &Arc<Scripted>| engine.jobs.lock().unwrap().pop().and_then(|job| job.trace);
            let below = |attempt: usize| format!("{} behind {attempt} attempts", trace.request_id);
            let asked = engines.iter().filter_map(told).collect::<Vec<_>>();
            let expected = (trace.attempts.len() + 1 - asked.len()..=trace.attempts.len()).map(below);
            assert!(!asked.is_empty() && asked.iter().map(|told| told.to_string()).eq(expected), "{asked:?}");
        }
    }
    // An engine of this process is no upstream, and records no trace.
    let (world, engines) = workers(&[Script::Answer]);
    assert_eq!(header(&world.chat(false).await, "x-headrace-upstream"), None);
    assert!(engines[0].jobs.lock().unwrap().iter().all(|job| job.trace.is_none()));
}

/// `0:w0 failed engine_unavailable` for each attempt.
fn told(attempts: &[Attempt]) -> Vec<String> {
    let told = |attempt: &Attempt| {
        let kind = attempt.outcome.name();
        let told = format!("{}:{} {kind}", attempt.prompt, attempt.worker);
        match &attempt.outcome {
            AttemptOutcome::Refused { code, why } | AttemptOutcome::Failed { code, why } => {
                assert!(!why.is_empty());
                format!("{told} {code}")
            }
            AttemptOutcome::Answered | AttemptOutcome::Outrun | AttemptOutcome::CutShort => told,
        }
    };
    attempts.iter().map(told).collect()
}

/// A call's answer without the parts that differ between any two calls: its id and times.
pub(crate) async fn said(world: &World, endpoint: Endpoint, body: Value) -> (u16, String) {
    let answer = world.call(endpoint, body).await;
    let id = header(&answer, "x-request-id").unwrap().trim_start_matches("req_").to_owned();
    let status = answer.status;
    let (text, _) = read_to_the_end(answer).await;
    let text = text.replace(&id, "ID");
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some((before, after)) = rest.split_once("\"created\":") {
        out.push_str(before);
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    world.balance_when_idle().await;
    (status, out + rest)
}

/// Calls whose answers differ in what is sent when.
fn calls() -> Vec<(Endpoint, Value)> {
    let mut calls = Vec::new();
    for stream in [false, true] {
        let mut scored = chat_body(stream);
        scored["prompt_logprobs"] = json!(1);
        let mut ids = chat_body(stream);
        ids["return_token_ids"] = json!(true);
        let echo = json!({"model": MODEL, "prompt": "one", "echo": true, "stream": stream, "max_tokens": 3});
        let message = json!({"model": MODEL, "max_tokens": 3, "stream": stream,
            "messages": [{"role": "user", "content": "u"}]});
        calls.extend([
            (Endpoint::ChatCompletions, chat_body(stream)),
            (Endpoint::ChatCompletions, ids),
            (Endpoint::Completions, echo),
            (Endpoint::Messages, message),
        ]);
        calls.push((Endpoint::ChatCompletions, scored));
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_fails_before_anything_shows_is_passed_over_unseen() {
    let (good, _) = workers(&[Script::Answer]);
    for (endpoint, body) in calls() {
        let undisturbed = said(&good, endpoint, body.clone()).await;
        let alone = good.last_trace();
        assert_eq!((undisturbed.0, told(&alone.attempts)), (200, vec!["0:w0 answered".to_owned()]));
        for (script, first) in [
            (Script::Full, "refused queue_full"),
            (Script::TooLate { for_good: false }, "refused deadline_too_short"),
            (Script::TooLate { for_good: true }, "refused deadline_too_short"),
            (Script::ThenDie(0), "failed engine_unavailable"),
            (Script::ThenStop(0), "failed shutting_down"),
        ] {
            if body.get("prompt_logprobs").is_some() && first.starts_with("failed") {
                // Its scores come before it fails: see the next test but one.
                continue;
            }
            let (world, engines) = workers(&[script, Script::Answer]);
            assert_eq!(said(&world, endpoint, body.clone()).await, undisturbed, "{script:?} {body}");
            let trace = world.last_trace();
            let expected = [format!("0:w0 {first}"), "0:w1 answered".to_owned()];
            assert_eq!(told(&trace.attempts), expected, "{script:?}");
            let [first, second] = &trace.attempts[..] else { panic!("two") };
            assert!(first.start_ns + first.duration_ns <= second.start_ns, "{:?}", trace.attempts);
            assert!(second.start_ns + second.duration_ns <= trace.duration_ns, "{:?}", trace.attempts);
            assert!(is_partition(&trace.stages, trace.duration_ns), "{:?}", trace.stages);
            let [round] = &trace.rounds[..] else { panic!("one round, of two attempts: {:?}", trace.rounds) };
            assert_eq!((round.worker.as_deref(), round.usage), (Some("w1"), trace.usage));
            assert_eq!(round.start_ns, first.start_ns);
            assert!(matches!(round.outcome, RoundOutcome::Answered { finish: Some(_) }), "{round:?}");
            assert!(matches!(trace.outcome, CallOutcome::Completed { .. }));
            assert_eq!((trace.usage, trace.cost), (alone.usage, alone.cost), "one answer is paid for");
            assert_eq!(trace.loss, NanoDollars::ZERO);
            assert_eq!(engines[1].jobs.lock().unwrap().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explained_answer_tells_the_tries() {
    let (world, _) = workers(&[Script::Full, Script::ThenDie(0), Script::Answer]);
    let mut body = chat_body(false);
    body["headrace"] = json!({"explain": true});
    let text = read(world.call(Endpoint::ChatCompletions, body).await).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    let attempts = answer["headrace"]["attempts"].as_array().unwrap();
    let kinds: Vec<_> = attempts.iter().map(|attempt| attempt["outcome"]["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["refused", "failed", "answered"]);
    assert_eq!(attempts[0]["outcome"]["code"], "queue_full");
    assert_eq!(attempts[2]["worker"], "w2");
}

/// If the call itself may be the cause, it breaks one worker and not another. Output that was visible is not repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_does_not_move_on_where_that_would_show_or_spread() {
    let mut scored = chat_body(true);
    scored["prompt_logprobs"] = json!(1);
    for (script, body, code) in [
        (Script::Panic, chat_body(true), "engine_failed"),
        (Script::ThenFail(0), chat_body(true), "not_finite"),
        (Script::ThenDie(1), chat_body(true), "engine_unavailable"),
        (Script::ThenStop(1), chat_body(false), "shutting_down"),
        (Script::ThenDie(0), scored, "engine_unavailable"),
    ] {
        let (world, engines) = workers(&[script, Script::Answer]);
        engines[0].may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
        let (_, text) = said(&world, Endpoint::ChatCompletions, body).await;
        assert!(text.contains(code) && !text.contains("[DONE]"), "{script:?}: {text}");
        let trace = world.last_trace();
        assert_eq!(told(&trace.attempts), [format!("0:w0 failed {code}")]);
        assert!(engines[1].jobs.lock().unwrap().is_empty(), "{script:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_is_left_the_word_of_who_suited_best_stands_unless_another_says_that_waiting_helps() {
    use Script::{Full, ThenDie, TooLate};
    let never = TooLate { for_good: true };
    for (scripts, status, retry, code, tries) in [
        (vec![Full, Full, Full], 503, Some("3"), "queue_full", 3),
        (vec![Full, TooLate { for_good: false }], 503, Some("3"), "queue_full", 2),
        (vec![TooLate { for_good: false }, Full], 503, Some("3"), "deadline_too_short", 2),
        (vec![never, Full], 503, Some("3"), "queue_full", 2),
        (vec![Full, never], 503, Some("3"), "queue_full", 2),
        (vec![never, never], 400, None, "deadline_too_short", 2),
        (vec![ThenDie(0), Full], 503, Some("1"), "engine_unavailable", 2),
        (vec![ThenDie(0), ThenDie(0)], 503, Some("1"), "engine_unavailable", 2),
        (vec![Full, ThenDie(0)], 503, Some("1"), "engine_unavailable", 2),
    ] {
        let (world, _) = workers(&scripts);
        let before = world.balance_when_idle().await;
        let answer = world.chat(false).await;
        assert_eq!((answer.status, header(&answer, "retry-after")), (status, retry), "{scripts:?}");
        let text = read(answer).await;
        assert!(text.contains(code), "{scripts:?}: {text}");
        assert_eq!(world.balance_when_idle().await, before, "nothing was charged");
        let trace = world.last_trace();
        assert_eq!(trace.attempts.len(), tries, "{:?}", trace.attempts);
        assert!(is_partition(&trace.stages, trace.duration_ns), "{:?}", trace.stages);
    }
}

/// A prompt over which two workers have broken may be the cause. A worker that shuts down is not broken.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_breaks_two_workers_at_most() {
    use Script::{Answer, ThenDie, ThenStop};
    for (scripts, status, asked) in [
        ([ThenDie(0), ThenDie(0), Answer], 503, [1, 1, 0]),
        ([ThenStop(0), ThenStop(0), Answer], 200, [1, 1, 1]),
        ([ThenDie(0), ThenStop(0), Answer], 200, [1, 1, 1]),
    ] {
        let (world, engines) = workers(&scripts);
        let (told, text) = said(&world, Endpoint::ChatCompletions, chat_body(false)).await;
        assert_eq!(told, status, "{scripts:?}: {text}");
        let jobs: Vec<_> = engines.iter().map(|engine| engine.jobs.lock().unwrap().len()).collect();
        assert_eq!(jobs, asked, "{scripts:?}");
    }
}

/// Each prompt moves by itself: the others keep their workers.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_prompts_the_lost_one_moves_on() {
    for stream in [false, true] {
        let body = json!({"model": MODEL, "prompt": ["one", "two"], "n": 2, "max_tokens": 3, "stream": stream,
            "echo": true});
        let (good, _) = workers(&[Script::Answer]);
        let (_, whole) = said(&good, Endpoint::Completions, body.clone()).await;
        let (world, engines) = workers(&[Script::ThenDie(0), Script::Answer]);
        let (status, text) = said(&world, Endpoint::Completions, body).await;
        let trace = world.last_trace();
        let expected = ["0:w0 failed engine_unavailable", "1:w1 answered", "0:w1 answered"];
        assert_eq!((status, told(&trace.attempts)), (200, expected.map(str::to_owned).to_vec()));
        assert_eq!(engines[1].jobs.lock().unwrap().len(), 2);
        assert!(is_partition(&trace.stages, trace.duration_ns), "{:?}", trace.stages);
        assert_eq!(trace.usage, good.last_trace().usage);
        if stream {
            // The order of the prompts' pieces is not fixed.
            let sorted = |text: &str| {
                let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            assert_eq!(sorted(&text), sorted(&whole));
        } else {
            assert_eq!(text, whole);
        }
    }
}

/// Without a limit, a worker that always dies would double the load. A tenth of the calls, and a saved budget, may be
/// retried.
#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_hears_how_calls_end_and_lends_no_more_tries_than_it_has() {
    let (world, _) = workers(&[Script::ThenDie(0), Script::Answer]);
    let mut moved = 0;
    while moved < 200 && said(&world, Endpoint::ChatCompletions, chat_body(false)).await.0 == 200 {
        moved += 1;
    }
    assert!((100..150).contains(&moved), "{moved} moved on");
    assert_eq!(told(&world.last_trace().attempts), ["0:w0 failed engine_unavailable"]);
    let [dies, answers] = &world.gateway.catalog().fleet().status()[..] else { panic!("two") };
    assert_eq!((dies.totals.calls, dies.totals.failures), (moved + 1, moved + 1));
    assert_eq!(dies.last_error.as_deref(), Some("broke off: it stopped without a word"));
    assert_eq!((answers.totals.calls, answers.totals.failures), (moved, 0));
    assert!(dies.first.is_none() && answers.first.is_some() && answers.whole >= answers.first);
    assert_eq!((dies.in_flight, answers.in_flight), (0, 0));
}
