//! Upstreams: asks servers which models they have, and offers these models. A server that does not answer is asked
//! again and does not stop the others. A server's state survives reloads while its settings stay the same. Must not
//! know how a call is relayed.

mod addresses;
mod by_workers;
mod listed;
mod names;
mod silent;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use headrace_admin::{AdminError, UpstreamAct, UpstreamSource, UpstreamView};
use headrace_catalog::{Backend, MessageBackend, ModelPolicy, ServedModel};
use headrace_config::ServerSettings;
use headrace_config::relayed::{RelayTarget, RelayedConfig, UpstreamConfig};
use headrace_domain::{AdminCode, Clock, ModelName, steers_terminals};
use headrace_engine_api::{Capabilities, Engine as _};
use headrace_fleet::{Worker, WorkerStatus};
use headrace_gateway::Gateway;
use headrace_ledger::prices::PriceConfig;
use headrace_limits::LimitSpec;
use headrace_terminal::output;
use headrace_trace::Metrics;
use headrace_upstream::{ListedModel, ModelListing, Upstream};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::caches;
use crate::gauges;
use crate::tokenizer_assets::{AssetsByModel, TokenizerAssets};
use crate::workers::{self, WorkerModels};

use listed::{NAMES_LISTED, describe, short_id};
use names::{NameTable, Resolver, resolver};

/// Time limit for a server's model list.
const ASK_WITHIN: Duration = Duration::from_secs(3);
/// Time limit for a worker's model list, which comes with the models' tokenizer assets.
const WORDS_WITHIN: Duration = Duration::from_secs(15);
/// Interval at which a worker's load is read.
const LOADS_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a server that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Interval at which a server that answered is asked again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The upstream registry. One per process.
pub struct UpstreamRegistry {
    clock: Arc<dyn Clock>,
    /// Cache directory for the tokenizer assets that workers send.
    cache: Option<PathBuf>,
    state: Mutex<RegistryState>,
    resolver: Resolver,
    /// Notified when a connection to one address of a name with several addresses failed.
    unreached: Arc<Notify>,
}

#[derive(Default)]
struct RegistryState {
    sites: Vec<UpstreamSite>,
    names: NameTable,
    workers: BTreeMap<WorkerKey, Arc<Worker>>,
    assets_by_model: AssetsByModel,
    /// Prices of listed models that `[[prices]]` does not name.
    prices: Vec<PriceConfig>,
}

/// Identifies a worker. If any field changes, it is a different worker.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct WorkerKey {
    /// The model of this gateway that the worker answers for.
    name: ModelName,
    /// Fingerprint of its upstream's configuration.
    fingerprint: [u8; 32],
    /// The server's address, if the upstream's name has several.
    ip: Option<IpAddr>,
    /// The model's name at the upstream.
    theirs: String,
    /// Tokenizer assets and context window, for a worker that takes token ids. `None` for a worker that takes messages.
    words: Option<(Arc<str>, u32)>,
}

/// The state before a reload, from which workers are reused.
struct FormerWorkers<'a> {
    workers: &'a BTreeMap<WorkerKey, Arc<Worker>>,
    created_unix_s: u64,
    clock: &'a Arc<dyn Clock>,
}

/// One server.
#[derive(Clone)]
pub struct UpstreamSite {
    pub(crate) config: UpstreamConfig,
    pub(crate) upstream: Upstream,
    pub(crate) listed: ListedModels,
    /// The models that it reported, if it is asked as a worker.
    theirs: Arc<WorkerModels>,
    by: AskContext,
    /// What is observed of the server across all its models.
    seen: Arc<headrace_fleet::WorkerSite>,
}

/// What is needed to ask servers for their models.
#[derive(Clone)]
struct AskContext {
    clock: Arc<dyn Clock>,
    cache: Option<PathBuf>,
}

/// Result of the last question to a server about its models.
#[derive(Clone)]
pub(crate) enum ListedModels {
    /// The server has not been asked.
    NotAsked,
    /// The models that it lists.
    Models(Arc<ModelListing>),
    /// The request failed, or its answer was unusable, with the reason.
    Failed(String),
}

