//! `headrace bench`: reads flags, and shows the progress and the report. The crate `bench` measures.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headrace_bench::{
    AgentRole, Api, ArrivalSpread, BenchConfig, BenchError, BenchReport, ConversationTurns, LoadShape,
    PauseLength, PlotStyle, RunSnapshot, RunWatcher, SharedPrefix, Slo, StopRule, TokenLength, Warmup,
    parse_duration, read_trace, run as measure, text, write_trace,
};
use headrace_client::ClientError;
use headrace_domain::{Clock, SystemClock};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::ca::read_ca;
use crate::output;

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
    url: String,
    /// API key. Prefer the variable: other users of this machine can see command lines
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret, help_heading = "Server")]
    key: Option<SecretString>,
    /// Certificate authority (PEM) or self-signed certificate to trust instead of this machine's authorities
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    ca: Option<PathBuf>,
    /// Model to ask [default: the first one that the server lists]
    #[arg(long, value_name = "NAME", env = "HEADRACE_MODEL", help_heading = "Server")]
    model: Option<String>,
    /// Endpoint: chat (/v1/chat/completions) or completions (/v1/completions)
    #[arg(long, value_name = "API", default_value = "chat", value_parser = api, help_heading = "Server")]
    api: Api,
    /// Request whole answers instead of streams. Only end-to-end times are measured
    #[arg(long, help_heading = "Server")]
    no_stream: bool,
    /// Temperature, 0 to 2; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0, help_heading = "Server")]
    temperature: f32,
    /// Send `ignore_eos`, so that answers have their planned length (Headrace, vLLM, llama-server)
    #[arg(long, help_heading = "Server")]
    ignore_eos: bool,
    /// Additional fields for each call, as JSON: '{"top_k":1}'. A field set to null is left out
    #[arg(long, value_name = "JSON", value_parser = object, help_heading = "Server")]
    body: Option<Map<String, Value>>,

    /// Closed loop: number of users. Each user sends the next call when the last call has ended [default: 1]
    #[arg(long, value_name = "N", group = "load", help_heading = "Load")]
    users: Option<u32>,
    /// Pause of a user between calls, such as 2s or exp:2s
    #[arg(long, value_name = "PAUSE", conflicts_with_all = ["rate", "replay"], help_heading = "Load")]
    think: Option<PauseLength>,
    /// Open loop: arrivals of calls per second, as a Poisson process. With --turns or --agent-hops: arrivals of conversations
    #[arg(long, value_name = "R", group = "load", help_heading = "Load")]
    rate: Option<f64>,
    /// Arrivals come in groups of N, with the same overall rate
    #[arg(long, value_name = "N", requires = "rate", conflicts_with = "burstiness", help_heading = "Load")]
    burst: Option<u32>,
    /// Shape of the gamma distribution of the gaps between arrivals: 1 is Poisson, 0.25 clusters, 100 is even
    #[arg(long, value_name = "SHAPE", requires = "rate", help_heading = "Load")]
    burstiness: Option<f64>,
    /// Open loop: replay the calls of a trace. One JSON object per line: at_ms, prompt_tokens, output_tokens; optional:
    /// session, messages, prefix_group with prefix_tokens, hash_ids
    #[arg(long, value_name = "FILE", group = "load", help_heading = "Load")]
    replay: Option<PathBuf>,
    /// Speed of the replay, relative to the recording
    #[arg(long, value_name = "X", requires = "replay", default_value_t = 1.0, help_heading = "Load")]
    replay_speed: f64,
    /// Total number of measured calls
    #[arg(long, value_name = "N", help_heading = "Load")]
    requests: Option<u64>,
    /// Measured time. Calls in flight at the end may finish [default: 30s, unless --requests or --replay ends the run]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Load")]
    duration: Option<Duration>,
    /// Warm-up without measurement: a number of calls (16) or a time (5s)
    #[arg(long, value_name = "N|TIME", default_value = "0", value_parser = warmup, help_heading = "Load")]
    warmup: Warmup,
    /// Maximum calls in flight. Further calls wait, and their wait counts
    #[arg(long, value_name = "N", default_value_t = headrace_bench::DEFAULT_MAX_IN_FLIGHT, help_heading = "Load")]
    max_in_flight: usize,
    /// Time after which a call counts as failed
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, help_heading = "Load")]
    timeout: Duration,

    /// Prompt tokens as the server counts them, with template and shared prefix
    #[arg(long, value_name = "LENGTH", default_value = "128", help_heading = "Calls")]
    prompt_tokens: TokenLength,
    /// Maximum tokens of an answer
    #[arg(long, value_name = "LENGTH", default_value = "64", help_heading = "Calls")]
    output_tokens: TokenLength,
    /// Length of the prefix that prompts share, in tokens
    #[arg(long, value_name = "N", help_heading = "Calls")]
    shared_prefix_tokens: Option<u32>,
    /// Number of different shared prefixes
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "shared_prefix_tokens",
        help_heading = "Calls"
    )]
    shared_prefix_groups: u32,
    /// Share of the prompts that begin with a shared prefix, 0 to 1
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 1.0,
        requires = "shared_prefix_tokens",
        help_heading = "Calls"
    )]
    shared_prefix_share: f64,
    /// Conversations: calls per conversation. Each prompt contains the earlier answers
    #[arg(long, value_name = "K", group = "conversation", help_heading = "Calls")]
    turns: Option<u32>,
    /// Agent loops: calls after the first one. Each call adds a tool result, without a pause
    #[arg(long, value_name = "K", group = "conversation", help_heading = "Calls")]
    agent_hops: Option<u32>,
    /// Role of tool results: `user` (any template) or `tool` (with tool calls)
    #[arg(long, value_name = "ROLE", default_value = "user", requires = "agent_hops", value_parser = role, help_heading = "Calls")]
    agent_role: AgentRole,
    /// Tokens that each further turn or tool result adds
    #[arg(
        long,
        value_name = "LENGTH",
        default_value = "64",
        requires = "conversation",
        help_heading = "Calls"
    )]
    turn_tokens: TokenLength,
    /// Tokens per word, instead of a measurement with two short calls
    #[arg(long, value_name = "X", help_heading = "Calls")]
    tokens_per_word: Option<f64>,
    /// Seed of the plan (arrivals, lengths)
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Calls")]
    seed: u64,
    /// Seed of the words in prompts [default: random, so that the server's cache does not hold the prompts of an earlier run]
    #[arg(long, value_name = "N", help_heading = "Calls")]
    text_seed: Option<u64>,

    /// Bounds of a good call: ttft and e2e (from the due time), itl (mean of a call), gap (the longest of a call): ttft=500ms,itl=50ms
    #[arg(long, value_name = "BOUNDS", help_heading = "Result")]
    slo: Option<Slo>,
    /// Write all figures, parameters and the per-second series. With `-`, JSON goes to standard output and the table to standard error
    #[arg(long, value_name = "FILE|-", help_heading = "Result")]
    json: Option<PathBuf>,
    /// Write the calls as a trace, for --replay
    #[arg(long, value_name = "FILE", help_heading = "Result")]
    record: Option<PathBuf>,
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

