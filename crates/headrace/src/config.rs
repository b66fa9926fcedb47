//! The configuration as types, with every fault found at once. Files, variables and flags are read here and in `cli`
//! only; no other room of the program looks at them.

pub(crate) mod arithmetic;
pub(crate) mod fields;
pub(crate) mod layers;
pub(crate) mod reference;
pub(crate) mod show;
pub(crate) mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headrace_admin::DefaultLimits;
use headrace_domain::{ModelName, NanoDollars, OrgId};
use headrace_edge::{EdgeConfig, TlsFiles};
use headrace_identity::RateLimits;
use headrace_ledger::prices::{PriceConfig, PriceList};
use headrace_limits::LimitSpec;
use headrace_moderation::{RuleConfig, Rules};
use headrace_scheduler::SchedulerConfig;
use headrace_store::trace::TraceRetention;
use headrace_wire::WireLimits;
use serde::Deserialize;

use arithmetic::Arithmetic;
use layers::{Origin, Problem, Settings};
use value::Parsed;

/// The demo model's path in `[[models]]`.
pub(crate) const DEMO_PATH: &str = "builtin:demo";
/// The demo model's name.
pub(crate) const DEMO_NAME: &str = "headrace-demo";

/// The greatest weight of an organisation.
const MOST_WEIGHT: u32 = 1000;
/// $0.10 per million input tokens, a tenth of it for cached ones, four times it for output: what the demo model costs,
/// and what `up --model` charges where nothing is configured.
const PLAY_INPUT: i64 = 100_000_000;

/// Everything, checked.
pub(crate) struct Config {
    pub(crate) data_dir: PathBuf,
    pub(crate) server: ServerConfig,
    pub(crate) models: Vec<ModelConfig>,
    pub(crate) engine: EngineSettings,
    pub(crate) scheduler: SchedulerConfig,
    pub(crate) prices: PriceList,
    pub(crate) aliases: BTreeMap<ModelName, ModelName>,
    /// Shares of an engine; 1 where none stands.
    pub(crate) weights: BTreeMap<OrgId, u32>,
    pub(crate) limits: DefaultLimits,
    pub(crate) rules: Option<Rules>,
    pub(crate) gateway: GatewaySettings,
    pub(crate) wire: WireLimits,
    pub(crate) traces: TraceSettings,
    pub(crate) first_start: FirstStart,
    pub(crate) key_hash_file: Option<PathBuf>,
    pub(crate) cache_salt_file: Option<PathBuf>,
    pub(crate) log_filter: String,
}

/// Sockets and their bounds.
pub(crate) struct ServerConfig {
    pub(crate) drain: Duration,
    pub(crate) edge: EdgeConfig,
}

/// One model to serve.
pub(crate) struct ModelConfig {
    pub(crate) name: ModelName,
    /// `None`: the demo model in the program.
    pub(crate) path: Option<PathBuf>,
    pub(crate) threads: Option<usize>,
    pub(crate) kv_bytes: Option<u64>,
    pub(crate) max_positions: Option<usize>,
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) limits: LimitSpec,
    pub(crate) arithmetic: Arithmetic,
}

/// What engines share.
pub(crate) struct EngineSettings {
    pub(crate) threads: Option<usize>,
    pub(crate) isa: Option<String>,
    pub(crate) kv_bytes: Option<u64>,
    pub(crate) max_positions: Option<usize>,
    pub(crate) max_choices: u32,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) runtime_threads: Option<usize>,
}

/// Defaults and bounds of a call.
pub(crate) struct GatewaySettings {
    pub(crate) default_max_tokens: u32,
    pub(crate) hold_lifetime: Duration,
    pub(crate) stall_timeout: Duration,
    pub(crate) delivery_buffer_bytes: usize,
    pub(crate) first_event_wait: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) render_inline_bytes: usize,
}

