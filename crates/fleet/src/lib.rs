//! The workers of each model (engines, and other operators' servers): their load, their health, and the choice of a
//! worker for a call. Knows workers only through `engine-api`. Knows nothing of HTTP, kernels, KV blocks, keys or
//! money.
//!
//! # How a worker is chosen
//!
//! A worker gets calls while it reports that it is up, no operator has drained it, and nothing speaks against it. No
//! breaker is open for it or its upstream ([`WorkerSite`]). It has not just refused a call as overloaded. It is not much
//! worse than the other workers of its model. When a breaker's open time is over, one trial call decides for all.
//!
//! A call never goes to a worker outside its regions ([`headrace_domain::Residency`]). The caller must pass them for
//! the first attempt and for every further one.
//!
//! Among the workers that are left:
//!
//! - If any worker reports its load, the one with the least work before the first token gets the call. This work is the
//!   prompt's uncached blocks, plus the work ahead at the worker divided by its weight. A current report is used as it
//!   is. An older one is corrected by the calls that were sent and ended since, scaled up for other senders. Chance
//!   then decides among workers with similar work. A worker without a report counts as the busiest one. Unless all
//!   reports are current, an idle worker among busy ones gets the call even if more is cached elsewhere.
//! - If no worker reports its load, two are drawn at random, and the one with the shorter expected time gets the call.
//!   The expected time is the recent time to the first output, times the calls in flight. A conversation stays with its
//!   worker unless that takes more than twice as long.
//!
//! A worker's cached prefix comes from the engine itself ([`headrace_engine_api::Engine::cached_prefix`]), from its
//! upstream's events ([`PrefixIndex`]), or from a guess by the calls that were sent to it.
//!
//! The caller reports how a call went ([`Placement::began`], [`Placement::ended`]). The fleet learns from nothing else.
//! Time and randomness are arguments. All state is in the workers, so that it survives a reload.

mod breaker;
mod breaker_gate;
mod choice;
mod fleet;
mod hedge;
mod latency;
mod outcome;
mod outlier;
mod placement;
mod plain_hash;
mod prefix_index;
mod random;
mod remembered;
mod retry_budget;
mod site;
mod status;
mod window;
mod worker;
mod worker_stats;

#[cfg(test)]
mod tests;

pub use fleet::{Fleet, PrefixHashes};
pub use hedge::HedgePolicy;
pub use outcome::{FailureKind, WorkerOutcome};
pub use placement::{Placement, TriedWorkers};
pub use prefix_index::{BlockOwner, CachedTokens, IndexFault, PrefixIndex, StoredRun};
pub use site::WorkerSite;
pub use status::{BreakerStatus, Readiness, SiteStatus, WorkerStanding, WorkerStatus};
pub use worker::Worker;
pub use worker_stats::OutcomeTotals;
