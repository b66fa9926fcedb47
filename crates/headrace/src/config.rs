//! The configuration as types. Reading it collects every fault before it fails. Only this module and `cli` read
//! configuration files, variables and flags.

pub(crate) mod admin;
pub(crate) mod arithmetic;
mod extras;
mod field;
pub(crate) mod fields;
mod kinds;
pub(crate) mod layers;
mod listeners;
mod lists;
mod notices;
mod otel;
mod paths;
mod prices;
pub(crate) mod reference;
pub(crate) mod relayed;
mod routes;
pub(crate) mod sections;
mod shadows;
pub(crate) mod show;
pub(crate) mod stopping;
pub(crate) mod storage;
mod stores;
mod table;
mod table_texts;
mod telemetry;
mod thinking;
pub(crate) mod upstreams;
pub(crate) mod value;
mod variables;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headrace_admin::DefaultLimits;
use headrace_call_state::MemoryBounds;
use headrace_catalog::{
    ControlTokenPolicy, ModelPolicy, NameRules, OffForm, PastAnswers, ThinkingPolicy, ToolsOrder,
};
use headrace_domain::{ModelName, NanoDollars, OrgId, Region};
use headrace_edge::{AllowedOrigins, EdgeConfig, TlsFiles};
use headrace_gateway::GatewayConfig;
use headrace_identity::RateLimits;
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_ledger::prices::{CostConfig, PriceConfig};
use headrace_limits::LimitSpec;
use headrace_moderation::Rules;
use headrace_objects::{FileLimits, ObjectLimits};
use headrace_prompt::ReplyFamily;
use headrace_rollout::ModelRoute;
use headrace_scheduler::SchedulerConfig;
use headrace_store::trace::TraceRetention;
use headrace_telemetry::TelemetryConfig;
use headrace_wire::WireLimits;
use headrace_worker::WorkerSecret;

use admin::AdminSettings;
use arithmetic::ArithmeticConfig;
use layers::{SettingLayers, SettingOrigin, SettingProblem};
use relayed::{RelayedConfig, UpstreamConfig};
use storage::StorageSettings;
use value::ParsedValue;
use variables::WORKER_SECRET;

use crate::key_text::read_key;

/// The demo model's path in `[[models]]`.
pub(crate) const DEMO_PATH: &str = "builtin:demo";
/// The demo model's name.
pub(crate) const DEMO_NAME: &str = "headrace-demo";
/// Margin by which the socket's write timeout exceeds `gateway.stall_timeout`.
const AFTER_STALL: Duration = Duration::from_secs(5);

/// The checked configuration.
pub(crate) struct ServerSettings {
    pub(crate) data_dir: PathBuf,
    pub(crate) server: ServerConfig,
    pub(crate) admin: AdminSettings,
    /// Models that engines in this process serve.
    pub(crate) models: Vec<ModelConfig>,
    /// Models that upstreams answer for.
    pub(crate) relayed: Vec<RelayedConfig>,
    /// Servers that calls are sent to.
    pub(crate) upstreams: Vec<UpstreamConfig>,
    pub(crate) engine: EngineSettings,
    pub(crate) scheduler: SchedulerConfig,
    pub(crate) prices: Vec<PriceConfig>,
    /// Prices that upstreams charge the operator.
    pub(crate) costs: Vec<CostConfig>,
    /// Whether models without a price of their own get the demo model's price.
    pub(crate) play_prices: bool,
    /// Further model names, each with the route that it leads to.
    pub(crate) aliases: BTreeMap<ModelName, ModelRoute>,
    /// Rules for names besides their routes: shadows, retirement notices, the alias header.
    pub(crate) names: NameRules,
    /// Engine shares per organisation. An organisation without an entry has 1.
    pub(crate) weights: BTreeMap<OrgId, u32>,
    pub(crate) limits: DefaultLimits,
    pub(crate) rules: Option<Rules>,
    pub(crate) gateway: GatewayConfig,
    pub(crate) objects: ObjectLimits,
    /// Bounds on files and batches.
    pub(crate) files: FileLimits,
    /// The directory of objects, and the free disk space that they must leave.
    pub(crate) storage: StorageSettings,
    pub(crate) traces: TraceSettings,
    pub(crate) first_start: FirstStart,
    /// The secret with which other gateways sign jobs for the engines here. `None` disables the worker protocol.
    pub(crate) worker_secret: Option<WorkerSecret>,
    pub(crate) key_hash_file: Option<PathBuf>,
    pub(crate) cache_salt_file: Option<PathBuf>,
    pub(crate) log_filter: String,
    /// Whether each log line is a JSON object.
    pub(crate) log_json: bool,
    /// Signals that are exported by OTLP.
    pub(crate) telemetry: TelemetryConfig,
    /// Interval of checks for changed files. Zero disables them.
    pub(crate) watch: Duration,
}

