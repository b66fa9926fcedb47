//! A server from start to stop: assembles the crates, serves until a stop signal, drains, settles and closes. The only module that
//! knows all crates; makes no decision that belongs to one of them.

mod serving;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headrace_admin::{AdminService, ServerStatus};
use headrace_call_api::{CallService, InternalApi};
use headrace_catalog::Catalog;
use headrace_config::ServerSettings;
use headrace_domain::{Clock, KeyId, TraceSink};
use headrace_edge::{Edge, EdgeConfig, STOPS_SOON};
use headrace_gateway::{Gateway, GatewayParts};
use headrace_identity::{Directory, Operators, SecretString};
use headrace_ledger::{CommandResult, LedgerAdmin, LedgerClient, LedgerOperation, Owner, Receipt};
use headrace_limits::Limits;
use headrace_store::OpenedLedger;
use headrace_store::disk::{DiskGuard, DiskSpace};
use headrace_terminal::output;
use headrace_trace::{RecorderConfig, TraceRecorder};
use headrace_worker::{ProcessId, TicketVerifier, WorkerEndpoint};
use tokio::task::JoinHandle;

use self::serving::{OpenServer, ServingEnd, ServingParts, left_open};
use crate::admin_data::AdminData;
use crate::admin_listener::{AdminListener, AdminSeams};
use crate::banner::{ModelOffer, StartManner, WelcomeBanner};
use crate::call_records::KnownCalls;
use crate::check::check;
use crate::datadir::{self, DataDir};
use crate::descriptors::{DescriptorLimit, in_proportion};
use crate::engines::LocalEngines;
use crate::exporters::{Exporters, page, register_log};
use crate::first_start::{FirstKey, FirstKeys, FirstSetup};
use crate::health::StoreHealth;
use crate::key_names::KeyNames;
use crate::listen_addresses::{can_listen, not_running, url};
use crate::live_stats::LiveStats;
use crate::log::LogQueue;
use crate::models::ServingPlan;
use crate::newest::NewestCalls;
use crate::objects::ObjectStores;
use crate::prompts::PromptViews;
use crate::records::StoredRecords;
use crate::reload::{ConfigReloader, ReloadBase, SettingsSource};
use crate::role_context::RoleContext;
use crate::running_model::InMemory;
use crate::tokenizer_assets::AssetsByModel;
use crate::upstreams::{UpstreamModels, UpstreamRegistry};
use crate::{
    canaries, descriptors, gauges, hardening, machine, models, objects, playground, reload, spending,
};

/// Time by which a lease on limits outlives the longest hold. Only a lease that no call ends reaches this age.
const LEASE_MARGIN: Duration = Duration::from_secs(60);
/// Lead of the ledger's time over the clock above which the operator is warned.
const LEDGER_AHEAD: Duration = Duration::from_secs(60);
/// Interval at which holds that no call settled are expired.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which idle limit counters are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Time limit for storing the last traces.
const TRACE_CLOSE: Duration = Duration::from_secs(5);
/// Time limit for writing the last log lines.
const LOG_CLOSE: Duration = Duration::from_secs(1);
/// Exit status after a second Ctrl-C, by the convention of shells: 128 plus the signal's number.
const INTERRUPTED: u8 = 130;
/// Cache of the tokenizer assets of workers' models, relative to the data directory.
const WORDS_CACHE: &str = "cache/words";
/// Key id to which the memory for bodies of worker jobs is charged.
const WORKER_PAYER: &str = "worker";

