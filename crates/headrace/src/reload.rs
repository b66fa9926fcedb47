//! Reads the configuration again while calls run, and puts in force what may change: all of it, or nothing. Says what came of
//! it to whoever asked, to the log and in metrics. Must not know how a call is served.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use headrace_admin::{AdminError, DefaultLimits};
use headrace_domain::{Clock, UnixNanos};
use headrace_edge::Certificate;
use headrace_gateway::{Catalog, Gateway, Offer, ServedModel};
use headrace_moderation::{Judge, Rules};
use headrace_trace::Metrics;
use tracing_subscriber::EnvFilter;

use crate::check::{Checked, check};
use crate::config::fields::{FIELDS, is_live};
use crate::config::layers::Settings;
use crate::config::{Config, ModelConfig};
use crate::models::Plan;
use crate::output;

/// Reads all layers of the configuration anew.
pub(crate) type Source = Box<dyn Fn() -> Settings + Send + Sync>;
/// Takes another filter of the log.
pub(crate) type LogFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// What a server starts with that a reload may change, and how it is read again.
pub(crate) struct Beginning {
    pub(crate) source: Source,
    /// The file among the layers.
    pub(crate) file: Option<PathBuf>,
    /// What is in force.
    pub(crate) settings: Settings,
    pub(crate) play_prices: bool,
    pub(crate) log: LogFilter,
}

/// See the top of the file. One per server.
pub(crate) struct Reloader {
    source: Source,
    play_prices: bool,
    log: LogFilter,
    clock: Arc<dyn Clock>,
    gateway: Weak<Gateway>,
    certificate: Option<Arc<Certificate>>,
    models: Vec<ModelConfig>,
    defaults: Mutex<DefaultLimits>,
    /// Locked for the whole of a reload.
    in_force: Mutex<Settings>,
    applied: AtomicU64,
    refused: AtomicU64,
    /// When the configuration in force was read.
    since: AtomicU64,
}

impl Reloader {
    pub(crate) fn new(
        beginning: Beginning,
        config: &Config,
        clock: Arc<dyn Clock>,
        gateway: &Arc<Gateway>,
        certificate: Option<Arc<Certificate>>,
    ) -> Self {
        Self {
            source: beginning.source,
            play_prices: beginning.play_prices,
            log: beginning.log,
            gateway: Arc::downgrade(gateway),
            certificate,
            models: config.models.clone(),
            defaults: Mutex::new(config.limits),
            in_force: Mutex::new(beginning.settings),
            applied: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            since: AtomicU64::new(seconds(clock.now())),
            clock,
        }
    }

    /// What new keys, projects and organisations get.
    pub(crate) fn defaults(&self) -> DefaultLimits {
        *self.defaults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads again, and says on standard error what came of it. Blocks on files.
    ///
    /// # Errors
    /// Everything that is wrong with what was read; then nothing of it is in force.
    pub(crate) fn reload(&self, asked_by: &str) -> Result<Vec<String>, AdminError> {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        match self.take_over(&mut in_force) {
            Ok(changed) => {
                self.applied.fetch_add(1, Relaxed);
                self.since.store(seconds(self.clock.now()), Relaxed);
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
                    "the new configuration has {count} {noun}, and the former one goes on, whole:\n  {}",
                    faults.join("\n  ")
                );
                output::note(&format!("{asked_by}: {message}"));
                let remedy = "`headrace config check` shows every value and where it comes from".to_owned();
                Err(AdminError { code: "config_refused".to_owned(), message, remedy })
            }
        }
    }

