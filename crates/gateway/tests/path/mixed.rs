//! A route mixes engines and relay upstreams of either dialect. When one is dead, another one answers: the call
//! is rendered or translated anew, over one hold, at the price of the model that answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_catalog::{Backend, Catalog, CatalogOffer, MessageBackend, ModelPolicy, NameRules, ServedModel};
use headrace_domain::{AttemptOutcome, Clock, Dialect, Endpoint, ModelName};
use headrace_engine_api::{Engine, MessageRelay, RelayError};
use headrace_fleet::{Fleet, Worker};
use headrace_ledger::prices::{CostList, PriceList};
use headrace_limits::LimitSpec;
use headrace_rollout::{FallbackModels, ModelRoute, RouteArm};
use serde_json::{Value, json};

use crate::routes::name;
use crate::scripted_server::{
    Script, ScriptedServer, answer_of, failed, head, named, server, spent, stream, whole,
};
use crate::world::{Script as Engines, Scripted, Setup, World, read};

/// The kind of server of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The engine of this process.
    Engine,
    /// An upstream that takes token ids.
    Ids,
    /// An upstream that speaks OpenAI's dialect.
    OpenAi,
    /// An upstream that speaks Anthropic's dialect.
    Anthropic,
}

const KINDS: [Kind; 4] = [Kind::Engine, Kind::Ids, Kind::OpenAi, Kind::Anthropic];

/// The server of a model in a test.
enum Server {
    Engine(Arc<Scripted>),
    Relay(Arc<ScriptedServer>),
}

fn dead(kind: Kind, at: &str) -> Server {
    let refused = || failed(RelayError::Connect { why: "refused".to_owned() });
    match kind {
        Kind::Engine => Server::Engine(Scripted::new(Engines::Panic)),
        Kind::Ids => Server::Engine(Scripted::new(Engines::ThenDie(0))),
        Kind::OpenAi => Server::Relay(server(at, Dialect::OpenAi, vec![refused(), refused()])),
        Kind::Anthropic => Server::Relay(server(at, Dialect::Anthropic, vec![refused(), refused()])),
    }
}

fn alive(kind: Kind, at: &str, streams: bool) -> Server {
    match kind {
        Kind::Engine | Kind::Ids => Server::Engine(Scripted::new(Engines::Answer)),
        Kind::OpenAi => {
            let script = if streams { stream() } else { whole(&answer_of("Hi you")) };
            Server::Relay(server(at, Dialect::OpenAi, vec![script]))
        }
        Kind::Anthropic => Server::Relay(server(at, Dialect::Anthropic, vec![message(streams)])),
    }
}