/// Runs a server until a stop signal. `source` reads all layers of the configuration. `file` is one of them, if there is a
/// file.
pub fn run(source: SettingsSource, file: Option<PathBuf>, manner: StartManner) -> ExitCode {
    let began = Instant::now();
    let hardened = hardening::harden();
    let settings = source();
    let (first_key, play_prices) = (hardened.first_key, manner == StartManner::Up);
    let checked = match check(settings.clone(), play_prices, first_key.as_ref(), &InMemory::default()) {
        Ok(checked) => checked,
        Err(error) => return output::refuse(&error.to_string()),
    };
    let (log, filter) = match LogQueue::start(checked.log, checked.config.log_json) {
        Ok(started) => started,
        Err(error) => return output::refuse(&format!("log.filter: {error}")),
    };
    let beginning = ReloadBase { source, file, settings, play_prices, log: filter };
    hardened.shortcomings.iter().for_each(|what| tracing::warn!("{what}"));
    let mut config = checked.config;
    let descriptors = DescriptorLimit::raise();
    fit_connections(&mut config, descriptors);
    let workers = config.engine.runtime_threads.unwrap_or_else(|| (machine::processors() / 2).max(2));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("headrace-io")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return output::fail(&format!("cannot start the runtime: {error}")),
    };
    let lines = log.clone();
    output::hand_notes_to(move |line| lines.line(line.into_bytes()));
    let context = RoleContext::new(&config, &checked.plan, runtime.handle().clone());
    register_log(&context.metrics, &log);
    descriptors::register(&context.metrics);
    let code = match ServerParts::build(config, checked.plan, checked.assets_by_model, context) {
        Ok(parts) => parts.live(ServerStart { began, manner, first_key }, beginning),
        Err(why) => output::fail(&why),
    };
    log.flush(LOG_CLOSE);
    runtime.shutdown_background();
    code
}

/// Lowers the connection limits, in total and per peer, to what the process's file descriptors allow.
fn fit_connections(config: &mut ServerSettings, descriptors: DescriptorLimit) {
    let edge = &mut config.server.edge;
    let wanted = edge.max_connections;
    let most = descriptors.most_connections(wanted, !config.upstreams.is_empty());
    if let Some(shortage) = descriptors.shortage(wanted, most) {
        output::note(&shortage);
    }
    edge.max_connections_per_peer = in_proportion(edge.max_connections_per_peer, wanted, most);
    edge.max_connections = most;
    config.admin.most_connections = descriptors.most_operators();
}

/// How the server was started.
struct ServerStart {
    began: Instant,
    manner: StartManner,
    first_key: Option<SecretString>,
}

/// State of the server before its sockets are open.
struct ServerParts {
    config: ServerSettings,
    assets: AssetsByModel,
    context: RoleContext,
    data_dir: DataDir,
    directory: Arc<Directory>,
    operators: Arc<Operators>,
    ledger: Arc<dyn LedgerAdmin>,
    /// The same ledger, as calls use it.
    ledger_client: Arc<dyn LedgerClient>,
    owner: Owner,
    limits: Limits,
    recorder: Arc<TraceRecorder>,
    objects: ObjectStores,
    engines: Arc<LocalEngines>,
    upstreams: Arc<UpstreamRegistry>,
}