/// Runs `headrace bench`.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    let (config, sinks) = match config(args).and_then(|config| Ok((config, ReportSinks::open(args)?))) {
        Ok(ready) => ready,
        Err(why) => return output::refuse(&why),
    };
    // One thread, so that the generator takes at most one core from a server on the same machine.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output::fail(&format!("cannot start the runtime: {error}")),
    };
    let measured = runtime.block_on(async {
        let cancel = CancellationToken::new();
        let interrupt = cancel.clone();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                interrupt.cancel();
            }
        });
        let mut progress = BenchProgress::begin();
        let measured = measure(&config, &mut progress, cancel).await;
        progress.bar.finish_and_clear();
        measured
    });
    match measured {
        Ok(report) => sinks.write(&report),
        Err(error) => explain(&error, config.key.is_some()),
    }
}

fn config(args: &BenchArgs) -> Result<BenchConfig, String> {
    let load = match (args.rate, &args.replay) {
        (Some(rate), _) => LoadShape::Open {
            rate,
            arrivals: match (args.burst, args.burstiness) {
                (Some(size), _) => ArrivalSpread::Bursts(size),
                (None, Some(shape)) => ArrivalSpread::Gamma(shape),
                (None, None) => ArrivalSpread::Poisson,
            },
        },
        (None, Some(path)) => {
            let wrong =
                |why: &dyn std::fmt::Display| format!("--replay: cannot read {}: {why}", path.display());
            let file = File::open(path).map_err(|error| wrong(&error))?;
            let calls = read_trace(BufReader::new(file)).map_err(|fault| wrong(&fault))?;
            LoadShape::Replay { calls, speed: args.replay_speed }
        }
        (None, None) => LoadShape::Closed {
            users: args.users.unwrap_or(1),
            think: args.think.unwrap_or(PauseLength::NONE),
        },
    };
    let mut config = BenchConfig::new(&args.url);
    let usual = config.stop.duration.filter(|_| args.requests.is_none() && args.replay.is_none());
    config.stop = StopRule { requests: args.requests, duration: args.duration.or(usual) };
    // An empty variable counts as no key.
    config.key = args.key.clone().filter(|key| !key.expose_secret().is_empty());
    config.ca_pem = args.ca.as_deref().map(read_ca).transpose()?;
    config.model.clone_from(&args.model);
    config.api = args.api;
    config.stream = !args.no_stream;
    config.temperature = args.temperature;
    config.ignore_eos = args.ignore_eos;
    config.body = args.body.clone().unwrap_or_default();
    config.load = load;
    config.warmup = args.warmup;
    config.max_in_flight = args.max_in_flight;
    config.timeout = args.timeout;
    config.shape.prompt = args.prompt_tokens;
    config.shape.output = args.output_tokens;
    config.shape.prefix = args.shared_prefix_tokens.map(|tokens| SharedPrefix {
        tokens,
        groups: args.shared_prefix_groups,
        share: args.shared_prefix_share,
    });
    config.shape.turns = match (args.turns, args.agent_hops) {
        (Some(turns), _) => ConversationTurns::Chat(turns),
        (None, Some(hops)) => ConversationTurns::Agent { hops, role: args.agent_role },
        (None, None) => ConversationTurns::Single,
    };
    config.shape.turn_tokens = args.turn_tokens;
    config.seed = args.seed;
    // Without a random seed the words repeat those of an earlier run. The report names the seed.
    config.text_seed = args.text_seed.unwrap_or_else(|| getrandom::u32().map_or(1, u64::from));
    config.tokens_per_word = args.tokens_per_word;
    config.slo = args.slo;
    config.record = args.record.is_some();
    config.started_unix_ms = Some(SystemClock::new().now().get() / 1_000_000);
    let faults = config.faults();
    if faults.is_empty() {
        return Ok(config);
    }
    Err(BenchError::Config(faults).to_string())
}

