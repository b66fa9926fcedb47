//! Checks everything about a configuration that can be known before a model is loaded and a port is bound. `config
//! check` and the servers use this one function, so that neither accepts what the other refuses. Must not know how
//! anything is served.

use std::fmt::Display;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;

use headrace_catalog::{ModelStatus, NameFault, name_faults};
use headrace_config::admin::AdminListen;
use headrace_config::key_text::read_key;
use headrace_config::layers::{SettingLayers, SettingOrigin};
use headrace_config::relayed::{RelayTarget, RelayedConfig, UpstreamConfig, find_upstream};
use headrace_config::{ConfigError, ServerSettings};
use headrace_domain::{Clock, ModelName, SystemClock};
use headrace_edge::EdgeError;
use headrace_engine_api::PrefixCache;
use headrace_identity::{ExposeSecret, SecretString, is_well_formed};
use headrace_ledger::prices::PriceList;
use tracing_subscriber::EnvFilter;

use crate::datadir::{self, SecretFiles};
use crate::first_start::KEY_VARIABLE;
use crate::models::{ModelFault, ServingPlan};
use crate::running_model::InMemory;
use crate::tokenizer_assets::{self, AssetsByModel};
use crate::upstreams::UpstreamRegistry;

/// A configuration without known faults.
pub struct CheckedConfig {
    /// The settings.
    pub config: ServerSettings,
    /// The models that will run.
    pub plan: ServingPlan,
    /// The tokenizer assets of models whose targets get token ids.
    pub assets_by_model: AssetsByModel,
    /// The filter of the log.
    pub(crate) log: EnvFilter,
}

/// Checks the settings and the first key, if one was chosen, against the models that are in memory. With `play_prices`,
/// a model without a price gets the demo model's.
///
/// # Errors
/// Returns every fault.
pub fn check(
    settings: SettingLayers,
    play_prices: bool,
    first_key: Option<&SecretString>,
    present: &InMemory,
) -> Result<CheckedConfig, ConfigError> {
    let (config, settings) = ServerSettings::read(settings, play_prices);
    let mut faults = CheckFaults { settings };
    let log = log_filter(&config.log_filter).map_err(|why| faults.add("log.filter", why)).ok();
    listeners(&config, &mut faults);
    names(&config, &mut faults);
    files(&config, first_key, &mut faults);
    let (mut plan, mut assets_by_model) = (None, AssetsByModel::new());
    // Reads certificate and key files as a start does. Sends no request.
    if !faults.within("upstreams")
        && let Err(found) = UpstreamRegistry::new(Arc::new(SystemClock::new()), None).sites_of(&config)
    {
        for fault in found {
            // Each fault begins with its setting.
            let (setting, why) = fault.split_once(": ").unwrap_or(("upstreams", &fault));
            faults.add(setting, why);
        }
    }
    // A model that is not at its configured path has already been reported.
    if !faults.within("models") && !faults.within("engine") {
        match ServingPlan::new(&config, present) {
            Ok(found) => plan = Some(found),
            Err(found) => found.into_iter().for_each(|fault| faults.add_model(fault)),
        }
        match tokenizer_assets::read(&config) {
            Ok(found) => assets_by_model = found,
            Err(found) => found.into_iter().for_each(|fault| faults.add_model(fault)),
        }
    }
    match (log, plan) {
        (Some(log), Some(plan)) if faults.settings.problems.is_empty() => {
            Ok(CheckedConfig { config, plan, assets_by_model, log })
        }
        _ => Err(ConfigError(faults.settings.problems)),
    }
}

/// Remarks on a valid configuration: servers that keep one prefix cache for all tenants.
pub fn remarks(config: &ServerSettings) -> Vec<String> {
    let remark = |upstream: &UpstreamConfig| {
        let (setting, spec) = (&upstream.setting, &upstream.spec);
        let (name, kind) = (&spec.name, spec.kind);
        match spec.prefix_cache() {
            PrefixCache::Labelled(_) | PrefixCache::LabelledText(_) => None,
            PrefixCache::Hidden => Some(format!(
                "{setting}: `{name}` is of kind `{kind}`, which keeps one prefix cache for all tenants. With several organisations, \
                 cached tokens are shown and billed as uncached ones, and only the time of an answer can tell of another \
                 organisation's prompts. `cache_shared = \"disclose\"` shows them."
            )),
            PrefixCache::Disclosed => Some(format!(
                "{setting}: `{name}` is of kind `{kind}`, which keeps one prefix cache for all tenants, and `cache_shared` is \
                 `disclose`: organisations can learn what others have sent."
            )),
        }
    };
    config.upstreams.iter().filter_map(remark).collect()
}

