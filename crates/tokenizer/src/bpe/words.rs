//! A look-up table, by bytes, of the words that are one token as a whole. Must not know why they are.

use std::collections::HashMap;

/// The maximum length, in bytes, of words whose length and bytes fit in one machine word. [`MEDIUM`] is the limit for
/// two.
const SMALL: usize = 7;
const MEDIUM: usize = 15;

/// Maps words to ids.
#[derive(Debug)]
pub(super) struct Words {
    small: Table<1>,
    medium: Table<2>,
    long: HashMap<Box<[u8]>, u32>,
    longest: usize,
}

impl Words {
    pub(super) fn new(words: &[(Vec<u8>, u32)]) -> Self {
        let rows = |range: std::ops::RangeInclusive<usize>| {
            words.iter().filter(move |(word, _)| range.contains(&word.len()))
        };
        let of = |word: &[u8]| key(word, 0, word.len());
        let small = rows(1..=SMALL).map(|(word, id)| ([of(word)[0]], *id)).collect::<Vec<_>>();
        let medium = rows(SMALL + 1..=MEDIUM).map(|(word, id)| (of(word), *id)).collect::<Vec<_>>();
        Self {
            small: Table::new(&small),
            medium: Table::new(&medium),
            long: rows(MEDIUM + 1..=usize::MAX).map(|(word, id)| (word.as_slice().into(), *id)).collect(),
            longest: words.iter().map(|(word, _)| word.len()).max().unwrap_or(0),
        }
    }

    /// Returns the id of the word from `start` to `end` of `text`.
    #[inline]
    pub(super) fn get(&self, text: &[u8], start: usize, end: usize) -> Option<u32> {
        let len = end.saturating_sub(start);
        if len <= SMALL {
            return self.small.get([key(text, start, len)[0]]);
        }
        if len <= MEDIUM {
            return self.medium.get(key(text, start, len));
        }
        if len > self.longest {
            return None;
        }
        self.long.get(text.get(start..end)?).copied()
    }
}

/// The length and the bytes of a word of at most [`MEDIUM`] bytes. Different words have different keys, and only the
/// empty word has the key of all zeros.
#[inline(always)]
fn key(text: &[u8], start: usize, len: usize) -> [u64; 2] {
    let (low, high) =
        match text.get(start..start + 16).and_then(|window| window.as_chunks::<8>().0.as_array::<2>()) {
            Some([low, high]) => (u64::from_le_bytes(*low), u64::from_le_bytes(*high)),
            None => {
                let mut window = [[0; 8]; 2];
                let word = text.get(start..start + len).unwrap_or_default();
                for (byte, from) in window.as_flattened_mut().iter_mut().zip(word) {
                    *byte = *from;
                }
                (u64::from_le_bytes(window[0]), u64::from_le_bytes(window[1]))
            }
        };
    let bytes = |word: u64, count: usize| if count == 0 { 0 } else { word & (u64::MAX >> (64 - 8 * count)) };
    if len <= SMALL {
        [bytes(low, len) | (len as u64) << 56, 0]
    } else {
        [low, bytes(high, (len - 8).min(7)) | (len as u64) << 56]
    }
}

/// A hash table with open addressing, at most half full. Its keys are `N` machine words.
#[derive(Debug)]
struct Table<const N: usize> {
    slots: Vec<([u64; N], u32)>,
    shift: u32,
}

impl<const N: usize> Table<N> {
    fn new(rows: &[([u64; N], u32)]) -> Self {
        let bits = (rows.len().max(8) * 2).next_power_of_two().trailing_zeros();
        let mut table = Self { slots: vec![([0; N], 0); 1 << bits], shift: u64::BITS - bits };
        let mask = table.slots.len() - 1;
        for row in rows {
            let mut at = table.home(row.0);
            while let Some(slot) = table.slots.get_mut(at) {
                if slot.0 == [0; N] || slot.0 == row.0 {
                    *slot = *row;
                    break;
                }
                at = (at + 1) & mask;
            }
        }
        table
    }

    #[inline(always)]
    fn get(&self, key: [u64; N]) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while let Some((found, id)) = self.slots.get(at) {
            if *found == [0; N] {
                break;
            }
            if *found == key {
                return Some(*id);
            }
            at = (at + 1) & mask;
        }
        None
    }

    #[inline(always)]
    fn home(&self, key: [u64; N]) -> usize {
        let mix = |hash: u64, word: &u64| (hash.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (key.iter().fold(0, mix) >> self.shift) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_all_lengths_are_found_and_no_others() {
        let text = "\0\0abcdefghijklmnopqrstuvwxyz, the quick brown fox\0\0\0".as_bytes();
        let word = |start: usize, end: usize| text[start..end].to_vec();
        let mut expected: HashMap<Vec<u8>, u32> = HashMap::new();
        for start in 0..text.len() {
            for end in start + 1..=text.len() {
                if (start * 7 + end * 3) % 4 == 0 {
                    expected.insert(word(start, end), (start * 100 + end) as u32);
                }
            }
        }
        let words = Words::new(&expected.iter().map(|(word, id)| (word.clone(), *id)).collect::<Vec<_>>());
        for start in 0..text.len() {
            for end in start + 1..=text.len() {
                assert_eq!(words.get(text, start, end), expected.get(&word(start, end)).copied());
            }
        }
        assert_eq!(words.get(text, 3, 3), None);
        assert_eq!(words.get(text, 60, 90), None);
        assert_eq!(Words::new(&[]).get(text, 0, 4), None);
    }
}
