//! An exact, bounded memory of how the newest resolved holds ended. It is only written at its end. Every call adds an
//! entry and few calls read one, so the layout favours writes: entries in the order of arrival, in blocks that fit in a
//! cache while they are filled. Knows nothing of money.

use std::collections::VecDeque;

use headrace_domain::HoldId;

use crate::refusal::HoldResolution;

/// The number of resolved holds that are remembered, so that a second settlement can report how the first one went. For
/// older holds, the report is "unknown hold".
pub const MAX_RESOLVED_KEPT: usize = 65_536;
/// The number of entries in a block. A block is reused when all of its entries are forgotten.
const BLOCK_ENTRIES: usize = 4_096;

/// The last `kept` holds that were resolved.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedHolds {
    kept: usize,
    block_entries: usize,
    /// Oldest first. All blocks except the last are full.
    blocks: VecDeque<ResolvedBlock>,
    /// The number of forgotten entries at the front of the first block.
    forgotten: usize,
    len: usize,
    /// The emptied block that was forgotten last. It is reused as the next block.
    spare: Option<ResolvedBlock>,
    /// An upper bound of all ids that were ever remembered. Ids begin with their time, so this bound alone
    /// distinguishes a new hold from all resolved ones.
    most: Option<HoldId>,
}

/// Consecutive entries, with an index of their positions.
#[derive(Debug, Clone)]
struct ResolvedBlock {
    least: HoldId,
    most: HoldId,
    entries: Vec<(HoldId, HoldResolution)>,
    /// A hash table with open addressing, at most half full. A slot contains a position in `entries` plus one, or 0. A
    /// slot has a 16th of an entry's size.
    index: Box<[u16]>,
}

impl Default for ResolvedHolds {
    fn default() -> Self {
        Self::in_blocks(MAX_RESOLVED_KEPT, BLOCK_ENTRIES)
    }
}

impl ResolvedHolds {
    fn in_blocks(kept: usize, block_entries: usize) -> Self {
        let block_entries = block_entries.clamp(1, BLOCK_ENTRIES);
        Self { kept, block_entries, blocks: VecDeque::new(), forgotten: 0, len: 0, spare: None, most: None }
    }

    /// The number of remembered holds.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns how a hold ended. `None` if that is not remembered.
    pub(crate) fn get(&self, hold: &HoldId) -> Option<HoldResolution> {
        if self.most.is_none_or(|most| *hold > most) {
            return None;
        }
        // Searches the newest blocks first, because callers usually ask for recent holds.
        self.blocks.iter().enumerate().rev().find_map(|(at, block)| {
            let place = block.find(hold)?;
            let remembered = at > 0 || place >= self.forgotten;
            block.entries.get(place).filter(|_| remembered).map(|(_, how)| *how)
        })
    }

    /// Remembers how a hold ended. Forgets the oldest entry if the memory is full.
    pub(crate) fn insert(&mut self, hold: HoldId, how: HoldResolution) {
        self.most = self.most.max(Some(hold));
        if self.blocks.back().is_none_or(|block| block.entries.len() >= self.block_entries) {
            let block = self.spare.take().unwrap_or_else(|| ResolvedBlock::new(self.block_entries));
            self.blocks.push_back(block);
        }
        if let Some(block) = self.blocks.back_mut() {
            block.push(hold, how);
        }
        if self.len < self.kept {
            self.len += 1;
        } else {
            self.forget_one();
        }
    }

    /// Returns the remembered entries, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(HoldId, HoldResolution)> {
        self.blocks.iter().flat_map(|block| &block.entries).skip(self.forgotten)
    }

    fn forget_one(&mut self) {
        self.forgotten += 1;
        let first = self.blocks.front().map_or(0, |block| block.entries.len());
        if self.forgotten >= first
            && let Some(mut block) = self.blocks.pop_front()
        {
            self.forgotten -= first;
            block.clear();
            self.spare = Some(block);
        }
    }
}

impl ResolvedBlock {
    fn new(entries: usize) -> Self {
        let slots = (2 * entries).next_power_of_two();
        let (least, most) = (HoldId::from_bits(u128::MAX), HoldId::from_bits(0));
        Self { least, most, entries: Vec::with_capacity(entries), index: vec![0; slots].into() }
    }

    fn clear(&mut self) {
        (self.least, self.most) = (HoldId::from_bits(u128::MAX), HoldId::from_bits(0));
        self.entries.clear();
        self.index.fill(0);
    }

