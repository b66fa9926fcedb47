//! The scheduler's state, and what comes in from outside a step: new sequences, aborts, questions.
//! Planning a step is in `plan`, what follows from a computed one in `commit`.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use headrace_domain::{BlockKey, CacheSalt};

use crate::blocks::BlockPool;
use crate::fair::FairQueue;
use crate::sequence::{Sequence, Slab, State, blocks_for};
use crate::{Class, ConfigProblems, SchedulerConfig, SeqId, SequenceSpec, StepPlan};

/// Half-life of the measured rate, in nanoseconds of computing.
const RATE_HALF_LIFE_NS: f64 = 5e9;
const NS_PER_S: f64 = 1e9;

/// Decides what each step computes. See the crate's documentation.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) sequences: Slab,
    pub(crate) pool: BlockPool,
    pub(crate) queue: FairQueue,
    /// In the order of admission.
    pub(crate) running: Vec<SeqId>,
    /// Cold blocks that a running sequence is about to compute, and which.
    pub(crate) announced: HashMap<BlockKey, SeqId>,
    /// (deadline, id) of waiting sequences that have one.
    pub(crate) deadlines: BTreeSet<(u64, SeqId)>,
    pub(crate) plan: StepPlan,
    /// Blocks spoken for by running sequences' known tokens and not taken yet.
    pub(crate) promised: usize,
    pub(crate) admissions: u64,
    pub(crate) deferred: usize,
    pub(crate) waiting_tokens: u64,
    pub(crate) rate: Rate,
    /// Reused between steps.
    pub(crate) scratch: Vec<SeqId>,
}

/// What the engine made of a planned chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Keys and values are stored; more of the sequence's known tokens remain, or none was sampled.
    Advanced,
    /// Stored, and this token follows. Only for a chunk that reached the last known token.
    Token(u32),
    /// Stored, and the sequence has ended.
    Ended,
    /// Not to be trusted: the sequence ends and nothing of this step enters the cache.
    Failed,
}

/// How busy a scheduler is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Prompt tokens that wait to be computed.
    pub waiting_tokens: u64,
    /// Blocks in all.
    pub blocks_total: usize,
    /// Blocks that no sequence holds.
    pub blocks_free: usize,
    /// Of those, the ones with a cached prefix.
    pub blocks_cached: usize,
    /// Tokens computed per second lately; 0 while unknown.
    pub tokens_per_second: u32,
}

/// Why a sequence is not taken. Nothing has been kept of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddRefusal {
    /// The queue is at its bound.
    QueueFull {
        /// `sequences` or `tokens`.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// Nanoseconds until there may be room, from the measured rate; at least one second.
        retry_after_ns: u64,
    },
    /// It could never be computed to its end.
    DoesNotFit {
        /// Tokens it may need.
        needed: u64,
        /// Tokens there are, in the context or the pool.
        limit: u64,
    },
    /// It would not start before its deadline.
    TooLate {
        /// Nanoseconds it would wait.
        wait_ns: u64,
    },
    /// An empty prompt, or no or more sequences at once than the queue could ever hold.
    Invalid {
        /// Which.
        what: String,
    },
}

/// Tokens computed per second, recent steps weighing most.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    tokens: f64,
    nanos: f64,
}

impl Rate {
    pub(crate) fn observe(&mut self, tokens: usize, elapsed_ns: u64) {
        let elapsed = elapsed_ns as f64;
        let keep = (-elapsed / RATE_HALF_LIFE_NS).exp2();
        self.tokens = self.tokens * keep + tokens as f64;
        self.nanos = self.nanos * keep + elapsed;
    }

    fn per_second(&self) -> f64 {
        if self.nanos > 0.0 { self.tokens * NS_PER_S / self.nanos } else { 0.0 }
    }

    /// How long `tokens` take; `None` while nothing was measured.
    fn nanos_for(&self, tokens: f64) -> Option<u64> {
        let rate = self.per_second();
        // A float beyond u64 saturates.
        (rate > 0.0).then(|| (tokens * NS_PER_S / rate) as u64)
    }
}

