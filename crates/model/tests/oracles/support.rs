//! Reads test data, and compares a model with reference answers.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use headrace_checkpoint::Checkpoint;
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kernels::{ComputeMode, Isa, argmax, logsumexp};
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables, StateSlots};
use headrace_model::{LoadOptions, Model};
use serde::Deserialize;

/// Maximum distance of a logit or log-probability from the oracle's.
pub(crate) const TOLERANCE: f32 = 1e-3;
/// A greedy choice may differ if the oracle's best two are closer than this.
pub(crate) const CLOSE_GAP: f32 = 1e-4;

#[derive(Deserialize)]
pub(crate) struct Expected {
    pub(crate) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) ids: Vec<u32>,
    pub(crate) logits_last: Vec<f32>,
    pub(crate) argmax_each_position: Vec<usize>,
    pub(crate) logsumexp_each_position: Vec<f32>,
    pub(crate) prompt_token_logprobs: Vec<f32>,
    pub(crate) top5_logprobs: Vec<(usize, f32)>,
    pub(crate) greedy: Vec<u32>,
    pub(crate) gaps: Vec<f32>,
}

#[derive(Deserialize)]
pub(crate) struct DemoCase {
    pub(crate) ids: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    pub(crate) min_gap: f32,
}

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint")
}

pub(crate) fn expected<T: for<'de> Deserialize<'de>>(dir: &Path) -> T {
    serde_json::from_slice(&std::fs::read(dir.join("expected.json")).unwrap()).unwrap()
}

/// Whether the processor is emulated (`HEADRACE_EMULATED` is set), which takes twenty times as long.
pub(crate) fn emulated() -> bool {
    std::env::var_os("HEADRACE_EMULATED").is_some()
}

/// The configurations to test: of both releases of transformers, or of the newer one if the processor is emulated.
pub(crate) fn configs() -> &'static [&'static str] {
    if emulated() { &["config.v5.json"] } else { &["config.json", "config.v5.json"] }
}

/// The checkpoint, with the file `config` as its configuration.
pub(crate) fn checkpoint(dir: &Path, config: &str) -> Checkpoint {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let renamed = match name.as_str() {
            "expected.json" => continue,
            other if other == config => "config.json".to_owned(),
            other if other.starts_with("config") => continue,
            other => other.to_owned(),
        };
        files.push((renamed, Cow::Owned(std::fs::read(dir.join(&name)).unwrap())));
    }
    if !dir.join("tokenizer.json").exists() {
        files.push(("tokenizer.json".to_owned(), Cow::Borrowed(b"{}".as_slice())));
    }
    Checkpoint::from_files(files).unwrap()
}

pub(crate) fn load(checkpoint: &Checkpoint, isa: Isa, threads: usize) -> Model {
    let options = LoadOptions::exact(isa, threads, 64);
    Model::load(checkpoint, options, &mut |_, _| ()).unwrap()
}

/// Scattered physical blocks for a sequence of at most `positions`.
pub(crate) fn blocks(positions: usize, seed: u32) -> Vec<u32> {
    (0..positions.div_ceil(BLOCK_TOKENS) as u32).map(|block| (block * 7 + seed) % 64).collect()
}

/// The tables of a sequence with these blocks, whose state stays in one slot.
pub(crate) fn tables(blocks: &[u32], slot: u32) -> BlockTables<'_> {
    let states = Some(StateSlots { from: slot, own: slot, copy: None });
    BlockTables { states, ..BlockTables::same(blocks) }
}

/// All rows of logits of `ids`, computed in chunks of at most `size` tokens.
pub(crate) fn all_rows(model: &mut Model, ids: &[u32], size: usize, table: &[u32]) -> Vec<Vec<f32>> {
    let (mut out, mut rows) = (Logits::default(), Vec::new());
    for (index, tokens) in ids.chunks(size).enumerate() {
        let chunk = SequenceChunk {
            tokens,
            start: index * size,
            tables: tables(table, 0),
            logits: LogitsWanted::All,
            long_context: model.shape().is_long(ids.len()),
        };
        model.step(&[chunk], &mut out).unwrap();
        rows.extend((0..out.rows()).map(|row| out.row(row).unwrap().to_vec()));
    }
    rows
}

