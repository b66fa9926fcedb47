//! Compares encoders with reference answers (transformers, float32, the same stored weights). Also checks for identical
//! bits alone, in batches and with any number of threads. Every instruction set is exercised.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../kernels/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};

use headrace_checkpoint::{EncoderCheckpoint, Pooling};
use headrace_kernels::encode::{Encode, Sequence, Vectors};
use headrace_kernels::forward::ForwardError;
use headrace_kernels::{ComputeMode, Isa};
use headrace_model::{Encoder, EncoderOptions};
use headrace_quant::BlockType;
use serde::Deserialize;

use crate::common::isas;

/// Maximum distance of an element from the oracle's.
const TOLERANCE: f32 = 1e-4;

const EMBEDDERS: [&str; 5] = ["bert-embed", "xlmr-embed", "qwen3-embed", "roberta-embed", "modernbert-embed"];
const SCORERS: [&str; 3] = ["bert-rank", "xlmr-rank", "modernbert-rank"];

#[derive(Deserialize)]
struct Expected {
    ids: Vec<Vec<u32>>,
    out: Vec<Answers>,
}

/// The answers of transformers for one text, with the usual poolings of each family.
#[derive(Deserialize)]
struct Answers {
    mean: Option<Vec<f32>>,
    cls: Option<Vec<f32>>,
    last: Option<Vec<f32>>,
    mean_l2: Option<Vec<f32>>,
    cls_l2: Option<Vec<f32>>,
    last_l2: Option<Vec<f32>>,
}

#[derive(Deserialize)]
struct Scored {
    /// Token ids of each pair, and the index at which the second text begins.
    pairs: Vec<(Vec<u32>, usize)>,
    /// The classifier's raw outputs.
    logits: Vec<f32>,
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn expected<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(data(name).join("expected.json")).unwrap()).unwrap()
}

/// A copy of the checkpoint with the given configuration file, and with sentence-transformers' files for the pooling.
fn with(name: &str, config: &str, pooling: Option<(Pooling, bool)>) -> EncoderCheckpoint {
    let copy = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(data(name).join(file), copy.path().join(file)).unwrap();
    }
    std::fs::copy(data(name).join(config), copy.path().join("config.json")).unwrap();
    if let Some((pooling, normalize)) = pooling {
        let module = |at: usize, path: &str, kind: &str| {
            let kind = format!("sentence_transformers.models.{kind}");
            serde_json::json!({"idx": at, "name": at.to_string(), "path": path, "type": kind})
        };
        let mut modules = vec![module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")];
        modules.extend(normalize.then(|| module(2, "2_Normalize", "Normalize")));
        std::fs::write(copy.path().join("modules.json"), serde_json::to_vec(&modules).unwrap()).unwrap();
        std::fs::create_dir(copy.path().join("1_Pooling")).unwrap();
        let flags = serde_json::json!({
            "word_embedding_dimension": 64,
            "pooling_mode_cls_token": pooling == Pooling::Cls,
            "pooling_mode_mean_tokens": pooling == Pooling::Mean,
            "pooling_mode_lasttoken": pooling == Pooling::Last,
            "pooling_mode_max_tokens": false,
        });
        std::fs::write(copy.path().join("1_Pooling/config.json"), flags.to_string()).unwrap();
    }
    EncoderCheckpoint::open(copy.path()).unwrap()
}

fn load(checkpoint: &EncoderCheckpoint, isa: Isa, threads: usize) -> Encoder {
    Encoder::load(checkpoint, EncoderOptions::exact(isa, threads), &mut |_, _| ()).unwrap()
}

fn whole(ids: &[u32]) -> Sequence<'_> {
    Sequence { tokens: ids, second: ids.len() }
}

fn encode(encoder: &mut Encoder, batch: &[Sequence<'_>]) -> Vec<Vec<f32>> {
    let mut out = Vectors::default();
    encoder.encode(batch, &mut out).unwrap();
    (0..batch.len()).map(|row| out.row(row).unwrap().to_vec()).collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}

fn close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        // The oracles are stored with six digits.
        let allowed = TOLERANCE * want.abs().max(1.0);
        assert!((got - want).abs() <= allowed, "{what}: element {at} is {got}, expected {want}");
    }
}

#[test]
fn vectors_are_those_of_transformers() {
    for name in EMBEDDERS {
        let Expected { ids, out } = expected(name);
        let batch: Vec<Sequence<'_>> = ids.iter().map(|ids| whole(ids)).collect();
        for (pooling, normalize) in [Pooling::Mean, Pooling::Cls, Pooling::Last]
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
        {
            let want: Option<Vec<&Vec<f32>>> = out
                .iter()
                .map(|answers| match (pooling, normalize) {
                    (Pooling::Mean, false) => answers.mean.as_ref(),
                    (Pooling::Mean, true) => answers.mean_l2.as_ref(),
                    (Pooling::Cls, false) => answers.cls.as_ref(),
                    (Pooling::Cls, true) => answers.cls_l2.as_ref(),
                    (Pooling::Last, false) => answers.last.as_ref(),
                    (Pooling::Last, true) => answers.last_l2.as_ref(),
                })
                .collect();
            let Some(want) = want else { continue };
            for config in ["config.json", "config.v5.json"] {
                let checkpoint = with(name, config, Some((pooling, normalize)));
                for isa in isas() {
                    let mut encoder = load(&checkpoint, isa, 2);
                    for (at, (got, want)) in encode(&mut encoder, &batch).iter().zip(&want).enumerate() {
                        let what = format!("{name} {config}, text {at}, {pooling:?} {normalize} on {isa}");
                        close(&what, got, want);
                    }
                }
            }
        }
    }
}

