//! The command line as types. Values of settings stay text here, because the configuration checks them with all others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use headrace_domain::{NanoDollars, OrgId, ProjectId};
use headrace_kernels::{Isa, KERNEL_VERSION};

pub(crate) mod backup;
pub(crate) mod batches;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod caller;
pub(crate) mod lens;

pub(crate) mod chat;
mod groups;
pub(crate) mod margin;

pub(crate) mod names;

pub(crate) mod operators;

pub(crate) mod ping;
pub(crate) mod places;
pub(crate) mod requests;

mod shared;
pub(crate) mod shells;
pub(crate) mod upstreams;
pub(crate) mod usage;

pub(crate) use shared::ServerArgs;

/// LLM gateway and engine in one program.
///
/// The whole path of a call is in it: keys, limits, prices, prompt, engine, bill and trace.
#[derive(Debug, Parser)]
#[command(name = "headrace", version, long_version = VERSION.as_str(), propagate_version = true)]
pub(crate) struct ProgramArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: ProgramCommand,
}

/// The output of `--version` after the name: the facts that a bug report or a benchmark figure needs.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let sets: Vec<_> = Isa::supported().iter().map(|isa| isa.name()).collect();
    format!("{}\ninstruction sets: {}\nkernels: {KERNEL_VERSION}", env!("CARGO_PKG_VERSION"), sets.join(", "))
});