impl Scheduler {
    /// A scheduler of `block_count` KV blocks, all empty.
    ///
    /// # Errors
    /// [`ConfigProblems`] with every value that cannot work.
    pub fn new(config: SchedulerConfig, block_count: usize) -> Result<Self, ConfigProblems> {
        config.check(block_count)?;
        Ok(Self {
            config,
            sequences: Slab::default(),
            pool: BlockPool::new(block_count),
            queue: FairQueue::default(),
            running: Vec::new(),
            announced: HashMap::new(),
            deadlines: BTreeSet::new(),
            plan: StepPlan::default(),
            promised: 0,
            admissions: 0,
            deferred: 0,
            waiting_tokens: 0,
            rate: Rate::default(),
            scratch: Vec::new(),
        })
    }

    /// Queues one sequence. See [`Self::add_group`].
    ///
    /// # Errors
    /// [`AddRefusal`]; nothing has been queued then.
    pub fn add(&mut self, spec: &SequenceSpec, now_ns: u64) -> Result<SeqId, AddRefusal> {
        let mut ids = Vec::with_capacity(1);
        self.add_group(spec, 1, now_ns, &mut ids)?;
        ids.pop().ok_or_else(|| AddRefusal::Invalid { what: "no sequence".to_owned() })
    }

    /// Queues `count` sequences of one spec, all or none, and appends their ids to `ids`. They share the prompt: the
    /// first computes it, the others take it from the cache.
    ///
    /// # Errors
    /// [`AddRefusal`]; nothing has been queued then.
    pub fn add_group(
        &mut self,
        spec: &SequenceSpec,
        count: usize,
        now_ns: u64,
        ids: &mut Vec<SeqId>,
    ) -> Result<(), AddRefusal> {
        self.refuse(spec, count, now_ns)?;
        for i in 0..count {
            let sequence = Sequence::new(spec, i == 0);
            let (tenant, class, deadline) = (sequence.tenant, sequence.class, sequence.deadline);
            self.waiting_tokens += sequence.queued_tokens;
            let id = self.sequences.insert(sequence);
            self.queue.enter(tenant, spec.weight);
            self.queue.push_back(tenant, class, id);
            if let Some(deadline) = deadline {
                self.deadlines.insert((deadline, id));
            }
            ids.push(id);
        }
        Ok(())
    }

    fn refuse(&self, spec: &SequenceSpec, count: usize, now_ns: u64) -> Result<(), AddRefusal> {
        let (prompt, limit) = (spec.prompt.len(), self.config.queue_sequences);
        if prompt == 0 {
            return Err(AddRefusal::Invalid { what: "an empty prompt".to_owned() });
        }
        if count == 0 || count > limit {
            let what = format!("{count} sequences at once; the queue holds 1 to {limit}");
            return Err(AddRefusal::Invalid { what });
        }
        let needed = prompt.saturating_add(spec.max_new as usize);
        // The last token that is generated is never an input, so it needs no room of its own in the pool.
        let stored = needed.saturating_sub(usize::from(spec.max_new > 0));
        if needed > self.config.context_window || blocks_for(stored) > self.pool.total() {
            let pool = self.pool.total().saturating_mul(headrace_domain::BLOCK_TOKENS);
            let limit = self.config.context_window.min(pool) as u64;
            return Err(AddRefusal::DoesNotFit { needed: needed as u64, limit });
        }
        let waiting = self.waiting();
        if waiting + count > limit {
            let excess = (waiting + count - limit) as f64;
            let mean = self.waiting_tokens as f64 / waiting.max(1) as f64;
            let retry_after_ns = self.until_room(excess * mean);
            return Err(AddRefusal::QueueFull { what: "sequences", limit: limit as u64, retry_after_ns });
        }
        let (limit, after) = (self.config.queue_tokens, self.waiting_tokens + prompt as u64);
        // One prompt longer than the whole bound is taken when nothing else waits: refusing it would be for ever.
        if after > limit && waiting > 0 {
            let retry_after_ns = self.until_room((after - limit) as f64);
            return Err(AddRefusal::QueueFull { what: "tokens", limit, retry_after_ns });
        }
        if let Some(deadline) = spec.start_deadline_ns {
            let ahead = if self.must_wait() { self.waiting_tokens as f64 } else { 0.0 };
            let wait_ns = self.rate.nanos_for(ahead).unwrap_or(0);
            if now_ns.saturating_add(wait_ns) > deadline {
                return Err(AddRefusal::TooLate { wait_ns });
            }
        }
        Ok(())
    }

