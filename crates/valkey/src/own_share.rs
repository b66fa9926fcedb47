//! What a gateway lets pass while the server cannot be reached: its part of each limit, from empty buckets that refill
//! with time. So all gateways together let no more pass than the limit refills. Pure.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use headrace_domain::UnixNanos;
use headrace_limits::{QuotaDemand, QuotaGrant, QuotaReturn, RateRule, Scope};

/// The most buckets. Further scopes pass nothing until the server is back.
const MAX_BUCKETS: usize = 100_000;
/// Parts per token. A limit per minute refills as many parts per nanosecond.
const PARTS: u128 = 60_000_000_000;

/// The buckets of one outage.
#[derive(Debug)]
pub(crate) struct OwnShares {
    /// The number of live gateways when the server was last reached.
    gateways: u32,
    since: UnixNanos,
    buckets: HashMap<(Scope, RateRule), ShareBucket, RandomState>,
}

#[derive(Debug)]
struct ShareBucket {
    limit: u64,
    /// In parts.
    left: u128,
    at: UnixNanos,
    /// In tokens or requests.
    used: u64,
}

impl OwnShares {
    /// Starts an outage at `since`.
    pub(crate) fn new(gateways: u32, since: UnixNanos) -> Self {
        Self { gateways: gateways.max(1), since, buckets: HashMap::default() }
    }

    /// Takes a slice of each share, or of none.
    pub(crate) fn lease(&mut self, demands: &[QuotaDemand], now: UnixNanos) -> Vec<QuotaGrant> {
        let fits = demands.iter().all(|demand| self.left(demand, now) >= demand.needed);
        let grant = |demand: &QuotaDemand| {
            let share = self.share(demand.limit);
            let left = self.left(demand, now);
            let granted = if fits { demand.wanted.min(left) } else { 0 };
            if let Some(bucket) = self.buckets.get_mut(&(demand.scope.clone(), demand.rule)) {
                bucket.left = bucket.left.saturating_sub(u128::from(granted) * PARTS);
                bucket.used = bucket.used.saturating_add(granted);
            }
            QuotaGrant { granted, left: left - granted, share: Some(share) }
        };
        demands.iter().map(grant).collect()
    }

    /// Takes back what was not used.
    pub(crate) fn give_back(&mut self, returned: &QuotaReturn) {
        let most = u128::from(self.share(returned.limit)) * PARTS;
        if let Some(bucket) = self.buckets.get_mut(&(returned.scope.clone(), returned.rule)) {
            // What was taken before the outage is not this share's.
            let amount = returned.amount.min(bucket.used);
            bucket.left = bucket.left.saturating_add(u128::from(amount) * PARTS).min(most);
            bucket.used -= amount;
        }
    }

    /// Returns what the server is to charge: what was used, at most what a share refills in `most`.
    pub(crate) fn into_used(self, most: Duration) -> Vec<QuotaReturn> {
        let gateways = u64::from(self.gateways);
        let used = self.buckets.into_iter().map(|((scope, rule), ShareBucket { limit, used, .. })| {
            let most = u128::from(limit / gateways) * most.as_nanos() / PARTS;
            let amount = used.min(u64::try_from(most).unwrap_or(u64::MAX));
            QuotaReturn { scope, rule, limit, amount }
        });
        used.filter(|used| used.amount > 0).collect()
    }

    fn share(&self, limit: u64) -> u64 {
        limit / u64::from(self.gateways)
    }

    /// What a bucket has at `now`, in whole tokens or requests.
    fn left(&mut self, demand: &QuotaDemand, now: UnixNanos) -> u64 {
        let share = self.share(demand.limit);
        let is_full = self.buckets.len() >= MAX_BUCKETS;
        let key = (demand.scope.clone(), demand.rule);
        if is_full && !self.buckets.contains_key(&key) {
            return 0;
        }
        let empty = ShareBucket { limit: demand.limit, left: 0, at: self.since, used: 0 };
        let bucket = self.buckets.entry(key).or_insert(empty);
        let refilled = u128::from(share) * u128::from(now.get().saturating_sub(bucket.at.get()));
        bucket.left = bucket.left.saturating_add(refilled).min(u128::from(share) * PARTS);
        bucket.at = bucket.at.max(now);
        bucket.limit = demand.limit;
        u64::try_from(bucket.left / PARTS).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::{KeyId, OrgId};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const START: UnixNanos = UnixNanos::new(1_700_000_000_000_000_000);

    fn at(seconds: u64) -> UnixNanos {
        START.after(Duration::from_secs(seconds))
    }

    fn demand(scope: Scope, limit: u64, needed: u64) -> QuotaDemand {
        QuotaDemand { scope, rule: RateRule::Tokens, limit, needed, wanted: needed }
    }

    fn key() -> Scope {
        Scope::Key(KeyId::new("k").unwrap())
    }

    #[test]
    fn a_share_starts_empty_and_refills() {
        let mut shares = OwnShares::new(3, START);
        let ask = |shares: &mut OwnShares, needed, seconds| {
            let grants = shares.lease(&[demand(key(), 180, needed)], at(seconds));
            (grants[0].granted, grants[0].left, grants[0].share)
        };
        assert_eq!(ask(&mut shares, 1, 0), (0, 0, Some(60)));
        assert_eq!(ask(&mut shares, 2, 3), (2, 1, Some(60)));
        assert_eq!(ask(&mut shares, 61, 300), (0, 60, Some(60)), "no more than the share is saved up");
        assert_eq!(ask(&mut shares, 60, 300), (60, 0, Some(60)));
        let back = QuotaReturn { scope: key(), rule: RateRule::Tokens, limit: 180, amount: 50 };
        shares.give_back(&back);
        assert_eq!(ask(&mut shares, 50, 300), (50, 0, Some(60)));
        shares.give_back(&QuotaReturn { amount: 1_000, ..back.clone() });
        assert_eq!(
            shares.into_used(MINUTE),
            [],
            "more than was used here belongs to the time before the outage"
        );
    }

    #[test]
    fn all_limits_of_a_call_give_or_none() {
        let mut shares = OwnShares::new(1, START);
        let org = Scope::Org(OrgId::new("o").unwrap());
        let both = [demand(key(), 600, 5), demand(org.clone(), 60, 5)];
        assert!(shares.lease(&both, at(1)).iter().all(|grant| grant.granted == 0));
        assert!(shares.lease(&both, at(5)).iter().all(|grant| grant.granted == 5));
        let mut used = shares.into_used(MINUTE);
        used.sort_by_key(|one| one.limit);
        let expected = |scope, limit| QuotaReturn { scope, rule: RateRule::Tokens, limit, amount: 5 };
        assert_eq!(used, [expected(org, 60), expected(key(), 600)]);
    }

    #[test]
    fn at_most_what_a_share_refills_is_charged() {
        let mut shares = OwnShares::new(2, START);
        for minute in 1..10 {
            shares.lease(&[demand(key(), 600, 300)], at(60 * minute));
        }
        let used = shares.into_used(Duration::from_secs(2));
        assert_eq!(used[0].amount, 10, "five a second");
    }

    #[test]
    fn a_limit_below_the_number_of_gateways_passes_nothing() {
        let mut shares = OwnShares::new(3, START);
        assert_eq!(shares.lease(&[demand(key(), 2, 1)], at(600))[0].granted, 0);
    }
}
