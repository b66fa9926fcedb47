//! Status of workers and upstreams for operators, in numbers and words. Decides nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::ModelName;
use headrace_engine_api::{EngineHealth, LoadReport};

use crate::breaker::BreakerState;
use crate::worker_stats::OutcomeTotals;

/// The status of a worker.
#[derive(Debug, Clone)]
pub struct WorkerStatus {
    /// Its id, as operators see it.
    pub id: Arc<str>,
    /// The model that it serves.
    pub model: ModelName,
    /// Its upstream. `None` if it is in this process.
    pub site: Option<Arc<str>>,
    /// Whether it gets calls now.
    pub standing: WorkerStanding,
    /// Its breaker.
    pub breaker: BreakerStatus,
    /// Its own report on its health.
    pub health: EngineHealth,
    /// Its own report on its load, with the report's age.
    pub load: LoadReport,
    /// Its share of the calls, relative to other workers.
    pub weight: u32,
    /// Calls sent to it that have not ended.
    pub in_flight: u32,
    /// Calls since the start.
    pub totals: OutcomeTotals,
    /// Fraction of the last minute's calls that failed. `None` if there were none.
    pub failed_last_minute: Option<f64>,
    /// The same for the last five minutes.
    pub failed_last_5_minutes: Option<f64>,
    /// Recent time to the first output. `None` before the first one.
    pub first: Option<Duration>,
    /// Recent duration of a whole answer. `None` before the first one.
    pub whole: Option<Duration>,
    /// Description of the last failure.
    pub last_error: Option<Arc<str>>,
    /// Estimated prompt blocks in its cache, from its upstream's events, or else from what was sent to it.
    pub remembered: usize,
}

/// The status of an upstream.
#[derive(Debug, Clone)]
pub struct SiteStatus {
    /// Its name, as operators see it.
    pub name: Arc<str>,
    /// The breaker for all of its models.
    pub breaker: BreakerStatus,
    /// Whether an operator has drained it.
    pub drained: bool,
    /// Calls sent to it that have not ended.
    pub in_flight: u32,
    /// Description of the last failure that concerned the whole upstream.
    pub last_error: Option<Arc<str>>,
}

/// The status of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerStatus {
    /// `closed`, `open` or `half-open`.
    pub state: &'static str,
    /// Remaining open time; zero unless the breaker is open.
    pub left: Duration,
    /// How often it was opened.
    pub trips: u64,
}

impl BreakerStatus {
    pub(crate) fn of((state, trips): (BreakerState, u64), now_ns: u64) -> Self {
        let (state, left) = match state {
            BreakerState::Closed => ("closed", Duration::ZERO),
            BreakerState::Open { until_ns } if until_ns > now_ns => {
                ("open", Duration::from_nanos(until_ns - now_ns))
            }
            BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => ("half-open", Duration::ZERO),
        };
        Self { state, left, trips }
    }
}

/// Whether a worker gets calls now, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerStanding {
    /// It gets calls.
    Ready,
    /// It gets the next call, as a trial.
    Trial,
    /// A trial call is in flight.
    TrialIsOut,
    /// An operator has drained it or its upstream.
    Drained,
    /// It reports that it is down.
    Down(EngineHealth),
    /// It refused a call as overloaded. Holds the remaining pause.
    Cooling(Duration),
    /// It is much worse than the other workers of its model. Holds the remaining time.
    Ejected(Duration),
    /// Too many calls failed. Holds the remaining open time.
    Open(Duration),
}

impl WorkerStanding {
    /// Whether it may get a call.
    pub fn takes_calls(&self) -> bool {
        matches!(self, Self::Ready | Self::Trial)
    }

    /// Time until it may get a call again, if that is known.
    pub fn left(&self) -> Option<Duration> {
        match self {
            Self::Cooling(left) | Self::Ejected(left) | Self::Open(left) => Some(*left),
            Self::Ready | Self::Trial | Self::TrialIsOut | Self::Drained | Self::Down(_) => None,
        }
    }
}

impl fmt::Display for WorkerStanding {
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

/// Whether a model is available now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Whether some worker takes calls.
    pub ready: bool,
    /// The standing of each worker, by its id.
    pub words: String,
    /// If none does: the time until one may, if that is known.
    pub retry_after: Option<Duration>,
}
