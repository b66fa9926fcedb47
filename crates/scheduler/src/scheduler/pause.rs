//! Sequences that are paused because their reader has fallen behind. They are in no plan and ask for nothing. They keep
//! what they hold until another sequence needs it, and are then the first to be preempted. Knows no readers and no
//! bytes.

use super::Scheduler;
use crate::sequence::{SeqId, State};

impl Scheduler {
    /// Pauses a sequence from the next plan on, in any state. A chunk that is already planned is still committed. A
    /// running sequence keeps its slot and blocks until another one lacks them. A waiting sequence leaves its queue.
    /// Pausing never changes a sequence's tokens. Returns `false` if the sequence has ended, or is paused already.
    pub fn pause(&mut self, id: SeqId) -> bool {
        if self.sequences.get(id).is_none_or(|s| s.paused) {
            return false;
        }
        self.lower_raised(id);
        let Some(sequence) = self.sequences.get_mut(id) else { return false };
        let (tenant, class, state) = (sequence.tenant, sequence.class, sequence.state);
        sequence.paused = true;
        if state == State::Running {
            // No other sequence may wait for blocks that are not being computed.
            self.prefixes.withdraw(id, sequence, usize::MAX);
            self.running.set_paused(sequence, true, &mut self.tenants);
            self.waiting.wake_followers(id, usize::MAX, &mut self.sequences, &mut self.tenants);
        } else {
            self.waiting.take_out(id, &mut self.sequences, &mut self.tenants);
            if let Some(sequence) = self.sequences.get_mut(id) {
                self.waiting.park(sequence);
            }
        }
        self.tenants.set_paused(tenant, class, true);
        true
    }

    /// Resumes a paused sequence: in its slot if it still has one, otherwise from the head of its queue. Returns
    /// `false` if the sequence has ended, or is not paused.
    pub fn resume(&mut self, id: SeqId) -> bool {
        if !self.unpause(id) {
            return false;
        }
        match self.sequences.get_mut(id) {
            Some(sequence) if sequence.state == State::Parked => {
                self.waiting.requeue(id, sequence, &mut self.tenants);
            }
            _ => self.prefixes.announce(id, &mut self.sequences),
        }
        true
    }

    /// Accounts for a paused sequence like any other again. Returns `false` if it is not paused.
    pub(super) fn unpause(&mut self, id: SeqId) -> bool {
        let Some(sequence) = self.sequences.get_mut(id).filter(|s| s.paused) else { return false };
        sequence.paused = false;
        self.tenants.set_paused(sequence.tenant, sequence.class, false);
        match sequence.state {
            State::Running => self.running.set_paused(sequence, false, &mut self.tenants),
            _ => self.waiting.unpark(),
        }
        true
    }
}
