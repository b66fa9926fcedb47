//! The scheduler's state, and what comes in from outside a step: new sequences, aborts, questions.
//! Planning a step is in `plan`, what follows from a computed one in `commit`.

use std::collections::BTreeSet;
use std::fmt;

use crate::blocks::BlockPool;
use crate::fair::FairQueue;
use crate::nearest::ByKey;
use crate::rate::Rate;
use crate::sequence::{Sequence, Slab, State, blocks_for};
use crate::wait::Newcomer;
use crate::{Class, ConfigProblems, SchedulerConfig, SeqId, SequenceSpec, StepPlan};

/// Steps' worth of tokens that a tenant which was quiet may have ahead of the others.
const BURST_STEPS: usize = 2;
/// The part of the pool's tokens by which one may be further that has less than its share of the pool.
const LEAD_OF_POOL: usize = 4;
/// The part by which a foretold wait is taken longer where a deadline hangs on it.
const CAUTION: u64 = 8;
/// The least that anybody is asked to wait, in nanoseconds.
pub(crate) const LEAST_RETRY_NS: u64 = 1_000_000_000;
/// What anybody is asked to wait while nothing was measured, in nanoseconds: soon would be a guess.
pub(crate) const UNKNOWN_RETRY_NS: u64 = 10_000_000_000;

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
    pub(crate) announced: ByKey<SeqId>,
    /// (deadline, id) of waiting sequences that have one.
    pub(crate) deadlines: BTreeSet<(u64, SeqId)>,
    pub(crate) plan: StepPlan,
    /// Blocks spoken for by running sequences' known tokens and not taken yet.
    pub(crate) promised: usize,
    pub(crate) admissions: u64,
    pub(crate) deferred: usize,
    /// Of the running ones, those that stand still.
    pub(crate) paused_running: usize,
    /// Those that stand still and hold nothing.
    pub(crate) parked: usize,
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
    /// Sequences that are being computed.
    pub running: usize,
    /// Sequences that stand still ([`Scheduler::pause`]).
    pub paused: usize,
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
    /// Prompt tokens per second in a step of nothing else; 0 while unknown.
    pub prefill_tokens_per_second: u32,
    /// Tokens generated per second at the present batch; 0 while unknown.
    pub decode_tokens_per_second: u32,
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
    /// Its first token would not be there before its deadline.
    TooLate {
        /// Nanoseconds it would wait for others.
        wait_ns: u64,
        /// Nanoseconds its own prompt would take.
        prefill_ns: u64,
        /// Nanoseconds until the wait is short enough; `None`: its own prompt takes longer than it has.
        retry_after_ns: Option<u64>,
    },
    /// An empty prompt, or no or more sequences at once than the queue could ever hold.
    Invalid {
        /// Which.
        what: String,
    },
}

/// How a sequence came to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// At its own end.
    Ended,
    /// Nobody wants it any more.
    Aborted,
    /// What it computed is not to be trusted.
    Failed,
}

