//! Which sequences are computed in the next step, and in which KV blocks: queues, fairness, continuous batching,
//! chunked prefill, preemption, the prefix cache. Pure and synchronous: no clock, no threads, no I/O, and nothing of
//! weights, logits, text, keys, limits or money. The simulator runs this very code.
//!
//! A step is [`Scheduler::plan`] → compute what [`Scheduler::current`] says → [`Scheduler::commit`]. There are no
//! phases: each sequence has tokens known and tokens computed, and each step one token budget.

mod blocks;
mod commit;
mod config;
mod fair;
mod invariants;
mod miss;
mod nearest;
mod pause;
mod plan;
mod prefix;
mod rate;
mod scheduler;
mod sequence;
mod wait;

pub use config::{ConfigProblem, ConfigProblems, SchedulerConfig};
pub use plan::{ChunkView, Expired, LogitsNeed, PlannedChunk, Started, StepPlan};
pub use prefix::usable_blocks;
pub use scheduler::{AddRefusal, Load, Outcome, Scheduler};
pub use sequence::{Class, SeqId, SequenceSpec};
