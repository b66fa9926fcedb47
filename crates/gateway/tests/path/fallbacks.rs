//! A call that fails with one model is answered by another one, if the route says so for that kind of failure. Each
//! model is tried once, over one hold, at the price of the model that answers, and never after output that a client
//! has.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_catalog::{Backend, Catalog, CatalogOffer, ServedModel};
use headrace_domain::{
    AttemptOutcome, BudgetName, Clock, Dialect, Endpoint, ModelName, NanoDollars, PriceTier, RoundOutcome,
    is_partition,
};
use headrace_engine_api::{Engine, RelayError, RelayEvent};
use headrace_fleet::{Fleet, Worker};
use headrace_ledger::prices::{CostList, PriceList};
use headrace_ledger::{
    BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow, LedgerOperation, LowBalance,
};
use headrace_limits::{LimitSpec, Scope};
use headrace_rollout::{FallbackModels, ModelRoute, RouteArm};
use serde_json::json;

use crate::routes::{ask, name};
use crate::scripted_server::{
    Script, ScriptedServer, answer_of, body, chunk, delta, failed, head, offer, server, spent, status,
    stream, usage, whole,
};
use crate::world::{MODEL, Script as Engines, Scripted, Setup, World, header, read};

/// `moving` leads to `a-1`, and from there to other models by the kind of failure.
fn falling(fallbacks: FallbackModels) -> BTreeMap<ModelName, ModelRoute> {
    let arms = vec![RouteArm { model: name("a-1"), weight: 1, canary: None }];
    BTreeMap::from([(name("moving"), ModelRoute { arms, fallbacks, ..ModelRoute::default() })])
}

fn refusal(code: u16, name: &str) -> Script {
    status(
        code,
        &json!({"error": {"message": "no", "type": "invalid_request_error", "code": name, "param": null}}),
    )
}