/// How many traces are kept.
pub(crate) struct TraceSettings {
    pub(crate) retention: TraceRetention,
    pub(crate) queue_records: usize,
    pub(crate) recent_records: usize,
    pub(crate) strangers_per_second: u32,
}

/// What an empty data directory is set up with.
pub(crate) struct FirstStart {
    pub(crate) credit: NanoDollars,
    pub(crate) key_file: Option<PathBuf>,
}

/// Everything that is wrong with a configuration.
#[derive(Debug)]
pub(crate) struct ConfigError(pub(crate) Vec<Problem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        writeln!(f, "the configuration has {count} fault{}:", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| writeln!(f, "  {problem}"))?;
        f.write_str("`headrace config check` shows every value and where it comes from")
    }
}

impl std::error::Error for ConfigError {}

/// One `[[scheduler.weights]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightTable {
    org: OrgId,
    weight: u32,
}

/// One `[[models]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelTable {
    name: ModelName,
    path: String,
    threads: Option<u32>,
    kv_memory: Option<toml::Value>,
    max_positions: Option<u32>,
    default_max_tokens: Option<u32>,
    compute: Option<String>,
    kv_type: Option<String>,
    quantize: Option<String>,
    #[serde(default)]
    limits: LimitSpec,
}

impl Config {
    /// Reads the settings. With `play_prices`, a model without a price gets the demo model's.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub(crate) fn from_settings(settings: Settings, play_prices: bool) -> Result<Self, ConfigError> {
        let mut read = Reader { settings };
        let models = read.models();
        let prices = read.prices(&models, play_prices);
        let config = Self {
            data_dir: read.path("data_dir").unwrap_or_default(),
            server: read.server(),
            engine: read.engine(),
            scheduler: read.scheduler(),
            aliases: read.aliases(),
            weights: read.weights(),
            limits: read.limits(),
            rules: read.rules(),
            gateway: read.gateway(),
            wire: read.wire(),
            traces: read.traces(),
            first_start: FirstStart {
                credit: read.dollars("first_start.credit"),
                key_file: read.path("first_start.key_file"),
            },
            key_hash_file: read.path("secrets.key_hash_file"),
            cache_salt_file: read.path("secrets.cache_salt_file"),
            log_filter: read.text("log.filter").unwrap_or_default(),
            models,
            prices,
        };
        let problems = read.settings.problems;
        if problems.is_empty() { Ok(config) } else { Err(ConfigError(problems)) }
    }
}

/// Takes typed values out of the settings and notes what is wrong. A value that is missing because it was refused
/// has been noted already, so the neutral one that stands in for it is never used.
struct Reader {
    settings: Settings,
}

impl Reader {
    fn parsed(&self, path: &str) -> Option<&Parsed> {
        self.settings.get(path).map(|setting| &setting.value)
    }

    fn text(&self, path: &str) -> Option<String> {
        if let Some(Parsed::Text(text)) = self.parsed(path) { Some(text.clone()) } else { None }
    }

    fn path(&self, path: &str) -> Option<PathBuf> {
        if let Some(Parsed::Path(found)) = self.parsed(path) { Some(found.clone()) } else { None }
    }

    fn address(&self, path: &str) -> Option<SocketAddr> {
        if let Some(Parsed::Address(found)) = self.parsed(path) { Some(*found) } else { None }
    }

    fn long(&self, path: &str) -> Option<u64> {
        if let Some(Parsed::Count(count)) = self.parsed(path) { Some(*count) } else { None }
    }

    fn size(&self, path: &str) -> Option<usize> {
        self.long(path).and_then(|count| usize::try_from(count).ok())
    }

    fn count(&self, path: &str) -> Option<u32> {
        self.long(path).and_then(|count| u32::try_from(count).ok())
    }

    fn duration(&self, path: &str) -> Duration {
        if let Some(Parsed::Duration(found)) = self.parsed(path) { *found } else { Duration::ZERO }
    }

