//! The blocks in a server's cache, according to its cache events. Servers choose their own block hashes and block
//! sizes. This index therefore keys blocks by their tokens, from the beginning of a prompt on. Knows neither how events
//! arrive nor who asks.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash as _, Hasher as _};

use headrace_domain::{CacheLabel, PrefixKeys};

use crate::plain_hash::{FoldHasher, Plain};

/// An index of a server's cached blocks.
#[derive(Debug)]
pub struct PrefixIndex {
    /// By the server's own hashes.
    blocks: HashMap<u128, IndexedBlock, BuildHasherDefault<std::hash::DefaultHasher>>,
    /// The marks of all blocks, and how many blocks have each. No server should have two.
    marks: HashMap<u64, u32, Plain>,
    /// Tokens per block; 0 before the first block.
    block_tokens: usize,
    most_blocks: usize,
    whole: bool,
    left_out: u64,
}

/// One block of the server.
#[derive(Debug, Clone, Copy)]
struct IndexedBlock {
    /// How often it was stored and not removed: on several ranks, or in several kinds of memory.
    copies: u32,
    /// Hash of its tokens, of all tokens before them, and of their owner.
    mark: u64,
}

/// The owner of a prompt, for a block at the beginning of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOwner {
    /// Calls that were sent with this label.
    Labelled(CacheLabel),
    /// Calls without a label, or with a label of another system. No call from here hits these blocks.
    Others,
    /// The server does not report labels.
    Unreported,
}

/// Consecutive blocks that a server has stored.
#[derive(Debug, Clone, Copy)]
pub struct StoredRun<'a> {
    /// The block before the first one.
    pub parent: Option<u128>,
    /// The server's hash of each block.
    pub blocks: &'a [u128],
    /// Tokens of all blocks.
    pub tokens: &'a [u32],
    /// Tokens per block.
    pub block_tokens: usize,
    /// The owner, if there is no parent.
    pub whose: BlockOwner,
}

/// Number of leading prompt tokens in the server's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedTokens {
    /// From calls with the prompt's own label.
    pub own: usize,
    /// From calls of an unknown owner. The server may keep them apart from this prompt.
    pub anyones: usize,
}

/// Why blocks were not indexed. A missing block only means a cache hit that is not predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexFault {
    /// The block before them is unknown.
    UnknownParent,
    /// The index is full.
    Full {
        /// Most blocks that the index holds.
        most_blocks: usize,
    },
    /// The number of tokens does not match the blocks, or the server's other blocks have another size.
    Tokens,
}

impl PrefixIndex {
    /// Creates an empty index for at most `most_blocks` blocks, at about 80 bytes each. `whole` says that the server's
    /// cache was empty before.
    pub fn new(most_blocks: usize, whole: bool) -> Self {
        let (blocks, marks) = (HashMap::default(), HashMap::default());
        Self { blocks, marks, block_tokens: 0, most_blocks, whole, left_out: 0 }
    }

    /// Adds stored blocks.
    ///
    /// # Errors
    /// Why the blocks, or the last of them, were not indexed.
    pub fn stored(&mut self, stored: &StoredRun<'_>) -> Result<(), IndexFault> {
        let taken = self.take(stored);
        if taken.is_err() {
            self.left_out += stored.blocks.len() as u64;
        }
        taken
    }

    fn take(&mut self, stored: &StoredRun<'_>) -> Result<(), IndexFault> {
        let StoredRun { parent, blocks, tokens, block_tokens, whose } = *stored;
        let needed = blocks.len().checked_mul(block_tokens);
        let is_its = self.block_tokens == 0 || self.block_tokens == block_tokens;
        if block_tokens == 0 || needed != Some(tokens.len()) || !is_its {
            return Err(IndexFault::Tokens);
        }
        let mut mark = match parent {
            None => begin(whose),
            Some(parent) => self.blocks.get(&parent).ok_or(IndexFault::UnknownParent)?.mark,
        };
        self.block_tokens = block_tokens;
        for (hash, tokens) in blocks.iter().zip(tokens.chunks_exact(block_tokens)) {
            if let Some(block) = self.blocks.get_mut(hash) {
                block.copies = block.copies.saturating_add(1);
                mark = block.mark;
                continue;
            }
            if self.blocks.len() >= self.most_blocks {
                return Err(IndexFault::Full { most_blocks: self.most_blocks });
            }
            mark = follow(mark, tokens);
            *self.marks.entry(mark).or_default() += 1;
            self.blocks.insert(*hash, IndexedBlock { copies: 1, mark });
        }
        Ok(())
    }

    /// Removes blocks that the server has evicted.
    pub fn removed(&mut self, hashes: &[u128]) {
        for hash in hashes {
            let Some(block) = self.blocks.get_mut(hash) else { continue };
            block.copies -= 1;
            if block.copies > 0 {
                continue;
            }
            let mark = block.mark;
            self.blocks.remove(hash);
            if let Some(count) = self.marks.get_mut(&mark) {
                *count -= 1;
                if *count == 0 {
                    self.marks.remove(&mark);
                }
            }
        }
    }

    /// Removes all blocks, because the server cleared its cache.
    pub fn cleared(&mut self) {
        *self = Self::new(self.most_blocks, true);
    }

    /// Number of leading tokens of a prompt in the server's cache.
    pub fn held(&self, keys: &PrefixKeys) -> CachedTokens {
        if self.marks.is_empty() {
            return CachedTokens::default();
        }
        let from = |whose| {
            let mut mark = begin(whose);
            let is_there = |tokens: &&[u32]| {
                mark = follow(mark, tokens);
                self.marks.contains_key(&mark)
            };
            keys.ids().chunks_exact(self.block_tokens).take_while(is_there).count() * self.block_tokens
        };
        CachedTokens {
            own: from(BlockOwner::Labelled(keys.salt().label())),
            anyones: from(BlockOwner::Unreported),
        }
    }

    /// Whether the index covers everything in the server's cache.
    pub fn is_whole(&self) -> bool {
        self.whole && self.left_out == 0
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// The mark before the first token.
fn begin(whose: BlockOwner) -> u64 {
    let mut fold = FoldHasher::default();
    match whose {
        BlockOwner::Labelled(label) => label.hash(&mut fold),
        BlockOwner::Others => fold.write_u64(u64::MAX),
        BlockOwner::Unreported => fold.write_u64(1),
    }
    fold.finish()
}

/// The mark of a block with these tokens after another block.
fn follow(before: u64, tokens: &[u32]) -> u64 {
    let mut fold = FoldHasher::default();
    fold.write_u64(before);
    for pair in tokens.chunks(2) {
        fold.write_u64(pair.iter().fold(0, |word, token| word << 32 | u64::from(*token)));
    }
    fold.finish()
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownParent => f.write_str("the block before these is not known"),
            Self::Full { most_blocks } => {
                write!(f, "the index has its {most_blocks} blocks; more are not distinguished")
            }
            Self::Tokens => {
                f.write_str("the blocks have more or fewer tokens than they say, or than the others")
            }
        }
    }
}

impl std::error::Error for IndexFault {}

#[cfg(test)]
mod tests;
