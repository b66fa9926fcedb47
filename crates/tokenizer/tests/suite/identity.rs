//! Compares our ids with the library's, on much text and on hostile text, for every kind of byte-pair tokenizer.

use headrace_checkpoint::TokenizerConfig;
use headrace_tokenizer::{Segment, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::common::data;
use crate::mixed::{Random, text};

/// A tokenizer and the library's tokenizer for the same file.
struct Pair {
    name: String,
    ours: Tokenizer,
    theirs: tokenizers::Tokenizer,
}

impl Pair {
    fn new(name: &str, json: &[u8]) -> Self {
        let ours = Tokenizer::new(json, &TokenizerConfig::default()).unwrap();
        Self { name: name.to_owned(), ours, theirs: tokenizers::Tokenizer::from_bytes(json).unwrap() }
    }

    fn check(&self, text: &str) {
        let theirs = self.theirs.encode_fast(text, false).unwrap();
        let ours = self.ours.encode(text, false).unwrap();
        if ours != theirs.get_ids() {
            let at = ours.iter().zip(theirs.get_ids()).take_while(|(a, b)| a == b).count();
            let tail = |ids: &[u32]| ids[at..ids.len().min(at + 12)].to_vec();
            let near: String = self.ours.decode(&ours[at.saturating_sub(12)..ours.len().min(at + 12)], false);
            panic!("{}: {:?} {:?} near {near:?}", self.name, tail(&ours), tail(theirs.get_ids()));
        }
    }
}

/// The recorded tokenizers, and variations on them that represent other models.
static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut add = |name: &str, value: &Value| pairs.push(Pair::new(name, value.to_string().as_bytes()));
    let file =
        |name: &str| -> Value { serde_json::from_slice(&data(&format!("{name}/tokenizer.json"))).unwrap() };
    for name in ["bytebpe-llama3", "bytebpe-qwen", "spbpe-gemma", "spbpe-llama2"] {
        add(name, &file(name));
    }
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model/checkpoint/tokenizer.json");
    add("demo model", &serde_json::from_slice(&std::fs::read(demo).unwrap()).unwrap());
    let split = |pattern: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]})
    };
    let mut bytes = file("bytebpe-llama3");
    bytes["model"]["ignore_merges"] = json!(false);
    bytes["pre_tokenizer"] =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    add("gpt2", &bytes);
    bytes["pre_tokenizer"] = split(O200K);
    add("o200k", &bytes);
    bytes["pre_tokenizer"] = split(DEMO);
    bytes["model"]["ignore_merges"] = json!(true);
    add("demo", &bytes);
    let mut marks = file("spbpe-llama2");
    marks["normalizer"] = Value::Null;
    for (scheme, splits) in [("always", true), ("first", false), ("never", true), ("first", true)] {
        marks["pre_tokenizer"] =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits});
        add(&format!("metaspace {scheme} {splits}"), &marks);
    }
    // A vocabulary with merges that reach across words.
    let mut across = file("spbpe-gemma");
    let fresh = across["model"]["vocab"].as_object().unwrap().len() as u64 + 100;
    for (id, pair) in (fresh..).zip([["e", "▁"], ["e▁", "t"], ["▁", "▁"], ["n", "t▁"], ["t", "▁"]])
    {
        let product = pair.concat();
        across["model"]["vocab"].as_object_mut().unwrap().entry(product).or_insert(json!(id));
        across["model"]["merges"].as_array_mut().unwrap().insert(0, json!(pair));
    }
    add("across words", &across);
    for path in std::env::var("HEADRACE_TOKENIZER_JSON").iter().flat_map(|paths| paths.split(':')) {
        pairs.push(Pair::new(path, &std::fs::read(path).unwrap()));
    }
    pairs
});

const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEMO: &str = r" ?\p{Ll}+|\p{Lu}\p{Ll}+|\p{Lu}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|[^\S\r\n]+|\s+|\p{L}+";

