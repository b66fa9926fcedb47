//! The command line as types. Values of settings stay text here, because the configuration checks them with all others.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use headrace_chat::arguments::ChatArgs;
use headrace_domain::{NanoDollars, OrgId};
use headrace_kernels::{Isa, KERNEL_VERSION};

pub(crate) mod accounts;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod batches;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod contents;
pub(crate) mod inspection;
pub(crate) mod invoices;

mod errors;
mod groups;
pub(crate) mod margin;

mod named_call;
pub(crate) mod names;

pub(crate) mod budgets;
pub(crate) mod lots;
pub(crate) mod operators;
pub(crate) mod tiers;

pub(crate) mod ping;
pub(crate) mod places;
pub(crate) mod receipts;
pub(crate) mod refund;
pub(crate) mod requests;
pub(crate) mod secrets;
pub(crate) mod times;
pub(crate) mod transfer;

mod shared;
pub(crate) mod shells;
pub(crate) mod upstreams;
pub(crate) mod usage;
pub(crate) mod webhooks;

pub(crate) use errors::ErrorsArgs;
pub(crate) use named_call::{NamedCall, call_id};
pub(crate) use shared::ServerArgs;

/// LLM gateway and engine in one program.
///
/// One process handles the whole path of a call: keys, limits, prices, prompt, engine, bill and trace.
#[derive(Debug, Parser)]
#[command(name = "headrace", version, long_version = VERSION.as_str(), propagate_version = true)]
pub(crate) struct ProgramArgs {
    /// The command.
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
    /// Tiers: limits and entitlements for organisations and keys
    Tiers(tiers::TiersArgs),
    /// Users of organisations: create, deactivate, give a role
    Users(accounts::UsersArgs),
    /// Service accounts: programs that own keys of a project
    ServiceAccounts(accounts::ServiceAccountsArgs),
    /// Groups of users, and the roles and tiers they give
    Groups(accounts::GroupsArgs),
    /// Credentials of identity providers that keep users by SCIM
    Scim(accounts::ScimArgs),
    /// Operators: the people who administer the server over HTTP
    Operators(operators::OperatorsArgs),
    /// Organisations: the accounts that pay
    Orgs(places::OrgsArgs),
    /// Projects: budgets are set per project
    Projects(places::ProjectsArgs),
    /// Prepaid balances
    Credit(CreditArgs),
    /// Money that ends, is for some models, or is paid later
    Lots(lots::LotsArgs),
    /// Free use by hour, day, week or month
    FreeTiers(lots::FreeTiersArgs),
    /// Give back the charge of a call, or a part of it
    Refund(refund::RefundArgs),
    /// Budgets of projects
    Budget(budgets::BudgetArgs),
    /// Budgets by hour, day, week and month, with alerts
    Budgets(budgets::BudgetsArgs),
    /// Invoices by month: draft, final, list, export
    Invoices(invoices::InvoicesArgs),
    /// Endpoints that receive alerts: list, test
    Webhooks(webhooks::WebhooksArgs),
    /// The ledger: check it, open missing accounts, set its clock
    Ledger(LedgerArgs),
    /// Show where the time and the money of a call went
    Trace(TraceArgs),
    /// Explain an error code: its meaning, cause and remedy
    Errors(ErrorsArgs),
    /// Signed receipts of calls: make, verify, rotate the key
    Receipt(receipts::ReceiptArgs),
    /// Find calls by time, caller, model, outcome, cost or text
    ///
    /// Other filters: stage, duration and refusal text.
    Requests(Box<requests::RequestsArgs>),
    /// Datasets of recorded requests and answers
    Datasets(contents::DatasetsArgs),
    /// Remove everything that names a user, from all stores
    Forget(contents::ForgetArgs),
    /// Calls, tokens and charges by project, key or model, over time
    ///
    /// Other groups: organisation, upstream and user. Charges are the ledger's.
    Usage(Box<usage::UsageArgs>),
    /// The charges of a project in one month
    Statement(usage::StatementArgs),
    /// Prefix cache hit rates of prompts, and reasons for misses
    ///
    /// The report also shows the position at which prompts differ.
    Cache(cache::CacheArgs),
    /// Revenue of calls and charges of upstreams
    Margin(margin::MarginArgs),
    /// Show whether the server is ready, and the models it serves
    Status(ServerArgs),
    /// Show the current activity of a running server
    ///
    /// Calls by stage, figures of the last minute, and slow, refused or failing calls.
    Now(ServerArgs),
    /// Apply a changed configuration without dropping a call
    ///
    /// The server applies either all of the configuration or nothing.
    Reload(ServerArgs),
    /// Upstream servers: state, drain, resume
    ///
    /// `probe` queries one upstream immediately.
    Upstreams(upstreams::UpstreamsArgs),
    /// Routes: names that are served by several models, and canaries
    ///
    /// `--resume` restarts stopped canaries.
    Routes(names::RoutesArgs),
    /// Compare shadow models with the originals
    Shadow(names::ShadowArgs),
    /// Copy the data directory, even while a server uses the directory
    Backup(backup::BackupArgs),
    /// Move keys and ledger of a stopped server to a database, or back
    ///
    /// The place may also be another directory.
    Move(transfer::MoveArgs),
    /// Change the key that encrypts the stored secrets
    Secrets(secrets::SecretsArgs),
    /// The audit log: administrative changes and their authors
    Audit(audit::AuditArgs),
    /// Talk to a model in the terminal
    ///
    /// Without a prompt, the command reads one question per line from the terminal or a pipe. In a terminal, lines can be edited and
    /// completed, and earlier lines are remembered. The answer goes to standard output, everything else to standard error. Ctrl-C
    /// cancels an answer. At the prompt, Ctrl-C clears the line; a second Ctrl-C, or Ctrl-D, leaves.
    Chat(ChatArgs),
    /// Measure the network to a server: DNS, TCP, TLS, HTTP
    ///
    /// The report also shows the minimum that the speed of light sets, and the network's share of a call.
    Ping(ping::PingArgs),
    /// Files of requests: submit them, wait, fetch the results
    Batches(batches::BatchesArgs),
    /// Measure any server with OpenAI's API under load
    Bench(Box<bench::BenchArgs>),
    /// Checkpoints on this machine: list, inspect, make, compare
    Models(ModelsArgs),
    /// Show the exact tokens of a call, with their origin and cost
    ///
    /// The output also shows the end of the cached prefix.
    Render(inspection::RenderArgs),
    /// Show the tokens of a text: ids, pieces and positions
    Tokenize(inspection::TokenizeArgs),
    /// Check whether a model's tokenizer, template and settings agree
    ///
    /// Each finding has its evidence and its remedy.
    Doctor(inspection::DoctorArgs),
    /// Print shell completions
    Completions(shells::CompletionsArgs),
    /// Write manual pages, one per command
    Man(shells::ManArgs),
}

