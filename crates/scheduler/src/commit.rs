//! What follows from a computed step: counts advance, full blocks become findable, ended sequences leave.
//! Blocks enter the prefix cache here and nowhere else, so that nothing half-computed or failed ever does.

use crate::scheduler::Outcome;
use crate::sequence::State;
use crate::{PlannedChunk, Scheduler};

impl Scheduler {
    /// Takes the outcomes of the planned chunks, in their order; a missing one counts as [`Outcome::Failed`].
    /// Sequences aborted since the plan are passed over.
    pub fn commit(&mut self, outcomes: &[Outcome], now_ns: u64) {
        let chunks = std::mem::take(&mut self.plan.chunks);
        let tokens = chunks.iter().map(|chunk| chunk.len).sum();
        for (i, chunk) in chunks.iter().enumerate() {
            self.commit_one(chunk, outcomes.get(i).copied().unwrap_or(Outcome::Failed));
        }
        if tokens > 0 {
            self.rate.observe(tokens, now_ns.saturating_sub(self.plan.planned_ns));
        }
        self.plan.chunks = chunks;
        self.plan.chunks.clear();
    }

    fn commit_one(&mut self, chunk: &PlannedChunk, outcome: Outcome) {
        let id = chunk.seq;
        let Some(sequence) = self.sequences.get_mut(id).filter(|s| s.state == State::Running) else { return };
        if outcome == Outcome::Failed {
            self.drop_sequence(id);
            return;
        }
        let before = sequence.computed;
        let after = chunk.start + chunk.len;
        sequence.computed = after;
        sequence.scored = sequence.scored.max(after);
        self.publish(id, before, after);
        match outcome {
            Outcome::Token(token) => self.extend(id, token),
            Outcome::Ended => {
                self.drop_sequence(id);
            }
            Outcome::Advanced | Outcome::Failed => {}
        }
    }

    fn extend(&mut self, id: crate::SeqId, token: u32) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        if sequence.remaining() > 0 {
            return;
        }
        sequence.append(token);
        self.queue.charge(sequence.tenant, 1);
        let sequence = self.sequences.get(id);
        // The engine ends a sequence at its own bound; what it said it would need at most is held to here.
        if sequence.is_some_and(|s| s.generated() > s.max_new as usize) {
            self.drop_sequence(id);
        }
    }
}