/// "Hi you" in Anthropic's dialect.
fn message(streams: bool) -> Script {
    let whole_message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "their-model-2026",
        "content": [{"type": "text", "text": "Hi you"}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": 20, "output_tokens": 2}});
    if !streams {
        return whole(&whole_message);
    }
    let mut begun = whole_message;
    (begun["content"], begun["stop_reason"]) = (json!([]), Value::Null);
    begun["usage"]["output_tokens"] = json!(1);
    vec![
        head(),
        named(&json!({"type": "message_start", "message": begun})),
        named(
            &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ),
        named(
            &json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi you"}}),
        ),
        named(&json!({"type": "content_block_stop", "index": 0})),
        named(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": 2}})),
        named(&json!({"type": "message_stop"})),
    ]
}

/// Makes a world offer only these models, each at twice the price of the one before, and the name `moving`.
fn offer(world: &World, models: &[(&str, &Server)], route: ModelRoute) {
    let own = world.gateway.catalog().models().next().unwrap().clone();
    let (mut served, mut workers, mut prices) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (model, server)) in models.iter().enumerate() {
        let (worker, backend) = match server {
            Server::Engine(engine) => {
                (Worker::new(model, name(model), Arc::clone(engine) as Arc<dyn Engine>), own.backend.clone())
            }
            Server::Relay(told) => (
                Worker::relay(model, name(model), Arc::clone(told) as Arc<dyn MessageRelay>),
                Backend::Messages(MessageBackend::default()),
            ),
        };
        workers.push(worker);
        served.push(Arc::new(ServedModel {
            name: name(model),
            backend,
            created_unix_s: 0,
            default_max_tokens: Some(100),
            limits: LimitSpec::UNLIMITED,
            policy: ModelPolicy::default(),
        }));
        let times = 1_i64 << at;
        prices.push(json!({"model": model, "input": times * 1_000_000_000, "output": times * 4_000_000_000}));
    }
    let offer = CatalogOffer {
        models: served,
        aliases: BTreeMap::<ModelName, ModelRoute>::from([(name("moving"), route)]),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(json!(prices)).unwrap()).unwrap(),
        costs: CostList::default(),
        fleet: Arc::new(Fleet::new(workers)),
        judge: None,
        weights: BTreeMap::new(),
        names: NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

fn arm(model: &str, weight: u32) -> RouteArm {
    RouteArm { model: name(model), weight, canary: None }
}

/// A route on which the dead model falls back to the other one, and a route that both models share.
fn routes() -> [ModelRoute; 2] {
    let fallbacks = FallbackModels { failed: vec![name("good")], ..FallbackModels::default() };
    // One call in a million begins with the other model.
    let shared = vec![arm("bad", 1_000_000), arm("good", 1)];
    [
        ModelRoute { arms: vec![arm("bad", 1)], fallbacks, ..ModelRoute::default() },
        ModelRoute { arms: shared, ..ModelRoute::default() },
    ]
}

fn call(endpoint: Endpoint, streams: bool) -> Value {
    match endpoint {
        Endpoint::Responses => {
            json!({"model": "moving", "input": "hello", "max_output_tokens": 10, "store": false, "stream": streams})
        }
        _ => json!({"model": "moving", "max_tokens": 10, "stream": streams,
            "messages": [{"role": "user", "content": "hello"}]}),
    }
}

#[tokio::test]
async fn a_dead_server_of_a_mixed_route_never_reaches_the_caller() {
    for bad in KINDS {
        for good in KINDS {
            for streams in [false, true] {
                for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
                    for route in routes() {
                        let row = format!("{bad:?} → {good:?}, {endpoint:?}, stream {streams}, {route:?}");
                        let world = World::new(Setup::default());
                        let (first, second) = (dead(bad, "bad"), alive(good, "good", streams));
                        offer(&world, &[("bad", &first), ("good", &second)], route);
                        let answer = world.call(endpoint, call(endpoint, streams)).await;
                        let status = answer.status;
                        let text = read(answer).await;
                        assert_eq!(status, 200, "{row}: {text}");
                        let is_engine = matches!(good, Kind::Engine | Kind::Ids);
                        assert!(text.contains(if is_engine { "ha" } else { "you" }), "{row}: {text}");
                        assert!(!text.contains("error\":{"), "{row}: {text}");
                        let balance = spent(world.balance_when_idle().await);
                        let record = world.last_trace();
                        assert_eq!(record.model_served.as_deref(), Some("good"), "{row}");
                        let prompt = i64::try_from(record.usage.prompt_tokens()).unwrap();
                        let output = if is_engine { 4 } else { 2 };
                        assert!(prompt == 20 || is_engine, "{row}: {:?}", record.usage);
                        let cost = 2 * (prompt * 1_000 + output * 4_000);
                        assert_eq!((record.cost.get(), balance), (cost, cost), "{row}");
                        assert!(record.held.get() >= 2 * 10 * 4_000, "{row}: {}", record.held);
                        let [first, last] = &record.attempts[..] else {
                            panic!("{row}: {:?}", record.attempts)
                        };
                        assert_eq!(first.model.as_deref(), Some("bad"), "{row}");
                        assert_eq!((last.outcome.name(), &last.model), ("answered", &None), "{row}");
                        let totals = world.ledger.totals();
                        assert_eq!((totals.holds, totals.settled, totals.open_holds), (1, 1, 0), "{row}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_model_that_cannot_take_a_call_is_passed_over_with_a_reason() {
    let world = World::new(Setup::default());
    let (first, text_only) = (dead(Kind::OpenAi, "bad"), alive(Kind::Engine, "own", false));
    let last = alive(Kind::Anthropic, "good", false);
    let fallbacks = FallbackModels { failed: vec![name("own"), name("good")], ..FallbackModels::default() };
    let route = ModelRoute { arms: vec![arm("bad", 1)], fallbacks, ..ModelRoute::default() };
    offer(&world, &[("bad", &first), ("own", &text_only), ("good", &last)], route);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
    let call = json!({"model": "moving", "max_tokens": 10,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}, image]}]});
    let answer = world.call(Endpoint::ChatCompletions, call).await;
    let status = answer.status;
    let text = read(answer).await;
    assert_eq!(status, 200, "{text}");
    world.balance_when_idle().await;
    let record = world.last_trace();
    let tries: Vec<_> = record.attempts.iter().map(|attempt| (&*attempt.worker, &attempt.outcome)).collect();
    let [("bad", AttemptOutcome::Failed { .. }), ("own", AttemptOutcome::Refused { why, .. }), ("good", _)] =
        tries[..]
    else {
        panic!("{tries:?}")
    };
    assert!(why.starts_with("the model cannot take this call: `messages"), "{why}");
    assert_eq!(record.model_served.as_deref(), Some("good"));
}
