//! The checked settings as types, and every fault of a configuration. Must not know how they are read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::{DefaultLimits, InvoiceSettings};
use headrace_catalog::{
    ControlTokenPolicy, ModelPolicy, NameRules, OffForm, PastAnswers, ThinkingPolicy, ToolsOrder,
};
use headrace_domain::{ModelName, NanoDollars, OrgId};
use headrace_edge::EdgeConfig;
use headrace_gateway::GatewayConfig;
use headrace_jwt::{CertificateRule, IssuerConfig};
use headrace_ledger::prices::{CostConfig, PriceConfig};
use headrace_ledger::{BudgetRule, FreeTier};
use headrace_limits::LimitSpec;
use headrace_moderation::Rules;
use headrace_objects::{FileLimits, ObjectLimits};
use headrace_prompt::ReplyFamily;
use headrace_rollout::ModelRoute;
use headrace_scheduler::SchedulerConfig;
use headrace_store::trace::TraceRetention;
use headrace_telemetry::TelemetryConfig;
use headrace_worker::WorkerSecret;

use crate::admin::AdminSettings;
use crate::arithmetic::ArithmeticConfig;
use crate::layers::SettingProblem;
use crate::limit_source::LimitServerSettings;
use crate::record_fields::ContentBounds;
use crate::relayed::{RelayedConfig, UpstreamConfig};
use crate::storage::StorageSettings;
use crate::webhooks::WebhookEndpoint;

/// Most tokens of one sequence in a step if the settings do not say it.
pub fn usual_chunk() -> usize {
    SchedulerConfig::default().chunk()
}

/// The checked configuration.
pub struct ServerSettings {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Sockets and their bounds.
    pub server: ServerConfig,
    /// The operators' listener.
    pub admin: AdminSettings,
    /// Budget rules.
    pub budgets: Vec<BudgetRule>,
    /// What invoices have besides charges.
    pub invoices: InvoiceSettings,
    /// Endpoints that receive events.
    pub webhooks: Vec<WebhookEndpoint>,
    /// Free tiers.
    pub free_tiers: Vec<FreeTier>,
    /// Models that engines in this process serve.
    pub models: Vec<ModelConfig>,
    /// Models that upstreams answer for.
    pub relayed: Vec<RelayedConfig>,
    /// Servers that calls are sent to.
    pub upstreams: Vec<UpstreamConfig>,
    /// Settings that all engines share.
    pub engine: EngineSettings,
    /// Batching and queueing within each engine.
    pub scheduler: SchedulerConfig,
    /// Prices for callers.
    pub prices: Vec<PriceConfig>,
    /// Prices that upstreams charge the operator.
    pub costs: Vec<CostConfig>,
    /// Whether models without a price of their own get the demo model's price.
    pub play_prices: bool,
    /// Further model names, each with the route that it leads to.
    pub aliases: BTreeMap<ModelName, ModelRoute>,
    /// Rules for names besides their routes: shadows, retirement notices, the alias header.
    pub names: NameRules,
    /// Engine shares per organisation. An organisation without an entry has 1.
    pub weights: BTreeMap<OrgId, u32>,
    /// Limits of new keys, projects and organisations.
    pub limits: DefaultLimits,
    /// The server that keeps the rate limits of several gateways. `None` if gateways keep them themselves.
    pub limit_server: Option<LimitServerSettings>,
    /// Identity providers whose JWTs are accepted.
    pub issuers: Vec<IssuerConfig>,
    /// Who authenticates with a client certificate.
    pub certificates: Vec<CertificateRule>,
    /// Rules on the content of requests, if there are any.
    pub rules: Option<Arc<Rules>>,
    /// Defaults and bounds of a call.
    pub gateway: GatewayConfig,
    /// Bounds on stored objects.
    pub objects: ObjectLimits,
    /// Bounds on files and batches.
    pub files: FileLimits,
    /// The directory of objects, and the free disk space that they must leave.
    pub storage: StorageSettings,
    /// Bounds on stored traces.
    pub traces: TraceSettings,
    /// Bounds on recorded requests and answers.
    pub contents: ContentBounds,
    /// The setup of an empty data directory.
    pub first_start: FirstStart,
    /// The secret with which other gateways sign jobs for the engines here. `None` disables the worker protocol.
    pub worker_secret: Option<WorkerSecret>,
    /// The file of the secret that hashes keys. `None` for the one in the data directory.
    pub key_hash_file: Option<PathBuf>,
    /// The file of the salt that separates the prefix caches of tenants. `None` for the one in the data directory.
    pub cache_salt_file: Option<PathBuf>,
    /// The filter of the log.
    pub log_filter: String,
    /// Whether each log line is a JSON object.
    pub log_json: bool,
    /// Signals that are exported by OTLP.
    pub telemetry: TelemetryConfig,
    /// Interval of checks for changed files. Zero disables them.
    pub watch: Duration,
}