/// The greedy continuation of a sequence whose last row of logits is `last`.
pub(crate) fn greedy(model: &mut Model, last: &[f32], start: usize, count: usize, table: &[u32]) -> Vec<u32> {
    let isa = Isa::best();
    let mut tokens = vec![argmax(isa, last).unwrap() as u32];
    let mut out = Logits::default();
    while tokens.len() < count {
        let token = [*tokens.last().unwrap()];
        let at = start + tokens.len() - 1;
        let chunk = SequenceChunk {
            tokens: &token,
            start: at,
            tables: tables(table, 0),
            logits: LogitsWanted::Last,
            long_context: model.shape().is_long(start + count),
        };
        model.step(&[chunk], &mut out).unwrap();
        tokens.push(argmax(isa, out.row(0).unwrap()).unwrap() as u32);
    }
    tokens
}

pub(crate) fn close(what: &str, got: f32, want: f32) {
    assert!((got - want).abs() <= TOLERANCE, "{what}: {got}, expected {want}");
}

pub(crate) fn same_bits(what: &str, a: &[f32], b: &[f32]) {
    let bits = |x: &[f32]| x.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(a), bits(b), "{what}");
}

pub(crate) fn check_case(what: &str, model: &mut Model, isa: Isa, case: &Case) {
    let table = blocks(case.ids.len() + case.greedy.len(), 3);
    let rows = all_rows(model, &case.ids, usize::MAX, &table);
    assert_eq!(rows.len(), case.ids.len());
    for (row, (&best, &lse)) in
        rows.iter().zip(case.argmax_each_position.iter().zip(&case.logsumexp_each_position))
    {
        let got = argmax(isa, row).unwrap();
        assert!(got == best || row[got] - row[best] < CLOSE_GAP, "{what}: argmax {got}, expected {best}");
        close(what, logsumexp(isa, row), lse);
    }
    for (index, &want) in case.prompt_token_logprobs.iter().enumerate() {
        let logit = rows[index][case.ids[index + 1] as usize];
        close(what, logit - logsumexp(isa, &rows[index]), want);
    }
    let last = rows.last().unwrap();
    for (&got, &want) in last.iter().zip(&case.logits_last) {
        close(what, got, want);
    }
    for &(id, want) in &case.top5_logprobs {
        close(what, last[id] - logsumexp(isa, last), want);
    }
    let tokens = greedy(model, last, case.ids.len(), case.greedy.len(), &table);
    if let Some(at) = tokens.iter().zip(&case.greedy).position(|(a, b)| a != b) {
        assert!(
            case.gaps[at] < CLOSE_GAP,
            "{what}: token {at} is {}, expected {}",
            tokens[at],
            case.greedy[at]
        );
    }
    for (size, seed) in [(1, 19), (7, 11), (16, 23), (17, 31), (64, 40)] {
        let table = blocks(case.ids.len(), seed);
        let cut = all_rows(model, &case.ids, size, &table);
        for (row, (a, b)) in rows.iter().zip(&cut).enumerate() {
            same_bits(&format!("{what}: row {row} in chunks of {size}"), a, b);
        }
    }
}

/// Checks that a case has the same bits in any chunks and on any number of threads. Returns its rows of logits.
pub(crate) fn same_in_chunks(
    checkpoint: &Checkpoint,
    case: &Case,
    (isa, mode): (Isa, ComputeMode),
    what: &str,
) -> Vec<Vec<f32>> {
    let load = |threads| {
        let options = LoadOptions { mode, ..LoadOptions::exact(isa, threads, 64) };
        Model::load(checkpoint, options, &mut |_, _| ()).unwrap()
    };
    let rows = all_rows(&mut load(1), &case.ids, usize::MAX, &blocks(case.ids.len(), 3));
    for (threads, size) in [(1, 1), (2, 7), (3, usize::MAX)] {
        let cut = all_rows(&mut load(threads), &case.ids, size, &blocks(case.ids.len(), 11));
        same_bits(&format!("{what} in chunks of {size}"), &rows.concat(), &cut.concat());
    }
    rows
}
