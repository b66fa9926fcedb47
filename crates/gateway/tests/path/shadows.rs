//! Shadow copies: a served call runs once more at another model, at the operator's expense, after the caller's last
//! byte. In every case the caller's bytes, bill, limits and time are those of a call without a copy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headrace_call_api::CallService;
use headrace_catalog::NameRules;
use headrace_domain::{CallOutcome, Dialect, Endpoint, ModelName, NanoDollars, ShadowOf, TraceRecord};
use headrace_engine_api::{Priority, RelayError};
use headrace_identity::RateLimits;
use headrace_rollout::{SHADOW_KEY, ShadowBudget, ShadowFigures, ShadowSpec};
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, ScriptedServer, answer_of, body, chunk, delta, failed, finish, head, offer_by, server, spent,
    stream, whole,
};
use crate::world::{MODEL, Setup, World, header, read, request_trace, trace_of};

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn spec(to: &str) -> ShadowSpec {
    let amount = NanoDollars::from_dollars("1").unwrap();
    ShadowSpec {
        model: name(to),
        share: 1.0,
        budget: ShadowBudget { amount, period: Duration::from_secs(24 * 3600) },
        compare: true,
        in_flight: 2,
        queue: 2,
    }
}

fn rules(of: &str, spec: ShadowSpec) -> NameRules {
    NameRules { shadows: BTreeMap::from([(name(of), Arc::new(spec))]), ..NameRules::default() }
}

/// A world with the models `now` and `next`, the second at twice the price, and copies from the first to the second.
fn world(
    now: Vec<Script>,
    next: Vec<Script>,
    spec: ShadowSpec,
) -> (World, Arc<ScriptedServer>, Arc<ScriptedServer>) {
    let limits =
        RateLimits { requests_per_minute: Some(1000), concurrency: Some(1), ..RateLimits::default() };
    let world = World::new(Setup { limits, ..Setup::default() });
    let (now, next) = (server("one", Dialect::OpenAi, now), server("two", Dialect::OpenAi, next));
    let models: [(&str, &[Arc<ScriptedServer>]); 2] =
        [("now", std::slice::from_ref(&now)), ("next", std::slice::from_ref(&next))];
    offer_by(&world, &models, BTreeMap::new(), rules("now", spec));
    (world, now, next)
}

async fn ask(world: &World, stream: bool, more: &Value) -> Arc<TraceRecord> {
    let mut body = body(stream, &json!({"model": "now"}));
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    let answer = world.call(Endpoint::ChatCompletions, body).await;
    assert_eq!(answer.status, 200);
    trace_of(world, answer).await
}

