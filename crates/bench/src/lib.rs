//! Drives an OpenAI-compatible server with a load and reports what its users would see. Must not know how the server
//! works, nor anything of a command line: values come in as types, and a report goes out.
//!
//! A run is [`Config`] → [`Plan`] (a pure function of the seed) → calls → [`Report`]. In an open loop, every latency
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
    AgentRole, Api, Arrivals, Config, DEFAULT_MAX_IN_FLIGHT, DEFAULT_TIMEOUT, Fault, Load, MAX_IN_FLIGHT,
    MAX_RATE, MAX_TIMEOUT, MAX_TURNS, MAX_USERS, MAX_WAITING, Shape, SharedPrefix, Stop, Turns, Warmup,
};
pub use distribution::{Distribution, Length, MAX_TOKENS, Pause};
pub use drive::run;
pub use error::BenchError;
pub use gauge::Gauge;
pub use live::{Snapshot, Watch};
pub use plan::{Plan, PlannedCall, Prefix, Session, Sessions};
pub use quantiles::Quantiles;
pub use report::{
    Calls, ErrorClass, Generator, Goodput, Latency, REPORT_VERSION, Rates, Report, Second, Since, Tokens,
};
pub use screen::{Look, text};
pub use slo::Slo;
pub use trace::{TraceCall, TraceFault, read_trace, write_trace};
pub use units::{parse_duration, show_duration};
