//! What the next step computes: running sequences first, then waiting ones, within one token budget.
//! Decides; computes nothing and knows no time but the `now` it is given.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use headrace_domain::CacheMiss;

use crate::scheduler::{Gone, LEAST_RETRY_NS};
use crate::sequence::{Sequence, State, blocks_for};
use crate::{Class, Scheduler, SeqId};

/// Which logits of a chunk are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsNeed {
    /// None: only keys and values. An inner chunk where nothing is shared anyway.
    None,
    /// The last position's: at the end of the known tokens the next one is sampled from it, and it vouches for what it
    /// stands on. What is not a number at one position is not a number at any later one, so finite logits at the end
    /// of a chunk mean that every block up to there may be shared.
    Last,
    /// Every position's: the prompt is scored.
    All,
}

/// A run of one sequence's tokens to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedChunk {
    /// Whose.
    pub seq: SeqId,
    /// Position of the first token.
    pub start: usize,
    /// Tokens, at least one.
    pub len: usize,
    /// Which logits are wanted.
    pub logits: LogitsNeed,
    /// Whether the chunk ends with the last known token, so that a next one can be sampled.
    pub reaches_end: bool,
}

/// A sequence whose first chunk is in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Which.
    pub seq: SeqId,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
    /// Why not more did; `None`: all that can did.
    pub miss: Option<CacheMiss>,
}

/// A waiting sequence that was dropped because its start deadline had passed. It is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// Which.
    pub seq: SeqId,
    /// Nanoseconds after which what still waits before another like it will be computed; at least a second.
    pub retry_after_ns: u64,
}

/// One step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// What is to be computed; one chunk per sequence at most.
    pub chunks: Vec<PlannedChunk>,
    /// Sequences that begin with this step.
    pub started: Vec<Started>,
    /// Sequences that lost their blocks and wait again.
    pub preempted: Vec<SeqId>,
    /// Sequences that came too late for this step or any other.
    pub expired: Vec<Expired>,
    /// When it was planned, in the caller's nanoseconds.
    pub planned_ns: u64,
}

/// A planned chunk with what it refers to.
#[derive(Debug, Clone, Copy)]
pub struct ChunkView<'a> {
    /// The tokens to compute.
    pub tokens: &'a [u32],
    /// Physical blocks that cover every position from 0 to the end of the chunk.
    pub blocks: &'a [u32],
}

impl StepPlan {
    /// Tokens in all chunks.
    pub fn tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len).sum()
    }

    fn clear(&mut self, now_ns: u64) {
        self.chunks.clear();
        self.started.clear();
        self.preempted.clear();
        self.expired.clear();
        self.planned_ns = now_ns;
    }
}

/// Tenants whose first sequences are looked at in one go when there is no room for those before them.
const TENANTS_LOOKED_AT: usize = 8;

/// What became of looking at one waiting sequence.
enum Look {
    /// It is in the plan now.
    Admitted,
    /// It left the queue to wait for another's prefix.
    Deferred,
    /// It does not fit yet.
    TooBig,
    /// There is no place for anybody of its class.
    NoPlace,
}

/// A running prefill that waits for its part of the budget: the highest class first, then the tenant served least, then
/// the oldest.
type Turn = Reverse<(Reverse<Class>, u64, u64, SeqId)>;

impl Scheduler {
    /// Plans the next step at `now_ns`. Empty if there is nothing to compute. To be followed by
    /// [`Scheduler::commit`] unless it has no chunks.
    pub fn plan(&mut self, now_ns: u64) -> &StepPlan {
        self.plan.clear(now_ns);
        self.pool.set_now(now_ns);
        self.expire(now_ns);
        let mut budget = self.config.step_tokens;
        self.plan_decodes(false, &mut budget);
        self.plan_prefills(false, &mut budget);
        // Idle work gets what is left, and only when nobody else is waiting for it.
        if self.waiting() == self.waiting_in(Class::Idle) + self.deferred_idle() {
            self.plan_decodes(true, &mut budget);
            self.plan_prefills(true, &mut budget);
        }
        &self.plan
    }