#[test]
fn without_modules_the_mean_or_the_last_state_has_length_one() {
    for name in EMBEDDERS {
        let Expected { ids, out } = expected(name);
        let checkpoint = with(name, "config.json", None);
        assert!(!checkpoint.modules().given);
        let mut encoder = load(&checkpoint, Isa::best(), 1);
        for (ids, answers) in ids.iter().zip(&out) {
            let want = answers.mean_l2.as_ref().or(answers.last_l2.as_ref()).unwrap();
            close(name, &encode(&mut encoder, &[whole(ids)])[0], want);
        }
    }
}

#[test]
fn scores_are_those_of_transformers() {
    for name in SCORERS {
        let Scored { pairs, logits } = expected(name);
        let batch: Vec<Sequence<'_>> =
            pairs.iter().map(|(ids, second)| Sequence { tokens: ids, second: *second }).collect();
        for config in ["config.json", "config.v5.json"] {
            let checkpoint = with(name, config, None);
            for isa in isas() {
                let mut encoder = load(&checkpoint, isa, 2);
                assert_eq!(encoder.shape().width, 1);
                for (got, logit) in encode(&mut encoder, &batch).iter().zip(&logits) {
                    let want = 1.0 / (1.0 + (-logit).exp());
                    assert!((got[0] - want).abs() < 2e-5, "{name} {config}: {} for {want} on {isa}", got[0]);
                }
            }
        }
    }
}

/// Sequences of many lengths, some with two texts, within the checkpoint's limits.
fn sequences(vocab: usize, max_tokens: usize) -> Vec<(Vec<u32>, usize)> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let lengths = [1, 2, 15, 16, 17, 33, 64, 100, max_tokens];
    let mut sequence = |length: usize| {
        let ids: Vec<u32> = (0..length).map(|_| random(vocab) as u32).collect();
        (ids, random(length + 1))
    };
    lengths.into_iter().map(|length| sequence(length.min(max_tokens))).collect()
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_any_batch_on_any_threads() {
    let modes = [(ComputeMode::Exact, None), (ComputeMode::Fast, Some(BlockType::Q8_0))];
    for name in EMBEDDERS.into_iter().chain(SCORERS) {
        let checkpoint = with(name, "config.json", None);
        let sequences = sequences(checkpoint.config().vocab_size, checkpoint.max_tokens());
        let all: Vec<Sequence<'_>> =
            sequences.iter().map(|(ids, second)| Sequence { tokens: ids, second: *second }).collect();
        for (isa, (mode, quantize)) in isas().into_iter().flat_map(|isa| modes.map(|mode| (isa, mode))) {
            let options = |threads| EncoderOptions { mode, quantize, ..EncoderOptions::exact(isa, threads) };
            let encoder = |threads| Encoder::load(&checkpoint, options(threads), &mut |_, _| ()).unwrap();
            let mut one = encoder(1);
            let alone: Vec<Vec<f32>> =
                all.iter().map(|sequence| encode(&mut one, &[*sequence]).remove(0)).collect();
            assert!(alone.iter().flatten().all(|value| value.is_finite()));
            for threads in [1, 2, 3] {
                let mut encoder = encoder(threads);
                let together = encode(&mut encoder, &all);
                assert_eq!(bits(&together), bits(&alone), "{name} on {isa}, {threads} threads, {mode:?}");
                let mut turned: Vec<Sequence<'_>> = all.iter().rev().copied().collect();
                turned.rotate_left(3);
                let mut back = encode(&mut encoder, &turned);
                back.rotate_right(3);
                back.reverse();
                assert_eq!(bits(&back), bits(&alone), "{name} on {isa}, {threads} threads, {mode:?}, turned");
            }
        }
    }
}

#[test]
fn a_bad_batch_is_refused_and_the_next_one_computed() {
    let checkpoint = with("bert-embed", "config.json", None);
    let mut encoder = load(&checkpoint, Isa::best(), 1);
    let mut out = Vectors::default();
    let good = whole(&[2, 968, 191, 3]);
    let long = vec![5; checkpoint.max_tokens() + 1];
    for (bad, says) in
        [(whole(&[]), "no tokens"), (whole(&long), "the most is 128"), (whole(&[1024]), "token 1024")]
    {
        let error = encoder.encode(&[good, bad], &mut out).unwrap_err();
        assert!(
            matches!(&error, ForwardError::BadBatch { chunk: 1, message } if message.contains(says)),
            "{error}"
        );
        assert_eq!(out.row(0).filter(|row| !row.is_empty()), None);
    }
    encoder.encode(&[], &mut out).unwrap();
    encoder.encode(&[good], &mut out).unwrap();
    assert_eq!(out.row(0).unwrap().len(), 64);
}