impl ServerParts {
    /// Opens and loads everything. Blocks.
    fn build(
        config: ServerSettings,
        plan: ServingPlan,
        assets: AssetsByModel,
        context: RoleContext,
    ) -> Result<Self, String> {
        let RoleContext { clock, metrics, .. } = &context;
        not_running(&config.data_dir)?;
        can_listen(&config)?;
        let (key_hash, salt) = (config.key_hash_file.as_deref(), config.cache_salt_file.as_deref());
        let text = |error: datadir::DataDirError| error.to_string();
        let data_dir = DataDir::create(&config.data_dir, key_hash, salt).map_err(text)?;
        let (directory, operators) = data_dir.identities().map_err(text)?;
        // Before the ledger is opened: if a model cannot be served, the directory stays unchanged.
        let workers = models::workers(&config)?;
        let running = models::start(&config, plan, &workers, clock).map_err(|error| error.to_string())?;
        let engines = LocalEngines::new(running, workers, Arc::clone(clock), Arc::clone(metrics));
        let timed = Arc::clone(metrics);
        let times = Box::new(move |took| timed.observe_journal(took));
        let (opened, owner) = data_dir.ledger(clock.as_ref(), times).map_err(text)?;
        let OpenedLedger { client: ledger_client, admin: ledger, report } = opened;
        if let Some(why) = &report.snapshot_refused {
            tracing::warn!(why, "the ledger's snapshot was passed over and everything replayed");
        }
        if report.ahead > LEDGER_AHEAD {
            output::note(&format!(
                "warning: the ledger's last row is {} s ahead of this machine's clock; until the clock has caught up, ledger \
                 time stands still and budgets do not turn over. If the clock is right: headrace ledger set-clock",
                report.ahead.as_secs()
            ));
        }
        if !report.orphans.is_empty() {
            output::note(&format!(
                "released {} holds of an earlier process; nothing was charged",
                report.orphans.len()
            ));
        }
        let objects = ObjectStores::open(&data_dir, &config)?;
        let guard = DiskGuard::of(data_dir.path(), config.storage.min_free_bytes);
        let max_bytes = config.storage.traces_on(DiskSpace::of(data_dir.path()).ok());
        let traces = data_dir.storage().traces(config.traces.retention, max_bytes, guard);
        let traces = traces.map_err(|error| error.to_string())?;
        let recorder = RecorderConfig {
            queue_records: config.traces.queue_records,
            recent_records: config.traces.recent_records,
            strangers_per_second: config.traces.strangers_per_second,
            ..RecorderConfig::default()
        };
        let recorder = TraceRecorder::start(Some(traces), Arc::clone(metrics), recorder);
        let recorder = recorder.map_err(|error| error.to_string())?;
        // Longer than any call, so no call outlives its hold.
        let limits = Limits::with_lease_lifetime(config.gateway.hold_lifetime.saturating_add(LEASE_MARGIN));
        Ok(Self {
            config,
            assets,
            upstreams: Arc::new(UpstreamRegistry::new(
                Arc::clone(clock),
                Some(data_dir.path().join(WORDS_CACHE)),
            )),
            context,
            directory,
            operators,
            data_dir,
            ledger,
            ledger_client,
            owner,
            limits,
            recorder,
            objects,
            engines: Arc::new(engines),
        })
    }

    /// Serves until a stop signal, then closes every part in order.
    fn live(mut self, start: ServerStart, beginning: ReloadBase) -> ExitCode {
        let RoleContext { clock, metrics, runtime } = self.context.clone();
        let outward = Exporters::start(&self.config.telemetry, &self.recorder, &metrics, &clock);
        let outward = match outward {
            Ok(outward) => outward,
            Err(why) => return output::fail(&why),
        };
        let outcome = self.open_listeners(start, beginning);
        let stopped = matches!(&outcome, Ok(ServingEnd::Interrupted));
        if stopped {
            output::note("stopped at once: calls in flight are released at the next start and not charged");
            return ExitCode::from(INTERRUPTED);
        }
        let Self { ledger, recorder, engines, .. } = self;
        engines.stop();
        let open = ledger.open_holds();
        let closed = ledger.close();
        if !recorder.close(TRACE_CLOSE) {
            tracing::warn!("the last traces could not be stored in time");
        }
        outward.close(&runtime);
        match (outcome, closed) {
            (Err(why), _) => output::fail(&why),
            (Ok(_), Err(error)) => output::fail(&format!("the ledger could not be closed: {error}")),
            (Ok(_), Ok(())) if open.is_empty() => {
                output::note("stopped; every call is settled");
                ExitCode::SUCCESS
            }
            (Ok(_), Ok(())) => output::fail(&left_open(&open)),
        }
    }

