//! Explains why some of a prompt's blocks were not in the prefix cache. Knows tokens and positions, not their text.

use headrace_domain::{CacheMiss, MissReason};

use crate::kv_groups::{CachedReach, KvGroups};
use crate::sequence::Sequence;

/// Explains why a sequence did not find more blocks of its prompt. Returns `None` if it found every block that it can.
/// `enabled` says whether the prefix cache is on. If the layers with every position have further blocks, the reason is
/// the window or the state that is missing there. Otherwise the first group explains.
pub(crate) fn explain(
    sequence: &mut Sequence,
    reach: CachedReach,
    enabled: bool,
    groups: &KvGroups,
) -> Option<CacheMiss> {
    let (layout, pool, hits) = (groups.layout(), groups.first_pool(), reach.hits);
    let usable = layout.cacheable_blocks(sequence.prompt.len());
    let miss = |reason, token: usize, elsewhere| {
        let token = u32::try_from(token).unwrap_or(u32::MAX);
        Some(CacheMiss { reason, token, elsewhere, place: None, other: None })
    };
    if usable == 0 {
        return miss(MissReason::BelowBlock, 0, false);
    }
    if !enabled {
        return miss(MissReason::Disabled, 0, false);
    }
    if sequence.scoring {
        return miss(MissReason::Bypassed, 0, false);
    }
    if hits >= usable {
        return None;
    }
    if hits < reach.full {
        let reason = match groups.keeps_state(&sequence.keys, &sequence.salt, sequence.known(), reach.full) {
            false => MissReason::StateNotKept,
            true => MissReason::WindowFreed,
        };
        return miss(reason, hits * layout.block_tokens(), false);
    }
    sequence.ensure_keys(hits + 1, layout);
    sequence.ensure_contents(hits + 1, layout);
    let key = sequence.keys.get(hits)?;
    let before = hits.checked_sub(1).and_then(|last| sequence.keys.get(last));
    let start = hits * layout.block_tokens();
    let wanted = sequence.prompt.get(start..start + layout.block_tokens())?;
    if pool.holds_expired(key, &sequence.salt, wanted) {
        return miss(MissReason::Expired, start, false);
    }
    let nearest = pool.nearest();
    if nearest.was_evicted(key) {
        return miss(MissReason::Evicted, start, false);
    }
    let elsewhere = sequence.contents.get(hits).is_some_and(|&content| nearest.holds(content));
    let followers = nearest.followers(before, &sequence.salt);
    let shared = followers.filter_map(|block| pool.tokens(block)).map(|tokens| {
        let same = tokens.iter().zip(wanted).take_while(|(cached, wanted)| cached == wanted).count();
        (same, tokens.get(same).copied())
    });
    match shared.max_by_key(|(same, _)| *same) {
        Some((same, other)) => {
            miss(MissReason::Differs, start + same, elsewhere).map(|miss| CacheMiss { other, ..miss })
        }
        None => miss(MissReason::NeverSeen, start, elsewhere),
    }
}
