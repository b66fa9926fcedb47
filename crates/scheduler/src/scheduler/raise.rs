//! Serves an idle sequence as normal work, and reverts that. Does not decide when.

use super::Scheduler;
use crate::ageing::IdleTurn;
use crate::sequence::{Class, SeqId, Sequence, State};

impl Scheduler {
    /// Raises one idle sequence if idle work was passed over for too long. From then on it competes like any other
    /// sequence of its tenant.
    pub(super) fn raise_idle(&mut self) {
        if !self.ageing.is_due(self.config.idle_patience_ns) {
            return;
        }
        let Some((tenant, id)) = self.next_to_raise() else { return };
        let Some(sequence) = self.sequences.get(id) else { return };
        let waits = sequence.state == State::Waiting;
        if waits {
            self.waiting.take_out(id, &mut self.sequences, &mut self.tenants);
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.class = Class::Normal;
        // Treated as a resumed sequence: its tenant has earned no more than a tenant that was away.
        self.tenants.set_paused(tenant, Class::Normal, false);
        if waits {
            self.waiting.requeue(id, sequence, &mut self.tenants);
        } else {
            self.count_running(id, true);
        }
        self.ageing.raise(id, tenant);
        self.plan.raised.push(id);
    }

    /// Makes a raised sequence idle work again before it is paused, so that another one can be raised.
    pub(super) fn lower_raised(&mut self, id: SeqId) {
        if !self.ageing.lower(id) {
            return;
        }
        let Some(sequence) = self.sequences.get(id) else { return };
        let (tenant, runs) = (sequence.tenant, sequence.state == State::Running);
        if runs {
            self.count_running(id, false);
        } else {
            self.waiting.take_out(id, &mut self.sequences, &mut self.tenants);
        }
        self.tenants.set_paused(tenant, Class::Normal, true);
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.class = Class::Idle;
        if !runs {
            self.waiting.requeue(id, sequence, &mut self.tenants);
        }
    }

    /// Starts (`true`) or stops (`false`) counting a running sequence's slot and blocks for its tenant.
    fn count_running(&mut self, id: SeqId, begins: bool) {
        let Some(sequence) = self.sequences.get(id) else { return };
        self.tenants.runs(sequence.tenant, Class::Normal, begins);
        self.tenants.holds(sequence.tenant, Class::Normal, &sequence.tables.held(), begins);
    }

    /// The next tenant with idle work, and its sequence to raise. A running sequence comes before a waiting one.
    fn next_to_raise(&mut self) -> Option<(u64, SeqId)> {
        let idle = |s: &&Sequence| s.class == Class::Idle && !s.paused;
        let running = self.running.of(&self.sequences).filter(|(_, s)| idle(s)).map(|(_, s)| s.tenant);
        let waiting = self.tenants.queued(Class::Idle).map(|queued| queued.tenant);
        let tenant = running.chain(waiting).min_by_key(|tenant| self.ageing.turn_of(*tenant))?;
        let mut of_tenant = self.running.of(&self.sequences).filter(|(_, s)| idle(s) && s.tenant == tenant);
        let id = of_tenant.next().map(|(id, _)| id).or_else(|| self.tenants.front(tenant, Class::Idle))?;
        Some((tenant, id))
    }

    /// Reports to [`Ageing`](crate::ageing::Ageing) whether the plan served idle work. `before` is the number of its
    /// chunks that are not idle work.
    pub(super) fn count_idle_turn(&mut self, before: usize) {
        let waits = self.tenants.len(Class::Idle) > 0;
        let runs = self.running.computed() > self.tenants.all_running();
        let turn = match (waits || runs, self.plan.chunks.len() > before) {
            (_, true) => IdleTurn::Served,
            (true, false) => IdleTurn::PassedOver,
            (false, false) => IdleTurn::None,
        };
        self.ageing.count(turn, self.plan.planned_ns);
    }
}
