//! The catalogue is replaced while calls run. Calls that were routed by the earlier catalogue keep it to their end,
//! later calls use the new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_catalog::{Catalog, CatalogOffer, ModelPolicy, ToolsOrder};
use headrace_domain::{CallOutcome, Clock, Endpoint, ModelName, Usage};
use headrace_ledger::prices::{CostList, PriceList};
use headrace_moderation::{Judge, Rules};
use headrace_rollout::ModelRoute;
use serde_json::json;

use crate::world::{MODEL, Script, Setup, World, chat_body, model_list, read, trace_of};

/// The model and worker of a world at `times` the price, and with another alias.
pub(crate) fn offer(world: &World, times: i64, alias: &str) -> CatalogOffer {
    let name = |text: &str| ModelName::new(text).unwrap();
    let prices = json!([{"model": MODEL, "input": times * 1_000_000_000, "output": times * 4_000_000_000}]);
    let former = world.gateway.catalog();
    CatalogOffer {
        models: former.models().cloned().collect(),
        aliases: BTreeMap::from([(name(alias), ModelRoute::to(name(MODEL)))]),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(prices).unwrap()).unwrap(),
        costs: CostList::default(),
        fleet: Arc::clone(former.fleet()),
        judge: None,
        weights: BTreeMap::new(),
        names: headrace_catalog::NameRules::default(),
    }
}

pub(crate) fn swap(world: &World, offer: CatalogOffer) {
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

/// The cost of a usage at a world's own prices.
fn cost(usage: &Usage) -> i64 {
    i64::try_from(usage.input * 1_000 + usage.output * 4_000).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_flight_ends_at_the_price_that_it_was_held_at() {
    let world = World::new(Setup::default());
    world.script(Script::ThenWait(2));
    let answer = world.chat(true).await;
    assert_eq!(answer.status, 200);
    let former = Arc::downgrade(&world.gateway.catalog());
    let blocked = json!([{"name": "all", "kind": "words", "words": ["ha"], "action": "block"}]);
    let rules = Rules::compile(&serde_json::from_value::<Vec<_>>(blocked).unwrap()).unwrap();
    swap(
        &world,
        CatalogOffer { judge: Some(Arc::new(rules) as Arc<dyn Judge>), ..offer(&world, 10, "other") },
    );
    assert!(former.upgrade().is_some(), "the call keeps what it was routed by");
    assert_eq!(world.chat(false).await.status, 400, "the new rules hold for the next call");
    drop(answer);
    world.balance_when_idle().await;
    let records = world.traces.0.lock().unwrap().clone();
    let held = records.iter().find(|record| matches!(record.outcome, CallOutcome::Cancelled { .. })).unwrap();
    assert_eq!((held.usage.output, held.cost.get()), (2, cost(&held.usage)));
    assert!(former.upgrade().is_none(), "nobody keeps it any longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_call_has_the_new_prices_and_names() {
    let world = World::new(Setup::default());
    let before = trace_of(&world, world.chat(false).await).await;
    assert_eq!(before.cost.get(), cost(&before.usage));
    swap(&world, offer(&world, 10, "other"));
    let after = trace_of(&world, world.chat(false).await).await;
    assert_eq!((after.usage, after.cost.get()), (before.usage, 10 * before.cost.get()));
    let named = |name: &str| {
        let mut body = chat_body(false);
        body["model"] = name.into();
        world.call(Endpoint::ChatCompletions, body)
    };
    assert_eq!((named("alias").await.status, named("other").await.status), (404, 200));
    let listed = read(world.request(model_list(), "").await).await;
    assert!(listed.contains("\"other\"") && !listed.contains("\"alias\""), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_catalogue_is_told_all_its_faults() {
    let world = World::new(Setup::default());
    let mut bad = CatalogOffer { prices: PriceList::default(), ..offer(&world, 1, "demo") };
    let name = |text: &str| ModelName::new(text).unwrap();
    bad.aliases.insert(name("stray"), ModelRoute::to(name("nothing")));
    let Err(error) = Catalog::checked(bad, world.clock.now()) else { panic!("it is taken") };
    let said = error.to_string();
    for fault in ["`demo` has no price", "`demo` has the name of a served model", "points to `nothing`"] {
        assert!(said.contains(fault), "{fault}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_tools_properties_is_as_sent_or_the_models_own() {
    let world = World::new(Setup::default());
    let body = |properties: &str| {
        let schema = format!(r#"{{"type":"object","properties":{properties}}}"#);
        let mut body = chat_body(false);
        let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
        body["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
        body
    };
    let one = body(r#"{"b":{"type":"string","format":"date"},"a":{"type":"integer"}}"#);
    // Keywords in another order, then names.
    let two = body(r#"{"b":{"format":"date","type":"string"},"a":{"type":"integer"}}"#);
    let three = body(r#"{"a":{"type":"integer"},"b":{"type":"string","format":"date"}}"#);
    for (tools_order, names_matter) in [(ToolsOrder::AsSent, true), (ToolsOrder::Canonical, false)] {
        let policy = ModelPolicy { tools_order, ..ModelPolicy::default() };
        let mut offer = offer(&world, 1, "other");
        offer.models.iter_mut().for_each(|model| Arc::make_mut(model).policy = policy.clone());
        swap(&world, offer);
        let mut prompts = Vec::new();
        for body in [&one, &two, &three] {
            let _ = read(world.call(Endpoint::ChatCompletions, body.clone()).await).await;
            prompts.push(world.engine.jobs.lock().unwrap().pop().unwrap().prompt);
        }
        assert_eq!(prompts[0], prompts[1]);
        assert_eq!(prompts[0] != prompts[2], names_matter, "{tools_order:?}");
    }
}
