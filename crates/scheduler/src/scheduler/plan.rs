//! Plans what the next step computes: running sequences first, then waiting ones, within one token budget. It only
//! decides. It computes nothing, and knows no time but the `now_ns` that it is given.

use headrace_kv_layout::StateCopy;

use super::{DropCause, Scheduler};
use crate::outlook::LEAST_RETRY_NS;
use crate::prefills::{Prefills, Turn};
use crate::sequence::{Class, SeqId, Sequence, State};
use crate::step::{ChunkView, ExpiredSequence, LogitsNeed, PlannedChunk, StepPlan};

impl Scheduler {
    /// Plans the next step at `now_ns`. The plan is empty if there is nothing to compute. If it has chunks, the caller
    /// must call [`Scheduler::commit`] next.
    pub fn plan(&mut self, now_ns: u64) -> &StepPlan {
        self.plan.clear(now_ns);
        self.left = self.config.step_tokens;
        self.late.clear();
        self.prefixes.set_now(now_ns);
        self.expire(now_ns);
        self.raise_idle();
        self.plan_decodes(Class::Normal);
        self.plan_prefills(Class::Normal);
        let of_others = self.plan.chunks.len();
        // Idle work gets the rest of the budget, and only if no other work waits. Idle work that is passed over is
        // raised in time.
        if self.waiting.is_only_idle(&self.tenants) {
            self.plan_decodes(Class::Idle);
            self.plan_prefills(Class::Idle);
        }
        // The chunk that they waited for may have left the plan since.
        while let Some(id) = self.late.pop()
            && self.plan.chunks.is_empty()
        {
            self.plan_chunk(id);
        }
        self.count_idle_turn(of_others);
        &self.plan
    }

    /// The most recently planned step.
    pub fn current(&self) -> &StepPlan {
        &self.plan
    }

