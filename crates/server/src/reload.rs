//! Reloads the configuration while calls run, and applies all of its changes or none. Reports the outcome to the
//! caller, to the log and in metrics. Must not know how a call is served.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use headrace_admin::{AdminError, AdminService, DefaultLimits};
use headrace_catalog::{Catalog, CatalogOffer};
use headrace_config::ServerSettings;
use headrace_config::fields::FIELDS;
use headrace_config::layers::SettingLayers;
use headrace_config::sections::is_live;
use headrace_domain::{AdminCode, Clock, ModelName, UnixNanos};
use headrace_edge::TlsCertificate;
use headrace_fleet::Fleet;
use headrace_gateway::Gateway;
use headrace_jwt::SignInProviders;
use headrace_ledger::prices::{CostList, PriceConfig, PriceError, PriceList};
use headrace_moderation::{Judge, Rules};
use headrace_terminal::output;
use headrace_trace::Metrics;
use tracing_subscriber::EnvFilter;

use crate::check::{CheckedConfig, check, may_be_listed};
use crate::engines::LocalEngines;
use crate::models::ServingPlan;
use crate::role_context::RoleContext;
use crate::running_model::{InMemory, LoadedModel, RunningModel};
use crate::upstreams::{ListedModels, UpstreamModels, UpstreamRegistry, UpstreamSite, asked};
use crate::{gauges, identity_providers};

/// Reads all layers of the configuration again.
pub type SettingsSource = Box<dyn Fn() -> SettingLayers + Send + Sync>;
/// Replaces the filter of the log.
pub(crate) type LogFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The reloadable state that a server starts with, and the way to read it again.
pub(crate) struct ReloadBase {
    pub(crate) source: SettingsSource,
    /// The configuration file, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// The settings in force.
    pub(crate) settings: SettingLayers,
    pub(crate) play_prices: bool,
    pub(crate) log: LogFilter,
}

/// Reloads the configuration. One per server.
pub(crate) struct ConfigReloader {
    source: SettingsSource,
    play_prices: bool,
    log: LogFilter,
    context: RoleContext,
    gateway: Weak<Gateway>,
    /// The edge's certificate. `None` without an edge, or without TLS.
    certificate: Option<Arc<TlsCertificate>>,
    /// `None` on a server without engines. It refuses a configuration with models of its own.
    engines: Option<Arc<LocalEngines>>,
    upstreams: Arc<UpstreamRegistry>,
    /// The identity providers of operators. Empty until [`OperatorAccess`] is opened.
    ///
    /// [`OperatorAccess`]: crate::operator_access::OperatorAccess
    sign_in: Arc<SignInProviders>,
    /// The files whose changes trigger a reload: the configuration file and the TLS pair.
    files: Vec<PathBuf>,
    /// Interval of checks for changed files. Zero disables them.
    watch_every: Duration,
    defaults: Mutex<DefaultLimits>,
    /// Changes budgets. Set once operators have access.
    service: OnceLock<Weak<AdminService>>,
    /// Locked for the whole of a reload.
    in_force: Mutex<SettingLayers>,
    applied: AtomicU64,
    refused: AtomicU64,
    /// The time at which the configuration in force was read, in seconds since 1970.
    since: AtomicU64,
}

impl ConfigReloader {
    /// Creates the reloader of a server that starts with these settings, and registers its metrics.
    pub(crate) fn new(
        base: ReloadBase,
        config: &ServerSettings,
        gateway: &Arc<Gateway>,
        upstreams: &Arc<UpstreamRegistry>,
        engines: Option<Arc<LocalEngines>>,
        certificate: Option<Arc<TlsCertificate>>,
        context: &RoleContext,
    ) -> Arc<Self> {
        let ReloadBase { source, file, settings, play_prices, log } = base;
        let pairs = config.server.edge.tls.iter().flat_map(|tls| [tls.cert.clone(), tls.key.clone()]);
        let reloader = Arc::new(Self {
            source,
            play_prices,
            log,
            context: context.clone(),
            gateway: Arc::downgrade(gateway),
            certificate,
            engines,
            upstreams: Arc::clone(upstreams),
            sign_in: Arc::default(),
            files: file.into_iter().chain(pairs).collect(),
            watch_every: config.watch,
            defaults: Mutex::new(config.limits),
            service: OnceLock::new(),
            in_force: Mutex::new(settings),
            applied: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            since: AtomicU64::new(seconds(context.clock.now())),
        });
        reloader.register(&context.metrics);
        reloader
    }

