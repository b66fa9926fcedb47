//! How the part of a limit moves between the buckets of several processes. A part moves together with what is missing
//! from it, so that all buckets together never hold more than one bucket of the whole limit would.

use headrace_domain::UnixNanos;

use super::{PARTS, RateDemand, TokenBucket, parts};
use crate::part::LimitPart;

/// Parts per thousandth of a token, the unit of amounts that move.
const MILLI_PARTS: u128 = PARTS / 1_000;

impl TokenBucket {
    /// Names the limit to a bucket that no call has used yet. It then misses nothing but what `before`, an earlier and
    /// smaller part, lacks of the current one at `since`.
    pub(crate) fn begin(&mut self, limit: u64, before: LimitPart, since: UnixNanos) {
        self.advance(limit, since);
        self.missing = parts(self.limit.saturating_sub(before.of(limit)));
    }

    /// The limit as calls last named it. Zero before the first call.
    pub(crate) const fn whole(&self) -> u64 {
        self.whole
    }

    /// The fixed share and the limit that it is a part of. `None` if the bucket has a base share.
    pub(crate) const fn fixed_share(&self) -> Option<(u64, u64)> {
        match self.part {
            LimitPart::Fixed { share, of } => Some((share, of)),
            LimitPart::Base(_) => None,
        }
    }

    /// Fixes the bucket's current part of `limit`. Returns it.
    pub(crate) fn fix_share(&mut self, limit: u64, now: UnixNanos) -> u64 {
        self.advance(limit, now);
        let share = self.limit;
        self.part = LimitPart::Fixed { share, of: limit };
        share
    }

    /// Shrinks to a fixed `share` of `limit`. What is missing stays as far as it fits. Returns the missing thousandths,
    /// rounded up, that leave with the rest.
    pub(crate) fn shed_share(&mut self, limit: u64, share: u64, now: UnixNanos) -> u64 {
        self.advance(limit, now);
        let left = self.missing.min(parts(share));
        let moved = self.missing - left;
        self.missing = left;
        self.part = LimitPart::Fixed { share, of: limit };
        self.limit = share;
        u64::try_from(moved.div_ceil(MILLI_PARTS)).unwrap_or(u64::MAX)
    }

    /// Grows to a fixed `share` of `limit`. `missing` thousandths are missing from what is added.
    pub(crate) fn gain_share(&mut self, limit: u64, share: u64, missing: u64, now: UnixNanos) {
        self.advance(limit, now);
        self.add_missing(u128::from(missing) * MILLI_PARTS);
        self.part = LimitPart::Fixed { share, of: limit };
        self.limit = share;
    }

    /// Returns `true` if all that is missing fits into a base share.
    pub(crate) fn fits_base(&mut self, units: u32, now: UnixNanos) -> bool {
        self.refill(now);
        self.missing <= parts(LimitPart::Base(units).of(self.whole))
    }

    /// Changes to a base share. What is added was empty at `empty_at`. What is missing stays as far as it fits; a debt
    /// stays.
    pub(crate) fn set_base(&mut self, units: u32, empty_at: UnixNanos, now: UnixNanos) {
        let part = LimitPart::Base(units);
        if self.whole > 0 {
            self.advance(self.whole, now);
            let (before, after) = (self.limit, part.of(self.whole));
            if after >= before {
                let (added, nanos) = (u128::from(after - before), now.get().saturating_sub(empty_at.get()));
                self.add_missing((added * PARTS).saturating_sub(added * u128::from(nanos)));
            } else {
                let beyond = self.missing.saturating_sub(parts(after));
                self.missing -= beyond.min(parts(before - after));
            }
            self.limit = after;
        }
        self.part = part;
    }

    /// Adds missing parts that no open charge may give back.
    fn add_missing(&mut self, missing: u128) {
        self.lows.note(self.missing);
        let _ = self.lows.open(UnixNanos::new(0));
        self.missing = self.missing.saturating_add(missing);
    }

    /// Returns `true` if the bucket has a part of its limit and has used more than half of the part.
    pub(crate) fn is_pressed(&self) -> bool {
        self.part != LimitPart::WHOLE && self.missing > parts(self.limit) / 2
    }

    /// Returns `true` if the bucket has the whole limit.
    pub(crate) fn is_whole(&self) -> bool {
        self.part == LimitPart::WHOLE
    }

    /// Returns `true` if the bucket has this base share.
    pub(crate) fn has_base(&self, units: u32) -> bool {
        self.part == LimitPart::Base(units)
    }

    /// Returns `true` if a call did not fit since the last exchange.
    pub(crate) const fn has_need(&self) -> bool {
        self.demand.needed > 0
    }

    /// Counts what a call asked for.
    pub(crate) fn count_demand(&mut self, cost: u64) {
        self.demand.asked = self.demand.asked.saturating_add(cost);
    }

    /// Records a call that did not fit.
    pub(crate) fn count_need(&mut self, cost: u64) {
        self.demand.needed = self.demand.needed.max(cost);
    }

    /// Returns the demand since the last call and resets it.
    pub(crate) fn take_demand(&mut self) -> RateDemand {
        std::mem::take(&mut self.demand)
    }
}
