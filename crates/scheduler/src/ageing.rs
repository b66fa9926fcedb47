//! Decides when idle work that is crowded out is served as normal work: one sequence at a time, tenants in turn. Knows
//! no queue and no blocks.

use crate::sequence::SeqId;

/// How long idle work has been passed over, and the sequence that is raised for it.
#[derive(Debug, Default)]
pub(crate) struct Ageing {
    /// The idle sequence that is served as normal work.
    raised: Option<SeqId>,
    /// The tenant of the most recently raised sequence.
    last_tenant: u64,
    /// Nanoseconds for which idle work was passed over since the last raise.
    passed_over_ns: u64,
    /// The time of the last plan, if it passed over idle work.
    since: Option<u64>,
}

/// What a plan did for idle work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleTurn {
    /// There was no idle work.
    None,
    /// Some of it is in the plan.
    Served,
    /// None of it is in the plan.
    PassedOver,
}

impl Ageing {
    /// Counts the plan at `now_ns`. Only the time between two plans that both pass over idle work counts.
    pub(crate) fn count(&mut self, turn: IdleTurn, now_ns: u64) {
        if turn == IdleTurn::None {
            self.passed_over_ns = 0;
        }
        if turn != IdleTurn::PassedOver || self.raised.is_some() {
            self.since = None;
            return;
        }
        let since = self.since.replace(now_ns).unwrap_or(now_ns);
        self.passed_over_ns = self.passed_over_ns.saturating_add(now_ns.saturating_sub(since));
    }

    /// Whether a sequence should be raised now: none is raised, and idle work was passed over for `patience_ns`.
    pub(crate) fn is_due(&self, patience_ns: u64) -> bool {
        self.raised.is_none() && self.since.is_some() && self.passed_over_ns >= patience_ns
    }

    /// Sort key of a tenant in the raising order: by number, starting after the tenant that was raised last.
    pub(crate) fn turn_of(&self, tenant: u64) -> u64 {
        tenant.wrapping_sub(self.last_tenant).wrapping_sub(1)
    }

    /// Raises a sequence until it ends or is paused.
    pub(crate) fn raise(&mut self, id: SeqId, tenant: u64) {
        *self = Self { raised: Some(id), last_tenant: tenant, ..Self::default() };
    }

    /// Ends the raise of a sequence that is gone or paused. Returns whether it was the raised one.
    pub(crate) fn lower(&mut self, id: SeqId) -> bool {
        self.raised.take_if(|raised| *raised == id).is_some()
    }
}
