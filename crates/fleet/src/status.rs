//! How workers and upstreams stand, for operators: figures and words. Decides nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::ModelName;
use headrace_engine_api::{Health, LoadReport};

use crate::breaker::State;
use crate::figures::Totals;

/// How a worker stands.
#[derive(Debug, Clone)]
pub struct WorkerStatus {
    /// By which operators know it.
    pub id: Arc<str>,
    /// What it serves.
    pub model: ModelName,
    /// The upstream behind it; `None`: it is in this process.
    pub site: Option<Arc<str>>,
    /// Whether it gets calls now.
    pub standing: Standing,
    /// Its breaker.
    pub breaker: BreakerStatus,
    /// How it says that it is.
    pub health: Health,
    /// What it says of its load, with the age of that.
    pub load: LoadReport,
    /// Its share, relative to the others'.
    pub weight: u32,
    /// Calls sent to it that have not ended.
    pub in_flight: u32,
    /// Calls since the start.
    pub totals: Totals,
    /// The part of the last minute's calls that failed; `None`: there were none.
    pub failed_last_minute: Option<f64>,
    /// Of the last five minutes.
    pub failed_last_5_minutes: Option<f64>,
    /// How long the first thing of an answer took lately.
    pub first: Option<Duration>,
    /// How long a whole answer took lately.
    pub whole: Option<Duration>,
    /// The last failure, in words.
    pub last_error: Option<Arc<str>>,
    /// Blocks of prompts that it is taken to have in its cache, by what was sent to it or by what it told.
    pub remembered: usize,
}

/// How an upstream stands.
#[derive(Debug, Clone)]
pub struct SiteStatus {
    /// By which operators know it.
    pub name: Arc<str>,
    /// The breaker before all of its models.
    pub breaker: BreakerStatus,
    /// An operator drained it.
    pub drained: bool,
    /// Calls sent to it that have not ended.
    pub in_flight: u32,
    /// The last failure that concerned the whole of it, in words.
    pub last_error: Option<Arc<str>>,
}

/// How a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerStatus {
    /// `closed`, `open` or `half-open`.
    pub state: &'static str,
    /// How long it stays open; zero unless it is.
    pub left: Duration,
    /// How often it was opened.
    pub trips: u64,
}

impl BreakerStatus {
    pub(crate) fn of((state, trips): (State, u64), now_ns: u64) -> Self {
        let (state, left) = match state {
            State::Closed => ("closed", Duration::ZERO),
            State::Open { until_ns } if until_ns > now_ns => {
                ("open", Duration::from_nanos(until_ns - now_ns))
            }
            State::Open { .. } | State::HalfOpen { .. } => ("half-open", Duration::ZERO),
        };
        Self { state, left, trips }
    }
}

/// Whether a worker gets calls now, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Ready,
    /// The next call goes to it, to see whether it works again.
    Trial,
    /// A call is under way that tries whether it works again.
    TrialIsOut,
    /// An operator drained it, or its upstream.
    Drained,
    /// It says that it takes none.
    Down(Health),
    /// It said that it has too much to do.
    Cooling(Duration),
    /// It is much worse than the others of its model.
    Ejected(Duration),
    /// Too many calls failed.
    Open(Duration),
}

impl Standing {
    /// Whether it may get a call.
    pub fn takes_calls(&self) -> bool {
        matches!(self, Self::Ready | Self::Trial)
    }

    /// When it may get one again, where that is known.
    pub fn left(&self) -> Option<Duration> {
        match self {
            Self::Cooling(left) | Self::Ejected(left) | Self::Open(left) => Some(*left),
            Self::Ready | Self::Trial | Self::TrialIsOut | Self::Drained | Self::Down(_) => None,
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("it takes calls"),
            Self::Trial => f.write_str("it failed, and the next call tries it"),
            Self::TrialIsOut => f.write_str("it failed, and a call tries it now"),
            Self::Drained => f.write_str("an operator drained it"),
            Self::Down(health) => health.fmt(f),
            Self::Cooling(left) => {
                write!(f, "it has too much to do; it is asked again in {:.1} s", left.as_secs_f64())
            }
            Self::Ejected(left) => {
                write!(
                    f,
                    "it is much worse than the others; it is asked again in {:.1} s",
                    left.as_secs_f64()
                )
            }
            Self::Open(left) => {
                write!(f, "too many calls failed; it is tried again in {:.1} s", left.as_secs_f64())
            }
        }
    }
}

/// Whether a model can be had now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Some worker takes calls.
    pub ready: bool,
    /// How each worker stands, by its id.
    pub words: String,
    /// If none does: when one may again, where that is known.
    pub retry_after: Option<Duration>,
}
