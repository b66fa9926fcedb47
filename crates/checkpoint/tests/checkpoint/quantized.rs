//! Quantized safetensors checkpoints: the matrices that each method gives. Refusals and damage are in the submodules.

mod damaged;
mod refused;
mod tiny;

use headrace_checkpoint::{Checkpoint, DType};
use serde_json::json;

use crate::gguf::model;

use self::tiny::{MODULES, Tiny, UP, floats, halves};

#[test]
fn every_method_gives_the_matrices_under_their_plain_names() {
    let types = ["f32", "w4_f16_g32", "f32", "w4_bf16_g32", "bf16"];
    for (tiny, dtype) in Tiny::all().iter().zip(types) {
        let method = tiny.quantization["quant_method"].to_string();
        let checkpoint = tiny.open().unwrap_or_else(|error| panic!("{method}: {error}"));
        for module in MODULES {
            let name = format!("model.layers.0.{module}.weight");
            let tensor = checkpoint.tensor(&name).unwrap();
            assert_eq!(
                (tensor.name, tensor.shape, tensor.dtype.name()),
                (name.as_str(), &[32, 32][..], dtype)
            );
            assert_eq!(tensor.bytes.len(), 32 * tensor.dtype.row_bytes(32).unwrap(), "{method} {name}");
            assert_eq!(checkpoint.dtype(&name), Some(tensor.dtype));
            assert!(checkpoint.has_tensor(&name));
        }
        // A table of types lists each matrix once, with all its weights and bytes.
        let weights = |(_, _, shape, _): (&str, &str, &[usize], u64)| shape.iter().product::<usize>();
        let extra = if method.contains("mxfp4") { 2 * 3 * 64 } else { 0 };
        assert_eq!(
            checkpoint.stored_tensors().map(weights).sum::<usize>(),
            7 * 1024 + 128 + 3 * 32 + extra,
            "{method}"
        );
        let bytes = checkpoint.stored_tensors().map(|(.., bytes)| bytes).sum::<u64>();
        assert_eq!(bytes, checkpoint.weight_bytes(), "{method}");
        assert!(checkpoint.stored_tensors().map(|(name, ..)| name).is_sorted(), "{method}");
        let made: u64 = checkpoint
            .stored_tensors()
            .map(|(name, ..)| checkpoint.tensor(name).unwrap().bytes.len() as u64)
            .sum();
        assert_eq!(checkpoint.tensor_bytes(), made, "{method}");
    }
}

#[test]
fn weights_follow_the_formula_of_their_method() {
    let row = |tiny: Tiny, row: usize| {
        let checkpoint = tiny.open().unwrap();
        let tensor = checkpoint.tensor(&format!("{UP}.weight")).unwrap();
        let width = tensor.dtype.row_bytes(32).unwrap();
        let bytes = tensor.bytes[row * width..(row + 1) * width].to_vec();
        match tensor.dtype {
            DType::Block(kind) => {
                let mut weights = vec![0.0; 32];
                headrace_quant::dequantize_row(kind, &bytes, &mut weights).unwrap();
                weights
            }
            _ => floats(&bytes),
        }
    };
    // Byte `at` of the words, and its two codes.
    let byte = |at: usize| (at * 29 + 7) as u8;
    let code =
        |word: usize, position: usize| i32::from(byte(4 * word + position / 2) >> (4 * (position % 2)) & 15);
    let half = |code: i32, zero: i32| (code - zero) as f32 * 0.5;
    for at in [0, 1, 13, 31] {
        let fp8 = row(Tiny::fp8(), at);
        for (column, weight) in fp8.iter().enumerate() {
            let code = (32 * at + column) * 7 % 0x70;
            assert_eq!(*weight, headrace_quant::E4M3_VALUES[code] * 0.5);
        }
        // AWQ: a word holds rows 0 2 4 6 1 3 5 7.
        let position = [0, 4, 1, 5, 2, 6, 3, 7][at % 8];
        let awq = row(Tiny::awq(), at);
        for (column, weight) in awq.iter().enumerate() {
            let (code, zero) = (code(4 * column + at / 8, position), code(at / 8, position));
            assert_eq!(*weight, half(code, zero), "row {at}, column {column}");
        }
        for (format, more) in [("gptq", 1), ("gptq_v2", 0)] {
            let gptq = row(Tiny::gptq().set("checkpoint_format", json!(format)), at);
            for (column, weight) in gptq.iter().enumerate() {
                let zero = code(4 * (column / 16) + at / 8, at % 8) + more;
                assert_eq!(
                    *weight,
                    half(code(32 * (column / 8) + at, column % 8), zero % 16),
                    "{format} row {at}"
                );
            }
        }
        let packed = row(Tiny::packed(), at);
        for (column, weight) in packed.iter().enumerate() {
            let zero = code(at / 8, at % 8);
            assert_eq!(
                *weight,
                half(code(4 * at + column / 8, column % 8), zero),
                "row {at}, column {column}"
            );
        }
        // Without zeros, 8 is in the middle.
        let middle = Tiny::packed().set_weights("symmetric", json!(true));
        let middle = MODULES
            .iter()
            .fold(middle, |tiny, module| tiny.without(&format!("model.layers.0.{module}.weight_zero_point")));
        for (column, weight) in row(middle, at).iter().enumerate() {
            assert_eq!(*weight, half(code(4 * at + column / 8, column % 8), 8));
        }
    }
}

