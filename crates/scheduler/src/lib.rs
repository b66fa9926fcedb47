//! Which sequences are computed in the next step, and in which KV blocks: queues, fairness, continuous batching,
//! chunked prefill, preemption, the prefix cache. Pure and synchronous: no clock, no threads, no I/O, and nothing of
//! weights, logits, text, keys, limits or money. The simulator runs this very code.
//!
//! # The loop, without fairness, deadlines and misses
//!
//! Schedule, run, commit, until nobody is left. There are no phases: each sequence has tokens known and tokens computed,
//! and each step has one budget of tokens.
//!
//! ```
//! use headrace_domain::CacheSalt;
//! use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SequenceSpec};
//!
//! // At most 24 tokens a step, and sixteen KV blocks of sixteen tokens each.
//! let config = SchedulerConfig { step_tokens: 24, max_running: 4, ..SchedulerConfig::default() };
//! let (mut scheduler, mut now_ns) = (Scheduler::new(config, 16)?, 0);
//! let salt = CacheSalt::derive(&[0; 32], "tenant", "model", None);
//! for prompt in [vec![1_u32; 40], vec![7; 3]] {
//!     scheduler.add(&SequenceSpec::new(1, salt, prompt, 4), now_ns)?;
//! }
//! let (mut steps, mut answers) = (Vec::new(), vec![Vec::new(); 2]);
//! while !scheduler.is_idle() {
//!     // Schedule: a chunk for each sequence that has its turn, and a block for every sixteen of its tokens.
//!     let chunks = scheduler.plan(now_ns).chunks.clone();
//!     steps.push(chunks.iter().map(|chunk| chunk.len).collect::<Vec<_>>());
//!     // Run: a model stores keys and values in the blocks, and samples. This one counts on from the last token.
//!     let mut run = |chunk| -> Option<Outcome> {
//!         let last = *scheduler.view(chunk)?.tokens.last()?;
//!         if !chunk.reaches_end {
//!             return Some(Outcome::Advanced);
//!         }
//!         let answer = &mut answers[chunk.seq.slot()];
//!         answer.push(last + 1);
//!         Some(if answer.len() < 4 { Outcome::Token(last + 1) } else { Outcome::Ended })
//!     };
//!     let outcomes: Vec<Outcome> = chunks.iter().filter_map(|chunk| run(chunk)).collect();
//!     // Commit: tokens are appended, full blocks can be found, and those that ended leave.
//!     now_ns += 1_000_000;
//!     scheduler.commit(&outcomes, now_ns);
//! }
//! assert_eq!(answers, [[2, 3, 4, 5], [8, 9, 10, 11]]);
//! assert_eq!(steps, [vec![24], vec![16, 3], vec![1, 1], vec![1, 1], vec![1, 1]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What to read, and what may be skipped
//!
//! [`Scheduler::plan`] gives the budget away: first one token to each sequence that decodes, then chunks of prompts, those
//! that run and those that wait in turn, last what is left to idle work. When blocks lack, somebody gives way and waits
//! again. It is a page, in `scheduler/plan.rs`, over these nouns, each of which keeps its own books:
//!
//! | noun | what it keeps |
//! |---|---|
//! | `sequence` | one sequence: its tokens, how far they are computed, its blocks |
//! | `running` | who has a place, what is promised to them, who gives way first |
//! | `waiting` | who waits, until when, and for whose prefix |
//! | `prefixes` over `blocks` | which block holds what, who holds it, who is about to compute it |
//! | `pins` | how many blocks each tenant keeps |
//! | `fair` | the tenants: whose turn it is, and what each holds |
//!
//! At a first reading skip the rest. `fair` may be thought of as a queue, `scheduler/admit.rs` as "whoever fits", `outlook`
//! and `rate` foretell waits, `work` tells afterwards for whom one waited, `door` refuses, `miss` and `nearest` say why a prompt was not cached, `scheduler/pause.rs` is
//! for readers that stop reading. What is answered depends on none of these, only when, and whether in time.

mod ageing;
mod blocks;
mod config;
mod door;
mod fair;
mod miss;
mod nearest;
mod outlook;
mod pins;
mod prefills;
mod prefixes;
mod rate;
mod running;
mod scheduler;
mod sequence;
mod step;
mod tables;
mod waiting;
mod work;

pub use config::{ConfigProblem, ConfigProblems, SchedulerConfig};
pub use door::AddRefusal;
pub use pins::Pinned;
pub use scheduler::{Load, Scheduler};
pub use sequence::{Class, SeqId, SequenceSpec, usable_blocks};
pub use step::{ChunkView, Expired, LogitsNeed, Outcome, PlannedChunk, Started, StepPlan};
pub use work::Work;