    /// All of what was read, or why not.
    fn take_over(&self, in_force: &mut Settings) -> Result<Vec<String>, Vec<String>> {
        let settings = (self.source)();
        let checked = check(settings.clone(), self.play_prices, None);
        let Checked { mut config, plan, log } =
            checked.map_err(|error| error.0.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let paths = FIELDS.iter().map(|field| field.path);
        let changed: Vec<&str> = paths.filter(|path| in_force.value(path) != settings.value(path)).collect();
        let mut faults: Vec<String> =
            changed.iter().filter(|path| !is_live(path)).map(|path| needs_restart(path)).collect();
        faults.extend(self.other_models(&config));
        if !faults.is_empty() {
            return Err(faults);
        }
        let Some(gateway) = self.gateway.upgrade() else {
            return Err(vec!["the server is stopping".to_owned()]);
        };
        let offer = renewed(&gateway.catalog(), &mut config, &plan);
        let catalog = Catalog::checked(offer, self.clock.now()).map_err(|error| error.faults)?;
        // The last that can fail, so that nothing is changed by halves.
        if let Some(certificate) = &self.certificate {
            certificate.reload().map_err(|error| vec![format!("server.tls_cert: {error}")])?;
        }
        gateway.swap(catalog);
        *self.defaults.lock().unwrap_or_else(PoisonError::into_inner) = config.limits;
        if let Err(why) = (self.log)(log) {
            output::note(&format!("warning: log.filter: {why}"));
        }
        let changed = changed.into_iter().map(str::to_owned).collect();
        *in_force = settings;
        Ok(changed)
    }

    /// Models that were added, removed, or would have to be loaded anew.
    fn other_models(&self, config: &Config) -> Vec<String> {
        let find = |models: &[ModelConfig], model: &ModelConfig| {
            models.iter().find(|other| other.name == model.name).cloned()
        };
        let mut faults = Vec::new();
        for model in &config.models {
            match find(&self.models, model) {
                None => faults.push(needs_restart(&format!("models: `{}` is new, which", model.name))),
                Some(former) if !former.is_loaded_as(model) => faults.push(needs_restart(&format!(
                    "{}: `{}` is to be loaded otherwise, which",
                    model.setting, model.name
                ))),
                Some(_) => {}
            }
        }
        for model in self.models.iter().filter(|model| find(&config.models, model).is_none()) {
            faults.push(needs_restart(&format!("models: `{}` is gone, which", model.name)));
        }
        faults
    }

    /// What was read again, and when.
    pub(crate) fn register(self: &Arc<Self>, metrics: &Metrics) {
        type Read = fn(&Reloader) -> &AtomicU64;
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

    /// Looks at files every so often, and reads the configuration again once one of them has changed and then stood still for
    /// one look. A file that was refused is read again when it changes again.
    pub(crate) async fn watch(self: Arc<Self>, files: Vec<PathBuf>, every: Duration) {
        let files = Arc::new(files);
        let look = || {
            let files = Arc::clone(&files);
            tokio::task::spawn_blocking(move || files.iter().map(seen).collect::<Vec<_>>())
        };
        let Ok(mut read) = look().await else { return };
        let mut before = read.clone();
        loop {
            tokio::time::sleep(every).await;
            // The runtime is going down.
            let Ok(now) = look().await else { return };
            if now != read && now == before {
                read.clone_from(&now);
                let reloader = Arc::clone(&self);
                let reload = move || reloader.reload("a file has changed");
                // What came of it has been said.
                let _ = tokio::task::spawn_blocking(reload).await;
            }
            before = now;
        }
    }
}

/// The catalogue that a configuration makes of the models that run.
fn renewed(former: &Catalog, config: &mut Config, plan: &Plan) -> Offer {
    let models = former.models().map(|model| {
        let mut model = ServedModel::clone(model);
        if let Some(named) = config.models.iter().find(|named| named.name == model.name) {
            model.limits = named.limits;
            model.default_max_tokens = plan.default_max_tokens(&named.name);
        }
        Arc::new(model)
    });
    let models = models.collect();
    offer(config, models, Arc::clone(former.fleet()))
}

/// What a configuration offers by these models and workers.
pub(crate) fn offer(
    config: &mut Config,
    models: Vec<Arc<ServedModel>>,
    fleet: Arc<headrace_fleet::Fleet>,
) -> Offer {
    let judge = |rules: Rules| Arc::new(rules) as Arc<dyn Judge>;
    Offer {
        models,
        aliases: std::mem::take(&mut config.aliases),
        prices: std::mem::take(&mut config.prices),
        fleet,
        judge: config.rules.take().map(judge),
        weights: std::mem::take(&mut config.weights),
    }
}

fn needs_restart(what: &str) -> String {
    format!("{what} needs a restart (SIGTERM drains first)")
}

/// By what a changed file is told: what a rewrite and a rename both change.
fn seen(file: &PathBuf) -> Option<(SystemTime, u64)> {
    let data = std::fs::metadata(file).ok()?;
    Some((data.modified().ok()?, data.len()))
}

fn seconds(at: UnixNanos) -> u64 {
    at.seconds()
}
