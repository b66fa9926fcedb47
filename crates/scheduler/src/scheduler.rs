//! The scheduler's state, and what comes in from outside a step: new sequences, aborts, questions.
//! Each part of the state keeps its own books; here one sequence is taken from part to part.

mod admit;
mod commit;
mod invariants;
mod pause;
mod plan;
mod raise;

use headrace_domain::{BLOCK_TOKENS, PrefixKeys};

use crate::ageing::Ageing;
use crate::config::{ConfigProblems, SchedulerConfig};
use crate::door::AddRefusal;
use crate::fair::FairQueue;
use crate::outlook::Outlook;
use crate::prefixes::Prefixes;
use crate::rate::Rate;
use crate::running::Running;
use crate::sequence::{SeqId, Sequence, SequenceSpec, Slab, State};
use crate::step::StepPlan;
use crate::waiting::Waiting;
use crate::work::{Work, WorkDone};

/// Steps' worth of tokens that a tenant which was quiet may have ahead of the others.
const BURST_STEPS: usize = 2;
/// The part of the pool's tokens by which one may be further that has less than its share of the pool.
const LEAD_OF_POOL: usize = 4;

/// Decides what each step computes. See the crate's documentation.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    /// Every living sequence, by its id.
    sequences: Slab,
    /// Whose turn it is, and what each tenant holds.
    tenants: FairQueue,
    waiting: Waiting,
    running: Running,
    /// Which idle work is served although others want all there is.
    ageing: Ageing,
    prefixes: Prefixes,
    /// What steps cost lately.
    rate: Rate,
    /// What they were spent on.
    work: WorkDone,
    plan: StepPlan,
    /// Tokens of the step's budget that its plan has not given away yet.
    left: usize,
    /// Reused between steps.
    scratch: Vec<SeqId>,
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

/// How a sequence came to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
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
        let pool_tokens = block_count.saturating_mul(BLOCK_TOKENS);
        let burst = config.step_tokens.saturating_mul(BURST_STEPS);
        Ok(Self {
            sequences: Slab::default(),
            tenants: FairQueue::new(burst, pool_tokens / LEAD_OF_POOL),
            waiting: Waiting::default(),
            running: Running::default(),
            ageing: Ageing::default(),
            prefixes: Prefixes::new(&config, block_count),
            rate: Rate::default(),
            work: WorkDone::default(),
            plan: StepPlan::default(),
            left: 0,
            scratch: Vec::new(),
            config,
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
        self.prefixes.set_now(now_ns);
        self.outlook().admits(spec, count, now_ns)?;
        for i in 0..count {
            let id = self.sequences.insert(Sequence::new(spec, i == 0));
            self.tenants.enter(spec.tenant, spec.class, spec.weight);
            if let Some(sequence) = self.sequences.get(id) {
                self.waiting.arrive(id, sequence, &mut self.tenants);
            }
            ids.push(id);
        }
        Ok(())
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
    fn drop_sequence(&mut self, id: SeqId, gone: Gone) -> bool {
        self.unpause(id);
        let Some(sequence) = self.sequences.get(id) else { return false };
        match sequence.state {
            State::Running => {
                let keep = match gone {
                    Gone::Ended => true,
                    Gone::Aborted => self.config.keep_aborted || !sequence.followers.is_empty(),
                    Gone::Failed => false,
                };
                self.stop(id, keep);
            }
            State::Waiting | State::Deferred(_) => {
                self.waiting.take_out(id, &mut self.sequences, &mut self.tenants);
            }
            State::Parked => {}
        }
        self.ageing.lower(id);
        if let Some(sequence) = self.sequences.remove(id) {
            if gone == Gone::Ended && sequence.started {
                self.rate.observe_end(sequence.generated(), sequence.max_new as usize);
            }
            self.prefixes.leave(&sequence);
            self.tenants.leave(sequence.tenant, sequence.class);
        }
        true
    }

    /// A running sequence loses its place and its blocks, and whoever waits for its prefix waits no more. What it computed
    /// itself stays findable, or (not `keep`) does not unless others have built on it.
    fn stop(&mut self, id: SeqId, keep: bool) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        self.running.leave(id, sequence, &mut self.tenants);
        self.prefixes.give_back(id, sequence, keep);
        self.waiting.wake_followers(id, usize::MAX, &mut self.sequences, &mut self.tenants);
    }

    /// How many tokens of a prompt, from the first on, lie in the prefix cache: whole blocks, and never the last token.
    pub fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.prefixes.cached_tokens(keys)
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len(&self.tenants)
    }

    /// Sequences that are computed, whoever's; and of these and those that wait, a tenant's: what a newcomer of it finds.
    pub fn ahead_of(&self, tenant: u64) -> (usize, usize) {
        let own = self.tenants.running(tenant) + self.tenants.queued_by(tenant).0;
        (self.running.computed(), own)
    }

    /// What steps were spent on since the start, and the part of it that was a tenant's. That part is told only while somebody
    /// waits, and counts from when somebody began to: differences of it mean something to who waits.
    pub fn work_of(&self, tenant: u64) -> (Work, Work) {
        self.work.seen(tenant)
    }

    /// What steps were spent on since the start.
    pub const fn work(&self) -> Work {
        self.work.all()
    }

    /// Whether there is nothing to compute and nobody waits. Some may stand still.
    pub fn is_idle(&self) -> bool {
        self.running.computed() == 0 && self.waiting() == 0
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let (prefill, decode) = self.outlook().speeds();
        let pool = self.prefixes.pool();
        Load {
            running: self.running.computed(),
            paused: self.running.still() + self.waiting.parked(),
            waiting: self.waiting(),
            waiting_tokens: self.waiting.tokens(),
            blocks_total: pool.total(),
            blocks_free: pool.free(),
            blocks_cached: pool.free_cached(),
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

    fn outlook(&self) -> Outlook<'_> {
        Outlook {
            config: &self.config,
            sequences: &self.sequences,
            running: &self.running,
            waiting: &self.waiting,
            tenants: &self.tenants,
            prefixes: &self.prefixes,
            rate: &self.rate,
        }
    }
}