/// The outputs of the report. Files are opened before the run, so that a mistyped path does not waste a long run.
struct ReportSinks {
    json: Option<ReportSink>,
    record: Option<ReportSink>,
}

enum ReportSink {
    Stdout,
    File(PathBuf, File),
}

impl ReportSinks {
    fn open(args: &BenchArgs) -> Result<Self, String> {
        let json = match &args.json {
            Some(path) if path.as_path() == Path::new("-") => Some(ReportSink::Stdout),
            Some(path) => Some(ReportSink::file(path, "--json")?),
            None => None,
        };
        let record = args.record.as_deref().map(|path| ReportSink::file(path, "--record")).transpose()?;
        Ok(Self { json, record })
    }

    /// Prints the report and writes the files. The run is over, so a failed write is reported and the rest is still
    /// shown.
    fn write(self, report: &BenchReport) -> ExitCode {
        let (width, color) = output::terminal();
        if matches!(self.json, Some(ReportSink::Stdout)) {
            let color = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let _ =
                write!(io::stderr().lock(), "{}", output::drawn(&text(report, PlotStyle { width, color })));
        } else {
            output::say_drawn(&text(report, PlotStyle { width, color }));
        }
        let json = self.json.map(|sink| {
            sink.write(|out| {
                serde_json::to_writer_pretty(&mut *out, report)?;
                out.write_all(b"\n")
            })
        });
        let record = self.record.map(|sink| sink.write(|mut out| write_trace(&mut out, &report.trace)));
        for written in [json, record].into_iter().flatten() {
            if let Err(why) = written {
                return output::fail(&why);
            }
        }
        match report {
            _ if report.cut_short => ExitCode::from(INTERRUPTED),
            _ if report.calls.ok == 0 => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Exit status after Ctrl-C, as shells report it: 128 plus the number of the signal.
const INTERRUPTED: u8 = 130;

impl ReportSink {
    fn file(path: &Path, flag: &str) -> Result<Self, String> {
        // Keep the old contents until there is a report to replace them.
        let opened = OpenOptions::new().create(true).write(true).truncate(false).open(path);
        let file = opened.map_err(|error| format!("{flag}: cannot write {}: {error}", path.display()))?;
        Ok(Self::File(path.to_owned(), file))
    }

    fn write(self, with: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), String> {
        match self {
            // A closed standard output is no error.
            Self::Stdout => {
                let _ = with(&mut io::BufWriter::new(io::stdout().lock()));
                Ok(())
            }
            Self::File(path, file) => {
                let mut out = io::BufWriter::new(&file);
                // A pipe or a device cannot be truncated, and need not be.
                let cut = file.metadata().is_ok_and(|is| is.is_file()).then(|| file.set_len(0));
                let written = cut.unwrap_or(Ok(())).and_then(|()| with(&mut out)).and_then(|()| out.flush());
                written.map_err(|error| format!("cannot write {}: {error}", path.display()))
            }
        }
    }
}

/// The progress line during a run.
struct BenchProgress {
    bar: ProgressBar,
    shown: Option<(Duration, u64)>,
    rate: f64,
}

impl BenchProgress {
    fn begin() -> Self {
        // Hidden if standard error is no terminal. It has no timer: it moves when the run reports progress.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
        bar.set_style(style("{msg}"));
        bar.set_message("asking for the model and weighing words");
        bar.tick();
        Self { bar, shown: None, rate: 0.0 }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file. A wrong one would only look plain.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl RunWatcher for BenchProgress {
    fn show(&mut self, snapshot: &RunSnapshot) {
        if self.shown.is_none() && (snapshot.total.is_some() || snapshot.length.is_some()) {
            self.bar.set_style(style("{bar:24.cyan/dim} {msg}").progress_chars("━╸─"));
        }
        // The rate over at least a second, because a shorter period would fluctuate.
        match self.shown {
            Some((at, events)) if snapshot.elapsed.saturating_sub(at) >= Duration::from_secs(1) => {
                let seconds = snapshot.elapsed.saturating_sub(at).as_secs_f64();
                self.rate = snapshot.events.saturating_sub(events) as f64 / seconds;
                self.shown = Some((snapshot.elapsed, snapshot.events));
            }
            Some(_) => {}
            None => self.shown = Some((snapshot.elapsed, snapshot.events)),
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        // If the run has two limits, show the nearer one.
        let by_time =
            snapshot.length.map(|length| (millis(snapshot.elapsed).min(millis(length)), millis(length)));
        let by_calls = snapshot.total.map(|total| (snapshot.ended, total));
        let part = |(done, all): &(u64, u64)| *done as f64 / (*all).max(1) as f64;
        let further = by_time.into_iter().chain(by_calls).max_by(|a, b| part(a).total_cmp(&part(b)));
        if let Some((done, all)) = further {
            self.bar.set_length(all);
            self.bar.set_position(done);
        }
        self.bar.set_message(line(snapshot, self.rate));
    }
}

fn line(snapshot: &RunSnapshot, rate: f64) -> String {
    let of = snapshot.total.map_or_else(String::new, |total| format!("/{total}"));
    let mut text = format!(
        "{:.0} s · {}{of} calls · {} in flight · {rate:.0} tokens/s",
        snapshot.elapsed.as_secs_f64(),
        snapshot.ended,
        snapshot.in_flight
    );
    if snapshot.waiting > 0 {
        text.push_str(&format!(" · {} waiting", snapshot.waiting));
    }
    if snapshot.failed > 0 {
        text.push_str(&format!(" · {} failed", snapshot.failed));
    }
    text
}

/// Explains why nothing was measured, and what may help.
fn explain(error: &BenchError, has_key: bool) -> ExitCode {
    let code = match error {
        BenchError::Config(_) => return output::refuse(&error.to_string()),
        BenchError::Cancelled => {
            output::note(&format!("headrace: {error}"));
            return ExitCode::from(INTERRUPTED);
        }
        _ => output::fail(&error.to_string()),
    };
    let denied = match error {
        BenchError::Probe { denied, .. } => *denied,
        BenchError::Server(ClientError::Api(error)) => error.status == Some(401),
        _ => false,
    };
    if denied && !has_key {
        output::note("No key was given: set HEADRACE_API_KEY, or --key.");
    } else if matches!(error, BenchError::Server(ClientError::Connection(_))) {
        output::note("Is it running? `headrace up` starts one; --url names another.");
    }
    code
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct BenchProgram {
        #[command(flatten)]
        bench: BenchArgs,
    }

    /// Returns the configuration for a command line, or why it is refused.
    fn read(line: &str) -> Result<BenchConfig, String> {
        let cli = BenchProgram::try_parse_from(std::iter::once("bench").chain(line.split_whitespace()));
        config(&cli.map_err(|error| error.to_string())?.bench)
    }

    #[test]
    fn good_lines() {
        let all = read("").unwrap();
        assert_eq!((all.stop.duration, all.stop.requests), (Some(Duration::from_secs(30)), None));
        assert!(matches!(all.load, LoadShape::Closed { users: 1, .. }) && all.stream);
        let all =
            read("--rate 5 --burst 4 --requests 9 --warmup 5s --slo ttft=1s --body {\"top_k\":1}").unwrap();
        assert!(matches!(all.load, LoadShape::Open { arrivals: ArrivalSpread::Bursts(4), .. }));
        assert_eq!((all.stop.duration, all.warmup), (None, Warmup::Time(Duration::from_secs(5))));
        assert_eq!(all.body.len(), 1);
        let all =
            read("--users 3 --think exp:2s --agent-hops 4 --agent-role tool --turn-tokens 9 --warmup 7")
                .unwrap();
        assert_eq!(all.shape.turns, ConversationTurns::Agent { hops: 4, role: AgentRole::Tool });
        assert_eq!(all.warmup, Warmup::Calls(7));
    }

    #[test]
    fn bad_lines_are_told_what_is_wrong_and_what_would_be_right() {
        for (line, parts) in [
            ("--rate 5 --users 3", ["--rate", "cannot be used with"]),
            ("--rate 5 --think 2s", ["--think", "cannot be used with"]),
            ("--burst 4", ["required", "--rate"]),
            ("--replay-speed 2", ["required", "--replay"]),
            ("--replay /nowhere/at/all", ["--replay: cannot read", "No such file"]),
            ("--rate 0", ["--rate", "above 0"]),
            ("--rate 5 --burst 0", ["--burst", "at least 1"]),
            ("--users 0", ["--users", "between 1"]),
            ("--users 2000", ["--users", "--max-in-flight"]),
            ("--requests 0", ["--requests", "at least 1"]),
            ("--duration soon", ["--duration", "it must be a duration"]),
            ("--warmup soon", ["--warmup", "such as 16"]),
            ("--prompt-tokens zipf:3", ["--prompt-tokens", "the forms are"]),
            ("--output-tokens uniform:9..3", ["--output-tokens", "lower end"]),
            ("--shared-prefix-tokens 448", ["--shared-prefix-tokens", "--prompt-tokens 512"]),
            ("--shared-prefix-share 0.5", ["required", "--shared-prefix-tokens"]),
            ("--turns 2 --agent-hops 2", ["--turns", "cannot be used with"]),
            ("--turn-tokens 9", ["required", "--turns"]),
            ("--agent-role system", ["--agent-role", "user or tool"]),
            ("--api responses", ["--api", "chat or completions"]),
            ("--body 3", ["--body", "must be an object"]),
            ("--body {\"model\":1}", ["--body", "--model"]),
            ("--slo p99=3s", ["--slo", "ttft=500ms"]),
            ("--no-stream --slo itl=3s", ["--slo", "e2e"]),
            ("--timeout 0s", ["--timeout", "longer than 0s"]),
        ] {
            let why = read(line).err().unwrap_or_default();
            assert!(parts.iter().all(|part| why.contains(part)), "{line}: {why}");
        }
    }

    #[test]
    fn the_progress_line() {
        let snapshot = RunSnapshot {
            elapsed: Duration::from_secs(3),
            ended: 12,
            failed: 1,
            total: Some(40),
            in_flight: 8,
            waiting: 2,
            ..RunSnapshot::default()
        };
        assert_eq!(
            line(&snapshot, 99.6),
            "3 s · 12/40 calls · 8 in flight · 100 tokens/s · 2 waiting · 1 failed"
        );
    }
}