/// Sockets and their bounds.
pub(crate) struct ServerConfig {
    pub(crate) drain: Duration,
    /// `None` if the setting is absent.
    pub(crate) drain_delay: Option<Duration>,
    pub(crate) edge: EdgeConfig,
}

/// One model that an engine here serves.
#[derive(Clone)]
pub(crate) struct ModelConfig {
    /// Path of its table in the configuration, such as `models[0]`.
    pub(crate) setting: String,
    pub(crate) name: ModelName,
    /// `None` for the demo model, which is built into the program.
    pub(crate) path: Option<PathBuf>,
    /// The format of tool calls in its answers. If set, it overrides the one that the template implies.
    pub(crate) reply: Option<ReplyFamily>,
    pub(crate) threads: Option<usize>,
    pub(crate) kv_bytes: Option<u64>,
    pub(crate) max_positions: Option<usize>,
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) limits: LimitSpec,
    pub(crate) arithmetic: ArithmeticConfig,
    /// The order in which tool schemas name properties in its prompts.
    pub(crate) tools_order: ToolsOrder,
    /// Its reasoning budgets per effort.
    pub(crate) thinking: ThinkingPolicy,
    /// What happens if an answer violates the requested response format.
    pub(crate) off_form: OffForm,
    /// The keys whose raw prompts may contain control tokens as text.
    pub(crate) parse_special: ControlTokenPolicy,
    /// How earlier answers in a prompt are encoded.
    pub(crate) past_answers: PastAnswers,
}

impl ModelConfig {
    /// The operator's choices about how this model's calls are handled.
    pub(crate) fn policy(&self) -> ModelPolicy {
        ModelPolicy {
            tools_order: self.tools_order,
            thinking: self.thinking.clone(),
            off_form: self.off_form,
            parse_special: self.parse_special.clone(),
            past_answers: self.past_answers,
            ..ModelPolicy::default()
        }
    }

    /// Whether the loaded model of this configuration can also serve `other`, because only limits and defaults differ.
    pub(crate) fn is_loaded_as(&self, other: &Self) -> bool {
        let Self { setting: _, name, path, reply, threads, kv_bytes, max_positions, arithmetic, .. } = self;
        (name, path, threads, kv_bytes) == (&other.name, &other.path, &other.threads, &other.kv_bytes)
            && (reply, max_positions, arithmetic) == (&other.reply, &other.max_positions, &other.arithmetic)
    }
}

/// Settings that all engines share.
pub(crate) struct EngineSettings {
    pub(crate) threads: Option<usize>,
    pub(crate) isa: Option<String>,
    pub(crate) kv_bytes: Option<u64>,
    pub(crate) max_positions: Option<usize>,
    pub(crate) max_choices: u32,
    pub(crate) arithmetic: ArithmeticConfig,
    pub(crate) runtime_threads: Option<usize>,
}

/// Bounds on stored traces.
pub(crate) struct TraceSettings {
    pub(crate) retention: TraceRetention,
    pub(crate) queue_records: usize,
    pub(crate) recent_records: usize,
    pub(crate) strangers_per_second: u32,
}

/// The setup of an empty data directory.
pub(crate) struct FirstStart {
    pub(crate) credit: NanoDollars,
    pub(crate) key_file: Option<PathBuf>,
}

/// Every fault of a configuration.
#[derive(Debug)]
pub(crate) struct ConfigError(pub(crate) Vec<SettingProblem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        writeln!(f, "the configuration has {count} fault{}:", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| writeln!(f, "  {problem}"))?;
        f.write_str("`headrace config check` shows every value and where it comes from")
    }
}

impl std::error::Error for ConfigError {}

impl ServerSettings {
    /// Reads the settings. With `play_prices`, a model without a price gets the demo model's.
    ///
    /// # Errors
    /// Returns every fault.
    pub(crate) fn from_settings(settings: SettingLayers, play_prices: bool) -> Result<Self, ConfigError> {
        let (config, settings) = Self::read(settings, play_prices);
        if settings.problems.is_empty() { Ok(config) } else { Err(ConfigError(settings.problems)) }
    }