    fn dollars(&self, path: &str) -> NanoDollars {
        if let Some(Parsed::Dollars(found)) = self.parsed(path) { *found } else { NanoDollars::ZERO }
    }

    fn fault(&mut self, path: &str, why: impl fmt::Display) {
        let origin = self.settings.origin(path);
        self.settings.problem(path, origin, why.to_string());
    }

    /// The tables of a list, each read for itself so that one fault does not hide another.
    fn tables<T: serde::de::DeserializeOwned>(&mut self, path: &str) -> Vec<(String, T)> {
        let Some(Parsed::Raw(toml::Value::Array(items))) = self.parsed(path) else { return Vec::new() };
        let mut read = Vec::new();
        for (index, item) in items.clone().into_iter().enumerate() {
            let what = format!("{path}[{index}]");
            match item.try_into() {
                Ok(table) => read.push((what, table)),
                Err(error) => {
                    let origin = self.settings.origin(path);
                    self.settings.problem(&what, origin, error.to_string().trim_end().replace('\n', " "));
                }
            }
        }
        read
    }

    fn server(&mut self) -> ServerConfig {
        let tls = match (self.path("server.tls_cert"), self.path("server.tls_key")) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key }),
            (None, None) => None,
            (Some(_), None) => {
                self.fault("server.tls_cert", "needs `server.tls_key` (--tls-key) beside it");
                None
            }
            (None, Some(_)) => {
                self.fault("server.tls_key", "needs `server.tls_cert` (--tls-cert) beside it");
                None
            }
        };
        let listen = self.address("server.listen").unwrap_or_else(|| ([127, 0, 0, 1], 0).into());
        let usual = EdgeConfig::new(listen);
        let mut edge = EdgeConfig {
            tls,
            metrics_listen: self.address("server.metrics_listen"),
            max_connections: self.size("server.max_connections").unwrap_or(usual.max_connections),
            max_refusals_per_peer: self
                .count("server.max_refusals_per_peer")
                .unwrap_or(usual.max_refusals_per_peer),
            header_timeout: self.duration("server.header_timeout"),
            body_progress_timeout: self.duration("server.body_progress_timeout"),
            body_total_timeout: self.duration("server.body_total_timeout"),
            write_timeout: self.duration("server.write_timeout"),
            idle_timeout: self.duration("server.idle_timeout"),
            max_header_bytes: self.size("server.max_header").unwrap_or(usual.max_header_bytes),
            max_body_bytes: self.long("server.max_body").unwrap_or(usual.max_body_bytes),
            memory_bytes: self.long("server.request_memory").unwrap_or(usual.memory_bytes),
            max_concurrent_streams: self
                .count("server.max_concurrent_streams")
                .unwrap_or(usual.max_concurrent_streams),
            transport_buffer_bytes: self
                .size("server.transport_buffer")
                .unwrap_or(usual.transport_buffer_bytes),
            ..usual
        };
        edge.max_connections_per_peer =
            self.size("server.max_connections_per_peer").unwrap_or(edge.max_connections.div_ceil(2));
        let usual = (edge.memory_bytes / 4).max(edge.least_memory_bytes());
        edge.memory_bytes_per_key = self.long("server.request_memory_per_key").unwrap_or(usual);
        ServerConfig { edge, drain: self.duration("server.drain") }
    }

    fn models(&mut self) -> Vec<ModelConfig> {
        let configured = self.settings.get("models").is_some();
        let tables: Vec<(String, ModelTable)> = self.tables("models");
        if tables.is_empty() && !configured {
            return demo_name().map(demo_model).into_iter().collect();
        }
        if tables.is_empty()
            && !self.settings.problems.iter().any(|problem| problem.what.starts_with("models"))
        {
            self.fault("models", "is empty: name a model, or leave it out to serve the demo model");
        }
        let mut models: Vec<ModelConfig> = Vec::new();
        for (what, table) in tables {
            let origin = self.settings.origin("models");
            if models.iter().any(|model| model.name == table.name) {
                let why = format!("`{}` is named twice", table.name);
                self.settings.problem(&what, origin.clone(), why);
            }
            let path = (table.path != DEMO_PATH).then(|| PathBuf::from(&table.path));
            if let Some(why) = path.as_deref().and_then(not_a_model) {
                self.settings.problem(&what, origin.clone(), why);
            }
            let kv_bytes = table.kv_memory.as_ref().and_then(value::bytes);
            if table.kv_memory.is_some() && kv_bytes.is_none() {
                let why = "`kv_memory` must be bytes, or text such as \"2GiB\"".to_owned();
                self.settings.problem(&what, origin.clone(), why);
            }
            let numbers = [table.threads, table.max_positions, table.default_max_tokens];
            if numbers.contains(&Some(0)) {
                let why = "`threads`, `max_positions` and `default_max_tokens` must be at least 1".to_owned();
                self.settings.problem(&what, origin.clone(), why);
            }
            let names = [&table.compute, &table.kv_type, &table.quantize].map(|name| name.as_deref());
            let arithmetic = Arithmetic::parse(names[0], names[1], names[2]).unwrap_or_else(|why| {
                self.settings.problem(&what, origin, why);
                Arithmetic::default()
            });
            models.push(ModelConfig {
                name: table.name,
                path,
                threads: table.threads.and_then(|n| usize::try_from(n).ok()),
                kv_bytes,
                max_positions: table.max_positions.and_then(|n| usize::try_from(n).ok()),
                default_max_tokens: table.default_max_tokens,
                limits: table.limits,
                arithmetic,
            });
        }
        models
    }

    fn prices(&mut self, models: &[ModelConfig], play_prices: bool) -> PriceList {
        let tables: Vec<(String, PriceConfig)> = self.tables("prices");
        let mut prices: Vec<PriceConfig> = tables.into_iter().map(|(_, price)| price).collect();
        for model in models.iter().filter(|model| play_prices || model.path.is_none()) {
            if !prices.iter().any(|price| price.model == model.name) {
                prices.push(play_price(model.name.clone()));
            }
        }
        for model in models {
            if !prices.iter().any(|price| price.model == model.name) {
                let why = format!(
                    "model `{0}` has no price and would be refused: add [[prices]] with model = \"{0}\"",
                    model.name
                );
                self.fault("prices", why);
            }
        }
        PriceList::from_config(&prices).unwrap_or_else(|errors| {
            errors.iter().for_each(|error| self.fault("prices", error));
            PriceList::default()
        })
    }

    fn aliases(&mut self) -> BTreeMap<ModelName, ModelName> {
        let Some(Parsed::Raw(toml::Value::Table(table))) = self.parsed("aliases") else {
            return BTreeMap::new();
        };
        let mut aliases = BTreeMap::new();
        for (alias, target) in table.clone() {
            match (ModelName::new(&alias), ModelName::new(target.as_str().unwrap_or_default())) {
                (Ok(alias), Ok(target)) => drop(aliases.insert(alias, target)),
                (Err(error), _) | (_, Err(error)) => self.fault("aliases", format!("{alias}: {error}")),
            }
        }
        aliases
    }

    fn weights(&mut self) -> BTreeMap<OrgId, u32> {
        let mut weights = BTreeMap::new();
        for (what, table) in self.tables::<WeightTable>("scheduler.weights") {
            let twice = weights.insert(table.org.clone(), table.weight).is_some();
            let why = match table.weight {
                _ if twice => format!("`org` {} stands there twice", table.org),
                1..=MOST_WEIGHT => continue,
                weight => format!("`weight` is {weight}; it must be 1 to {MOST_WEIGHT}"),
            };
            let origin = self.settings.origin("scheduler.weights");
            self.settings.problem(&what, origin, why);
        }
        weights
    }

    fn limits(&self) -> DefaultLimits {
        let of = |kind: &str| RateLimits {
            requests_per_minute: self.count(&format!("limits.{kind}.requests_per_minute")),
            tokens_per_minute: self.long(&format!("limits.{kind}.tokens_per_minute")),
            concurrency: self.count(&format!("limits.{kind}.concurrency")),
        };
        DefaultLimits { org: of("org"), project: of("project"), key: of("key") }
    }

    fn rules(&mut self) -> Option<Rules> {
        let tables: Vec<(String, RuleConfig)> = self.tables("moderation.rules");
        let configs: Vec<RuleConfig> = tables.into_iter().map(|(_, rule)| rule).collect();
        if configs.is_empty() {
            return None;
        }
        Rules::compile(&configs).map_err(|errors| self.fault("moderation.rules", errors)).ok()
    }

    fn engine(&self) -> EngineSettings {
        EngineSettings {
            threads: self.size("engine.threads"),
            isa: self.text("engine.isa"),
            kv_bytes: self.long("engine.kv_memory"),
            max_positions: self.size("engine.max_positions"),
            max_choices: self.count("engine.max_choices").unwrap_or(1),
            arithmetic: self.arithmetic(),
            runtime_threads: self.size("engine.runtime_threads"),
        }
    }

    /// Names that are not of the lists have been reported as such.
    fn arithmetic(&self) -> Arithmetic {
        let [mode, kv, quantize] =
            ["engine.compute", "engine.kv_type", "engine.quantize"].map(|path| self.text(path));
        Arithmetic::parse(mode.as_deref(), kv.as_deref(), quantize.as_deref()).unwrap_or_default()
    }

    fn scheduler(&mut self) -> SchedulerConfig {
        let size = |path: &str| self.size(path).unwrap_or(1);
        let config = SchedulerConfig {
            step_tokens: size("scheduler.step_tokens"),
            max_running: size("scheduler.max_running"),
            max_chunk: size("scheduler.max_chunk"),
            max_score_chunk: size("scheduler.max_score_chunk"),
            // Each engine cuts it to what its model and its pool can hold.
            context_window: self.size("engine.max_positions").unwrap_or(usize::MAX),
            queue_sequences: size("scheduler.queue_sequences"),
            queue_tokens: self.long("scheduler.queue_tokens").unwrap_or(1),
            max_bypass: self.count("scheduler.max_bypass").unwrap_or(0),
            dedup_tokens: size("scheduler.dedup_tokens"),
            prefix_cache: matches!(self.parsed("scheduler.prefix_cache"), Some(Parsed::Flag(true))),
            prefix_lifetime_ns: match self.parsed("scheduler.prefix_lifetime") {
                Some(Parsed::Duration(lifetime)) => u64::try_from(lifetime.as_nanos()).ok(),
                _ => None,
            },
            keep_aborted: matches!(self.parsed("scheduler.keep_aborted"), Some(Parsed::Flag(true))),
        };
        // The pool's size is not known yet; any will do for the fields that are.
        if let Err(problems) = config.check(1) {
            for problem in problems.0 {
                self.fault(&format!("scheduler.{}", problem.field), problem.problem);
            }
        }
        config
    }

    fn gateway(&self) -> GatewaySettings {
        GatewaySettings {
            default_max_tokens: self.count("gateway.default_max_tokens").unwrap_or(1),
            hold_lifetime: self.duration("gateway.hold_lifetime"),
            stall_timeout: self.duration("gateway.stall_timeout"),
            delivery_buffer_bytes: self.size("gateway.delivery_buffer").unwrap_or(0),
            first_event_wait: self.duration("gateway.first_event_wait"),
            keep_alive: self.duration("gateway.keep_alive"),
            render_inline_bytes: self.size("gateway.render_inline").unwrap_or(0),
        }
    }

    fn wire(&mut self) -> WireLimits {
        let fields = fields::FIELDS.iter().filter_map(|field| {
            let name = field.path.strip_prefix("wire.")?;
            Some((name.to_owned(), toml::Value::Integer(i64::try_from(self.long(field.path)?).ok()?)))
        });
        let table: toml::Table = fields.collect();
        toml::Value::Table(table).try_into().unwrap_or_else(|error| {
            self.fault("wire", error);
            WireLimits::default()
        })
    }

    fn traces(&self) -> TraceSettings {
        let max_age = Some(self.duration("traces.max_age")).filter(|age| !age.is_zero());
        TraceSettings {
            retention: TraceRetention { max_records: self.long("traces.max_records").unwrap_or(1), max_age },
            queue_records: self.size("traces.queue_records").unwrap_or(1),
            recent_records: self.size("traces.recent_records").unwrap_or(0),
            strangers_per_second: self.count("traces.strangers_per_second").unwrap_or(0),
        }
    }
}

