//! An integer token bucket with continuous refill. Unused parts of a charge can be given back exactly. Knows one limit
//! and one stream of charges; knows no scopes, locks or clock.

use std::time::Duration;

use headrace_domain::UnixNanos;
use smallvec::SmallVec;

use crate::part::LimitPart;
use crate::slice_state::SliceState;

mod moves;
mod slices;

/// Parts per token. With 60·10⁹ parts per token, a limit of n tokens per minute refills exactly n parts per nanosecond,
/// so nothing is ever rounded.
const PARTS: u128 = 60_000_000_000;

/// A step back by more than this means that the clock was set. A smaller step means that two threads arrived out of
/// order.
const OUT_OF_ORDER_NANOS: u64 = 1_000_000_000;

/// How long a part of a limit takes to come from other gateways, at most.
pub(crate) const SHARE_MOVE: Duration = Duration::from_secs(3);

/// Maximum number of entries in [`LowWater`]. With more open charges, a give-back may return too little but never too much.
const MAX_LOWS: usize = 64;

/// A token bucket, stored as the amount missing from it. Zero is full, one minute's worth is empty, and more is debt.
///
/// A partial give-back must leave the bucket as if only the used part had ever been taken. The unused part may have
/// been refilled meanwhile, so adding it again would let more than the limit through. A charge still weighs at most the
/// smallest amount missing at any moment since the charge. (The bucket is a process reflected at zero, and the
/// reflection is what forgets.) The bucket therefore remembers those lows.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenBucket {
    /// The part of the limit that belongs to this process.
    part: LimitPart,
    /// The limit per minute, over all processes, as calls last named it. Zero before the first call.
    whole: u64,
    /// This process's part of `whole`, under which `missing` was last computed.
    limit: u64,
    /// Parts missing at time `at`.
    missing: u128,
    /// Time at which `missing` was computed.
    at: UnixNanos,
    /// `Some` if the bucket starts empty and refills from slices of a shared limit, not with time.
    slices: Option<Box<SliceState>>,
    lows: LowWater,
    /// What calls asked for since the last exchange of shares. Counted only while the slot is watched.
    demand: RateDemand,
}

/// What calls asked of one bucket between two exchanges of shares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RateDemand {
    /// The tokens or requests of all calls, admitted or not.
    pub(crate) asked: u64,
    /// The largest call that did not fit. Zero if none was refused.
    pub(crate) needed: u64,
}

/// Identifies a charge by its number in the bucket's order of charges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChargeNumber {
    number: u64,
    /// The time of the oldest grant that the charge used. Zero in a bucket without slices.
    since: UnixNanos,
}

/// Why a charge does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BucketWait {
    /// The charge would fit after this long.
    For(Duration),
    /// The charge exceeds the limit itself.
    Forever,
}

impl BucketWait {
    /// The wait for a cost that exceeds what a part of a limit has by `over` parts.
    #[cold]
    fn of(over: u128, cost: u64, part: u64, limit: u64) -> Self {
        if cost > limit {
            return Self::Forever;
        }
        let wait = Duration::from_nanos(div_ceil(over, part.max(1)));
        if part == limit {
            return Self::For(wait);
        }
        // If no other call comes, the rest of the limit moves here meanwhile.
        let of_whole = Duration::from_nanos(div_ceil(over, limit));
        let moved = of_whole.max(SHARE_MOVE);
        Self::For(if cost > part { moved } else { wait.min(moved) })
    }
}

impl TokenBucket {
    /// Creates a full bucket for a part of a limit.
    pub(crate) fn for_part(part: LimitPart) -> Self {
        Self { part, ..Self::default() }
    }

    /// Refills up to `now` and switches to this process's part of `limit`.
    pub(crate) fn advance(&mut self, limit: u64, now: UnixNanos) {
        self.whole = limit;
        self.advance_part(self.part.of(limit), now);
    }

