//! Encoding in the byte alphabet: every byte of a word is a symbol. Must not know added tokens or trust.

use super::chars::Classes;
use super::merges::{Merges, NONE, SHORT, Scratch};
use super::recipe::Model;
use super::scan::Pattern;
use super::words::Words;
use crate::vocabulary::byte_of;

/// Encodes text to ids by its bytes.
#[derive(Debug)]
pub(super) struct Bytes {
    pattern: Pattern,
    classes: &'static Classes,
    merges: Merges,
    words: Words,
    symbols: [u32; 256],
    /// The rank of each pair of bytes.
    pairs: Vec<u32>,
}

impl Bytes {
    /// Returns `None` if a byte has no symbol, or if the table of merges does not fit.
    pub(super) fn new(model: &Model, pattern: Pattern) -> Option<Self> {
        let mut symbols = [u32::MAX; 256];
        let mut spelt = Vec::with_capacity(model.vocabulary.len());
        for (token, id) in &model.vocabulary {
            let Some(bytes) = token.chars().map(byte_of).collect::<Option<Vec<u8>>>() else { continue };
            if let [byte] = bytes.as_slice() {
                *symbols.get_mut(usize::from(*byte))? = *id;
            }
            spelt.push((bytes, *id));
        }
        if symbols.contains(&u32::MAX) {
            return None;
        }
        let merges = Merges::new(&model.merges)?;
        let pair = |left: &u32| symbols.map(|right| merges.rank(*left, right));
        let pairs = symbols.iter().flat_map(pair).collect();
        let classes = Classes::shared()?;
        let mut bytes = Self { pattern, classes, merges, words: Words::new(&[]), symbols, pairs };
        if !model.ignores_merges {
            // Keeps only the words that the merges turn into one token. Those need not be merged again.
            let mut scratch = Scratch::new();
            let mut ids = Vec::new();
            spelt.retain(|(word, id)| {
                ids.clear();
                bytes.word(word, 0, word.len(), &mut scratch, &mut ids);
                ids == [*id]
            });
        }
        bytes.words = Words::new(&spelt);
        Some(bytes)
    }

    /// The ids that this encoder can produce, apart from those of merges and whole words.
    pub(super) fn symbols(&self) -> impl Iterator<Item = u32> {
        self.symbols.iter().copied()
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let bytes = text.as_bytes();
        self.pattern.words(text, self.classes, |start, end| self.word(bytes, start, end, scratch, ids));
    }

    #[inline(always)]
    fn word(&self, text: &[u8], start: usize, end: usize, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        match self.words.get(text, start, end) {
            Some(id) => ids.push(id),
            None => self.merge(text.get(start..end).unwrap_or_default(), scratch, ids),
        }
    }

    #[inline(never)]
    fn merge(&self, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let symbols = word.iter().map(|byte| self.symbol(*byte));
        if word.len() > SHORT {
            scratch.long.extend(symbols);
            scratch.merge_long(&self.merges, ids);
            return;
        }
        let byte = |at: usize| word.get(at).map_or(0, |byte| usize::from(*byte));
        let rank =
            |at: usize, _: u32, _: u32| self.pairs.get(byte(at) << 8 | byte(at + 1)).copied().unwrap_or(NONE);
        scratch.merge_short(&self.merges, symbols, rank, ids);
    }

    #[inline(always)]
    fn symbol(&self, byte: u8) -> u32 {
        self.symbols.get(usize::from(byte)).copied().unwrap_or(0)
    }
}