fn demo_name() -> Option<ModelName> {
    ModelName::new(DEMO_NAME).ok()
}

fn demo_model(name: ModelName) -> ModelConfig {
    ModelConfig {
        name,
        path: None,
        threads: None,
        kv_bytes: None,
        max_positions: None,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
        arithmetic: Arithmetic::default(),
    }
}

fn play_price(model: ModelName) -> PriceConfig {
    PriceConfig {
        model,
        from: None,
        input: Some(PLAY_INPUT),
        cached_input: Some(PLAY_INPUT / 10),
        cache_write: None,
        output: Some(PLAY_INPUT * 4),
        reasoning: None,
    }
}

/// Why a path cannot be a model, as far as one look tells.
fn not_a_model(path: &Path) -> Option<String> {
    let shown = path.display();
    if !path.exists() {
        return Some(format!("{shown}: there is no such file or directory"));
    }
    let is_gguf =
        |path: &Path| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if !path.is_dir() {
        let what = "is neither a directory nor a .gguf file; give a GGUF file or the directory that holds config.json";
        return (!is_gguf(path)).then(|| format!("{shown}: {what}"));
    }
    let holds_gguf = || {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| is_gguf(&entry.path()))
    };
    (!path.join("config.json").exists() && !holds_gguf()).then(|| {
        format!("{shown}: holds neither config.json nor a .gguf file; give a model directory or a GGUF file")
    })
}