    /// Changes budgets by `service` from now on. Later calls change nothing.
    pub(crate) fn change_budgets_by(&self, service: &Arc<AdminService>) {
        let _ = self.service.set(Arc::downgrade(service));
    }

    /// The identity providers of operators, which a reload replaces.
    pub(crate) const fn sign_in(&self) -> &Arc<SignInProviders> {
        &self.sign_in
    }

    /// The limits that new keys, projects and organisations get.
    pub(crate) fn defaults(&self) -> DefaultLimits {
        *self.defaults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings in force.
    ///
    /// # Errors
    /// Returns an error during a reload, which takes as long as loading the models.
    pub(crate) fn settings(&self) -> Result<SettingLayers, AdminError> {
        let busy = || AdminError {
            code: AdminCode::Busy,
            message: "the configuration is being read again".to_owned(),
            remedy: "ask again when that is done".to_owned(),
        };
        self.in_force.try_lock().map(|settings| settings.clone()).map_err(|_| busy())
    }

    /// The prices in force: those of the configuration, and those of models that upstreams list.
    ///
    /// # Errors
    /// The same as for [`ConfigReloader::settings`].
    pub(crate) fn prices(&self) -> Result<Vec<PriceConfig>, AdminError> {
        let mut prices = self.config()?.prices;
        prices.extend(self.upstreams.prices());
        Ok(prices)
    }

    /// The configuration in force.
    ///
    /// # Errors
    /// The same as for [`ConfigReloader::settings`].
    pub(crate) fn config(&self) -> Result<ServerSettings, AdminError> {
        Ok(ServerSettings::read(self.settings()?, self.play_prices).0)
    }

    /// Reads the configuration again, and reports the outcome on standard error. Blocks on files, and while models
    /// load.
    ///
    /// # Errors
    /// Returns every fault. In that case, nothing of the new configuration is applied.
    pub(crate) fn reload(&self, asked_by: &str) -> Result<Vec<String>, AdminError> {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        match self.take_over((self.source)(), &mut in_force) {
            Ok(changed) => {
                self.applied.fetch_add(1, Relaxed);
                self.since.store(seconds(self.context.clock.now()), Relaxed);
                let what =
                    if changed.is_empty() { "no setting has changed".to_owned() } else { changed.join(", ") };
                let shown = match self.certificate {
                    Some(_) => "; new connections get the certificate as it is now",
                    None => "",
                };
                output::note(&format!("{asked_by}: the configuration is read again: {what}{shown}"));
                Ok(changed)
            }
            Err(faults) => {
                self.refused.fetch_add(1, Relaxed);
                let count = faults.len();
                let noun = if count == 1 { "fault" } else { "faults" };
                let message = format!(
                    "the new configuration has {count} {noun}, and the former one stays in force, unchanged:\n  {}",
                    faults.join("\n  ")
                );
                output::note(&format!("{asked_by}: {message}"));
                let remedy = "`headrace config check` shows every value and where it comes from".to_owned();
                Err(AdminError { code: AdminCode::ConfigRefused, message, remedy })
            }
        }
    }

    /// Applies the settings in force again, because an upstream lists other models than before.
    pub(crate) fn relist(&self, upstream: &str) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = in_force.clone();
        match self.take_over(settings, &mut in_force) {
            Ok(_) => {
                output::note(&format!("upstream `{upstream}` serves other models than before, and so do we"))
            }
            Err(faults) => {
                let faults = faults.join("\n  ");
                output::note(&format!(
                    "upstream `{upstream}` serves other models than before; they are not served:\n  {faults}"
                ));
            }
        }
    }

