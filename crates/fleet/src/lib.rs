//! Workers: who serves a model (engines, and servers of others), how busy they are, how well they do, and which one takes a call.
//! Knows them only through `engine-api`; knows nothing of HTTP, kernels, KV blocks, keys or money.
//!
//! # Who takes a call
//!
//! A worker gets calls while it says that it is up, no operator drained it, and nothing was seen that speaks against it: no breaker is
//! open before it or before its upstream ([`Site`]), it has not just said that it has too much to do, and it is not much worse than the
//! others of its model. When a breaker has been open for its time, one call tries, and its outcome decides for all.
//!
//! Nobody gets a call who is where it may not be worked on ([`headrace_domain::Residency`]): whoever asks for a worker has to say where
//! it may, at the first try as at every further one.
//!
//! Among those left:
//!
//! - Where loads are reported, the least work before the first token: blocks of the prompt that are not in the worker's cache, and what is
//!   ahead there by its weight. A report of this moment is taken as it is. To an older one what was sent since is added, and what ended
//!   since taken off, for other senders as well, and among those that are then alike chance decides. A worker without a report counts as
//!   the busiest, and one that has nothing to do while others are busy takes a call whatever is cached elsewhere.
//! - Where none is reported, of two at random the one with the shorter expected time: how long the first thing took lately, times what
//!   is in flight there. A conversation stays where it was, unless that takes more than twice as long.
//!
//! What a worker has in its cache it says itself ([`headrace_engine_api::Engine::cached_prefix`]), or the events of its upstream do
//! ([`PrefixIndex`]), or it is guessed from what was sent to it.
//!
//! Who places a call says how it went ([`Placement::began`], [`Placement::ended`]): that is all that the fleet learns from. Time and
//! randomness are arguments. All state is in the workers, so that it outlives a reload.

mod breaker;
mod budget;
mod choice;
mod door;
mod figures;
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
mod site;
mod status;
mod window;
mod worker;

#[cfg(test)]
mod tests;

pub use figures::Totals;
pub use fleet::{Fleet, Trail};
pub use hedge::Hedge;
pub use outcome::{Failure, Outcome};
pub use placement::{Placement, Tried};
pub use prefix_index::{Held, IndexFault, PrefixIndex, Stored, Whose};
pub use site::Site;
pub use status::{BreakerStatus, Readiness, SiteStatus, Standing, WorkerStatus};
pub use worker::Worker;
