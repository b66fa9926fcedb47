//! Sequences that stand still because nobody takes what they generate. They are in no plan and ask for nothing. What they
//! hold they keep until somebody needs it: then they are the first to give it up. Knows no readers and no bytes.

use headrace_domain::BLOCK_TOKENS;

use crate::sequence::State;
use crate::{Scheduler, SeqId};

impl Scheduler {
    /// A sequence stands still from the next plan on, wherever it is; a chunk that is planned already is still committed.
    /// One that runs keeps its place and blocks until anybody else lacks them, one that waits leaves its queue. Its
    /// tokens stay the same, however often this happens. `false`: it has ended, or stands still already.
    pub fn pause(&mut self, id: SeqId) -> bool {
        let Some(sequence) = self.sequences.get(id).filter(|s| !s.paused) else { return false };
        let (tenant, class, state) = (sequence.tenant, sequence.class, sequence.state);
        match state {
            State::Running => {
                // Nobody is to wait for what is not being computed.
                self.withdraw(id, usize::MAX);
                self.wake_followers(id, usize::MAX);
                self.cede(id, true);
            }
            State::Waiting | State::Deferred(_) => {
                self.unqueue(id);
                self.parked += 1;
            }
            State::Parked => {}
        }
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.paused = true;
            if state != State::Running {
                sequence.state = State::Parked;
            }
        }
        self.queue.rests(tenant, class, true);
        true
    }

    /// A paused sequence goes on: in its place if it still has it, else from its queue's head. `false`: it has ended, or
    /// does not stand still.
    pub fn resume(&mut self, id: SeqId) -> bool {
        let Some(sequence) = self.sequences.get(id).filter(|s| s.paused) else { return false };
        let (tenant, class, state) = (sequence.tenant, sequence.class, sequence.state);
        let (computed, tokens, deadline) = (sequence.computed, sequence.queued_tokens, sequence.deadline);
        self.unpause(id);
        if state == State::Running {
            self.announce(id, computed / BLOCK_TOKENS);
            return true;
        }
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.state = State::Waiting;
        }
        self.waiting_tokens += tokens;
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
        self.queue.push_front(tenant, class, id, tokens);
        true
    }

    /// The books of a paused sequence become those of any other.
    pub(crate) fn unpause(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get_mut(id).filter(|s| s.paused) else { return };
        sequence.paused = false;
        let (tenant, class, state) = (sequence.tenant, sequence.class, sequence.state);
        self.queue.rests(tenant, class, false);
        match state {
            State::Running => self.cede(id, false),
            _ => self.parked -= 1,
        }
    }

    /// A running sequence's place and blocks are anybody's, and count as nobody's (or as its tenant's again: `false`).
    pub(crate) fn cede(&mut self, id: SeqId, ceded: bool) {
        let Some(sequence) = self.sequences.get(id) else { return };
        // A pool has fewer blocks than half of what a machine word counts.
        let blocks = sequence.blocks.len() as isize;
        self.queue.runs(sequence.tenant, sequence.class, !ceded);
        self.queue.holds(sequence.tenant, sequence.class, if ceded { -blocks } else { blocks });
        match ceded {
            true => self.paused_running += 1,
            false => self.paused_running -= 1,
        }
    }

    /// The paused sequence that gives way first: idle work before other, then the youngest.
    pub(crate) fn paused_victim(&self) -> Option<SeqId> {
        if self.paused_running == 0 {
            return None;
        }
        let paused = |&id: &SeqId| {
            let sequence = self.sequences.get(id).filter(|s| s.paused)?;
            Some((sequence.class, std::cmp::Reverse(sequence.admitted), id))
        };
        self.running.iter().filter_map(paused).min().map(|(.., id)| id)
    }
}
