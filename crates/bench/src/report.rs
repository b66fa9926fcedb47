//! The figures of a run, as they are written to JSON. Every field's name has its unit; a changed meaning is a new
//! [`REPORT_VERSION`]. Knows no way of showing them.

use serde::Serialize;

use crate::{Config, Gauge, Quantiles, Slo, TraceCall};

/// Version of the report's form.
pub const REPORT_VERSION: u32 = 1;

/// What a run measured. Calls of the warm-up are in the series and in nothing else.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// What measured.
    pub program: &'static str,
    /// When it began, in milliseconds since 1970, if that was told.
    pub started_unix_ms: Option<u64>,
    /// What was measured.
    pub server: Server,
    /// Everything that was asked for, but the key.
    pub parameters: Config,
    /// How prompts were weighed.
    pub gauge: Gauge,
    /// It was cancelled.
    pub cut_short: bool,
    /// From the first call's due time to the last one's end, in seconds.
    pub elapsed_s: f64,
    /// The measured part of that: from the first measured call's due time to the end of sending (with a duration) or of
    /// the last call (without). Rates are over this.
    pub window_s: f64,
    /// How calls ended.
    pub calls: Calls,
    /// What failed, the most frequent first.
    pub errors: Vec<ErrorClass>,
    /// Tokens of good answers.
    pub tokens: Tokens,
    /// What went through, per second of the window.
    pub rates: Rates,
    /// How long things took, of good answers.
    pub latency: Latency,
    /// Against the objective, where there is one.
    pub goodput: Option<Goodput>,
    /// How the generator itself did.
    pub generator: Generator,
    /// What a reader of the figures must know.
    pub remarks: Vec<String>,
    /// Second by second from the run's beginning, with the warm-up.
    pub series: Vec<Second>,
    /// The calls as a trace that can be replayed, if it was asked for.
    #[serde(skip)]
    pub trace: Vec<TraceCall>,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Server {
    /// Its address.
    pub url: String,
    /// The endpoint's path.
    pub endpoint: String,
    /// The model asked.
    pub model: String,
    /// Tokens of prompt and answer together, where the server says.
    pub context_window: Option<u64>,
}

/// How calls ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Calls {
    /// Measured calls that were sent: `ok`, `failed` and `cut_off` together.
    pub sent: u64,
    /// Answered to the end.
    pub ok: u64,
    /// Refused, broken or too late.
    pub failed: u64,
    /// Due in the window and never sent: the limit of calls in flight was reached.
    pub unsent: u64,
    /// Given up because the run was cancelled.
    pub cut_off: u64,
    /// Not made because an earlier call of their conversation failed.
    pub abandoned: u64,
    /// Sent and not measured.
    pub warmup: u64,
}

/// Calls that failed alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorClass {
    /// Status and code, or what broke.
    pub class: String,
    /// How many.
    pub calls: u64,
    /// What the first of them said.
    pub example: String,
}

/// Tokens of good answers, as the server counted them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Tokens {
    /// Of prompts, together.
    pub prompt: u64,
    /// Of them found in the server's cache, where it says.
    pub cached: Option<u64>,
    /// Of answers, together.
    pub output: u64,
    /// The most that answers might have had, together.
    pub output_asked: u64,
    /// Answers without usage: their tokens are counted as events.
    pub without_usage: u64,
    /// Mean tokens of an event with content.
    pub per_event: f64,
    /// Of a prompt.
    pub prompt_per_call: Quantiles,
    /// Of an answer.
    pub output_per_call: Quantiles,
}

/// What went through, per second of the window.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Rates {
    /// Calls that came due while calls came due, in an open loop.
    pub due_per_s: Option<f64>,
    /// Good answers that ended.
    pub requests_per_s: f64,
    /// Prompt tokens whose first answer token came.
    pub prompt_tokens_per_s: f64,
    /// Answer tokens that came.
    pub output_tokens_per_s: f64,
}

/// How long things took, of good answers, in milliseconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Latency {
    /// From the moment at which the call was due: what a user who does not know of the generator waits.
    pub from_due: Since,
    /// From the moment at which it was sent.
    pub from_sent: Since,
    /// From due to sent.
    pub send_lag_ms: Quantiles,
    /// Between events with content, every gap of every answer.
    pub itl_ms: Quantiles,
    /// Per answer: from its first to its last token, divided by the tokens after the first.
    pub tpot_ms: Quantiles,
    /// How many calls had their first token (without streams: their end) within so long from due.
    pub histogram: Vec<Bucket>,
}

/// Times from one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Since {
    /// To the first event with text, reasoning or a tool call; not to the role alone.
    pub ttft_ms: Quantiles,
    /// To the end of the answer.
    pub e2e_ms: Quantiles,
}

/// Calls within a span.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bucket {
    /// Not above it, and above the bucket's before.
    pub up_to_ms: f64,
    /// How many.
    pub calls: u64,
}

/// Against the objective.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// The objective.
    pub slo: Slo,
    /// Calls that were due, without those cut off by the run's cancelling.
    pub offered: u64,
    /// Those of them that kept all bounds.
    pub good: u64,
    /// `good / offered`.
    pub share: f64,
    /// Good calls per second of the window.
    pub requests_per_s: f64,
    /// Their answer tokens per second of the window.
    pub output_tokens_per_s: f64,
    /// Calls that missed, by what they missed; one call can miss several.
    pub missed: Missed,
}

/// What was missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Missed {
    /// The first token came too late.
    pub ttft: u64,
    /// Tokens came too slowly.
    pub itl: u64,
    /// A gap was too long.
    pub gap: u64,
    /// The end came too late.
    pub e2e: u64,
    /// There was no good answer.
    pub failed: u64,
    /// It was never sent.
    pub unsent: u64,
}

/// How the generator itself did.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Generator {
    /// Its own lateness is too small to matter.
    pub kept_up: bool,
    /// Most calls in flight at once.
    pub in_flight_max: u64,
    /// Calls, with the warm-up's and those that weigh words, that were sent once more on another connection, because the server closed theirs before it
    /// answered. Their latencies contain both.
    pub sent_again: u64,
    /// The most that were allowed.
    pub in_flight_limit: u64,
    /// Measured calls that were due and waited for a place.
    pub waited_for_place: u64,
    /// From due to sent without that wait: what the generator itself was late, in milliseconds.
    pub own_lag_ms: Quantiles,
    /// How late its timers were, in milliseconds: what answers may have waited to be looked at.
    pub wake_lag_ms: Quantiles,
}

/// One second of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Second {
    /// Since the run's beginning.
    pub second: u64,
    /// Calls that came due.
    pub due: u64,
    /// Calls that were sent.
    pub sent: u64,
    /// Calls whose first token came.
    pub first_tokens: u64,
    /// Calls that ended well.
    pub ok: u64,
    /// Calls that failed.
    pub failed: u64,
    /// In flight at its end.
    pub in_flight: u64,
    /// Prompt tokens whose first answer token came.
    pub prompt_tokens: u64,
    /// Answer tokens that came.
    pub output_tokens: u64,
}
