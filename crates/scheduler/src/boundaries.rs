//! The boundaries of a sequence from which other sequences are likely to continue: the end of the prompt, pinned
//! prefixes, and prefixes shared with others. Near them the blocks of a window stay in the cache, and states are copied
//! there. Counts in blocks, and knows nothing of pools.

use headrace_domain::CachePin;
use headrace_kv_layout::{KvGroup, KvLayout};

/// Blocks between two copies of a sequence's state, if no other boundary is between them: 1,024 tokens. A copy takes as
/// much memory as the keys and values of 1,500 tokens.
const COPY_DISTANCE: usize = 64;
/// A boundary this close behind one at which the state is copied gets no copy of its own.
const CLOSE: usize = 4;
/// Tokens at the end of a prompt that the next turn of a conversation may contain otherwise, such as the mark at which
/// reasoning begins.
const OPENING_TOKENS: usize = 8;

/// The boundaries of one sequence. A boundary is a number of leading blocks.
#[derive(Debug, Default)]
pub(crate) struct KeptBoundaries {
    /// In ascending order.
    wanted: Vec<usize>,
    /// The last boundary at which a state was found or copied.
    copied: usize,
}

impl KeptBoundaries {
    /// The boundaries of a prompt of `tokens` tokens. None if every layer keeps every position.
    pub(crate) fn of_prompt(tokens: usize, pins: &[CachePin], layout: &KvLayout) -> Self {
        let mut own = Self::default();
        if layout.keeps_less() {
            own.want(layout.full_blocks(tokens.saturating_sub(1 + OPENING_TOKENS)));
            pins.iter().for_each(|pin| own.want(layout.full_blocks(pin.tokens as usize)));
        }
        own
    }

    /// Adds a boundary.
    pub(crate) fn want(&mut self, boundary: usize) {
        if let Err(at) = self.wanted.binary_search(&boundary)
            && boundary > 0
        {
            self.wanted.insert(at, boundary);
        }
    }

    /// Records that a state was found or copied at a boundary.
    pub(crate) fn copied_at(&mut self, boundary: usize) {
        self.copied = self.copied.max(boundary);
    }

    /// Whether a sequence that continues at a wanted boundary needs block `at` of a group with a window.
    pub(crate) fn need(&self, at: usize, group: &KvGroup) -> bool {
        let after = self.wanted.partition_point(|&boundary| boundary <= at);
        // Later boundaries have later windows.
        self.wanted
            .get(after)
            .is_some_and(|boundary| group.blocks_outside(boundary * group.block_tokens) <= at)
    }

    /// The boundary at which the state is to be copied in a chunk that completes the blocks `from..to`.
    pub(crate) fn copy_within(&self, from: usize, to: usize) -> Option<usize> {
        if from >= to {
            return None;
        }
        let wanted = self.after(from).next().filter(|&boundary| boundary <= to);
        wanted.or_else(|| (to >= self.copied + COPY_DISTANCE).then_some(to))
    }

    /// Where to end a chunk that would complete the blocks `from..to`, because it contains several wanted boundaries,
    /// and a chunk makes one copy. `None` to leave it whole.
    pub(crate) fn cut_within(&self, from: usize, to: usize) -> Option<usize> {
        let mut wanted = self.after(from);
        let first = wanted.next()?;
        wanted.any(|boundary| boundary >= first + CLOSE && boundary <= to).then_some(first)
    }

    fn after(&self, from: usize) -> impl Iterator<Item = usize> {
        let at = self.wanted.partition_point(|&boundary| boundary <= from);
        self.wanted.iter().skip(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use headrace_kv_layout::KvGroupKind;

    use super::*;

    fn boundaries(wanted: &[usize]) -> KeptBoundaries {
        let mut own = KeptBoundaries::default();
        wanted.iter().for_each(|&boundary| own.want(boundary));
        own
    }

    #[test]
    fn boundaries_are_those_of_prompt_and_pins() {
        let state = KvGroup::new(KvGroupKind::State, 4, 1);
        let layout = KvLayout::new(&[KvGroup::full(100, 1), state]);
        let pin = |tokens| CachePin { tokens, life: headrace_domain::CacheLife::Hour };
        let own = KeptBoundaries::of_prompt(100, &[pin(40), pin(15)], &layout);
        assert_eq!(own.wanted, [2, 5]);
        let full = KvLayout::single(KvGroup::full(100, 1));
        assert!(KeptBoundaries::of_prompt(100, &[pin(40)], &full).wanted.is_empty());
    }

    #[test]
    fn a_chunk_makes_one_copy_and_is_cut_between_two_boundaries() {
        let rows = [
            // Wanted, blocks of the chunk, copy, cut.
            (&[2, 9][..], (0, 10), Some(2), Some(2)),
            (&[2, 9], (2, 10), Some(9), None),
            (&[2, 5], (0, 10), Some(2), None),
            (&[2, 9], (0, 8), Some(2), None),
            (&[], (0, 10), None, None),
            (&[], (0, 64), Some(64), None),
            (&[], (70, 70), None, None),
            (&[12], (3, 11), None, None),
        ];
        for (wanted, (from, to), copy, cut) in rows {
            let own = boundaries(wanted);
            assert_eq!(own.copy_within(from, to), copy, "{wanted:?} {from}..{to}");
            assert_eq!(own.cut_within(from, to), cut, "{wanted:?} {from}..{to}");
        }
        let mut own = boundaries(&[]);
        own.copied_at(40);
        assert_eq!((own.copy_within(90, 103), own.copy_within(100, 104)), (None, Some(104)));
    }

    #[test]
    fn the_window_before_a_boundary_is_needed() {
        // A window of 20 positions: the query at position 160 sees keys from 141 on, in blocks 8 and 9.
        let group = KvGroup::new(KvGroupKind::Window(20), 100, 1);
        let own = boundaries(&[10, 20]);
        let needed: Vec<usize> = (0..30).filter(|&at| own.need(at, &group)).collect();
        assert_eq!(needed, [8, 9, 18, 19]);
    }
}
