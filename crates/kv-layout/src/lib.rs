//! The layout of a KV cache: its groups, and the size and number of their blocks. Models report it, and schedulers
//! count in it. Must not know: the bytes of a block, the holder of a block, sequences or weights.

mod per_group;

pub use per_group::{BlockTables, GROUPS, PerGroup};

/// Tokens in one KV block: the value that every layout is built with. Only code that needs it at compile time reads it,
/// such as the register tiles of kernels and the arrays that hold a block's tokens. All other code asks the layout.
pub const BLOCK_TOKENS: usize = 16;

/// The positions that the layers of a group keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvGroupKind {
    /// Every position of a sequence.
    Full,
}

/// A cache group: the layers that keep the same positions at the same width. A group has its own block pool, and a
/// sequence has its own block table in each group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvGroup {
    /// The positions that its layers keep.
    pub kind: KvGroupKind,
    /// Tokens per block, at least 1.
    pub block_tokens: usize,
    /// Number of blocks. Block ids are below this number.
    pub block_count: usize,
    /// Bytes of memory per block, over the group's layers.
    pub bytes_per_block: usize,
}

impl KvGroup {
    /// Creates a group whose layers keep every position.
    pub const fn full(block_count: usize, bytes_per_block: usize) -> Self {
        Self { kind: KvGroupKind::Full, block_tokens: BLOCK_TOKENS, block_count, bytes_per_block }
    }

    /// Creates a group like [`KvGroup::full`], with just enough blocks for one sequence of `tokens` tokens.
    pub const fn holding(tokens: usize, bytes_per_block: usize) -> Self {
        Self::full(tokens.div_ceil(BLOCK_TOKENS), bytes_per_block)
    }

    /// Returns the number of blocks that hold a sequence's first `tokens` positions.
    #[inline]
    pub const fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }

    /// Returns the number of positions that all blocks hold together.
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
    /// Creates a layout of these groups.
    pub const fn new(groups: PerGroup<KvGroup>) -> Self {
        Self { groups }
    }

    /// Creates a layout of one group.
    pub const fn single(group: KvGroup) -> Self {
        Self::new(PerGroup::new([group]))
    }

    /// Returns the groups.
    #[inline]
    pub const fn groups(&self) -> &PerGroup<KvGroup> {
        &self.groups
    }

    /// Returns the group of the model's first layer.
    #[inline]
    pub const fn first(&self) -> &KvGroup {
        self.groups.first()
    }

    /// Returns the number of tokens per block.
    #[inline]
    pub const fn block_tokens(&self) -> usize {
        self.first().block_tokens
    }

    /// Returns the number of blocks that hold a sequence's first `tokens` positions, for each group.
    #[inline]
    pub fn blocks_for(&self, tokens: usize) -> PerGroup<usize> {
        self.groups.map(|group| group.blocks_for(tokens))
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

    /// Returns the number of positions of the longest sequence that the blocks of every group hold.
    pub fn positions(&self) -> usize {
        self.groups.iter().map(KvGroup::positions).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_positions_follow_the_block_size() {
        let layout = KvLayout::single(KvGroup::full(10, 4096));
        assert_eq!((layout.block_tokens(), layout.positions()), (BLOCK_TOKENS, 10 * BLOCK_TOKENS));
        let rows = [
            // Tokens, blocks that hold them, blocks that they fill, and blocks that a prefix cache may give.
            (0, 0, 0, 0),
            (1, 1, 0, 0),
            (BLOCK_TOKENS, 1, 1, 0),
            (BLOCK_TOKENS + 1, 2, 1, 1),
            (3 * BLOCK_TOKENS, 3, 3, 2),
        ];
        for (tokens, hold, fill, cached) in rows {
            assert_eq!(layout.blocks_for(tokens), PerGroup::repeat(hold), "{tokens}");
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
}