#[tokio::test]
async fn another_model_answers_by_what_went_wrong_with_the_first() {
    let to = || vec![name("a-2")];
    let after = [
        FallbackModels { context_too_long: to(), ..FallbackModels::default() },
        FallbackModels { overloaded: to(), ..FallbackModels::default() },
        FallbackModels { failed: to(), ..FallbackModels::default() },
        FallbackModels { content_refused: to(), ..FallbackModels::default() },
    ];
    let connect = || failed(RelayError::Connect { why: "refused".to_owned() });
    let broken = || vec![head(), Some(RelayEvent::Failed(RelayError::Cut { why: "reset".to_owned() }))];
    // What happens, the index of the kind after which another model answers, and the status that the caller gets if
    // none does.
    for (script, kind, code) in [
        (refusal(400, "context_length_exceeded"), Some(0), 400),
        (refusal(429, "rate_limit_exceeded"), Some(1), 503),
        (connect(), Some(2), 502),
        (broken(), Some(2), 502),
        (status(500, &json!({})), Some(2), 502),
        (refusal(400, "content_filter"), Some(3), 400),
        (refusal(400, "invalid_value"), None, 400),
    ] {
        for (at, fallbacks) in after.iter().enumerate() {
            let one = server("one", Dialect::OpenAi, vec![script.clone()]);
            let two = server("two", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
            let world = World::new(Setup::default());
            let models: [(&str, &[Arc<ScriptedServer>]); 2] = [("a-1", &[one]), ("a-2", &[two])];
            offer(&world, &models, falling(fallbacks.clone()));
            let (status, model, told) = ask(&world, &json!({})).await;
            let balance = spent(world.balance_when_idle().await);
            let record = world.last_trace();
            assert!(is_partition(&record.stages, record.duration_ns), "{:?}", record.stages);
            if kind != Some(at) {
                assert_eq!((status, balance), (code, 0), "{told}: {at}");
                assert_eq!((record.attempts.len(), record.model_served.as_deref()), (1, Some("a-1")));
                continue;
            }
            assert_eq!((status, model.as_deref()), (200, Some("a-2")), "{told}: {at}");
            // At the price of the model that answered, out of one hold that grew: for at most 64 + 22 prompt tokens and
            // 10 of the answer.
            assert_eq!((balance, record.cost.get()), (2 * 28_000, 2 * 28_000));
            assert!(record.held.get() >= 2 * (64_000 + 40_000), "{}", record.held);
            assert_eq!(record.model_served.as_deref(), Some("a-2"));
            assert_eq!(record.upstream.as_deref(), Some("two"));
            let tries: Vec<_> = record
                .attempts
                .iter()
                .map(|attempt| (&*attempt.worker, attempt.model.as_deref(), attempt.outcome.name()))
                .collect();
            let [("one", Some("a-1"), _), ("two", None, "answered")] = tries[..] else { panic!("{tries:?}") };
            let [first, second] = &record.rounds[..] else { panic!("{:?}", record.rounds) };
            assert_eq!((first.model.as_deref(), first.upstream.as_deref()), (Some("a-1"), Some("one")));
            assert!(matches!(first.outcome, RoundOutcome::Failed { .. }), "{first:?}");
            assert_eq!((&second.model, second.upstream.as_deref()), (&None, Some("two")));
            assert_eq!((second.worker.as_deref(), second.usage), (Some("two"), record.usage));
            assert_eq!(second.outcome, RoundOutcome::Answered { finish: Some("stop".into()) });
            assert!(first.start_ns + first.duration_ns <= second.start_ns, "{:?}", record.rounds);
            assert!(second.start_ns + second.duration_ns <= record.duration_ns, "{:?}", record.rounds);
            let totals = world.ledger.totals();
            assert_eq!((totals.holds, totals.settled, totals.open_holds), (1, 1, 0));
        }
    }
}

#[tokio::test]
async fn every_model_is_tried_once_and_then_the_last_word_stands() {
    let down = |name: &str| {
        let connect = || failed(RelayError::Connect { why: "refused".to_owned() });
        server(name, Dialect::OpenAi, vec![connect(), connect()])
    };
    let (one, three) = (down("one"), down("three"));
    let two = server("two", Dialect::OpenAi, vec![refusal(429, "rate_limit_exceeded")]);
    let world = World::new(Setup::default());
    let models: [(&str, &[Arc<ScriptedServer>]); 4] =
        [("a-1", &[one]), ("a-2", &[two]), ("a-3", &[three]), ("a-4", &[down("four")])];
    let to = |models: &[&str]| models.iter().map(|model| name(model)).collect::<Vec<_>>();
    let fallbacks = FallbackModels {
        overloaded: to(&["a-1", "a-3"]),
        failed: to(&["a-1", "a-2", "a-3", "a-4"]),
        ..FallbackModels::default()
    };
    offer(&world, &models, falling(fallbacks));
    let gone = world.gateway.catalog();
    gone.fleet().workers().filter(|worker| &**worker.id() == "four").for_each(|worker| worker.drain());
    let (status, ..) = ask(&world, &json!({})).await;
    assert_eq!((status, spent(world.balance_when_idle().await)), (503, 0));
    let record = world.last_trace();
    let tries: Vec<_> =
        record.attempts.iter().map(|attempt| (&*attempt.worker, attempt.model.as_deref())).collect();
    assert_eq!(tries, [("one", Some("a-1")), ("two", Some("a-2")), ("three", Some("a-3"))]);
    let rounds: Vec<_> = record.rounds.iter().map(|round| round.model.as_deref()).collect();
    assert_eq!(rounds, [Some("a-1"), Some("a-2"), Some("a-3")], "no worker took it for the fourth");
    assert_eq!((record.model_served.as_deref(), record.upstream.as_deref()), (Some("a-4"), None));
}

#[tokio::test]
async fn what_has_gone_out_is_not_taken_back() {
    let cut = vec![
        head(),
        chunk(&delta("Hi")),
        None,
        Some(RelayEvent::Failed(RelayError::Cut { why: "reset".to_owned() })),
    ];
    let (one, two) =
        (server("one", Dialect::OpenAi, vec![cut]), server("two", Dialect::OpenAi, vec![stream()]));
    let world = World::new(Setup::default());
    let models: [(&str, &[Arc<ScriptedServer>]); 2] =
        [("a-1", std::slice::from_ref(&one)), ("a-2", std::slice::from_ref(&two))];
    offer(
        &world,
        &models,
        falling(FallbackModels { failed: vec![name("a-2")], ..FallbackModels::default() }),
    );
    let answer = world.call(Endpoint::ChatCompletions, body(true, &json!({"model": "moving"}))).await;
    assert_eq!((answer.status, header(&answer, "x-headrace-model")), (200, Some("a-1")));
    one.gate.open();
    let text = read(answer).await;
    assert!(text.contains("upstream_failed"), "{text}");
    assert!(two.asked.lock().unwrap().is_empty(), "another one was asked");
    world.balance_when_idle().await;
}

#[tokio::test]
async fn who_cannot_pay_for_the_dearer_one_is_told_of_the_first() {
    let one = server("one", Dialect::OpenAi, vec![failed(RelayError::Connect { why: "refused".to_owned() })]);
    let two = server("two", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
    // Enough for the first model in every case, but not for twice as much.
    let world = World::new(Setup { credit: NanoDollars::new(160_000), ..Setup::default() });
    let models: [(&str, &[Arc<ScriptedServer>]); 2] = [("a-1", &[one]), ("a-2", std::slice::from_ref(&two))];
    offer(
        &world,
        &models,
        falling(FallbackModels { failed: vec![name("a-2")], ..FallbackModels::default() }),
    );
    let (status, _, told) = ask(&world, &json!({})).await;
    assert_eq!((status, told["error"]["code"].as_str()), (502, Some("upstream_unreachable")), "{told}");
    assert_eq!(world.balance_when_idle().await, NanoDollars::new(160_000));
    assert!(two.asked.lock().unwrap().is_empty(), "nobody pays for it");
}

#[tokio::test]
async fn nothing_of_the_first_model_s_stays() {
    let mut reported = usage(900, 800, 77);
    reported["service_tier"] = json!("priority");
    let cut = RelayError::Cut { why: "reset".to_owned() };
    let one = vec![head(), chunk(&reported), Some(RelayEvent::Failed(cut))];
    for streamed in [false, true] {
        let one = server("one", Dialect::OpenAi, vec![one.clone()]);
        let two = server(
            "two",
            Dialect::OpenAi,
            vec![if streamed { stream() } else { whole(&answer_of("Hi you")) }],
        );
        let world = World::new(Setup::default());
        offer(
            &world,
            &[("a-1", &[one]), ("a-2", &[two])],
            falling(FallbackModels { failed: vec![name("a-2")], ..FallbackModels::default() }),
        );
        let answer = world.call(Endpoint::ChatCompletions, body(streamed, &json!({"model": "moving"}))).await;
        assert_eq!((answer.status, header(&answer, "x-headrace-model")), (200, Some("a-2")));
        assert_eq!(header(&answer, "x-headrace-upstream"), Some("two"));
        assert!(!read(answer).await.contains("900"));
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert_eq!((record.usage.prompt_tokens(), record.usage.output), (20, 2));
        assert_eq!((record.price_tier, record.loss), (PriceTier::Standard, NanoDollars::ZERO));
        assert!(is_partition(&record.stages, record.duration_ns), "{:?}", record.stages);
    }
}

/// Limits every model of a world.
fn limited(world: &World, limits: LimitSpec) {
    let catalog = world.gateway.catalog();
    let models =
        catalog.models().map(|model| Arc::new(ServedModel { limits, ..(**model).clone() })).collect();
    let price = |model| json!({"model": model, "input": 1_000_000_000_i64, "output": 4_000_000_000_i64});
    let prices = json!([price(MODEL), price("a-1"), price("a-2")]);
    let offer = CatalogOffer {
        models,
        aliases: falling(FallbackModels { failed: vec![name("a-2")], ..FallbackModels::default() }),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(prices).unwrap()).unwrap(),
        costs: CostList::default(),
        fleet: Arc::clone(catalog.fleet()),
        judge: None,
        weights: BTreeMap::new(),
        names: headrace_catalog::NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

#[tokio::test]
async fn a_model_that_failed_keeps_nothing_of_its_limits() {
    let down = || failed(RelayError::Connect { why: "refused".to_owned() });
    let waits = || {
        let mut script = stream();
        script.insert(2, None);
        script
    };
    let (one, two) = (
        server("one", Dialect::OpenAi, (0..3).map(|_| down()).collect()),
        server("two", Dialect::OpenAi, (0..3).map(|_| waits()).collect()),
    );
    let world = World::new(Setup { stall: std::time::Duration::from_secs(20), ..Setup::default() });
    offer(&world, &[("a-1", &[one]), ("a-2", std::slice::from_ref(&two))], BTreeMap::new());
    limited(
        &world,
        LimitSpec { concurrency: Some(2), tokens_per_minute: Some(1_000), ..LimitSpec::UNLIMITED },
    );
    let scope = |model: &str| Scope::Model(ModelName::new(model).unwrap());
    let left = |model: &str| {
        let spec = LimitSpec { tokens_per_minute: Some(1_000), ..LimitSpec::UNLIMITED };
        world.limits.standing(&[(scope(model), spec)], world.clock.now()).remaining_tokens.unwrap()
    };
    let call = || world.call(Endpoint::ChatCompletions, body(true, &json!({"model": "moving"})));
    let began = std::time::Instant::now();
    let answers = [call().await, call().await];
    assert!(answers.iter().all(|answer| header(answer, "x-headrace-model") == Some("a-2")));
    assert_eq!((left("a-1"), left("a-2") < 900), (1_000, true));
    // The second model has no place left, so the caller gets the first model's error.
    let third = call().await;
    let text = read(third).await;
    assert!(text.contains("upstream_unreachable"), "{text}");
    two.gate.open();
    for answer in answers {
        assert!(read(answer).await.contains("[DONE]"));
    }
    world.balance_when_idle().await;
    // On a slow machine, some of a thousand tokens per minute are replenished meanwhile.
    let charged = 1_000 - 2 * 22;
    let (left, back) = ((left("a-1"), left("a-2")), began.elapsed().as_secs() * 1_000 / 60 + 17);
    assert!(left.0 == 1_000 && (charged..=charged + back).contains(&left.1), "{left:?} {back}");
}

#[tokio::test]
async fn where_nobody_takes_calls_any_more_it_goes_on_as_where_they_failed() {
    let down = (0..40).map(|_| failed(RelayError::Connect { why: "refused".to_owned() })).collect();
    let one = server("one", Dialect::OpenAi, down);
    let two = server("two", Dialect::OpenAi, (0..40).map(|_| whole(&answer_of("Hi you"))).collect());
    let world = World::new(Setup::default());
    let models: [(&str, &[Arc<ScriptedServer>]); 2] = [("a-1", std::slice::from_ref(&one)), ("a-2", &[two])];
    offer(
        &world,
        &models,
        falling(FallbackModels { failed: vec![name("a-2")], ..FallbackModels::default() }),
    );
    for _ in 0..40 {
        assert_eq!(ask(&world, &json!({})).await.0, 200);
    }
    let asked = one.asked.lock().unwrap().len();
    assert!((1..40).contains(&asked), "its breaker has not opened: {asked}");
    world.balance_when_idle().await;
    assert!(world.last_trace().attempts.iter().all(|attempt| attempt.model.is_none()), "it was not asked");
}

/// A world with a second model that has a longer window, and the name `moving`, which falls back from the world's own
/// model to it.
fn token_world() -> (World, Arc<Scripted>) {
    token_world_of(Setup::default(), 2)
}

/// The same, where the second model costs `factor` times as much.
fn token_world_of(setup: Setup, factor: i64) -> (World, Arc<Scripted>) {
    let world = World::new(setup);
    let large = Scripted::new(Engines::Answer);
    let own = world.gateway.catalog().models().next().unwrap().clone();
    let mut second = ServedModel { name: name("large"), ..(*own).clone() };
    if let Backend::Tokens(backend) = &mut second.backend {
        backend.capabilities.context_window = 4_096;
        backend.capabilities.numerics = "larger".to_owned();
    }
    let workers = [
        Worker::new("w0", own.name.clone(), Arc::clone(&world.engine) as Arc<dyn Engine>),
        Worker::new("w1", name("large"), Arc::clone(&large) as Arc<dyn Engine>),
    ];
    let prices = json!([
        {"model": MODEL, "input": 1_000_000_000_i64, "output": 4_000_000_000_i64},
        {"model": "large", "input": factor * 1_000_000_000, "output": factor * 4_000_000_000}
    ]);
    let to = || vec![name("large")];
    let fallbacks = FallbackModels {
        context_too_long: to(),
        overloaded: to(),
        failed: to(),
        ..FallbackModels::default()
    };
    let arms = vec![RouteArm { model: own.name.clone(), weight: 1, canary: None }];
    let offer = CatalogOffer {
        models: vec![own, Arc::new(second)],
        aliases: BTreeMap::from([(name("moving"), ModelRoute { arms, fallbacks, ..ModelRoute::default() })]),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(prices).unwrap()).unwrap(),
        fleet: Arc::new(Fleet::new(workers)),
        costs: CostList::default(),
        judge: None,
        weights: BTreeMap::new(),
        names: headrace_catalog::NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
    (world, large)
}

#[tokio::test]
async fn an_engine_s_call_falls_back_too_and_what_is_too_long_is_rendered_for_the_larger_model() {
    let long = "word ".repeat(600);
    for (words, script, tries) in [
        ("hello", Engines::Answer, 1),
        (long.as_str(), Engines::Answer, 1),
        ("hello", Engines::Full, 2),
        ("hello", Engines::Panic, 2),
        ("hello", Engines::ThenDie(0), 2),
    ] {
        let (world, large) = token_world();
        world.script(script);
        let falls = tries == 2 || words.len() > 5;
        let body =
            json!({"model": "moving", "max_tokens": 4, "messages": [{"role": "user", "content": words}]});
        let answer = world.call(Endpoint::ChatCompletions, body).await;
        let (status, model) = (answer.status, header(&answer, "x-headrace-model").map(str::to_owned));
        let text = read(answer).await;
        assert!(text.contains(if falls { "\"model\":\"large\"" } else { "\"model\":\"demo\"" }), "{text}");
        assert_eq!(status, 200, "{script:?}: {text}");
        assert_eq!(model.as_deref(), Some(if falls { "large" } else { MODEL }), "{script:?}");
        assert_eq!(large.jobs.lock().unwrap().len(), usize::from(falls));
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert_eq!(record.attempts.len(), tries, "{:?}", record.attempts);
        assert_eq!(record.numerics.as_deref(), Some(if falls { "larger" } else { "scripted" }));
        assert!(is_partition(&record.stages, record.duration_ns), "{:?}", record.stages);
        let dearer = if falls { 2 } else { 1 };
        let prompt = i64::try_from(record.usage.prompt_tokens()).unwrap();
        assert_eq!(record.cost.get(), dearer * (prompt * 1_000 + 4 * 4_000));
        let totals = world.ledger.totals();
        assert_eq!((totals.holds, totals.settled, totals.open_holds), (1, 1, 0));
    }
}

#[tokio::test]
async fn a_call_that_was_cut_to_its_money_is_as_short_at_the_other_model() {
    let (world, large) = token_world_of(Setup { credit: NanoDollars::new(100_000), ..Setup::default() }, 1);
    let (org, project) = world.ledger.projects().into_iter().next().unwrap();
    let set = LedgerOperation::SetLowBalance { org, project, policy: LowBalance::Cap };
    let done = world.ledger.transact(vec![set], world.clock.now());
    done.durable.await.unwrap();
    assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
    world.script(Engines::Full);
    let body =
        json!({"model": "moving", "max_tokens": 400, "messages": [{"role": "user", "content": "hello"}]});
    let answer = world.call(Endpoint::ChatCompletions, body).await;
    let (status, capped) = (answer.status, header(&answer, "x-headrace-capped").map(str::to_owned));
    let text = read(answer).await;
    assert_eq!(status, 200, "{text}");
    let capped: u32 = capped.unwrap().parse().unwrap();
    assert!((1..25).contains(&capped), "{capped}");
    let bounds: Vec<u32> = large.jobs.lock().unwrap().iter().map(|job| job.sampling.max_tokens).collect();
    assert_eq!(bounds, [capped]);
    world.balance_when_idle().await;
}

/// A budget of dollars a day for each model.
async fn budget_by_model(world: &World, subject: Option<&str>, limit: u64) {
    let rule = BudgetRule {
        name: BudgetName::new("by-model").unwrap(),
        scope: BudgetScope::Model,
        org: None,
        subject: subject.map(Into::into),
        tier: None,
        window: BudgetWindow::Day,
        zone: "UTC".into(),
        measure: BudgetMeasure::Dollars,
        limit,
        is_hard: true,
        thresholds: Vec::new(),
        origin: BudgetOrigin::Operator,
    };
    let set = LedgerOperation::SetBudgetRule { rule: Box::new(rule) };
    let done = world.ledger.transact(vec![set], world.clock.now());
    done.durable.await.unwrap();
    assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
}

#[tokio::test]
async fn a_call_counts_in_the_budget_of_the_model_that_answers_and_not_where_that_is_full() {
    // The limits of the budgets of `a-2`, and whether a call can go over to it. It may cost twice what `a-1` costs.
    for (limit, falls) in [(10_000_000, true), (2 * 64_000, false)] {
        let down = failed(RelayError::Connect { why: "refused".to_owned() });
        let one = server("one", Dialect::OpenAi, vec![down]);
        let two = server("two", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
        let three = server("three", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
        let world = World::new(Setup::default());
        let models: [(&str, &[Arc<ScriptedServer>]); 3] =
            [("a-1", &[one]), ("a-2", &[two]), ("a-3", &[three])];
        let fallbacks =
            FallbackModels { failed: vec![name("a-2"), name("a-3")], ..FallbackModels::default() };
        offer(&world, &models, falling(fallbacks));
        budget_by_model(&world, if falls { None } else { Some("a-2") }, limit).await;
        let (status, model, told) = ask(&world, &json!({})).await;
        let expected = if falls { "a-2" } else { "a-3" };
        assert_eq!((status, model.as_deref()), (200, Some(expected)), "{told}");
        world.balance_when_idle().await;
        let (record, report) = (world.last_trace(), world.ledger.budgets(world.clock.now()).remove(0));
        let counters: Vec<_> = report
            .counters
            .iter()
            .filter(|counter| counter.used + counter.reserved > 0)
            .map(|counter| (counter.subject.rsplit('/').next().unwrap(), counter.used, counter.reserved))
            .collect();
        let cost = u64::try_from(record.cost.get()).unwrap();
        let passed = record.attempts.iter().find(|attempt| attempt.model.as_deref() == Some("a-2"));
        match falls {
            true => assert_eq!((counters, passed), (vec![("a-2", cost, 0)], None)),
            false => {
                assert_eq!(counters, [], "{record:?}");
                let outcome = &passed.expect("an attempt says why").outcome;
                let AttemptOutcome::Refused { code, why } = outcome else { panic!("{outcome:?}") };
                assert_eq!(code, "budget_rule_exceeded");
                assert!(why.contains("`by-model`"), "{why}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_was_read_for_servers_is_no_prompt_for_an_engine() {
    let world = World::new(Setup::default());
    let one = server("one", Dialect::OpenAi, vec![failed(RelayError::Connect { why: "refused".to_owned() })]);
    let mut routes = falling(FallbackModels { failed: vec![name(MODEL)], ..FallbackModels::default() });
    let apart = CatalogOffer {
        models: world.gateway.catalog().models().cloned().collect(),
        aliases: falling(FallbackModels { failed: vec![name("nowhere")], ..FallbackModels::default() }),
        prices: PriceList::from_config(&[]).unwrap(),
        fleet: Arc::new(Fleet::default()),
        costs: CostList::default(),
        judge: None,
        weights: BTreeMap::new(),
        names: headrace_catalog::NameRules::default(),
    };
    let faults = Catalog::checked(apart, world.clock.now()).err().unwrap().faults.join("\n");
    assert!(faults.contains("`moving` points to `nowhere`, which is not served"), "{faults}");
    routes.get_mut(&name("moving")).unwrap().arms.push(RouteArm {
        model: name(MODEL),
        weight: 0,
        canary: None,
    });
    offer(&world, &[("a-1", &[one])], routes);
    assert_eq!(ask(&world, &json!({})).await.0, 502);
    assert!(world.engine.jobs.lock().unwrap().is_empty());
    world.balance_when_idle().await;
}
