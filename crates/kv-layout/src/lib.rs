//! The layout of a KV cache: its groups, and the size and number of their blocks. Models report it, and schedulers
//! count in it. Must not know: the bytes of a block, the holder of a block, sequences or weights.

mod per_group;

pub use per_group::{BlockTables, GROUPS, PerGroup};

/// Tokens in one KV block: the value that every layout is built with. Only code that needs it at compile time reads it,
/// such as the register tiles of kernels and the arrays that hold a block's tokens. All other code asks the layout.
pub const BLOCK_TOKENS: usize = 16;

/// The id in a block table of a block that its sequence no longer needs, because it is before the window.
pub const FREED: u32 = u32::MAX;

/// What the layers of a group keep of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvGroupKind {
    /// Keys and values of every position.
    Full,
    /// One compressed row for every position, from which keys and values are computed.
    Latent,
    /// Keys and values of the last positions: a query at position `i` sees key `j` if `i - j` is below this number.
    Window(usize),
    /// A state of fixed size, and the rows of the current block.
    State,
    /// Nothing: the model has no such layers.
    Unused,
}

/// A cache group: the layers that keep the same positions. A group has its own block pool, and a sequence has its own
/// block table in each group. A block of a state group is a slot for one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvGroup {
    /// What its layers keep.
    pub kind: KvGroupKind,
    /// Tokens per block, at least 1.
    pub block_tokens: usize,
    /// Number of blocks. Block ids are below this number.
    pub block_count: usize,
    /// Bytes of memory per block, over the group's layers.
    pub bytes_per_block: usize,
}

/// The slots of one sequence's state in a step.
///
/// A slot holds the state at the last multiple of the block size, and the rows of the tokens after it. A step never
/// changes the state in `from`, so a step that failed can be computed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateSlots {
    /// The slot that holds the state before the chunk, and the rows of the tokens after that state. In the first block
    /// every state is zero and is not read, but its rows are.
    pub from: u32,
    /// The slot in which the step leaves the state after the chunk, and the rows of the tokens after it. Equal to `from`
    /// if the chunk completes no block: the step then only adds rows. Otherwise another slot, except at position 0.
    pub own: u32,
    /// A copy to make of the state at a position within the chunk.
    pub copy: Option<StateCopy>,
}

/// A copy of a state, from which other sequences can continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateCopy {
    /// The position: a multiple of the block size, after the chunk's start and at most its end.
    pub position: usize,
    /// The slot that receives the copy.
    pub slot: u32,
}

impl KvGroup {
    /// A group that no layer belongs to.
    pub const UNUSED: KvGroup =
        KvGroup { kind: KvGroupKind::Unused, block_tokens: BLOCK_TOKENS, block_count: 0, bytes_per_block: 0 };

    /// Creates a group.
    pub const fn new(kind: KvGroupKind, block_count: usize, bytes_per_block: usize) -> Self {
        Self { kind, block_tokens: BLOCK_TOKENS, block_count, bytes_per_block }
    }

    /// Creates a group whose layers keep every position.
    pub const fn full(block_count: usize, bytes_per_block: usize) -> Self {
        Self::new(KvGroupKind::Full, block_count, bytes_per_block)
    }

    /// Creates a group like [`KvGroup::full`], with just enough blocks for one sequence of `tokens` tokens.
    pub const fn holding(tokens: usize, bytes_per_block: usize) -> Self {
        Self::full(tokens.div_ceil(BLOCK_TOKENS), bytes_per_block)
    }

    /// Returns whether a layer belongs to the group.
    #[inline]
    pub const fn is_used(&self) -> bool {
        !matches!(self.kind, KvGroupKind::Unused)
    }

    /// Returns the number of entries in the block table of a sequence of `tokens` tokens.
    #[inline]
    pub const fn blocks_for(&self, tokens: usize) -> usize {
        match self.kind {
            KvGroupKind::Full | KvGroupKind::Latent | KvGroupKind::Window(_) => {
                tokens.div_ceil(self.block_tokens)
            }
            KvGroupKind::State => (tokens > 0) as usize,
            KvGroupKind::Unused => 0,
        }
    }

