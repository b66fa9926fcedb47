//! Carries the cache events that servers report to the prefix indexes that place calls. Must not know how the events
//! are received, nor what a call asks for.

use std::sync::Weak;

use headrace_fleet::{BlockOwner, PrefixIndex, StoredRun, WorkerSite};
use headrace_upstream::{CacheEvent, StoredBlocks, StoredLabel};

/// Maximum number of blocks that are tracked per server: eight million tokens in blocks of 16. Each block takes some 80
/// bytes.
const MAX_BLOCKS: usize = 1 << 19;

/// Returns a callback that applies the cache events of one server to its prefix index.
pub(crate) fn cache_event_handler(site: Weak<WorkerSite>) -> impl FnMut(CacheEvent) + Send {
    move |event| {
        if let Some(site) = site.upgrade() {
            take(&mut site.cache(), &event);
        }
    }
}

fn take(cache: &mut Option<PrefixIndex>, event: &CacheEvent) {
    match (event, cache) {
        (CacheEvent::Unknown, cache) => *cache = None,
        (CacheEvent::Begins { whole }, cache) => *cache = Some(PrefixIndex::new(MAX_BLOCKS, *whole)),
        (CacheEvent::Stored(blocks), Some(index)) => {
            // Blocks that do not fit only cost an unforeseen cache hit. The index records that it is no longer whole.
            let _ = index.stored(&stored(blocks));
        }
        (CacheEvent::Removed(blocks), Some(index)) => index.removed(blocks),
        (CacheEvent::Cleared, Some(index)) => index.cleared(),
        (CacheEvent::Stored(_) | CacheEvent::Removed(_) | CacheEvent::Cleared, None) => {}
    }
}

fn stored(blocks: &StoredBlocks) -> StoredRun<'_> {
    let StoredBlocks { parent, blocks, tokens, block_tokens, label } = blocks;
    let whose = match label {
        StoredLabel::Ours(label) => BlockOwner::Labelled(*label),
        StoredLabel::Others => BlockOwner::Others,
        StoredLabel::Unreported => BlockOwner::Unreported,
    };
    StoredRun { parent: *parent, blocks, tokens, block_tokens: *block_tokens, whose }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headrace_domain::CacheSalt;

    use super::*;

    #[test]
    fn an_index_is_there_from_the_first_word_until_nothing_is_told() {
        let site = Arc::new(WorkerSite::new("gpu"));
        let mut told = cache_event_handler(Arc::downgrade(&site));
        let label = StoredLabel::Ours(CacheSalt::derive(&[0; 32], "t", "m", None).label());
        let blocks = |blocks: &[u128]| {
            let tokens = vec![1; blocks.len() * 16];
            let blocks =
                StoredBlocks { parent: None, blocks: blocks.to_vec(), tokens, block_tokens: 16, label };
            CacheEvent::Stored(blocks)
        };
        let known = || site.cache().as_ref().map(|index| (index.len(), index.is_whole()));
        for (event, expected) in [
            (blocks(&[1]), None),
            (CacheEvent::Begins { whole: true }, Some((0, true))),
            (blocks(&[1, 2, 3]), Some((3, true))),
            (CacheEvent::Removed(vec![3]), Some((2, true))),
            (CacheEvent::Begins { whole: false }, Some((0, false))),
            (blocks(&[1]), Some((1, false))),
            (CacheEvent::Cleared, Some((0, true))),
            (CacheEvent::Unknown, None),
        ] {
            told(event.clone());
            assert_eq!(known(), expected, "{event:?}");
        }
    }
}
