//! Same bits for every weight format, compute mode, KV type and instruction set. A sequence's logits are identical
//! alone and among others, in any chunks beside decoding neighbours, in other blocks, and on one thread or two.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::borrow::Cow;
use std::path::Path;

use headrace_checkpoint::Checkpoint;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kernels::{ComputeMode, Isa};
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables};
use headrace_model::{LoadOptions, Model};
use headrace_quant::BlockType;

const HIDDEN: usize = 256;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const INNER: usize = 256;
const VOCAB: usize = 130;
/// Longer than one of attention's splits.
const LENGTH: usize = 270;
const BLOCKS: usize = 96;

/// A small Llama with random bf16 weights.
fn checkpoint() -> Checkpoint {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": INNER, "vocab_size": VOCAB, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1,
    });
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.k_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.v_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD_DIM]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![INNER, HIDDEN]),
            ("mlp.up_proj", vec![INNER, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INNER]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    random_weights(&config, tensors)
}

/// A small DeepSeek V3 without experts, with random bf16 weights.
fn latent_checkpoint() -> Checkpoint {
    const RANK: usize = 96;
    const PLAIN: usize = 32;
    const ROTARY: usize = 16;
    const VALUE: usize = 48;
    let config = serde_json::json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "q_lora_rank": RANK, "kv_lora_rank": RANK,
        "qk_nope_head_dim": PLAIN, "qk_rope_head_dim": ROTARY, "v_head_dim": VALUE, "n_routed_experts": 2,
        "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
        "first_k_dense_replace": LAYERS, "intermediate_size": INNER, "vocab_size": VOCAB,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1,
    });
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("self_attn.q_a_proj", vec![RANK, HIDDEN]),
            ("self_attn.q_a_layernorm", vec![RANK]),
            ("self_attn.q_b_proj", vec![HEADS * (PLAIN + ROTARY), RANK]),
            ("self_attn.kv_a_proj_with_mqa", vec![RANK + ROTARY, HIDDEN]),
            ("self_attn.kv_a_layernorm", vec![RANK]),
            ("self_attn.kv_b_proj", vec![HEADS * (PLAIN + VALUE), RANK]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * VALUE]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![INNER, HIDDEN]),
            ("mlp.up_proj", vec![INNER, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INNER]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    random_weights(&config, tensors)
}

/// A checkpoint of these tensors with random values.
fn random_weights(config: &serde_json::Value, tensors: Vec<(String, Vec<usize>)>) -> Checkpoint {
    let (mut header, mut data, mut state) = (serde_json::Map::new(), Vec::new(), 0x9e37_79b9_7f4a_7c15_u64);
    for (name, shape) in tensors {
        let begin = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let noise = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            let value = if shape.len() == 1 { 1.0 + noise / 8.0 } else { noise / 8.0 };
            data.extend(half::bf16::from_f32(value).to_le_bytes());
        }
        let offsets = [begin, data.len()];
        let entry = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": offsets});
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama-gqa-untied/tokenizer.json");
    Checkpoint::from_files(vec![
        ("config.json".to_owned(), Cow::Owned(serde_json::to_vec(config).unwrap())),
        ("tokenizer.json".to_owned(), Cow::Owned(std::fs::read(tokenizer).unwrap())),
        ("model.safetensors".to_owned(), Cow::Owned(file)),
    ])
    .unwrap()
}

/// One configuration of the computation.
#[derive(Clone, Copy, Debug)]
struct Way {
    isa: Isa,
    mode: ComputeMode,
    kv: KvType,
    quantize: Option<BlockType>,
}

fn load(checkpoint: &Checkpoint, way: Way, threads: usize) -> Model {
    let Way { isa, mode, kv, quantize } = way;
    let options = LoadOptions { mode, kv, quantize, ..LoadOptions::exact(isa, threads, BLOCKS) };
    Model::load(checkpoint, options, &mut |_, _| {}).unwrap()
}

fn tokens(sequence: u32) -> Vec<u32> {
    (0..LENGTH as u32).map(|i| (i * 37 + sequence * 11 + i * i) % VOCAB as u32).collect()
}