/// The value of the flag `--model PATH` or `--model NAME=PATH`, as a `[[models]]` table.
pub(crate) fn model_flag(text: &str) -> Result<toml::Table, String> {
    let whole = Path::new(text);
    let (name, path) = match text.split_once('=') {
        Some((name, path)) if !whole.exists() => (name.to_owned(), PathBuf::from(path)),
        _ if text == DEMO_PATH => (DEMO_NAME.to_owned(), whole.to_owned()),
        _ => {
            // `.` and `..` have no name of their own, but the directory that they are does.
            let real = whole.canonicalize().unwrap_or_else(|_| whole.to_owned());
            let name = real.file_name().map(|name| name.to_string_lossy().into_owned());
            (name.ok_or_else(|| format!("`{text}` has no name: write NAME={text}"))?, whole.to_owned())
        }
    };
    ModelName::new(&name).map_err(|error| format!("`{name}`: {error}"))?;
    let path = path.to_str().ok_or_else(|| format!("`{text}` is not UTF-8"))?.to_owned();
    let mut table = toml::Table::new();
    table.insert("name".to_owned(), toml::Value::String(name));
    table.insert("path".to_owned(), toml::Value::String(path));
    Ok(table)
}

/// The settings of a file (if any) and the environment over the defaults.
pub(crate) fn layered(
    file: Option<&Path>,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Settings {
    let mut settings = Settings::defaults();
    if let Some(path) = file {
        match std::fs::read_to_string(path) {
            Ok(text) => settings.file(path, &text),
            Err(error) => {
                settings.problem(
                    "the file",
                    Origin::File(path.to_owned()),
                    format!("cannot be read: {error}"),
                );
            }
        }
    }
    settings.environment(variables);
    settings
}

#[cfg(test)]
mod tests;
