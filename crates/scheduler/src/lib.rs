//! Decides which sequences are computed in the next step, and in which KV blocks. Covers queues, fairness, continuous
//! batching, chunked prefill, preemption and the prefix cache. Pure and synchronous: it has no clock, no threads and no
//! I/O. It knows nothing of weights, logits, text, keys, limits or money. The simulator runs this very code.
//!
//! # The loop, without fairness, deadlines and misses
//!
//! Schedule, run, commit, until no sequence is left. There are no phases: each sequence has known tokens and computed
//! tokens, and each step has one token budget.
//!
//! ```
//! use headrace_domain::CacheSalt;
//! use headrace_kv_layout::{KvGroup, KvLayout};
//! use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SequenceSpec};
//!
//! // At most 24 tokens a step, and sixteen KV blocks of sixteen tokens each.
//! let layout = KvLayout::single(KvGroup::full(16, 0));
//! let config = SchedulerConfig { step_tokens: 24, max_running: 4, ..SchedulerConfig::default() };
//! let (mut scheduler, mut now_ns) = (Scheduler::new(config, layout)?, 0);
//! let salt = CacheSalt::derive(&[0; 32], "tenant", "model", None);
//! for prompt in [vec![1_u32; 40], vec![7; 3]] {
//!     scheduler.add(&SequenceSpec::new(1, salt, prompt, 4), now_ns)?;
//! }
//! let (mut steps, mut answers) = (Vec::new(), vec![Vec::new(); 2]);
//! while !scheduler.is_idle() {
//!     // Schedule: a chunk for each sequence that has its turn, and a block for every sixteen of its tokens.
//!     let chunks = scheduler.plan(now_ns).chunks.clone();
//!     steps.push(chunks.iter().map(|chunk| chunk.len).collect::<Vec<_>>());
//!     // Run: a model stores keys and values in the blocks, and samples. This one counts up from the last token.
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
//! [`Scheduler::plan`] spends the budget in this order: one token for each decoding sequence, then chunks of running
//! and waiting prompts, then idle work. If blocks run out, a sequence is preempted and waits again. The code is one
//! page, in `scheduler/plan.rs`. It is built on these nouns, each of which keeps its own state:
//!
//! | noun | state |
//! |---|---|
//! | `sequence` | one sequence: its tokens, how many are computed, its blocks |
//! | `running` | the sequences with a running slot, the blocks promised to them, the preemption order |
//! | `waiting` | the sequences that wait, their deadlines, and the prefixes that they wait for |
//! | `prefixes` over `kv_groups` and `blocks` | each block's content, holders, and the sequence that will compute it |
//! | `boundaries` | where other sequences are likely to continue from a sequence's prefix |
//! | `pins` | how many blocks each tenant has pinned |
//! | `fair` | the tenants: their order, and what each of them holds |
//!
//! Skip the rest at a first reading. Think of `fair` as a queue, and of `scheduler/admit.rs` as "any sequence that
//! fits". `outlook` and `rate` forecast waits, and `work` reports afterwards which work a sequence waited for.
//! `queue_admission` refuses sequences, `miss` and `nearest` explain cache misses, and `scheduler/pause.rs` handles
//! readers that stop reading. None of these changes an answer. They only decide when it comes, and whether in time.

mod ageing;
mod blocks;
mod boundaries;
mod config;
mod fair;
mod kv_groups;
mod miss;
mod nearest;
mod outlook;
mod pins;
mod prefills;
mod prefixes;
mod queue_admission;
mod rate;
mod running;
mod scheduler;
mod sequence;
mod step;
mod tables;
mod waiting;
mod work;

pub use config::{ConfigProblem, ConfigProblems, SchedulerConfig};
pub use pins::PinnedBlocks;
pub use queue_admission::AddRefusal;
pub use scheduler::{BlockCounts, Load, Scheduler};
pub use sequence::{Class, SeqId, SequenceSpec};
pub use step::{ChunkView, ExpiredSequence, LogitsNeed, Outcome, PlannedChunk, StartedSequence, StepPlan};
pub use work::Work;