impl ProgramArgs {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// The exit code, if the command line is wrong or asks for help. The message or the help is already printed.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        let command = groups::without_empty_variables(groups::grouped(Self::command()));
        let read = command.try_get_matches().and_then(|matches| Self::from_arg_matches(&matches));
        read.map_err(|error| groups::answer(&error))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProgramCommand {
    /// Start a working LLM API: engine, data and key in one directory
    Up(UpArgs),
    /// Start a server from a configuration file
    Serve(ServeArgs),
    /// Check a configuration, or print the reference of all settings
    Config(ConfigArgs),
    /// API keys
    Keys(places::KeysArgs),
    /// Operators: the people who administer the server over HTTP
    Operators(operators::OperatorsArgs),
    /// Organisations: the accounts that pay
    Orgs(places::OrgsArgs),
    /// Projects: what budgets are set for
    Projects(places::ProjectsArgs),
    /// Prepaid balances
    Credit(CreditArgs),
    /// Budgets of projects
    Budget(BudgetArgs),
    /// The ledger: check it
    Ledger(LedgerArgs),
    /// Where the time and the money of a call went
    Trace(TraceArgs),
    /// What an error's code means, and what to do about it
    Errors(ErrorsArgs),
    /// Find calls by time, caller, model, outcome, cost or text
    ///
    /// Also by stage, by the time taken, and by the text of a refusal.
    Requests(Box<requests::RequestsArgs>),
    /// Calls, tokens and money by project, key or model, over time
    ///
    /// Also by organisation and upstream. The money is what the ledger charged.
    Usage(Box<usage::UsageArgs>),
    /// What a project was charged for in a month
    Statement(usage::StatementArgs),
    /// How much of the prompts came from prefix caches, and why
    ///
    /// It also shows where prompts part.
    Cache(cache::CacheArgs),
    /// What calls brought, and what upstreams charged for them
    Margin(margin::MarginArgs),
    /// Whether the server is ready, and what it serves
    Status(ServerArgs),
    /// What a running server is doing at this moment
    ///
    /// Calls by stage, the last minute in figures, and what is slow, refused or failing.
    Now(ServerArgs),
    /// Put a changed configuration in force, without dropping a call
    ///
    /// All of it is put in force, or nothing.
    Reload(ServerArgs),
    /// The servers that calls are sent on to: state, drain, resume
    ///
    /// `probe` asks one of them at once.
    Upstreams(upstreams::UpstreamsArgs),
    /// Names that lead to several models, and canaries
    ///
    /// `--resume` puts canaries on trial again that were taken out.
    Routes(names::RoutesArgs),
    /// How models that get copies of calls compare with the others
    Shadow(names::ShadowArgs),
    /// Copy the data directory, also while a server runs on it
    Backup(backup::BackupArgs),
    /// Who changed what
    Audit(AuditArgs),
    /// Talk to a model in the terminal
    Chat(chat::ChatArgs),
    /// How long the network to a server takes: DNS, TCP, TLS, HTTP
    ///
    /// It also shows the floor that light sets, and how much of a call was network.
    Ping(ping::PingArgs),
    /// Files of requests: submit them, wait, fetch the results
    Batches(batches::BatchesArgs),
    /// Measure a server under load, any that speaks OpenAI's API
    Bench(Box<bench::BenchArgs>),
    /// Checkpoints on this machine: list, inspect, make, compare
    Models(ModelsArgs),
    /// Exactly what a model sees of a call: tokens, owners, cost
    ///
    /// It also shows where a prefix cache ends.
    Render(lens::RenderArgs),
    /// The tokens of a text: ids, pieces and places
    Tokenize(lens::TokenizeArgs),
    /// Whether a model's tokenizer, template and settings agree
    ///
    /// It says what is wrong, what shows it, and the way out.
    Doctor(lens::DoctorArgs),
    /// Print the completions of a shell
    Completions(shells::CompletionsArgs),
    /// Write manual pages, one for each command
    Man(shells::ManArgs),
}

/// Settings with flags of their own.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingFlags {
    /// Keys, ledger, traces and secrets [default: ./headrace-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<String>,
    /// Where the API listens; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Where /metrics is served [default: nowhere]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics_listen: Option<String>,
    /// Where operators are listened to, or `off` [default: 127.0.0.1:8081 with `up`, nowhere with `serve`]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) admin_listen: Option<String>,
    /// Certificate chain (PEM), for TLS 1.3
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<String>,
    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<String>,
    /// A Hugging Face directory or GGUF file to serve instead of the demo model, or the name of one that Hugging Face's tools, Ollama,
    /// LM Studio or llama.cpp have stored on this machine (headrace models list), or a name for models of upstreams, such as
    /// best=gpu1/qwen,gpu2/qwen (by token ids, with the tokenizer @PATH); may be given several times
    #[arg(long, value_name = "PATH|NAME=PATH|NAME=UPSTREAM/MODEL,…[@PATH]")]
    pub(crate) model: Vec<String>,
    /// A server to send calls on to, with every model that it lists as NAME/MODEL: openai, anthropic, vllm, sglang, llamacpp or
    /// headrace. Its key: HEADRACE_UPSTREAM_<NAME>_KEY. May be given several times
    #[arg(long, value_name = "NAME=KIND:URL")]
    pub(crate) upstream: Vec<String>,
    /// Takes jobs of token ids from other Headraces that have what stands in this file (32 or more characters)
    #[arg(long, value_name = "FILE")]
    pub(crate) worker_secret_file: Option<String>,
    /// Threads that compute [default: the processors that may be used]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<String>,
    /// What computes models: cpu, or cuda where the program was built with it [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Quantize f32, f16 and bf16 weights at load: q8_0, q4_k, … [default: none]
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<String>,
    /// exact, fast, or auto: fast where weights are quantized [default: auto]
    #[arg(long, value_name = "MODE")]
    pub(crate) compute: Option<String>,
    /// How keys and values are held: f32, f16, bf16, q8 [default: by compute mode]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<String>,
    /// Any other setting, such as --set server.drain=5s
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) flags: SettingFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The configuration (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) flags: SettingFlags,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every fault, what was set and where, and what will be served
    Check {
        /// The configuration (TOML)
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Show also the settings that have their default values
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        flags: Box<SettingFlags>,
    },
    /// Print the reference of all settings (Markdown)
    Reference,
    /// Print what becomes of each parameter of a call (Markdown)
    Parameters,
}

