//! Weights that are not numbers, in every architecture: a request that reads them fails with a clear error, its
//! neighbours and the next requests have the bits that they have without it, and nothing that it computed is shared.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "engine/directories.rs"]
mod directories;
#[allow(dead_code, reason = "shared with the other test binary, which uses more of it")]
#[path = "engine/support.rs"]
mod support;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use headrace_checkpoint::Checkpoint;
use headrace_domain::Sampling;
use headrace_engine_api::JobError;
use headrace_kernels::isa::{ISA_VARIABLE, Isa};
use headrace_model::{LoadOptions, Model};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::ToyVocabulary;
use serde_json::Value;
use support::{Bench, greedy, job, keys};

/// The token whose embedding is not a number.
const POISON: u32 = 63;

/// Makes every element of a token's embedding NaN in a safetensors file. Returns `None` if the output matrix is the
/// embedding, so that every request would read it, or is not in this file.
fn poison(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
    let header = header.as_object().unwrap();
    let named = |ends: &[&str]| {
        header.iter().find(|(name, _)| ends.iter().any(|end| name.ends_with(end))).map(|(_, tensor)| tensor)
    };
    named(&["lm_head.weight", "embed_out.weight"])?;
    let tensor = named(&["embed_tokens.weight", "embed_in.weight", "backbone.embeddings.weight"])?;
    let (columns, begin) = (
        tensor["shape"][1].as_u64().unwrap() as usize,
        8 + header_bytes + tensor["data_offsets"][0].as_u64().unwrap() as usize,
    );
    let nan: &[u8] = match tensor["dtype"].as_str().unwrap() {
        "BF16" | "F16" => &[0xff, 0x7f],
        "F32" => &[0xff, 0xff, 0xff, 0x7f],
        other => panic!("{other}"),
    };
    let row = nan.len() * columns;
    let begin = begin + POISON as usize * row;
    bytes[begin..begin + row].chunks_exact_mut(nan.len()).for_each(|element| element.copy_from_slice(nan));
    Some(bytes)
}

/// The checkpoint in a directory, with the poison. `None` if there is no place for it.
fn poisoned(dir: &Path) -> Option<Checkpoint> {
    let (mut files, mut is_poisoned) = (directories::files(dir), false);
    for (_, bytes) in files.iter_mut().filter(|(name, _)| name.ends_with(".safetensors")) {
        if let Some(poisoned) = poison(bytes.to_vec()) {
            (*bytes, is_poisoned) = (Cow::Owned(poisoned), true);
        }
    }
    if is_poisoned { Checkpoint::from_files(files).ok() } else { None }
}

fn bench(checkpoint: &Checkpoint) -> Bench {
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref()).unwrap();
    let scheduler =
        SchedulerConfig { context_window: 144, max_chunk: 32, step_tokens: 64, ..SchedulerConfig::default() };
    let options =
        LoadOptions { max_positions: Some(144), chunk: scheduler.chunk(), ..LoadOptions::exact(isa, 1, 100) };
    let model = Model::load(checkpoint, options, &mut |_, _| {}).unwrap();
    Bench::new(Box::new(model), Arc::new(ToyVocabulary), &[], scheduler)
}

/// Tokens that do not include the poison.
fn prompt(length: u32, first: u32) -> Vec<u32> {
    (0..length).map(|at| (first + 7 * at) % 60).collect()
}

fn check(name: &str, checkpoint: &Checkpoint) {
    // Greedy answers could contain the poison.
    let avoid =
        || Sampling { ignore_eos: true, logit_bias: vec![(POISON, -100.0)], logprobs: Some(2), ..greedy(6) };
    let clean = [prompt(70, 1), prompt(45, 2)];
    let expected = clean.each_ref().map(|prompt| bench(checkpoint).ask(job(prompt, avoid())).0);
    assert!(expected.iter().all(|answer| answer.error.is_none()), "{name}: {expected:?}");
    // In an inner chunk, in the last one, and in the first token.
    for at in [40, 69, 0] {
        let mut bench = bench(checkpoint);
        let mut bad = clean[0].clone();
        bad[at] = POISON;
        let mut victim = bench.submit(job(&bad, avoid()));
        let mut mates: Vec<_> = clean.iter().map(|prompt| bench.submit(job(prompt, avoid()))).collect();
        bench.run();
        victim.pump();
        let error = victim.answer.error.as_ref();
        assert!(matches!(error, Some(JobError::NotFinite { .. })), "{name}, {at}: {error:?}");
        for (mate, expected) in mates.iter_mut().zip(&expected) {
            mate.pump();
            assert_eq!(mate.answer, *expected, "{name}, {at}");
        }
        let shared = at / 16 * 16;
        let found = bench.stepper.cached_prefix(&keys(0, &bad));
        assert!(found <= shared, "{name}, {at}: {found} tokens of the poisoned prompt are cached");
        for (prompt, expected) in clean.iter().zip(&expected) {
            assert_eq!(bench.ask(job(prompt, avoid())).0, *expected, "{name}, after {at}");
        }
    }
}

#[test]
fn a_weight_that_is_no_number_fails_one_request_of_any_architecture() {
    let mut checked = 0;
    for dir in directories::all() {
        if let Some(checkpoint) = poisoned(&dir) {
            check(&dir.file_name().unwrap().to_string_lossy(), &checkpoint);
            checked += 1;
        }
    }
    assert!(checked >= 40, "{checked} checkpoints");
}