/// Models that upstreams answer for, ready to be served.
#[derive(Default)]
pub struct UpstreamModels {
    /// The models.
    pub models: Vec<Arc<ServedModel>>,
    pub(crate) workers: Vec<Arc<Worker>>,
    /// Prices of models that the configuration does not price itself.
    pub prices: Vec<PriceConfig>,
    /// Notes for the operator: models that an upstream does not list, and models that cannot be served.
    pub notes: Vec<String>,
    workers_by_key: BTreeMap<WorkerKey, Arc<Worker>>,
    assets_by_model: AssetsByModel,
    sites: Vec<UpstreamSite>,
}

impl UpstreamRegistry {
    /// `cache`: the directory for tokenizer assets that workers send.
    pub fn new(clock: Arc<dyn Clock>, cache: Option<PathBuf>) -> Self {
        Self { clock, cache, state: Mutex::default(), resolver: resolver(), unreached: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The servers that calls are sent to now.
    pub(crate) fn sites(&self) -> Vec<UpstreamSite> {
        self.state().sites.clone()
    }

    /// Prices of listed models, from the default prices of their upstreams.
    pub(crate) fn prices(&self) -> Vec<PriceConfig> {
        self.state().prices.clone()
    }

    /// The models that these servers make available. Sends no request.
    pub fn fronted(
        &self,
        config: &ServerSettings,
        assets_by_model: AssetsByModel,
        sites: Vec<UpstreamSite>,
    ) -> UpstreamModels {
        let (workers, former) = {
            let state = self.state();
            (state.workers.clone(), state.assets_by_model.clone())
        };
        let created_unix_s = self.clock.now().seconds();
        let before = FormerWorkers { workers: &workers, created_unix_s, clock: &self.clock };
        let mut fronted = UpstreamModels { assets_by_model, ..UpstreamModels::default() };
        for assets in fronted.assets_by_model.values_mut() {
            // Workers that stay keep their tokenizer assets, so equal assets are shared instead of held twice.
            let same = former.values().find(|other| other.fingerprint == assets.fingerprint);
            *assets = Arc::clone(same.unwrap_or(assets));
        }
        let mut named: BTreeSet<ModelName> = config.models.iter().map(|model| model.name.clone()).collect();
        named.extend(config.aliases.keys().cloned());
        for model in &config.relayed {
            named.insert(model.name.clone());
            fronted.relayed(model, &sites, &before);
        }
        for site in sites.iter().filter(|site| site.config.serve) {
            fronted.listed(config, site, &named, &before);
        }
        fronted.sites = sites;
        fronted
    }

    /// Routes new calls to these servers from now on, and starts to follow their load.
    pub(crate) fn take_over(&self, fronted: UpstreamModels, metrics: &Metrics, runtime: &Handle) {
        let mut state = self.state();
        let stays = |of: &UpstreamSite, sites: &[UpstreamSite]| {
            sites.iter().any(|site| Arc::ptr_eq(&site.seen, &of.seen))
        };
        for gone in state.sites.iter().filter(|site| !stays(site, &fronted.sites)) {
            metrics.unregister(("upstream", gone.upstream.label().as_str()));
        }
        for new in fronted.sites.iter().filter(|site| !stays(site, &state.sites)) {
            gauges::register_upstream(metrics, &new.upstream);
            // These tasks end when the last reference to the server is dropped.
            runtime.spawn(new.upstream.follow_load());
            runtime.spawn(new.upstream.follow_name());
            if new.upstream.spec().ip.is_some() {
                let unreached = Arc::clone(&self.unreached);
                runtime.spawn(new.upstream.follow_connections(move || unreached.notify_one()));
            }
            runtime.spawn(new.upstream.follow_cache(caches::cache_event_handler(Arc::downgrade(&new.seen))));
        }
        state.sites = fronted.sites;
        state.workers = fronted.workers_by_key;
        state.assets_by_model = fronted.assets_by_model;
        state.prices = fronted.prices;
    }

    /// Asks failed servers again every [`ASK_AGAIN`] and all servers every [`LOOK_AGAIN`], until the future is dropped.
    /// Calls `changed` with an upstream's name when its answer changes. Reports to the fleet whether each server
    /// answered.
    pub(crate) async fn tend(
        self: Arc<Self>,
        gateway: Weak<Gateway>,
        changed: impl Fn(String) + Clone + Send + 'static,
    ) {
        let mut since_look = Duration::ZERO;
        loop {
            tokio::time::sleep(ASK_AGAIN).await;
            since_look += ASK_AGAIN;
            let all = since_look >= LOOK_AGAIN;
            if all {
                since_look = Duration::ZERO;
            }
            let ask = |site: &UpstreamSite| all || !matches!(site.listed, ListedModels::Models(_));
            let sites: Vec<UpstreamSite> = self.sites().into_iter().filter(ask).collect();
            for site in asked(sites).await {
                if let Some(gateway) = gateway.upgrade() {
                    gateway.catalog().fleet().probed(&site.seen, site.answered());
                }
                if let Some(name) = self.heard(site) {
                    let changed = changed.clone();
                    // The callee reports its own outcome.
                    let _ = tokio::task::spawn_blocking(move || changed(name)).await;
                }
            }
        }
    }

    /// Reads the load of workers, until the future is dropped.
    pub(crate) async fn watch_loads(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOADS_EVERY).await;
            let up = |site: &UpstreamSite| {
                site.upstream.is_worker() && matches!(site.listed, ListedModels::Models(_))
            };
            for site in self.sites().into_iter().filter(up) {
                let now = self.clock.now();
                // A task each, so that a slow worker does not delay the reports of others.
                tokio::spawn(async move { drop(site.upstream.about(now).await) });
            }
        }
    }

