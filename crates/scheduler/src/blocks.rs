//! The pool of KV blocks: reference counts, the free lists, and the cached prefixes. Knows ids and counts. The bytes of
//! a block belong to the code that computes it.
//!
//! The free list is an intrusive LRU list. A free block keeps its cached prefix until it is reused, and a hit takes it
//! off the list in constant time. Blocks without a prefix are at the front and are reused first. Pinned blocks are in
//! lists of their own, one per lifetime, and so in the order in which their pins end. They are reused last. When a pin
//! ends, its block moves to the end of the usual list.

use std::collections::BTreeMap;

use headrace_domain::{BlockKey, CacheLife, CacheSalt, RequestId};

use crate::nearest::{BlockContent, CachedPrefix, Nearest};
use crate::pins::{BlockPin, PinWish, Pins, rank};
use crate::tables::ByKey;

/// End of a list.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) refs: u32,
    prev: u32,
    next: u32,
    /// Whether a sequence other than the one that computed it has built on it.
    relied_on: bool,
    /// When its last holder released it.
    freed_ns: u64,
    /// Its pin, if it has one.
    pub(crate) pinned: Option<BlockPin>,
    pub(crate) cached: Option<CachedPrefix>,
}

/// The two ends of a list of free blocks.
#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List { head: NONE, tail: NONE };

/// All blocks. A block is either held (`refs > 0`) or in a free list. Only held blocks are written, and only by their
/// single holder, before they are published.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// The usual free list, then the lists of pinned blocks, by lifetime.
    lists: [List; 1 + CacheLife::ALL.len()],
    pins: Pins,
    /// The blocks that each call holds a pin of, in the order in which it got them.
    owned: BTreeMap<RequestId, Vec<u32>>,
    free: usize,
    free_cached: usize,
    index: ByKey<u32>,
    nearest: Nearest,
    /// How long a free block's prefix stays findable.
    lifetime_ns: u64,
    now_ns: u64,
}

impl BlockPool {
    /// Creates `count` free and empty blocks. The caller has checked that `count` fits `u32`. A prefix that no sequence
    /// holds stays findable for `lifetime_ns`.
    pub(crate) fn new(count: usize, lifetime_ns: u64, pins: Pins) -> Self {
        let (prev, next) = (NONE, NONE);
        let empty = Block { refs: 0, prev, next, relied_on: false, freed_ns: 0, pinned: None, cached: None };
        let mut pool = Self {
            blocks: vec![empty; count],
            lists: [EMPTY; 1 + CacheLife::ALL.len()],
            pins,
            owned: BTreeMap::new(),
            free: 0,
            free_cached: 0,
            index: ByKey::with_capacity_and_hasher(count, Default::default()),
            nearest: Nearest::new(count),
            lifetime_ns,
            now_ns: 0,
        };
        for block in (0..count as u32).rev() {
            pool.push_front(block);
        }
        pool
    }

