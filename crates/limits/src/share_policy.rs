//! Which share of a limit each gateway should have: shares follow demand, and gateways without demand keep a small one.
//! Pure: every gateway computes the same result from the same rows.

use std::collections::BTreeMap;

use crate::part::scale;
use crate::share_table::{LimitShares, ShareHolder, ShareMember, base_share};

/// Gateways without demand keep one part of this number of the limit, in sum.
const FLOOR_PARTS: u64 = 16;
/// How long one gateway has precedence for calls that need more than an equal share, in microseconds.
const PRECEDENCE_MICROS: u64 = 64_000_000;

/// Returns the share that `me` should have at `time`. The sum over all gateways is at most the limit. Returns the
/// current share while every gateway has what it asks for.
pub(crate) fn target_share(
    shares: &LimitShares,
    members: &BTreeMap<ShareHolder, ShareMember>,
    me: ShareHolder,
    time: u64,
) -> u64 {
    let current = shares.rows.get(&me).map_or(0, |row| row.share);
    if shares.is_idle(time) {
        return members.get(&me).map_or(0, |member| base_share(shares.limit, *member));
    }
    let mut claims: Vec<ShareClaim> = shares
        .rows
        .iter()
        .map(|(holder, row)| ShareClaim {
            holder: *holder,
            want: row.want.min(shares.limit),
            need: row.need,
            share: row.share,
            target: 0,
        })
        .collect();
    if claims.iter().all(|claim| claim.want.max(claim.need) <= claim.share) {
        return current;
    }
    divide(&mut claims, shares.limit);
    serve_need(&mut claims, shares.limit, time);
    claims.iter().find(|claim| claim.holder == me).map_or(0, |claim| claim.target)
}

/// What one gateway asks for.
struct ShareClaim {
    holder: ShareHolder,
    want: u64,
    need: u64,
    share: u64,
    target: u64,
}

/// Divides `limit` by demand. If there is enough, the rest is divided equally. If not, no gateway gets less than another
/// one that asks for no less.
fn divide(claims: &mut [ShareClaim], limit: u64) {
    let count = u64::try_from(claims.len()).unwrap_or(u64::MAX).max(1);
    let floor = limit / FLOOR_PARTS / count;
    let claimed = |claim: &ShareClaim| claim.want.max(floor);
    let sum = claims.iter().fold(0_u64, |sum, claim| sum.saturating_add(claimed(claim)));
    if sum <= limit {
        let (each, mut rest) = ((limit - sum) / count, (limit - sum) % count);
        claims.sort_by_key(|claim| (std::cmp::Reverse(claim.want), claim.holder));
        for claim in claims {
            claim.target = claimed(claim) + each + u64::from(rest > 0);
            rest = rest.saturating_sub(1);
        }
        return;
    }
    claims.sort_by_key(|claim| (claim.want, claim.holder));
    let (mut left, mut waiting) = (limit, count);
    for claim in claims {
        // Rounded up, so that the rest of the division is given, too.
        claim.target = claimed(claim).min(left.div_ceil(waiting));
        left -= claim.target;
        waiting = waiting.saturating_sub(1).max(1);
    }
}

