//! Files as llama.cpp's converter writes them give the answers of the checkpoints that they were made from.

use std::borrow::Cow;

use headrace_checkpoint::Checkpoint;
use headrace_checkpoint::decoder::{LayerConfig, MixerConfig, ValueHeadOrder};
use headrace_checkpoint::gguf::Header;
use headrace_kernels::Isa;
use headrace_model::{LoadOptions, Model};
use headrace_quant::{BlockType, dequantize_row, quantize_row};

use crate::common::isas;
use crate::support::{
    Expected, all_rows, blocks, check_case, checkpoint, close, data, expected, load, same_bits,
};

/// Checkpoints that are also in a GGUF file, as llama.cpp's converter writes it: with its names, fused, split and stacked
/// tensors, and orders of rows.
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