/// Sockets and their bounds.
pub struct ServerConfig {
    /// How long calls in flight may take at a stop.
    pub drain: Duration,
    /// `None` if the setting is absent.
    pub drain_delay: Option<Duration>,
    /// The listeners and the bounds on connections.
    pub edge: EdgeConfig,
}

/// One model that an engine here serves.
#[derive(Clone)]
pub struct ModelConfig {
    /// Path of its table in the configuration, such as `models[0]`.
    pub setting: String,
    /// Its name for callers.
    pub name: ModelName,
    /// `None` for the demo model, which is built into the program.
    pub path: Option<PathBuf>,
    /// The format of tool calls in its answers. If set, it overrides the one that the template implies.
    pub reply: Option<ReplyFamily>,
    /// Its compute threads, if it has a number of its own.
    pub threads: Option<usize>,
    /// The size of its KV pool in bytes, if set.
    pub kv_bytes: Option<u64>,
    /// Its maximum context in positions, if set.
    pub max_positions: Option<usize>,
    /// Maximum tokens of an answer to a call that sets no maximum, if set.
    pub default_max_tokens: Option<u32>,
    /// Its limits, over all callers.
    pub limits: LimitSpec,
    /// Its device, compute mode and types.
    pub arithmetic: ArithmeticConfig,
    /// The order in which tool schemas name properties in its prompts.
    pub tools_order: ToolsOrder,
    /// Its reasoning budgets per effort.
    pub(crate) thinking: ThinkingPolicy,
    /// What happens if an answer violates the requested response format.
    pub(crate) off_form: OffForm,
    /// The keys whose raw prompts may contain control tokens as text.
    pub parse_special: ControlTokenPolicy,
    /// How earlier answers in a prompt are encoded.
    pub(crate) past_answers: PastAnswers,
}

impl ModelConfig {
    /// The operator's choices about how this model's calls are handled.
    pub fn policy(&self) -> ModelPolicy {
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
    pub fn is_loaded_as(&self, other: &Self) -> bool {
        let Self { setting: _, name, path, reply, threads, kv_bytes, max_positions, arithmetic, .. } = self;
        (name, path, threads, kv_bytes) == (&other.name, &other.path, &other.threads, &other.kv_bytes)
            && (reply, max_positions, arithmetic) == (&other.reply, &other.max_positions, &other.arithmetic)
    }
}

/// Settings that all engines share.
pub struct EngineSettings {
    /// Compute threads. `None` for the processors.
    pub threads: Option<usize>,
    /// The instruction set, if set.
    pub isa: Option<String>,
    /// The size of each KV pool in bytes, if set.
    pub kv_bytes: Option<u64>,
    /// The maximum context in positions, if set.
    pub max_positions: Option<usize>,
    /// Maximum number of answers to one prompt.
    pub max_choices: u32,
    /// Device, compute mode and types.
    pub arithmetic: ArithmeticConfig,
    /// Threads of the runtime for connections and calls, if set.
    pub runtime_threads: Option<usize>,
}

/// Bounds on stored traces.
pub struct TraceSettings {
    /// How long and how many traces are stored.
    pub retention: TraceRetention,
    /// Maximum number of records that wait to be stored.
    pub queue_records: usize,
    /// Number of records in memory.
    pub recent_records: usize,
    /// Maximum number of records per second of calls without a valid key.
    pub strangers_per_second: u32,
}

/// The setup of an empty data directory.
pub struct FirstStart {
    /// The credit of the first organisation.
    pub credit: NanoDollars,
    /// The file of the first key, if it is chosen.
    pub key_file: Option<PathBuf>,
}

/// Every fault of a configuration.
#[derive(Debug)]
pub struct ConfigError(
    /// The faults, in the order in which they were found.
    pub Vec<SettingProblem>,
);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        writeln!(f, "the configuration has {count} fault{}:", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| writeln!(f, "  {problem}"))?;
        match self.0.iter().all(|problem| problem.way_out.is_some()) {
            true => f.write_str(
                "`headrace models inspect PATH` and `headrace doctor PATH` examine the files of a model",
            ),
            false => f.write_str("`headrace config check` shows every value and where it comes from"),
        }
    }
}

impl std::error::Error for ConfigError {}
