//! Regular expressions whose masks need no parser: one automaton, shared by all answers to a form. A mask depends on
//! the state alone, so it is computed once and kept. Most states share one partition of bytes, and the vocabulary is
//! reduced by it. Must not know llguidance's matcher, which takes the expressions that are too large for this.

mod kinds;
mod table;
mod words;

use std::collections::HashMap;
use std::sync::Arc;

use llguidance::toktrie::TokEnv;
use parking_lot::Mutex;

use crate::bounds::KEPT_MASK_BYTES;
use kinds::AllKinds;
use table::{DEAD, FIRST, TransitionTable};
use words::TokenTrie;

/// The automaton of an expression, over a vocabulary.
pub(crate) struct Automaton {
    table: TransitionTable,
    /// The reduced vocabulary, and the states that it is for. For other states the vocabulary itself is walked. They
    /// usually allow only a small part of it.
    words: Option<(TokenTrie, Vec<bool>)>,
    env: TokEnv,
    ends: Vec<u32>,
    mask_words: usize,
    kept: Mutex<MaskCache>,
}

/// Computed masks by state. Equal masks are stored once.
#[derive(Default)]
struct MaskCache {
    by_state: HashMap<u32, Arc<[u32]>>,
    by_content: HashMap<[u8; 32], Arc<[u32]>>,
}

impl Automaton {
    /// Creates the automaton of an expression in llguidance's notation. Returns `None` if the expression needs more
    /// than an automaton, or one that is too large. The result depends only on the expression and the vocabulary.
    pub(crate) fn of(pattern: &str, env: &TokEnv, ends: &[u32]) -> Option<Self> {
        let table = TransitionTable::of(pattern)?;
        let shared = AllKinds::most_shared(&table);
        let words =
            shared.and_then(|(kinds, its)| Some((TokenTrie::of(env.tok_trie(), &table, &kinds)?, its)));
        let size = env.tok_trie().vocab_size();
        let ends = ends.iter().copied().filter(|end| (*end as usize) < size).collect();
        Some(Self {
            table,
            words,
            env: Arc::clone(env),
            ends,
            mask_words: size.div_ceil(32),
            kept: Mutex::default(),
        })
    }

    /// The state at the beginning of an answer.
    pub(crate) const BEGINNING: u32 = FIRST;

    /// The state after an id. `None` if no match continues like this.
    pub(crate) fn after(&self, state: u32, id: u32) -> Option<u32> {
        let bytes = self.env.tok_trie().token(id);
        let step = |state, byte: &u8| Some(self.table.next(state, *byte)).filter(|next| *next != DEAD);
        bytes.iter().try_fold(state, step)
    }

    /// The ids allowed in a state.
    pub(crate) fn mask(&self, state: u32) -> Arc<[u32]> {
        if let Some(mask) = self.kept.lock().by_state.get(&state) {
            return Arc::clone(mask);
        }
        // Two threads may compute the same mask at once, with the same result.
        let mut mask = vec![0; self.mask_words];
        match &self.words {
            Some((words, its)) if its.get(state as usize) == Some(&true) => {
                words.allowed(&self.table, state, &mut mask);
            }
            _ => self.walk(state, &mut mask),
        }
        if self.table.accepts.get(state as usize).copied().unwrap_or_default() {
            self.ends.iter().for_each(|end| words::allow(&mut mask, *end));
        }
        self.keep(state, mask)
    }

    /// Adds the ids that a state allows, by walking the vocabulary.
    fn walk(&self, state: u32, mask: &mut [u32]) {
        let trie = self.env.tok_trie();
        let mut todo = vec![(trie.root(), state)];
        while let Some((node, state)) = todo.pop() {
            for child in trie.node_children(node) {
                let next = self.table.next(state, child.byte());
                if next == DEAD {
                    continue;
                }
                if let Some(id) = child.token_id() {
                    words::allow(mask, id);
                }
                if child.subtree_size() > 1 {
                    todo.push((child, next));
                }
            }
        }
    }

    fn keep(&self, state: u32, mask: Vec<u32>) -> Arc<[u32]> {
        let content: Vec<u8> = mask.iter().flat_map(|word| word.to_le_bytes()).collect();
        let content = *blake3::hash(&content).as_bytes();
        let kept = &mut *self.kept.lock();
        let mask = match kept.by_content.get(&content) {
            Some(same) => Arc::clone(same),
            None => {
                let mask: Arc<[u32]> = mask.into();
                if (kept.by_content.len() + 1).saturating_mul(mask.len() * 4) > KEPT_MASK_BYTES {
                    return mask;
                }
                kept.by_content.insert(content, Arc::clone(&mask));
                mask
            }
        };
        kept.by_state.insert(state, Arc::clone(&mask));
        mask
    }

    /// An upper estimate of its memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        // Each state counts 34 bytes, which includes its key in the kept masks.
        let table = self.table.next.len() * 4 + self.table.accepts.len() * 34;
        table + self.words.as_ref().map_or(0, |(words, _)| words.bytes()) + KEPT_MASK_BYTES
    }
}