/// The bits of the logits at every position of `sequence`, computed alone in one piece.
fn alone(model: &mut Model, sequence: u32) -> Vec<Vec<u32>> {
    let blocks: Vec<u32> = (0..LENGTH.div_ceil(BLOCK_TOKENS) as u32).collect();
    let mut out = Logits::default();
    let tokens = tokens(sequence);
    let chunk = SequenceChunk {
        tokens: &tokens,
        start: 0,
        tables: BlockTables::same(&blocks),
        logits: LogitsWanted::All,
        long_context: false,
    };
    model.step(&[chunk], &mut out).unwrap();
    (0..LENGTH).map(|row| bits(out.row(row).unwrap())).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// Computes four sequences in one batch over scattered blocks. Each is cut differently, so that whole prefills run
/// beside single tokens. Returns the first difference from `expected`, if there is one.
fn mixed(model: &mut Model, expected: &[Vec<Vec<u32>>]) -> Option<String> {
    let all: Vec<Vec<u32>> = (0..4).map(tokens).collect();
    let cuts = [vec![LENGTH], vec![7; 60], vec![100, 1, 1, 1, 64, 130], vec![33; 20]];
    let per_sequence = LENGTH.div_ceil(BLOCK_TOKENS) as u32;
    // Blocks of the four sequences interleave, in descending order.
    let tables: Vec<Vec<u32>> =
        (0..4_u32).map(|s| (0..per_sequence).map(|b| BLOCKS as u32 - 1 - (b * 4 + s)).collect()).collect();
    let mut done = [0_usize; 4];
    let mut out = Logits::default();
    for turn in 0..64 {
        let mut batch = Vec::new();
        let mut owners = Vec::new();
        for s in 0..4 {
            let length = cuts[s].get(turn).map_or(1, |&cut| cut).min(LENGTH - done[s]);
            if length > 0 {
                batch.push(SequenceChunk {
                    tokens: &all[s][done[s]..done[s] + length],
                    start: done[s],
                    tables: BlockTables::same(&tables[s]),
                    logits: if turn % 3 == 2 { LogitsWanted::Last } else { LogitsWanted::All },
                    long_context: false,
                });
                owners.push((s, length, turn % 3 == 2));
            }
        }
        model.step(&batch, &mut out).unwrap();
        let mut row = 0;
        for (s, length, only_last) in owners {
            let first = if only_last { length - 1 } else { 0 };
            for i in first..length {
                if bits(out.row(row).unwrap()) != expected[s][done[s] + i] {
                    return Some(format!("sequence {s}, position {}, turn {turn}", done[s] + i));
                }
                row += 1;
            }
            done[s] += length;
        }
    }
    None
}

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for isa in Isa::supported() {
        for mode in ComputeMode::ALL {
            let formats = BlockType::QUANTIZED.into_iter().map(Some).chain([None]);
            for (at, quantize) in formats.enumerate() {
                // The scalar path is slow, so each mode tests a different third of the formats.
                if isa == Isa::Scalar && at % 3 != mode as usize {
                    continue;
                }
                // Each format is tested with one KV type, and bf16 weights with all of them.
                let kvs = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8];
                let kvs = if quantize.is_none() { &kvs[..] } else { &kvs[at % 4..=at % 4] };
                ways.extend(kvs.iter().map(|&kv| Way { isa, mode, kv, quantize }));
            }
        }
    }
    ways
}

#[test]
fn logits_do_not_depend_on_batch_chunks_blocks_or_threads_in_any_format_or_mode() {
    let checkpoint = checkpoint();
    let mut numerics = std::collections::BTreeSet::new();
    for way in ways() {
        let mut one = load(&checkpoint, way, 1);
        let expected: Vec<_> = (0..4).map(|s| alone(&mut one, s)).collect();
        assert!(expected.iter().flatten().flatten().all(|&bits| f32::from_bits(bits).is_finite()), "{way:?}");
        numerics.insert(one.numerics().to_owned());
        for threads in [1, 2] {
            let difference = mixed(&mut load(&checkpoint, way, threads), &expected);
            assert_eq!(difference, None, "{way:?}, {threads} threads");
        }
    }
    // The fingerprint distinguishes every instruction set, mode and KV type.
    let fast = Isa::supported().len() - 1;
    assert!(numerics.len() >= fast * 2 * 4, "{numerics:?}");
}

#[test]
fn latent_attention_has_the_same_bits_in_any_mode_and_kv_type() {
    let checkpoint = latent_checkpoint();
    for isa in Isa::supported() {
        for mode in ComputeMode::ALL {
            for (kv, quantize) in [
                (KvType::F32, None),
                (KvType::F16, None),
                (KvType::Bf16, Some(BlockType::Q8_0)),
                (KvType::Q8, Some(BlockType::Q4_0)),
            ] {
                let way = Way { isa, mode, kv, quantize };
                let mut one = load(&checkpoint, way, 1);
                let expected: Vec<_> = (0..4).map(|s| alone(&mut one, s)).collect();
                assert!(expected.iter().flatten().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
                for threads in [1, 3] {
                    let difference = mixed(&mut load(&checkpoint, way, threads), &expected);
                    assert_eq!(difference, None, "{way:?}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn quantizing_moves_logits_a_little_and_fast_a_little_more() {
    let checkpoint = checkpoint();
    let isa = Isa::best();
    let reference = Way { isa, mode: ComputeMode::Exact, kv: KvType::F32, quantize: None };
    let exact = alone(&mut load(&checkpoint, reference, 1), 0);
    let distance = |other: &[Vec<u32>]| -> f64 {
        let (mut error, mut size) = (0.0, 0.0);
        for (&a, &b) in exact.iter().flatten().zip(other.iter().flatten()) {
            let (a, b) = (f64::from(f32::from_bits(a)), f64::from(f32::from_bits(b)));
            error += (a - b) * (a - b);
            size += a * a;
        }
        (error / size).sqrt()
    };
    for (quantize, mode, kv, most) in [
        (None, ComputeMode::Exact, KvType::F16, 0.002),
        (None, ComputeMode::Exact, KvType::Q8, 0.02),
        (None, ComputeMode::Fast, KvType::F16, 0.02),
        (Some(BlockType::Q8_0), ComputeMode::Exact, KvType::F32, 0.04),
        (Some(BlockType::Q8_0), ComputeMode::Fast, KvType::F16, 0.05),
        (Some(BlockType::Q6K), ComputeMode::Fast, KvType::F16, 0.1),
        (Some(BlockType::Q5K), ComputeMode::Fast, KvType::F16, 0.2),
        (Some(BlockType::Q4K), ComputeMode::Fast, KvType::F16, 0.4),
    ] {
        let way = Way { isa, mode, kv, quantize };
        let moved = distance(&alone(&mut load(&checkpoint, way, 1), 0));
        println!("{way:?}: {moved:.5}");
        assert!(moved > 0.0 && moved < most, "{way:?} moved logits by {moved}");
    }
}