#[test]
fn columns_in_other_groups_become_floats() {
    let index: Vec<u8> = (0..32_u32).flat_map(|column| (column % 2).to_le_bytes()).collect();
    let scales = [halves("F16", 32), [0, 0x3C].repeat(32)].concat();
    let tiny = Tiny::gptq().up("g_idx", "I32", &[32], index).up("scales", "F16", &[2, 32], scales);
    let tiny = tiny.set("desc_act", json!(true));
    let checkpoint = tiny.open().unwrap();
    let tensor = checkpoint.tensor(&format!("{UP}.weight")).unwrap();
    assert_eq!(tensor.dtype, DType::F32);
    let zeros = Tiny::gptq();
    let plain = zeros.open().unwrap();
    let plain = floats(&plain.tensor(&format!("{UP}.weight")).unwrap().bytes);
    let code = |row: usize, column: usize| {
        let at = 4 * (32 * (column / 8) + row) + column % 8 / 2;
        i32::from((at * 29 + 7) as u8 >> (4 * (column % 2)) & 15)
    };
    let zero = |row: usize, group: usize| {
        let at = 4 * (4 * group + row / 8) + row % 8 / 2;
        (i32::from((at * 29 + 7) as u8 >> (4 * (row % 2)) & 15) + 1) % 16
    };
    for (at, weight) in floats(&tensor.bytes).iter().enumerate() {
        let (row, column) = (at / 32, at % 32);
        let scale = if column % 2 == 0 { 0.5 } else { 1.0 };
        assert_eq!(*weight, (code(row, column) - zero(row, column % 2)) as f32 * scale, "{row} {column}");
        assert_eq!(plain[at], (code(row, column) - zero(row, column / 16)) as f32 * 0.5, "{row} {column}");
    }
}

