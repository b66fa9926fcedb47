//! Compares models with reference answers (transformers, float32, the same stored weights). Also checks for identical
//! bits with any chunking of a sequence, any batch and any number of threads. Every instruction set is exercised.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../kernels/tests/common/mod.rs"]
mod common;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use headrace_checkpoint::Checkpoint;
use headrace_checkpoint::decoder::{FeedForward, LayerConfig, MixerConfig, ValueHeadOrder};
use headrace_checkpoint::gguf::Header;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::{Forward, ForwardError, Logits, LogitsWanted, SequenceChunk};
use headrace_kernels::matrix::{Matrix, WeightType};
use headrace_kernels::{ComputeMode, Isa, argmax, logsumexp};
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables, KvGroup, StateCopy, StateSlots};
use headrace_model::{KvBlocks, KvGroups, LoadOptions, Model, active_weight_bytes, weight_bytes};
use headrace_quant::{BlockType, dequantize_row, quantize_row};
use serde::Deserialize;

use crate::common::isas;

/// Maximum distance of a logit or log-probability from the oracle's.
const TOLERANCE: f32 = 1e-3;
/// A greedy choice may differ if the oracle's best two are closer than this.
const CLOSE_GAP: f32 = 1e-4;

const CHECKPOINTS: [&str; 70] = [
    "cohere",
    "cohere2",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3-fp8",
    "deepseek-v3-yarn",
    "gemma",
    "gemma2",
    "gemma3-cond",
    "gemma3-text",
    "gemma4-cond",
    "gemma4-moe",
    "gemma4-ple",
    "glm4",
    "glm4-moe",
    "glm4-moe-lite",
    "gpt-neox",
    "gpt-neox-serial",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "gpt2",
    "granite",
    "granite-hybrid",
    "granite-hybrid-dense",
    "granite-moe",
    "lfm2",
    "lfm2-moe",
    "llama-ct-w4a16",
    "llama-gqa-untied",
    "llama-mha-f32-sharded",
    "llama-tied-rope3",
    "llama-yarn",
    "ministral3",
    "mistral-swa",
    "mistral3-cond",
    "mixtral",
    "mixtral-ct-fp8",
    "nemotron",
    "nemotron-h",
    "nemotron-h-latent",
    "nemotron-h-moe",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi",
    "phi3",
    "phi3-longrope",
    "phi3-window",
    "qwen2",
    "qwen2-awq",
    "qwen2-moe",
    "qwen2-moe-ct-w4a16",
    "qwen25-vl",
    "qwen3",
    "qwen3-fp8",
    "qwen3-gptq",
    "qwen3-moe",
    "qwen3-moe-fp8",
    "qwen3-next",
    "qwen3-tied",
    "qwen3-vl",
    "qwen35",
    "qwen35-cond",
    "qwen35-moe",
    "smollm3",
    "smolvlm",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
];

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    ids: Vec<u32>,
    logits_last: Vec<f32>,
    argmax_each_position: Vec<usize>,
    logsumexp_each_position: Vec<f32>,
    prompt_token_logprobs: Vec<f32>,
    top5_logprobs: Vec<(usize, f32)>,
    greedy: Vec<u32>,
    gaps: Vec<f32>,
}

#[derive(Deserialize)]
struct DemoCase {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    min_gap: f32,
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint")
}

fn expected<T: for<'de> Deserialize<'de>>(dir: &Path) -> T {
    serde_json::from_slice(&std::fs::read(dir.join("expected.json")).unwrap()).unwrap()
}

/// Whether the processor is emulated (`HEADRACE_EMULATED` is set), which takes twenty times as long.
fn emulated() -> bool {
    std::env::var_os("HEADRACE_EMULATED").is_some()
}

/// The configurations to test: of both releases of transformers, or of the newer one if the processor is emulated.
fn configs() -> &'static [&'static str] {
    if emulated() { &["config.v5.json"] } else { &["config.json", "config.v5.json"] }
}

