//! The scheduler's state, and the calls that arrive between steps: new sequences, aborts, queries. Each part keeps its
//! own state; this file moves sequences from part to part.

mod admit;
mod commit;
mod invariants;
mod pause;
mod plan;
mod raise;

use headrace_domain::{PrefixKeys, RequestId};
use headrace_kv_layout::{KvLayout, PerGroup};

use crate::ageing::Ageing;
use crate::config::{ConfigProblems, SchedulerConfig};
use crate::fair::FairQueue;
use crate::outlook::Outlook;
use crate::prefixes::Prefixes;
use crate::queue_admission::AddRefusal;
use crate::rate::Rate;
use crate::running::Running;
use crate::sequence::{SeqId, Sequence, SequenceSpec, Slab, State};
use crate::step::StepPlan;
use crate::waiting::Waiting;
use crate::work::{Work, WorkDone};

/// How far a tenant that was away may be ahead of the others, in steps' worth of tokens.
const BURST_STEPS: usize = 2;
/// Divisor of the pool's tokens. A tenant below its share of the pool may be ahead by this further part.
const LEAD_OF_POOL: usize = 4;

/// Decides what each step computes. See the crate's documentation.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    /// Every living sequence, by its id.
    sequences: Slab,
    /// The tenants' turns, and what each tenant holds.
    tenants: FairQueue,
    waiting: Waiting,
    running: Running,
    /// The idle sequence that is served although other work needs all capacity.
    ageing: Ageing,
    prefixes: Prefixes,
    /// Recent step costs.
    rate: Rate,
    /// The work that steps were spent on.
    work: WorkDone,
    plan: StepPlan,
    /// Tokens of the step's budget that the plan has not assigned yet.
    left: usize,
    /// Sequences that wait for a slot that another chunk of the planned step releases.
    late: Vec<SeqId>,
    /// Reused between steps.
    scratch: Vec<SeqId>,
}

/// Number of blocks of a cache group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockCounts {
    /// All blocks. 0 if the model has no such layers.
    pub total: usize,
    /// Blocks that no sequence holds.
    pub free: usize,
    /// Free blocks that hold a cached prefix.
    pub cached: usize,
}

/// The load of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Sequences that are being computed.
    pub running: usize,
    /// Sequences that are paused ([`Scheduler::pause`]).
    pub paused: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Prompt tokens that wait to be computed.
    pub waiting_tokens: u64,
    /// The blocks of each cache group.
    pub blocks: PerGroup<BlockCounts>,
    /// Recent tokens computed per second; 0 while unknown.
    pub tokens_per_second: u32,
    /// Prompt tokens per second in a step that computes nothing else; 0 while unknown.
    pub prefill_tokens_per_second: u32,
    /// Tokens generated per second at the current batch size; 0 while unknown.
    pub decode_tokens_per_second: u32,
}

/// Why a sequence left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DropCause {
    /// It ended by itself.
    Ended,
    /// Its caller no longer wants it.
    Aborted,
    /// Its results cannot be trusted.
    Failed,
}

impl Scheduler {
    /// Creates a scheduler over the KV blocks of `layout`, all empty.
    ///
    /// # Errors
    /// [`ConfigProblems`] with every value that cannot work.
    pub fn new(config: SchedulerConfig, layout: KvLayout) -> Result<Self, ConfigProblems> {
        config.check(&layout)?;
        let pool_tokens = layout.pool_tokens(config.context_window);
        let burst = config.step_tokens.saturating_mul(BURST_STEPS);
        Ok(Self {
            sequences: Slab::default(),
            tenants: FairQueue::new(burst, pool_tokens / LEAD_OF_POOL, layout.block_bytes()),
            waiting: Waiting::default(),
            running: Running::default(),
            ageing: Ageing::default(),
            prefixes: Prefixes::new(&config, layout),
            rate: Rate::default(),
            work: WorkDone::default(),
            plan: StepPlan::default(),
            left: 0,
            late: Vec::new(),
            scratch: Vec::new(),
            config,
        })
    }

    /// Queues one sequence. See [`Self::add_group`].
    ///
    /// # Errors
    /// [`AddRefusal`]. Nothing has been queued then.
    pub fn add(&mut self, spec: &SequenceSpec, now_ns: u64) -> Result<SeqId, AddRefusal> {
        let mut ids = Vec::with_capacity(1);
        self.add_group(spec, 1, now_ns, &mut ids)?;
        ids.pop().ok_or_else(|| AddRefusal::Invalid { what: "no sequence".to_owned() })
    }

    /// Queues `count` sequences of one spec, all or none, and appends their ids to `ids`. They share the prompt: the
    /// first one computes it, and the others take it from the cache.
    ///
    /// # Errors
    /// [`AddRefusal`]. Nothing has been queued then.
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

