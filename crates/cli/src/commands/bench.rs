//! `headrace bench`: checks its arguments, and shows the progress and the report. The crate `bench` measures.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use headrace_bench::{
    ArrivalSpread, BenchConfig, BenchError, BenchReport, ConversationTurns, LoadShape, PauseLength,
    PlotStyle, RunSnapshot, RunWatcher, SharedPrefix, StopRule, read_trace, run as measure, text,
    write_trace,
};
use headrace_client::ClientError;
use headrace_config::ca::read_ca;
use headrace_domain::{Clock, SystemClock};
use headrace_terminal::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use secrecy::ExposeSecret;
use tokio_util::sync::CancellationToken;

use crate::arguments::bench::BenchArgs;
use crate::commands::dataset_calls;

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
        (None, None) if args.dataset.is_some() => {
            LoadShape::Replay { calls: dataset_calls::read(args)?, speed: args.replay_speed }
        }
        (None, None) => LoadShape::Closed {
            users: args.users.unwrap_or(1),
            think: args.think.unwrap_or(PauseLength::NONE),
        },
    };
    let mut config = BenchConfig::new(&args.url);
    let usual = config
        .stop
        .duration
        .filter(|_| args.requests.is_none() && args.replay.is_none() && args.dataset.is_none());
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
    use headrace_bench::{AgentRole, Warmup};

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