    /// Opens all listeners and serves until a stop signal.
    fn open_listeners(&mut self, start: ServerStart, beginning: ReloadBase) -> Result<ServingEnd, String> {
        let RoleContext { clock, metrics, runtime } = self.context.clone();
        let fronted = self.front()?;
        let running = self.engines.running();
        let served = running.iter().map(|model| &model.served).chain(&fronted.models);
        let models: Vec<ModelOffer> = served.map(|model| ModelOffer::of(model)).collect();
        drop(running);
        let gateway = self.begin(fronted)?;
        let edge = Edge::bind(
            EdgeConfig {
                session_secret: Some(self.data_dir.session_secret()),
                ..self.config.server.edge.clone()
            },
            Arc::clone(&gateway),
            self.internal_api(),
            page(metrics),
            Arc::clone(&self.recorder) as Arc<dyn TraceSink>,
            Arc::clone(&clock),
        );
        let edge = runtime.block_on(edge).map_err(|error| error.to_string())?;
        let url = url(edge.local_addr(), self.config.server.edge.tls.is_some());
        let reloader = ConfigReloader::new(
            beginning,
            &self.config,
            &gateway,
            &self.upstreams,
            Some(Arc::clone(&self.engines)),
            edge.certificate(),
            &self.context,
        );
        let (manner, operators) = (start.manner, Arc::clone(&self.operators));
        let chosen = self.config.server.edge.listen.port() != 0;
        let here = (self.data_dir.path(), clock.now());
        let console = AdminListener::open(
            &self.config.admin,
            edge.certificate().as_ref(),
            manner,
            chosen,
            operators,
            here,
        )?;
        if let Some(console) = &console {
            edge.show_console(console.url());
        }
        let (dir, stored) = (self.data_dir.path(), self.data_dir.storage().reader());
        let names = KeyNames::new(&self.directory);
        let engines = Arc::clone(&self.engines);
        let live_stats =
            LiveStats::new(&stored, &self.recorder, &gateway, Some(engines), &clock, names.clone())?;
        let calls = KnownCalls::new(&stored, &live_stats, &self.recorder, &clock, names)?;
        let (usage, service) =
            (live_stats.clone(), self.admin(&gateway, (&url, edge.stops_soon()), &reloader));
        let service = service.with_now(Box::new(move || live_stats.now().json()));
        let newest = NewestCalls::new(&gateway, &self.recorder);
        let service = service.with_recent(Box::new(move |most| newest.settled(most)));
        let service = Arc::new(service.with_links(AdminListener::links(console.as_ref())));
        let keys = self.keys(&service, &start)?;
        let admin = console.as_ref().map(|console| console.welcome(&service, manner, clock.now()));
        let admin = admin.transpose()?;
        let address = edge.local_addr().to_string();
        let _address = match self.data_dir.publish_address(&address) {
            Ok(published) => Some(published),
            Err(why) => {
                output::note(&format!("warning: programs that look for this server do not find it: {why}"));
                None
            }
        };
        let welcome = WelcomeBanner {
            url: Some(&url),
            metrics: edge.metrics_addr().map(|at| crate::listen_addresses::url(at, false)),
            data_dir: &self.config.data_dir,
            models: &models,
            keys: &keys,
            admin: admin.as_deref().map(String::as_str),
            manner,
            took: start.began.elapsed(),
        }
        .text();
        drop((keys, admin));
        let seen = AdminSeams {
            inside: AdminData::new(&gateway, Arc::clone(&self.ledger), &reloader, stored),
            prompts: PromptViews::new(&gateway, &reloader),
            calls,
            playground: playground::PlaygroundRunner::new(&gateway, &self.directory, &clock),
        };
        let behind = ServingParts {
            data_dir: dir.to_owned(),
            clock,
            directory: Arc::clone(&self.directory),
            upstreams: Arc::clone(&self.upstreams),
            drain_delay: self.config.server.drain_delay.unwrap_or_else(|| manner.drain_delay()),
            drain: self.config.server.drain,
        };
        let open =
            OpenServer { edge, console, service, seen, usage, reloader, welcome, manner, behind };
        runtime.block_on(async { open.serve(&gateway, self.tick()).await })
    }

    /// Builds the gateway, resumes the work that an earlier process left, and registers the gauges.
    fn begin(&self, fronted: UpstreamModels) -> Result<Arc<Gateway>, String> {
        let RoleContext { clock, metrics, runtime } = &self.context;
        let gateway = self.gateway(&fronted)?;
        gateway.keep_shadow_spending(spending::of(self.data_dir.path()));
        objects::take_over(runtime, &gateway, clock.now());
        if let Err(why) = canaries::restore(&gateway, &self.directory) {
            output::note(&format!("warning: canaries that were taken out before are on trial again: {why}"));
        }
        self.upstreams.take_over(fronted, metrics, runtime);
        gauges::register(metrics, &self.ledger, &self.limits);
        self.engines.register();
        gauges::register_gateway(metrics, &gateway);
        gauges::register_shadows(metrics, &gateway);
        gauges::register_canaries(metrics, &gateway);
        self.stores().register(metrics);
        Ok(gateway)
    }