    /// Advances the clock to `now_ns`, never backwards, and ends the pins that are over.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        for life in CacheLife::ALL {
            while let Some((block, end)) = self.first_pinned(life)
                && end < self.now_ns
            {
                self.unlink(block);
                self.unpin(block);
                self.push_back(block);
            }
        }
    }

    /// The free pinned block of this lifetime whose pin ends first, and when it ends.
    fn first_pinned(&self, life: CacheLife) -> Option<(u32, u64)> {
        let block = self.lists[1 + rank(life)].head;
        let entry = self.blocks.get(block as usize)?;
        Some((block, entry.freed_ns.saturating_add(life.nanos())))
    }

    /// The limits on pinned blocks, and their use.
    pub(crate) fn pins(&mut self) -> &mut Pins {
        &mut self.pins
    }

    /// Pins a cached block that a sequence holds. A longer existing pin stays. Returns `true` if the pin uses the place
    /// that was `reserved` for it.
    pub(crate) fn pin(&mut self, block: u32, wish: PinWish, tenant: u64, reserved: bool) -> bool {
        let PinWish { life, lasts, owner } = wish;
        let entry = &mut self.blocks[block as usize];
        if entry.refs == 0 || entry.cached.is_none() {
            return false;
        }
        let is_new = entry.pinned.is_none();
        if is_new && !reserved && !self.pins.reserve(tenant) {
            return false;
        }
        let pin = entry.pinned.get_or_insert_with(|| BlockPin { life, tenant, lasts, owners: Vec::new() });
        pin.life = life.max(pin.life);
        pin.lasts |= lasts;
        if let Some(owner) = owner
            && !pin.owners.contains(&owner)
        {
            pin.owners.push(owner);
            self.owned.entry(owner).or_default().push(block);
        }
        is_new && reserved
    }

    /// Releases all pins that a call holds. A block whose pin a caller asked for, or that another call holds, stays
    /// pinned.
    pub(crate) fn release_pins_of(&mut self, owner: RequestId) {
        // The last block of a prefix comes first: it is reused before those that it builds on.
        for block in self.owned.remove(&owner).into_iter().flatten().rev() {
            let entry = &mut self.blocks[block as usize];
            let Some(pin) = &mut entry.pinned else { continue };
            pin.owners.retain(|own| *own != owner);
            if pin.lasts || !pin.owners.is_empty() {
                continue;
            }
            if entry.refs > 0 {
                self.unpin(block);
            } else {
                self.unlink(block);
                self.unpin(block);
                self.push_back(block);
            }
        }
    }

    /// Ends the pin of a block.
    fn unpin(&mut self, block: u32) {
        let Some(pin) = self.blocks[block as usize].pinned.take() else { return };
        self.pins.release(pin.tenant, 1);
        for owner in pin.owners {
            let Some(owned) = self.owned.get_mut(&owner) else { continue };
            owned.retain(|own| *own != block);
            if owned.is_empty() {
                self.owned.remove(&owner);
            }
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that no sequence holds, cached ones included.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Number of free blocks with a cached prefix.
    pub(crate) fn free_cached(&self) -> usize {
        self.free_cached
    }

    pub(crate) fn is_free(&self, block: u32) -> bool {
        self.blocks[block as usize].refs == 0
    }

    /// Takes the least recently used free block, which loses its cached prefix. If only pinned blocks are free, takes
    /// the one whose pin ends first. Returns `None` if every block is held.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let usual = self.lists[0];
        let pinned = || {
            CacheLife::ALL.into_iter().filter_map(|life| self.first_pinned(life)).min_by_key(|(_, end)| *end)
        };
        let block = if usual.head != NONE { usual.head } else { pinned()?.0 };
        self.unlink(block);
        self.unpin(block);
        let entry = &mut self.blocks[block as usize];
        entry.refs = 1;
        entry.relied_on = false;
        if let Some(cached) = entry.cached.take() {
            self.index.remove(&cached.key);
            self.nearest.leave(block, &cached, true);
        }
        Some(block)
    }

    /// Adds a holder to a block that [`Self::lookup`] found. `relies` says that the holder is not the sequence that
    /// computed the block.
    pub(crate) fn share(&mut self, block: u32, relies: bool) {
        if self.is_free(block) {
            self.unlink(block);
        }
        let entry = &mut self.blocks[block as usize];
        entry.refs += 1;
        entry.relied_on |= relies;
    }

    /// Makes a block unfindable, unless a sequence holds it or another has built on it.
    pub(crate) fn take_back(&mut self, block: u32) {
        if self.is_free(block) && !self.blocks[block as usize].relied_on {
            self.forget(block, false);
        }
    }

    /// Makes a block unfindable that its sequence no longer needs, unless a sequence holds it or another has built on
    /// it. It counts as evicted.
    pub(crate) fn drop_outside(&mut self, block: u32) {
        if self.is_free(block) && !self.blocks[block as usize].relied_on {
            self.forget(block, true);
        }
    }

    /// Makes a free block unfindable. It is now reused first.
    fn forget(&mut self, block: u32, evicted: bool) {
        self.unlink(block);
        self.unpin(block);
        if let Some(cached) = self.blocks[block as usize].cached.take() {
            self.index.remove(&cached.key);
            self.nearest.leave(block, &cached, evicted);
        }
        self.push_front(block);
    }

    /// Removes one holder. The last one returns the block to a free list.
    pub(crate) fn release(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.refs = entry.refs.saturating_sub(1);
        if entry.refs == 0 {
            entry.freed_ns = self.now_ns;
            if entry.cached.is_some() { self.push_back(block) } else { self.push_front(block) }
        }
    }

    /// Makes a full, computed block findable, and returns the block that is found for this prefix. If another block
    /// that has not expired is already found for it, `block` stays unfindable and is reused first when freed.
    pub(crate) fn publish(&mut self, block: u32, prefix: &CachedPrefix) -> u32 {
        match self.index.get(&prefix.key) {
            Some(&other) if self.has_expired(other) => self.forget(other, false),
            Some(&other) => return other,
            None => {}
        }
        let entry = &mut self.blocks[block as usize];
        if entry.cached.is_none() {
            self.index.insert(prefix.key, block);
            self.nearest.enter(block, prefix);
            entry.cached = Some(prefix.clone());
        }
        block
    }

    /// Whether no sequence has used a block for longer than the lifetime of prefixes.
    fn has_expired(&self, block: u32) -> bool {
        let entry = &self.blocks[block as usize];
        entry.refs == 0
            && entry.pinned.is_none()
            && self.now_ns.saturating_sub(entry.freed_ns) > self.lifetime_ns
    }

    /// The block for `key`, if it has not expired and its salt and tokens are equal too. So a hash collision finds
    /// nothing.
    pub(crate) fn lookup(&self, key: &BlockKey, salt: &CacheSalt, tokens: &[u32]) -> Option<u32> {
        self.stored(key, salt, tokens).filter(|&block| !self.has_expired(block))
    }

    /// Whether the block for `key` has expired and may no longer be used.
    pub(crate) fn holds_expired(&self, key: &BlockKey, salt: &CacheSalt, tokens: &[u32]) -> bool {
        self.stored(key, salt, tokens).is_some_and(|block| self.has_expired(block))
    }

    fn stored(&self, key: &BlockKey, salt: &CacheSalt, tokens: &[u32]) -> Option<u32> {
        let block = *self.index.get(key)?;
        let cached = self.blocks[block as usize].cached.as_ref()?;
        (cached.salt == *salt && cached.tokens == tokens).then_some(block)
    }

    /// The tokens of a findable block.
    pub(crate) fn tokens(&self, block: u32) -> Option<&BlockContent> {
        Some(&self.blocks.get(block as usize)?.cached.as_ref()?.tokens)
    }

    /// The index that explains why a block was not found.
    pub(crate) fn nearest(&self) -> &Nearest {
        &self.nearest
    }

    /// Index of the list for a free block.
    fn list(&self, block: u32) -> usize {
        self.blocks[block as usize].pinned.as_ref().map_or(0, |pin| 1 + rank(pin.life))
    }

    fn unlink(&mut self, block: u32) {
        let list = self.list(block);
        let Block { prev, next, .. } = self.blocks[block as usize];
        if prev == NONE {
            self.lists[list].head = next
        } else {
            self.blocks[prev as usize].next = next
        }
        if next == NONE {
            self.lists[list].tail = prev
        } else {
            self.blocks[next as usize].prev = prev
        }
        let entry = &mut self.blocks[block as usize];
        (entry.prev, entry.next) = (NONE, NONE);
        self.free -= 1;
        self.free_cached -= usize::from(entry.cached.is_some());
    }

    fn push_back(&mut self, block: u32) {
        let list = self.list(block);
        let last = self.lists[list].tail;
        if last == NONE {
            self.lists[list].head = block
        } else {
            self.blocks[last as usize].next = block
        }
        self.lists[list].tail = block;
        let entry = &mut self.blocks[block as usize];
        (entry.prev, entry.next) = (last, NONE);
        self.free += 1;
        self.free_cached += usize::from(entry.cached.is_some());
    }

    /// Puts a block at the front of the usual list. Only for blocks without a prefix, which are never pinned.
    fn push_front(&mut self, block: u32) {
        let first = self.lists[0].head;
        if first == NONE {
            self.lists[0].tail = block
        } else {
            self.blocks[first as usize].prev = block
        }
        self.lists[0].head = block;
        let entry = &mut self.blocks[block as usize];
        (entry.prev, entry.next) = (NONE, first);
        self.free += 1;
        self.free_cached += usize::from(entry.cached.is_some());
    }

    /// For tests: the counts of pinned and reserved blocks.
    pub(crate) fn audit_pins(&self) -> &Pins {
        &self.pins
    }

    /// For tests: the blocks whose pins each call holds.
    pub(crate) fn audit_owned(&self) -> &BTreeMap<RequestId, Vec<u32>> {
        &self.owned
    }

    /// For tests: every block's state.
    pub(crate) fn audit(&self) -> &[Block] {
        &self.blocks
    }

    /// For tests: the ids in the free lists, in order. Ends one id after a list that has a ring.
    pub(crate) fn audit_free(&self) -> impl Iterator<Item = u32> + '_ {
        let next = |&at: &u32| self.blocks.get(at as usize).map(|block| block.next);
        let of = move |list: &List| {
            std::iter::successors(Some(list.head), next).take_while(|&block| block != NONE)
        };
        self.lists.iter().flat_map(of).take(self.blocks.len() + 1)
    }

    /// For tests: the block found by each key.
    pub(crate) fn audit_index(&self) -> &ByKey<u32> {
        &self.index
    }
}

