//! Sequences that stand still because nobody takes what they generate. They are in no plan and ask for nothing. What they
//! hold they keep until somebody needs it: then they are the first to give it up. Knows no readers and no bytes.

use super::Scheduler;
use crate::sequence::{SeqId, State};

impl Scheduler {
    /// A sequence stands still from the next plan on, wherever it is; a chunk that is planned already is still committed.
    /// One that runs keeps its place and blocks until anybody else lacks them, one that waits leaves its queue. Its
    /// tokens stay the same, however often this happens. `false`: it has ended, or stands still already.
    pub fn pause(&mut self, id: SeqId) -> bool {
        if self.sequences.get(id).is_none_or(|s| s.paused) {
            return false;
        }
        self.lower_raised(id);
        let Some(sequence) = self.sequences.get_mut(id) else { return false };
        let (tenant, class, state) = (sequence.tenant, sequence.class, sequence.state);
        sequence.paused = true;
        if state == State::Running {
            // Nobody is to wait for what is not being computed.
            self.prefixes.withdraw(id, sequence, usize::MAX);
            self.running.rests(sequence, true, &mut self.tenants);
            self.waiting.wake_followers(id, usize::MAX, &mut self.sequences, &mut self.tenants);
        } else {
            self.waiting.take_out(id, &mut self.sequences, &mut self.tenants);
            if let Some(sequence) = self.sequences.get_mut(id) {
                self.waiting.park(sequence);
            }
        }
        self.tenants.rests(tenant, class, true);
        true
    }

    /// A paused sequence goes on: in its place if it still has it, else from its queue's head. `false`: it has ended, or
    /// does not stand still.
    pub fn resume(&mut self, id: SeqId) -> bool {
        if !self.unpause(id) {
            return false;
        }
        match self.sequences.get_mut(id) {
            Some(sequence) if sequence.state == State::Parked => {
                self.waiting.come_back(id, sequence, &mut self.tenants);
            }
            _ => self.prefixes.announce(id, &mut self.sequences),
        }
        true
    }

    /// The books of a paused sequence become those of any other. `false`: it does not stand still.
    pub(super) fn unpause(&mut self, id: SeqId) -> bool {
        let Some(sequence) = self.sequences.get_mut(id).filter(|s| s.paused) else { return false };
        sequence.paused = false;
        self.tenants.rests(sequence.tenant, sequence.class, false);
        match sequence.state {
            State::Running => self.running.rests(sequence, false, &mut self.tenants),
            _ => self.waiting.unpark(),
        }
        true
    }
}
