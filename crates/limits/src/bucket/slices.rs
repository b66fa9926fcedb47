//! A bucket that refills from slices of a shared limit, not with time. It starts empty. The source refills the limit
//! meanwhile, so slices lapse, and less than what was unused is given back.

use headrace_domain::UnixNanos;

use super::{BucketWait, ChargeNumber, MissingAmount, PARTS, TokenBucket, div_ceil, parts};
use crate::quota::QuotaGrant;
use crate::slice_state::SliceState;

/// What is left of a slice is forgotten when a later one arrives after this long, so that the later one does not lapse
/// with it.
const MERGE_NANOS: u64 = 1_000_000_000;
const MINUTE_NANOS: u128 = 60_000_000_000;

/// Parts that the source should have of its part of `limit` at `now`.
fn left_at_source(slices: &SliceState, limit: u64, now: UnixNanos) -> u128 {
    let part = slices.part_of(limit);
    let refilled = u128::from(part) * u128::from(now.get().saturating_sub(slices.granted.get()));
    parts(slices.elsewhere).saturating_add(refilled).min(parts(part))
}

impl TokenBucket {
    /// Creates an empty bucket that refills from slices.
    pub(crate) fn leased() -> Self {
        Self { slices: Some(Box::default()), ..Self::default() }
    }

    /// Parts that are missing from a leased bucket under `limit`. Any debt stays as it is.
    pub(super) fn missing_of_slices(&self, slices: &SliceState, limit: u64, now: UnixNanos) -> u128 {
        let (before, full) = (parts(self.limit), parts(limit));
        let left = if slices.has_lapsed(now) { 0 } else { before.saturating_sub(self.missing).min(full) };
        (full - left).saturating_add(self.missing.saturating_sub(before))
    }

    /// Tokens that a leased bucket lacks for `cost` at `now`, rounded up.
    pub(crate) fn lacks(&self, limit: u64, cost: u64, now: UnixNanos) -> u64 {
        let after = self.missing_at(limit, now).saturating_add(parts(cost));
        div_ceil(after.saturating_sub(parts(limit)), PARTS as u64)
    }

    /// Adds a slice of a shared limit. What exceeds a full bucket is lost.
    pub(crate) fn add_slice(&mut self, limit: u64, grant: QuotaGrant, now: UnixNanos) {
        self.advance(limit, now);
        let is_empty = self.forget_old_slice(now);
        let Some(slices) = &mut self.slices else { return };
        slices.elsewhere = grant.left;
        slices.granted = now;
        slices.share = grant.share;
        if grant.granted > 0 {
            if is_empty {
                slices.oldest = now;
            }
            self.missing = self.missing.saturating_sub(parts(grant.granted));
        }
    }

    /// Ends a charge of a leased bucket that has `unused` left. The rest first pays what the bucket owes. Returns what
    /// goes back to the source: what is left after the limit has refilled since the grant, in whole tokens.
    pub(super) fn return_slice(&mut self, mark: ChargeNumber, unused: u64, now: UnixNanos) -> u64 {
        let credit = unrefilled(parts(unused), self.limit, mark.since, now);
        let paid = self.missing.saturating_sub(parts(self.limit)).min(credit);
        self.missing -= paid;
        u64::try_from((credit - paid) / PARTS).unwrap_or(u64::MAX)
    }

    /// Forgets what is left of a slice that is too old to be merged with a new one. Returns whether nothing is left.
    fn forget_old_slice(&mut self, now: UnixNanos) -> bool {
        let full = parts(self.limit);
        let oldest = self.charged_since();
        if now.get().saturating_sub(oldest.get()) > MERGE_NANOS {
            self.missing = self.missing.max(full);
        }
        self.missing >= full
    }

    /// What is missing from the whole of a shared limit, or from this process's part of it.
    pub(super) fn missing_of_shared(&self, slices: &SliceState, limit: u64, now: UnixNanos) -> MissingAmount {
        let part = slices.part_of(limit);
        let (full, missing) = (parts(limit), self.missing_at(limit, now));
        let (own, debt) = (full.saturating_sub(missing), missing.saturating_sub(full));
        let left = own.saturating_add(left_at_source(slices, limit, now)).min(parts(part));
        MissingAmount { parts: (parts(part) - left).saturating_add(debt), limit: part }
    }

    /// Why `cost` does not fit: how long the source refills until it has what the bucket lacks.
    #[cold]
    pub(super) fn wait_for_source(
        &self,
        slices: &SliceState,
        (limit, cost): (u64, u64),
        now: UnixNanos,
    ) -> BucketWait {
        let MissingAmount { parts: missing, limit: part } = self.missing_of_shared(slices, limit, now);
        let over = missing.saturating_add(parts(cost)).saturating_sub(parts(part));
        BucketWait::of(over, cost, part, limit)
    }

    /// The time from which the tokens of the next charge count.
    pub(super) fn charged_since(&self) -> UnixNanos {
        self.slices.as_ref().map_or(UnixNanos::new(0), |slices| slices.oldest)
    }
}

/// What is left of `amount` parts, after a limit has refilled since `since`.
fn unrefilled(amount: u128, limit: u64, since: UnixNanos, now: UnixNanos) -> u128 {
    // One token is PARTS parts, so a limit per minute refills as many parts per nanosecond.
    const { assert!(PARTS == MINUTE_NANOS) };
    let refilled = u128::from(limit) * u128::from(now.get().saturating_sub(since.get()));
    amount.saturating_sub(refilled)
}
