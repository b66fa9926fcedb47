//! Measures the time of a mask over a vocabulary of 128,000, for schemas of common kinds. Also measures compiling a
//! form and beginning an answer. Run `cargo bench -p headrace-grammar`. The cost beside a model is `cargo bench -p
//! headrace-sim --bench forms`.

#[path = "common/vocabulary.rs"]
mod vocabulary;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use headrace_checkpoint::TokenizerConfig;
use headrace_domain::{JsonForm, ResponseFormat};
use headrace_grammar::{FormCompiler, FormLimits};
use headrace_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use vocabulary::{Rng, VOCAB, tokenizer_json};

const ANSWERS: u64 = 40;
const MOST_IDS: usize = 120;

fn forms() -> Vec<(&'static str, ResponseFormat)> {
    let schema = |schema| {
        ResponseFormat::JsonSchema(JsonForm {
            name: None,
            schema,
            strict: false,
            compact: false,
            white_space: None,
        })
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
        ("any object", ResponseFormat::JsonObject),
        ("a person", schema(person)),
        (
            "60 optional fields",
            schema(json!({"type": "object", "properties": many, "additionalProperties": false})),
        ),
        ("an address", ResponseFormat::Regex("[a-z0-9._-]{1,40}@[a-z0-9-]+(\\.[a-z]{2,10}){1,3}".to_owned())),
        ("a verdict", ResponseFormat::Regex("(yes|no|maybe): [^\\n]{20,300}\\.".to_owned())),
        (
            "a path of names",
            ResponseFormat::Regex(
                "[A-Za-z_][A-Za-z0-9_]{0,62}(::[A-Za-z_][A-Za-z0-9_]{0,62}){2,8}".to_owned(),
            ),
        ),
        ("a sentence", ResponseFormat::Regex("[A-Z][a-z]+( [a-z]+){3,20}\\.".to_owned())),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let tokenizer = Arc::new(Tokenizer::new(tokenizer_json().as_bytes(), &TokenizerConfig::default())?);
    println!("made a vocabulary of {VOCAB} in {:.1} s", began.elapsed().as_secs_f64());
    let end = VOCAB as u32 - 1;
    let compiler = FormCompiler::new(tokenizer, &[end], VOCAB as u32);
    let bounds = FormLimits::default();
    let began = Instant::now();
    compiler.compile(&Arc::new(ResponseFormat::Choice(vec!["a".to_owned()])), &bounds)?;
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

/// The allowed id after `skip` other allowed ids.
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

/// The quantile at `part`, between 0 and 1.
fn part(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 - 1.0) * part).round() as usize;
    values.get(at).copied().unwrap_or(0.0)
}