/// Gives one gateway, in turns, enough for a call that is larger than its share. The others get proportionally less.
fn serve_need(claims: &mut [ShareClaim], limit: u64, time: u64) {
    claims.sort_by_key(|claim| claim.holder);
    let needs: Vec<usize> = (0..claims.len())
        .filter(|index| claims.get(*index).is_some_and(|claim| claim.need > claim.target))
        .collect();
    let round = usize::try_from(time / PRECEDENCE_MICROS).unwrap_or(0);
    let Some(chosen) = round.checked_rem(needs.len()).and_then(|index| needs.get(index)) else { return };
    let Some(need) = claims.get(*chosen).map(|claim| claim.need.min(limit)) else { return };
    let others: u64 =
        claims.iter().enumerate().filter(|(index, _)| index != chosen).map(|(_, claim)| claim.target).sum();
    for (index, claim) in claims.iter_mut().enumerate() {
        claim.target =
            if index == *chosen { need } else { scale(claim.target, limit - need, others).min(claim.target) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::WHOLE_UNITS;
    use crate::share_table::ShareRow;

    fn targets(limit: u64, rows: &[(u64, u64, u64)], time: u64) -> Vec<u64> {
        let named = |index: usize| ShareHolder::new(index as u128);
        let rows: BTreeMap<_, _> = rows
            .iter()
            .enumerate()
            .map(|(index, (share, want, need))| {
                (named(index), ShareRow { share: *share, want: *want, need: *need })
            })
            .collect();
        let count = u32::try_from(rows.len()).unwrap();
        let member = ShareMember { seen_micros: 0, base_units: WHOLE_UNITS / count, used_micros: 0 };
        let members = rows.keys().map(|holder| (*holder, member)).collect();
        let mut shares = LimitShares { limit, free_missing: 0, at_micros: 0, idle_since_micros: None, rows };
        shares.note_demand(0);
        let all = shares
            .rows
            .keys()
            .map(|holder| target_share(&shares, &members, *holder, time))
            .collect::<Vec<_>>();
        assert!(all.iter().sum::<u64>() <= limit, "{all:?} of {limit}");
        all
    }

    #[test]
    fn shares_follow_demand() {
        // The limit; share, want and need of each gateway; the targets.
        type Row = (u64, &'static [(u64, u64, u64)], &'static [u64]);
        let rows: [Row; 11] = [
            (60, &[(20, 60, 0), (20, 0, 0), (20, 0, 0)], &[58, 1, 1]),
            (600, &[(200, 0, 0), (200, 9_999, 0), (200, 0, 0)], &[12, 576, 12]),
            (600, &[(200, 210, 0), (200, 0, 0), (200, 0, 0)], &[332, 134, 134]),
            // Enough for every gateway: nothing moves.
            (600, &[(200, 190, 0), (200, 10, 0), (200, 0, 200)], &[200, 200, 200]),
            (600, &[(200, 999, 0), (200, 999, 0), (200, 999, 0)], &[200, 200, 200]),
            (600, &[(12, 999, 0), (576, 100, 0), (12, 999, 0)], &[250, 100, 250]),
            (5, &[(1, 5, 0), (1, 0, 0), (1, 0, 0)], &[5, 0, 0]),
            (1, &[(0, 0, 0), (0, 1, 1), (0, 0, 0)], &[0, 1, 0]),
            // A call that needs more than an equal share.
            (1_000, &[(500, 1_000, 800), (500, 1_000, 0)], &[800, 200]),
            (1_000, &[(500, 1_000, 1_000), (500, 1_000, 800)], &[1_000, 0]),
            (7, &[(0, 0, 0), (0, 0, 0)], &[0, 0]),
        ];
        for (limit, rows, expected) in rows {
            assert_eq!(targets(limit, rows, 0), expected, "{limit}: {rows:?}");
        }
        assert_eq!(targets(1_000, &[(500, 1_000, 1_000), (500, 1_000, 800)], PRECEDENCE_MICROS), [200, 800]);
        assert_eq!(targets(600, &[(576, 0, 0), (12, 0, 0), (12, 0, 0)], 61_000_000), [200, 200, 200]);
        assert_eq!(targets(600, &[(576, 0, 0), (12, 0, 0), (12, 0, 0)], 59_000_000), [576, 12, 12]);
    }

    proptest::proptest! {
        #[test]
        fn targets_never_exceed_the_limit(
            limit in 0_u64..10_000,
            rows in proptest::collection::vec((0_u64..5_000, 0_u64..20_000, 0_u64..20_000), 1..6),
            time in 0_u64..1_000_000_000,
        ) {
            let fair = limit / rows.len() as u64;
            let rows: Vec<_> = rows.into_iter().map(|(share, want, need)| (share.min(fair), want, need)).collect();
            targets(limit, &rows, time);
        }
    }
}
