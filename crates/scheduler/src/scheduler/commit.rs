//! Applies a computed step: counts advance, full blocks become findable, ended sequences leave. Blocks enter the prefix
//! cache here and nowhere else, so half-computed or failed blocks never do.

use super::{DropCause, Scheduler};
use crate::sequence::{SeqId, State};
use crate::step::{Outcome, PlannedChunk};

impl Scheduler {
    /// Applies the outcomes of the planned chunks, in the chunks' order. A missing outcome counts as
    /// [`Outcome::Failed`]. Sequences aborted since the plan are skipped.
    pub fn commit(&mut self, outcomes: &[Outcome], now_ns: u64) {
        let chunks = std::mem::take(&mut self.plan.chunks);
        let (mut prefill, mut decode) = (0, 0);
        for chunk in &chunks {
            let (prompt, generated) = kinds(chunk);
            prefill += prompt;
            decode += generated;
        }
        let elapsed_ns = now_ns.saturating_sub(self.plan.planned_ns);
        self.record_work(&chunks, (prefill, decode), elapsed_ns);
        for (i, chunk) in chunks.iter().enumerate() {
            self.commit_one(chunk, outcomes.get(i).copied().unwrap_or(Outcome::Failed));
        }
        if prefill + decode > 0 {
            self.rate.observe(prefill, decode, elapsed_ns);
        }
        self.plan.chunks = chunks;
        self.plan.chunks.clear();
    }

    /// Accounts the step's work, by tenant too if a sequence waits. Must run before the step's sequences leave.
    fn record_work(&mut self, chunks: &[PlannedChunk], tokens: (usize, usize), elapsed_ns: u64) {
        let step = self.work.step(tokens, elapsed_ns, || self.rate.cost());
        if self.waiting.len(&self.tenants) == 0 {
            return self.work.forget_tenants();
        }
        for chunk in chunks {
            if let Some(sequence) = self.sequences.get(chunk.seq) {
                let (prefill, decode) = kinds(chunk);
                self.work.of_tenant(sequence.tenant, step, prefill, decode);
            }
        }
    }

    fn commit_one(&mut self, chunk: &PlannedChunk, outcome: Outcome) {
        let id = chunk.seq;
        let Some(sequence) = self.sequences.get_mut(id).filter(|s| s.state == State::Running) else {
            self.prefixes.drop_copy(chunk.copy);
            return;
        };
        if outcome == Outcome::Failed {
            self.prefixes.drop_copy(chunk.copy);
            self.drop_sequence(id, DropCause::Failed);
            return;
        }
        let (before, end) = (sequence.computed, chunk.start + chunk.len);
        let layout = self.prefixes.groups().layout();
        // The state after the end of a block cannot go back by one token.
        let stays = outcome == Outcome::Repeat
            && layout.groups().state().is_used()
            && end.is_multiple_of(layout.block_tokens());
        sequence.computed = match outcome {
            Outcome::Repeat if stays => chunk.start,
            Outcome::Repeat => end.saturating_sub(1),
            _ => end,
        };
        sequence.scored = sequence.scored.max(end);
        let computed = self.prefixes.publish(id, sequence, before, chunk.copy);
        if self.prefixes.groups().layout().keeps_less() {
            let released = match stays {
                true => self.prefixes.stay(sequence),
                false => self.prefixes.advance(sequence),
            };
            let promises = self.prefixes.groups().promises(sequence.known().len(), &sequence.tables);
            self.running.shrank(sequence, &released, promises, &mut self.tenants);
        }
        if let Some(computed) = computed {
            self.waiting.wake_followers(id, computed, &mut self.sequences, &mut self.tenants);
        }
        match outcome {
            Outcome::Token(token) => self.extend(id, token),
            Outcome::Ended => {
                // Its last token is never appended, so it is charged here.
                if let Some(ended) = self.sequences.get(id).filter(|s| chunk.reaches_end && s.max_new > 0) {
                    self.tenants.charge(ended.tenant, 1);
                }
                self.drop_sequence(id, DropCause::Ended);
            }
            Outcome::Advanced | Outcome::Repeat | Outcome::Failed => {}
        }
    }

    /// Appends tokens that are known without being sampled. They follow the sequence's tokens and are computed with
    /// them. May be called after a commit in which its chunk reached the end, even if it was paused since. Returns
    /// `false` if the sequence has ended.
    pub fn append(&mut self, id: SeqId, tokens: &[u32]) -> bool {
        let may = |state| matches!(state, State::Running | State::Parked);
        let Some(sequence) = self.sequences.get_mut(id).filter(|s| may(s.state)) else {
            return false;
        };
        tokens.iter().for_each(|token| sequence.append(*token));
        if sequence.state == State::Parked {
            sequence.queued_tokens = sequence.known().len() as u64;
        }
        self.tenants.charge(sequence.tenant, tokens.len() as u64);
        if sequence.generated() > sequence.max_new as usize {
            return !self.drop_sequence(id, DropCause::Ended);
        }
        true
    }

    /// Ends a sequence whose last step was committed. What it computed stays findable. Returns `false` if it had ended
    /// already.
    pub fn end(&mut self, id: SeqId) -> bool {
        self.drop_sequence(id, DropCause::Ended)
    }

    /// Charges a sequence's tenant for work that is not tokens, at the price of `tokens` tokens.
    pub fn charge(&mut self, id: SeqId, tokens: u64) {
        if let Some(sequence) = self.sequences.get(id) {
            self.tenants.charge(sequence.tenant, tokens);
        }
    }

    fn extend(&mut self, id: SeqId, token: u32) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        if sequence.remaining() > 0 {
            return;
        }
        sequence.append(token);
        self.tenants.charge(sequence.tenant, 1);
        // The engine ends a sequence at its own bound. This check enforces the bound that the spec declared.
        if sequence.generated() > sequence.max_new as usize {
            self.drop_sequence(id, DropCause::Ended);
        }
    }
}

/// Splits a chunk's tokens into (prompt, generated). Recomputed tokens count as prompt tokens, because they cost the
/// same.
const fn kinds(chunk: &PlannedChunk) -> (usize, usize) {
    match chunk.len {
        1 if chunk.reaches_end => (0, 1),
        len => (len, 0),
    }
}