    /// Reads the settings as far as they are valid, and records faults in the settings that it returns. A rejected
    /// value is replaced by a neutral one.
    pub(crate) fn read(settings: SettingLayers, play_prices: bool) -> (Self, SettingLayers) {
        let mut read = SettingsReader { settings, names: NameRules::default() };
        let upstreams = read.upstreams();
        let (models, relayed) = read.models();
        let prices = read.prices(&models, &relayed, &upstreams, play_prices);
        let costs = read.costs(&upstreams);
        let config = Self {
            data_dir: read.path("data_dir").unwrap_or_default(),
            server: read.server(),
            admin: read.admin(),
            engine: read.engine(),
            scheduler: read.scheduler(),
            aliases: read.aliases(),
            names: NameRules {
                tell_aliases: read.is_on("gateway.alias_header"),
                ..std::mem::take(&mut read.names)
            },
            weights: read.weights(),
            limits: read.limits(),
            rules: read.rules(),
            gateway: read.gateway(),
            objects: read.objects(),
            files: read.files(),
            storage: read.storage(),
            traces: read.traces(),
            first_start: FirstStart {
                credit: read.dollars("first_start.credit"),
                key_file: read.path("first_start.key_file"),
            },
            worker_secret: read.worker_secret(),
            key_hash_file: read.path("secrets.key_hash_file"),
            cache_salt_file: read.path("secrets.cache_salt_file"),
            log_filter: read.text("log.filter").unwrap_or_default(),
            log_json: read.text("log.format").is_some_and(|format| format == "json"),
            telemetry: read.telemetry(),
            watch: read.duration("reload.watch"),
            models,
            relayed,
            upstreams,
            prices,
            costs,
            play_prices,
        };
        (config, read.settings)
    }
}

/// Takes typed values out of the settings and records faults. A rejected value has already been recorded, so the server
/// never starts with the neutral value that replaces it.
struct SettingsReader {
    settings: SettingLayers,
    /// Rules for names that the tables of models and routes contain.
    names: NameRules,
}

impl SettingsReader {
    fn parsed(&self, path: &str) -> Option<&ParsedValue> {
        self.settings.get(path).map(|setting| &setting.value)
    }

    fn text(&self, path: &str) -> Option<String> {
        if let Some(ParsedValue::Text(text)) = self.parsed(path) { Some(text.clone()) } else { None }
    }

    fn path(&self, path: &str) -> Option<PathBuf> {
        if let Some(ParsedValue::Path(found)) = self.parsed(path) { Some(found.clone()) } else { None }
    }

    fn address(&self, path: &str) -> Option<SocketAddr> {
        if let Some(ParsedValue::Address(found)) = self.parsed(path) { Some(*found) } else { None }
    }

    fn long(&self, path: &str) -> Option<u64> {
        if let Some(ParsedValue::Count(count)) = self.parsed(path) { Some(*count) } else { None }
    }

    fn size(&self, path: &str) -> Option<usize> {
        self.long(path).and_then(|count| usize::try_from(count).ok())
    }

    fn count(&self, path: &str) -> Option<u32> {
        self.long(path).and_then(|count| u32::try_from(count).ok())
    }

    fn is_on(&self, path: &str) -> bool {
        matches!(self.parsed(path), Some(ParsedValue::Flag(true)))
    }

    fn duration(&self, path: &str) -> Duration {
        if let Some(ParsedValue::Duration(found)) = self.parsed(path) { *found } else { Duration::ZERO }
    }

    fn dollars(&self, path: &str) -> NanoDollars {
        if let Some(ParsedValue::Dollars(found)) = self.parsed(path) { *found } else { NanoDollars::ZERO }
    }

    fn fault(&mut self, path: &str, why: impl fmt::Display) {
        let origin = self.settings.origin(path);
        self.settings.problem(path, origin, why.to_string());
    }