impl Scheduler {
    /// A scheduler of `block_count` KV blocks, all empty.
    ///
    /// # Errors
    /// [`ConfigProblems`] with every value that cannot work.
    pub fn new(config: SchedulerConfig, block_count: usize) -> Result<Self, ConfigProblems> {
        config.check(block_count)?;
        let pool_tokens = block_count.saturating_mul(headrace_domain::BLOCK_TOKENS);
        let queue =
            FairQueue::new(config.step_tokens.saturating_mul(BURST_STEPS), pool_tokens / LEAD_OF_POOL);
        let lifetime_ns = config.prefix_lifetime_ns.unwrap_or(u64::MAX);
        Ok(Self {
            config,
            sequences: Slab::default(),
            pool: BlockPool::new(block_count, lifetime_ns),
            queue,
            running: Vec::new(),
            announced: ByKey::default(),
            deadlines: BTreeSet::new(),
            plan: StepPlan::default(),
            promised: 0,
            admissions: 0,
            deferred: 0,
            paused_running: 0,
            parked: 0,
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
        self.pool.set_now(now_ns);
        self.refuse(spec, count, now_ns)?;
        for i in 0..count {
            let sequence = Sequence::new(spec, i == 0);
            let (tenant, class, deadline) = (sequence.tenant, sequence.class, sequence.deadline);
            let queued = sequence.queued_tokens;
            self.waiting_tokens += queued;
            let id = self.sequences.insert(sequence);
            self.queue.enter(tenant, class, spec.weight);
            self.queue.push_back(tenant, class, id, queued);
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
        self.refuse_full(spec, count)?;
        match spec.start_deadline_ns {
            Some(deadline) => self.refuse_late(&Newcomer::of(spec), deadline, now_ns),
            None => Ok(()),
        }
    }

    /// Refuses what the queue has no room for. Its last eighth is for tenants that have less than that waiting: a flood
    /// of one does not close the door to others.
    fn refuse_full(&self, spec: &SequenceSpec, count: usize) -> Result<(), AddRefusal> {
        let (own, own_tokens) = self.queue.queued_by(spec.tenant);
        let waiting = self.waiting();
        let (whole, kept) = (self.config.queue_sequences, self.config.queue_sequences / 8);
        let limit = if own + count > kept { whole - kept } else { whole };
        if waiting + count > limit {
            let excess = waiting + count - limit;
            let mean = self.waiting_tokens / waiting.max(1) as u64;
            let retry_after_ns = self.until_room(excess, mean.saturating_mul(excess as u64));
            return Err(AddRefusal::QueueFull { what: "sequences", limit: limit as u64, retry_after_ns });
        }
        let prompt = spec.prompt.len() as u64;
        let (whole, kept) = (self.config.queue_tokens, self.config.queue_tokens / 8);
        let limit = if own_tokens + prompt > kept { whole - kept } else { whole };
        let after = self.waiting_tokens + prompt;
        // One prompt longer than the whole bound is taken when nothing else waits: refusing it would be for ever.
        if after > limit && waiting > 0 {
            let mean = (self.waiting_tokens / waiting as u64).max(1);
            let excess = usize::try_from((after - limit).div_ceil(mean)).unwrap_or(waiting).min(waiting);
            let retry_after_ns = self.until_room(excess, after - limit);
            return Err(AddRefusal::QueueFull { what: "tokens", limit, retry_after_ns });
        }
        Ok(())
    }

    /// Refuses what would have no token by its deadline.
    fn refuse_late(&self, newcomer: &Newcomer<'_>, deadline: u64, now_ns: u64) -> Result<(), AddRefusal> {
        let Some(forecast) = self.forecast(newcomer) else { return Ok(()) };
        let (wait_ns, prefill_ns) = (forecast.wait_ns, forecast.prefill_ns);
        let allowed = deadline.saturating_sub(now_ns);
        // With a little room: under a steady overload the queue settles where newcomers are just not refused.
        let needed = wait_ns.saturating_add(wait_ns / CAUTION).saturating_add(prefill_ns);
        if needed <= allowed && now_ns <= deadline {
            return Ok(());
        }
        let helps = prefill_ns <= allowed && wait_ns > 0;
        let retry_after_ns = helps.then(|| (needed - allowed).max(LEAST_RETRY_NS));
        Err(AddRefusal::TooLate { wait_ns, prefill_ns, retry_after_ns })
    }

    /// Takes a step that was computed outside of any plan: so that the waits of a cold engine are foretold by what its model
    /// does on this machine. `prefill` prompt tokens, or `decode` sequences of one token each, took `elapsed_ns`.
    pub fn calibrate(&mut self, prefill: usize, decode: usize, elapsed_ns: u64) {
        if elapsed_ns > 0 {
            self.rate.observe(prefill, decode, elapsed_ns);
        }
    }

    /// Forgets a sequence, wherever it is. Its blocks are free at once. What it computed of them is findable no longer,
    /// unless others have built on it or wait for it (or [`SchedulerConfig::keep_aborted`]). `false`: it had ended already.
    pub fn abort(&mut self, id: SeqId) -> bool {
        self.drop_sequence(id, Gone::Aborted)
    }

    /// Forgets a sequence whose computation went wrong. Nothing that it computed stays findable, unless others have built
    /// on it. `false`: it had ended already.
    pub fn fail(&mut self, id: SeqId) -> bool {
        self.drop_sequence(id, Gone::Failed)
    }

    /// Takes a sequence out of everything it stands in.
    pub(crate) fn drop_sequence(&mut self, id: SeqId, gone: Gone) -> bool {
        self.unpause(id);
        let Some(sequence) = self.sequences.get(id) else { return false };
        let (state, tenant, class) = (sequence.state, sequence.tenant, sequence.class);
        match state {
            State::Running => {
                let keep = match gone {
                    Gone::Ended => true,
                    Gone::Aborted => self.config.keep_aborted || !sequence.followers.is_empty(),
                    Gone::Failed => false,
                };
                let own = if keep { &[][..] } else { sequence.blocks.get(sequence.found..).unwrap_or(&[]) };
                let own = own.to_vec();
                self.queue.runs(tenant, class, false);
                self.release_blocks(id);
                // From the end, so that those used up first stand first again.
                own.iter().rev().for_each(|&block| self.pool.take_back(block));
                self.running.retain(|&other| other != id);
            }
            State::Waiting | State::Deferred(_) => self.unqueue(id),
            State::Parked => {}
        }
        if let Some(sequence) = self.sequences.remove(id) {
            if gone == Gone::Ended && sequence.started {
                self.rate.observe_end(sequence.generated(), sequence.max_new as usize);
            }
            self.queue.leave(tenant, class);
        }
        true
    }

    /// Takes a waiting or deferred sequence out of its queue and off its leader's list.
    pub(crate) fn unqueue(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get(id) else { return };
        let (tenant, class, state) = (sequence.tenant, sequence.class, sequence.state);
        let sequence_tokens = sequence.queued_tokens;
        self.waiting_tokens = self.waiting_tokens.saturating_sub(sequence_tokens);
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        match state {
            State::Waiting => self.queue.remove(tenant, class, id, sequence_tokens),
            State::Deferred(leader) => {
                self.deferred -= 1;
                if let Some(leader) = self.sequences.get_mut(leader) {
                    leader.followers.retain(|&(other, _)| other != id);
                }
            }
            State::Running | State::Parked => {}
        }
    }

    /// Gives back everything a running sequence holds or has announced, tail first, and wakes who waits for it.
    pub(crate) fn release_blocks(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        self.promised -= sequence.promised;
        sequence.promised = 0;
        // A pool has fewer blocks than half of what a machine word counts.
        self.queue.holds(sequence.tenant, sequence.class, -(sequence.blocks.len() as isize));
        sequence.computed = 0;
        for block in sequence.blocks.drain(..).rev() {
            self.pool.release(block);
        }
        self.withdraw(id, usize::MAX);
        self.wake_followers(id, usize::MAX);
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        Class::SERVED.iter().map(|&class| self.queue.len(class)).sum::<usize>() + self.deferred
    }

    /// Whether there is nothing to compute and nobody waits. Some may stand still.
    pub fn is_idle(&self) -> bool {
        self.running.len() == self.paused_running && self.waiting() == 0
    }

    /// Sequences of a class that wait to be considered.
    pub(crate) fn waiting_in(&self, class: Class) -> usize {
        self.queue.len(class)
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let (prefill, decode) = self.speeds();
        Load {
            running: self.running.len() - self.paused_running,
            paused: self.paused_running + self.parked,
            waiting: self.waiting(),
            waiting_tokens: self.waiting_tokens,
            blocks_total: self.pool.total(),
            blocks_free: self.pool.free(),
            blocks_cached: self.pool.free_cached(),
            // A float beyond u32 saturates.
            tokens_per_second: self.rate.per_second() as u32,
            prefill_tokens_per_second: prefill as u32,
            decode_tokens_per_second: decode as u32,
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
            Self::TooLate { wait_ns, prefill_ns, .. } => {
                let (wait, prefill) = (wait_ns / 1_000_000, prefill_ns / 1_000_000);
                write!(f, "it would wait {wait} ms and its prompt takes {prefill} ms")
            }
            Self::Invalid { what } => write!(f, "not a sequence: {what}"),
        }
    }
}

impl std::error::Error for AddRefusal {}
