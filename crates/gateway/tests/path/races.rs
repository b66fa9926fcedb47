//! A call that waits too long for its first output is sent to a second worker. The one that produces output first keeps
//! the call, the other is cancelled at once, and the client sees and pays for one answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use headrace_call_state::Answer;
use headrace_catalog::{Catalog, CatalogOffer, ModelPolicy, ServedModel};
use headrace_domain::{Clock, Dialect, Endpoint, ModelName, TraceRecord, is_partition};
use headrace_engine_api::{Engine, RelayError};
use headrace_fleet::{Fleet, HedgePolicy, Worker, WorkerSite};
use headrace_ledger::prices::PriceList;
use serde_json::{Value, json};

use crate::prices::costs;
use crate::scripted_server::{
    Script, ScriptedServer, answer_of, body, chunk, failed, head, offer, server, spent, status, stream, whole,
};
use crate::world::{
    MODEL, Script as Engines, Scripted, Setup, World, chat_body, header, read, read_to_the_end,
};

/// Calls after which a worker's latency is known well enough.
const KNOWN: usize = 20;

/// Enables hedging for all models of a world: for one call in twenty. `known` names the upstreams whose costs are
/// known.
fn hedged(world: &World, fleet: Arc<Fleet>, known: &[&str]) {
    let hedge = Some(HedgePolicy { after_percent: 95, most_permille: 50 });
    by_policy(world, fleet, ModelPolicy { hedge, ..ModelPolicy::default() }, known);
}

/// Gives all models of a world a policy.
pub(crate) fn by_policy(world: &World, fleet: Arc<Fleet>, policy: ModelPolicy, known: &[&str]) {
    let of_policy =
        |model: &Arc<ServedModel>| Arc::new(ServedModel { policy: policy.clone(), ..(**model).clone() });
    by_offer(world, fleet, of_policy, known);
}

/// Replaces all models of a world.
pub(crate) fn by_models(world: &World, with: impl Fn(&Arc<ServedModel>) -> Arc<ServedModel>) {
    let fleet = Arc::clone(world.gateway.catalog().fleet());
    by_offer(world, fleet, with, &[]);
}