/// Parses the filter of the log. A single word that is no level is refused, because it would be taken for a module and
/// show nothing.
fn log_filter(text: &str) -> Result<EnvFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    for word in words.filter(|word| !word.contains(['=', '['])) {
        if !LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word)) && !word.starts_with("headrace") {
            return Err(format!("`{word}` is no level ({}) and no TARGET=LEVEL", LEVELS.join(", ")));
        }
    }
    EnvFilter::builder().parse(text).map_err(|error| format!("`{text}` is no filter: {error}"))
}

/// The settings, to which faults are added.
struct CheckFaults {
    settings: SettingLayers,
}

impl CheckFaults {
    fn add(&mut self, setting: &str, why: impl Display) {
        // `models[0].kv_memory` has the origin of `models`.
        let whole = setting.split('[').next().unwrap_or(setting);
        let origin = self.settings.origin(whole);
        self.settings.problem(setting, origin, why.to_string());
    }

    fn add_model(&mut self, fault: ModelFault) {
        self.add(&fault.setting, fault.why);
        if let Some(problem) = self.settings.problems.last_mut() {
            problem.way_out = fault.way_out;
        }
    }

    /// Whether a setting of that section has a fault.
    fn within(&self, section: &str) -> bool {
        self.settings.problems.iter().any(|problem| problem.what.starts_with(section))
    }
}

/// Checks sockets and certificates. A taken address is no fault, because the running server may be about to be
/// replaced.
fn listeners(config: &ServerSettings, faults: &mut CheckFaults) {
    if faults.within("server") {
        return;
    }
    let edge = &config.server.edge;
    if let Err(EdgeError::Config(wrong)) = edge.check() {
        wrong.into_iter().for_each(|why| faults.add("server", why));
    }
    if let Some(files) = &edge.tls
        && let Err(EdgeError::Tls { file, detail }) = files.check()
    {
        let setting = if file == files.cert { "server.tls_cert" } else { "server.tls_key" };
        faults.add(setting, format!("{}: {detail}", file.display()));
    }
    let metrics = edge.metrics_listen.map(|address| ("server.metrics_listen", address));
    let admin = match config.admin.listen {
        AdminListen::At(address) => Some(("admin.listen", address)),
        AdminListen::Usual | AdminListen::Off => None,
    };
    for (setting, address) in [("server.listen", edge.listen)].into_iter().chain(metrics).chain(admin) {
        match TcpListener::bind(address) {
            Err(error) if error.kind() != ErrorKind::AddrInUse => {
                faults.add(setting, format!("cannot listen on {address}: {error}"));
            }
            _ => {}
        }
    }
    if edge.metrics_listen == Some(edge.listen) && edge.listen.port() != 0 {
        faults
            .add("server.metrics_listen", "is the address of `server.listen`: metrics need one of their own");
    }
}