/// Set `HEADRACE_TOKENIZER_MB` to the amount of text per tokenizer, in megabytes. `HEADRACE_TOKENIZER_NAME` selects the
/// tokenizers whose name contains it. The default is a little text for all tokenizers.
#[test]
fn much_mixed_text_has_the_librarys_ids() {
    let megabytes: Option<usize> = std::env::var("HEADRACE_TOKENIZER_MB").ok().map(|mb| mb.parse().unwrap());
    let bytes = megabytes.map_or(150_000, |mb| mb * 1_000_000);
    let only = std::env::var("HEADRACE_TOKENIZER_NAME").unwrap_or_default();
    for pair in PAIRS.iter().filter(|pair| pair.name.contains(&only)) {
        let mut random = Random(3);
        let mut done = 0;
        while done < bytes {
            let size = if random.below(64) == 0 { 100_000 } else { 200 + random.below(8_000) };
            let text = text(&mut random, size.min(bytes - done));
            pair.check(&text);
            done += text.len();
        }
        println!("{}: {done} bytes, the same ids", pair.name);
    }
}

/// Untrusted text in pieces has the same ids as the whole text, except for markup.
#[test]
fn literal_text_has_the_same_ids() {
    for pair in PAIRS.iter() {
        let markup = pair.ours.markup_texts();
        let mut random = Random(4);
        for _ in 0..60 {
            let mut text = text(&mut random, 400);
            for token in &markup {
                text = text.replace(token.as_str(), "");
            }
            if markup.iter().any(|token| text.contains(token.as_str())) {
                continue;
            }
            let cut = (0..=random.below(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            let segments = [Segment::Trusted(&text[..cut]), Segment::Literal(&text[cut..])];
            let whole = pair.theirs.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(
                pair.ours.encode_segments(&segments, false).unwrap(),
                whole.get_ids(),
                "{}",
                pair.name
            );
            assert_eq!(pair.ours.encode_plain(&text, false).unwrap(), whole.get_ids(), "{}", pair.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn nasty_text_has_the_librarys_ids(
        parts in prop::collection::vec(
            prop_oneof![
                3 => "['a-zA-Z0-9 .,/\\n\\r\\t▁<>|]{1,12}",
                2 => "[ſǅʰªⅧ²٣〇\u{345}\u{301}\u{327}\u{85}\u{a0}\u{2028}\u{3000}\u{200b}\u{200d}\u{fe0f}\u{1100}\u{1161}\u{11a8}각你か한жÅÅé\u{0}]{1,8}",
                1 => any::<String>(),
                1 => "(ab|aab|the |  |▁▁|\\n\\n|<s>|<\\|im_end\\|>){1,20}",
            ],
            0..8,
        )
    ) {
        let text = parts.concat();
        for pair in PAIRS.iter() {
            pair.check(&text);
        }
    }
}

fn hostile(bytes: usize) -> Vec<String> {
    let mut texts: Vec<String> = [
        "a",
        " ",
        "\n",
        "\0",
        "'",
        "ab",
        "aab",
        "▁",
        "你",
        "e ",
        "\u{301}",
        "1",
        "the",
        "<s",
        "\u{10ffff}",
        "Aa",
    ]
    .iter()
    .map(|unit| unit.repeat(bytes / unit.len()))
    .collect();
    let mut random = Random(5);
    texts.push((0..bytes).map(|_| char::from(b'a' + random.below(3) as u8)).collect());
    texts
}

#[test]
fn hostile_text_has_the_librarys_ids() {
    for pair in PAIRS.iter() {
        hostile(2_000).iter().for_each(|text| pair.check(text));
    }
}

#[test]
fn hostile_megabytes_take_no_longer_than_their_size() {
    for pair in PAIRS.iter() {
        for text in hostile(1_000_000) {
            let start = Instant::now();
            let ids = pair.ours.encode_plain(&text, false).unwrap();
            let took = start.elapsed();
            // Time quadratic in the text would be hours.
            assert!(took < Duration::from_secs(60), "{}: {took:?} for {:?}", pair.name, &text[..12]);
            assert!(!ids.is_empty());
        }
    }
}
