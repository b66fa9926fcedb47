//! The pool of KV blocks: reference counts, the free list, and which blocks hold a cached prefix.
//! Knows ids and counts; the bytes of a block belong to whoever computes.
//!
//! The free list is an intrusive LRU: a block that holds a cached prefix keeps it until its turn comes, and a hit takes
//! it back out in constant time. Blocks without a prefix stand at the front and are used up first.

use headrace_domain::{BLOCK_TOKENS, BlockKey, CacheSalt};

use crate::nearest::{ByKey, Nearest};

/// End of the list.
const NONE: u32 = u32::MAX;

/// What a cached block holds, to be compared in full on a hit.
#[derive(Debug, Clone)]
pub(crate) struct CachedPrefix {
    pub(crate) key: BlockKey,
    pub(crate) salt: CacheSalt,
    pub(crate) tokens: [u32; BLOCK_TOKENS],
    /// The block before it; `None`: it begins a prompt.
    pub(crate) parent: Option<BlockKey>,
    /// Its tokens and all before them, whatever the salt.
    pub(crate) content: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) refs: u32,
    prev: u32,
    next: u32,
    /// Whether another sequence than the one that computed it has built on it.
    relied_on: bool,
    pub(crate) cached: Option<CachedPrefix>,
}

/// All blocks. A block is either held (`refs > 0`) or in the free list; only held blocks are written, and only by
/// their single holder before they are published.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    head: u32,
    tail: u32,
    free: usize,
    free_cached: usize,
    index: ByKey<u32>,
    nearest: Nearest,
}

impl BlockPool {
    /// `count` blocks, all free and empty. `count` was checked to fit `u32`.
    pub(crate) fn new(count: usize) -> Self {
        let empty = Block { refs: 0, prev: NONE, next: NONE, relied_on: false, cached: None };
        let mut pool = Self {
            blocks: vec![empty; count],
            head: NONE,
            tail: NONE,
            free: 0,
            free_cached: 0,
            index: ByKey::with_capacity_and_hasher(count, Default::default()),
            nearest: Nearest::new(count),
        };
        for block in (0..count as u32).rev() {
            pool.push_front(block);
        }
        pool
    }

    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that nobody holds, cached ones included.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Of the free ones, those with a cached prefix.
    pub(crate) fn free_cached(&self) -> usize {
        self.free_cached
    }