    fn worker_secret(&mut self) -> Option<WorkerSecret> {
        const SETTING: &str = "worker.secret_file";
        let read = match self.path(SETTING) {
            Some(path) => read_key(&path),
            None => Ok(std::env::var(WORKER_SECRET).ok().filter(|text| !text.is_empty())?.into()),
        };
        let secret = read.and_then(|text| WorkerSecret::new(&text).map_err(|fault| fault.to_string()));
        secret.map_err(|why| self.fault(SETTING, why)).ok()
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
            write_timeout: self.write_timeout(),
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
        match self
            .text("server.cors")
            .map_or_else(|| Ok(AllowedOrigins::default()), |list| AllowedOrigins::parse(&list))
        {
            Ok(origins) => edge.origins = origins,
            Err(bad) => self.fault("server.cors", bad),
        }
        edge.max_connections_per_peer =
            self.size("server.max_connections_per_peer").unwrap_or(edge.max_connections.div_ceil(2));
        let usual = (edge.memory_bytes / 4).max(edge.least_memory_bytes());
        edge.memory_bytes_per_key = self.long("server.request_memory_per_key").unwrap_or(usual);
        let drain_delay = self.parsed("server.drain_delay").map(|_| self.duration("server.drain_delay"));
        ServerConfig { edge, drain: self.duration("server.drain"), drain_delay }
    }