#[derive(Debug, Args)]
pub(crate) struct CreditArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: CreditCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CreditCommand {
    /// Add money to an organisation's balance
    Grant {
        /// Dollars, such as 25 or 0.50
        #[arg(value_parser = NanoDollars::from_dollars, allow_hyphen_values = true)]
        amount: NanoDollars,
        /// Who receives it
        #[arg(long, default_value = "default")]
        org: OrgId,
        /// It is a gift, not a payment
        #[arg(long)]
        promotional: bool,
        /// What to find it by: an invoice, a ticket. Used once: a second grant with it is the first one again
        #[arg(long, default_value = "")]
        reference: String,
    },
    /// Take back money that was granted by mistake
    #[command(after_help = "Example:\n  headrace credit correct 5 --reason \"granted twice, invoice 17\"")]
    Correct {
        /// Dollars to take back, such as 5 or -5
        #[arg(value_parser = NanoDollars::from_dollars, allow_hyphen_values = true)]
        amount: NanoDollars,
        /// Whose it was
        #[arg(long, default_value = "default")]
        org: OrgId,
        /// It had been a gift, not a payment
        #[arg(long)]
        promotional: bool,
        /// Why. Used once: the same reason again is the same correction
        #[arg(long)]
        reason: String,
    },
    /// List grants and corrections, newest first
    List {
        /// Only of this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Show balances and budgets
    Show {
        /// Only of this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BudgetArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: BudgetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BudgetCommand {
    /// Set the most that a project may spend
    Set {
        /// Dollars, such as 25 or 0.50; 0 stops the project
        #[arg(value_parser = NanoDollars::from_dollars)]
        amount: NanoDollars,
        /// The project
        #[arg(long, default_value = "default")]
        project: ProjectId,
        /// Over which time: the calendar month (UTC), or for ever
        #[arg(long, default_value = "month", value_parser = ["month", "total"])]
        per: String,
    },
    /// Remove a project's budget
    Clear {
        /// The project
        #[arg(long, default_value = "default")]
        project: ProjectId,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: LedgerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Check every invariant, beside a running or a stopped server, and print totals
    Verify,
    /// Open an account with a balance of zero for every project that has none, after a ledger was lost
    OpenAccounts,
    /// Set the ledger's time back to this machine's, after a start on a clock that was ahead: until then monthly budgets do
    /// not turn over. What was spent meanwhile counts in this month
    SetClock,
}

#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  headrace trace req_0192...             one call's waterfall\n  headrace trace --last                  the last call's waterfall\n  headrace trace --last 20               a list of the last 20\n  headrace trace --slowest               the slowest of the last day\n  headrace trace --slowest --explain     why the slowest was slow, in words, and what would have helped\n  headrace trace --last --explain --try fewer-tokens   and whether it does\n  headrace trace --last --why-cost       what the last call's money was for\n  headrace trace diff req_0192... req_0192...   why one took longer than the other"
)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// The call's id: req_... of the x-request-id header, its answer's id (also an upstream's), or its W3C trace id
    #[arg(conflicts_with_all = ["last", "slowest"], required_unless_present_any = ["last", "slowest"])]
    #[arg(value_parser = call_id)]
    pub(crate) id: Option<NamedCall>,
    /// The last call, or a list of the last N
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", conflicts_with = "slowest")]
    pub(crate) last: Option<usize>,
    /// The slowest N calls of the last 24 hours
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10")]
    pub(crate) slowest: Option<usize>,
    /// Say in words where one call's time went, beside what is usual, and what would have helped
    #[arg(long)]
    pub(crate) explain: bool,
    /// Say in words where one call's money went: tokens, prices, hold, discounts, loss
    #[arg(long, conflicts_with = "explain")]
    pub(crate) why_cost: bool,
    /// Run the call's shape on an engine here, as it was and with a lever, and put what was foretold beside what came of it
    #[arg(long = "try", value_name = "LEVER", requires = "explain")]
    #[arg(value_parser = lever)]
    pub(crate) lever: Option<headrace_explain::LeverName>,
    #[command(subcommand)]
    pub(crate) command: Option<TraceCommand>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace errors                       every code, by stage\n  headrace errors tokens_per_minute     one of them"
)]
pub(crate) struct ErrorsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// The code, as it stands in an error or a trace [default: a list of all]
    #[arg(value_name = "CODE")]
    pub(crate) code: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Put two calls side by side: what makes one slower than the other
    Diff {
        /// The first call's id
        #[arg(value_parser = call_id)]
        first: NamedCall,
        /// The second call's id
        #[arg(value_parser = call_id)]
        second: NamedCall,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) last: u32,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    pub(crate) command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List what the server serves, and what other programs have stored on this machine (Hugging Face, Ollama, LM Studio, llama.cpp)
    List(ServerArgs),
    /// Show what a directory or GGUF file holds, the memory it needs, the context that fits, or why it is refused
    #[command(after_help = "Example:\n  headrace models inspect ~/models/Qwen3-0.6B-Q8_0.gguf")]
    Inspect(InspectArgs),
    /// Make a checkpoint of random weights and a real shape, to measure with
    #[command(
        after_help = "Examples:\n  headrace models make --shape 0.39b --type q8_0 /tmp/0.39b-q8_0.gguf\n  headrace models make --config Qwen3-0.6B/config.json --format safetensors --type bf16 /tmp/qwen3"
    )]
    Make(MakeArgs),
    /// Measure what compute modes and KV types cost a model: its perplexity on a text, beside that of exact f32
    #[command(
        after_help = "Examples:\n  headrace models perplexity --text README.md\n  headrace models perplexity ~/models/Qwen3-0.6B --text book.txt --quantize q8_0 --kv-type f16,q8"
    )]
    Perplexity(PerplexityArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// A Hugging Face directory or a GGUF file [default: the built-in demo model]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// The text, UTF-8; control tokens spelt out in it count as such
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens that are read together; the first of each window is not predicted [default: 512, or what the model takes]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<usize>,
    /// Stop after so many tokens of the text
    #[arg(long, value_name = "TOKENS")]
    pub(crate) limit: Option<usize>,
    /// Compute modes to measure
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_value = "exact,fast")]
    pub(crate) compute: Vec<String>,
    /// KV types to measure
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',', default_value = "f32,f16,bf16,q8")]
    pub(crate) kv_type: Vec<String>,
    /// Quantize dense weights at load, for every row alike
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<String>,
    /// Threads [default: the processors]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct InspectArgs {
    /// A Hugging Face directory or a GGUF file, or the name of one that another program has stored here
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// As if served with this --quantize
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MakeArgs {
    /// A shape that has a name: 1.04b, 0.39b or tiny [default: tiny]
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub(crate) shape: Option<String>,
    /// The shape of a Hugging Face config.json
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What to write: a GGUF file, or a directory with a safetensors file
    #[arg(long, default_value = "gguf", value_parser = ["gguf", "safetensors"])]
    pub(crate) format: String,
    /// Type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, iq4_nl or mxfp4
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    pub(crate) r#type: String,
    /// Type of the embedding and of the output projection [default: as the others]
    #[arg(long, value_name = "TYPE")]
    pub(crate) embedding_type: Option<String>,
    /// The same seed gives the same weights, whatever the format and on every machine
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The file or directory to make
    #[arg(value_name = "OUT")]
    pub(crate) out: PathBuf,
}

