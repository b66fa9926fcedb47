//! The features of a passage: hashes of its words, of neighbouring words, and of the character sequences in its words.
//! Must not know their weights.

use crate::fold;

/// Number of hash values.
pub(super) const FEATURES: usize = 1 << 16;

/// Lengths of the character sequences.
const SEQUENCES: std::ops::RangeInclusive<usize> = 3..=5;

/// The kinds of features. The kind is a part of the hash.
const WORD: u8 = 1;
const PAIR: u8 = 2;
const PAIR_WITH_GAP: u8 = 3;
const TRIPLE: u8 = 4;
const SEQUENCE: u8 = 10;

/// Features in the order of their first occurrence, each once.
struct FeatureList {
    features: Vec<usize>,
    /// One bit for each hash value.
    known: Vec<u64>,
}

impl FeatureList {
    fn add(&mut self, feature: usize) {
        let bit = 1_u64 << (feature % 64);
        let Some(known) = self.known.get_mut(feature / 64) else { return };
        if *known & bit == 0 {
            *known |= bit;
            self.features.push(feature);
        }
    }
}

/// Returns the features of a passage, each once. Case, accents and look-alike letters do not count.
pub(super) fn text_features(passage: &str) -> Vec<usize> {
    let folded = match fold::unmasked_for_words(passage) {
        Some(unmasked) => unmasked.into(),
        None => fold::for_words(passage),
    };
    let is_apart = |c: char| !c.is_alphanumeric() && c != '\'';
    let words: Vec<&str> = folded.split(is_apart).filter(|word| !word.is_empty()).collect();
    let features = Vec::with_capacity(passage.len().saturating_mul(3));
    let mut list = FeatureList { features, known: vec![0; FEATURES / 64] };
    let (mut padded, mut starts) = (String::new(), Vec::new());
    for word in &words {
        list.add(feature(WORD, &[word]));
        padded.clear();
        padded.extend([" ", word, " "]);
        starts.clear();
        starts.extend(padded.char_indices().map(|(at, _)| at).chain([padded.len()]));
        for (first, start) in starts.iter().enumerate() {
            for length in SEQUENCES {
                let end = starts.get(first.saturating_add(length));
                let Some(sequence) = end.and_then(|end| padded.get(*start..*end)) else { break };
                let kind = u8::try_from(length).unwrap_or_default().saturating_add(SEQUENCE);
                list.add(feature(kind, &[sequence]));
            }
        }
    }
    for words in words.windows(2) {
        list.add(feature(PAIR, words));
    }
    for words in words.windows(3) {
        list.add(feature(TRIPLE, words));
        if let [first, _, third] = words {
            list.add(feature(PAIR_WITH_GAP, &[first, third]));
        }
    }
    list.features
}

/// The hash of words, each followed by a space but the last (FNV-1a).
fn feature(kind: u8, words: &[&str]) -> usize {
    let seed = 0xcbf2_9ce4_8422_2325_u64 ^ u64::from(kind).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut hash = seed;
    for (at, word) in words.iter().enumerate() {
        let space: &[u8] = if at == 0 { b"" } else { b" " };
        for byte in space.iter().chain(word.as_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash ^= hash >> 32;
    usize::try_from(hash % FEATURES as u64).unwrap_or_default()
}
