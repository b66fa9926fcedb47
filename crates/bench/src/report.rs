//! The figures of a run, as written to JSON. Every field's name states its unit. A changed meaning needs a new
//! [`REPORT_VERSION`]. Does not know how the figures are shown.

use serde::Serialize;

use crate::{BenchConfig, Quantiles, Slo, TokenizerGauge, TraceCall};

/// Version of the report format.
pub const REPORT_VERSION: u32 = 1;

/// The measurements of a run. Warm-up calls appear only in the series.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// The name and version of the measuring program.
    pub program: &'static str,
    /// Start time in milliseconds since 1970, if it was given.
    pub started_unix_ms: Option<u64>,
    /// The server that was measured.
    pub server: ReportedServer,
    /// The configuration, without the key.
    pub parameters: BenchConfig,
    /// The weight of words used for the prompts.
    pub gauge: TokenizerGauge,
    /// Whether the run was cancelled.
    pub cut_short: bool,
    /// Seconds from the first call's due time to the last call's end.
    pub elapsed_s: f64,
    /// Seconds of the measured window, from the due time of the first measured call. It ends with the configured
    /// duration, or with the last call if there is none. Rates are per second of this window.
    pub window_s: f64,
    /// Number of calls, by result.
    pub calls: CallTotals,
    /// Failures by class, most frequent first.
    pub errors: Vec<ErrorClass>,
    /// Tokens of successful answers.
    pub tokens: TokenTotals,
    /// Throughput, per second of the window.
    pub rates: RunRates,
    /// Latencies of successful answers.
    pub latency: LatencyReport,
    /// Results against the objective, if there is one.
    pub goodput: Option<Goodput>,
    /// The generator's own performance.
    pub generator: GeneratorReport,
    /// Remarks that a reader of the figures must know.
    pub remarks: Vec<String>,
    /// The run second by second, including the warm-up.
    pub series: Vec<SecondRow>,
    /// The calls as a trace that can be replayed, if the configuration asked for it.
    #[serde(skip)]
    pub trace: Vec<TraceCall>,
}

/// The server that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportedServer {
    /// The server's address.
    pub url: String,
    /// The endpoint's path.
    pub endpoint: String,
    /// The model that was called.
    pub model: String,
    /// Maximum tokens of prompt and answer together, if the server reports it.
    pub context_window: Option<u64>,
}

/// Number of calls, by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CallTotals {
    /// Measured calls that were sent: the sum of `ok`, `failed` and `cut_off`.
    pub sent: u64,
    /// Calls that were answered completely.
    pub ok: u64,
    /// Calls that were refused, broke off or timed out.
    pub failed: u64,
    /// Calls that were due in the window and never sent, because the limit of calls in flight was reached.
    pub unsent: u64,
    /// Calls that were cut off because the run was cancelled.
    pub cut_off: u64,
    /// Calls that were not made because an earlier call of their conversation failed.
    pub abandoned: u64,
    /// Calls that were sent and not measured.
    pub warmup: u64,
}

/// Failed calls of the same class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorClass {
    /// Status and code, or the kind of failure.
    pub class: String,
    /// Number of calls.
    pub calls: u64,
    /// The message of the first call.
    pub example: String,
}

/// Tokens of successful answers, as the server counted them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TokenTotals {
    /// Total prompt tokens.
    pub prompt: u64,
    /// Prompt tokens from the server's cache, if the server reports them.
    pub cached: Option<u64>,
    /// Total answer tokens.
    pub output: u64,
    /// Total of the answers' token limits.
    pub output_asked: u64,
    /// Number of answers without usage. Their tokens are counted as events.
    pub without_usage: u64,
    /// Mean tokens per event with content.
    pub per_event: f64,
    /// Prompt tokens per call.
    pub prompt_per_call: Quantiles,
    /// Answer tokens per call.
    pub output_per_call: Quantiles,
}

/// Throughput, per second of the window.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct RunRates {
    /// Offered load in calls per second during the arrival phase. Open-loop runs only.
    pub due_per_s: Option<f64>,
    /// Successful answers that ended.
    pub requests_per_s: f64,
    /// Prompt tokens, counted when the first answer token arrives.
    pub prompt_tokens_per_s: f64,
    /// Answer tokens that arrived.
    pub output_tokens_per_s: f64,
}

/// Latencies of successful answers, in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LatencyReport {
    /// Latency from the moment when the call was due: the wait of a user who does not know about the generator.
    pub from_due: LatencySince,
    /// Latency from the moment when the call was sent.
    pub from_sent: LatencySince,
    /// Time from due to sent.
    pub send_lag_ms: Quantiles,
    /// Time between events with content, over all gaps of all answers.
    pub itl_ms: Quantiles,
    /// Per answer: time from the first to the last token, divided by the number of tokens after the first.
    pub tpot_ms: Quantiles,
    /// Histogram of the time from due to the first token, or to the end without streams.
    pub histogram: Vec<LatencyBucket>,
}

/// Latencies from one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct LatencySince {
    /// Time to the first event with text, reasoning or a tool call. A role alone does not count.
    pub ttft_ms: Quantiles,
    /// Time to the end of the answer.
    pub e2e_ms: Quantiles,
}

/// A bucket of the histogram.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyBucket {
    /// The inclusive upper edge. The lower edge is that of the previous bucket.
    pub up_to_ms: f64,
    /// Number of calls in the bucket.
    pub calls: u64,
}

/// The results against the objective.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// The objective.
    pub slo: Slo,
    /// Calls that were due, without those cut off by a cancellation.
    pub offered: u64,
    /// Offered calls that met all bounds.
    pub good: u64,
    /// `good / offered`.
    pub share: f64,
    /// Good calls per second of the window.
    pub requests_per_s: f64,
    /// Answer tokens of good calls per second of the window.
    pub output_tokens_per_s: f64,
    /// Calls that missed the objective, by the bound they missed. One call can miss several.
    pub missed: MissedBounds,
}

/// Number of calls that missed each bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MissedBounds {
    /// The first token came too late.
    pub ttft: u64,
    /// The mean time between tokens was too long.
    pub itl: u64,
    /// A gap was too long.
    pub gap: u64,
    /// The end came too late.
    pub e2e: u64,
    /// The call failed.
    pub failed: u64,
    /// The call was never sent.
    pub unsent: u64,
}

/// The generator's own performance.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct GeneratorReport {
    /// Whether the generator's own lateness is too small to matter.
    pub kept_up: bool,
    /// Maximum calls in flight.
    pub in_flight_max: u64,
    /// Calls that were resent on another connection, because the server closed theirs before it answered. Includes
    /// warm-up and calibration calls. Their latencies contain both attempts.
    pub sent_again: u64,
    /// The limit of calls in flight.
    pub in_flight_limit: u64,
    /// Measured calls that were due and waited for a slot.
    pub waited_for_place: u64,
    /// Milliseconds from due to sent without that wait: the generator's own lateness.
    pub own_lag_ms: Quantiles,
    /// Milliseconds by which the generator's timers were late. Answers may have waited this long to be processed.
    pub wake_lag_ms: Quantiles,
}

/// One second of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SecondRow {
    /// Seconds since the start of the run.
    pub second: u64,
    /// Calls that became due.
    pub due: u64,
    /// Calls that were sent.
    pub sent: u64,
    /// Calls whose first token arrived.
    pub first_tokens: u64,
    /// Calls that ended successfully.
    pub ok: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Calls in flight at the end of the second.
    pub in_flight: u64,
    /// Prompt tokens, counted when the first answer token arrives.
    pub prompt_tokens: u64,
    /// Answer tokens that arrived.
    pub output_tokens: u64,
}