    fn advance_part(&mut self, limit: u64, now: UnixNanos) {
        self.missing = self.missing_at(limit, now);
        if limit != self.limit {
            // Open charges were counted under the old limit. Treating all of them as refilled keeps any of them from
            // giving back too much.
            self.lows.note(0);
            self.limit = limit;
        }
        if now > self.at || self.at.get() - now.get() > OUT_OF_ORDER_NANOS {
            self.at = now;
        }
    }

    /// Refills up to `now` under the current limit.
    pub(crate) fn refill(&mut self, now: UnixNanos) {
        self.advance_part(self.limit, now);
    }

    /// Parts that are missing at `now` under `limit`.
    ///
    /// A change of the limit keeps the time until the bucket is full, and keeps any debt as it is.
    fn missing_at(&self, limit: u64, now: UnixNanos) -> u128 {
        if let Some(slices) = &self.slices {
            return self.missing_of_slices(slices, limit, now);
        }
        let elapsed = now.get().saturating_sub(self.at.get());
        let missing = self.missing.saturating_sub(u128::from(self.limit) * u128::from(elapsed));
        if limit == self.limit || missing == 0 {
            return missing;
        }
        let within = missing.min(parts(self.limit));
        let debt = missing - within;
        let nanos_to_full = within.checked_div(u128::from(self.limit)).unwrap_or(0);
        (nanos_to_full * u128::from(limit)).saturating_add(debt)
    }

    /// Checks whether `cost` fits at `now`, and takes nothing.
    pub(crate) fn fits(&self, limit: u64, cost: u64, now: UnixNanos) -> Result<(), BucketWait> {
        let part = self.part.of(limit);
        let after = self.missing_at(part, now).saturating_add(parts(cost));
        match after.checked_sub(parts(part)) {
            None | Some(0) => Ok(()),
            Some(over) => match &self.slices {
                None => Err(BucketWait::of(over, cost, part, limit)),
                Some(slices) => Err(self.wait_for_source(slices, (limit, cost), now)),
            },
        }
    }

    /// Takes `cost` for good, even if it does not fit.
    pub(crate) fn spend(&mut self, cost: u64) {
        self.missing = self.missing.saturating_add(parts(cost));
    }

    /// Takes `cost`, even if it does not fit. The returned mark allows a give-back.
    pub(crate) fn charge(&mut self, cost: u64) -> ChargeNumber {
        self.lows.note(self.missing);
        self.missing = self.missing.saturating_add(parts(cost));
        self.lows.open(self.charged_since())
    }

    /// Gives back `unused` of the charge `mark`, but no more than the charge still weighs. Returns what goes back to the
    /// source of slices. Zero for a bucket that refills with time.
    pub(crate) fn give_back(&mut self, mark: ChargeNumber, unused: u64, now: UnixNanos) -> u64 {
        if self.slices.is_some() {
            return self.return_slice(mark, unused, now);
        }
        let weighs = self.lows.since(mark).min(self.missing);
        let back = parts(unused).min(weighs);
        self.missing -= back;
        self.lows.lower(mark, back);
        0
    }

    /// Adds `amount`, no more than a full bucket.
    #[cfg(test)]
    pub(crate) fn credit(&mut self, amount: u64) {
        self.missing = self.missing.saturating_sub(parts(amount));
    }

    /// Clears the lows, which only open charges need. Called when no charge is open.
    pub(crate) fn none_open(&mut self) {
        self.lows.clear();
    }

    /// The amount missing at `now`.
    pub(crate) fn missing(&self, limit: u64, now: UnixNanos) -> MissingAmount {
        if let Some(slices) = &self.slices {
            return self.missing_of_shared(slices, limit, now);
        }
        let part = self.part.of(limit);
        MissingAmount { parts: self.missing_at(part, now), limit: part }
    }

    /// Tokens missing at `now`, rounded up.
    pub(crate) fn used(&self, limit: u64, now: UnixNanos) -> u64 {
        self.missing(limit, now).tokens()
    }

