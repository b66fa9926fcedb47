//! What the next step computes: running sequences first, then waiting ones, within one token budget.
//! Decides; computes nothing and knows no time but the `now` it is given.

use crate::fair::FairQueue;
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
    /// Sequences that were dropped because their start deadline had passed. They are gone.
    pub expired: Vec<SeqId>,
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

impl Scheduler {
    /// Plans the next step at `now_ns`. Empty if there is nothing to compute. To be followed by
    /// [`Scheduler::commit`] unless it has no chunks.
    pub fn plan(&mut self, now_ns: u64) -> &StepPlan {
        self.plan.clear(now_ns);
        self.expire(now_ns);
        let mut budget = self.config.step_tokens;
        self.plan_running(false, &mut budget);
        self.admit_class(Class::High, &mut budget);
        if self.waiting_in(Class::High) == 0 {
            self.admit_class(Class::Normal, &mut budget);
        }
        // Idle work gets what is left, and only when nobody else is waiting for it.
        if self.waiting() == self.waiting_in(Class::Idle) + self.deferred_idle() {
            self.plan_running(true, &mut budget);
            self.admit_class(Class::Idle, &mut budget);
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
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline >= now_ns {
                return;
            }
            self.drop_sequence(id);
            self.plan.expired.push(id);
        }
    }

    /// Plans the sequences that run already: those that decode first, since each needs one token and somebody is
    /// reading along; then prefills, the oldest first.
    fn plan_running(&mut self, idle: bool, budget: &mut usize) {
        for decoding in [true, false] {
            let mut order = std::mem::take(&mut self.scratch);
            order.clear();
            let wanted = |s: &Sequence| (s.class == Class::Idle) == idle && (s.remaining() == 1) == decoding;
            order.extend(self.running.iter().filter(|&&id| self.sequences.get(id).is_some_and(wanted)));
            for &id in &order {
                if *budget == 0 {
                    break;
                }
                self.plan_one(id, budget);
            }
            self.scratch = order;
        }
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
            match self.victim(|_| true) {
                Some(victim) if victim != id => self.preempt(victim, budget),
                _ => return self.preempt(id, budget),
            }
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        for _ in 0..lacking {
            sequence.blocks.extend(self.pool.take());
        }
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
        *budget -= len;
        self.plan.chunks.push(PlannedChunk { seq: id, start, len, logits, reaches_end });
    }

    /// The running sequence least entitled to its blocks: idle before others, then the tenant served most, then the
    /// youngest.
    fn victim(&self, among: impl Fn(&Sequence) -> bool) -> Option<SeqId> {
        let rank = |queue: &FairQueue, s: &Sequence| {
            (s.class, u64::MAX - queue.counter(s.tenant), u64::MAX - s.admitted)
        };
        let candidates = self.running.iter().filter_map(|&id| self.sequences.get(id).map(|s| (id, s)));
        candidates.filter(|(_, s)| among(s)).min_by_key(|(_, s)| rank(&self.queue, s)).map(|(id, _)| id)
    }

    /// Frees a running sequence's blocks and puts it at the head of its queue. It will be computed again, from
    /// whatever of it the cache still has then. If it stood in this plan, its tokens go back to the budget.
    fn preempt(&mut self, id: SeqId, budget: &mut usize) {
        self.release_blocks(id);
        self.running.retain(|&other| other != id);
        if let Some(at) = self.plan.chunks.iter().position(|chunk| chunk.seq == id) {
            *budget += self.plan.chunks.remove(at).len;
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.state = State::Waiting;
        sequence.bypassed = 0;
        sequence.queued_tokens = sequence.known().len() as u64;
        self.waiting_tokens += sequence.queued_tokens;
        self.queue.push_front(sequence.tenant, sequence.class, id);
        self.plan.preempted.push(id);
    }

    /// Admits waiting sequences of one class while budget, places and blocks last. One that does not fit lets a
    /// bounded number of others pass; after that what becomes free is kept for it.
    fn admit_class(&mut self, class: Class, budget: &mut usize) {
        let window = self.config.max_bypass as usize + 1;
        let mut candidates = Vec::new();
        'again: while *budget > 0 && self.waiting_in(class) > 0 {
            candidates.clear();
            self.queue.candidates(class, window, &mut candidates);
            for (passed, &id) in candidates.iter().enumerate() {
                match self.look_at(id, budget) {
                    Look::Admitted => {
                        for &waiting in candidates.iter().take(passed) {
                            if let Some(sequence) = self.sequences.get_mut(waiting) {
                                sequence.bypassed += 1;
                            }
                        }
                        continue 'again;
                    }
                    Look::Deferred => continue 'again,
                    Look::TooBig => {
                        let waited = self.sequences.get(id).map_or(0, |s| s.bypassed);
                        if waited >= self.config.max_bypass {
                            return;
                        }
                    }
                    Look::NoPlace => return,
                }
            }
            return;
        }
    }

    fn look_at(&mut self, id: SeqId, budget: &mut usize) -> Look {
        let Some(class) = self.sequences.get(id).map(|s| s.class) else { return Look::TooBig };
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
            let headroom = self.running.len().div_ceil(4);
            let left = self.pool.free().saturating_sub(self.promised + headroom);
            if place && needed <= left {
                self.admit(id, budget);
                return Look::Admitted;
            }
            // Idle work gives way to any other, here and now.
            let idle = if class == Class::Idle { None } else { self.victim(|s| s.class == Class::Idle) };
            match idle {
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
        for &block in &blocks {
            self.pool.share(block);
        }
        self.admissions += 1;
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.own_tokens();
        sequence.state = State::Running;
        sequence.admitted = self.admissions;
        sequence.computed = prefix.hits * headrace_domain::BLOCK_TOKENS;
        sequence.blocks = blocks;
        sequence.promised = blocks_for(sequence.known().len()) - prefix.hits;
        self.promised += sequence.promised;
        if !sequence.started {
            sequence.started = true;
            sequence.deadline = None;
            let cached_tokens = sequence.computed;
            // A recompute after preemption is not the tenant's doing and not charged again.
            self.queue.charge(sequence.tenant, (sequence.prompt.len() - cached_tokens) as u64);
            self.plan.started.push(Started { seq: id, cached_tokens });
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
