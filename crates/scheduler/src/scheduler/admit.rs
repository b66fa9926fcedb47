//! Whether one that waits may begin now: for its prefix, for a place, and for blocks, for which others may have to give way.
//! Knows nothing of what a step computes.

use headrace_domain::BLOCK_TOKENS;

use super::Scheduler;
use crate::running::Whole;
use crate::sequence::{Class, SeqId, blocks_for};
use crate::step::Started;

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

impl Scheduler {
    /// Admits one waiting sequence of a class (or lets one wait for another's prefix); `false`: none can be. One that
    /// does not fit lets a bounded number of others pass; after that what becomes free is kept for it. But nothing is kept
    /// for a tenant that has its fair share already.
    pub(super) fn admit_one(&mut self, class: Class) -> bool {
        let window = self.config.max_bypass as usize + 1;
        let mut passed: Vec<SeqId> = Vec::new();
        let mut order = std::mem::take(&mut self.scratch);
        let mut after = None;
        let mut admitted = false;
        let mut furthest = u64::MAX;
        for _ in 0..TENANTS_LOOKED_AT {
            order.clear();
            let (before, left) = (passed.len(), window.saturating_sub(passed.len()));
            after = self.tenants.candidates(class, after, left, &mut order);
            let Some((counter, tenant)) = after.filter(|_| left > 0) else { break };
            if counter > furthest {
                break;
            }
            let looked = self.admit_of(&order, &mut passed);
            admitted = looked == Some(true);
            if admitted {
                break;
            }
            if self.has_its_share(tenant) {
                passed.truncate(before);
                // Its turn it keeps: those who pass it have not been served much more.
                furthest = furthest.min(self.tenants.within_lead(counter));
            } else if looked.is_none() {
                break;
            }
        }
        self.scratch = order;
        admitted
    }

    /// Admits one of a tenant's first sequences; `None`: no room, which is to be kept for them.
    fn admit_of(&mut self, order: &[SeqId], passed: &mut Vec<SeqId>) -> Option<bool> {
        for &id in order {
            match self.look_at(id) {
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
        let whole = self.whole();
        self.tenants.running(tenant) >= self.tenants.share(tenant, whole.places).max(1)
            || self.tenants.blocks(tenant) >= self.tenants.share(tenant, whole.blocks).max(1)
    }

    fn whole(&self) -> Whole {
        Whole { places: self.config.max_running, blocks: self.prefixes.pool().total() }
    }

    fn look_at(&mut self, id: SeqId) -> Look {
        if self.plan.preempted.contains(&id) {
            // Its blocks were needed in this very step.
            return Look::NoPlace;
        }
        loop {
            let prefix = self.prefixes.find(id, &mut self.sequences);
            if let Some(leader) = prefix.leader {
                self.waiting.defer(id, leader, &mut self.sequences, &mut self.tenants);
                return Look::Deferred;
            }
            let Some(known) = self.sequences.get(id).map(|s| s.known().len()) else { return Look::TooBig };
            let place = self.running.len() < self.config.max_running;
            let needed = blocks_for(known) - prefix.hits + prefix.hits_free;
            // Some room for those that run to grow into, so that a newcomer is not thrown out at once.
            let spoken_for = self.running.promised() + self.running.computed().div_ceil(4);
            if place && needed <= self.prefixes.pool().free().saturating_sub(spoken_for) {
                self.admit(id);
                return Look::Admitted;
            }
            match self.gives_way(id, if place { needed } else { 0 }) {
                Some(victim) => self.preempt(victim),
                None if place => return Look::TooBig,
                None => return Look::NoPlace,
            }
        }
    }

    /// Who gives way to one that waits, here and now: what stands still to whoever it is, idle work to any other, and what
    /// goes beyond a fair share to those below theirs.
    fn gives_way(&self, waiting: SeqId, needs_blocks: usize) -> Option<SeqId> {
        let (sequences, tenants) = (&self.sequences, &self.tenants);
        let still = self.running.still_victim(sequences);
        let waiting = sequences.get(waiting).filter(|s| still.is_none() && !s.is_idle_work());
        let Some(waiting) = waiting else { return still };
        let idle = self.running.idle_victim(sequences, tenants);
        idle.or_else(|| self.running.beyond_share(waiting, needs_blocks, self.whole(), sequences, tenants))
    }

    fn admit(&mut self, id: SeqId) {
        self.waiting.take_out(id, &mut self.sequences, &mut self.tenants);
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        let miss = self.prefixes.take_found(sequence);
        sequence.own_tokens();
        sequence.charged = sequence.charged.max(sequence.computed);
        self.running.enter(id, sequence, &mut self.tenants);
        if !sequence.started {
            sequence.started = true;
            sequence.deadline = None;
            let (prompt, cached_tokens) = (sequence.prompt.len(), sequence.found * BLOCK_TOKENS);
            self.rate.observe_start(prompt, prompt - cached_tokens);
            let pinned = sequence.pinned;
            self.plan.started.push(Started { seq: id, cached_tokens, pinned, miss });
        }
        self.prefixes.announce(id, &mut self.sequences);
        self.plan_chunk(id);
    }
}
