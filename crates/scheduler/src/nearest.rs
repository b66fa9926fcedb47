//! The data that explains a cache miss: which cached blocks follow which, the recent evictions, and whether the same
//! tokens are cached under another salt. Plans do not depend on any of it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use headrace_domain::{BLOCK_TOKENS, BlockKey, CacheSalt};

use crate::tables::ByKey;

/// End of a list.
const NONE: u32 = u32::MAX;
/// Bounds on the number of remembered evictions. Between them it is the pool's block count. Each takes about 32 bytes.
const EVICTED_LEAST: usize = 1024;
const EVICTED_MOST: usize = 1 << 17;
/// Most siblings examined in the search for the nearest block. The ones cached last come first.
const SIBLINGS_LOOKED_AT: usize = 64;

/// The tokens of one block. Its size is fixed at compile time, so that a cached block needs no memory of its own.
/// [`SchedulerConfig::check`](crate::SchedulerConfig::check) compares the size with the layout's.
pub(crate) type BlockContent = [u32; BLOCK_TOKENS];

/// The content of a cached block, compared in full on a hit.
#[derive(Debug, Clone)]
pub(crate) struct CachedPrefix {
    pub(crate) key: BlockKey,
    pub(crate) salt: CacheSalt,
    pub(crate) tokens: BlockContent,
    /// The preceding block. `None` at the beginning of a prompt.
    pub(crate) parent: Option<BlockKey>,
    /// Chained hash of its tokens and all before them, without the salt.
    pub(crate) content: u64,
}

#[derive(Debug)]
pub(crate) struct Nearest {
    /// By parent: the most recently cached of the blocks that follow it.
    children: ByKey<u32>,
    /// By salt: the most recently cached of the blocks that begin a prompt.
    roots: HashMap<CacheSalt, u32>,
    /// By block: its older and its younger sibling.
    siblings: Vec<(u32, u32)>,
    /// By chained tokens, without the salt: the number of cached blocks.
    contents: HashMap<u64, u32>,
    evicted: VecDeque<BlockKey>,
    /// How often each key occurs in `evicted`.
    evicted_count: ByKey<u32>,
    evicted_most: usize,
}

impl Nearest {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            // Reserves everything at once, because a table would otherwise grow in the middle of a step.
            children: ByKey::with_capacity_and_hasher(blocks, Default::default()),
            roots: HashMap::new(),
            siblings: vec![(NONE, NONE); blocks],
            contents: HashMap::with_capacity(blocks),
            evicted: VecDeque::new(),
            evicted_count: ByKey::default(),
            evicted_most: blocks.clamp(EVICTED_LEAST, EVICTED_MOST),
        }
    }

    /// Adds a block that became findable.
    pub(crate) fn enter(&mut self, block: u32, prefix: &CachedPrefix) {
        let newest = self.newest_mut(prefix);
        let older = std::mem::replace(newest, block);
        self.set(block, |links| *links = (older, NONE));
        self.set(older, |links| links.1 = block);
        *self.contents.entry(prefix.content).or_default() += 1;
    }

    /// Removes a block that is no longer findable: it was evicted for its room (`evicted`), or it was taken back.
    pub(crate) fn leave(&mut self, block: u32, prefix: &CachedPrefix, evicted: bool) {
        let Some(&(older, younger)) = self.siblings.get(block as usize) else { return };
        self.set(older, |links| links.1 = younger);
        self.set(younger, |links| links.0 = older);
        self.set(block, |links| *links = (NONE, NONE));
        if younger == NONE {
            *self.newest_mut(prefix) = older;
            if older == NONE {
                match &prefix.parent {
                    Some(parent) => self.children.remove(parent),
                    None => self.roots.remove(&prefix.salt),
                };
            }
        }
        if let Entry::Occupied(mut count) = self.contents.entry(prefix.content) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if evicted {
            self.remember(prefix.key);
        }
    }

    /// Blocks that follow `parent`, or that begin a prompt. At most [`SIBLINGS_LOOKED_AT`], most recently cached first.
    pub(crate) fn followers(
        &self,
        parent: Option<&BlockKey>,
        salt: &CacheSalt,
    ) -> impl Iterator<Item = u32> + '_ {
        let newest = match parent {
            Some(parent) => self.children.get(parent),
            None => self.roots.get(salt),
        };
        let older = |&block: &u32| self.siblings.get(block as usize).map(|&(older, _)| older);
        std::iter::successors(newest.copied(), older)
            .take_while(|&block| block != NONE)
            .take(SIBLINGS_LOOKED_AT)
    }

    /// Whether a block with this key was evicted recently.
    pub(crate) fn was_evicted(&self, key: &BlockKey) -> bool {
        self.evicted_count.contains_key(key)
    }

    /// Whether any cached block holds these chained tokens.
    pub(crate) fn holds(&self, content: u64) -> bool {
        self.contents.contains_key(&content)
    }

    fn newest_mut(&mut self, prefix: &CachedPrefix) -> &mut u32 {
        match prefix.parent {
            Some(parent) => self.children.entry(parent).or_insert(NONE),
            None => self.roots.entry(prefix.salt).or_insert(NONE),
        }
    }

    fn set(&mut self, block: u32, change: impl FnOnce(&mut (u32, u32))) {
        if let Some(links) = self.siblings.get_mut(block as usize) {
            change(links);
        }
    }

    fn remember(&mut self, key: BlockKey) {
        if self.evicted.len() >= self.evicted_most
            && let Some(oldest) = self.evicted.pop_front()
            && let Some(count) = self.evicted_count.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.evicted_count.remove(&oldest);
            }
        }
        self.evicted.push_back(key);
        *self.evicted_count.entry(key).or_default() += 1;
    }

    /// For tests: the number of blocks in all sibling lists, and in `contents`.
    pub(crate) fn audit(&self) -> Result<(usize, usize), String> {
        let mut listed = 0;
        for &newest in self.children.values().chain(self.roots.values()) {
            let (mut block, mut younger) = (newest, NONE);
            while let Some(&(older, back)) = self.siblings.get(block as usize) {
                if back != younger || listed > self.siblings.len() {
                    return Err(format!("block {block} is linked wrongly to its siblings"));
                }
                listed += 1;
                (block, younger) = (older, block);
            }
        }
        Ok((listed, self.contents.values().map(|&count| count as usize).sum()))
    }
}

