//! Upstream servers that follow scripts, and worlds that use them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use headrace_call_state::Answer;
use headrace_catalog::{Backend, Catalog, CatalogOffer, MessageBackend, ModelPolicy, NameRules, ServedModel};
use headrace_domain::{Clock, Dialect, Endpoint, ModelName, NanoDollars, Region};
use headrace_engine_api::{
    AbandonPolicy, AnswerMemory, Engine, EngineHealth, LoadReport, MessageRelay, MessageResume, PrefixCache,
    RelayAnswer, RelayAsk, RelayError, RelayEvent, RelayFacts, RelayHead, RelayedEvent, ReportAge, Screening,
};
use headrace_fleet::{Fleet, Worker};
use headrace_ledger::prices::{CostList, PriceList};
use headrace_limits::LimitSpec;
use headrace_rollout::ModelRoute;
use headrace_wire::WireLimits;
use serde_json::{Value, json};

use crate::world::{MODEL, Setup, World};

/// The answer to one request, event by event. `None` means that nothing more comes before the gate is opened.
pub(crate) type Script = Vec<Option<RelayEvent>>;

/// Releases the events that wait for it.
#[derive(Default)]
pub(crate) struct Gate {
    open: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Gate {
    pub(crate) fn shut(&self) {
        self.open.store(false, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
    }
}

/// An upstream server that follows scripts, one for each request.
pub(crate) struct ScriptedServer {
    pub(crate) facts: RelayFacts,
    scripts: Mutex<VecDeque<Script>>,
    /// The requests it received, without the memory that their answers are charged to.
    pub(crate) asked: Mutex<Vec<RelayAsk>>,
    /// The memory that each answer is charged to, until the answer is over.
    pub(crate) memories: Mutex<Vec<Weak<dyn AnswerMemory>>>,
    pub(crate) gate: Arc<Gate>,
    /// How many of its answers have been dropped by their reader.
    pub(crate) dropped_answers: Arc<AtomicUsize>,
    /// Whether it reports its load. Among equal servers that do, the first one gets a call.
    pub(crate) reports_load: AtomicBool,
    /// Its region.
    region: Option<Region>,
    /// The prefix of addresses that it may fetch.
    may_fetch: String,
}

/// The same server with other facts, and with other addresses that it may fetch.
pub(crate) fn altered(
    server: Arc<ScriptedServer>,
    may_fetch: &str,
    alter: impl FnOnce(&mut RelayFacts),
) -> Arc<ScriptedServer> {
    let mut server = Arc::into_inner(server).unwrap();
    may_fetch.clone_into(&mut server.may_fetch);
    alter(&mut server.facts);
    Arc::new(server)
}

pub(crate) struct ScriptedAnswer {
    script: VecDeque<Option<RelayEvent>>,
    gate: Arc<Gate>,
    dropped_answers: Arc<AtomicUsize>,
    _memory: Option<Arc<dyn AnswerMemory>>,
}

impl Drop for ScriptedAnswer {
    fn drop(&mut self) {
        self.dropped_answers.fetch_add(1, Ordering::SeqCst);
    }
}

impl RelayAnswer for ScriptedAnswer {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RelayEvent>> {
        if let Some(None) = self.script.front() {
            self.gate.wakers.lock().unwrap().push(cx.waker().clone());
            if !self.gate.open.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            self.script.pop_front();
        }
        Poll::Ready(self.script.pop_front().flatten())
    }
}

impl MessageRelay for ScriptedServer {
    fn facts(&self) -> &RelayFacts {
        &self.facts
    }

    fn send(&self, mut ask: RelayAsk) -> Box<dyn RelayAnswer> {
        let _memory = ask.bounds.memory.take();
        self.memories.lock().unwrap().extend(_memory.as_ref().map(Arc::downgrade));
        self.asked.lock().unwrap().push(ask);
        let script = self.scripts.lock().unwrap().pop_front().unwrap_or_default().into();
        Box::new(ScriptedAnswer {
            script,
            gate: Arc::clone(&self.gate),
            dropped_answers: Arc::clone(&self.dropped_answers),
            _memory,
        })
    }

    fn count(&self, ask: RelayAsk) -> Option<Box<dyn RelayAnswer>> {
        (self.facts.dialect == Dialect::Anthropic).then(|| self.send(ask))
    }

    fn screen(&self, urls: Vec<String>) -> Screening {
        let refused = urls.iter().position(|url| !url.starts_with(&self.may_fetch));
        Box::pin(std::future::ready(refused.map_or(Ok(()), Err)))
    }

    fn load(&self) -> LoadReport {
        let told = self.reports_load.load(Ordering::SeqCst);
        let reported = if told { ReportAge::Now } else { ReportAge::Never };
        LoadReport { reported, ..LoadReport::default() }
    }

    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}

pub(crate) fn server(name: &str, dialect: Dialect, scripts: Vec<Script>) -> Arc<ScriptedServer> {
    server_in(None, name, dialect, scripts)
}

pub(crate) fn server_in(
    region: Option<&str>,
    name: &str,
    dialect: Dialect,
    scripts: Vec<Script>,
) -> Arc<ScriptedServer> {
    Arc::new(ScriptedServer {
        region: region.map(|region| Region::new(region).unwrap()),
        facts: RelayFacts {
            upstream: name.into(),
            dialect,
            model: "their-model".into(),
            max_tokens_field: "max_completion_tokens",
            context_window: None,
            abandoned: AbandonPolicy::Abort,
            resumes: MessageResume::Never,
            cache: PrefixCache::Disclosed,
            allow_unpriced: Arc::default(),
        },
        scripts: Mutex::new(scripts.into()),
        asked: Mutex::default(),
        memories: Mutex::default(),
        gate: Arc::default(),
        dropped_answers: Arc::default(),
        may_fetch: "https://".to_owned(),
        reports_load: AtomicBool::new(true),
    })
}

/// A world with only the model `far`, served by these servers.
pub(crate) fn world(servers: &[Arc<ScriptedServer>]) -> World {
    priced_world(servers, &json!([price("far", 1)]).to_string(), CostList::default())
}

/// The same with its own price and cost sheets.
pub(crate) fn priced_world(servers: &[Arc<ScriptedServer>], prices: &str, costs: CostList) -> World {
    let world = World::new(Setup::default());
    let names = (BTreeMap::new(), NameRules::default());
    swap(&world, false, &[("far", servers)], names, (prices, costs));
    world
}

/// The same with the operator's limits on the content of a request.
pub(crate) fn limited_world(servers: &[Arc<ScriptedServer>], wire: WireLimits) -> World {
    let world = World::new(Setup { wire, ..Setup::default() });
    let (names, prices) = ((BTreeMap::new(), NameRules::default()), json!([price("far", 1)]).to_string());
    swap(&world, false, &[("far", servers)], names, (&prices, CostList::default()));
    world
}

/// The same with rules on content.
pub(crate) fn ruled_world(
    servers: &[Arc<ScriptedServer>],
    rules: Vec<headrace_moderation::RuleConfig>,
) -> World {
    judged_servers(servers, rules, headrace_moderation::JudgesByName::new())
}

/// The same with judges that the rules ask.
pub(crate) fn judged_servers(
    servers: &[Arc<ScriptedServer>],
    rules: Vec<headrace_moderation::RuleConfig>,
    judges: headrace_moderation::JudgesByName,
) -> World {
    let world = World::new(Setup { rules, judges, ..Setup::default() });
    let (names, prices) = ((BTreeMap::new(), NameRules::default()), json!([price("far", 1)]).to_string());
    swap(&world, false, &[("far", servers)], names, (&prices, CostList::default()));
    world
}

/// Makes a world offer, besides its own model, models of these servers, with aliases. The first costs $1 per million
/// prompt tokens and $4 per million answer tokens, each further one twice as much as the one before.
pub(crate) fn offer(
    world: &World,
    models: &[(&str, &[Arc<ScriptedServer>])],
    aliases: BTreeMap<ModelName, ModelRoute>,
) {
    offer_by(world, models, aliases, NameRules::default());
}

/// The same, with rules for the names.
pub(crate) fn offer_by(
    world: &World,
    models: &[(&str, &[Arc<ScriptedServer>])],
    aliases: BTreeMap<ModelName, ModelRoute>,
    names: NameRules,
) {
    let prices = models.iter().enumerate().map(|(at, (model, _))| price(model, 1 << at));
    let prices: Vec<Value> = std::iter::once(price(MODEL, 1)).chain(prices).collect();
    swap(world, true, models, (aliases, names), (&json!(prices).to_string(), CostList::default()));
}

fn price(model: &str, times: i64) -> Value {
    json!({"model": model, "input": times * 1_000_000_000, "cached_input": times * 100_000_000,
        "output": times * 4_000_000_000})
}

/// Makes a world offer, besides its own model, a model whose servers are asked through the Responses API.
pub(crate) fn offer_passing(world: &World, model: &str, servers: &[Arc<ScriptedServer>]) {
    offer(world, &[(model, servers)], BTreeMap::new());
    let catalog = world.gateway.catalog();
    let passing = |model: &Arc<ServedModel>| {
        let mut model = (**model).clone();
        if let Backend::Messages(backend) = &mut model.backend {
            backend.passes_responses = true;
        }
        Arc::new(model)
    };
    let prices = json!([price(MODEL, 1), price(model, 1)]).to_string();
    let offer = CatalogOffer {
        models: catalog.models().map(passing).collect(),
        aliases: BTreeMap::new(),
        prices: PriceList::from_config(&serde_json::from_str::<Vec<_>>(&prices).unwrap()).unwrap(),
        costs: CostList::default(),
        fleet: Arc::clone(catalog.fleet()),
        judge: world.judge.clone(),
        weights: BTreeMap::new(),
        names: NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

/// With `own`, the world's own model is kept.
fn swap(
    world: &World,
    own: bool,
    models: &[(&str, &[Arc<ScriptedServer>])],
    (aliases, names): (BTreeMap<ModelName, ModelRoute>, NameRules),
    (prices, costs): (&str, CostList),
) {
    let mut workers = Vec::new();
    let own_model = |model: &&Arc<ServedModel>| own && model.name.as_str() == MODEL;
    let mut served: Vec<_> = world.gateway.catalog().models().filter(own_model).cloned().collect();
    if own {
        let engine = Arc::clone(&world.engine) as Arc<dyn Engine>;
        workers.push(Worker::new("w0", ModelName::new(MODEL).unwrap(), engine));
    }
    for (model, servers) in models {
        let name = ModelName::new(model).unwrap();
        let relay = |server: &Arc<ScriptedServer>| {
            Worker::relay(&server.facts.upstream, name.clone(), Arc::clone(server) as Arc<dyn MessageRelay>)
                .within(server.region.clone())
        };
        workers.extend(servers.iter().map(relay));
        served.push(Arc::new(ServedModel {
            name,
            backend: Backend::Messages(MessageBackend::default()),
            created_unix_s: 0,
            default_max_tokens: Some(100),
            limits: LimitSpec::UNLIMITED,
            policy: ModelPolicy::default(),
        }));
    }
    let offer = CatalogOffer {
        models: served,
        aliases,
        prices: PriceList::from_config(&serde_json::from_str::<Vec<_>>(prices).unwrap()).unwrap(),
        costs,
        fleet: Arc::new(Fleet::new(workers)),
        judge: world.judge.clone(),
        weights: BTreeMap::new(),
        names,
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

pub(crate) fn head() -> Option<RelayEvent> {
    Some(RelayEvent::Head(RelayHead::default()))
}

/// An event in OpenAI's dialect.
pub(crate) fn chunk(data: &Value) -> Option<RelayEvent> {
    data_event("", &data.to_string())
}

/// An event in Anthropic's dialect.
pub(crate) fn named(data: &Value) -> Option<RelayEvent> {
    data_event(data["type"].as_str().unwrap(), &data.to_string())
}

pub(crate) fn data_event(name: &str, data: &str) -> Option<RelayEvent> {
    let raw = if name.is_empty() {
        format!("data:  {data}\r\n\r\n")
    } else {
        format!("event: {name}\ndata: {data}\n\n")
    };
    Some(RelayEvent::Event(RelayedEvent {
        raw: raw.into(),
        name: Bytes::copy_from_slice(name.as_bytes()),
        data: Bytes::copy_from_slice(data.as_bytes()),
    }))
}

pub(crate) fn whole(body: &Value) -> Script {
    vec![head(), Some(RelayEvent::Whole(body.to_string().into()))]
}

pub(crate) fn failed(error: RelayError) -> Script {
    vec![Some(RelayEvent::Failed(error))]
}

pub(crate) fn status(status: u16, body: &Value) -> Script {
    failed(RelayError::Status { status, body: body.to_string().into(), retry_after: None })
}

pub(crate) fn delta(content: &str) -> Value {
    json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "their-model-2026", "strange": 1,
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": null}]})
}

pub(crate) fn finish(reason: &str) -> Value {
    json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "their-model-2026",
        "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

pub(crate) fn usage(prompt: u64, cached: u64, completion: u64) -> Value {
    json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "their-model-2026", "choices": [],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached}}})
}

/// "Hi you", with its end and its usage.
pub(crate) fn stream() -> Script {
    let mut script = vec![head(), chunk(&delta("Hi")), chunk(&delta(" you")), chunk(&finish("stop"))];
    script.extend([chunk(&usage(20, 5, 2)), data_event("", "[DONE]")]);
    script
}

pub(crate) fn answer_of(content: &str) -> Value {
    json!({"id": "x", "object": "chat.completion", "created": 1, "model": "their-model-2026", "strange": {"a": [1]},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}})
}

pub(crate) fn body(stream: bool, more: &Value) -> Value {
    let mut body = json!({"model": "far", "stream": stream, "max_tokens": 10, "unknown_to_us": {"x": 1},
        "messages": [{"role": "user", "content": "hello out there"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

pub(crate) async fn chat(world: &World, stream: bool, more: &Value) -> Answer {
    world.call(Endpoint::ChatCompletions, body(stream, more)).await
}

/// The balance of a world's caller, in dollars.
const CREDIT: &str = "1";

pub(crate) fn spent(balance: NanoDollars) -> i64 {
    NanoDollars::from_dollars(CREDIT).unwrap().get() - balance.get()
}