/// Settings with flags of their own.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingFlags {
    /// Data directory: keys, ledger, traces and secrets [default: ./headrace-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<String>,
    /// Place of keys and ledger: `sqlite:` (the data directory), or a PostgreSQL database that several servers share. Give a
    /// password in HEADRACE_STORAGE__URL instead, because other users of this machine see arguments
    #[arg(long, value_name = "URL")]
    pub(crate) storage: Option<String>,
    /// Address of the API listener; port 0 selects a free port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Address of the /metrics listener [default: no listener]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics_listen: Option<String>,
    /// Address of the admin listener, or `off` [default: 127.0.0.1:8081 with `up`, off with `serve`]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) admin_listen: Option<String>,
    /// Certificate chain (PEM), for TLS 1.3
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<String>,
    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<String>,
    /// Model to serve instead of the demo model; may be given several times. A Hugging Face directory, a GGUF file, or the name of
    /// a checkpoint that Hugging Face's tools, Ollama, LM Studio or llama.cpp stored on this machine (headrace models list). Or a
    /// name for models of upstreams, such as best=gpu1/qwen,gpu2/qwen (with a tokenizer @PATH: by token ids)
    #[arg(long, value_name = "PATH|NAME=PATH|NAME=UPSTREAM/MODEL,…[@PATH]")]
    pub(crate) model: Vec<String>,
    /// Upstream server; may be given several times. Each model that the server lists is served as NAME/MODEL. KIND: openai,
    /// anthropic, vllm, sglang, llamacpp or headrace. The server's key: HEADRACE_UPSTREAM_<NAME>_KEY
    #[arg(long, value_name = "NAME=KIND:URL")]
    pub(crate) upstream: Vec<String>,
    /// Accept token-id jobs from other Headrace servers that have the secret in this file (32 or more characters)
    #[arg(long, value_name = "FILE")]
    pub(crate) worker_secret_file: Option<String>,
    /// Compute threads [default: the processors that the process may use]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<String>,
    /// Compute device: cpu, or cuda if the program was built with CUDA [default: cpu]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// Quantize f32, f16 and bf16 weights at load: q8_0, q4_k, … [default: none]
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<String>,
    /// Compute mode: exact, fast, or auto (fast if weights are quantized) [default: auto]
    #[arg(long, value_name = "MODE")]
    pub(crate) compute: Option<String>,
    /// Type of cached keys and values: f32, f16, bf16, q8 [default: by compute mode]
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<String>,
    /// Set any other setting, such as --set server.drain=5s; may be given several times
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
    /// Configuration file (TOML)
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
    /// Show every fault, every changed setting with its origin, and the models to be served
    Check {
        /// Configuration file (TOML)
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Also show settings that have their default values
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        flags: Box<SettingFlags>,
    },
    /// Print the reference of all settings (Markdown)
    Reference,
    /// Print how the server treats each request parameter (Markdown)
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
        /// Organisation that receives the money
        #[arg(long, default_value = "default")]
        org: OrgId,
        /// The credit is a gift, not a payment
        #[arg(long)]
        promotional: bool,
        /// Reference, such as an invoice or a ticket. The same grant with the same reference is made only once
        #[arg(long, default_value = "")]
        reference: String,
    },
    /// Take back money that was granted by mistake
    #[command(after_help = "Example:\n  headrace credit correct 5 --reason \"granted twice, invoice 17\"")]
    Correct {
        /// Dollars to take back, such as 5 or -5
        #[arg(value_parser = NanoDollars::from_dollars, allow_hyphen_values = true)]
        amount: NanoDollars,
        /// Organisation that received the money
        #[arg(long, default_value = "default")]
        org: OrgId,
        /// The credit was a gift, not a payment
        #[arg(long)]
        promotional: bool,
        /// Reason. The same correction with the same reason is made only once
        #[arg(long)]
        reason: String,
    },
    /// List grants and corrections, newest first
    List {
        /// Only this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Show balances and budgets
    Show {
        /// Only this organisation
        #[arg(long)]
        org: Option<OrgId>,
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
    /// Check every invariant and print totals, with the server running or stopped
    Verify,
    /// After the loss of a ledger: open an account with a balance of zero for every project without an account
    OpenAccounts,
    /// Set the ledger's time back to this machine's time, after a start with a clock that was ahead
    ///
    /// Until then monthly budgets do not turn over. Money spent in the meantime counts in this month.
    SetClock,
}

#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  headrace trace req_0192...             one call's waterfall\n  headrace trace --last                  the last call's waterfall\n  headrace trace --last 20               a list of the last 20\n  headrace trace --slowest               the slowest calls of the last day\n  headrace trace --slowest --explain     why the slowest call was slow, and what would have helped\n  headrace trace --last --explain --try fewer-tokens   test one of the suggestions\n  headrace trace --last --why-cost       why the last call cost what it did\n  headrace trace diff req_0192... req_0192...   why one call took longer than the other"
)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Call id: req_... from the x-request-id header, the id of the answer (also an upstream's), or the W3C trace id
    #[arg(conflicts_with_all = ["last", "slowest"], required_unless_present_any = ["last", "slowest"])]
    #[arg(value_parser = call_id)]
    pub(crate) id: Option<NamedCall>,
    /// The last call, or a list of the last N
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", conflicts_with = "slowest")]
    pub(crate) last: Option<usize>,
    /// The slowest N calls of the last 24 hours
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10")]
    pub(crate) slowest: Option<usize>,
    /// Explain in words where the time of one call went, what is usual, and what would have helped
    #[arg(long)]
    pub(crate) explain: bool,
    /// Explain in words where the money of one call went: tokens, prices, hold, discounts, loss
    #[arg(long, conflicts_with = "explain")]
    pub(crate) why_cost: bool,
    /// Run a call of the same shape on a local engine, with and without a lever, and compare the result with the prediction
    #[arg(long = "try", value_name = "LEVER", requires = "explain")]
    #[arg(value_parser = lever)]
    pub(crate) lever: Option<headrace_explain::LeverName>,
    #[command(subcommand)]
    pub(crate) command: Option<TraceCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Compare two calls: why one is slower than the other
    Diff {
        /// Id of the first call
        #[arg(value_parser = call_id)]
        first: NamedCall,
        /// Id of the second call
        #[arg(value_parser = call_id)]
        second: NamedCall,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    pub(crate) command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the models that the server serves, and checkpoints that other programs stored on this machine (Hugging Face, Ollama, LM Studio, llama.cpp)
    List(ServerArgs),
    /// List the architectures that the embedded engine computes, as a page in Markdown
    Families,
    /// Show the content of a directory or GGUF file, its memory and the context that fits, or why Headrace refuses the file
    #[command(after_help = "Example:\n  headrace models inspect ~/models/Qwen3-0.6B-Q8_0.gguf")]
    Inspect(InspectArgs),
    /// Make a checkpoint with a real shape and random weights, for measurements
    #[command(
        after_help = "Examples:\n  headrace models make --shape 0.39b --type q8_0 /tmp/0.39b-q8_0.gguf\n  headrace models make --config Qwen3-0.6B/config.json --format safetensors --type bf16 /tmp/qwen3"
    )]
    Make(MakeArgs),
    /// Measure the perplexity of a model on a text for each compute mode and KV type, compared with exact f32
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
    /// Text file (UTF-8); spelt-out control tokens in the text count as control tokens
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens per window; the first token of a window is not predicted [default: 512, or the model's maximum if smaller]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<usize>,
    /// Stop after this many tokens of the text
    #[arg(long, value_name = "TOKENS")]
    pub(crate) limit: Option<usize>,
    /// Compute modes to measure
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', default_value = "exact,fast")]
    pub(crate) compute: Vec<String>,
    /// KV types to measure
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',', default_value = "f32,f16,bf16,q8")]
    pub(crate) kv_type: Vec<String>,
    /// Quantize dense weights at load, for every row of the table
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
    /// A Hugging Face directory or a GGUF file, or the name of a checkpoint that another program stored on this machine
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Show the model as served with this --quantize
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MakeArgs {
    /// Named shape: 1.04b, 0.39b or tiny [default: tiny]
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub(crate) shape: Option<String>,
    /// Take the shape from a Hugging Face config.json
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Output format: a GGUF file, or a directory with a safetensors file
    #[arg(long, default_value = "gguf", value_parser = ["gguf", "safetensors"])]
    pub(crate) format: String,
    /// Type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, iq4_nl or mxfp4
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    pub(crate) r#type: String,
    /// Type of the embedding and of the output projection [default: the type of the matrices]
    #[arg(long, value_name = "TYPE")]
    pub(crate) embedding_type: Option<String>,
    /// Seed. The same seed gives the same weights in every format and on every machine
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// File or directory to write
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
