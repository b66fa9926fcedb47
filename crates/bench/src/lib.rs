//! Drives an OpenAI-compatible server with a load and reports what its users would see. Must not know how the server
//! works, nor anything of a command line: values come in as types, and a report goes out.
//!
//! A run is [`BenchConfig`] → [`RunPlan`] (a pure function of the seed) → calls → [`BenchReport`]. In an open loop, every latency
//! counts from the moment when the call was due, even if it was sent later. (See *coordinated omission*, Gil Tene, "How
//! NOT to measure latency", 2015.) The report also has the latency from sending, and the lag between both.

mod calibrate;
mod chunk;
mod config;
mod conversation;
mod distribution;
mod drive;
mod error;
mod gauge;
mod live;
mod pacer;
mod plan;
mod plot;
mod quantiles;
mod random;
mod remarks;
mod report;
mod screen;
mod session;
mod slo;
mod tally;
mod target;
mod trace;
mod units;
mod window;
mod words;

pub use config::{
    AgentRole, Api, ArrivalSpread, BenchConfig, ConfigFault, ConversationTurns, DEFAULT_MAX_IN_FLIGHT,
    DEFAULT_TIMEOUT, LoadShape, MAX_IN_FLIGHT, MAX_RATE, MAX_TIMEOUT, MAX_TURNS, MAX_USERS, MAX_WAITING,
    RequestShape, SharedPrefix, StopRule, Warmup,
};
pub use distribution::{Distribution, MAX_TOKENS, PauseLength, TokenLength};
pub use drive::run;
pub use error::BenchError;
pub use gauge::TokenizerGauge;
pub use live::{RunSnapshot, RunWatcher};
pub use plan::{PlannedCall, PlannedSession, RunPlan, SessionIter, SharedPrefixUse};
pub use quantiles::Quantiles;
pub use report::{
    BenchReport, CallTotals, ErrorClass, GeneratorReport, Goodput, LatencyReport, LatencySince,
    REPORT_VERSION, RunRates, SecondRow, TokenTotals,
};
pub use screen::{PlotStyle, text};
pub use slo::Slo;
pub use trace::{TraceCall, TraceFault, read_trace, write_trace};
pub use units::{parse_duration, show_duration};