    /// The tokens and block tables of a planned chunk. `None` if its sequence was aborted since.
    pub fn view(&self, chunk: &PlannedChunk) -> Option<ChunkView<'_>> {
        let sequence = self.sequences.get(chunk.seq)?;
        let end = chunk.start.checked_add(chunk.len)?;
        let tokens = sequence.known().get(chunk.start..end)?;
        let tables = self.prefixes.groups().view(&sequence.tables, end, chunk.copy)?;
        Some(ChunkView { tokens, tables, long_context: sequence.long_context })
    }

    /// Plans the decoding sequences. Each of them needs a token soon, because a reader follows its output.
    fn plan_decodes(&mut self, class: Class) {
        let mut order = std::mem::take(&mut self.scratch);
        order.clear();
        let decodes = |s: &Sequence| s.class == class && s.decodes();
        order.extend(self.running.of(&self.sequences).filter(|(_, s)| decodes(s)).map(|(id, _)| id));
        for &id in &order {
            if self.left == 0 {
                break;
            }
            self.plan_chunk(id);
        }
        self.scratch = order;
    }

    /// Divides the rest of the budget between running prefills and waiting sequences. Each chunk goes to the tenant
    /// served least. So neither a long prompt nor a long queue of one tenant blocks another tenant.
    fn plan_prefills(&mut self, class: Class) {
        let mut prefills = Prefills::of(class, &self.running, &self.sequences, &self.tenants);
        let mut blocked = false;
        while self.left > 0 {
            let waiting = self.tenants.first(class).map(|(counter, tenant)| Turn { counter, tenant });
            let waiting = waiting.filter(|_| !blocked);
            let running = prefills.first(&self.sequences, &self.tenants);
            let comes_first = |turn: Turn| waiting.is_none_or(|waiting| turn.precedes(waiting));
            if let Some((_, id)) = running.filter(|&(turn, _)| comes_first(turn)) {
                prefills.pop();
                self.plan_chunk(id);
            } else if waiting.is_some() {
                blocked = !self.admit_one(class);
            } else {
                return;
            }
        }
    }

    /// Plans a chunk of a running sequence. While blocks are missing, preempts the least entitled sequence, which may
    /// be this one.
    pub(super) fn plan_chunk(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get(id).filter(|s| s.state == State::Running) else { return };
        let (start, known) = (sequence.computed, sequence.known().len());
        let scores = sequence.scores_at(start);
        let cap = if scores { self.config.max_score_chunk } else { self.config.max_chunk };
        let len = (known - start).min(cap).min(self.left);
        let len = self.cut(sequence, start, len);
        if len == 0 {
            return;
        }
        let lacking = self.prefixes.groups().needs(start, start + len, &sequence.tables);
        // A slot that another chunk of this step releases is free in the next step. Paused and idle sequences yield
        // theirs at once.
        let yields = || {
            let idle = || self.running.idle_victim(&self.sequences, &self.tenants);
            self.running.paused_victim(&self.sequences).or_else(idle).is_some() && !sequence.is_idle_work()
        };
        if self.prefixes.groups().lacks_next_state(&lacking, &sequence.tables)
            && self.frees_a_state()
            && !yields()
        {
            self.late.push(id);
            return;
        }
        while !self.prefixes.groups().have_free(&lacking) {
            match self.running.least_entitled(&self.sequences, &self.tenants) {
                Some(victim) if victim != id => self.preempt(victim),
                _ => return self.preempt(id),
            }
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        self.prefixes.take(sequence, &lacking);
        self.running.grew(sequence, &lacking, &mut self.tenants);
        // Prompt tokens are charged once. Cached tokens are free, and so is a recompute that the tenant did not cause.
        let upto = (start + len).min(sequence.prompt.len());
        let charge = upto.saturating_sub(sequence.charged);
        sequence.charged = sequence.charged.max(upto);
        if charge > 0 {
            self.tenants.charge(sequence.tenant, charge as u64);
        }
        let reaches_end = start + len == known;
        let logits = match (scores, reaches_end || self.config.prefix_cache) {
            (true, _) => LogitsNeed::All,
            (false, true) => LogitsNeed::Last,
            (false, false) => LogitsNeed::None,
        };
        self.left -= len;
        let copy = self.plan_copy(id, start, len);
        self.plan.chunks.push(PlannedChunk { seq: id, start, len, logits, reaches_end, copy });
    }

    /// Whether a slot for a state is free again at the end of the planned step.
    fn frees_a_state(&self) -> bool {
        let has_next = |id| self.sequences.get(id).is_some_and(|s| s.tables.has_next_state());
        self.plan.chunks.iter().any(|chunk| chunk.copy.is_some() || has_next(chunk.seq))
    }

    /// The tokens of a chunk that has only one boundary at which the state is to be copied.
    fn cut(&self, sequence: &Sequence, start: usize, len: usize) -> usize {
        let layout = self.layout();
        if !layout.groups().state().is_used() {
            return len;
        }
        let (from, to) = (layout.full_blocks(start), layout.full_blocks(start + len));
        match sequence.boundaries.cut_within(from, to) {
            Some(boundary) => boundary * layout.block_tokens() - start,
            None => len,
        }
    }

    /// Plans a copy of the state that a chunk computes, if other sequences are likely to continue from it and a slot is
    /// free.
    fn plan_copy(&mut self, id: SeqId, start: usize, len: usize) -> Option<StateCopy> {
        let layout = *self.layout();
        if !layout.groups().state().is_used() {
            return None;
        }
        let sequence = self.sequences.get(id)?;
        let (from, to) = (layout.full_blocks(start), layout.full_blocks(start + len));
        let position = sequence.boundaries.copy_within(from, to)? * layout.block_tokens();
        // Some slots stay free for the states after the steps of other sequences.
        let kept = self.running.promised().state() + self.running.computed().div_ceil(4);
        let slot = self.prefixes.take_copy(kept)?;
        Some(StateCopy { position, slot })
    }

    /// Frees a running sequence's blocks and puts it at the head of its queue, or parks it if it is paused. It will be
    /// computed again, from what the cache still holds by then. If the current plan contains it, its tokens return to
    /// the budget.
    pub(super) fn preempt(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get(id) else { return };
        let paused = sequence.paused;
        if paused {
            self.running.set_paused(sequence, false, &mut self.tenants);
        }
        self.stop(id, true);
        if let Some(at) = self.plan.chunks.iter().position(|chunk| chunk.seq == id) {
            let chunk = self.plan.chunks.remove(at);
            self.prefixes.drop_copy(chunk.copy);
            self.left += chunk.len;
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.bypassed = 0;
        sequence.queued_tokens = sequence.known().len() as u64;
        if paused {
            // Its own slow reader caused the recompute, so it is charged again.
            sequence.charged = 0;
            self.waiting.park(sequence);
        } else {
            self.waiting.requeue(id, sequence, &mut self.tenants);
        }
        self.plan.preempted.push(id);
    }

    /// Drops waiting sequences whose start deadline has passed, before any work is put into them.
    fn expire(&mut self, now_ns: u64) {
        let mut gone = Vec::new();
        while let Some(id) = self.waiting.overdue(now_ns) {
            if let Some(of) = self.sequences.get(id) {
                gone.push((id, (of.tenant, self.tenants.weight(of.tenant), of.class)));
            }
            self.drop_sequence(id, DropCause::Aborted);
        }
        // Forecast only after all of them are gone, and once for consecutive sequences of one tenant.
        let mut forecast = None;
        for (seq, of) in gone {
            let retry_after_ns = match forecast {
                Some((same, wait)) if same == of => wait,
                _ => self.outlook().wait_of_another(of).max(LEAST_RETRY_NS),
            };
            forecast = Some((of, retry_after_ns));
            self.plan.expired.push(ExpiredSequence { seq, retry_after_ns });
        }
    }
}