    /// This process's part of `limit`, or `None` if it has all of it.
    pub(crate) fn part_of(&self, limit: u64) -> Option<u64> {
        if let Some(slices) = &self.slices {
            return Some(slices.part_of(limit)).filter(|part| *part != limit);
        }
        let part = self.part.of(limit);
        (self.part != LimitPart::WHOLE && part != limit).then_some(part)
    }

    /// Returns `true` if a new bucket would have the same state.
    pub(crate) const fn is_as_new(&self) -> bool {
        self.missing == if self.slices.is_some() { parts(self.limit) } else { 0 }
    }
}

/// The amount missing from a bucket, in parts. Converted to tokens or time only on demand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MissingAmount {
    parts: u128,
    limit: u64,
}

impl MissingAmount {
    /// The missing tokens, rounded up.
    pub(crate) fn tokens(self) -> u64 {
        div_ceil(self.parts, PARTS as u64)
    }

    /// What would pass now, in tokens.
    pub(crate) fn left(self) -> u64 {
        self.limit.saturating_sub(self.tokens())
    }

    /// Time until the bucket is full.
    pub(crate) fn until_full(self) -> Duration {
        Duration::from_nanos(div_ceil(self.parts, self.limit.max(1)))
    }
}

/// Divides, rounds up, and saturates at `u64::MAX`. Up to 300 million tokens, the parts fit in 64 bits, and a 64-bit
/// division is many times faster than a 128-bit one.
fn div_ceil(parts: u128, by: u64) -> u64 {
    match u64::try_from(parts) {
        Ok(parts) => parts.div_ceil(by),
        Err(_) => u64::try_from(parts.div_ceil(u128::from(by))).unwrap_or(u64::MAX),
    }
}

pub(crate) const fn parts(tokens: u64) -> u128 {
    // At most 2⁶⁴ · 2³⁶, which fits in 128 bits.
    tokens as u128 * PARTS
}

/// The lowest missing amount since each charge. `missing` can start to rise only at a charge, so the moments just
/// before the charges suffice. Of those, only moments without an equal or lower one after them are kept, as `(charge,
/// missing before it)`. Both values ascend.
#[derive(Debug, Clone, Default)]
struct LowWater {
    kept: SmallVec<[(u64, u128); 2]>,
    /// Number of the next charge.
    next: u64,
}

impl LowWater {
    /// Records that `missing` parts are missing just before the next charge.
    fn note(&mut self, missing: u128) {
        while self.kept.last().is_some_and(|(_, low)| *low >= missing) {
            self.kept.pop();
        }
        let full = self.kept.len() >= MAX_LOWS;
        match self.kept.last_mut() {
            // No room: the last low, which is lower, also covers this charge. Less may be given back.
            Some((charge, _)) if full => *charge = self.next,
            _ => self.kept.push((self.next, missing)),
        }
    }

    fn open(&mut self, since: UnixNanos) -> ChargeNumber {
        let mark = ChargeNumber { number: self.next, since };
        self.next += 1;
        mark
    }

    /// The lowest missing amount since `mark`, or `u128::MAX` if nothing was charged since.
    fn since(&self, mark: ChargeNumber) -> u128 {
        self.kept.get(self.after(mark)).map_or(u128::MAX, |(_, low)| *low)
    }

    /// Lowers the lows since `mark` by `back`, the parts that `mark` gave back.
    fn lower(&mut self, mark: ChargeNumber, back: u128) {
        let after = self.after(mark);
        for (_, low) in self.kept.iter_mut().skip(after) {
            *low = low.saturating_sub(back);
        }
        let Some(&(_, lowered)) = self.kept.get(after) else { return };
        let lower = self.kept.iter().take(after).filter(|(_, low)| *low < lowered).count();
        self.kept.drain(lower..after);
    }

    /// Index of the first low after `mark`.
    fn after(&self, mark: ChargeNumber) -> usize {
        self.kept.partition_point(|(charge, _)| *charge <= mark.number)
    }