/// Checks that each target of a model exists, and takes token ids if the model sends them.
fn targets(model: &RelayedConfig, config: &ServerSettings, faults: &mut CheckFaults) {
    let setting = format!("{}.targets", model.setting);
    for RelayTarget { upstream: name, .. } in &model.targets {
        let Some(upstream) = find_upstream(&config.upstreams, name) else {
            let known: Vec<&str> =
                config.upstreams.iter().map(|upstream| upstream.spec.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            faults.add(&setting, format!("there is no upstream `{name}`; there is {known}"));
            continue;
        };
        let kind = upstream.spec.kind;
        if model.words.is_some() && !kind.takes_ids() {
            let why = format!(
                "upstream `{name}` is of kind `{kind}`, which is not asked by token ids, as `{}` with its `path` is: leave the \
                 path out, or name upstreams of kind `vllm`, `sglang` or `llamacpp`",
                model.name
            );
            faults.add(&setting, why);
        }
    }
}

/// Checks aliases and prices against the models that they name.
fn names(config: &ServerSettings, faults: &mut CheckFaults) {
    if faults.within("models") {
        return;
    }
    config.relayed.iter().for_each(|model| targets(model, config, faults));
    let here = config.models.iter().map(|model| &model.name);
    let names: Vec<&ModelName> = here.chain(config.relayed.iter().map(|model| &model.name)).collect();
    let status = |name: &ModelName| {
        if names.contains(&name) {
            ModelStatus::Served
        } else if may_be_listed(config, name) {
            ModelStatus::MayBeListed
        } else {
            ModelStatus::Unknown
        }
    };
    let known = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    for NameFault { name, why } in name_faults(&status, &config.aliases, &config.names) {
        let setting = match config.aliases.get(&name) {
            Some(route) if route.is_plain() => "aliases",
            Some(_) => "routes",
            None => "models",
        };
        let unserved = why.ends_with("which is not served");
        faults.add(setting, if unserved { format!("{why}; there is {known}") } else { why });
    }
    if faults.within("prices") {
        return;
    }
    let now = SystemClock::new().now();
    // Faults of the prices have already been reported.
    let Ok(prices) = PriceList::from_config(&config.prices) else { return };
    for name in names.iter().filter(|name| prices.quote(name, now).is_none()) {
        faults.add("prices", format!("the prices of `{name}` all begin later: give one that applies today"));
    }
}

/// Whether a name could belong to a model that an upstream lists once it is asked.
pub(crate) fn may_be_listed(config: &ServerSettings, name: &ModelName) -> bool {
    let upstream =
        name.as_str().split_once('/').and_then(|(upstream, _)| find_upstream(&config.upstreams, upstream));
    let worker = |target: &RelayTarget| {
        let upstream = find_upstream(&config.upstreams, &target.upstream);
        upstream.is_some_and(|upstream| upstream.spec.worker_secret.is_some())
    };
    // Workers themselves report the tokenizer assets of their models.
    let by_workers = |model: &RelayedConfig| model.name == *name && model.targets.iter().any(worker);
    upstream.is_some_and(|upstream| upstream.serve) || config.relayed.iter().any(by_workers)
}

/// Checks the files that hold secrets.
fn files(config: &ServerSettings, first_key: Option<&SecretString>, faults: &mut CheckFaults) {
    let secrets = [
        ("secrets.key_hash_file", &config.key_hash_file),
        ("secrets.cache_salt_file", &config.cache_salt_file),
    ];
    for (setting, file) in secrets {
        if let Some(Err(error)) = file.as_deref().map(datadir::read_secret) {
            faults.add(setting, error);
        }
    }
    if let Err(error) = SecretFiles::of(config).sealer() {
        // The text of the error begins with the setting.
        let why = error.to_string();
        let setting = "storage.secret_file";
        faults.add(setting, why.strip_prefix(&format!("{setting}: ")).unwrap_or(&why));
    }
    // Later starts need no first key.
    let first = !datadir::has_keys(&config.data_dir);
    if let Some(key) = first_key.filter(|_| first) {
        let origin = SettingOrigin::Environment(KEY_VARIABLE.to_owned());
        if let Some(why) = unfit(key) {
            faults.settings.problem("the first key", origin, why);
        }
    } else if let Some(file) = config.first_start.key_file.as_deref().filter(|_| first) {
        match read_key(file) {
            Ok(key) => unfit(&key).into_iter().for_each(|why| faults.add("first_start.key_file", why)),
            Err(why) => faults.add("first_start.key_file", why),
        }
    }
}

/// Explains why a key that an operator chose is invalid. `None` if it is valid.
fn unfit(key: &SecretString) -> Option<String> {
    let why = "is no API key: `sk-` and 4 to 253 letters, digits, `-` or `_`";
    (!is_well_formed(key.expose_secret())).then(|| why.to_owned())
}
