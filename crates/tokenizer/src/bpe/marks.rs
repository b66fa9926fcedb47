//! Encoding in SentencePiece's way: spaces are marks and merge like other characters. Merges run over the whole text,
//! so the text is cut only between two characters that are adjacent in no product of a merge. No merge can reach across
//! such a cut. Must not know added tokens or trust.

use super::chars::{CharTable, decode};
use super::merges::{Merges, NONE, SHORT, Scratch};
use super::recipe::{MARK, Model};
use super::words::Words;

/// The symbol value of a character that has no symbol.
const UNKNOWN: u32 = u32::MAX;

/// Encodes text to ids by its characters. Internally, a space replaces the mark.
#[derive(Debug)]
pub(super) struct Marks {
    /// Whether every mark begins a word.
    splits: bool,
    merges: Merges,
    words: Words,
    ascii: [u32; 128],
    beyond: CharTable<u32>,
    /// The byte symbols, which write unknown characters.
    fallback: [u32; 256],
    /// The rank of each pair of ASCII characters.
    pairs: Vec<u32>,
    neighbours: Neighbours,
}

impl Marks {
    /// Returns `None` if a byte has no symbol, if a merge uses or makes a byte symbol, or if the merges do not fit.
    pub(super) fn new(model: &Model, splits: bool) -> Option<Self> {
        let id = |token: &str| model.vocabulary.get(token).copied();
        let fallback = (0u8..=255).map(|byte| id(&format!("<{byte:#04X}>"))).collect::<Option<Vec<u32>>>()?;
        let fallback: [u32; 256] = fallback.try_into().ok()?;
        if model.merges.iter().any(|(a, b, made)| [a, b, made].iter().any(|id| fallback.contains(id))) {
            return None;
        }
        // The model never sees a space, so tokens with spaces in them are never used.
        let spell = |token: &String| (!token.contains(' ')).then(|| token.replace(MARK, " "));
        let mut ascii = [UNKNOWN; 128];
        let mut beyond = CharTable::new(UNKNOWN);
        let mut spelt = Vec::with_capacity(model.vocabulary.len());
        for (token, id) in &model.vocabulary {
            let Some(token) = spell(token) else { continue };
            let mut chars = token.chars();
            if let (Some(only), None) = (chars.next(), chars.next()) {
                match ascii.get_mut(only as usize) {
                    Some(slot) => *slot = *id,
                    None => *beyond.slot(u32::from(only))? = *id,
                }
            }
            spelt.push((token, *id));
        }
        let merges = Merges::new(&model.merges)?;
        let pair = |left: &u32| {
            ascii.map(
                |right| if *left == UNKNOWN || right == UNKNOWN { NONE } else { merges.rank(*left, right) },
            )
        };
        let pairs = ascii.iter().flat_map(pair).collect();
        let mut made: Vec<u32> = model.merges.iter().map(|(_, _, made)| *made).collect();
        made.sort_unstable();
        let products =
            spelt.iter().filter(|(_, id)| made.binary_search(id).is_ok()).map(|(token, _)| token.as_str());
        let neighbours = Neighbours::new(products);
        let words = Words::new(&[]);
        let mut marks = Self { splits, merges, words, ascii, beyond, fallback, pairs, neighbours };
        let (mut scratch, mut ids) = (Scratch::new(), Vec::new());
        let mut whole: Vec<(Vec<u8>, u32)> =
            spelt.into_iter().map(|(token, id)| (token.into_bytes(), id)).collect();
        whole.retain(|(word, id)| {
            ids.clear();
            marks.merge(word, &mut scratch, &mut ids);
            ids == [*id]
        });
        marks.words = Words::new(&whole);
        Some(marks)
    }

    /// The ids that this encoder can produce, apart from those of merges.
    pub(super) fn symbols(&self, model: &Model) -> impl Iterator<Item = u32> {
        let characters = model.vocabulary.iter().filter(|(token, _)| token.chars().nth(1).is_none());
        self.fallback.iter().copied().chain(characters.map(|(_, id)| *id)).collect::<Vec<_>>().into_iter()
    }

    /// Appends the ids of `text`, in which a space replaces the mark.
    pub(super) fn encode(&self, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let bytes = text.as_bytes();
        let (mut start, mut at) = (0, 0);
        let mut left = u32::MAX;
        while let Some(byte) = bytes.get(at) {
            let (right, len) = if *byte < 0x80 { (u32::from(*byte), 1) } else { character(bytes, at) };
            if at > start && self.cuts(left, right) {
                self.word(bytes, start, at, scratch, ids);
                start = at;
            }
            left = right;
            at += len;
        }
        if start < at {
            self.word(bytes, start, at, scratch, ids);
        }
    }

