//! What follows from a computed step: counts advance, full blocks become findable, ended sequences leave.
//! Blocks enter the prefix cache here and nowhere else, so that nothing half-computed or failed ever does.

use crate::scheduler::{Gone, Outcome};
use crate::sequence::State;
use crate::{PlannedChunk, Scheduler};

impl Scheduler {
    /// Takes the outcomes of the planned chunks, in their order; a missing one counts as [`Outcome::Failed`].
    /// Sequences aborted since the plan are passed over.
    pub fn commit(&mut self, outcomes: &[Outcome], now_ns: u64) {
        let chunks = std::mem::take(&mut self.plan.chunks);
        let (mut prefill, mut decode) = (0, 0);
        for chunk in &chunks {
            // The tokens of a recompute cost what a prompt's do.
            match chunk.len {
                1 if chunk.reaches_end => decode += 1,
                len => prefill += len,
            }
        }
        for (i, chunk) in chunks.iter().enumerate() {
            self.commit_one(chunk, outcomes.get(i).copied().unwrap_or(Outcome::Failed));
        }
        if prefill + decode > 0 {
            self.rate.observe(prefill, decode, now_ns.saturating_sub(self.plan.planned_ns));
        }
        self.plan.chunks = chunks;
        self.plan.chunks.clear();
    }

    fn commit_one(&mut self, chunk: &PlannedChunk, outcome: Outcome) {
        let id = chunk.seq;
        let Some(sequence) = self.sequences.get_mut(id).filter(|s| s.state == State::Running) else { return };
        if outcome == Outcome::Failed {
            self.drop_sequence(id, Gone::Failed);
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
                // Its last token.
                if self.sequences.get(id).is_some_and(|s| chunk.reaches_end && s.max_new > 0) {
                    self.charge_one(id);
                }
                self.drop_sequence(id, Gone::Ended);
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
        self.charge_one(id);
        let sequence = self.sequences.get(id);
        // The engine ends a sequence at its own bound; what it said it would need at most is held to here.
        if sequence.is_some_and(|s| s.generated() > s.max_new as usize) {
            self.drop_sequence(id, Gone::Ended);
        }
    }

    fn charge_one(&mut self, id: crate::SeqId) {
        if let Some(sequence) = self.sequences.get(id) {
            self.queue.charge(sequence.tenant, 1);
        }
    }
}
