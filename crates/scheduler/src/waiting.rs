//! The sequences that wait for a running slot: the queue, the deadlines, the sequences that wait for another's prefix,
//! and the paused ones without blocks. Knows nothing of blocks and budgets.

use std::collections::BTreeSet;

use crate::fair::FairQueue;
use crate::sequence::{Class, SeqId, Sequence, Slab, State};

/// Counts of the waiting sequences. Their order is kept by tenant, in [`FairQueue`].
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// (deadline, id) of the queued or deferred sequences with a deadline.
    deadlines: BTreeSet<(u64, SeqId)>,
    /// Tokens of the queued or deferred sequences.
    tokens: u64,
    /// Number of deferred sequences, which wait for a prefix that another sequence computes.
    deferred: usize,
    /// Number of deferred sequences that are idle work.
    deferred_idle: usize,
    /// Number of paused sequences without blocks.
    parked: usize,
}

impl Waiting {
    /// Sequences in the queue or deferred.
    pub(crate) fn len(&self, tenants: &FairQueue) -> usize {
        Class::SERVED.iter().map(|&class| tenants.len(class)).sum::<usize>() + self.deferred
    }

    /// Whether only idle work waits.
    pub(crate) fn is_only_idle(&self, tenants: &FairQueue) -> bool {
        self.len(tenants) == tenants.len(Class::Idle) + self.deferred_idle
    }

    /// Tokens of the queued or deferred sequences.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Number of paused sequences without blocks.
    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// A sequence whose start deadline has passed.
    pub(crate) fn overdue(&self, now_ns: u64) -> Option<SeqId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline < now_ns).map(|&(_, id)| id)
    }

    /// Puts a new sequence behind its tenant's others.
    pub(crate) fn arrive(&mut self, id: SeqId, sequence: &Sequence, tenants: &mut FairQueue) {
        self.count(id, sequence);
        tenants.push_back(sequence.tenant, sequence.class, id, sequence.queued_tokens);
    }

    /// Puts a sequence that was running or paused ahead of its tenant's others.
    pub(crate) fn requeue(&mut self, id: SeqId, sequence: &mut Sequence, tenants: &mut FairQueue) {
        sequence.state = State::Waiting;
        self.count(id, sequence);
        tenants.push_front(sequence.tenant, sequence.class, id, sequence.queued_tokens);
    }

    fn count(&mut self, id: SeqId, sequence: &Sequence) {
        self.tokens += sequence.queued_tokens;
        self.deadlines.extend(sequence.deadline.map(|deadline| (deadline, id)));
    }

    /// Removes a sequence from the queue or from the deferred ones.
    pub(crate) fn take_out(&mut self, id: SeqId, sequences: &mut Slab, tenants: &mut FairQueue) {
        let Some(sequence) = sequences.get(id) else { return };
        let (tenant, class, tokens) = (sequence.tenant, sequence.class, sequence.queued_tokens);
        self.tokens = self.tokens.saturating_sub(tokens);
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        match sequence.state {
            State::Waiting => tenants.remove(tenant, class, id, tokens),
            State::Deferred(leader) => {
                self.deferred(class, false);
                if let Some(leader) = sequences.get_mut(leader) {
                    leader.followers.retain(|&(other, _)| other != id);
                }
            }
            State::Running | State::Parked => {}
        }
    }

    /// Takes a sequence out of the queue until `leader` has computed their `blocks` first shared blocks.
    pub(crate) fn defer(
        &mut self,
        id: SeqId,
        (leader, blocks): (SeqId, usize),
        sequences: &mut Slab,
        tenants: &mut FairQueue,
    ) {
        let Some(sequence) = sequences.get_mut(id) else { return };
        sequence.state = State::Deferred(leader);
        tenants.remove(sequence.tenant, sequence.class, id, sequence.queued_tokens);
        self.deferred(sequence.class, true);
        if let Some(leader) = sequences.get_mut(leader) {
            leader.followers.push((id, blocks));
        }
    }

    /// Returns followers to the heads of their queues once their shared prefix is computed. With `computed_blocks` =
    /// `usize::MAX`, wakes all of them, because it will not be computed.
    pub(crate) fn wake_followers(
        &mut self,
        leader: SeqId,
        computed_blocks: usize,
        sequences: &mut Slab,
        tenants: &mut FairQueue,
    ) {
        let Some(sequence) = sequences.get_mut(leader) else { return };
        if sequence.followers.is_empty() {
            return;
        }
        let mut followers = std::mem::take(&mut sequence.followers);
        // From the back, so that the earliest arrival is first again.
        for &(id, blocks) in followers.iter().rev() {
            if blocks > computed_blocks {
                continue;
            }
            if let Some(follower) = sequences.get_mut(id) {
                follower.state = State::Waiting;
                self.deferred(follower.class, false);
                tenants.push_front(follower.tenant, follower.class, id, follower.queued_tokens);
            }
        }
        followers.retain(|&(_, blocks)| blocks > computed_blocks);
        if let Some(sequence) = sequences.get_mut(leader) {
            sequence.followers = followers;
        }
    }

    fn deferred(&mut self, class: Class, begins: bool) {
        let counts = [(true, &mut self.deferred), (class == Class::Idle, &mut self.deferred_idle)];
        for (_, count) in counts.into_iter().filter(|(counted, _)| *counted) {
            *count = if begins { *count + 1 } else { *count - 1 };
        }
    }

    /// Parks a paused sequence that is in no list any more.
    pub(crate) fn park(&mut self, sequence: &mut Sequence) {
        sequence.state = State::Parked;
        self.parked += 1;
    }

    /// Stops counting a sequence as parked, because it resumes or is gone. It is in no list yet.
    pub(crate) fn unpark(&mut self) {
        self.parked -= 1;
    }

    /// For tests: how many are deferred, how many of them are idle work, and how many deadlines are listed.
    pub(crate) fn audit(&self) -> (usize, usize, usize) {
        (self.deferred, self.deferred_idle, self.deadlines.len())
    }
}
