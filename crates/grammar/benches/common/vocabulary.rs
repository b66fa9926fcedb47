//! A made-up vocabulary: bytes, words of syllables with and without a space, digits and punctuation, in about the
//! shares of a real one.

use serde_json::{Map, Value, json};

/// Number of ids.
pub(crate) const VOCAB: usize = 128_000;

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// A number in `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// GPT-2's character for a byte.
fn letter(byte: u8) -> char {
    let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let before = (0..byte).filter(|b| !matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)).count() as u32;
    let code = if printable { u32::from(byte) } else { 0x100 + before };
    char::from_u32(code).unwrap_or('?')
}

/// A `tokenizer.json` with [`VOCAB`] ids. The last id ends an answer.
pub(crate) fn tokenizer_json() -> String {
    const SYLLABLES: [&str; 24] = [
        "an", "ber", "con", "de", "er", "fi", "ga", "in", "lo", "men", "na", "or", "pre", "qu", "re", "sta",
        "ti", "un", "ver", "wo", "xi", "you", "za", "tion",
    ];
    let mut vocab: Map<String, Value> =
        (0..=255u8).map(|byte| (letter(byte).to_string(), json!(byte))).collect();
    let rng = &mut Rng(7);
    let add = |text: String, vocab: &mut Map<String, Value>| {
        let next = vocab.len();
        vocab.entry(text).or_insert_with(|| json!(next));
    };
    (0..1000).for_each(|number| add(format!("{number:03}"), &mut vocab));
    for mark in
        ["\":", "\",", "\"}", "{\"", "\"]", "[\"", "},", "},{\"", "):", "();", "//", "==", "->", "\":\""]
    {
        add(mark.to_owned(), &mut vocab);
    }
    while vocab.len() < VOCAB - 1 {
        let mut word = String::new();
        if rng.below(3) > 0 {
            word.push(letter(b' '));
        }
        for _ in 0..1 + rng.below(4) {
            word.push_str(SYLLABLES[rng.below(24) as usize]);
        }
        match rng.below(12) {
            0 => word = word.to_uppercase(),
            1 => word.push_str("'s"),
            2 => {
                word = word
                    .chars()
                    .map(|c| if rng.below(4) == 0 { letter(0x80 + rng.below(64) as u8) } else { c })
                    .collect()
            }
            _ => {}
        }
        add(word, &mut vocab);
    }
    let end = json!({"id": VOCAB - 1, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let file = json!({
        "version": "1.0", "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    file.to_string()
}