    fn clear(&mut self) {
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> UnixNanos {
        UnixNanos::new(1_700_000_000 * SECOND + seconds * SECOND)
    }

    fn bucket(limit: u64) -> TokenBucket {
        let mut bucket = TokenBucket::default();
        bucket.advance(limit, at(0));
        bucket
    }

    #[test]
    fn a_minutes_worth_at_once_then_continuous_refill() {
        let mut bucket = bucket(60);
        assert_eq!(bucket.fits(60, 60, at(0)), Ok(()));
        assert_eq!(bucket.fits(60, 61, at(0)), Err(BucketWait::Forever));
        bucket.charge(60);
        assert_eq!(bucket.fits(60, 1, at(0)), Err(BucketWait::For(Duration::from_secs(1))));
        assert_eq!(bucket.fits(60, 60, at(0)), Err(BucketWait::For(Duration::from_secs(60))));
        assert_eq!(bucket.fits(60, 1, at(1)), Ok(()));
        assert_eq!(bucket.missing(60, at(1)).until_full(), Duration::from_secs(59));
        bucket.advance(60, at(3_600));
        assert!(bucket.is_as_new(), "idle time is not saved up");
    }

    #[test]
    fn limits_that_divide_nothing_are_exact() {
        let mut bucket = bucket(7);
        bucket.charge(7);
        let Err(BucketWait::For(wait)) = bucket.fits(7, 1, at(0)) else { panic!("it is empty") };
        assert_eq!(wait, Duration::from_nanos(60 * SECOND / 7 + 1));
        assert!(bucket.fits(7, 1, at(0).after(wait)).is_ok());
        assert!(bucket.fits(7, 1, at(0).after(wait - Duration::from_nanos(1))).is_err());
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut bucket = bucket(u64::MAX);
        for _ in 0..3 {
            bucket.charge(u64::MAX);
        }
        bucket.advance(1, UnixNanos::new(u64::MAX));
        bucket.advance(u64::MAX, UnixNanos::new(0));
        bucket.advance(u64::MAX, at(0));
        bucket.charge(u64::MAX);
        bucket.charge(u64::MAX);
        bucket.advance(0, at(0));
        assert_eq!(bucket.fits(0, 1, at(1)), Err(BucketWait::Forever));
        assert_eq!(bucket.fits(0, 0, at(1)), Err(BucketWait::For(Duration::from_nanos(u64::MAX))));
        assert_eq!(bucket.missing(0, at(1)).until_full(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn debt_is_kept_and_paid_by_time() {
        let mut bucket = bucket(60);
        bucket.charge(60);
        bucket.charge(60);
        assert_eq!(bucket.used(60, at(0)), 120);
        assert_eq!(bucket.fits(60, 1, at(0)), Err(BucketWait::For(Duration::from_secs(61))));
        assert!(bucket.fits(60, 1, at(61)).is_ok());
    }

    #[test]
    fn what_was_refilled_meanwhile_is_not_given_back_again() {
        let mut bucket = bucket(100);
        let first = bucket.charge(50);
        bucket.advance(100, at(60));
        bucket.charge(50);
        bucket.give_back(first, 50, at(0));
        assert_eq!(bucket.used(100, at(60)), 50, "the first hold had been refilled; the second is used");
    }

    #[test]
    fn a_hold_that_still_weighs_is_given_back_whole_after_minutes() {
        let mut bucket = bucket(100);
        let first = bucket.charge(100);
        // Other charges keep the bucket nearly empty for ten minutes.
        for minute in 1..=10 {
            bucket.advance(100, at(minute * 30));
            bucket.charge(50);
        }
        bucket.give_back(first, 40, at(0));
        assert_eq!(bucket.used(100, at(300)), 60);
    }

    #[test]
    fn a_changed_limit_keeps_the_time_to_full() {
        let mut bucket = bucket(100);
        bucket.charge(50);
        bucket.advance(1_000, at(0));
        assert_eq!(bucket.used(1_000, at(0)), 500);
        bucket.advance(10, at(0));
        assert_eq!(bucket.used(10, at(0)), 5);
        assert_eq!(bucket.missing(10, at(0)).until_full(), Duration::from_secs(30));
    }

    #[test]
    fn what_was_held_under_another_limit_is_not_given_back() {
        let mut bucket = bucket(100);
        let mark = bucket.charge(50);
        bucket.advance(1_000, at(0));
        bucket.charge(100);
        bucket.give_back(mark, 50, at(0));
        assert_eq!(bucket.used(1_000, at(0)), 600);
    }

    #[test]
    fn a_clock_set_back_neither_refills_nor_stalls() {
        let mut bucket = bucket(60);
        bucket.advance(60, at(1_000));
        bucket.charge(60);
        bucket.advance(60, at(0));
        assert_eq!(bucket.used(60, at(0)), 60);
        bucket.advance(60, at(10));
        assert_eq!(bucket.used(60, at(10)), 50);
    }

    proptest! {
        /// 64-bit and 128-bit division give the same result.
        #[test]
        fn dividing_rounds_up_whatever_the_width(
            parts in prop_oneof![any::<u128>(), any::<u64>().prop_map(u128::from), (0_u128..9).prop_map(|n| u128::from(u64::MAX) + n - 4)],
            by in prop_oneof![any::<u64>(), 1_u64..9, Just(PARTS as u64)],
        ) {
            let by = by.max(1);
            let plain = parts.div_ceil(u128::from(by));
            prop_assert_eq!(u128::from(div_ceil(parts, by)), plain.min(u128::from(u64::MAX)));
        }

        /// The final state is as if only the used tokens had ever been taken, for any holds and any times of giving
        /// back. Before that, the bucket has less left, never more.
        #[test]
        fn giving_back_is_as_if_never_taken(
            limit in 1_u64..500,
            steps in proptest::collection::vec((0_u64..40, 0_u64..300, 0_u64..300, 0_u8..4), 1..60),
        ) {
            let (mut held, mut plain) = (bucket(limit), bucket(limit));
            let mut open: Vec<(ChargeNumber, u64)> = Vec::new();
            let mut now = at(0);
            for (quarters, hold, used, action) in steps {
                now = now.after(Duration::from_millis(quarters * 250));
                held.advance(limit, now);
                plain.advance(limit, now);
                let used = used.min(hold);
                if action > 0 && held.fits(limit, hold, now).is_ok() {
                    prop_assert!(plain.fits(limit, used, now).is_ok());
                    plain.charge(used);
                    open.push((held.charge(hold), hold - used));
                } else if !open.is_empty() {
                    let (mark, unused) = open.swap_remove(usize::from(action) % open.len());
                    held.give_back(mark, unused, at(0));
                }
                prop_assert!(held.missing >= plain.missing);
                prop_assert!(held.lows.kept.is_sorted());
            }
            let room = held.lows.kept.len() < MAX_LOWS;
            for (mark, unused) in open.drain(..) {
                held.give_back(mark, unused, at(0));
            }
            prop_assert!(held.missing == plain.missing || !room);
        }

        /// With more open charges than stored lows, give-backs return too little and never too much.
        #[test]
        fn without_room_less_is_given_back(charges in proptest::collection::vec((1_u64..9, 0_u64..9), 70..200)) {
            let (mut held, mut plain) = (bucket(10_000), bucket(10_000));
            let mut open = Vec::new();
            for (hold, used) in charges {
                let used = used.min(hold);
                open.push((held.charge(hold), hold - used));
                plain.charge(used);
            }
            while let Some((mark, unused)) = open.pop() {
                held.give_back(mark, unused, at(0));
                prop_assert!(held.missing >= plain.missing);
                open.reverse();
            }
            prop_assert!(held.lows.kept.len() <= MAX_LOWS);
        }
    }
}