    /// Applies the settings in force again, because an upstream's name leads to other servers than before.
    pub(crate) fn readdress(&self, upstream: &str) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = in_force.clone();
        match self.take_over(settings, &mut in_force) {
            Ok(_) => output::note(&format!(
                "upstream `{upstream}` has other servers than before: `headrace upstreams` lists them"
            )),
            Err(faults) => {
                let faults = faults.join("\n  ");
                output::note(&format!(
                    "upstream `{upstream}` has other servers than before; they are not used:\n  {faults}"
                ));
            }
        }
    }

    /// Applies all of the settings, or returns why not. Returns the names of the changed settings.
    fn take_over(
        &self,
        settings: SettingLayers,
        in_force: &mut SettingLayers,
    ) -> Result<Vec<String>, Vec<String>> {
        let RoleContext { clock, metrics, runtime } = &self.context;
        let engines = self.engines.as_deref();
        let present = engines.map_or_else(InMemory::without_engines, LocalEngines::in_memory);
        let checked = check(settings.clone(), self.play_prices, None, &present);
        let paths = FIELDS.iter().map(|field| field.path);
        let changed: Vec<&str> = paths.filter(|path| in_force.value(path) != settings.value(path)).collect();
        let frozen = changed.iter().filter(|path| !is_live(path)).map(|path| needs_restart(path));
        let CheckedConfig { config, plan, assets_by_model, log } = match checked {
            Err(error) => return Err(error.0.iter().map(ToString::to_string).chain(frozen).collect()),
            Ok(checked) => {
                let frozen: Vec<String> = frozen.collect();
                if !frozen.is_empty() {
                    return Err(frozen);
                }
                checked
            }
        };
        let providers = identity_providers::of_operators(&config).map_err(|why| vec![why])?;
        let stopping = || vec!["the server is stopping".to_owned()];
        let gateway = self.gateway.upgrade().ok_or_else(stopping)?;
        let issuers =
            identity_providers::of_callers(&config, gateway.directory()).map_err(|why| vec![why])?;
        let former = engines.map(LocalEngines::running).unwrap_or_default();
        let mut running = staying(&former, &config, &plan);
        // From here on, a failure drops the newly loaded models, which ends them.
        if let Some(engines) = engines {
            running.extend(engines.load(&config, plan).map_err(|faults| faults.lines())?);
        }
        let changes = Self::describe_changes(&changed, &former, &running);
        drop(former);
        let names: Vec<String> = gauges::labelled(&config).map(str::to_owned).collect();
        runtime.block_on(self.upstreams.look_up(&config));
        let sites = self.upstreams.sites_of(&config)?;
        let fronted = self.upstreams.fronted(&config, assets_by_model, runtime.block_on(ask_new(sites)));
        let offer = offer(&config, &running, &fronted, clock)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let catalog = Catalog::checked(offer, clock.now()).map_err(|error| error.faults)?;
        // The last step that can fail while the server continues, so that no change is applied partially.
        if let Some(certificate) = &self.certificate {
            certificate.reload().map_err(|error| vec![format!("server.tls_cert: {error}")])?;
        }
        if let Some(service) = self.service.get().and_then(Weak::upgrade) {
            if changed.contains(&"budgets") {
                service
                    .take_over_budgets(&config.budgets, clock.now())
                    .map_err(|error| vec![format!("budgets: {}", error.message)])?;
            }
            if changed.contains(&"free_tiers") {
                service
                    .take_over_free_tiers(&config.free_tiers, clock.now())
                    .map_err(|error| vec![format!("free_tiers: {}", error.message)])?;
            }
        }
        fronted.notes.iter().for_each(|note| output::note(&format!("warning: {note}")));
        let swap = || {
            names.iter().for_each(|name| metrics.add_model(name));
            drop(gateway.swap(catalog));
            gauges::register_shadows(metrics, &gateway);
            gauges::register_canaries(metrics, &gateway);
            self.upstreams.take_over(fronted, metrics, runtime);
        };
        let applied = match engines {
            Some(engines) => engines.replace(running, swap),
            None => {
                swap();
                true
            }
        };
        if !applied {
            return Err(stopping());
        }
        self.sign_in.replace(providers, clock, runtime);
        if let Some(tokens) = gateway.tokens() {
            tokens.replace(issuers, runtime);
        }
        if let Some(certificates) = gateway.certificates() {
            certificates.replace(&config.certificates);
        }
        *self.defaults.lock().unwrap_or_else(PoisonError::into_inner) = config.limits;
        if let Err(why) = (self.log)(log) {
            output::note(&format!("warning: log.filter: {why}"));
        }
        *in_force = settings;
        Ok(changes)
    }

    /// The changed settings. For `models`, lists what happened to each model.
    fn describe_changes(changed: &[&str], former: &[RunningModel], running: &[RunningModel]) -> Vec<String> {
        let find = |models: &[RunningModel], loaded: &LoadedModel| {
            models.iter().find(|other| other.loaded.config.name == loaded.config.name).cloned()
        };
        let mut models = Vec::new();
        for RunningModel { loaded, engine, .. } in running {
            match find(former, loaded) {
                None => models.push(format!("`{}` is new", loaded.config.name)),
                Some(other) if !Arc::ptr_eq(&other.engine, engine) => {
                    models.push(format!("`{}` is loaded anew", loaded.config.name));
                }
                Some(_) => {}
            }
        }
        for RunningModel { loaded, .. } in
            former.iter().filter(|model| find(running, &model.loaded).is_none())
        {
            models.push(format!("`{}` is gone", loaded.config.name));
        }
        let tell = |path: &&str| match *path {
            "models" if !models.is_empty() => format!("models ({})", models.join(", ")),
            path => path.to_owned(),
        };
        changed.iter().map(tell).collect()
    }

    /// Registers the number of reloads by outcome, and the time of the configuration in force.
    fn register(self: &Arc<Self>, metrics: &Metrics) {
        type Read = fn(&ConfigReloader) -> &AtomicU64;
        let outcomes: [(&str, Read); 2] = [("applied", |of| &of.applied), ("refused", |of| &of.refused)];
        for (outcome, read) in outcomes {
            let reloader = Arc::clone(self);
            let help = "How often the configuration was read again, and whether it was put in force.";
            let read = move || read(&reloader).load(Relaxed) as f64;
            let labels = [("outcome", outcome)];
            metrics.register_counter("headrace_config_reloads_total", help, &labels, Box::new(read));
        }
        let reloader = Arc::clone(self);
        let read = move || reloader.since.load(Relaxed) as f64;
        let help = "When the configuration in force was read, in seconds since 1970.";
        metrics.register_gauge("headrace_config_last_success_timestamp_seconds", help, &[], Box::new(read));
    }

    /// Checks its files at an interval. Reloads once a file has changed and then stayed the same for one interval. A
    /// refused file is read again when it changes again.
    pub(crate) async fn watch(self: Arc<Self>) {
        if self.watch_every.is_zero() {
            return;
        }
        let look = || {
            let reloader = Arc::clone(&self);
            tokio::task::spawn_blocking(move || reloader.files.iter().map(seen).collect::<Vec<_>>())
        };
        let Ok(mut read) = look().await else { return };
        let mut before = read.clone();
        loop {
            tokio::time::sleep(self.watch_every).await;
            // The runtime is shutting down.
            let Ok(now) = look().await else { return };
            if now != read && now == before {
                read.clone_from(&now);
                let reloader = Arc::clone(&self);
                let reload = move || reloader.reload("a file has changed");
                // The reload reports its own outcome.
                let _ = tokio::task::spawn_blocking(reload).await;
            }
            before = now;
        }
    }
}