    /// The operators' view of the upstreams, and their actions on them.
    pub(crate) fn source(
        self: &Arc<Self>,
        runtime: Handle,
        gateway: Weak<Gateway>,
        changed: impl Fn(String) + Send + Sync + 'static,
    ) -> UpstreamSource {
        let upstreams = Arc::clone(self);
        Box::new(move |act| {
            let sites = upstreams.sites();
            if let Some(act) = act {
                // The bare name of an upstream means all of its servers.
                let named = |site: &&UpstreamSite| {
                    site.upstream.name() == act.upstream() || site.upstream.label() == act.upstream()
                };
                let named: Vec<&UpstreamSite> = sites.iter().filter(named).collect();
                if named.is_empty() {
                    return Err(unknown(act.upstream(), &sites));
                }
                match act {
                    UpstreamAct::Drain { .. } => named.iter().for_each(|site| site.upstream.drain()),
                    UpstreamAct::Resume { .. } => named.iter().for_each(|site| site.upstream.resume()),
                    UpstreamAct::Probe { .. } => {
                        for said in runtime.block_on(asked(named.into_iter().cloned().collect())) {
                            upstreams.heard(said).into_iter().for_each(&changed);
                        }
                    }
                }
                tracing::info!(?act, "an operator's act on an upstream");
            }
            let asked = sites.iter().map(|site| site.upstream.clone()).collect();
            runtime.block_on(silent::ask_silent(asked));
            let fleet = gateway.upgrade().map(|gateway| Arc::clone(gateway.catalog().fleet()));
            let workers = fleet.map_or_else(Vec::new, |fleet| fleet.status());
            Ok(upstreams.views(&workers))
        })
    }