fn lever(text: &str) -> Result<headrace_explain::LeverName, String> {
    use headrace_explain::LeverName;
    LeverName::named(text).ok_or_else(|| {
        let names: Vec<&str> =
            LeverName::ALL.into_iter().filter(|lever| lever.can_be_tried()).map(LeverName::name).collect();
        format!("it must be one of {}", names.join(", "))
    })
}

/// A call as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedCall {
    /// The request id in the name, if it has one.
    pub(crate) id: Option<headrace_domain::RequestId>,
    /// The name. It may also be the id that an upstream gave its answer, or a W3C trace id.
    pub(crate) name: String,
}

/// Maximum length of a name, in bytes.
const MAX_CALL_NAME_BYTES: usize = 256;

fn call_id(text: &str) -> Result<NamedCall, String> {
    let text = text.trim();
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
    if text.is_empty() || text.len() > MAX_CALL_NAME_BYTES || !text.chars().all(is_plain) {
        return Err("it must be an id such as req_0192..., the id of an answer such as chatcmpl-0192..., or a W3C trace id"
            .to_owned());
    }
    let name = headrace_wire::named_trace(text).unwrap_or_else(|| text.to_owned());
    Ok(NamedCall { id: headrace_wire::named_request(text), name })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::ProgramArgs::command().debug_assert();
    }

    #[test]
    fn a_call_is_named_by_each_id_that_a_caller_can_hold() {
        let digits = "019aa3b1c2d37e4f8a5b60718293a4b5";
        for own in [format!("req_{digits}"), format!("chatcmpl-{digits}"), format!("msg_{digits}")] {
            assert!(super::call_id(&own).unwrap().id.is_some(), "{own}");
        }
        let upstream = super::call_id("chatcmpl-qf70abcDEF").unwrap();
        assert_eq!((upstream.id, upstream.name.as_str()), (None, "chatcmpl-qf70abcDEF"));
        for trace in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "4BF92F3577B34DA6A3CE929D0E0E4736",
            "4bf92f35-77b3-4da6-a3ce-929d0e0e4736",
        ] {
            let w3c = super::call_id(trace).unwrap();
            assert_eq!(w3c.name, "4bf92f3577b34da6a3ce929d0e0e4736");
            assert!(w3c.id.is_some(), "the trace id of a call is its request id if its caller sent none");
        }
        for bad in ["", " ", "two words", &"x".repeat(257)] {
            assert!(super::call_id(bad).unwrap_err().contains("chatcmpl-"), "{bad}");
        }
    }
}
