//! Which blocks a worker has in its cache, as it tells by its events. Exact as long as none is missed. Knows the keys of blocks,
//! and neither how events travel nor how others number their blocks.

use std::collections::HashSet;
use std::fmt;

use headrace_domain::BlockKey;

use crate::plain_hash::Plain;

/// See the top of the file.
#[derive(Debug)]
pub struct PrefixIndex {
    blocks: HashSet<BlockKey, Plain>,
    most_blocks: usize,
}

/// Why an event was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexFault {
    /// The block before these is not known: an event was missed. Have them replayed, or drop the index.
    Gap,
    /// The index is full. A block that it does not have is a cache hit that is not foreseen, and nothing worse.
    Full {
        /// How many blocks it takes.
        most_blocks: usize,
    },
}

impl PrefixIndex {
    /// An empty one of at most so many blocks (16 to 32 bytes each).
    pub fn new(most_blocks: usize) -> Self {
        Self { blocks: HashSet::default(), most_blocks }
    }

    /// Blocks were stored: the first after `parent`, each further one after the one before it.
    ///
    /// # Errors
    /// The parent is not there, or there is no room; then nothing of them is taken in.
    pub fn stored(&mut self, parent: Option<&BlockKey>, keys: &[BlockKey]) -> Result<(), IndexFault> {
        if parent.is_some_and(|parent| !self.blocks.contains(parent)) {
            return Err(IndexFault::Gap);
        }
        let new = keys.iter().filter(|key| !self.blocks.contains(*key)).count();
        if self.blocks.len() + new > self.most_blocks {
            return Err(IndexFault::Full { most_blocks: self.most_blocks });
        }
        self.blocks.extend(keys);
        Ok(())
    }

    /// Blocks were given up.
    pub fn removed(&mut self, keys: &[BlockKey]) {
        for key in keys {
            self.blocks.remove(key);
        }
    }

    /// All blocks were given up.
    pub fn cleared(&mut self) {
        self.blocks.clear();
    }

    /// How many of these blocks are there, from the first one on.
    pub fn held(&self, keys: &[BlockKey]) -> usize {
        keys.iter().take_while(|key| self.blocks.contains(*key)).count()
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

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gap => f.write_str(
                "a block was stored after one that is not known: an event was missed; replay them",
            ),
            Self::Full { most_blocks } => {
                write!(f, "the index has its {most_blocks} blocks; more are not told apart")
            }
        }
    }
}

impl std::error::Error for IndexFault {}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use headrace_domain::CacheSalt;
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 24;

    #[derive(Debug, Clone)]
    enum Told {
        /// Of a prompt's blocks, from one to another.
        Stored {
            prompt: usize,
            from: usize,
            to: usize,
        },
        Removed {
            prompt: usize,
            blocks: Vec<usize>,
        },
        Cleared,
    }

    fn told() -> impl Strategy<Value = (usize, Told)> {
        let told = prop_oneof![
            8 => (0..4usize, 0..8usize, 0..=8usize)
                .prop_map(|(prompt, from, to)| Told::Stored { prompt, from: from.min(to), to }),
            3 => (0..4usize, prop::collection::vec(0..8usize, 1..4))
                .prop_map(|(prompt, blocks)| Told::Removed { prompt, blocks }),
            1 => Just(Told::Cleared),
        ];
        (0..3usize, told)
    }

    /// Four prompts of eight blocks, which part after none, two and five of them.
    fn prompts() -> Vec<Vec<BlockKey>> {
        let salt = CacheSalt::derive(&[7; 32], "t", "m", None);
        let prompt = |parts_after: usize, own: u32| {
            let mut keys: Vec<BlockKey> = Vec::new();
            for block in 0..8 {
                let token = if block < parts_after { 0 } else { own };
                let key = BlockKey::chain(&salt, keys.last(), &[token; 16]);
                keys.push(key);
            }
            keys
        };
        vec![prompt(8, 0), prompt(5, 1), prompt(2, 2), prompt(0, 3)]
    }

    proptest! {
        /// Whatever three workers tell, their indexes say what sets of blocks say.
        #[test]
        fn an_index_is_a_set_of_blocks_for_each_worker(told in prop::collection::vec(told(), 1..60)) {
            let prompts = prompts();
            let mut indexes: Vec<_> = (0..3).map(|_| PrefixIndex::new(MOST)).collect();
            let mut plain: HashMap<usize, HashSet<BlockKey>> = HashMap::new();
            for (worker, told) in told {
                let (index, set) = (&mut indexes[worker], plain.entry(worker).or_default());
                match told {
                    Told::Stored { prompt, from, to } => {
                        let (keys, parent) = (&prompts[prompt], from.checked_sub(1));
                        let parent = parent.map(|at| &keys[at]);
                        let mut after = set.clone();
                        after.extend(&keys[from..to]);
                        let expected = match parent {
                            Some(parent) if !set.contains(parent) => Err(IndexFault::Gap),
                            _ if after.len() > MOST => Err(IndexFault::Full { most_blocks: MOST }),
                            _ => {
                                *set = after;
                                Ok(())
                            }
                        };
                        prop_assert_eq!(index.stored(parent, &keys[from..to]), expected);
                    }
                    Told::Removed { prompt, blocks } => {
                        let keys: Vec<_> = blocks.iter().map(|&at| prompts[prompt][at]).collect();
                        index.removed(&keys);
                        keys.iter().for_each(|key| {
                            set.remove(key);
                        });
                    }
                    Told::Cleared => {
                        index.cleared();
                        set.clear();
                    }
                }
                for (worker, index) in indexes.iter().enumerate() {
                    let set = plain.entry(worker).or_default();
                    prop_assert_eq!((index.len(), index.is_empty()), (set.len(), set.is_empty()));
                    for keys in &prompts {
                        let mut held = 0;
                        while held < keys.len() && set.contains(&keys[held]) {
                            held += 1;
                        }
                        prop_assert_eq!(index.held(keys), held);
                    }
                }
            }
        }
    }
}