    /// Returns the slots that may contain a hold's number, in search order.
    fn slots(&self, hold: &HoldId) -> impl Iterator<Item = usize> + use<> {
        let mask = self.index.len() - 1;
        let bits = hold.bits();
        let folded = (bits as u64) ^ ((bits >> 64) as u64);
        // Fibonacci hashing: all input bits influence the upper bits of the product.
        let hash = (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..=mask).map(move |step| hash.wrapping_add(step) & mask)
    }

    /// Returns the position of a hold's newest entry.
    fn find(&self, hold: &HoldId) -> Option<usize> {
        if *hold < self.least || *hold > self.most {
            return None;
        }
        let mut found = None;
        for slot in self.slots(hold) {
            let number = self.index.get(slot).copied().filter(|number| *number > 0);
            let Some(place) = number.map(|number| usize::from(number) - 1) else { break };
            if self.entries.get(place).is_some_and(|(known, _)| known == hold) {
                found = Some(place);
            }
        }
        found
    }

    fn push(&mut self, hold: HoldId, how: HoldResolution) {
        self.least = self.least.min(hold);
        self.most = self.most.max(hold);
        self.entries.push((hold, how));
        let number = u16::try_from(self.entries.len()).unwrap_or(0);
        let is_free = |slot: &usize| self.index.get(*slot) == Some(&0);
        let free = self.slots(&hold).find(is_free);
        if let Some(slot) = free.and_then(|slot| self.index.get_mut(slot)) {
            *slot = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use headrace_domain::NanoDollars;
    use proptest::prelude::*;

    use super::*;
    use crate::ReleaseReason;

    /// The simplest implementation of the same behaviour.
    #[derive(Default)]
    struct PlainHolds {
        how: HashMap<HoldId, HoldResolution>,
        order: VecDeque<HoldId>,
    }

    impl PlainHolds {
        fn insert(&mut self, hold: HoldId, how: HoldResolution, kept: usize) {
            self.how.insert(hold, how);
            self.order.push_back(hold);
            if self.order.len() > kept {
                let oldest = self.order.pop_front().unwrap();
                self.how.remove(&oldest);
            }
        }
    }

    fn how(n: u64) -> HoldResolution {
        match n % 3 {
            0 => HoldResolution::Released { why: ReleaseReason::Expired },
            _ => HoldResolution::Settled { charged: NanoDollars::new(n as i64) },
        }
    }

    proptest! {
        /// As in the ledger, no hold occurs again while it is remembered.
        #[test]
        fn it_remembers_what_a_plain_map_and_queue_would(
            kept in 1usize..20,
            block in 1usize..9,
            ids in prop::collection::vec(prop_oneof![0u128..40, any::<u128>(), (0u128..40).prop_map(|id| id << 64)], 0..200),
        ) {
            let (mut plain, mut resolved) = (PlainHolds::default(), ResolvedHolds::in_blocks(kept, block));
            for (n, id) in (0..).zip(ids) {
                let hold = HoldId::from_bits(id);
                prop_assert_eq!(resolved.get(&hold), plain.how.get(&hold).copied());
                if plain.how.contains_key(&hold) {
                    continue;
                }
                plain.insert(hold, how(n), kept);
                resolved.insert(hold, how(n));
                prop_assert_eq!(resolved.len(), plain.order.len());
                let ordered: VecDeque<HoldId> = resolved.iter().map(|(hold, _)| *hold).collect();
                prop_assert_eq!(&ordered, &plain.order);
                for id in 0..40 {
                    for hold in [HoldId::from_bits(id), HoldId::from_bits(id << 64)] {
                        prop_assert_eq!(resolved.get(&hold), plain.how.get(&hold).copied());
                    }
                }
            }
        }
    }

    #[test]
    fn it_is_bounded_at_full_size_and_finds_the_oldest_and_the_newest() {
        const KEPT: u128 = MAX_RESOLVED_KEPT as u128;
        let mut resolved = ResolvedHolds::default();
        let total = 3 * KEPT + 1_234;
        let id =
            |n: u128| HoldId::from_bits((n << 80) | (n.wrapping_mul(0x1234_5678_9abc_def1) & 0xffff_ffff));
        (0..total).for_each(|n| resolved.insert(id(n), how(n as u64)));
        assert_eq!(resolved.len() as u128, KEPT);
        assert!(resolved.blocks.len() as u128 <= KEPT / BLOCK_ENTRIES as u128 + 1);
        for n in [total - KEPT, total - KEPT + 1, total - 5_000, total - 1] {
            assert_eq!(resolved.get(&id(n)), Some(how(n as u64)), "{n}");
        }
        for n in [0, total - KEPT - 1, total] {
            assert_eq!(resolved.get(&id(n)), None, "{n}");
        }
    }
}