    /// Whether a newcomer queues behind others rather than joining the next step.
    fn must_wait(&self) -> bool {
        self.waiting() > 0 || self.running.len() >= self.config.max_running
    }

    /// Nanoseconds until `tokens` of the queue have been computed. Where every place is taken, one must end first:
    /// the soonest has that many rounds to go, and in each round every running sequence computes a token.
    fn until_room(&self, tokens: f64) -> u64 {
        let mut ahead = tokens;
        if self.running.len() >= self.config.max_running {
            let left = |s: &Sequence| s.remaining() + (s.max_new as usize).saturating_sub(s.generated());
            let soonest = self.running.iter().filter_map(|&id| self.sequences.get(id)).map(left).min();
            ahead += soonest.unwrap_or(0) as f64 * self.running.len() as f64;
        }
        self.rate.nanos_for(ahead).unwrap_or(0).max(NS_PER_S as u64)
    }

    /// Forgets a sequence, wherever it is. Its blocks are free at once; the full ones that earlier steps committed
    /// stay findable. `false`: it had ended already.
    pub fn abort(&mut self, id: SeqId) -> bool {
        self.drop_sequence(id)
    }

    /// Takes a sequence out of everything it stands in.
    pub(crate) fn drop_sequence(&mut self, id: SeqId) -> bool {
        let Some(state) = self.sequences.get(id).map(|s| s.state) else { return false };
        match state {
            State::Running => {
                self.release_blocks(id);
                self.running.retain(|&other| other != id);
            }
            State::Waiting | State::Deferred(_) => self.unqueue(id),
        }
        if let Some(sequence) = self.sequences.remove(id) {
            self.queue.leave(sequence.tenant);
        }
        true
    }

    /// Takes a waiting or deferred sequence out of its queue and off its leader's list.
    pub(crate) fn unqueue(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get(id) else { return };
        let (tenant, class, state) = (sequence.tenant, sequence.class, sequence.state);
        self.waiting_tokens = self.waiting_tokens.saturating_sub(sequence.queued_tokens);
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        match state {
            State::Waiting => self.queue.remove(tenant, class, id),
            State::Deferred(leader) => {
                self.deferred -= 1;
                if let Some(leader) = self.sequences.get_mut(leader) {
                    leader.followers.retain(|&(other, _)| other != id);
                }
            }
            State::Running => {}
        }
    }

    /// Gives back everything a running sequence holds or has announced, tail first, and wakes who waits for it.
    pub(crate) fn release_blocks(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        self.promised -= sequence.promised;
        sequence.promised = 0;
        sequence.computed = 0;
        for block in sequence.blocks.drain(..).rev() {
            self.pool.release(block);
        }
        self.withdraw(id, usize::MAX);
        self.wake_followers(id, usize::MAX);
    }

    /// How many of `ids`, from the first on, lie in the prefix cache: whole blocks, and never the last token. The
    /// keys can be computed before the scheduler is at hand, with [`crate::Scheduler::prefix_keys`].
    pub fn cached_prefix(&self, salt: &CacheSalt, ids: &[u32]) -> usize {
        self.cached_by_keys(salt, ids, &Self::prefix_keys(salt, ids))
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        Class::SERVED.iter().map(|&class| self.queue.len(class)).sum::<usize>() + self.deferred
    }

    /// Whether there is nothing to compute and nobody waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting() == 0
    }

    /// Sequences of a class that wait to be considered.
    pub(crate) fn waiting_in(&self, class: Class) -> usize {
        self.queue.len(class)
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting(),
            waiting_tokens: self.waiting_tokens,
            blocks_total: self.pool.total(),
            blocks_free: self.pool.free(),
            blocks_cached: self.pool.free_cached(),
            // A float beyond u32 saturates.
            tokens_per_second: self.rate.per_second() as u32,
        }
    }

    /// The limits it works within.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }
}

impl fmt::Display for AddRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { what, limit, .. } => write!(f, "the queue is full ({what}, limit {limit})"),
            Self::DoesNotFit { needed, limit } => {
                write!(f, "{needed} tokens are needed and there are {limit}")
            }
            Self::TooLate { wait_ns } => write!(f, "it would wait {} ms", wait_ns / 1_000_000),
            Self::Invalid { what } => write!(f, "not a sequence: {what}"),
        }
    }
}

impl std::error::Error for AddRefusal {}