    /// The internal API that takes jobs from other gateways. `None` if no worker secret is configured, or if no random
    /// process id could be drawn.
    fn internal_api(&self) -> Option<Arc<dyn InternalApi>> {
        let (secret, engines) = (self.config.worker_secret.clone()?, Arc::clone(&self.engines));
        let process = match ProcessId::fresh() {
            Ok(process) => process,
            Err(error) => {
                output::note(&format!(
                    "warning: no jobs are taken: this machine gives no random numbers: {error}"
                ));
                return None;
            }
        };
        let tickets = TicketVerifier::new(secret, process);
        let offers = move || engines.offers();
        let payer = KeyId::new(WORKER_PAYER).ok()?;
        let version = env!("CARGO_PKG_VERSION");
        let clock = Arc::clone(&self.context.clock);
        let traces = Arc::clone(&self.recorder) as Arc<dyn TraceSink>;
        Some(Arc::new(WorkerEndpoint::new(tickets, clock, payer, version, traces, offers)))
    }

    /// Sets up the first keys and warns the operator about problems with them.
    fn keys(&self, service: &AdminService, start: &ServerStart) -> Result<FirstKeys, String> {
        let now = self.context.clock.now();
        let lost = service.reconcile(now).map_err(|error| error.to_string())?;
        if !lost.is_empty() {
            let names: Vec<_> = lost.iter().map(ToString::to_string).collect();
            output::note(&format!(
                "warning: the ledger did not know projects that have keys, so it is older than the keys; their balances start at zero: {}",
                names.join(", ")
            ));
        }
        let setup = FirstSetup { service, directory: &self.directory, ledger: self.ledger.as_ref(), now };
        let play = start.manner == StartManner::Up;
        let keys = setup.run(&self.config.first_start, start.first_key.as_ref(), play)?;
        match &keys {
            FirstKeys::Refused(why) => output::note(&format!("warning: {why}")),
            FirstKeys::First(FirstKey { secret: Some(secret), .. }) if start.manner == StartManner::Serve => {
                self.data_dir.keep_first_key(secret).map_err(|error| error.to_string())?;
            }
            _ => {}
        }
        Ok(keys)
    }

    /// Asks the upstreams for their models. A fault of one upstream is reported and does not stop the others.
    fn front(&mut self) -> Result<UpstreamModels, String> {
        let runtime = &self.context.runtime;
        runtime.block_on(self.upstreams.look_up(&self.config));
        let sites = self.upstreams.sites_of(&self.config).map_err(|faults| faults.join("\n"))?;
        let sites = runtime.block_on(reload::ask_new(sites));
        for site in &sites {
            if let Some(fault) = site.fault() {
                output::note(&format!("warning: {fault}; it is asked again"));
            }
        }
        let fronted = self.upstreams.fronted(&self.config, std::mem::take(&mut self.assets), sites);
        fronted.notes.iter().for_each(|note| output::note(&format!("warning: {note}")));
        Ok(fronted)
    }

    fn gateway(&self, fronted: &UpstreamModels) -> Result<Arc<Gateway>, String> {
        let reader = self.data_dir.storage().reader().traces_when_read();
        let offer = reload::offer(&self.config, &self.engines.running(), fronted, &self.context.clock);
        let offer =
            offer.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let catalog = Catalog::checked(offer, self.context.clock.now()).map_err(|error| error.to_string())?;
        let parts = GatewayParts {
            clock: Arc::clone(&self.context.clock),
            directory: Arc::clone(&self.directory),
            limits: self.limits.clone(),
            ledger: Arc::clone(&self.ledger_client),
            traces: Arc::clone(&self.recorder) as Arc<dyn TraceSink>,
            records: Arc::new(StoredRecords::new(Arc::clone(&self.recorder), reader)),
            objects: Arc::clone(&self.objects.objects),
            files: Some(Arc::clone(&self.objects.files)),
            cache_secret: self.data_dir.cache_salt(),
            owner: self.owner,
        };
        Gateway::new(parts, catalog, self.config.gateway.clone()).map_err(|error| error.to_string())
    }