/// The running models that stay, with their new limits and policies.
fn staying(running: &[RunningModel], config: &ServerSettings, plan: &ServingPlan) -> Vec<RunningModel> {
    let stays = running.iter().filter_map(|model| {
        let named = config.models.iter().find(|named| model.loaded.config.is_loaded_as(named))?;
        let mut model = model.clone();
        model.loaded.config = named.clone();
        let served = Arc::make_mut(&mut model.served);
        served.limits = named.limits;
        served.policy = named.policy();
        served.default_max_tokens = plan.default_max_tokens(&named.name);
        Some(model)
    });
    stays.collect()
}

/// The models, prices, routes and rules that a configuration offers with these models.
///
/// # Errors
/// Returns every fault of the prices.
pub(crate) fn offer(
    config: &ServerSettings,
    running: &[RunningModel],
    fronted: &UpstreamModels,
    clock: &Arc<dyn Clock>,
) -> Result<CatalogOffer, Vec<PriceError>> {
    let judge = |rules: &Arc<Rules>| Arc::clone(rules) as Arc<dyn Judge>;
    let models: Vec<_> = running.iter().map(|model| &model.served).chain(&fronted.models).cloned().collect();
    let served: BTreeSet<&ModelName> = models.iter().map(|model| &model.name).collect();
    let mut aliases = config.aliases.clone();
    // An upstream may list a missing model in a moment, so a route to it is left out instead of refused.
    aliases.retain(|_, route| {
        let stays = |model: &ModelName| served.contains(model) || !may_be_listed(config, model);
        route.arms.retain(|arm| stays(&arm.model));
        route.fallbacks.retain(stays);
        route.arms.iter().any(|arm| arm.weight > 0)
    });
    let mut names = config.names.clone();
    names.shadows.retain(|name, shadow| {
        let stands = |name: &ModelName| served.contains(name) || aliases.contains_key(name);
        stands(name) && (served.contains(&shadow.model) || !may_be_listed(config, &shadow.model))
    });
    names.notices.retain(|name, notice| {
        let stands = |name: &ModelName| served.contains(name) || aliases.contains_key(name);
        if notice.successor.as_ref().is_some_and(|next| !stands(next) && may_be_listed(config, next)) {
            (notice.successor, notice.moves) = (None, false);
        }
        stands(name)
    });
    let prices: Vec<_> = config.prices.iter().chain(&fronted.prices).cloned().collect();
    let workers = running.iter().map(|model| &model.worker).chain(&fronted.workers);
    Ok(CatalogOffer {
        aliases,
        prices: PriceList::from_config(&prices)?,
        costs: CostList::from_config(&config.costs)?,
        fleet: Arc::new(Fleet::with(workers.map(Arc::clone), Arc::clone(clock), clock.now().get())),
        judge: config.rules.as_ref().map(judge),
        weights: config.weights.clone(),
        models,
        names,
    })
}

/// Asks the servers that have not been asked yet for their models.
pub(crate) async fn ask_new(sites: Vec<UpstreamSite>) -> Vec<UpstreamSite> {
    let (new, known): (Vec<UpstreamSite>, Vec<UpstreamSite>) =
        sites.into_iter().partition(|site| matches!(site.listed, ListedModels::NotAsked));
    known.into_iter().chain(asked(new).await).collect()
}

fn needs_restart(what: &str) -> String {
    format!("{what} needs a restart (SIGTERM drains first)")
}

/// The time and length of a file, which a rewrite or a rename changes.
fn seen(file: &PathBuf) -> Option<(SystemTime, u64)> {
    let data = std::fs::metadata(file).ok()?;
    Some((data.modified().ok()?, data.len()))
}

fn seconds(at: UnixNanos) -> u64 {
    at.seconds()
}
