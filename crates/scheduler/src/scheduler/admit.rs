//! Decides whether a waiting sequence may start now. It may have to wait for its prefix, a running slot, or blocks, and
//! other sequences may be preempted for it. Knows nothing of what a step computes.

use headrace_kv_layout::PerGroup;

use super::Scheduler;
use crate::running::Capacity;
use crate::sequence::{Class, SeqId};
use crate::step::StartedSequence;

/// Most tenants whose first sequences are examined in one call while earlier ones do not fit.
const TENANTS_LOOKED_AT: usize = 8;

/// The result of examining one waiting sequence.
enum AdmitAttempt {
    /// It is in the plan.
    Admitted,
    /// It left the queue to wait for another sequence's prefix.
    Deferred,
    /// It does not fit yet.
    TooBig,
    /// No running slot is free for its class.
    NoSlot,
}

impl Scheduler {
    /// Admits one waiting sequence of a class, or defers one until another has computed its prefix. Returns `false` if
    /// neither is possible. A sequence that does not fit lets a bounded number of others pass. After that, freed
    /// capacity is reserved for it, unless its tenant already has its fair share.
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
                // The tenant keeps its turn: only tenants that were served little more may pass it.
                furthest = furthest.min(self.tenants.within_lead(counter));
            } else if looked.is_none() {
                break;
            }
        }
        self.scratch = order;
        admitted
    }

    /// Admits or defers one of a tenant's first sequences. Returns `None` if there is no room and freed room must be
    /// reserved for them.
    fn admit_of(&mut self, order: &[SeqId], passed: &mut Vec<SeqId>) -> Option<bool> {
        for &id in order {
            match self.try_admit(id) {
                AdmitAttempt::Admitted => {
                    for waiting in passed.iter() {
                        if let Some(sequence) = self.sequences.get_mut(*waiting) {
                            sequence.bypassed += 1;
                        }
                    }
                    return Some(true);
                }
                AdmitAttempt::Deferred => return Some(true),
                AdmitAttempt::TooBig => {
                    let waited = self.sequences.get(id).map_or(0, |s| s.bypassed);
                    if waited >= self.config.max_bypass {
                        return None;
                    }
                    passed.push(id);
                }
                AdmitAttempt::NoSlot => return None,
            }
        }
        // Other tenants' sequences may pass all of these.
        Some(false)
    }

    /// Whether a tenant holds its fair share of running slots or of blocks.
    fn has_its_share(&self, tenant: u64) -> bool {
        let capacity = self.capacity();
        self.tenants.running(tenant) >= self.tenants.share(tenant, capacity.slots).max(1)
            || self.tenants.has_its_bytes(tenant, capacity.bytes)
    }

    fn capacity(&self) -> Capacity {
        let bytes = self.tenants.bytes_of(&self.prefixes.groups().totals());
        Capacity { slots: self.config.max_running, bytes }
    }

    fn try_admit(&mut self, id: SeqId) -> AdmitAttempt {
        if self.plan.preempted.contains(&id) {
            // Its blocks were taken in this very step.
            return AdmitAttempt::NoSlot;
        }
        loop {
            let prefix = self.prefixes.find(id, &mut self.sequences);
            if let Some(leader) = prefix.leader {
                self.waiting.defer(id, leader, &mut self.sequences, &mut self.tenants);
                return AdmitAttempt::Deferred;
            }
            let Some(known) = self.sequences.get(id).map(|s| s.known().len()) else {
                return AdmitAttempt::TooBig;
            };
            let has_slot = self.running.len() < self.config.max_running;
            let needed = self.prefixes.groups().to_start(known, &prefix.reach);
            if has_slot && self.has_room(&needed) {
                self.admit(id);
                return AdmitAttempt::Admitted;
            }
            match self.gives_way(id, if has_slot { self.tenants.bytes_of(&needed) } else { 0 }) {
                Some(victim) => self.preempt(victim),
                None if has_slot => return AdmitAttempt::TooBig,
                None => return AdmitAttempt::NoSlot,
            }
        }
    }

    /// Whether each group has `needed` free blocks that are not promised. Some more stay free for running sequences to
    /// grow into, so that a new sequence is not preempted at once.
    fn has_room(&self, needed: &PerGroup<usize>) -> bool {
        let reserve = self.running.computed().div_ceil(4);
        let mut taken = *self.running.promised();
        taken.iter_mut().for_each(|blocks| *blocks += reserve);
        let mut pools = self.prefixes.groups().pools().iter().zip(taken.iter()).zip(needed.iter());
        pools.all(|((pool, taken), &needed)| needed <= pool.free().saturating_sub(*taken))
    }

    /// The sequence to preempt for a waiting one. A paused sequence yields to any other, and idle work yields to normal
    /// work. A sequence of a tenant beyond its fair share yields to tenants below theirs.
    fn gives_way(&self, waiting: SeqId, needs_bytes: usize) -> Option<SeqId> {
        let (sequences, tenants) = (&self.sequences, &self.tenants);
        let paused = self.running.paused_victim(sequences);
        let waiting = sequences.get(waiting).filter(|s| paused.is_none() && !s.is_idle_work());
        let Some(waiting) = waiting else { return paused };
        let idle = self.running.idle_victim(sequences, tenants);
        idle.or_else(|| self.running.beyond_share(waiting, needs_bytes, self.capacity(), sequences, tenants))
    }

    fn admit(&mut self, id: SeqId) {
        self.waiting.take_out(id, &mut self.sequences, &mut self.tenants);
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        let miss = self.prefixes.take_found(sequence);
        sequence.own_tokens();
        sequence.charged = sequence.charged.max(sequence.computed);
        let groups = self.prefixes.groups();
        let needs = groups.promises(sequence.known().len(), &sequence.tables);
        let block_tokens = groups.layout().block_tokens();
        self.running.enter(id, sequence, needs, &mut self.tenants);
        if !sequence.started {
            sequence.started = true;
            sequence.deadline = None;
            let (prompt, cached_tokens) = (sequence.prompt.len(), sequence.found * block_tokens);
            self.rate.observe_start(prompt, prompt - cached_tokens);
            let pinned = sequence.pinned;
            self.plan.started.push(StartedSequence { seq: id, cached_tokens, pinned, miss });
        }
        self.prefixes.announce(id, &mut self.sequences);
        self.plan_chunk(id);
    }
}