    fn views(&self, workers: &[WorkerStatus]) -> Vec<UpstreamView> {
        let state = self.state();
        let backend_kinds = |site: &UpstreamSite| {
            let ip = site.upstream.spec().ip;
            let is_own = |key: &&WorkerKey| key.fingerprint == site.config.fingerprint && key.ip == ip;
            let own = state.workers.keys().filter(is_own);
            let backend_kinds: BTreeSet<_> = own.map(|key| key.words.is_none()).collect();
            let name = |is_messages: &bool| if *is_messages { "messages" } else { "tokens" };
            backend_kinds.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        state
            .sites
            .iter()
            .map(|site| UpstreamView { lane: backend_kinds(site), ..site.view(workers) })
            .collect()
    }

    /// Records a server's answer. Returns the upstream's name if the set of served models changes.
    fn heard(&self, said: UpstreamSite) -> Option<String> {
        let mut state = self.state();
        let site = state.sites.iter_mut().find(|site| Arc::ptr_eq(&site.seen, &said.seen))?;
        let differs = match (&site.listed, &said.listed) {
            (ListedModels::Models(before), ListedModels::Models(now)) => {
                before != now || !site.theirs.is_same(&said.theirs)
            }
            // Its models stay served, because the server may be back in a moment.
            (ListedModels::Models(_), _) => return None,
            (_, ListedModels::Models(_)) => true,
            _ => false,
        };
        (site.listed, site.theirs) = (said.listed, said.theirs);
        differs.then(|| site.upstream.name().to_owned())
    }
}

/// Asks servers for their models, all at once, for a bounded time.
pub async fn asked(mut sites: Vec<UpstreamSite>) -> Vec<UpstreamSite> {
    let answers: Vec<_> = sites.iter().cloned().map(|site| tokio::spawn(ask(site))).collect();
    for (site, answer) in sites.iter_mut().zip(answers) {
        match answer.await {
            Ok(said) => *site = said,
            Err(_) => site.listed = ListedModels::Failed("the question was cut off".to_owned()),
        }
    }
    sites
}

async fn ask(mut site: UpstreamSite) -> UpstreamSite {
    let UpstreamSite { upstream, theirs, by, .. } = &site;
    let within = if upstream.is_worker() { WORDS_WITHIN } else { ASK_WITHIN };
    let asking = async {
        if upstream.is_worker() {
            let theirs = workers::ask(upstream, theirs, by.cache.as_deref(), by.clock.now()).await?;
            return Ok((theirs.listed(), Arc::new(theirs)));
        }
        let models = upstream.models().await.map_err(|error| error.to_string())?;
        Ok((models, Arc::default()))
    };
    let said = tokio::time::timeout(within, asking).await;
    match said.unwrap_or_else(|_| Err(format!("it did not say within {} s", within.as_secs()))) {
        Ok((models, theirs)) => {
            site.theirs = theirs;
            site.listed = ListedModels::Models(Arc::new(models));
        }
        Err(why) => site.listed = ListedModels::Failed(why),
    }
    site
}

fn unknown(name: &str, sites: &[UpstreamSite]) -> AdminError {
    let known: Vec<String> = sites.iter().map(|site| site.upstream.label()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let message = format!("there is no upstream `{name}`; there is {known}");
    AdminError {
        code: AdminCode::UnknownUpstream,
        message,
        remedy: "`headrace upstreams` lists them".to_owned(),
    }
}

impl UpstreamSite {
    /// Whether the server answered the last request, and if not, why.
    fn answered(&self) -> Result<(), &str> {
        match &self.listed {
            ListedModels::Failed(why) => Err(why),
            ListedModels::NotAsked | ListedModels::Models(_) => Ok(()),
        }
    }

    fn lists(&self, model: &str) -> Option<&ListedModel> {
        let ListedModels::Models(models) = &self.listed else { return None };
        models.iter().find(|listed| listed.id == model)
    }
}

impl UpstreamModels {
    /// Adds a model that is configured with its targets.
    fn relayed(&mut self, model: &RelayedConfig, sites: &[UpstreamSite], before: &FormerWorkers<'_>) {
        let assets = self.assets_by_model.get(&model.name).map(Arc::clone);
        let at = |target: &RelayTarget| sites.iter().find(|site| site.config.spec.name == target.upstream);
        let is_worker = |target: &RelayTarget| at(target).is_some_and(|site| site.upstream.is_worker());
        if model.targets.iter().any(is_worker) {
            return self.by_workers(model, sites, before);
        }
        let mut window = model.context_window;
        let mut engines = Vec::new();
        let all =
            model.targets.iter().flat_map(|target| sites_at(target, sites).map(move |site| (target, site)));
        for (target, site) in all {
            self.note_unlisted(&model.name, site, &target.model);
            let listed = site.lists(&target.model).and_then(|listed| listed.context_window);
            let Some(assets) = &assets else {
                window = window.or(listed);
                self.relay(&model.name, site, &target.model, window, before);
                continue;
            };
            let window = model.context_window.or(listed).or(assets.context_window).unwrap_or(0);
            engines.extend(self.engine(&model.name, site, &target.model, assets, window, before));
        }
        let default_max_tokens = model.default_max_tokens;
        let (backend, recommended) = match assets {
            None => {
                let passes_responses = model
                    .targets
                    .iter()
                    .all(|target| at(target).is_some_and(|site| site.config.passes_responses));
                let backend =
                    MessageBackend { context_window: window, inputs: model.inputs, passes_responses };
                (Backend::Messages(backend), None)
            }
            Some(assets) => match assets.token_backend(&engines) {
                Some(backend) => (Backend::Tokens(backend), assets.default_max_tokens),
                None => return,
            },
        };
        self.models.push(Arc::new(ServedModel {
            name: model.name.clone(),
            backend,
            created_unix_s: before.created_unix_s,
            default_max_tokens: default_max_tokens.or(recommended),
            limits: model.limits,
            policy: model.policy.clone(),
        }));
    }

    /// Adds a note if a server does not list a model that is configured for it.
    fn note_unlisted(&mut self, name: &ModelName, site: &UpstreamSite, theirs: &str) {
        if let ListedModels::Models(models) = &site.listed
            && site.lists(theirs).is_none()
        {
            self.notes.push(format!(
                "upstream `{}` lists no model `{theirs}`, which `{name}` is to be answered by; it has {}",
                site.upstream.name(),
                describe(models)
            ));
        }
    }

    /// Adds every model that a server lists, under the upstream's name.
    fn listed(
        &mut self,
        config: &ServerSettings,
        site: &UpstreamSite,
        named: &BTreeSet<ModelName>,
        before: &FormerWorkers<'_>,
    ) {
        let ListedModels::Models(models) = &site.listed else { return };
        self.note_faults(site);
        if models.left_out > 0 {
            let (name, kept, left_out) = (site.upstream.name(), models.len(), models.left_out);
            self.notes.push(format!(
                "upstream `{name}` lists more models than are kept: {left_out} entries behind {kept} are left out"
            ));
        }
        let before_notes = self.notes.len();
        for listed in models.iter() {
            let upstream = site.upstream.name();
            if listed.id.contains(steers_terminals) {
                let shown = output::shown_line(&listed.id);
                self.notes.push(format!(
                    "upstream `{upstream}`: a model that it lists is not served: `{shown}` has characters that do not show"
                ));
                continue;
            }
            let name = match ModelName::new(&format!("{upstream}/{}", short_id(config, upstream, &listed.id)))
            {
                Ok(name) => name,
                Err(error) => {
                    self.notes
                        .push(format!("upstream `{upstream}`: a model that it lists is not served: {error}"));
                    continue;
                }
            };
            if named.contains(&name) {
                continue;
            }
            // Another server of the same upstream, at another address, may have the model as well.
            let is_served = self.models.iter().any(|model| model.name == name);
            if !is_served && !config.prices.iter().any(|price| price.model == name) {
                let Some(price) = site.config.price_of(&name, config.play_prices) else {
                    self.notes.push(format!(
                        "`{name}` is not served: it has no price; give its upstream a `price`, or add [[prices]]"
                    ));
                    continue;
                };
                self.prices.push(price);
            }
            if let Some(their) = site.theirs.get(&listed.id) {
                let capabilities = self.worker(&name, site, their, before);
                if let Some(backend) = their.token_backend(&capabilities).filter(|_| !is_served) {
                    self.models.push(Arc::new(ServedModel {
                        name,
                        backend: Backend::Tokens(backend),
                        created_unix_s: their.about.created_unix_s,
                        default_max_tokens: their.about.default_max_tokens,
                        limits: LimitSpec::UNLIMITED,
                        policy: ModelPolicy::default(),
                    }));
                }
                continue;
            }
            self.relay(&name, site, &listed.id, listed.context_window, before);
            if is_served {
                continue;
            }
            self.models.push(Arc::new(ServedModel {
                name,
                backend: Backend::Messages(MessageBackend {
                    context_window: listed.context_window,
                    inputs: None,
                    passes_responses: site.config.passes_responses,
                }),
                created_unix_s: listed.created.unwrap_or(before.created_unix_s),
                default_max_tokens: None,
                limits: LimitSpec::UNLIMITED,
                policy: ModelPolicy::default(),
            }));
        }
        // A list of thousands of names must not become thousands of lines.
        let told = before_notes.saturating_add(NAMES_LISTED);
        if self.notes.len() > told {
            let more = self.notes.len() - told;
            self.notes.truncate(told);
            self.notes.push(format!(
                "upstream `{}`: {more} more of its models are not served",
                site.upstream.name()
            ));
        }
    }

    /// Adds the worker that answers for `name` at a server in messages. Reuses the worker of the earlier configuration
    /// if there is one.
    fn relay(
        &mut self,
        name: &ModelName,
        site: &UpstreamSite,
        theirs: &str,
        window: Option<u32>,
        before: &FormerWorkers<'_>,
    ) {
        let key = key(name, site, theirs, None);
        let worker = before.workers.get(&key).cloned().unwrap_or_else(|| {
            let relay = Arc::new(site.upstream.model(theirs, window));
            let worker = Worker::relay(&id(site, theirs), name.clone(), relay).at(&site.seen);
            Arc::new(worker.within(site.config.region.clone()))
        });
        self.workers.push(Arc::clone(&worker));
        self.workers_by_key.insert(key, worker);
    }

    /// Adds the worker that answers for `name` at a server in token ids, and returns its capabilities. Returns `None`
    /// if the server takes no token ids.
    fn engine(
        &mut self,
        name: &ModelName,
        site: &UpstreamSite,
        theirs: &str,
        assets: &TokenizerAssets,
        window: u32,
        before: &FormerWorkers<'_>,
    ) -> Option<Capabilities> {
        let engine = match assets.engine(&site.upstream, theirs, window, before.clock) {
            Ok(engine) => engine,
            Err(why) => {
                self.notes.push(format!("`{name}` is not answered by {}: {why}", id(site, theirs)));
                return None;
            }
        };
        let capabilities = engine.capabilities().clone();
        let key = key(name, site, theirs, Some((Arc::clone(&assets.fingerprint), window)));
        let worker = before.workers.get(&key).cloned().unwrap_or_else(|| {
            let worker = Worker::new(&id(site, theirs), name.clone(), Arc::new(engine)).at(&site.seen);
            Arc::new(worker.within(site.config.region.clone()))
        });
        self.workers.push(Arc::clone(&worker));
        self.workers_by_key.insert(key, worker);
        Some(capabilities)
    }
}

fn id(site: &UpstreamSite, theirs: &str) -> String {
    format!("{}/{theirs}", site.upstream.label())
}

/// The servers of a target's upstream: one, or one per address.
fn sites_at<'s>(
    target: &'s RelayTarget,
    sites: &'s [UpstreamSite],
) -> impl Iterator<Item = &'s UpstreamSite> {
    sites.iter().filter(|site| site.config.spec.name == target.upstream)
}

fn key(name: &ModelName, site: &UpstreamSite, theirs: &str, words: Option<(Arc<str>, u32)>) -> WorkerKey {
    let (fingerprint, ip) = (site.config.fingerprint, site.upstream.spec().ip);
    WorkerKey { name: name.clone(), fingerprint, ip, theirs: theirs.to_owned(), words }
}