    /// Records a step that was computed outside of any plan, so that a cold engine can forecast waits from its model's
    /// speed on this machine. `prefill` prompt tokens, or `decode` sequences of one token each, took `elapsed_ns`.
    pub fn calibrate(&mut self, prefill: usize, decode: usize, elapsed_ns: u64) {
        if elapsed_ns > 0 {
            self.rate.observe(prefill, decode, elapsed_ns);
        }
    }

    /// Drops a sequence in any state. Its blocks are free at once. Blocks that it computed itself are no longer
    /// findable, unless others have built on them or wait for them, or [`SchedulerConfig::keep_aborted`] is set.
    /// Returns `false` if the sequence had ended already.
    pub fn abort(&mut self, id: SeqId) -> bool {
        self.drop_sequence(id, DropCause::Aborted)
    }

    /// Drops a sequence whose computation failed. Nothing that it computed stays findable, unless others have built on
    /// it. Returns `false` if the sequence had ended already.
    pub fn fail(&mut self, id: SeqId) -> bool {
        self.drop_sequence(id, DropCause::Failed)
    }

    /// Releases all pins that a call holds ([`SequenceSpec::held`]). Its sequences that still run or wait hold nothing
    /// any more. A block that a caller asked to pin, or that another call holds, stays pinned. Call it once when the call
    /// no longer needs its prefix, however it ended.
    pub fn release_pins(&mut self, owner: RequestId) {
        for sequence in self.sequences.iter_mut() {
            if sequence.held.is_some_and(|held| held.owner == owner) {
                self.prefixes.let_go(sequence);
            }
        }
        self.prefixes.release_pins_of(owner);
    }

    /// Number of blocks of each cache group that are pinned or reserved for pins.
    pub fn pinned_blocks(&self) -> PerGroup<usize> {
        self.prefixes.groups().pools().map(|pool| pool.audit_pins().all().0)
    }

    /// Removes a sequence from every list and count.
    fn drop_sequence(&mut self, id: SeqId, cause: DropCause) -> bool {
        self.unpause(id);
        let Some(sequence) = self.sequences.get(id) else { return false };
        match sequence.state {
            State::Running => {
                let keep = match cause {
                    DropCause::Ended => true,
                    DropCause::Aborted => self.config.keep_aborted || !sequence.followers.is_empty(),
                    DropCause::Failed => false,
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
            if cause == DropCause::Ended && sequence.started {
                self.rate.observe_end(sequence.generated(), sequence.max_new as usize);
            }
            self.prefixes.leave(&sequence);
            self.tenants.leave(sequence.tenant, sequence.class);
        }
        true
    }

    /// Takes a running sequence's slot and blocks, and wakes the sequences that wait for its prefix. With `keep`, the
    /// blocks that it computed itself stay findable. Without it they do not, unless others have built on them.
    fn stop(&mut self, id: SeqId, keep: bool) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        self.running.leave(id, sequence, &mut self.tenants);
        self.prefixes.give_back(id, sequence, keep);
        self.waiting.wake_followers(id, usize::MAX, &mut self.sequences, &mut self.tenants);
    }

    /// Number of leading prompt tokens that are in the prefix cache. Counts whole blocks, and never the last token.
    pub fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.prefixes.cached_tokens(keys)
    }

    /// Sequences that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len(&self.tenants)
    }

    /// What a new sequence of a tenant finds: the computed sequences of all tenants, and the tenant's own running and
    /// queued sequences.
    pub fn ahead_of(&self, tenant: u64) -> (usize, usize) {
        let own = self.tenants.running(tenant) + self.tenants.queued_by(tenant).0;
        (self.running.computed(), own)
    }

    /// The work of all steps since the start, and the tenant's part of it. The tenant's part is kept only while a
    /// sequence waits, and counts from when the first one began to wait. A waiting sequence should use differences of
    /// it.
    pub fn work_of(&self, tenant: u64) -> (Work, Work) {
        self.work.seen(tenant)
    }

    /// The work of all steps since the start.
    pub const fn work(&self) -> Work {
        self.work.all()
    }

    /// Whether there is nothing to compute and no sequence waits. Some sequences may be paused.
    pub fn is_idle(&self) -> bool {
        self.running.computed() == 0 && self.waiting() == 0
    }

    /// The current load.
    pub fn load(&self) -> Load {
        let (prefill, decode) = self.outlook().speeds();
        let pools = self.prefixes.groups().pools();
        Load {
            running: self.running.computed(),
            paused: self.running.paused() + self.waiting.parked(),
            waiting: self.waiting(),
            waiting_tokens: self.waiting.tokens(),
            blocks: pools.map(|pool| BlockCounts {
                total: pool.total(),
                free: pool.free(),
                cached: pool.free_cached(),
            }),
            // A float beyond u32 saturates.
            tokens_per_second: self.rate.per_second() as u32,
            prefill_tokens_per_second: prefill as u32,
            decode_tokens_per_second: decode as u32,
        }
    }

    /// The cache groups of this scheduler.
    pub const fn layout(&self) -> &KvLayout {
        self.prefixes.groups().layout()
    }

    /// The limits of this scheduler.
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