    pub(crate) fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].refs == 0
    }

    /// The longest unused free block, which forgets what it cached. `None`: all are held.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let block = self.head;
        if block == NONE {
            return None;
        }
        self.unlink(block);
        let entry = &mut self.blocks[block as usize];
        entry.refs = 1;
        entry.relied_on = false;
        if let Some(cached) = entry.cached.take() {
            self.index.remove(&cached.key);
            self.nearest.leave(block, &cached, true);
        }
        Some(block)
    }

    /// One more holder of a block that [`Self::lookup`] found: another than the sequence that computed it, or (not
    /// `relies`) that one again.
    pub(crate) fn share(&mut self, block: u32, relies: bool) {
        if self.is_free(block) {
            self.unlink(block);
        }
        let entry = &mut self.blocks[block as usize];
        entry.refs += 1;
        entry.relied_on |= relies;
    }

    /// Makes a block findable no longer, unless somebody holds it or has built on it.
    pub(crate) fn take_back(&mut self, block: u32) {
        if !self.is_free(block) || self.blocks[block as usize].relied_on {
            return;
        }
        self.unlink(block);
        if let Some(cached) = self.blocks[block as usize].cached.take() {
            self.index.remove(&cached.key);
            self.nearest.leave(block, &cached, false);
        }
        self.push_front(block);
    }

    /// One holder fewer. The last one returns it to the free list.
    pub(crate) fn release(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.refs = entry.refs.saturating_sub(1);
        if entry.refs == 0 {
            if entry.cached.is_some() { self.push_back(block) } else { self.push_front(block) }
        }
    }

    /// Makes a full, computed block findable. If another block already stands for the same prefix this one stays
    /// unknown and is used up first when freed.
    pub(crate) fn publish(&mut self, block: u32, prefix: CachedPrefix) {
        if self.index.contains_key(&prefix.key) {
            return;
        }
        let entry = &mut self.blocks[block as usize];
        if entry.cached.is_none() {
            self.index.insert(prefix.key, block);
            self.nearest.enter(block, &prefix);
            entry.cached = Some(prefix);
        }
    }

    /// The block that stands for `key`, if its salt and tokens are equal too: a colliding hash finds nothing.
    pub(crate) fn lookup(&self, key: &BlockKey, salt: &CacheSalt, tokens: &[u32]) -> Option<u32> {
        let block = *self.index.get(key)?;
        let cached = self.blocks[block as usize].cached.as_ref()?;
        (cached.salt == *salt && cached.tokens == tokens).then_some(block)
    }

    /// The tokens of a findable block.
    pub(crate) fn tokens(&self, block: u32) -> Option<&[u32; BLOCK_TOKENS]> {
        Some(&self.blocks.get(block as usize)?.cached.as_ref()?.tokens)
    }

    /// What lies near a block that was not found.
    pub(crate) fn nearest(&self) -> &Nearest {
        &self.nearest
    }

    fn unlink(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        if prev == NONE {
            self.head = next
        } else {
            self.blocks[prev as usize].next = next
        }
        if next == NONE {
            self.tail = prev
        } else {
            self.blocks[next as usize].prev = prev
        }
        let entry = &mut self.blocks[block as usize];
        (entry.prev, entry.next) = (NONE, NONE);
        self.free -= 1;
        self.free_cached -= usize::from(entry.cached.is_some());
    }

    fn push_back(&mut self, block: u32) {
        let last = self.tail;
        if last == NONE {
            self.head = block
        } else {
            self.blocks[last as usize].next = block
        }
        self.tail = block;
        let entry = &mut self.blocks[block as usize];
        (entry.prev, entry.next) = (last, NONE);
        self.free += 1;
        self.free_cached += usize::from(entry.cached.is_some());
    }

    fn push_front(&mut self, block: u32) {
        let first = self.head;
        if first == NONE {
            self.tail = block
        } else {
            self.blocks[first as usize].prev = block
        }
        self.head = block;
        let entry = &mut self.blocks[block as usize];
        (entry.prev, entry.next) = (NONE, first);
        self.free += 1;
        self.free_cached += usize::from(entry.cached.is_some());
    }

    /// For tests: every block's state, the ids in the free list in order, and the index.
    pub(crate) fn audit(&self) -> (&[Block], Vec<u32>, &ByKey<u32>) {
        let mut list = Vec::new();
        let mut at = self.head;
        while at != NONE && list.len() <= self.blocks.len() {
            list.push(at);
            at = self.blocks[at as usize].next;
        }
        (&self.blocks, list, &self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn salt(tenant: &str) -> CacheSalt {
        CacheSalt::derive(&[1; 32], tenant, "m", None)
    }

    fn prefix(salt: &CacheSalt, tokens: [u32; BLOCK_TOKENS]) -> CachedPrefix {
        let key = BlockKey::chain(salt, None, &tokens);
        CachedPrefix { key, salt: *salt, tokens, parent: None, content: 0 }
    }

    #[test]
    fn uncached_blocks_are_used_before_cached_ones_and_those_oldest_first() {
        let mut pool = BlockPool::new(4);
        let taken: Vec<u32> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!(pool.take(), None);
        let s = salt("a");
        for block in [1, 3] {
            pool.publish(block, prefix(&s, [block; BLOCK_TOKENS]));
        }
        for block in [3, 2, 1, 0] {
            pool.release(block);
        }
        assert_eq!((pool.free(), pool.free_cached()), (4, 2));
        let again: Vec<u32> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert_eq!(again, [0, 2, 3, 1]);
        assert_eq!(pool.free_cached(), 0);
    }

    #[test]
    fn a_hit_needs_equal_key_salt_and_tokens() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (salt("a"), salt("b"));
        let tokens = [9; BLOCK_TOKENS];
        let published = prefix(&a, tokens);
        let key = published.key;
        let block = pool.take().unwrap();
        pool.publish(block, published);
        pool.release(block);
        assert_eq!(pool.lookup(&key, &a, &tokens), Some(block));
        assert_eq!(pool.lookup(&key, &b, &tokens), None);
        assert_eq!(pool.lookup(&key, &a, &[8; BLOCK_TOKENS]), None);
        pool.share(block, true);
        assert_eq!((pool.free(), pool.free_cached()), (1, 0));
        // Taking the last other block must not disturb the one that is held.
        assert_ne!(pool.take(), Some(block));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn a_block_is_taken_back_only_while_nobody_has_built_on_it() {
        for (relied_on, found) in [(false, None), (true, Some(0))] {
            let mut pool = BlockPool::new(2);
            let salt = salt("a");
            let tokens = [9; BLOCK_TOKENS];
            let published = prefix(&salt, tokens);
            let key = published.key;
            let block = pool.take().unwrap();
            pool.publish(block, published);
            pool.take_back(block);
            assert_eq!(pool.lookup(&key, &salt, &tokens), Some(block), "it is held");
            pool.release(block);
            pool.share(block, relied_on);
            pool.release(block);
            pool.take_back(block);
            assert_eq!(pool.lookup(&key, &salt, &tokens), found);
            assert_eq!((pool.free(), pool.free_cached()), (2, usize::from(relied_on)));
        }
    }
}