    fn admin(
        &self,
        gateway: &Arc<Gateway>,
        (url, stops_soon): (&str, Arc<AtomicBool>),
        reloader: &Arc<ConfigReloader>,
    ) -> AdminService {
        let gateway = Arc::downgrade(gateway);
        let (front, routes) = (gateway.clone(), gateway.clone());
        let (listen, started, stores) = (url.to_owned(), self.context.clock.now(), self.stores());
        let status = move || {
            let mut status =
                status(&listen, gateway.upgrade().as_deref(), ServerStatus { started, ..stores.status() });
            if stops_soon.load(Ordering::Acquire) {
                status.not_ready.push(STOPS_SOON.to_owned());
            }
            status
        };
        let (defaults, reload) = (Arc::clone(reloader), Arc::clone(reloader));
        let lister = Arc::clone(reloader);
        let relist = move |upstream: String| lister.relist(&upstream);
        AdminService::new(
            Arc::clone(&self.directory),
            Arc::clone(&self.ledger),
            Box::new(move || defaults.defaults()),
            Box::new(status),
        )
        .with_operators(Arc::clone(&self.operators))
        .with_reload(Box::new(move || reload.reload("headrace reload")))
        .with_routes(canaries::source(routes))
        .with_upstreams(self.upstreams.source(self.context.runtime.clone(), front, relist))
    }

    /// Starts the periodic tasks.
    fn tick(&self) -> Vec<JoinHandle<()>> {
        let (ledger, clock) = (Arc::clone(&self.ledger), Arc::clone(&self.context.clock));
        let expire = async move {
            loop {
                tokio::time::sleep(EXPIRE_EVERY).await;
                let done = ledger.transact(vec![LedgerOperation::ExpireHolds], clock.now());
                if let [CommandResult::Done(Receipt::ReleasedMany { holds, .. })] = done.verdicts.as_slice()
                    && !holds.is_empty()
                {
                    let (count, first) = (holds.len(), holds.first());
                    tracing::error!(
                        count,
                        ?first,
                        "holds expired before they were settled; nothing was charged for them"
                    );
                }
                // A failing journal reports its own error; the next tick retries.
                let _ = done.durable.await;
            }
        };
        let (limits, clock) = (self.limits.clone(), Arc::clone(&self.context.clock));
        let sweep = async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                limits.sweep(clock.now());
            }
        };
        let engines = Arc::clone(&self.engines).tend();
        vec![
            tokio::spawn(expire),
            tokio::spawn(sweep),
            tokio::spawn(engines),
            tokio::spawn(self.stores().tend()),
        ]
    }

    fn stores(&self) -> StoreHealth {
        let (ledger, directory) = (Arc::clone(&self.ledger), Arc::clone(&self.directory));
        let (recorder, ballast) = (Arc::clone(&self.recorder), Arc::clone(self.data_dir.ballast()));
        let [objects, files] = self.objects.watched.clone();
        StoreHealth { ledger, directory, recorder, objects, files, ballast }
    }
}

fn status(listen: &str, gateway: Option<&Gateway>, stored: ServerStatus) -> ServerStatus {
    let catalog = gateway.map(Gateway::catalog);
    let models = catalog.iter().flat_map(|catalog| catalog.models()).map(|model| model.name.to_string());
    let models: BTreeSet<String> = models.collect();
    let aliases = catalog.iter().flat_map(|catalog| catalog.aliases()).map(ToString::to_string);
    ServerStatus {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        listen: listen.to_owned(),
        not_ready: gateway
            .map_or_else(|| vec!["the server is starting".to_owned()], |gateway| gateway.not_ready(None)),
        in_flight: gateway.map_or(0, |gateway| u64::try_from(gateway.in_flight()).unwrap_or(u64::MAX)),
        models: models.into_iter().collect(),
        aliases: aliases.collect(),
        ..stored
    }
}