    /// The step planned last.
    pub fn current(&self) -> &StepPlan {
        &self.plan
    }

    /// The tokens and blocks of a planned chunk; `None` if its sequence was aborted since.
    pub fn view(&self, chunk: &PlannedChunk) -> Option<ChunkView<'_>> {
        let sequence = self.sequences.get(chunk.seq)?;
        let end = chunk.start.checked_add(chunk.len)?;
        let tokens = sequence.known().get(chunk.start..end)?;
        let blocks = sequence.blocks.get(..blocks_for(end))?;
        Some(ChunkView { tokens, blocks })
    }

    fn deferred_idle(&self) -> usize {
        if self.deferred == 0 {
            return 0;
        }
        let idle = |&(id, _): &(SeqId, usize)| self.sequences.get(id).is_some_and(|s| s.class == Class::Idle);
        let followers =
            self.running.iter().filter_map(|&id| self.sequences.get(id)).flat_map(|s| &s.followers);
        followers.filter(|follower| idle(follower)).count()
    }

    /// Drops waiting sequences whose start deadline has passed, before any work is put into them.
    fn expire(&mut self, now_ns: u64) {
        let mut gone = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline < now_ns
        {
            if let Some(of) = self.sequences.get(id) {
                gone.push((id, (of.tenant, self.queue.weight(of.tenant), of.class)));
            }
            self.drop_sequence(id, Gone::Aborted);
        }
        // Told once all are gone, and once for each tenant of a flood.
        let mut told = None;
        for (seq, of) in gone {
            let retry_after_ns = match told {
                Some((same, wait)) if same == of => wait,
                _ => self.wait_of_another(of).max(LEAST_RETRY_NS),
            };
            told = Some((of, retry_after_ns));
            self.plan.expired.push(Expired { seq, retry_after_ns });
        }
    }

    /// Plans the sequences that decode: each needs one token, and somebody is reading along.
    fn plan_decodes(&mut self, idle: bool, budget: &mut usize) {
        let mut order = std::mem::take(&mut self.scratch);
        order.clear();
        let wanted = |s: &Sequence| (s.class == Class::Idle) == idle && s.remaining() == 1 && !s.paused;
        order.extend(self.running.iter().filter(|&&id| self.sequences.get(id).is_some_and(wanted)));
        for &id in &order {
            if *budget == 0 {
                break;
            }
            self.plan_one(id, budget);
        }
        self.scratch = order;
    }

    /// Shares what is left of the budget between prefills that run and sequences that wait: chunk by chunk it goes to the
    /// tenant served least, so that neither a long prompt nor a long queue of one stands before another's.
    fn plan_prefills(&mut self, idle: bool, budget: &mut usize) {
        let mut turns = self.prefills(idle);
        let classes: &[Class] = if idle { &[Class::Idle] } else { &[Class::High, Class::Normal] };
        let mut blocked = false;
        while *budget > 0 {
            let waiting =
                classes.iter().find_map(|&class| self.queue.first(class).map(|first| (class, first)));
            let next = self.next_prefill(&mut turns);
            match (next, waiting.filter(|_| !blocked)) {
                (None, None) => return,
                (Some((class, counter, id)), Some((other, (theirs, tenant))))
                    if other < class
                        || (other == class && counter < theirs)
                        || (other == class && counter == theirs && self.is_of(id, tenant)) =>
                {
                    turns.pop();
                    self.plan_one(id, budget);
                }
                (_, Some((class, _))) => blocked = !self.admit_one(class, budget),
                (Some((.., id)), None) => {
                    turns.pop();
                    self.plan_one(id, budget);
                }
            }
        }
    }

    fn is_of(&self, id: SeqId, tenant: u64) -> bool {
        self.sequences.get(id).is_some_and(|sequence| sequence.tenant == tenant)
    }

    /// The running sequences whose known tokens are not computed yet and who are in no chunk of this step.
    fn prefills(&self, idle: bool) -> BinaryHeap<Turn> {
        let mut turns = BinaryHeap::new();
        for &id in &self.running {
            let Some(s) = self.sequences.get(id) else { continue };
            if (s.class == Class::Idle) == idle && s.remaining() > 1 && !s.paused {
                turns.push(Reverse((Reverse(s.class), self.queue.counter(s.tenant), s.admitted, id)));
            }
        }
        turns
    }

    /// The prefill whose turn it is, left at the top: its tenant's counter may have grown since it was put there.
    fn next_prefill(&self, turns: &mut BinaryHeap<Turn>) -> Option<(Class, u64, SeqId)> {
        while let Some(mut top) = turns.peek_mut() {
            let Reverse((Reverse(class), counter, admitted, id)) = *top;
            let sequence = self.sequences.get(id).filter(|s| s.state == State::Running);
            match sequence.map(|s| self.queue.counter(s.tenant)) {
                Some(now) if now == counter => return Some((class, counter, id)),
                Some(now) => *top = Reverse((Reverse(class), now, admitted, id)),
                None => {
                    std::collections::binary_heap::PeekMut::pop(top);
                }
            }
        }
        None
    }

    /// Plans a chunk of a running sequence, preempting the least entitled one (possibly this one) while blocks lack.
    fn plan_one(&mut self, id: SeqId, budget: &mut usize) {
        let Some(sequence) = self.sequences.get(id).filter(|s| s.state == State::Running) else { return };
        let (start, known) = (sequence.computed, sequence.known().len());
        let cap =
            if scores_at(sequence, start) { self.config.max_score_chunk } else { self.config.max_chunk };
        let len = (known - start).min(cap).min(*budget);
        if len == 0 {
            return;
        }
        let lacking = blocks_for(start + len).saturating_sub(sequence.blocks.len());
        while self.pool.free() < lacking {
            match self.victim() {
                Some(victim) if victim != id => self.preempt(victim, budget),
                _ => return self.preempt(id, budget),
            }
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        for _ in 0..lacking {
            sequence.blocks.extend(self.pool.take());
        }
        self.queue.holds(sequence.tenant, sequence.class, lacking as isize);
        let kept = sequence.promised.min(lacking);
        sequence.promised -= kept;
        self.promised -= kept;
        let reaches_end = start + len == known;
        let logits = if scores_at(sequence, start) {
            LogitsNeed::All
        } else if reaches_end || self.config.prefix_cache {
            LogitsNeed::Last
        } else {
            LogitsNeed::None
        };
        // Prompt tokens are charged once: not those from the cache, nor a recompute that is not the tenant's doing.
        let upto = (start + len).min(sequence.prompt.len());
        let charge = upto.saturating_sub(sequence.charged);
        sequence.charged = sequence.charged.max(upto);
        let tenant = sequence.tenant;
        if charge > 0 {
            self.queue.charge(tenant, charge as u64);
        }
        *budget -= len;
        self.plan.chunks.push(PlannedChunk { seq: id, start, len, logits, reaches_end });
    }

    /// The running sequence least entitled to its blocks: what stands still before what does not, idle work before other,
    /// then of the tenant that holds most for its weight, then the youngest.
    fn victim(&self) -> Option<SeqId> {
        let burden = |s: &Sequence| {
            let blocks = self.queue.blocks(s.tenant) as u64;
            blocks.saturating_mul(crate::fair::SCALE) / self.queue.weight(s.tenant)
        };
        let candidates = self.running.iter().filter_map(|&id| self.sequences.get(id).map(|s| (id, s)));
        let entitled = |s: &Sequence| (!s.paused, s.class, Reverse(burden(s)), Reverse(s.admitted));
        candidates.min_by_key(|(_, s)| entitled(s)).map(|(id, _)| id)
    }

    fn idle_victim(&self) -> Option<SeqId> {
        if self.queue.all_running() + self.paused_running == self.running.len() {
            return None;
        }
        let idle = |&id: &SeqId| {
            let idle = self.sequences.get(id).filter(|s| s.class == Class::Idle && !s.paused);
            idle.map(|s| (Reverse(s.admitted), id))
        };
        self.running.iter().filter_map(idle).min().map(|(_, id)| id)
    }

    /// A running sequence of a tenant beyond its fair share, where the one that waits, which needs so many blocks (0: it
    /// lacks only a place), would stay within its own. So neither places nor blocks are kept by who came first, and
    /// as nobody is put below its share, nothing goes back and forth.
    fn over_share(&self, waiting: SeqId, needs_blocks: usize) -> Option<SeqId> {
        let sequence = self.sequences.get(waiting)?;
        let (tenant, class) = (sequence.tenant, sequence.class);
        let places = self.config.max_running;
        if self.queue.running(tenant) + 1 > self.queue.share(tenant, places).max(1)
            || self.queue.blocks(tenant) + needs_blocks > self.queue.share(tenant, self.pool.total())
        {
            return None;
        }
        let blocks = (needs_blocks > 0).then(|| self.pool.total());
        let other = self.queue.furthest_beyond(tenant, places, blocks)?;
        let candidates = self.running.iter().filter_map(|&id| self.sequences.get(id).map(|s| (id, s)));
        let youngest = candidates.filter(|(_, s)| s.tenant == other && s.class <= class);
        youngest.max_by_key(|(_, s)| s.admitted).map(|(id, _)| id)
    }

    /// Frees a running sequence's blocks and puts it at the head of its queue (or, if it stands still, aside). It will be
    /// computed again, from whatever of it the cache still has then. If it stood in this plan, its tokens go back to the
    /// budget.
    fn preempt(&mut self, id: SeqId, budget: &mut usize) {
        let paused = self.sequences.get(id).is_some_and(|s| s.paused);
        if paused {
            self.cede(id, false);
        }
        self.release_blocks(id);
        self.running.retain(|&other| other != id);
        if let Some(at) = self.plan.chunks.iter().position(|chunk| chunk.seq == id) {
            *budget += self.plan.chunks.remove(at).len;
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.bypassed = 0;
        sequence.queued_tokens = sequence.known().len() as u64;
        self.queue.runs(sequence.tenant, sequence.class, false);
        if paused {
            sequence.state = State::Parked;
            // That it is computed again is its own reader's doing.
            sequence.charged = 0;
            self.parked += 1;
        } else {
            sequence.state = State::Waiting;
            self.waiting_tokens += sequence.queued_tokens;
            self.queue.push_front(sequence.tenant, sequence.class, id, sequence.queued_tokens);
        }
        self.plan.preempted.push(id);
    }

    /// Admits one waiting sequence of a class (or lets one wait for another's prefix); `false`: none can be. One that
    /// does not fit lets a bounded number of others pass; after that what becomes free is kept for it. But nothing is kept
    /// for a tenant that has its fair share already.
    fn admit_one(&mut self, class: Class, budget: &mut usize) -> bool {
        let window = self.config.max_bypass as usize + 1;
        let mut passed: Vec<SeqId> = Vec::new();
        let mut order = std::mem::take(&mut self.scratch);
        let mut after = None;
        let mut admitted = false;
        let mut furthest = u64::MAX;
        for _ in 0..TENANTS_LOOKED_AT {
            order.clear();
            let (before, left) = (passed.len(), window.saturating_sub(passed.len()));
            after = self.queue.candidates(class, after, left, &mut order);
            let Some((counter, tenant)) = after.filter(|_| left > 0) else { break };
            if counter > furthest {
                break;
            }
            let looked = self.admit_of(&order, &mut passed, budget);
            admitted = looked == Some(true);
            if admitted {
                break;
            }
            if self.has_its_share(tenant) {
                passed.truncate(before);
                // Its turn it keeps: those who pass it have not been served much more.
                furthest = furthest.min(self.queue.within_lead(counter));
            } else if looked.is_none() {
                break;
            }
        }
        self.scratch = order;
        admitted
    }

    /// Admits one of a tenant's first sequences; `None`: no room, which is to be kept for them.
    fn admit_of(&mut self, order: &[SeqId], passed: &mut Vec<SeqId>, budget: &mut usize) -> Option<bool> {
        for &id in order {
            match self.look_at(id, budget) {
                Look::Admitted => {
                    for waiting in passed.iter() {
                        if let Some(sequence) = self.sequences.get_mut(*waiting) {
                            sequence.bypassed += 1;
                        }
                    }
                    return Some(true);
                }
                Look::Deferred => return Some(true),
                Look::TooBig => {
                    let waited = self.sequences.get(id).map_or(0, |s| s.bypassed);
                    if waited >= self.config.max_bypass {
                        return None;
                    }
                    passed.push(id);
                }
                Look::NoPlace => return None,
            }
        }
        // Other tenants' may pass all of these.
        Some(false)
    }

    /// Whether a tenant holds its fair share of places or of blocks.
    fn has_its_share(&self, tenant: u64) -> bool {
        if self.queue.running(tenant) >= self.queue.share(tenant, self.config.max_running).max(1) {
            return true;
        }
        self.queue.blocks(tenant) >= self.queue.share(tenant, self.pool.total()).max(1)
    }

    fn look_at(&mut self, id: SeqId, budget: &mut usize) -> Look {
        let Some(class) = self.sequences.get(id).map(|s| s.class) else { return Look::TooBig };
        if self.plan.preempted.contains(&id) {
            // Its blocks were needed in this very step.
            return Look::NoPlace;
        }
        loop {
            let prefix = self.find_prefix(id, None);
            if let Some((leader, blocks)) = prefix.leader {
                self.defer(id, leader, blocks);
                return Look::Deferred;
            }
            let place = self.running.len() < self.config.max_running;
            let known = self.sequences.get(id).map_or(0, |s| s.known().len());
            let needed = blocks_for(known) - prefix.hits + prefix.hits_free;
            // Some room for those that run to grow into, so that a newcomer is not thrown out at once.
            let headroom = (self.running.len() - self.paused_running).div_ceil(4);
            let left = self.pool.free().saturating_sub(self.promised + headroom);
            if place && needed <= left {
                self.admit(id, budget);
                return Look::Admitted;
            }
            // What stands still gives way to whoever waits, and idle work to any other, here and now; and what goes beyond
            // a fair share to those below theirs.
            let victim = self.paused_victim().or_else(|| match class {
                Class::Idle => None,
                _ => self.idle_victim().or_else(|| self.over_share(id, if place { needed } else { 0 })),
            });
            match victim {
                Some(victim) => self.preempt(victim, budget),
                None if place => return Look::TooBig,
                None => return Look::NoPlace,
            }
        }
    }

    fn admit(&mut self, id: SeqId, budget: &mut usize) {
        let mut blocks = Vec::new();
        let prefix = self.find_prefix(id, Some(&mut blocks));
        self.unqueue(id);
        let first = self.sequences.get(id).is_some_and(|s| !s.started);
        let miss = if first { self.explain_miss(id, prefix.hits) } else { None };
        self.admissions += 1;
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        for (at, &block) in blocks.iter().enumerate() {
            // What it computed itself before it was preempted is still its own.
            self.pool.share(block, first || at < sequence.found);
        }
        sequence.own_tokens();
        sequence.state = State::Running;
        sequence.admitted = self.admissions;
        sequence.computed = prefix.hits * headrace_domain::BLOCK_TOKENS;
        sequence.blocks = blocks;
        sequence.promised = blocks_for(sequence.known().len()) - prefix.hits;
        self.promised += sequence.promised;
        sequence.charged = sequence.charged.max(sequence.computed);
        self.queue.runs(sequence.tenant, sequence.class, true);
        self.queue.holds(sequence.tenant, sequence.class, prefix.hits as isize);
        if first {
            let cached_tokens = sequence.computed;
            sequence.started = true;
            sequence.deadline = None;
            sequence.found = prefix.hits;
            self.rate.observe_start(sequence.prompt.len(), sequence.prompt.len() - cached_tokens);
            self.plan.started.push(Started { seq: id, cached_tokens, miss });
        }
        self.running.push(id);
        self.announce(id, prefix.hits);
        self.plan_one(id, budget);
    }
}

/// Whether a chunk that starts at `start` covers prompt positions whose logits are still wanted: all but the last
/// predict a prompt token.
fn scores_at(sequence: &Sequence, start: usize) -> bool {
    let upto = sequence.prompt.len().saturating_sub(1);
    sequence.scoring && sequence.scored < upto && start < upto
}
