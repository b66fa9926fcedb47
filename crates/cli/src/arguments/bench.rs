//! Arguments of `headrace bench`. Must not know how a server is measured.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headrace_bench::{AgentRole, Api, PauseLength, Slo, TokenLength, Warmup, parse_duration};
use headrace_trace::RecordName;
use secrecy::SecretString;
use serde_json::{Map, Value};

const EXAMPLES: &str = "\
Examples:
  headrace bench                       one user for 30 s, prompts of 128 tokens, answers of 64

  # 16 users, each with one call at a time
  headrace bench --users 16 --requests 200 --warmup 16 --ignore-eos
  # 5 calls/s arrive independently of the answers: how many are good?
  headrace bench --rate 5 --duration 2m --warmup 10s --slo ttft=500ms,itl=50ms,e2e=5s
  # the same rate, 16 at a time
  headrace bench --rate 5 --burst 16
  # nine prompts of ten share a system prompt
  headrace bench --users 16 --prompt-tokens 512 --shared-prefix-tokens 448 --shared-prefix-share 0.9
  # conversations that contain the earlier answers; agents that append tool results
  headrace bench --users 4 --turns 6 --think exp:2s
  headrace bench --users 4 --agent-hops 8 --turn-tokens lognormal:300,0.8
  # the same calls again, twice as fast
  headrace bench --rate 5 --record day.jsonl
  headrace bench --replay day.jsonl --replay-speed 2
  # recorded requests of a server's projects
  headrace bench --dataset refunds --replay-speed 10
  # also for vLLM, llama-server and others
  headrace bench --url http://127.0.0.1:8000 --api completions --json out.json

LENGTH is N, uniform:LOW..HIGH, normal:MEAN,DEVIATION, lognormal:MEDIAN,SIGMA or exp:MEAN. PAUSE has the same formats, such as exp:2s.

--users simulates users that wait for an answer before the next call. --rate simulates independent callers: they continue \
to arrive when the server stalls, so latencies count from the time at which a call was due, not from the time it was sent.

Exit codes: 0 measured, 1 not measured or no call was answered, 2 wrong usage, 130 interrupted by Ctrl-C (the report covers \
the calls until then).";