    /// Returns the most blocks that a sequence of `tokens` tokens holds at a time, if it is computed in chunks of at
    /// most `chunk` tokens.
    #[inline]
    pub const fn most_held(&self, tokens: usize, chunk: usize) -> usize {
        let all = self.blocks_for(tokens);
        match self.kind {
            KvGroupKind::Window(window) => {
                let most = window.saturating_sub(1).saturating_add(chunk).div_ceil(self.block_tokens) + 1;
                if most < all { most } else { all }
            }
            _ => all,
        }
    }

    /// Returns how many leading blocks a sequence no longer needs once the first `computed` positions are computed: the
    /// blocks before the window of the next position.
    #[inline]
    pub const fn blocks_outside(&self, computed: usize) -> usize {
        match self.kind {
            KvGroupKind::Window(window) => {
                (computed + 1).saturating_sub(if window == 0 { 1 } else { window }) / self.block_tokens
            }
            _ => 0,
        }
    }

    /// Returns the number of positions that all blocks hold together. A sequence can be longer if the group's layers
    /// have a window or a state.
    #[inline]
    pub const fn positions(&self) -> usize {
        self.block_count.saturating_mul(self.block_tokens)
    }
}

/// The cache groups of one model. Blocks hold the same number of tokens in every group, because all groups share one
/// chain of block keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvLayout {
    groups: PerGroup<KvGroup>,
}

impl KvLayout {
    /// Creates a layout of one group.
    pub const fn single(group: KvGroup) -> Self {
        Self::new(&[group])
    }

    /// Creates a layout of these groups: at most one whose layers keep every position, one with a window, and one with
    /// states. Of several groups of one sort the last one counts.
    pub const fn new(groups: &[KvGroup]) -> Self {
        let mut sorted = [KvGroup::UNUSED; GROUPS];
        let mut at = 0;
        while at < groups.len() {
            let place = match groups[at].kind {
                KvGroupKind::Full | KvGroupKind::Latent => 0,
                KvGroupKind::Window(_) => 1,
                KvGroupKind::State => 2,
                KvGroupKind::Unused => GROUPS,
            };
            if place < GROUPS {
                sorted[place] = groups[at];
            }
            at += 1;
        }
        Self { groups: PerGroup::new(sorted) }
    }

    /// Returns the groups, unused ones included.
    #[inline]
    pub const fn groups(&self) -> &PerGroup<KvGroup> {
        &self.groups
    }

    /// Returns the groups that have layers.
    pub fn used(&self) -> impl Iterator<Item = &KvGroup> {
        self.groups.iter().filter(|group| group.is_used())
    }

    /// Returns whether some layers do not keep every position.
    #[inline]
    pub const fn keeps_less(&self) -> bool {
        self.groups.window().is_used() || self.groups.state().is_used()
    }

    /// Returns the first group that has layers.
    #[inline]
    pub const fn first(&self) -> &KvGroup {
        if self.groups.full().is_used() {
            self.groups.full()
        } else if self.groups.window().is_used() {
            self.groups.window()
        } else {
            self.groups.state()
        }
    }

    /// Returns the number of tokens per block.
    #[inline]
    pub const fn block_tokens(&self) -> usize {
        self.first().block_tokens
    }

    /// Returns the number of entries in the block tables of a sequence of `tokens` tokens, for each group.
    #[inline]
    pub fn blocks_for(&self, tokens: usize) -> PerGroup<usize> {
        self.groups.map(|group| group.blocks_for(tokens))
    }

    /// Returns the bytes of one block of each group. At least 1 for groups that are used, so that blocks of a layout
    /// without bytes can be weighed.
    pub fn block_bytes(&self) -> PerGroup<usize> {
        self.groups.map(|group| if group.is_used() { group.bytes_per_block.max(1) } else { 0 })
    }

    /// Returns the number of blocks that `tokens` tokens fill completely.
    #[inline]
    pub const fn full_blocks(&self, tokens: usize) -> usize {
        tokens / self.block_tokens()
    }

