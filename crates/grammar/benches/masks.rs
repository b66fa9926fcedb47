//! How long a mask takes over a vocabulary of 128,000, for schemas of the usual kinds, and what compiling and beginning an answer
//! take. `cargo bench -p headrace-grammar`. The vocabulary is made up: bytes, and words of syllables with and without a space,
//! digits and punctuation, in about the shares of a real one.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use headrace_checkpoint::TokenizerConfig;
use headrace_domain::{Form, JsonForm};
use headrace_grammar::{Bounds, Compiler};
use headrace_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

const VOCAB: usize = 128_000;
const ANSWERS: u64 = 40;
const MOST_IDS: usize = 120;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// GPT-2's alphabet of bytes.
fn letter(byte: u8) -> char {
    let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let before = (0..byte).filter(|b| !matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)).count() as u32;
    let code = if printable { u32::from(byte) } else { 0x100 + before };
    char::from_u32(code).unwrap_or('?')
}

fn tokenizer() -> Result<Tokenizer, Box<dyn Error>> {
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
    Ok(Tokenizer::new(file.to_string().as_bytes(), &TokenizerConfig::default())?)
}

fn forms() -> Vec<(&'static str, Form)> {
    let schema = |schema| {
        Form::JsonSchema(JsonForm { name: None, schema, strict: false, compact: false, white_space: None })
    };
    let person = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "address"],
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["new", "old", "other"]}, "maxItems": 5},
            "address": {"type": "object", "properties": {"street": {"type": "string", "maxLength": 60}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
            "born": {"type": "string", "format": "date"},
        },
    });
    let many: Map<String, Value> =
        (0..60).map(|at| (format!("field_{at}"), json!({"type": ["string", "null"]}))).collect();
    vec![
        ("any object", Form::JsonObject),
        ("a person", schema(person)),
        (
            "60 optional fields",
            schema(json!({"type": "object", "properties": many, "additionalProperties": false})),
        ),
        ("a regex", Form::Regex("[A-Z][a-z]+( [a-z]+){3,20}\\.".to_owned())),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let tokenizer = Arc::new(tokenizer()?);
    println!("made a vocabulary of {VOCAB} in {:.1} s", began.elapsed().as_secs_f64());
    let end = VOCAB as u32 - 1;
    let compiler = Compiler::new(tokenizer, &[end], VOCAB as u32);
    let bounds = Bounds::default();
    let began = Instant::now();
    compiler.compile(&Arc::new(Form::Choice(vec!["a".to_owned()])), &bounds)?;
    println!("read it in {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    let mut all: Vec<f64> = Vec::new();
    for (name, form) in forms() {
        let began = Instant::now();
        let grammar = compiler.compile(&Arc::new(form), &bounds)?;
        let compiled = began.elapsed().as_secs_f64() * 1e3;
        let (mut masks, mut accepts, mut begins) = (Vec::new(), Vec::new(), Vec::new());
        for seed in 0..ANSWERS {
            let rng = &mut Rng(seed);
            let began = Instant::now();
            let mut state = grammar.begin();
            begins.push(began.elapsed().as_secs_f64() * 1e6);
            let mut mask = vec![0u32; VOCAB.div_ceil(32)];
            for _ in 0..MOST_IDS {
                if state.is_over() {
                    break;
                }
                let id = match state.forced().first() {
                    Some(id) => *id,
                    None => {
                        let began = Instant::now();
                        state.mask(&mut mask)?;
                        masks.push(began.elapsed().as_secs_f64() * 1e6);
                        let open: u64 = mask.iter().map(|word| u64::from(word.count_ones())).sum();
                        nth(&mask, rng.below(open))
                    }
                };
                if id == end {
                    break;
                }
                let began = Instant::now();
                state.accept(id)?;
                accepts.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
        all.extend_from_slice(&masks);
        println!(
            "{name}: compiled in {compiled:.1} ms, {} KiB; a choice begins in {:.0} µs; mask p50 {:.0} p99 {:.0} max {:.0} µs ({}); \
             taking an id p50 {:.1} p99 {:.0} µs",
            grammar.state_bytes() >> 10,
            part(&mut begins, 0.5),
            part(&mut masks, 0.5),
            part(&mut masks, 0.99),
            part(&mut masks, 1.0),
            masks.len(),
            part(&mut accepts, 0.5),
            part(&mut accepts, 0.99),
        );
    }
    println!("all masks: p50 {:.0} µs, p99 {:.0} µs", part(&mut all, 0.5), part(&mut all, 0.99));
    Ok(())
}

/// The allowed id with so many before it.
fn nth(mask: &[u32], mut skip: u64) -> u32 {
    for (at, word) in mask.iter().enumerate() {
        let count = u64::from(word.count_ones());
        if skip < count {
            let mut word = *word;
            for _ in 0..skip {
                word &= word - 1;
            }
            return at as u32 * 32 + word.trailing_zeros();
        }
        skip -= count;
    }
    0
}

/// The value below which so great a part lies.
fn part(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 - 1.0) * part).round() as usize;
    values.get(at).copied().unwrap_or(0.0)
}