/// Measure any server with OpenAI's chat completions or completions API under load.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Server to measure
    #[arg(
        long,
        value_name = "URL",
        env = "HEADRACE_BASE_URL",
        default_value = "http://127.0.0.1:8080",
        help_heading = "Server"
    )]
    pub(crate) url: String,
    /// API key. Prefer the variable: other users of this machine can see command lines
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret, help_heading = "Server")]
    pub(crate) key: Option<SecretString>,
    /// Certificate authority (PEM) or self-signed certificate to trust instead of this machine's authorities
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) ca: Option<PathBuf>,
    /// Model to ask [default: the first one that the server lists]
    #[arg(long, value_name = "NAME", env = "HEADRACE_MODEL", help_heading = "Server")]
    pub(crate) model: Option<String>,
    /// Endpoint: chat (/v1/chat/completions) or completions (/v1/completions)
    #[arg(long, value_name = "API", default_value = "chat", value_parser = api, help_heading = "Server")]
    pub(crate) api: Api,
    /// Request whole answers instead of streams. Only end-to-end times are measured
    #[arg(long, help_heading = "Server")]
    pub(crate) no_stream: bool,
    /// Temperature, 0 to 2; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0, help_heading = "Server")]
    pub(crate) temperature: f32,
    /// Send `ignore_eos`, so that answers have their planned length (Headrace, vLLM, llama-server)
    #[arg(long, help_heading = "Server")]
    pub(crate) ignore_eos: bool,
    /// Additional fields for each call, as JSON: '{"top_k":1}'. A field set to null is left out
    #[arg(long, value_name = "JSON", value_parser = object, help_heading = "Server")]
    pub(crate) body: Option<Map<String, Value>>,

    /// Closed loop: number of users. Each user sends the next call when the last call has ended [default: 1]
    #[arg(long, value_name = "N", group = "load", help_heading = "Load")]
    pub(crate) users: Option<u32>,
    /// Pause of a user between calls, such as 2s or exp:2s
    #[arg(long, value_name = "PAUSE", conflicts_with_all = ["rate", "replay", "dataset"], help_heading = "Load")]
    pub(crate) think: Option<PauseLength>,
    /// Open loop: arrivals of calls per second, as a Poisson process. With --turns or --agent-hops: arrivals of conversations
    #[arg(long, value_name = "R", group = "load", help_heading = "Load")]
    pub(crate) rate: Option<f64>,
    /// Arrivals come in groups of N, with the same overall rate
    #[arg(long, value_name = "N", requires = "rate", conflicts_with = "burstiness", help_heading = "Load")]
    pub(crate) burst: Option<u32>,
    /// Shape of the gamma distribution of the gaps between arrivals: 1 is Poisson, 0.25 clusters, 100 is even
    #[arg(long, value_name = "SHAPE", requires = "rate", help_heading = "Load")]
    pub(crate) burstiness: Option<f64>,
    /// Open loop: replay the calls of a trace. One JSON object per line: at_ms, prompt_tokens, output_tokens; optional:
    /// session, messages, prefix_group with prefix_tokens, hash_ids
    #[arg(long, value_name = "FILE", groups = ["load", "recorded"], help_heading = "Load")]
    pub(crate) replay: Option<PathBuf>,
    /// Open loop: replay the requests of a dataset (headrace datasets), at the times of the recorded calls
    #[arg(long, value_name = "NAME", groups = ["load", "recorded"], help_heading = "Load")]
    pub(crate) dataset: Option<RecordName>,
    /// Data directory of the server that has the dataset [default: ./headrace-data]
    #[arg(long, value_name = "DIR", requires = "dataset", help_heading = "Load")]
    pub(crate) data_dir: Option<String>,
    /// Speed of the replay, relative to the recording
    #[arg(long, value_name = "X", requires = "recorded", default_value_t = 1.0, help_heading = "Load")]
    pub(crate) replay_speed: f64,
    /// Total number of measured calls
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub(crate) requests: Option<u64>,
    /// Measured time. Calls in flight at the end may finish [default: 30s, unless --requests or --replay ends the run]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Load")]
    pub(crate) duration: Option<Duration>,
    /// Warm-up without measurement: a number of calls (16) or a time (5s)
    #[arg(long, value_name = "N|TIME", default_value = "0", value_parser = warmup, help_heading = "Load")]
    pub(crate) warmup: Warmup,
    /// Maximum calls in flight. Further calls wait, and their wait counts
    #[arg(long, value_name = "N", default_value_t = headrace_bench::DEFAULT_MAX_IN_FLIGHT, help_heading = "Load")]
    pub(crate) max_in_flight: usize,
    /// Time after which a call counts as failed
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, help_heading = "Load")]
    pub(crate) timeout: Duration,

    /// Prompt tokens as the server counts them, with template and shared prefix
    #[arg(long, value_name = "LENGTH", default_value = "128", help_heading = "Calls")]
    pub(crate) prompt_tokens: TokenLength,
    /// Maximum tokens of an answer
    #[arg(long, value_name = "LENGTH", default_value = "64", help_heading = "Calls")]
    pub(crate) output_tokens: TokenLength,
    /// Length of the prefix that prompts share, in tokens
    #[arg(long, value_name = "N", help_heading = "Calls")]
    pub(crate) shared_prefix_tokens: Option<u32>,
    /// Number of different shared prefixes
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "shared_prefix_tokens",
        help_heading = "Calls"
    )]
    pub(crate) shared_prefix_groups: u32,
    /// Share of the prompts that begin with a shared prefix, 0 to 1
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 1.0,
        requires = "shared_prefix_tokens",
        help_heading = "Calls"
    )]
    pub(crate) shared_prefix_share: f64,
    /// Conversations: calls per conversation. Each prompt contains the earlier answers
    #[arg(long, value_name = "K", group = "conversation", help_heading = "Calls")]
    pub(crate) turns: Option<u32>,
    /// Agent loops: calls after the first one. Each call adds a tool result, without a pause
    #[arg(long, value_name = "K", group = "conversation", help_heading = "Calls")]
    pub(crate) agent_hops: Option<u32>,
    /// Role of tool results: `user` (any template) or `tool` (with tool calls)
    #[arg(long, value_name = "ROLE", default_value = "user", requires = "agent_hops", value_parser = role, help_heading = "Calls")]
    pub(crate) agent_role: AgentRole,
    /// Tokens that each further turn or tool result adds
    #[arg(
        long,
        value_name = "LENGTH",
        default_value = "64",
        requires = "conversation",
        help_heading = "Calls"
    )]
    pub(crate) turn_tokens: TokenLength,
    /// Tokens per word, instead of a measurement with two short calls
    #[arg(long, value_name = "X", help_heading = "Calls")]
    pub(crate) tokens_per_word: Option<f64>,
    /// Seed of the plan (arrivals, lengths)
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Calls")]
    pub(crate) seed: u64,
    /// Seed of the words in prompts [default: random, so that the server's cache does not hold the prompts of an earlier run]
    #[arg(long, value_name = "N", help_heading = "Calls")]
    pub(crate) text_seed: Option<u64>,

    /// Bounds of a good call: ttft and e2e (from the due time), itl (mean of a call), gap (the longest of a call): ttft=500ms,itl=50ms
    #[arg(long, value_name = "BOUNDS", help_heading = "Result")]
    pub(crate) slo: Option<Slo>,
    /// Write all figures, parameters and the per-second series. With `-`, JSON goes to standard output and the table to standard error
    #[arg(long, value_name = "FILE|-", help_heading = "Result")]
    pub(crate) json: Option<PathBuf>,
    /// Write the calls as a trace, for --replay
    #[arg(long, value_name = "FILE", help_heading = "Result")]
    pub(crate) record: Option<PathBuf>,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.trim().into())
}

fn api(text: &str) -> Result<Api, String> {
    match text {
        "chat" => Ok(Api::Chat),
        "completions" => Ok(Api::Completions),
        _ => Err("it must be chat or completions".to_owned()),
    }
}

fn role(text: &str) -> Result<AgentRole, String> {
    match text {
        "user" => Ok(AgentRole::User),
        "tool" => Ok(AgentRole::Tool),
        _ => Err("it must be user or tool".to_owned()),
    }
}

fn warmup(text: &str) -> Result<Warmup, String> {
    match text.trim().parse() {
        Ok(calls) => Ok(Warmup::Calls(calls)),
        Err(_) => parse_duration(text)
            .map(Warmup::Time)
            .map_err(|_| "it must be a number of calls, such as 16, or a time, such as 5s".to_owned()),
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("it must be an object, such as {\"top_k\":1}".to_owned()),
        Err(error) => Err(format!("it is no JSON: {error}")),
    }
}