/// Chains a block's tokens to those before it, without the salt. This hash is not collision resistant. It only serves
/// diagnostics: it shows whether the same tokens are cached under another salt.
pub(crate) fn chain_content(before: Option<u64>, tokens: &[u32]) -> u64 {
    tokens.iter().fold(before.unwrap_or(0x9e37_79b9_7f4a_7c15), |hash, &token| {
        let mixed = (hash ^ u64::from(token)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(salt: CacheSalt, parent: Option<BlockKey>, token: u32) -> CachedPrefix {
        let tokens = [token; BLOCK_TOKENS];
        let key = BlockKey::chain(&salt, parent.as_ref(), &tokens);
        CachedPrefix { key, salt, tokens, parent, content: chain_content(None, &tokens) }
    }

    #[test]
    fn followers_come_youngest_first_and_what_left_is_remembered() {
        let salt = CacheSalt::derive(&[1; 32], "a", "m", None);
        let mut nearest = Nearest::new(8);
        let first = prefix(salt, None, 1);
        nearest.enter(0, &first);
        let children: Vec<_> = (2..6).map(|token| prefix(salt, Some(first.key), token)).collect();
        for (block, child) in (1..).zip(&children) {
            nearest.enter(block, child);
        }
        let list = |n: &Nearest| n.followers(Some(&first.key), &salt).collect::<Vec<_>>();
        assert_eq!(list(&nearest), [4, 3, 2, 1]);
        assert_eq!(nearest.audit(), Ok((5, 5)));
        nearest.leave(2, &children[1], true);
        nearest.leave(4, &children[3], false);
        assert_eq!(list(&nearest), [3, 1]);
        let evicted = |n: &Nearest, at: usize| n.was_evicted(&children[at].key);
        assert_eq!((evicted(&nearest, 1), evicted(&nearest, 3)), (true, false));
        assert_eq!((nearest.holds(children[0].content), nearest.holds(children[1].content)), (true, false));
        nearest.leave(1, &children[0], true);
        nearest.leave(3, &children[2], true);
        nearest.leave(0, &first, true);
        assert_eq!((list(&nearest).len(), nearest.followers(None, &salt).count()), (0, 0));
        assert_eq!(nearest.audit(), Ok((0, 0)));
        // The memory of evictions is bounded.
        for token in 0..EVICTED_LEAST as u32 {
            let other = prefix(salt, None, 100 + token);
            nearest.enter(5, &other);
            nearest.leave(5, &other, true);
        }
        assert_eq!((evicted(&nearest, 1), nearest.evicted.len()), (false, EVICTED_LEAST));
        assert_eq!(nearest.evicted_count.len(), EVICTED_LEAST);
    }
}