#[cfg(test)]
mod pin_tests;

#[cfg(test)]
mod tests {
    use headrace_domain::BLOCK_TOKENS;

    use super::*;
    use crate::config::SchedulerConfig;

    fn pool(blocks: usize, lifetime_ns: u64) -> BlockPool {
        BlockPool::new(blocks, lifetime_ns, Pins::new(&SchedulerConfig::default(), blocks))
    }

    fn salt(tenant: &str) -> CacheSalt {
        CacheSalt::derive(&[1; 32], tenant, "m", None)
    }

    fn prefix(salt: &CacheSalt, tokens: BlockContent) -> CachedPrefix {
        let key = BlockKey::chain(salt, None, &tokens);
        CachedPrefix { key, salt: *salt, tokens, parent: None, content: 0 }
    }

    #[test]
    fn uncached_blocks_are_used_before_cached_ones_and_those_oldest_first() {
        let mut pool = pool(4, u64::MAX);
        let taken: Vec<u32> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!(pool.take(), None);
        let s = salt("a");
        for block in [1, 3] {
            pool.publish(block, &prefix(&s, [block; BLOCK_TOKENS]));
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
        let mut pool = pool(2, u64::MAX);
        let (a, b) = (salt("a"), salt("b"));
        let tokens = [9; BLOCK_TOKENS];
        let published = prefix(&a, tokens);
        let key = published.key;
        let block = pool.take().unwrap();
        pool.publish(block, &published);
        pool.release(block);
        assert_eq!(pool.lookup(&key, &a, &tokens), Some(block));
        assert_eq!(pool.lookup(&key, &b, &tokens), None);
        assert_eq!(pool.lookup(&key, &a, &[8; BLOCK_TOKENS]), None);
        pool.share(block, true);
        assert_eq!((pool.free(), pool.free_cached()), (1, 0));
        // Taking the last free block must not disturb the held one.
        assert_ne!(pool.take(), Some(block));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn what_nobody_used_for_its_lifetime_is_found_no_longer_and_can_be_published_anew() {
        let mut pool = pool(3, 100);
        let salt = salt("a");
        let tokens = [9; BLOCK_TOKENS];
        let published = prefix(&salt, tokens);
        let key = published.key;
        let first = pool.take().unwrap();
        pool.publish(first, &published);
        pool.set_now(1000);
        assert_eq!(pool.lookup(&key, &salt, &tokens), Some(first), "held, however long");
        pool.release(first);
        for (now, found) in [(1000, true), (1100, true), (1101, false), (5, false)] {
            pool.set_now(now);
            assert_eq!(pool.lookup(&key, &salt, &tokens).is_some(), found, "{now}");
            assert_eq!(pool.holds_expired(&key, &salt, &tokens), !found, "{now}");
        }
        let second = pool.take().unwrap();
        assert_ne!(first, second, "blocks without a prefix are used up first");
        pool.publish(second, &published);
        assert_eq!(pool.lookup(&key, &salt, &tokens), Some(second));
        pool.release(second);
        assert_eq!((pool.free(), pool.free_cached()), (3, 1));
        assert_eq!(pool.nearest.audit(), Ok((1, 1)));
    }

    #[test]
    fn a_block_is_taken_back_only_while_nobody_has_built_on_it() {
        for (relied_on, found) in [(false, None), (true, Some(0))] {
            let mut pool = pool(2, u64::MAX);
            let salt = salt("a");
            let tokens = [9; BLOCK_TOKENS];
            let published = prefix(&salt, tokens);
            let key = published.key;
            let block = pool.take().unwrap();
            pool.publish(block, &published);
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