#[test]
fn stacked_matrices_of_mxfp4_are_blocks_of_gguf() {
    let checkpoint = Tiny::mxfp4().open().unwrap();
    let tensor = checkpoint.tensor("experts.up_blocks").unwrap();
    assert_eq!((tensor.shape, tensor.dtype.name()), (&[2, 3, 64][..], "mxfp4"));
    assert_eq!(tensor.bytes.len(), 6 * 2 * 17);
    let DType::Block(kind) = tensor.dtype else { panic!("no blocks") };
    let mut weights = vec![0.0; 6 * 64];
    headrace_quant::dequantize_row(kind, &tensor.bytes, &mut weights).unwrap();
    for (at, weight) in weights.iter().enumerate() {
        let code = (at / 2 * 29 + 7) as u8 >> (4 * (at % 2)) & 15;
        let value = f32::from(headrace_quant::MXFP4_VALUES[usize::from(code)]);
        assert_eq!(*weight, value * 2_f32.powi(120 - 128), "weight {at}");
    }
    for (index, half) in tensor.bytes.chunks_exact(tensor.bytes.len() / 2).enumerate() {
        let part = checkpoint.stacked("experts.up_blocks", index).unwrap();
        assert_eq!((part.name, part.shape, part.dtype), ("experts.up_blocks", &[3, 64][..], tensor.dtype));
        assert_eq!(&part.bytes[..], half);
    }
    // A plain tensor is a stack of its rows.
    let whole = checkpoint.tensor("model.embed_tokens.weight").unwrap();
    let row = checkpoint.stacked("model.embed_tokens.weight", 3).unwrap();
    assert_eq!((row.shape, &row.bytes[..]), (&[32][..], &whole.bytes[3 * 64..]));
}

#[test]
fn checkpoints_of_others_are_read_in_both_spellings() {
    for (name, dtype, label) in [
        ("qwen3-fp8", "f8_g128", "F8_E4M3"),
        ("qwen2-awq", "w4_f16_g128", "AWQ"),
        ("qwen3-gptq", "w4_f16_g128", "GPTQ"),
        ("llama-ct-w4a16", "w4_bf16_g128", "INT4"),
    ] {
        let checkpoint = Checkpoint::open(&model(name)).unwrap();
        let tensor = checkpoint.tensor("model.layers.1.mlp.down_proj.weight").unwrap();
        assert_eq!((tensor.shape, tensor.dtype.name()), (&[256, 384][..], dtype), "{name}");
        let labels = checkpoint.stored_tensors().filter(|(_, kind, ..)| *kind == label).count();
        assert_eq!(labels, 14, "{name}");
    }
}

/// Experts have tensors of their own, or are stacked. Each is one matrix under the name that the layer calls for.
#[test]
fn experts_are_read_in_both_spellings() {
    let expert = "model.layers.1.mlp.experts.3.down_proj.weight";
    let mixtral = "model.layers.1.block_sparse_moe.experts.3.w2.weight";
    for (name, tensor, shape, dtype) in [
        ("qwen3-moe-fp8", expert, &[256, 32][..], "f8_g32"),
        ("qwen3-moe-fp8", "model.layers.1.mlp.experts.0.up_proj.weight", &[32, 256], "f8_g128"),
        ("qwen2-moe-ct-w4a16", expert, &[64, 32], "w4_bf16_g32"),
        ("qwen2-moe-ct-w4a16", "model.layers.0.mlp.shared_expert.gate_proj.weight", &[64, 64], "w4_bf16_g32"),
        ("mixtral-ct-fp8", mixtral, &[64, 96], "f8_g32"),
        ("gpt-oss-mxfp4", "model.layers.3.mlp.experts.down_proj_blocks", &[4, 64, 96], "mxfp4"),
        ("gpt-oss-mxfp4", "model.layers.0.mlp.experts.gate_up_proj_blocks", &[4, 192, 64], "mxfp4"),
        ("gpt-oss-mxfp4", "model.layers.0.self_attn.q_proj.weight", &[64, 64], "bf16"),
    ] {
        for config in ["config.json", "config.v5.json"] {
            let read = |file: &str| std::fs::read(model(name).join(file)).unwrap();
            let files = vec![
                ("config.json".to_owned(), read(config).into()),
                ("tokenizer.json".to_owned(), b"{}".as_slice().into()),
                ("model.safetensors".to_owned(), read("model.safetensors").into()),
            ];
            let checkpoint = Checkpoint::from_files(files).unwrap_or_else(|error| panic!("{name}: {error}"));
            let found = checkpoint.tensor(tensor).unwrap();
            assert_eq!((found.shape, found.dtype.name()), (shape, dtype), "{name} {config} {tensor}");
            let required = checkpoint.config().tensors();
            assert!(required.contains(&(tensor.to_owned(), shape.to_vec())), "{name} {config} {tensor}");
        }
    }
}
