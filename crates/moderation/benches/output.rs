//! The time that 100 rules take for 1,000 tokens of an answer, token by token.
//! `cargo bench -p headrace-moderation --bench output`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

use std::hint::black_box;
use std::time::Instant;

use headrace_moderation::{Judge, OutputFilter, RuleConfig, Rules};
use serde_json::{Value, json};

const TOKENS: usize = 1000;
const ROUNDS: usize = 200;

fn rules(list: &[Value]) -> Rules {
    let configs: Vec<RuleConfig> = serde_json::from_value(json!(list)).unwrap();
    Rules::compile(&configs).unwrap()
}

/// Tokens of four or five characters, with a line end now and then.
fn tokens() -> Vec<String> {
    let words =
        [" the", " model", " wrote", " some", " text", ",", " and", " 1234", " items", ".\n", " It", "'s"];
    (0..TOKENS).map(|at| words[(at * 7 + at / 5) % words.len()].to_owned()).collect()
}

fn main() {
    let word = |at: usize| {
        json!({"name": format!("w{at}"), "kind": "words", "words": [format!("forbidden {at}"), format!("item{at}x")],
            "action": "redact", "applies_to": "output"})
    };
    let regex = |at: usize| {
        json!({"name": format!("r{at}"), "kind": "regex", "pattern": format!("[A-Z]{{2}}{at}-[0-9]{{4}}"),
            "action": "block", "applies_to": "output"})
    };
    let pii = json!({"name": "pii", "kind": "pii", "action": "redact", "applies_to": "output"});
    let classifier = json!({"name": "c", "kind": "classifier", "action": "block", "applies_to": "output"});
    let sets = [
        ("the classifier", vec![classifier]),
        ("100 rules of words", (0..100).map(word).collect::<Vec<_>>()),
        ("100 regular expressions", (0..100).map(regex).collect()),
        ("50 of each", (0..50).map(word).chain((0..50).map(regex)).collect()),
        ("all recognisers", vec![pii]),
    ];
    let tokens = tokens();
    for (name, list) in sets {
        let rules = rules(&list);
        let answer = rules.output().unwrap().answer.clone().unwrap();
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let started = Instant::now();
            let (mut filter, mut out) = (OutputFilter::new(&answer), String::new());
            for token in &tokens {
                filter.push(token, &mut out);
            }
            filter.finish(&mut out);
            black_box(&out);
            times.push(started.elapsed());
        }
        times.sort_unstable();
        let (p50, p99) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
        println!("{name}: {p50:.2?} for {TOKENS} tokens (p99 {p99:.2?})");
    }
}
