//! Which blocks a server has in its cache, as it tells by its events. Servers number their blocks as they like, and make them as
//! large as they like: here their tokens count, from the beginning of a prompt on. Knows neither how events travel nor who asks.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash as _, Hasher as _};

use headrace_domain::{CacheLabel, PrefixKeys};

use crate::plain_hash::{Fold, Plain};

/// See the top of the file.
#[derive(Debug)]
pub struct PrefixIndex {
    /// By the server's own hashes.
    blocks: HashMap<u128, Block, BuildHasherDefault<std::hash::DefaultHasher>>,
    /// The marks of all blocks, and how many blocks have the same: no server should have two.
    marks: HashMap<u64, u32, Plain>,
    /// Tokens of a block; 0: none was told of.
    block_tokens: usize,
    most_blocks: usize,
    whole: bool,
    left_out: u64,
}

/// A block of the server's.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// How often it was stored and not given up: in several places, or in several kinds of memory.
    copies: u32,
    /// Stands for its tokens, for all before them, and for whose they are.
    mark: u64,
}

/// Whose prompts begin with a block that has none before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Of calls that went out under this label.
    Labelled(CacheLabel),
    /// Of calls without a label, or under one that is not ours: nobody here hits it.
    Others,
    /// The server does not say.
    Untold,
}

/// Blocks that a server has stored, one after another.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// The block before the first of them.
    pub parent: Option<u128>,
    /// Each by the server's hash.
    pub blocks: &'a [u128],
    /// Of all of them.
    pub tokens: &'a [u32],
    /// Tokens of each.
    pub block_tokens: usize,
    /// Where there is no parent.
    pub whose: Whose,
}

/// How many tokens of a prompt are there, from its beginning on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// By calls under the prompt's own label.
    pub own: usize,
    /// By calls of which nobody says whose they were: the server may keep them apart from this one.
    pub anyones: usize,
}

/// Why blocks were not taken in. A block that is not there is a cache hit that is not foreseen, and nothing worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexFault {
    /// The block before them is not known.
    UnknownParent,
    /// The index is full.
    Full {
        /// How many blocks it takes.
        most_blocks: usize,
    },
    /// Their tokens are not as many as their blocks need, or other blocks of the server have another size.
    Tokens,
}

impl PrefixIndex {
    /// An empty one of at most so many blocks (some 80 bytes each). `whole`: nothing else was in the server's cache before.
    pub fn new(most_blocks: usize, whole: bool) -> Self {
        let (blocks, marks) = (HashMap::default(), HashMap::default());
        Self { blocks, marks, block_tokens: 0, most_blocks, whole, left_out: 0 }
    }

    /// Blocks were stored.
    ///
    /// # Errors
    /// Why they, or the last of them, were not taken in.
    pub fn stored(&mut self, stored: &Stored<'_>) -> Result<(), IndexFault> {
        let taken = self.take(stored);
        if taken.is_err() {
            self.left_out += stored.blocks.len() as u64;
        }
        taken
    }

    fn take(&mut self, stored: &Stored<'_>) -> Result<(), IndexFault> {
        let Stored { parent, blocks, tokens, block_tokens, whose } = *stored;
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
            self.blocks.insert(*hash, Block { copies: 1, mark });
        }
        Ok(())
    }

    /// Blocks were given up.
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

    /// All blocks were given up.
    pub fn cleared(&mut self) {
        *self = Self::new(self.most_blocks, true);
    }

    /// How many tokens of a prompt are there.
    pub fn held(&self, keys: &PrefixKeys) -> Held {
        if self.marks.is_empty() {
            return Held::default();
        }
        let from = |whose| {
            let mut mark = begin(whose);
            let is_there = |tokens: &&[u32]| {
                mark = follow(mark, tokens);
                self.marks.contains_key(&mark)
            };
            keys.ids().chunks_exact(self.block_tokens).take_while(is_there).count() * self.block_tokens
        };
        Held { own: from(Whose::Labelled(keys.salt().label())), anyones: from(Whose::Untold) }
    }

    /// Whether it knows of everything that is in the server's cache.
    pub fn is_whole(&self) -> bool {
        self.whole && self.left_out == 0
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// The mark before the first token.
fn begin(whose: Whose) -> u64 {
    let mut fold = Fold::default();
    match whose {
        Whose::Labelled(label) => label.hash(&mut fold),
        Whose::Others => fold.write_u64(u64::MAX),
        Whose::Untold => fold.write_u64(1),
    }
    fold.finish()
}

/// The mark of a block of these tokens behind another one.
fn follow(before: u64, tokens: &[u32]) -> u64 {
    let mut fold = Fold::default();
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
                write!(f, "the index has its {most_blocks} blocks; more are not told apart")
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