    #[inline(always)]
    fn cuts(&self, left: u32, right: u32) -> bool {
        (self.splits && right == u32::from(b' ')) || !self.neighbours.may_touch(left, right)
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
        if word.len() <= SHORT && word.is_ascii() && word.iter().all(|byte| self.known(*byte) != UNKNOWN) {
            let byte = |at: usize| word.get(at).map_or(0, |byte| usize::from(*byte & 0x7f));
            let rank = |at: usize, _: u32, _: u32| {
                self.pairs.get(byte(at) << 7 | byte(at + 1)).copied().unwrap_or(NONE)
            };
            scratch.merge_short(&self.merges, word.iter().map(|byte| self.known(*byte)), rank, ids);
            return;
        }
        let mut symbols = std::mem::take(&mut scratch.long);
        self.spell(word, &mut symbols);
        if symbols.len() > SHORT {
            scratch.long = symbols;
            scratch.merge_long(&self.merges, ids);
            return;
        }
        let rank = |_: usize, left: u32, right: u32| self.merges.rank(left, right);
        scratch.merge_short(&self.merges, symbols.iter().copied(), rank, ids);
        symbols.clear();
        scratch.long = symbols;
    }

    fn spell(&self, word: &[u8], symbols: &mut Vec<u32>) {
        let mut at = 0;
        while let Some(byte) = word.get(at) {
            let (symbol, len) = if *byte < 0x80 {
                (self.known(*byte), 1)
            } else {
                let (code, len) = character(word, at);
                (if code < 0x80 { self.known(b' ') } else { self.beyond.get(code) }, len)
            };
            if symbol == UNKNOWN {
                let bytes = word.get(at..at + len).unwrap_or_default();
                symbols
                    .extend(bytes.iter().map(|b| self.fallback.get(usize::from(*b)).copied().unwrap_or(0)));
            } else {
                symbols.push(symbol);
            }
            at += len;
        }
    }

    /// Returns the symbol of an ASCII character.
    #[inline(always)]
    fn known(&self, byte: u8) -> u32 {
        self.ascii.get(usize::from(byte & 0x7f)).copied().unwrap_or(UNKNOWN)
    }
}

/// Returns the non-ASCII character at `at` and its length in bytes. The mark is returned as a space.
#[inline(always)]
fn character(text: &[u8], at: usize) -> (u32, usize) {
    let (code, len) = decode(text, at);
    (if code == MARK as u32 { u32::from(b' ') } else { code }, len)
}

/// The pairs of characters that are adjacent in any of a set of words. Exact for ASCII; other pairs may be reported
/// falsely, but none is missed.
#[derive(Debug)]
struct Neighbours {
    ascii: [u64; 256],
    hashed: Vec<u64>,
    shift: u32,
}

impl Neighbours {
    fn new<'a>(words: impl Iterator<Item = &'a str> + Clone) -> Self {
        let pairs = || words.clone().flat_map(|word| word.chars().zip(word.chars().skip(1)));
        let beyond = pairs().filter(|(left, right)| !left.is_ascii() || !right.is_ascii()).count();
        let bits = (beyond.max(64) * 8).next_power_of_two().trailing_zeros();
        let shift = u64::BITS - bits;
        let mut neighbours = Self { ascii: [0; 256], hashed: vec![0; 1 << (bits - 6)], shift };
        for (left, right) in pairs() {
            let (left, right) = (u32::from(left), u32::from(right));
            let (row, bit) = Self::place(left, right, shift);
            let rows = if left | right < 0x80 { &mut neighbours.ascii[..] } else { &mut neighbours.hashed };
            if let Some(row) = rows.get_mut(row) {
                *row |= 1 << bit;
            }
        }
        neighbours
    }

    #[inline(always)]
    fn may_touch(&self, left: u32, right: u32) -> bool {
        let (row, bit) = Self::place(left, right, self.shift);
        let row = if left | right < 0x80 { self.ascii.get(row) } else { self.hashed.get(row) };
        row.is_none_or(|row| row >> bit & 1 != 0)
    }

    #[inline(always)]
    fn place(left: u32, right: u32, shift: u32) -> (usize, u32) {
        if left | right < 0x80 {
            return ((left << 1 | right >> 6) as usize, right & 63);
        }
        let hash = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift;
        ((hash >> 6) as usize, (hash & 63) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_never_denied() {
        let words = ["the", " the", "  ", "né", "日本", "本語", "é ", "🙂\u{200d}"];
        let neighbours = Neighbours::new(words.iter().copied());
        let touch = |pair: &str| {
            let mut chars = pair.chars().map(u32::from);
            neighbours.may_touch(chars.next().unwrap(), chars.next().unwrap())
        };
        assert!(
            ["th", "he", " t", "  ", "né", "日本", "本語", "é ", "🙂\u{200d}"].iter().all(|pair| touch(pair))
        );
        assert!(["e ", "eh", "ht", "ne", "t\0"].iter().all(|pair| !touch(pair)));
        let denied = ('\u{100}'..'\u{500}').filter(|c| !touch(&format!("{c}x"))).count();
        assert!(denied > 800, "{denied}");
    }
}