    fn limits(&self) -> DefaultLimits {
        let of = |kind: &str| RateLimits {
            requests_per_minute: self.count(&format!("limits.{kind}.requests_per_minute")),
            tokens_per_minute: self.long(&format!("limits.{kind}.tokens_per_minute")),
            concurrency: self.count(&format!("limits.{kind}.concurrency")),
        };
        DefaultLimits { org: of("org"), project: of("project"), key: of("key") }
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

    /// Unknown names have already been reported.
    fn arithmetic(&self) -> ArithmeticConfig {
        let [device, mode, kv, quantize] =
            ["engine.device", "engine.compute", "engine.kv_type", "engine.quantize"]
                .map(|path| self.text(path));
        let names = (device.as_deref(), mode.as_deref(), kv.as_deref(), quantize.as_deref());
        ArithmeticConfig::parse(names.0, names.1, names.2, names.3).unwrap_or_default()
    }

    fn scheduler(&mut self) -> SchedulerConfig {
        let size = |path: &str| self.size(path).unwrap_or(1);
        let percent = |path: &str| self.count(path).and_then(|part| u8::try_from(part).ok()).unwrap_or(0);
        let config = SchedulerConfig {
            step_tokens: size("scheduler.step_tokens"),
            max_running: size("scheduler.max_running"),
            max_chunk: size("scheduler.max_chunk"),
            max_score_chunk: size("scheduler.max_score_chunk"),
            // Each engine lowers it to what its model and its KV pool can hold.
            context_window: self.size("engine.max_positions").unwrap_or(usize::MAX),
            queue_sequences: size("scheduler.queue_sequences"),
            queue_tokens: self.long("scheduler.queue_tokens").unwrap_or(1),
            max_bypass: self.count("scheduler.max_bypass").unwrap_or(0),
            idle_patience_ns: u64::try_from(self.duration("scheduler.idle_patience").as_nanos())
                .unwrap_or(u64::MAX),
            dedup_tokens: size("scheduler.dedup_tokens"),
            prefix_cache: matches!(self.parsed("scheduler.prefix_cache"), Some(ParsedValue::Flag(true))),
            prefix_lifetime_ns: match self.parsed("scheduler.prefix_lifetime") {
                Some(ParsedValue::Duration(lifetime)) => u64::try_from(lifetime.as_nanos()).ok(),
                _ => None,
            },
            keep_aborted: matches!(self.parsed("scheduler.keep_aborted"), Some(ParsedValue::Flag(true))),
            pinned_percent: percent("scheduler.pinned_percent"),
            pinned_percent_of_one: percent("scheduler.pinned_percent_of_one"),
        };
        // The size of the KV cache is not known yet. Any size serves to check the other fields.
        if let Err(problems) = config.check(&KvLayout::single(KvGroup::full(1, 1))) {
            for problem in problems.0 {
                self.fault(&format!("scheduler.{}", problem.field), problem.problem);
            }
        }
        config
    }

    /// Reads the write timeout of sockets. It must exceed `gateway.stall_timeout`, because the gateway detects stalled
    /// readers and knows what they have read.
    fn write_timeout(&mut self) -> Duration {
        let (set, stall) = (self.duration("server.write_timeout"), self.duration("gateway.stall_timeout"));
        if set.is_zero() {
            return stall.saturating_add(AFTER_STALL);
        }
        if set <= stall {
            let why = format!(
                "{} s is not longer than `gateway.stall_timeout`, {} s",
                set.as_secs(),
                stall.as_secs()
            );
            self.fault("server.write_timeout", why);
        }
        set
    }

    /// The region of this server and of the models that it computes.
    fn region(&mut self) -> Option<Region> {
        let name = self.text("server.region")?;
        Region::new(&name).map_err(|error| self.fault("server.region", error)).ok()
    }

    fn gateway(&mut self) -> GatewayConfig {
        let (usual, region) = (GatewayConfig::default(), self.region());
        let count = |path: &str, usual: usize| self.size(path).unwrap_or(usual);
        let bytes = |path: &str, usual: u64| self.long(path).unwrap_or(usual);
        // A missing value was rejected, and its fault is recorded.
        let duration = |path: &str, usual: Duration| match self.parsed(path) {
            Some(ParsedValue::Duration(found)) => *found,
            _ => usual,
        };
        let config = GatewayConfig {
            region,
            default_max_tokens: self.count("gateway.default_max_tokens").unwrap_or(usual.default_max_tokens),
            hold_lifetime: duration("gateway.hold_lifetime", usual.hold_lifetime),
            stall_timeout: duration("gateway.stall_timeout", usual.stall_timeout),
            delivery_buffer_bytes: count("gateway.delivery_buffer", usual.delivery_buffer_bytes),
            first_event_wait: duration("gateway.first_event_wait", usual.first_event_wait),
            keep_alive: duration("gateway.keep_alive", usual.keep_alive),
            render_inline_bytes: count("gateway.render_inline", usual.render_inline_bytes),
            render_bytes_at_once: count("gateway.max_render_bytes_at_once", usual.render_bytes_at_once),
            memory: MemoryBounds {
                call: bytes("gateway.max_call_memory", usual.memory.call),
                key: bytes("gateway.max_key_memory", usual.memory.key),
                all: bytes("gateway.max_memory", usual.memory.all),
            },
            object_retention: self.duration("objects.retention"),
            wire: WireLimits { skip_hosted_tools: self.is_on("responses.skip_hosted_tools"), ..self.wire() },
        };
        for (field, why) in config.faults() {
            self.fault(&format!("gateway.{field}"), why);
        }
        config
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
}

/// Parses the flag `--model PATH` or `--model NAME=PATH` as a `[[models]]` table.
pub(crate) fn model_flag(text: &str) -> Result<toml::Table, String> {
    let whole = Path::new(text);
    let (name, path) = match text.split_once('=') {
        Some((name, path)) if !whole.exists() => (name.to_owned(), PathBuf::from(path)),
        _ if text == DEMO_PATH => (DEMO_NAME.to_owned(), whole.to_owned()),
        _ => {
            // `.` and `..` have no name of their own, but the directory that they stand for has one.
            let real = whole.canonicalize().unwrap_or_else(|_| whole.to_owned());
            let name = real.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.ok_or_else(|| format!("`{text}` has no name: write NAME={text}"))?;
            (without_ending(&name).to_owned(), whole.to_owned())
        }
    };
    ModelName::new(&name).map_err(|error| format!("`{name}`: {error}"))?;
    let path = path.to_str().ok_or_else(|| format!("`{text}` is not UTF-8"))?.to_owned();
    let mut table = toml::Table::new();
    table.insert("name".to_owned(), toml::Value::String(name));
    table.insert("path".to_owned(), toml::Value::String(path));
    Ok(table)
}

/// A model's name without its GGUF file extension and without the number of a part: `tiny` for
/// `tiny-00001-of-00003.gguf`.
pub(crate) fn without_ending(name: &str) -> &str {
    let Some((stem, ending)) = name.rsplit_once('.') else { return name };
    if stem.is_empty() || !ending.eq_ignore_ascii_case("gguf") {
        return name;
    }
    let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    match parts.as_slice() {
        [all, "of", part, whole] if is_number(all) && is_number(part) && !whole.is_empty() => whole,
        _ => stem,
    }
}

/// Merges the defaults, a configuration file (if any) and the environment, in this order.
pub(crate) fn layered(
    file: Option<&Path>,
    variables: impl IntoIterator<Item = (String, String)>,
) -> SettingLayers {
    let mut settings = SettingLayers::defaults();
    if let Some(path) = file {
        match std::fs::read_to_string(path) {
            Ok(text) => settings.file(path, &text),
            Err(error) => {
                settings.problem(
                    "the file",
                    SettingOrigin::File(path.to_owned()),
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
