//! Explains why some of a prompt's blocks were not in the prefix cache. Knows tokens and positions, not their text.

use headrace_domain::{BLOCK_TOKENS, CacheMiss, MissReason};

use crate::blocks::BlockPool;
use crate::sequence::{Sequence, usable_blocks};

/// Explains why a sequence that found `hits` blocks of its prompt did not find the next one. Returns `None` if it found
/// every block that it can. `kept` says whether the prefix cache is on.
pub(crate) fn explain(
    sequence: &mut Sequence,
    hits: usize,
    kept: bool,
    pool: &BlockPool,
) -> Option<CacheMiss> {
    let usable = usable_blocks(sequence.prompt.len());
    let miss = |reason, token: usize, elsewhere| {
        let token = u32::try_from(token).unwrap_or(u32::MAX);
        Some(CacheMiss { reason, token, elsewhere, place: None, other: None })
    };
    if usable == 0 {
        return miss(MissReason::BelowBlock, 0, false);
    }
    if !kept {
        return miss(MissReason::Disabled, 0, false);
    }
    if sequence.scoring {
        return miss(MissReason::Bypassed, 0, false);
    }
    if hits >= usable {
        return None;
    }
    sequence.ensure_keys(hits + 1);
    sequence.ensure_contents(hits + 1);
    let key = sequence.keys.get(hits)?;
    let before = hits.checked_sub(1).and_then(|last| sequence.keys.get(last));
    let start = hits * BLOCK_TOKENS;
    let wanted = sequence.prompt.get(start..start + BLOCK_TOKENS)?;
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
