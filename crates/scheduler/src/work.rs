//! Accounts for the work of each step, in total and by tenant, so that a caller can see what its wait was spent on.
//! Tenants are accounted separately only while a sequence waits. Knows no sequences and no queue.

use crate::rate::StepCost;
use crate::tables::ByTenant;

/// Most tenants accounted separately. The work of further tenants counts in the totals alone.
const MAX_TENANTS: usize = 1024;

/// Computed tokens, and the time that they took. A step with both kinds of token is split by their recent costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Prompt tokens, and recomputed tokens of answers.
    pub prefill_tokens: u64,
    /// Generated tokens.
    pub decode_tokens: u64,
    /// Nanoseconds of step time spent on prompts.
    pub prefill_ns: u64,
    /// Nanoseconds of step time spent on generated tokens.
    pub decode_ns: u64,
}

impl Work {
    /// The work done since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            prefill_tokens: self.prefill_tokens.saturating_sub(earlier.prefill_tokens),
            decode_tokens: self.decode_tokens.saturating_sub(earlier.decode_tokens),
            prefill_ns: self.prefill_ns.saturating_sub(earlier.prefill_ns),
            decode_ns: self.decode_ns.saturating_sub(earlier.decode_ns),
        }
    }

    fn add(&mut self, other: Self) {
        self.prefill_tokens = self.prefill_tokens.saturating_add(other.prefill_tokens);
        self.decode_tokens = self.decode_tokens.saturating_add(other.decode_tokens);
        self.prefill_ns = self.prefill_ns.saturating_add(other.prefill_ns);
        self.decode_ns = self.decode_ns.saturating_add(other.decode_ns);
    }

    /// The part of this step's work that belongs to `prefill` and `decode` of its tokens.
    fn part(self, prefill: usize, decode: usize) -> Self {
        let (prefill, decode) = (prefill as u64, decode as u64);
        let of =
            |nanos: u64, part: u64, whole: u64| nanos.checked_div(whole).unwrap_or(0).saturating_mul(part);
        Self {
            prefill_tokens: prefill,
            decode_tokens: decode,
            prefill_ns: of(self.prefill_ns, prefill, self.prefill_tokens),
            decode_ns: of(self.decode_ns, decode, self.decode_tokens),
        }
    }
}

/// Totals since the start, and by tenant since a sequence began to wait.
#[derive(Debug, Default)]
pub(crate) struct WorkDone {
    all: Work,
    by_tenant: ByTenant<Work>,
}

impl WorkDone {
    /// Records a step of `(prefill, decode)` tokens that took `elapsed_ns`. Calls `cost` only if the step had both
    /// kinds.
    pub(crate) fn step(
        &mut self,
        (prefill, decode): (usize, usize),
        elapsed_ns: u64,
        cost: impl FnOnce() -> Option<StepCost>,
    ) -> Work {
        let prefill_ns = match (prefill, decode) {
            (0, _) => 0,
            (_, 0) => elapsed_ns,
            _ => {
                let share = cost().map_or(0.5, |cost| {
                    let prompts = cost.prefill * prefill as f64;
                    let all = prompts + cost.decode * decode as f64;
                    if all > 0.0 { prompts / all } else { 0.5 }
                });
                // Between 0 and `elapsed_ns`, because the share is between 0 and 1.
                ((elapsed_ns as f64 * share.clamp(0.0, 1.0)) as u64).min(elapsed_ns)
            }
        };
        let step = Work {
            prefill_tokens: prefill as u64,
            decode_tokens: decode as u64,
            prefill_ns,
            decode_ns: elapsed_ns - prefill_ns,
        };
        self.all.add(step);
        step
    }

    /// Credits `prefill` and `decode` tokens of a step to a tenant.
    pub(crate) fn of_tenant(&mut self, tenant: u64, step: Work, prefill: usize, decode: usize) {
        if self.by_tenant.len() < MAX_TENANTS || self.by_tenant.contains_key(&tenant) {
            self.by_tenant.entry(tenant).or_default().add(step.part(prefill, decode));
        }
    }

    /// Forgets the tenants. Called when no sequence waits, because then no caller will ask about earlier work.
    pub(crate) fn forget_tenants(&mut self) {
        self.by_tenant.clear();
    }

    /// The total, and the tenant's part of the work that was accounted by tenant.
    pub(crate) fn seen(&self, tenant: u64) -> (Work, Work) {
        (self.all, self.by_tenant.get(&tenant).copied().unwrap_or_default())
    }

    /// The total.
    pub(crate) const fn all(&self) -> Work {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_shared_out_by_what_either_costs() {
        let mut done = WorkDone::default();
        let cost = || Some(StepCost { fixed: 5.0, prefill: 1.0, decode: 10.0 });
        let step = done.step((30, 1), 400, cost);
        assert_eq!((step.prefill_ns, step.decode_ns), (300, 100));
        assert_eq!(done.step((8, 0), 90, || unreachable!("only prompts")).prefill_ns, 90);
        assert_eq!(done.step((0, 3), 60, || unreachable!("only answers")).decode_ns, 60);
        done.of_tenant(7, step, 10, 0);
        done.of_tenant(8, step, 20, 1);
        let (all, own) = done.seen(7);
        assert_eq!((all.prefill_ns, all.decode_ns, all.prefill_tokens), (390, 160, 38));
        assert_eq!(own, Work { prefill_tokens: 10, prefill_ns: 100, ..Work::default() });
        done.forget_tenants();
        assert_eq!(done.seen(8).1, Work::default());
    }

    #[test]
    fn tenants_accounted_separately_are_bounded() {
        let mut done = WorkDone::default();
        let step = done.step((0, 1), 10, || None);
        for tenant in 0..2 * MAX_TENANTS as u64 {
            done.of_tenant(tenant, step, 0, 1);
        }
        assert_eq!(done.by_tenant.len(), MAX_TENANTS);
        assert_eq!(done.seen(1).1.decode_ns, 10);
    }
}