    /// Returns how many leading blocks of a prompt of `tokens` tokens may be taken from a prefix cache. The last token
    /// is never among them, because its logits are needed.
    #[inline]
    pub const fn cacheable_blocks(&self, tokens: usize) -> usize {
        self.full_blocks(tokens.saturating_sub(1))
    }

    /// Returns about how many tokens of running sequences fit, if each has `tokens` tokens.
    pub fn pool_tokens(&self, tokens: usize) -> usize {
        match self.first().kind {
            KvGroupKind::State => self.first().block_count.saturating_mul(tokens),
            _ => self.first().positions(),
        }
    }

    /// Returns the number of positions of the longest sequence that fits if it is computed in chunks of at most `chunk`
    /// tokens.
    pub fn positions(&self, chunk: usize) -> usize {
        let longest = |group: &KvGroup| match group.most_held(usize::MAX, chunk) {
            most if most <= group.block_count => usize::MAX,
            _ => group.positions(),
        };
        self.used().map(longest).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_positions_follow_the_block_size() {
        let layout = KvLayout::single(KvGroup::full(10, 4096));
        assert_eq!((layout.block_tokens(), layout.positions(64)), (BLOCK_TOKENS, 10 * BLOCK_TOKENS));
        let rows = [
            // Tokens, blocks that hold them, blocks that they fill, and blocks that a prefix cache may give.
            (0, 0, 0, 0),
            (1, 1, 0, 0),
            (BLOCK_TOKENS, 1, 1, 0),
            (BLOCK_TOKENS + 1, 2, 1, 1),
            (3 * BLOCK_TOKENS, 3, 3, 2),
        ];
        for (tokens, hold, fill, cached) in rows {
            assert_eq!(layout.blocks_for(tokens), PerGroup::new([hold, 0, 0]), "{tokens}");
            assert_eq!(
                (layout.full_blocks(tokens), layout.cacheable_blocks(tokens)),
                (fill, cached),
                "{tokens}"
            );
        }
    }

    #[test]
    fn a_huge_pool_does_not_overflow() {
        assert_eq!(KvGroup::full(usize::MAX, 1).positions(), usize::MAX);
    }

    #[test]
    fn a_window_keeps_a_bounded_number_of_blocks() {
        let group = KvGroup::new(KvGroupKind::Window(20), 6, 1);
        // Computed positions, and blocks before the window of the next position.
        for (computed, outside) in [(0, 0), (19, 0), (34, 0), (35, 1), (50, 1), (51, 2)] {
            assert_eq!(group.blocks_outside(computed), outside, "{computed}");
        }
        assert_eq!((group.most_held(16, 32), group.most_held(1000, 32)), (1, 5));
        // The bound holds for every start and chunk.
        for chunk in 1..70 {
            for start in 0..100 {
                let held = group.blocks_for(start + chunk) - group.blocks_outside(start);
                assert!(held <= group.most_held(1000, chunk), "{chunk} at {start}: {held}");
            }
        }
        let layout =
            |blocks| KvLayout::new(&[KvGroup::full(100, 1), KvGroup { block_count: blocks, ..group }]);
        assert_eq!((layout(5).positions(32), layout(4).positions(32)), (1600, 64));
    }

    #[test]
    fn a_state_takes_one_slot() {
        let group = KvGroup::new(KvGroupKind::State, 1, 1);
        assert_eq!((group.blocks_for(0), group.blocks_for(1), group.most_held(9999, 1)), (0, 1, 1));
        assert_eq!(KvLayout::single(group).positions(1), usize::MAX);
    }

    #[test]
    fn groups_have_their_places() {
        let (full, state) = (KvGroup::full(3, 1), KvGroup::new(KvGroupKind::State, 4, 1));
        let layout = KvLayout::new(&[state, full]);
        assert_eq!(layout.groups(), &PerGroup::new([full, KvGroup::UNUSED, state]));
        assert_eq!((layout.first(), KvLayout::single(state).first()), (&full, &state));
        assert_eq!(layout.used().count(), 2);
    }
}