/// Waits for this many copies and returns their traces.
async fn copies(world: &World, count: usize) -> Vec<Arc<TraceRecord>> {
    for _ in 0..1000 {
        let copies: Vec<_> = world
            .traces
            .0
            .lock()
            .unwrap()
            .iter()
            .filter(|record| record.shadow_of.is_some())
            .cloned()
            .collect();
        if copies.len() >= count && world.gateway.in_flight() == 0 {
            assert_eq!(copies.len(), count);
            return copies;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("there are no {count} copies: {:?}", figures(world));
}

fn figures(world: &World) -> ShadowFigures {
    world.gateway.shadow_figures(&name("now"), &name("next"))
}

fn shadow(record: &TraceRecord) -> &ShadowOf {
    record.shadow_of.as_ref().unwrap()
}

#[tokio::test]
async fn a_copy_runs_at_the_other_model_and_nobody_pays_for_it() {
    for streamed in [false, true] {
        let script = || if streamed { stream() } else { whole(&answer_of("Hi you")) };
        let (world, now, next) = world(vec![script()], vec![script()], spec("next"));
        let record = ask(&world, streamed, &json!({})).await;
        let copies = copies(&world, 1).await;
        let copy = &copies[0];
        assert_eq!(spent(world.balance_when_idle().await), record.cost.get());
        assert_eq!((copy.cost.get(), copy.held.get()), (0, 0));
        assert_eq!(copy.loss.get(), 2 * record.cost.get(), "at the price of its own model");
        assert_eq!(
            figures(&world),
            ShadowFigures { copied: 1, spent: copy.loss, ..ShadowFigures::default() }
        );
        assert_eq!((copy.model_served.as_deref(), copy.upstream.as_deref()), (Some("next"), Some("two")));
        assert_eq!(
            (copy.org.as_ref(), copy.key.as_ref().map(|key| key.as_str())),
            (Some(&world.org), Some(SHADOW_KEY))
        );
        assert!(matches!(copy.outcome, CallOutcome::Completed { .. }), "{:?}", copy.outcome);

        let shadow = shadow(copy);
        assert_eq!((shadow.call, shadow.model.as_str()), (record.request_id, "now"));
        assert_eq!((shadow.went.cost, shadow.went.output_tokens), (record.cost, 2));
        assert_eq!(
            (shadow.went.first_token_ns, shadow.went.server_ns),
            (record.time_to_first_token_ns(), record.server_ns())
        );
        let compared = shadow.compared.as_ref().unwrap();
        assert!(compared.same && compared.same_finish && compared.same_tools && compared.same_arguments);
        assert_eq!(
            (compared.common_permille, compared.characters, compared.tool_calls),
            (1000, [6, 6], [0, 0])
        );
        assert_eq!(compared.digests[0], compared.digests[1]);
        let kept = serde_json::to_string(&**copy).unwrap();
        assert!(!kept.contains("Hi you") && !kept.contains("hello out there"), "{kept}");

        // It receives the same body as the call itself.
        let sent =
            |of: &ScriptedServer| serde_json::from_slice::<Value>(&of.asked.lock().unwrap()[0].body).unwrap();
        assert_eq!(sent(&now), sent(&next));
        // No caller can look it up.
        let looked = world.request(request_trace(&copy.request_id.to_string()), "").await;
        assert_eq!(looked.status, 404);
    }
}

#[tokio::test]
async fn what_differs_is_told_in_figures() {
    let other = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "Hi there", "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}});
    let (world, _, _) = world(vec![whole(&answer_of("Hi you"))], vec![whole(&other)], spec("next"));
    let record = ask(&world, false, &json!({})).await;
    let copies = copies(&world, 1).await;
    let compared = shadow(&copies[0]).compared.as_ref().unwrap();
    assert!(!compared.same && !compared.same_finish && !compared.same_tools && !compared.same_arguments);
    // Three characters of eight.
    assert_eq!((compared.common_permille, compared.characters, compared.tool_calls), (375, [6, 8], [0, 1]));
    assert_ne!(compared.digests[0], compared.digests[1]);
    assert_eq!((shadow(&copies[0]).went.output_tokens, copies[0].usage.output), (2, 7));
    assert_eq!(record.usage.output, 2);
}

#[tokio::test]
async fn the_embedded_engine_takes_copies_last_and_draws_the_same_numbers_for_them() {
    let world = World::new(Setup::default());
    let mut body = body(false, &json!({"model": "alias"}));
    body.as_object_mut().unwrap().remove("unknown_to_us");
    let aliases = BTreeMap::from([(name("alias"), headrace_rollout::ModelRoute::to(name(MODEL)))]);
    offer_by(&world, &[], aliases, rules("alias", spec(MODEL)));
    let answer = world.call(Endpoint::ChatCompletions, body).await;
    assert_eq!(trace_of(&world, answer).await.model_served.as_deref(), Some(MODEL));
    let copies = copies(&world, 1).await;
    assert!(shadow(&copies[0]).compared.as_ref().unwrap().same);
    let jobs = world.engine.jobs.lock().unwrap();
    assert_eq!((jobs[0].priority, jobs[1].priority), (Priority::Normal, Priority::Idle));
    assert_eq!((&jobs[0].prompt, &jobs[0].sampling), (&jobs[1].prompt, &jobs[1].sampling));
}

#[tokio::test]
async fn a_copy_that_stalls_or_fails_is_nothing_to_the_caller() {
    let stalls = vec![head(), chunk(&delta("Hi")), None, chunk(&finish("stop"))];
    let fails = failed(RelayError::Connect { why: "refused".to_owned() });
    for (script, kind) in [(stalls, "stalls"), (fails, "fails")] {
        let (world, _, next) = world(vec![stream(), stream()], vec![script, stream()], spec("next"));
        let answer = world.call(Endpoint::ChatCompletions, body(true, &json!({"model": "now"}))).await;
        assert_eq!((answer.status, header(&answer, "x-headrace-upstream")), (200, Some("one")));
        assert!(read(answer).await.ends_with("[DONE]\r\n\r\n"), "{kind}");
        while next.asked.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The copy takes neither the caller's only in-flight place nor any of its requests.
        let record = ask(&world, true, &json!({})).await;
        assert_eq!(record.cost.get(), 28_000 - 5_000 + 500, "{kind}");
        next.gate.open();
        let copies = copies(&world, 2).await;
        let served =
            copies.iter().filter(|copy| matches!(copy.outcome, CallOutcome::Completed { .. })).count();
        assert_eq!(served, if kind == "fails" { 1 } else { 2 });
        assert_eq!(spent(world.balance_when_idle().await), 2 * record.cost.get());
    }
}

#[tokio::test]
async fn beyond_its_places_its_queue_and_its_budget_no_copy_is_made() {
    let waits = || vec![head(), None, chunk(&delta("Hi")), chunk(&finish("stop"))];
    let few = ShadowSpec { in_flight: 1, queue: 1, ..spec("next") };
    let (world, _, next) = world((0..4).map(|_| stream()).collect(), vec![waits(), stream()], few);
    for _ in 0..4 {
        ask(&world, true, &json!({})).await;
    }
    while figures(&world).full < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(next.asked.lock().unwrap().len(), 1, "one at work, one waits");
    next.gate.open();
    copies(&world, 2).await;
    assert_eq!((figures(&world).copied, figures(&world).full), (2, 2));

    // One answer costs twice 28,000, and its hold is several times that.
    let amount = NanoDollars::new(1_000_000);
    let poor = ShadowSpec { budget: ShadowBudget { amount, ..spec("next").budget }, ..spec("next") };
    let scripts = || (0..40).map(|_| whole(&answer_of("Hi you"))).collect();
    let (world, _, next) = self::world(scripts(), scripts(), poor);
    for _ in 0..20 {
        ask(&world, false, &json!({})).await;
        while world.gateway.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let figures = figures(&world);
    assert!(figures.spent <= amount && figures.spent.get() > 300_000, "{figures:?}");
    assert_eq!(next.asked.lock().unwrap().len() as u64, figures.copied);
    assert_eq!((figures.copied + figures.unpaid, figures.full), (20, 0));
}

#[tokio::test]
async fn what_is_not_served_is_not_copied_and_a_share_is_a_share() {
    let bad = || failed(RelayError::Connect { why: "refused".to_owned() });
    let (world, _, next) = world(vec![bad()], vec![], spec("next"));
    let answer = world.call(Endpoint::ChatCompletions, body(false, &json!({"model": "now"}))).await;
    assert_ne!(answer.status, 200);
    world.balance_when_idle().await;
    assert_eq!(figures(&world).unserved, 1);
    // Calls that ask for the other model itself are not copied either.
    assert_eq!(next.asked.lock().unwrap().len(), 0);

    let scripts = || (0..200).map(|_| whole(&answer_of("Hi"))).collect();
    let some = ShadowSpec { share: 0.25, in_flight: 200, ..spec("next") };
    let (world, _, _) = self::world(scripts(), scripts(), some);
    for _ in 0..200 {
        ask(&world, false, &json!({})).await;
    }
    world.balance_when_idle().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let copied = figures(&world).copied;
    assert!((25..=80).contains(&copied), "{copied} of 200");
}

#[tokio::test]
async fn nothing_is_kept_of_an_answer_that_is_not_to_be_compared_or_is_too_long() {
    let long = "x".repeat(300 << 10);
    for (text, compare) in [("Hi", false), (long.as_str(), true)] {
        let script = || vec![whole(&answer_of(text))];
        let (world, _, _) = world(script(), script(), ShadowSpec { compare, ..spec("next") });
        ask(&world, false, &json!({"max_tokens": 4_096})).await;
        let copies = copies(&world, 1).await;
        assert_eq!(shadow(&copies[0]).compared, None);
    }
}

#[tokio::test]
async fn a_drain_waits_for_no_copy() {
    let waits = vec![head(), chunk(&delta("Hi")), None];
    let (world, _, next) = world(vec![stream()], vec![waits], spec("next"));
    ask(&world, true, &json!({})).await;
    while next.asked.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.gateway.drain(Duration::from_secs(60)).await, 0, "none was cut off");
    let copies = copies(&world, 1).await;
    assert!(matches!(copies[0].outcome, CallOutcome::Cancelled { .. }));
}

#[test]
fn a_shadow_leads_from_a_name_that_is_served_to_a_model_that_is() {
    let world = World::new(Setup::default());
    let known: BTreeSet<String> =
        world.gateway.catalog().models().map(|model| model.name.to_string()).collect();
    assert!(known.contains(MODEL));
    let offer = |of: &str, to: &str| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            offer_by(&world, &[], BTreeMap::new(), rules(of, spec(to)));
        }))
    };
    assert!(offer(MODEL, MODEL).is_ok());
    assert!(offer("nobody", MODEL).is_err() && offer(MODEL, "nobody").is_err());
}
