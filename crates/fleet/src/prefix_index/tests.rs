//! Compares the index with plain lists of tokens, for any events.

use headrace_domain::CacheSalt;
use proptest::prelude::*;

use super::*;

const MOST: usize = 40;

#[derive(Debug, Clone)]
enum IndexEvent {
    /// The blocks `from..to` of a prompt.
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

fn index_event() -> impl Strategy<Value = IndexEvent> {
    prop_oneof![
        8 => (0..6usize, 0..8usize, 0..=8usize)
            .prop_map(|(prompt, from, to)| IndexEvent::Stored { prompt, from: from.min(to), to }),
        4 => (0..6usize, prop::collection::vec(0..8usize, 1..4))
            .prop_map(|(prompt, blocks)| IndexEvent::Removed { prompt, blocks }),
        1 => Just(IndexEvent::Cleared),
    ]
}

fn salt(tenant: &str) -> CacheSalt {
    CacheSalt::derive(&[7; 32], tenant, "m", None)
}

/// A prompt under a tenant's label, which differs from the others after some tokens.
struct TestPrompt {
    whose: BlockOwner,
    tenant: &'static str,
    ids: Vec<u32>,
}

impl TestPrompt {
    fn of(tenant: &'static str, parts_after: usize, own: u32) -> Self {
        let ids = (0..512).map(|at| if at < parts_after { at as u32 } else { own + at as u32 }).collect();
        let whose = if tenant == "untold" {
            BlockOwner::Unreported
        } else {
            BlockOwner::Labelled(salt(tenant).label())
        };
        Self { whose, tenant, ids }
    }

    /// The server's hash of a block: of its owner and all tokens up to its end.
    fn hash(&self, block: usize, size: usize) -> u128 {
        let mut hasher = std::hash::DefaultHasher::new();
        (self.tenant, &self.ids[..(block + 1) * size]).hash(&mut hasher);
        u128::from(hasher.finish()) << 3 | 5
    }

    fn keys(&self) -> PrefixKeys {
        PrefixKeys::of(&salt(self.tenant), &self.ids.clone().into())
    }
}

fn prompts() -> Vec<TestPrompt> {
    vec![
        TestPrompt::of("a", 512, 0),
        TestPrompt::of("a", 100, 10_000),
        TestPrompt::of("a", 33, 20_000),
        TestPrompt::of("b", 512, 0),
        TestPrompt::of("b", 64, 30_000),
        TestPrompt::of("untold", 512, 0),
    ]
}

/// The cached blocks: for each copy its hash, its owner, and all tokens up to its end.
#[derive(Default)]
struct PlainIndex {
    blocks: Vec<(u128, BlockOwner, Vec<u32>)>,
}

impl PlainIndex {
    fn has(&self, hash: u128) -> bool {
        self.blocks.iter().any(|(known, ..)| *known == hash)
    }

    fn remove(&mut self, hash: u128) {
        if let Some(at) = self.blocks.iter().position(|known| known.0 == hash) {
            self.blocks.remove(at);
        }
    }

    fn distinct(&self) -> usize {
        let first = |at: usize, hash: u128| !self.blocks[..at].iter().any(|block| block.0 == hash);
        self.blocks.iter().enumerate().filter(|(at, block)| first(*at, block.0)).count()
    }

    /// Number of leading tokens in whole blocks that are all cached.
    fn held(&self, whose: BlockOwner, ids: &[u32], size: usize) -> usize {
        let there =
            |end: &usize| self.blocks.iter().any(|(_, of, tokens)| *of == whose && *tokens == ids[..*end]);
        (1..=ids.len() / size).map(|blocks| blocks * size).take_while(there).count() * size
    }
}

fn check(size: usize, told: Vec<IndexEvent>) -> Result<(), TestCaseError> {
    let prompts = prompts();
    let (mut index, mut plain) = (PrefixIndex::new(MOST, true), PlainIndex::default());
    let mut left_out = false;
    for told in told {
        match told {
            IndexEvent::Stored { prompt, from, to } => {
                let prompt = &prompts[prompt];
                let hashes: Vec<u128> = (from..to).map(|block| prompt.hash(block, size)).collect();
                let parent = from.checked_sub(1).map(|block| prompt.hash(block, size));
                let stored = StoredRun {
                    parent,
                    blocks: &hashes,
                    tokens: &prompt.ids[from * size..to * size],
                    block_tokens: size,
                    whose: prompt.whose,
                };
                let mut expected = Ok(());
                if parent.is_some_and(|parent| !plain.has(parent)) {
                    expected = Err(IndexFault::UnknownParent);
                } else {
                    for (block, hash) in (from..to).zip(&hashes) {
                        if !plain.has(*hash) && plain.distinct() == MOST {
                            expected = Err(IndexFault::Full { most_blocks: MOST });
                            break;
                        }
                        let tokens = prompt.ids[..(block + 1) * size].to_vec();
                        plain.blocks.push((*hash, prompt.whose, tokens));
                    }
                }
                left_out |= expected.is_err() && from < to;
                prop_assert_eq!(index.stored(&stored), expected);
            }
            IndexEvent::Removed { prompt, blocks } => {
                let prompt = &prompts[prompt];
                for block in blocks {
                    let hash = prompt.hash(block, size);
                    plain.remove(hash);
                    index.removed(&[hash]);
                }
            }
            IndexEvent::Cleared => {
                index.cleared();
                plain = PlainIndex::default();
                left_out = false;
            }
        }
        prop_assert_eq!((index.len(), index.is_whole()), (plain.distinct(), !left_out));
        prop_assert_eq!(index.is_empty(), plain.blocks.is_empty());
        for prompt in &prompts {
            let own = plain.held(BlockOwner::Labelled(salt(prompt.tenant).label()), &prompt.ids, size);
            let anyones = plain.held(BlockOwner::Unreported, &prompt.ids, size);
            prop_assert_eq!(index.held(&prompt.keys()), CachedTokens { own, anyones });
        }
        // Nothing is left of removed blocks.
        if plain.blocks.is_empty() {
            prop_assert!(index.marks.is_empty());
        }
    }
    Ok(())
}

proptest! {
    /// For any events and any block size, the index agrees with plain lists of tokens.
    #[test]
    fn an_index_says_what_plain_lists_say(
        size in prop::sample::select(vec![1usize, 4, 10, 16, 24, 32, 64]),
        told in prop::collection::vec(index_event(), 1..40),
    ) {
        check(size, told)?;
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut index = PrefixIndex::new(4, false);
    fn stored<'a>(blocks: &'a [u128], tokens: &'a [u32], block_tokens: usize) -> StoredRun<'a> {
        StoredRun { parent: None, blocks, tokens, block_tokens, whose: BlockOwner::Unreported }
    }
    for (blocks, tokens, size) in
        [(&[1u128, 2][..], 31, 16), (&[1], 16, 0), (&[], 16, 16), (&[1, 2], 32, usize::MAX)]
    {
        let ids = vec![7; tokens];
        assert_eq!(index.stored(&stored(blocks, &ids, size)), Err(IndexFault::Tokens));
    }
    assert_eq!(index.stored(&stored(&[1], &[7; 16], 16)), Ok(()));
    assert_eq!(
        index.stored(&stored(&[2], &[7; 32], 32)),
        Err(IndexFault::Tokens),
        "all blocks have one size"
    );
    assert!(!index.is_whole(), "it did not know what was there before");
    index.removed(&[99, 1, 1]);
    assert!(index.is_empty() && index.marks.is_empty());
    index.cleared();
    assert!(index.is_whole());
}
