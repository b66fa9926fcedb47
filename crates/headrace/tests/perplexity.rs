//! `headrace models perplexity`: the cost of `fast` and of narrow keys and values for the demo model. The text
//! `data/held_out.txt` is long, and the model was not trained on it: `demo-model/study/gen.py --held` made it from
//! words excluded from training.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::process::{Command, Output};

use serde_json::Value;

const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/held_out.txt");

fn perplexity(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headrace"));
    command.args(["models", "perplexity"]).args(args).output().unwrap()
}

fn rows(args: &[&str]) -> Vec<(String, String, f64, f64)> {
    let run = perplexity(&[args, &["--text", TEXT, "--json"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let facts: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(facts["tokens"].as_u64().unwrap() > 20_000, "{facts}");
    let name = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = facts["rows"].as_array().unwrap().iter().map(|row| {
        let (perplexity, shift) = (row["perplexity"].as_f64().unwrap(), row["shift"].as_f64().unwrap());
        (name(row, "compute"), name(row, "kv_type"), perplexity, shift)
    });
    rows.collect()
}

/// The bounds are those that the modes promise. A model of a million parameters is the most sensitive to errors.
#[test]
fn modes_and_kv_types_shift_the_perplexity_by_no_more_than_they_promise() {
    for quantize in ["q8_0", "none", "q4_0"] {
        let rows = rows(&["--quantize", quantize]);
        assert_eq!(rows.len(), 8, "{rows:?}");
        for (index, (mode, kv, perplexity, shift)) in rows.iter().enumerate() {
            println!("{quantize:>5} {mode:>5} {kv:>4}: {perplexity:.4}, {:+.4} %", 100.0 * shift);
            // Its vocabulary has 4,096 tokens, and it was not trained to write users' messages.
            assert!((20.0..200.0).contains(perplexity), "the demo model knows this world: {perplexity}");
            let most = match (mode.as_str(), kv.as_str()) {
                ("exact", "f32") => 0.0,
                ("exact", "f16") => 0.000_5,
                _ => 0.005,
            };
            assert!(shift.abs() <= most, "{quantize}, {mode}, {kv}: {shift}");
            // Other arithmetic gives other numbers. This proves that it was really used.
            assert_eq!(index == 0, *shift == 0.0, "{quantize}, {mode}, {kv}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let short = dir.path().join("short.txt");
    std::fs::write(&short, "a").unwrap();
    let short = short.to_str().unwrap();
    let binary = dir.path().join("binary");
    std::fs::write(&binary, [0xff, 0xfe, 0x00]).unwrap();
    let binary = binary.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 7] = [
        (&["--text", "/nowhere/text"], &["/nowhere/text", "No such file"]),
        (&["--text", binary], &["binary", "UTF-8"]),
        (&["--text", short], &["two tokens"]),
        (&["--text", TEXT, "--window", "1"], &["`--window` is 1", "2 to 2048"]),
        (&["--text", TEXT, "--window", "4096"], &["`--window` is 4096", "2 to 2048"]),
        (&["--text", TEXT, "--kv-type", "q4"], &["`q4`", "f32, f16, bf16, q8"]),
        (&["--text", TEXT, "--quantize", "q9"], &["`--quantize`", "q8_0"]),
    ];
    for (args, words) in cases {
        let run = perplexity(args);
        let error = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{args:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{args:?}: {error}");
    }
}
