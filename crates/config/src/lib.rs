//! The configuration as types. Reading it collects every fault before it fails. Reads files and variables; must not know
//! a server.

mod access_fields;
pub mod admin;
pub mod arithmetic;
mod billing_fields;
mod budgets;
pub mod ca;
mod command_settings;
mod content_rule_fields;
mod extras;
mod field;
pub mod fields;
mod free_tiers;
mod identity;
mod invoices;
mod judges;
pub mod key_text;
mod kinds;
pub mod layers;
mod limit_reader;
pub mod limit_source;
mod listeners;
mod lists;
mod notices;
mod otel;
mod paths;
mod prices;
mod proxies;
pub mod record_fields;
mod records;
pub mod reference;
pub mod relayed;
mod routes;
pub mod sections;
mod settings;
mod shadows;
pub mod show;
mod sign_in;
pub mod stopping;
pub mod storage;
pub mod stored;
mod stores;
mod table;
mod table_texts;
mod telemetry;
mod thinking;
pub mod upstreams;
pub mod value;
pub mod variables;
pub mod webhooks;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headrace_admin::DefaultLimits;
use headrace_call_state::MemoryBounds;
use headrace_catalog::NameRules;
use headrace_domain::{ModelName, NanoDollars, Region};
use headrace_edge::{AllowedOrigins, EdgeConfig, TlsFiles};
use headrace_gateway::GatewayConfig;
use headrace_identity::RateLimits;
use headrace_scheduler::SchedulerConfig;
use headrace_wire::WireLimits;
use headrace_worker::WorkerSecret;

use self::arithmetic::ArithmeticConfig;
use self::billing_fields::ANSWER_HASH;
use self::key_text::read_key;
use self::layers::{SettingLayers, SettingOrigin};
use self::value::ParsedValue;
use self::variables::WORKER_SECRET;

pub use self::settings::{
    ConfigError, EngineSettings, FirstStart, ModelConfig, ServerConfig, ServerSettings, TraceSettings,
    usual_chunk,
};

/// The demo model's path in `[[models]]`.
pub const DEMO_PATH: &str = "builtin:demo";
/// The demo model's name.
pub const DEMO_NAME: &str = "headrace-demo";
/// Margin by which the socket's write timeout exceeds `gateway.stall_timeout`.
const AFTER_STALL: Duration = Duration::from_secs(5);

impl ServerSettings {
    /// Reads the settings. With `play_prices`, a model without a price gets the demo model's.
    ///
    /// # Errors
    /// Returns every fault.
    pub fn from_settings(settings: SettingLayers, play_prices: bool) -> Result<Self, ConfigError> {
        let (config, settings) = Self::read(settings, play_prices);
        if settings.problems.is_empty() { Ok(config) } else { Err(ConfigError(settings.problems)) }
    }

    /// Reads the settings as far as they are valid, and records faults in the settings that it returns. A rejected
    /// value is replaced by a neutral one.
    pub fn read(settings: SettingLayers, play_prices: bool) -> (Self, SettingLayers) {
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
                show_aliases: read.is_on("gateway.alias_header"),
                ..std::mem::take(&mut read.names)
            },
            weights: read.weights(),
            limits: read.limits(),
            limit_server: read.limit_server(),
            issuers: read.issuers(),
            budgets: read.budgets(),
            webhooks: read.webhooks(),
            invoices: read.invoices(),
            free_tiers: read.free_tiers(),
            certificates: read.certificates(),
            rules: read.rules(),
            gateway: read.gateway(),
            objects: read.objects(),
            files: read.files(),
            storage: read.storage(),
            traces: read.traces(),
            contents: read.content_bounds(),
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
            trusted_proxies: self.trusted_proxies(),
            proxy_protocol: self.proxy_protocol(),
            client_authorities: self.client_authorities(),
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
        // The size of the KV cache is not known yet.
        if let Err(problems) = config.check_values() {
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
            idempotency: self.idempotency(),
            hash_answers: self.is_on(ANSWER_HASH),
            records: self.record_policy(),
            client_address: self.client_address(),
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
pub fn model_flag(text: &str) -> Result<toml::Table, String> {
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
pub fn without_ending(name: &str) -> &str {
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
pub fn layered(file: Option<&Path>, variables: impl IntoIterator<Item = (String, String)>) -> SettingLayers {
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