fn by_offer(
    world: &World,
    fleet: Arc<Fleet>,
    with: impl Fn(&Arc<ServedModel>) -> Arc<ServedModel>,
    known: &[&str],
) {
    let price =
        |model: &str| json!({"model": model, "input": 1_000_000_000_i64, "output": 4_000_000_000_i64});
    let prices = json!([price(MODEL), price("far")]);
    let offer = CatalogOffer {
        models: world.gateway.catalog().models().map(with).collect(),
        aliases: BTreeMap::new(),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(prices).unwrap()).unwrap(),
        costs: costs(known),
        fleet,
        judge: None,
        weights: BTreeMap::new(),
        names: headrace_catalog::NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

fn drain(world: &World, worker: &str, drained: bool) {
    let catalog = world.gateway.catalog();
    let found = catalog.fleet().workers().find(|other| &**other.id() == worker).unwrap();
    if drained { found.drain() } else { found.resume() }
}

/// A world with the server `one`, which gets the calls, and `two`, whose latency is known. Each follows its scripts.
async fn far(one: Vec<Script>, two: Vec<Script>) -> (World, Arc<ScriptedServer>, Arc<ScriptedServer>) {
    far_with(one, two, &[]).await
}

/// The same with known costs for these upstreams.
async fn far_with(
    one: Vec<Script>,
    two: Vec<Script>,
    known_costs: &[&str],
) -> (World, Arc<ScriptedServer>, Arc<ScriptedServer>) {
    let known = std::iter::repeat_with(|| whole(&answer_of("Hi you"))).take(KNOWN);
    let (one, two) =
        (server("one", Dialect::OpenAi, one), server("two", Dialect::OpenAi, known.chain(two).collect()));
    let world = World::new(Setup { stall: Duration::from_secs(20), ..Setup::default() });
    offer(&world, &[("far", &[Arc::clone(&one), Arc::clone(&two)])], BTreeMap::new());
    let fleet = Arc::clone(world.gateway.catalog().fleet());
    hedged(&world, fleet, known_costs);
    drain(&world, "one", true);
    for _ in 0..KNOWN {
        // A separate conversation, so that the next ones have no reason to stay on this server.
        let other = json!({"messages": [{"role": "user", "content": "something else"}]});
        read(world.call(Endpoint::ChatCompletions, body(false, &other)).await).await;
    }
    drain(&world, "one", false);
    two.asked.lock().unwrap().clear();
    two.dropped_answers.store(0, Ordering::SeqCst);
    (world, one, two)
}

async fn asked(server: &ScriptedServer) -> bool {
    for _ in 0..60_000 {
        if !server.asked.lock().unwrap().is_empty() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// A script whose output waits for its gate.
fn late(mut script: Script) -> Script {
    script.insert(0, None);
    script
}

/// `one outrun` for each attempt.
fn told(record: &TraceRecord) -> Vec<String> {
    assert!(is_partition(&record.stages, record.duration_ns), "{:?}", record.stages);
    record.attempts.iter().map(|attempt| format!("{} {}", attempt.worker, attempt.outcome.name())).collect()
}

/// The text of a call, the upstream that answered it, and its cost.
async fn heard(world: &World, call: impl Future<Output = Answer>) -> (String, Option<String>, i64) {
    let before = world.ledger.standing(&world.org, &world.project).unwrap().balance;
    let answer = call.await;
    let upstream = header(&answer, "x-headrace-upstream").map(str::to_owned);
    let (text, _) = read_to_the_end(answer).await;
    let after = world.balance_when_idle().await;
    (text, upstream, spent(after) - spent(before))
}

#[tokio::test]
async fn who_speaks_first_has_the_call_and_the_other_one_is_let_go_of() {
    for streamed in [true, false] {
        let answers = || if streamed { stream() } else { whole(&answer_of("Hi you")) };
        for (endpoint, more) in [
            (Endpoint::ChatCompletions, json!({})),
            // Read and written anew here.
            (Endpoint::ChatCompletions, json!({"headrace": {"explain": true}})),
            (Endpoint::Messages, json!({})),
        ] {
            let (world, one, two) = far(vec![late(answers())], vec![answers()]).await;
            let mut body = body(streamed, &more);
            body.as_object_mut().unwrap().remove("unknown_to_us");
            let (text, upstream, cost) = heard(&world, world.call(endpoint, body)).await;
            assert!(text.contains("Hi") && text.contains("you") && !text.contains("error"), "{text}");
            assert_eq!(text.matches("\"Hi").count(), 1, "{text}");
            assert_eq!(upstream.as_deref(), Some("two"));
            let record = world.last_trace();
            assert_eq!(told(&record), ["one outrun", "two answered"]);
            assert_eq!(record.upstream.as_deref(), Some("two"));
            // For one answer: 20 prompt tokens, 2 of the answer.
            assert_eq!((record.usage.prompt_tokens(), record.usage.output, record.loss.get()), (20, 2, 0));
            assert_eq!((cost, record.cost.get()), (28_000, 28_000));
            assert_eq!(
                (one.dropped_answers.load(Ordering::SeqCst), two.dropped_answers.load(Ordering::SeqCst)),
                (1, 1)
            );
            let totals = world.ledger.totals();
            assert_eq!((totals.open_holds, totals.holds), (0, KNOWN as u64 + 1));
        }
    }
}

#[tokio::test]
async fn the_first_one_may_still_be_the_faster_one() {
    // The opening of the second answer does not count as output.
    let opens = vec![
        head(),
        chunk(&json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})),
    ];
    for more in [json!({}), json!({"headrace": {"explain": true}})] {
        let mut two = opens.clone();
        two.push(None);
        let (world, one, two) = far(vec![late(stream())], vec![two]).await;
        let call = world.call(Endpoint::ChatCompletions, {
            let mut body = body(true, &more);
            body.as_object_mut().unwrap().remove("unknown_to_us");
            body
        });
        let opens_gate = async {
            assert!(asked(&two).await);
            assert_eq!(
                (one.dropped_answers.load(Ordering::SeqCst), two.dropped_answers.load(Ordering::SeqCst)),
                (0, 0)
            );
            one.gate.open();
        };
        let ((text, upstream, cost), ()) = tokio::join!(heard(&world, call), opens_gate);
        assert!(text.contains("Hi") && text.contains("[DONE]"), "{text}");
        assert_eq!((upstream.as_deref(), cost), (Some("one"), 15_000 + 5_000 + 8_000));
        assert_eq!(told(&world.last_trace()), ["one answered", "two outrun"]);
        assert_eq!(two.dropped_answers.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn what_the_slower_one_did_is_the_houses_to_pay() {
    // Both have begun to answer, and so have read the prompt.
    let mut waits = stream();
    waits.insert(1, None);
    for (known, first_wins) in
        [(&["one", "two"][..], false), (&["one", "two"], true), (&["two"], false), (&["two"], true)]
    {
        let second = if first_wins { vec![head(), None] } else { stream() };
        let (world, one, two) = far_with(vec![waits.clone()], vec![second], known).await;
        let call = world.call(Endpoint::ChatCompletions, body(true, &json!({})));
        let opens_gate = async {
            assert!(asked(&two).await);
            if first_wins {
                one.gate.open();
            }
        };
        let ((_, upstream, cost), ()) = tokio::join!(heard(&world, call), opens_gate);
        assert_eq!(upstream.as_deref(), Some(if first_wins { "one" } else { "two" }));
        let record = world.last_trace();
        let outcomes =
            if first_wins { ["one answered", "two outrun"] } else { ["one outrun", "two answered"] };
        assert_eq!(told(&record), outcomes);
        assert_eq!(cost, 15_000 + 5_000 + 8_000, "the answer alone");
        let paid = |at: usize| record.attempts[at].paid.map(|paid| paid.get());
        let (winner, loser) = if first_wins { (0, 1) } else { (1, 0) };
        for at in [winner, loser] {
            let knows = known.contains(&&*record.attempts[at].worker);
            assert_eq!(paid(at).is_some(), knows, "{:?}", record.attempts);
        }
        assert!(paid(winner).is_none_or(|paid| paid == 7_500 + 250 + 4_000), "{:?}", record.attempts);
        assert!(paid(loser).is_none_or(|paid| paid > 0 && paid % 500 == 0), "{:?}", record.attempts);
        assert_eq!(record.paid.is_some(), known.len() == 2);
    }
}

#[tokio::test]
async fn who_fails_leaves_the_call_to_the_other_one() {
    let fails = || failed(RelayError::Connect { why: "refused".to_owned() });
    let refuses =
        || status(400, &json!({"error": {"message": "no", "type": "invalid_request_error", "code": null}}));
    for (second, code) in [(fails(), "failed"), (refuses(), "failed")] {
        let (world, one, two) = far(vec![late(stream())], vec![second]).await;
        let call = world.call(Endpoint::ChatCompletions, body(true, &json!({})));
        let opens_gate = async {
            assert!(asked(&two).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
            one.gate.open();
        };
        let ((text, upstream, _), ()) = tokio::join!(heard(&world, call), opens_gate);
        assert!(text.contains("[DONE]") && !text.contains("error"), "{text}");
        assert_eq!(upstream.as_deref(), Some("one"));
        assert_eq!(told(&world.last_trace()), ["one answered".to_owned(), format!("two {code}")]);
    }
    // The same the other way round. If both fail, the caller gets the last error.
    for (second, expected) in [(late(stream()), "answered"), (late(fails()), "failed")] {
        let (world, one, two) = far(vec![late(fails())], vec![second]).await;
        let call = world.call(Endpoint::ChatCompletions, body(true, &json!({})));
        let opens_gates = async {
            assert!(asked(&two).await);
            one.gate.open();
            tokio::time::sleep(Duration::from_millis(20)).await;
            two.gate.open();
        };
        let ((text, ..), ()) = tokio::join!(heard(&world, call), opens_gates);
        assert_eq!(text.contains("[DONE]"), expected == "answered", "{text}");
        assert_eq!(text.contains("upstream_unreachable"), expected == "failed", "{text}");
        assert_eq!(told(&world.last_trace()), ["one failed".to_owned(), format!("two {expected}")]);
    }
}

#[tokio::test]
async fn nobody_is_asked_behind_a_word_nor_beyond_the_share_nor_who_takes_no_calls() {
    // The first server pauses after its first output.
    let mut speaks = stream();
    speaks.insert(2, None);
    let (world, one, two) =
        far(vec![speaks, late(stream()), late(stream()), late(stream())], vec![stream()]).await;
    let call = || world.call(Endpoint::ChatCompletions, body(true, &json!({})));
    let quiet = async || {
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(two.asked.lock().unwrap().is_empty());
        one.gate.open();
    };
    let (answer, ()) = tokio::join!(call(), quiet());
    assert!(read(answer).await.contains("[DONE]"));
    // The second server is out of service. The attempt uses up the saved budget.
    one.gate.shut();
    drain(&world, "two", true);
    let (answer, ()) = tokio::join!(call(), quiet());
    assert!(read(answer).await.contains("[DONE]"));
    one.gate.shut();
    drain(&world, "two", false);
    let (answer, ()) = tokio::join!(call(), quiet());
    assert!(read(answer).await.contains("[DONE]"));
    world.balance_when_idle().await;
    assert_eq!(told(&world.last_trace()), ["one answered"]);
    assert_eq!(one.asked.lock().unwrap().len(), 3, "it does not race with itself");
    // No other engine is asked after an engine's first output either.
    let (world, other) = near(Engines::ThenWait(2), Engines::Answer).await;
    let answer = world.chat(true).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(other.jobs.lock().unwrap().is_empty());
    drop(answer);
    world.balance_when_idle().await;
}

/// A world of engines: `w0`, which gets the calls, and `w1/far` at another site, whose latency is known.
async fn near(first: Engines, second: Engines) -> (World, Arc<Scripted>) {
    let world = World::new(Setup { stall: Duration::from_secs(20), ..Setup::default() });
    let other = Scripted::new(Engines::Answer);
    let name = ModelName::new(MODEL).unwrap();
    let worker = |id: &str, engine: &Arc<Scripted>| {
        Worker::new(id, name.clone(), Arc::clone(engine) as Arc<dyn Engine>)
    };
    let far = worker("w1/far", &other).at(&Arc::new(WorkerSite::new("w1")));
    hedged(&world, Arc::new(Fleet::new([worker("w0", &world.engine), far])), &[]);
    drain(&world, "w0", true);
    for _ in 0..KNOWN {
        read(world.chat(false).await).await;
    }
    drain(&world, "w0", false);
    world.script(first);
    *other.script.lock().unwrap() = second;
    other.jobs.lock().unwrap().clear();
    other.submitted.store(0, Ordering::SeqCst);
    (world, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_late_is_outrun() {
    for (stream, n) in [(true, 1), (false, 1), (true, 2)] {
        let (world, other) = near(Engines::ThenWait(0), Engines::Answer).await;
        let mut body: Value = chat_body(stream);
        body["n"] = json!(n);
        let (text, _, cost) = heard(&world, world.call(Endpoint::ChatCompletions, body)).await;
        assert_eq!(text.matches("ha ").count(), if stream { 4 * n } else { 4 }, "{text}");
        let record = world.last_trace();
        assert_eq!(told(&record), ["w0 outrun", "w1/far answered"]);
        assert_eq!((record.usage.output, record.loss.get()), (4 * n as u64, 0));
        assert_eq!(cost, record.usage.input as i64 * 1_000 + 4 * n as i64 * 4_000);
        let traces: Vec<_> = other.jobs.lock().unwrap().iter().map(|job| job.trace.clone()).collect();
        assert_eq!(traces, [Some(format!("{} behind 2 attempts", record.request_id).into())]);
        for _ in 0..12_000 {
            if *world.engine.cancelled.lock().unwrap() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(*world.engine.cancelled.lock().unwrap(), 1, "it is cancelled at once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_refuses_or_fails_leaves_the_call_to_the_first() {
    for (second, expected) in [
        (Engines::Full, "w1/far refused"),
        (Engines::Panic, "w1/far refused"),
        (Engines::ThenDie(0), "w1/far failed"),
        (Engines::ThenStop(0), "w1/far failed"),
    ] {
        let (world, other) = near(Engines::HeldThenFail(0), second).await;
        let call = heard(&world, world.chat(true));
        let failure = async {
            while other.submitted.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            // What it said is heard by then.
            tokio::time::sleep(Duration::from_millis(200)).await;
            world.engine.may_fail.store(true, Ordering::SeqCst);
        };
        let ((text, ..), ()) = tokio::join!(call, failure);
        // The first engine keeps the call, and fails for its own reason.
        assert!(text.contains("not_finite"), "{second:?} {text}");
        assert_eq!(told(&world.last_trace()), ["w0 failed".to_owned(), expected.to_owned()], "{second:?}");
        assert!(other.jobs.lock().unwrap().len() <= 1);
        world.balance_when_idle().await;
    }
}