/// The checkpoint, with the file `config` as its configuration.
fn checkpoint(dir: &Path, config: &str) -> Checkpoint {
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

fn load(checkpoint: &Checkpoint, isa: Isa, threads: usize) -> Model {
    let options = LoadOptions::exact(isa, threads, 64);
    Model::load(checkpoint, options, &mut |_, _| ()).unwrap()
}

/// Scattered physical blocks for a sequence of at most `positions`.
fn blocks(positions: usize, seed: u32) -> Vec<u32> {
    (0..positions.div_ceil(BLOCK_TOKENS) as u32).map(|block| (block * 7 + seed) % 64).collect()
}

/// The tables of a sequence with these blocks, whose state stays in one slot.
fn tables(blocks: &[u32], slot: u32) -> BlockTables<'_> {
    let states = Some(StateSlots { from: slot, own: slot, copy: None });
    BlockTables { states, ..BlockTables::same(blocks) }
}

/// All rows of logits of `ids`, computed in chunks of at most `size` tokens.
fn all_rows(model: &mut Model, ids: &[u32], size: usize, table: &[u32]) -> Vec<Vec<f32>> {
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
fn greedy(model: &mut Model, last: &[f32], start: usize, count: usize, table: &[u32]) -> Vec<u32> {
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

fn close(what: &str, got: f32, want: f32) {
    assert!((got - want).abs() <= TOLERANCE, "{what}: {got}, expected {want}");
}

fn same_bits(what: &str, a: &[f32], b: &[f32]) {
    let bits = |x: &[f32]| x.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(a), bits(b), "{what}");
}

fn check_case(what: &str, model: &mut Model, isa: Isa, case: &Case) {
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

/// Models of [`CHECKPOINTS`] that are also in a GGUF file, as llama.cpp's converter writes it: with its names, fused,
/// split and stacked tensors, and orders of rows.
const GGUF_FILES: [&str; 49] = [
    "cohere",
    "cohere2",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma",
    "gemma2",
    "gemma3-text",
    "gemma4-moe",
    "gemma4-ple",
    "glm4",
    "glm4-moe",
    "glm4-moe-lite",
    "gpt-neox",
    "gpt-neox-serial",
    "gpt-oss",
    "gpt2",
    "granite",
    "granite-hybrid",
    "granite-hybrid-dense",
    "granite-moe",
    "lfm2",
    "lfm2-moe",
    "llama-gqa-untied",
    "llama-tied-rope3",
    "llama-yarn",
    "ministral3",
    "mistral-swa",
    "mixtral",
    "nemotron",
    "nemotron-h",
    "nemotron-h-moe",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi",
    "phi3-longrope",
    "phi3-window",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "qwen3-moe",
    "qwen3-next",
    "qwen35",
    "qwen35-moe",
    "smollm3",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
];

/// Those of [`GGUF_FILES`] whose layers have decays.
const HAS_DECAYS: [&str; 7] = [
    "granite-hybrid",
    "granite-hybrid-dense",
    "nemotron-h",
    "nemotron-h-moe",
    "qwen3-next",
    "qwen35",
    "qwen35-moe",
];

fn gguf_file(name: &str) -> Checkpoint {
    Checkpoint::open(&data(&format!("gguf/{name}.gguf"))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn gguf_files_give_the_oracles_answers_on_every_instruction_set() {
    for isa in isas() {
        for name in GGUF_FILES {
            let expected: Expected = expected(&data(name));
            let mut model = load(&gguf_file(name), isa, 2);
            for case in &expected.cases {
                check_case(&format!("{name}.gguf on {isa}"), &mut model, isa, case);
            }
        }
    }
}

#[test]
fn gguf_files_give_the_bits_of_the_same_weights_in_safetensors_if_both_are_quantized() {
    // The factors of Llama 3's frequencies are rounded to 32 bits in GGUF.
    for name in GGUF_FILES.into_iter().filter(|name| *name != "llama-tied-rope3") {
        let quantized = |checkpoint: &Checkpoint| {
            let options =
                LoadOptions { quantize: Some(BlockType::Q8_0), ..LoadOptions::exact(Isa::best(), 2, 64) };
            Model::load(checkpoint, options, &mut |_, _| ()).unwrap()
        };
        let mut file = quantized(&gguf_file(name));
        let mut directory = quantized(&checkpoint(&data(name), "config.json"));
        for case in &expected::<Expected>(&data(name)).cases {
            let table = blocks(case.ids.len(), 3);
            let [ours, theirs] =
                [&mut file, &mut directory].map(|model| all_rows(model, &case.ids, usize::MAX, &table));
            // GGUF has the rates of decays, and safetensors their logarithms.
            if HAS_DECAYS.contains(&name) {
                for (&a, &b) in ours.concat().iter().zip(&theirs.concat()) {
                    assert!((a - b).abs() < 1e-4, "{name}: {a} and {b}");
                }
            } else {
                same_bits(name, &ours.concat(), &theirs.concat());
            }
        }
    }
}

/// The same request may have other factors on an engine whose context is no longer than that of the pretraining.
#[test]
fn numerics_name_the_choice_of_longropes_factors() {
    const ORIGINAL: usize = 96;
    let checkpoint = checkpoint(&data("phi3-longrope"), "config.json");
    for (max_positions, is_chosen) in [(ORIGINAL, false), (ORIGINAL + 1, true)] {
        let options =
            LoadOptions { max_positions: Some(max_positions), ..LoadOptions::exact(Isa::best(), 1, 64) };
        let model = Model::load(&checkpoint, options, &mut |_, _| ()).unwrap();
        assert_eq!(model.numerics().ends_with("/longrope"), is_chosen, "{}", model.numerics());
        assert_eq!(model.shape().is_long(ORIGINAL + 1), is_chosen);
    }
}

/// A block of Q8_0 is as wide as two heads here, as a block of a K-quant is in published models.
#[test]
fn columns_whose_blocks_span_two_heads_keep_the_order_of_the_file() {
    const Q8_0: u32 = 8;
    let mut dense = std::fs::read(data("gguf/qwen35.gguf")).unwrap();
    let mut blocks_of = dense.clone();
    let (header, mut changed) = (Header::parse("m.gguf", &dense).unwrap(), 0);
    for (name, entry) in header.tensors.iter().filter(|(name, _)| name.ends_with("ssm_out.weight")) {
        // Both files have the same values: one in Q8_0, the other in BF16, which holds them if scales are powers of two.
        assert_eq!(entry.kind.name, "BF16");
        let (columns, elements) = (entry.shape[1], entry.range.len() / 2);
        let values: Vec<f32> = (0..elements).map(|at| ((at * 37 + at / 5) % 255) as f32 - 127.0).collect();
        let mut quantized = Vec::new();
        for row in values.chunks_exact(columns) {
            let row: Vec<f32> = row
                .chunks_exact(BlockType::Q8_0.block_weights())
                .flat_map(|block| std::iter::once(127.0).chain(block[1..].iter().copied()))
                .map(|value| value / 1024.0)
                .collect();
            let at = quantized.len();
            quantized.resize(at + BlockType::Q8_0.row_bytes(columns).unwrap(), 0);
            quantize_row(BlockType::Q8_0, &row, &mut quantized[at..]).unwrap();
            let mut same = vec![0.0; columns];
            dequantize_row(BlockType::Q8_0, &quantized[at..], &mut same).unwrap();
            assert_eq!(same, row);
            let start = entry.range.start + at / BlockType::Q8_0.row_bytes(columns).unwrap() * columns * 2;
            for (to, value) in dense[start..].as_chunks_mut::<2>().0.iter_mut().zip(&row) {
                *to = ((value.to_bits() >> 16) as u16).to_le_bytes();
            }
        }
        blocks_of[entry.range.start..][..quantized.len()].copy_from_slice(&quantized);
        // The number of the type follows the name, the number of dimensions, and two dimensions.
        let at = blocks_of.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
        let kind = at + name.len() + 4 + 2 * 8;
        blocks_of[kind..kind + 4].copy_from_slice(&Q8_0.to_le_bytes());
        changed += 1;
    }
    assert!(changed > 1);
    let read = |bytes: Vec<u8>, order: ValueHeadOrder| {
        let checkpoint = Checkpoint::from_files(vec![("m.gguf".to_owned(), Cow::Owned(bytes))]).unwrap();
        let of = |layer: &LayerConfig| match &layer.mixer {
            MixerConfig::Delta(delta) => Some(delta.head_order),
            _ => None,
        };
        let orders: Vec<_> = checkpoint.config().layers.iter().filter_map(of).collect();
        assert_eq!(orders, vec![order; changed]);
        checkpoint
    };
    let tiled = read(blocks_of, ValueHeadOrder::Tiled);
    let grouped = read(dense, ValueHeadOrder::Grouped);
    let case = &expected::<Expected>(&data("qwen35")).cases[2];
    for isa in isas() {
        let [a, b] = [&tiled, &grouped].map(|checkpoint| {
            let mut model = load(checkpoint, isa, 2);
            all_rows(&mut model, &case.ids, usize::MAX, &blocks(case.ids.len(), 3)).concat()
        });
        for (a, b) in a.iter().zip(&b) {
            close(&format!("on {isa}"), *a, *b);
        }
    }
}

#[test]
fn a_state_that_grows_is_refused() {
    let mut bytes = std::fs::read(data("gguf/qwen35.gguf")).unwrap();
    let range = Header::parse("m.gguf", &bytes).unwrap().tensors["blk.0.ssm_a"].range.clone();
    bytes[range][..4].copy_from_slice(&1_f32.to_le_bytes());
    let checkpoint = Checkpoint::from_files(vec![("m.gguf".to_owned(), Cow::Owned(bytes))]).unwrap();
    let options = LoadOptions::exact(Isa::best(), 1, 1);
    let error = Model::load(&checkpoint, options, &mut |_, _| ()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("linear_attn.A_log") && error.contains("a rate of 1;"), "{error}");
}

#[test]
fn oracle_checkpoints_are_reproduced_on_every_instruction_set() {
    for isa in isas() {
        for name in CHECKPOINTS {
            for config in configs() {
                let expected: Expected = expected(&data(name));
                let checkpoint = checkpoint(&data(name), config);
                let mut model = load(&checkpoint, isa, 2);
                let planned = KvGroups::of(checkpoint.config(), KvType::F32);
                let sizes = |group: &KvGroup| (group.kind, group.bytes_per_block);
                assert!(model.shape().kv.used().map(sizes).eq(planned.groups().map(sizes)));
                assert!(model.shape().weight_bytes >= weight_bytes(&checkpoint, None).unwrap());
                let cases = if emulated() { 1 } else { expected.cases.len() };
                for (index, case) in expected.cases.iter().take(cases).enumerate() {
                    check_case(&format!("{name} {config} case {index} on {isa}"), &mut model, isa, case);
                }
            }
        }
    }
}

/// Matrices of four bits stay so in memory, and the estimate counts what is held.
#[test]
fn quantized_checkpoints_hold_what_the_estimate_says() {
    for (name, dtype, most_bits) in [
        ("llama-ct-w4a16", "w4_bf16_g128", 6.0),
        ("qwen2-awq", "w4_f16_g128", 6.0),
        ("qwen3-gptq", "w4_f16_g128", 6.0),
        ("qwen3-fp8", "f8_g128", 10.0),
    ] {
        let checkpoint = checkpoint(&data(name), "config.json");
        let (mut weights, mut dense) = (0, 0);
        for (tensor, shape) in checkpoint.config().tensors() {
            let size = shape.iter().product::<usize>();
            if tensor.ends_with("_proj.weight") {
                assert_eq!(checkpoint.dtype(&tensor).unwrap().name(), dtype, "{name} {tensor}");
                weights += size;
            } else {
                dense += size;
            }
        }
        let estimate = weight_bytes(&checkpoint, None).unwrap();
        let held = load(&checkpoint, Isa::best(), 1).shape().weight_bytes;
        assert!(held >= estimate && held - estimate < 16 << 10, "{name}: {held} bytes, not {estimate}");
        // The tiny matrices have much padding between their panels.
        let bits = (estimate - 2 * dense) as f64 * 8.0 / weights as f64;
        assert!(bits < most_bits, "{name}: {bits} bits a weight");
    }
}

/// A token reads all dense matrices, the chosen experts, and one row of an embedding of its own.
#[test]
fn a_token_reads_the_chosen_experts_only() {
    for (name, quantize) in [("qwen3-tied", None), ("qwen3-tied", Some(BlockType::Q8_0))] {
        let checkpoint = checkpoint(&data(name), "config.json");
        let whole = weight_bytes(&checkpoint, quantize).unwrap();
        assert_eq!(active_weight_bytes(&checkpoint, quantize).unwrap(), whole, "{name} {quantize:?}");
    }
    let checkpoint = checkpoint(&data("qwen3-moe"), "config.json");
    let config = checkpoint.config();
    assert!(!config.is_tied());
    let packed = |rows: usize, k: usize| Matrix::packed_bytes(&[(WeightType::Bf16, rows)], k);
    let hidden = config.hidden_size;
    let unread: usize = (config.layers.iter())
        .map(|layer| match &layer.feed {
            FeedForward::Experts(experts) => {
                let each = packed(2 * experts.inner, hidden) + packed(hidden, experts.inner);
                (experts.experts.len() - experts.chosen) * each
            }
            other => panic!("{other:?}"),
        })
        .sum();
    let (whole, active) =
        (weight_bytes(&checkpoint, None).unwrap(), active_weight_bytes(&checkpoint, None).unwrap());
    let embedding = packed(config.vocab_size, hidden) - packed(1, hidden);
    assert_eq!(whole - active, unread + embedding);
}

/// Experts keep the bits of their file, stacked or not. Their bits depend on neither chunks nor threads.
#[test]
fn experts_of_quantized_checkpoints_stay_as_they_are_stored() {
    for (name, end, dtypes) in [
        ("gpt-oss-mxfp4", "_proj_blocks", &["mxfp4"][..]),
        ("qwen3-moe-fp8", "_proj.weight", &["f8_g128", "f8_g32"]),
        // The projections of attention's output have rows of 80.
        ("deepseek-v3-fp8", "_proj.weight", &["f8_g128", "f8_g32", "f32"]),
        ("mixtral-ct-fp8", ".w2.weight", &["f8_g32"]),
        ("qwen2-moe-ct-w4a16", "_proj.weight", &["w4_bf16_g32"]),
    ] {
        let checkpoint = checkpoint(&data(name), "config.json");
        let tensors = checkpoint.config().tensors();
        let matrices: Vec<_> = tensors.iter().filter(|(tensor, _)| tensor.ends_with(end)).collect();
        assert!(matrices.len() >= 8, "{name}: {matrices:?}");
        for (tensor, _) in matrices {
            let dtype = checkpoint.dtype(tensor).unwrap().name();
            assert!(dtypes.contains(&dtype), "{name} {tensor}: {dtype}");
        }
        let mut seen = Vec::new();
        let options = LoadOptions::exact(Isa::best(), 1, 1);
        let held = Model::load(&checkpoint, options, &mut |done, total| seen.push((done, total))).unwrap();
        // Biases, norms and routers are held in f32, and are not in the estimate.
        let (held, estimate) = (held.shape().weight_bytes, weight_bytes(&checkpoint, None).unwrap());
        assert!(held >= estimate && held - estimate < 64 << 10, "{name}: {held} bytes, not {estimate}");
        let total = checkpoint.tensor_bytes();
        assert!(seen.is_sorted() && seen.last() == Some(&(total, total)), "{name}: {seen:?}");
        let case = &expected::<Expected>(&data(name)).cases[1];
        for (isa, mode) in isas().into_iter().flat_map(|isa| ComputeMode::ALL.map(|mode| (isa, mode))) {
            same_in_chunks(&checkpoint, case, (isa, mode), &format!("{name} {mode} on {isa}"));
        }
    }
}

/// Checks that a case has the same bits in any chunks and on any number of threads. Returns its rows of logits.
fn same_in_chunks(
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

/// In mode `fast`, answers are close to the oracle's, and bits depend on neither chunks nor threads.
#[test]
fn quantized_checkpoints_have_the_same_bits_in_any_chunks_in_both_modes() {
    for isa in isas() {
        for mode in ComputeMode::ALL {
            for name in ["llama-ct-w4a16", "qwen2-awq", "qwen3-gptq", "qwen3-fp8"] {
                let checkpoint = checkpoint(&data(name), "config.json");
                let case = &expected::<Expected>(&data(name)).cases[1];
                let what = format!("{name} {mode} on {isa}");
                let rows = same_in_chunks(&checkpoint, case, (isa, mode), &what);
                let last = rows.last().unwrap();
                let (mut error, mut size) = (0.0, 0.0);
                for (got, want) in last.iter().zip(&case.logits_last) {
                    error += f64::from(got - want).powi(2);
                    size += f64::from(*want).powi(2);
                }
                let moved = (error / size).sqrt();
                assert!(
                    moved < if mode == ComputeMode::Fast { 0.05 } else { 1e-4 },
                    "{what}: moved by {moved}"
                );
            }
        }
    }
}

#[test]
fn the_demo_model_answers_as_recorded_on_every_instruction_set() {
    let checkpoint = checkpoint(&demo(), "config.json");
    let cases: Vec<DemoCase> = expected(&demo());
    for isa in isas() {
        let mut model = load(&checkpoint, isa, 2);
        for (index, case) in cases.iter().enumerate() {
            let table = blocks(case.ids.len() + case.greedy.len(), 5);
            let rows = all_rows(&mut model, &case.ids, usize::MAX, &table);
            let tokens = greedy(&mut model, rows.last().unwrap(), case.ids.len(), case.greedy.len(), &table);
            assert!(tokens == case.greedy || case.min_gap < CLOSE_GAP, "case {index} on {isa}: {tokens:?}");
            let cut = all_rows(&mut model, &case.ids, 7, &table);
            same_bits("chunks of 7", &rows.concat(), &cut.concat());
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_a_batch_on_any_number_of_threads() {
    for isa in isas() {
        for name in [
            "granite-hybrid",
            "lfm2-moe",
            "llama-gqa-untied",
            "nemotron-h-latent",
            "qwen3-next",
            "qwen2",
            "qwen3-tied",
            "gemma2",
            "gemma3-text",
            "gpt2",
            "gpt-oss",
            "mixtral",
            "olmo2",
            "deepseek-v2",
            "deepseek-v3-yarn",
            "qwen2-moe-ct-w4a16",
            "qwen3-moe-fp8",
            "gemma4-moe",
            "gemma4-ple",
            "glm4-moe-lite",
        ] {
            let checkpoint = checkpoint(&data(name), "config.json");
            let mut cases = expected::<Expected>(&data(name)).cases;
            // Each sequence of the batch has eight blocks.
            cases.retain(|case| case.ids.len() <= 8 * BLOCK_TOKENS);
            cases.truncate(3);
            let mut alone = load(&checkpoint, isa, 1);
            let wanted: Vec<Vec<Vec<f32>>> = cases
                .iter()
                .map(|case| all_rows(&mut alone, &case.ids, 5, &blocks(case.ids.len(), 1)))
                .collect();
            for threads in [1, 2, 3] {
                let mut model = load(&checkpoint, isa, threads);
                batch_of_all(&mut model, &cases, &wanted, &format!("{name} on {isa}, {threads} threads"));
            }
        }
    }
}

/// Computes all cases in two steps: the first tokens of each, then the rest. The second step requests only the last row
/// of each case, and no row of the second case.
fn batch_of_all(model: &mut Model, cases: &[Case], wanted: &[Vec<Vec<f32>>], what: &str) {
    let each: Vec<Vec<u32>> =
        (0..cases.len() as u32).map(|case| (case * 12..case * 12 + 12).rev().collect()).collect();
    let (mut out, first) = (Logits::default(), 3);
    let chunks: Vec<_> = cases
        .iter()
        .zip(&each)
        .map(|(case, blocks)| SequenceChunk {
            tokens: &case.ids[..first],
            start: 0,
            tables: tables(blocks, blocks[0]),
            logits: LogitsWanted::All,
            long_context: model.shape().is_long(case.ids.len()),
        })
        .collect();
    model.step(&chunks, &mut out).unwrap();
    for (index, rows) in wanted.iter().enumerate() {
        for (row, want) in rows[..first].iter().enumerate() {
            same_bits(what, out.row(index * first + row).unwrap(), want);
        }
    }
    let chunks: Vec<_> = cases
        .iter()
        .zip(&each)
        .enumerate()
        .map(|(index, (case, blocks))| SequenceChunk {
            tokens: &case.ids[first..],
            start: first,
            tables: tables(blocks, blocks[0]),
            logits: if index == 1 { LogitsWanted::None } else { LogitsWanted::Last },
            long_context: model.shape().is_long(case.ids.len()),
        })
        .collect();
    model.step(&chunks, &mut out).unwrap();
    let lasts = wanted.iter().enumerate().filter(|(index, _)| *index != 1);
    assert_eq!(out.rows(), wanted.len() - 1);
    for (row, (_, rows)) in lasts.enumerate() {
        same_bits(what, out.row(row).unwrap(), rows.last().unwrap());
    }
}

/// A sequence that begins with the same 50 tokens as another one, computed from the copy of its state at a block's end.
#[test]
fn a_sequence_continues_from_the_copy_of_a_state_with_the_same_bits() {
    for isa in isas() {
        for name in ["granite-hybrid", "lfm2-moe", "nemotron-h-moe", "qwen35", "qwen35-moe"] {
            let checkpoint = checkpoint(&data(name), "config.json");
            let cases = expected::<Expected>(&data(name)).cases;
            let [first, second] = [&cases[3], &cases[4]];
            let shared = 3 * BLOCK_TOKENS;
            assert_eq!(first.ids[..shared], second.ids[..shared]);
            let mut model = load(&checkpoint, isa, 2);
            let table = blocks(first.ids.len().max(second.ids.len()), 3);
            let wanted = all_rows(&mut model, &second.ids, usize::MAX, &table);
            let mut out = Logits::default();
            let mut step = |tokens: &[u32], start: usize, states: StateSlots| -> Vec<f32> {
                let tables = BlockTables { states: Some(states), ..BlockTables::same(&table) };
                let chunk =
                    SequenceChunk { tokens, start, tables, logits: LogitsWanted::All, long_context: false };
                model.step(&[chunk], &mut out).unwrap();
                out.values().to_vec()
            };
            let copy = Some(StateCopy { position: shared, slot: 9 });
            step(&first.ids, 0, StateSlots { from: 0, own: 0, copy });
            for size in [100, 5] {
                let (mut rows, mut start, mut from) = (Vec::new(), shared, 9);
                for tokens in second.ids[shared..].chunks(size) {
                    let own = if from == 10 { 11 } else { 10 };
                    rows.extend(step(tokens, start, StateSlots { from, own, copy: None }));
                    (start, from) = (start + tokens.len(), own);
                }
                same_bits(&format!("{name} on {isa} by {size}"), &wanted[shared..].concat(), &rows);
            }
        }
    }
}

#[test]
fn a_chunk_without_a_slot_is_refused() {
    let mut model = load(&checkpoint(&data("lfm2"), "config.json"), Isa::best(), 1);
    let tables = BlockTables { states: None, ..BlockTables::same(&[0]) };
    let chunk =
        SequenceChunk { tokens: &[5], start: 0, tables, logits: LogitsWanted::Last, long_context: false };
    let error = model.step(&[chunk], &mut Logits::default()).unwrap_err();
    assert!(error.to_string().contains("no slot for its state"), "{error}");
}

#[test]
fn a_bad_batch_is_refused_and_the_model_goes_on() {
    let mut model = load(&checkpoint(&data("qwen2"), "config.json"), Isa::best(), 2);
    let mut out = Logits::default();
    model.step(&[], &mut out).unwrap();
    assert_eq!(out.rows(), 0);
    let bad = SequenceChunk {
        tokens: &[5000],
        start: 0,
        tables: BlockTables::same(&[0]),
        logits: LogitsWanted::Last,
        long_context: false,
    };
    assert!(matches!(model.step(&[bad], &mut out), Err(ForwardError::BadBatch { chunk: 0, .. })));
    let good = SequenceChunk {
        tokens: &[5],
        start: 0,
        tables: BlockTables::same(&[0]),
        logits: LogitsWanted::Last,
        long_context: false,
    };
    model.step(&[good], &mut out).unwrap();
    assert_eq!(out.rows(), 1);
    assert_eq!(
        model.numerics(),
        format!("{}/exact/kv-f32/v{}", Isa::best(), headrace_kernels::KERNEL_VERSION)
    );
}

#[test]
fn loading_tells_its_progress_and_refuses_impossible_options() {
    let checkpoint = checkpoint(&data("qwen3"), "config.json");
    let mut seen = Vec::new();
    let options = LoadOptions { max_positions: Some(20), ..LoadOptions::exact(Isa::Scalar, 1, 2) };
    let model =
        Model::load(&checkpoint, options.clone(), &mut |done, total| seen.push((done, total))).unwrap();
    assert_eq!(model.shape().max_positions, 20);
    assert_eq!(seen.last(), Some(&(checkpoint.weight_bytes(), checkpoint.weight_bytes())));
    assert!(seen.is_sorted() && seen.len() > 10);
    for (options, field) in [
        (LoadOptions { kv_blocks: KvBlocks::default(), ..options.clone() }, "kv_blocks"),
        (LoadOptions { threads: 0, ..options.clone() }, "threads"),
        (LoadOptions { max_positions: Some(0), ..options }, "max_positions"),
    ] {
        let error = Model::load(&checkpoint, options, &mut |_, _| ()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
}
