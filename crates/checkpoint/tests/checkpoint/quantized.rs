//! Quantized safetensors checkpoints: methods that are read and refused, tensors that do not fit each other, and seeded
//! damage. None of it may cause a panic or an allocation beyond the files' own size.

use std::collections::BTreeMap;

use headrace_checkpoint::{Checkpoint, CheckpointError, DType};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::gguf::model;
use crate::support::safetensors_file;

/// Tensors by name: type, shape and bytes.
type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

/// The matrices of the only layer. All have 32 rows and columns.
const MODULES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
const UP: &str = "model.layers.0.mlp.up_proj";

/// A model of one layer, with its `quantization_config`.
#[derive(Clone, Debug)]
struct Tiny {
    quantization: Value,
    tensors: Tensors,
}

fn put(tensors: &mut Tensors, name: String, dtype: &str, shape: &[usize], bytes: Vec<u8>) {
    tensors.insert(name, (dtype.to_owned(), shape.to_vec(), bytes));
}

/// `count` scales of 0.5.
fn halves(dtype: &str, count: usize) -> Vec<u8> {
    let one: &[u8] = match dtype {
        "F32" => &[0, 0, 0, 0x3F],
        "BF16" => &[0, 0x3F],
        _ => &[0, 0x38],
    };
    one.repeat(count)
}

/// Words that hold every code.
fn codes(words: usize) -> Vec<u8> {
    (0..4 * words).map(|at| (at * 29 + 7) as u8).collect()
}

impl Tiny {
    /// A model whose matrices are made by `of_module`.
    fn with(quantization: Value, of_module: impl Fn(&mut Tensors, &str)) -> Self {
        let mut tensors = Tensors::new();
        for name in
            ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]
        {
            put(&mut tensors, format!("{name}.weight"), "BF16", &[32], halves("BF16", 32));
        }
        put(&mut tensors, "model.embed_tokens.weight".to_owned(), "BF16", &[4, 32], halves("BF16", 128));
        MODULES.iter().for_each(|module| of_module(&mut tensors, &format!("model.layers.0.{module}")));
        Self { quantization, tensors }
    }

    fn fp8() -> Self {
        let config = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 20]});
        Self::with(config, |tensors, module| {
            let codes = (0..1024).map(|at| (at * 7 % 0x70) as u8).collect();
            put(tensors, format!("{module}.weight"), "F8_E4M3", &[32, 32], codes);
            put(tensors, format!("{module}.weight_scale_inv"), "F32", &[2, 2], halves("F32", 4));
        })
    }

    fn awq() -> Self {
        let config = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true});
        Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.qweight"), "I32", &[32, 4], codes(128));
            put(tensors, format!("{module}.qzeros"), "I32", &[1, 4], codes(4));
            put(tensors, format!("{module}.scales"), "F16", &[1, 32], halves("F16", 32));
        })
    }

    fn gptq() -> Self {
        let config =
            json!({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": false, "sym": true});
        Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.qweight"), "I32", &[4, 32], codes(128));
            put(tensors, format!("{module}.qzeros"), "I32", &[2, 4], codes(8));
            put(tensors, format!("{module}.scales"), "F16", &[2, 32], halves("F16", 64));
            let index = (0..32_u32).flat_map(|column| (column / 16).to_le_bytes()).collect();
            put(tensors, format!("{module}.g_idx"), "I32", &[32], index);
        })
    }

    /// compressed-tensors, with zeros and groups of 32.
    fn packed() -> Self {
        let weights =
            json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false});
        let groups = json!({"group_0": {"targets": ["Linear"], "weights": weights}});
        let config = json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": ["lm_head"],
        });
        Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.weight_packed"), "I32", &[32, 4], codes(128));
            put(tensors, format!("{module}.weight_zero_point"), "I32", &[4, 1], codes(4));
            put(tensors, format!("{module}.weight_scale"), "BF16", &[32, 1], halves("BF16", 32));
            let shape = [32_u64; 2].iter().flat_map(|size| size.to_le_bytes()).collect();
            put(tensors, format!("{module}.weight_shape"), "I64", &[2], shape);
        })
    }

    /// Plain matrices, and stacked ones that no configuration calls for.
    fn mxfp4() -> Self {
        let config = json!({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]});
        let mut tiny = Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.weight"), "BF16", &[32, 32], halves("BF16", 1024));
        });
        put(&mut tiny.tensors, "experts.up_blocks".to_owned(), "U8", &[2, 3, 2, 16], codes(48));
        put(&mut tiny.tensors, "experts.up_scales".to_owned(), "U8", &[2, 3, 2], vec![120; 12]);
        tiny
    }

    fn all() -> [Self; 5] {
        [Self::fp8(), Self::awq(), Self::gptq(), Self::packed(), Self::mxfp4()]
    }

    fn set(mut self, field: &str, value: Value) -> Self {
        self.quantization[field] = value;
        self
    }

    /// Sets a field of the weights of compressed-tensors' group.
    fn set_weights(mut self, field: &str, value: Value) -> Self {
        self.quantization["config_groups"]["group_0"]["weights"][field] = value;
        self
    }

    /// Replaces a tensor of the module `UP`, or adds one.
    fn up(mut self, part: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) -> Self {
        put(&mut self.tensors, format!("{UP}.{part}"), dtype, shape, bytes);
        self
    }

    fn without(mut self, name: &str) -> Self {
        assert!(self.tensors.remove(name).is_some(), "there is no {name}");
        self
    }

    fn weights(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend_from_slice(bytes);
        }
        safetensors_file(Value::Object(header).to_string().as_bytes(), &data)
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 1, "intermediate_size": 32, "vocab_size": 4, "tie_word_embeddings": true,
            "quantization_config": self.quantization,
        });
        let file = |name: &str, bytes: Vec<u8>| (name.to_owned(), bytes.into());
        Checkpoint::from_files(vec![
            file("config.json", config.to_string().into_bytes()),
            file("tokenizer.json", b"{}".to_vec()),
            file("model.safetensors", self.weights()),
        ])
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

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
    let tensor = checkpoint.tensor("experts.up").unwrap();
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
}

/// One row of a table: what it is, the model, and the pieces that the refusal must contain.
type Row = (&'static str, Tiny, &'static [&'static str]);

fn check_refused(rows: Vec<Row>) {
    for (what, tiny, pieces) in rows {
        let message = match tiny.open() {
            // NaN shows only when a matrix is loaded.
            Ok(checkpoint) => match checkpoint.tensor(&format!("{UP}.weight")) {
                Ok(_) => panic!("{what}: was not refused"),
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        for piece in pieces {
            assert!(message.contains(piece), "{what}: {message:?} does not say {piece:?}");
        }
        assert!(message.chars().count() < 800, "{what}: the message is {} long", message.len());
        assert!(!message.contains(char::is_control), "{what}: control characters in {message:?}");
    }
}

#[test]
fn methods_that_are_not_read_are_refused_by_name_with_those_that_are() {
    let group = |value: Value| Tiny::packed().set("config_groups", value);
    check_refused(vec![
        (
            "method",
            Tiny::awq().set("quant_method", json!("bitsandbytes")),
            &[
                "config.json: field \"quantization_config.quant_method\": \"bitsandbytes\" is not supported",
                "\"awq\"",
                "\"compressed-tensors\"",
                "GGUF file",
            ],
        ),
        ("no method", Tiny::awq().set("quant_method", json!(null)), &["quant_method", "is missing"]),
        (
            "bits",
            Tiny::gptq().set("bits", json!(8)),
            &["quantization_config.bits", "8 is not supported; 4 bits"],
        ),
        ("no bits", Tiny::gptq().set("bits", json!(null)), &["quantization_config.bits", "is missing"]),
        ("bits of text", Tiny::awq().set("bits", json!("4")), &["bits", "\"4\" is not supported"]),
        ("group", Tiny::gptq().set("group_size", json!(0)), &["group_size", "found 0"]),
        (
            "large group",
            Tiny::gptq().set("group_size", json!(1_u64 << 40)),
            &["group_size", "found 1099511627776"],
        ),
        ("no group", Tiny::awq().set("group_size", json!(null)), &["group_size", "is missing"]),
        (
            "version",
            Tiny::awq().set("version", json!("gemv")),
            &["version", "\"gemv\" is not supported", "gemm"],
        ),
        ("no zeros", Tiny::awq().set("zero_point", json!(false)), &["zero_point", "false is not supported"]),
        (
            "format",
            Tiny::gptq().set("checkpoint_format", json!("marlin")),
            &["checkpoint_format", "\"marlin\""],
        ),
        ("words", Tiny::gptq().set("pack_dtype", json!("int8")), &["pack_dtype", "\"int8\""]),
        (
            "rules",
            Tiny::gptq().set("dynamic", json!({"-:.*up.*": {}, ".*down.*": {"bits": 8}})),
            &["quantization_config.dynamic..*down.*", "one rule"],
        ),
        ("fmt", Tiny::fp8().set("fmt", json!("e5m2")), &["quantization_config.fmt", "\"e5m2\"", "e4m3"]),
        ("blocks", Tiny::fp8().set("weight_block_size", json!([128])), &["weight_block_size", "a list of 1"]),
        (
            "blocks of 0",
            Tiny::fp8().set("weight_block_size", json!([0, 128])),
            &["weight_block_size", "1 to"],
        ),
        (
            "packed 8 bits",
            Tiny::packed().set_weights("num_bits", json!(8)),
            &["quantization_config.config_groups.group_0.weights.num_bits", "8 is not supported; 4 bits"],
        ),
        (
            "strategy",
            Tiny::packed().set_weights("strategy", json!("token")),
            &["weights.strategy", "\"token\""],
        ),
        ("order", Tiny::packed().set_weights("actorder", json!("x")), &["weights.actorder", "\"x\""]),
        ("no groups", group(json!(null)), &["config_groups", "is missing"]),
        ("groups", group(json!([1])), &["config_groups", "a list of 1"]),
        ("a preset", group(json!({"W4A16": ["Linear"]})), &["config_groups.W4A16", "a list of 1"]),
        (
            "another format",
            Tiny::packed().set("format", json!("nvfp4-pack-quantized")),
            &["group_0.format", "nvfp4-pack-quantized", "\"pack-quantized\" of 4 bits"],
        ),
        (
            "float format",
            Tiny::packed().set_weights("type", json!("float")),
            &["group_0.format", "pack-quantized, float", "are read"],
        ),
        (
            "sparse",
            Tiny::packed().set("sparsity_config", json!({"format": "sparse-24-bitmask"})),
            &["sparsity_config.format", "sparse-24-bitmask"],
        ),
        (
            "transforms",
            Tiny::packed().set("transform_config", json!({"config_groups": {"u": {"type": "hadamard"}}})),
            &["transform_config", "without transforms"],
        ),
        ("rude", Tiny::awq().set("quant_method", json!("a\u{1b}[2J")), &["a\\u{1b}[2J"]),
    ]);
}

#[test]
fn tensors_that_do_not_fit_each_other_are_refused_by_name() {
    let words = |count: usize| codes(count);
    let nan = |bytes: &[u8], count: usize| {
        [halves(if bytes.len() == 4 { "F32" } else { "F16" }, count - 1), bytes.to_vec()].concat()
    };
    check_refused(vec![
        // FP8.
        (
            "scales missing",
            Tiny::fp8().without(&format!("{UP}.weight_scale_inv")),
            &["up_proj.weight_scale_inv", "is missing"],
        ),
        (
            "both scales",
            Tiny::fp8().up("weight_scale", "F32", &[1], halves("F32", 1)),
            &["up_proj.weight_scale_inv", "one of them"],
        ),
        (
            "too few scales",
            Tiny::fp8().up("weight_scale_inv", "F32", &[1, 2], halves("F32", 2)),
            &[
                "up_proj.weight_scale_inv",
                "shape is [1, 2]",
                "[2, 2] for tiles of 16 × 20",
                "[32, 1] for its rows",
            ],
        ),
        (
            "scales of integers",
            Tiny::fp8().up("weight_scale_inv", "I32", &[2, 2], vec![0; 16]),
            &["up_proj.weight_scale_inv", "dtype I32"],
        ),
        (
            "another float",
            Tiny::fp8().up("weight", "F8_E5M2", &[32, 32], vec![0; 1024]),
            &["dtype F8_E5M2", "F8_E4M3"],
        ),
        (
            "shape",
            Tiny::fp8().up("weight", "F8_E4M3", &[32, 40], vec![0; 1280]),
            &["[32, 40]", "config.json says [32, 32]"],
        ),
        (
            "no rows",
            Tiny::fp8().up("weight", "F8_E4M3", &[0, 32], vec![]),
            &["up_proj.weight", "shape is [0, 32]"],
        ),
        (
            "three dimensions",
            Tiny::fp8().up("weight", "F8_E4M3", &[1, 32, 32], vec![0; 1024]),
            &["is no matrix"],
        ),
        (
            "scale NaN",
            Tiny::fp8().up("weight_scale_inv", "F32", &[2, 2], nan(&f32::NAN.to_le_bytes(), 4)),
            &["model.safetensors", "up_proj.weight_scale_inv", "scale 3 is NaN"],
        ),
        (
            "weight NaN",
            Tiny::fp8().up("weight", "F8_E4M3", &[32, 32], [vec![0; 1023], vec![0x7F]].concat()),
            &["up_proj.weight\"", "row 31, column 31 is NaN"],
        ),
        // AWQ and GPTQ.
        (
            "no zeros",
            Tiny::awq().without(&format!("{UP}.qzeros")),
            &["up_proj.qzeros", "is missing", "up_proj.qweight"],
        ),
        ("no scales", Tiny::gptq().without(&format!("{UP}.scales")), &["up_proj.scales", "is missing"]),
        (
            "no matrix",
            Tiny::gptq().without(&format!("{UP}.qweight")),
            &["up_proj.weight", "is missing", "no quantized matrix"],
        ),
        (
            "a plain matrix beside",
            Tiny::awq().up("weight", "BF16", &[32, 32], halves("BF16", 1024)),
            &["up_proj.weight", "up_proj.qweight", "one of them"],
        ),
        (
            "codes of bytes",
            Tiny::awq().up("qweight", "U8", &[32, 16], vec![0; 512]),
            &["up_proj.qweight", "dtype U8"],
        ),
        (
            "codes of floats",
            Tiny::gptq().up("qweight", "F32", &[4, 32], vec![0; 512]),
            &["dtype F32", "in an I32"],
        ),
        (
            "zeros of floats",
            Tiny::gptq().up("qzeros", "F16", &[2, 4], vec![0; 16]),
            &["up_proj.qzeros", "dtype F16"],
        ),
        (
            "the other method's shape",
            Tiny::gptq().up("qweight", "I32", &[32, 4], words(128)),
            &["up_proj.qweight", "4 rows are not a multiple of 8"],
        ),
        (
            "wider",
            Tiny::awq().up("qweight", "I32", &[32, 8], words(256)),
            &["up_proj.scales", "calls for [1, 64]"],
        ),
        (
            "longer",
            Tiny::awq().up("qweight", "I32", &[64, 4], words(256)),
            &["up_proj.scales", "calls for [2, 32]"],
        ),
        (
            "no columns",
            Tiny::awq().up("qweight", "I32", &[0, 4], vec![]),
            &["up_proj.qweight", "holds no weights"],
        ),
        ("flat", Tiny::awq().up("qweight", "I32", &[128], words(128)), &["up_proj.qweight", "is no matrix"]),
        ("groups", Tiny::awq().set("group_size", json!(24)), &["32 columns, which groups of 24"]),
        ("larger groups", Tiny::gptq().set("group_size", json!(128)), &["32 columns, which groups of 128"]),
        (
            "fewer groups",
            Tiny::gptq().set("group_size", json!(-1)),
            &["scales", "is [2, 32]", "calls for [1, 32]"],
        ),
        (
            "zeros' shape",
            Tiny::gptq().up("qzeros", "I32", &[1, 8], words(8)),
            &["qzeros", "calls for [2, 4]"],
        ),
        (
            "scales' type",
            Tiny::gptq().up("scales", "I8", &[2, 32], vec![1; 64]),
            &["up_proj.scales", "dtype I8"],
        ),
        (
            "index' shape",
            Tiny::gptq().up("g_idx", "I32", &[31], vec![0; 124]),
            &["up_proj.g_idx", "expected [32] of I32"],
        ),
        (
            "an index too high",
            Tiny::gptq().up("g_idx", "I32", &[32], [vec![0; 124], vec![2, 0, 0, 0]].concat()),
            &["up_proj.g_idx", "[31] is 2, but there are 2 groups"],
        ),
        (
            "an index below zero",
            Tiny::gptq().up("g_idx", "I32", &[32], vec![0xFF; 128]),
            &["up_proj.g_idx", "[0] is -1"],
        ),
        (
            "uneven groups",
            Tiny::gptq().up("g_idx", "I32", &[32], vec![0; 128]),
            &["group 0 32 columns, not 16"],
        ),
        (
            "scale NaN of AWQ",
            Tiny::awq().up("scales", "F16", &[1, 32], nan(&[0, 0x7E], 32)),
            &["up_proj.scales", "scale 31 is NaN"],
        ),
        (
            "scale infinite of GPTQ",
            Tiny::gptq().up("scales", "F16", &[2, 32], nan(&[0, 0x7C], 64)),
            &["up_proj.scales", "scale 63 is inf"],
        ),
        // compressed-tensors.
        (
            "no shape",
            Tiny::packed().without(&format!("{UP}.weight_shape")),
            &["up_proj.weight_shape", "is missing"],
        ),
        (
            "shape of text",
            Tiny::packed().up("weight_shape", "U8", &[2], vec![32, 32]),
            &["up_proj.weight_shape", "dtype U8"],
        ),
        (
            "shape below zero",
            Tiny::packed().up("weight_shape", "I64", &[2], vec![0xFF; 16]),
            &["up_proj.weight_shape", "not the rows and columns"],
        ),
        (
            "shape of zeros",
            Tiny::packed().up("weight_shape", "I64", &[2], vec![0; 16]),
            &["holds no weights"],
        ),
        (
            "huge shape",
            Tiny::packed().up(
                "weight_shape",
                "I64",
                &[2],
                [1_u64 << 40, 1 << 40].iter().flat_map(|n| n.to_le_bytes()).collect(),
            ),
            &["up_proj.weight_packed", "is [32, 4]", "[1099511627776, 137438953472]"],
        ),
        (
            "groups that config.json does not know",
            Tiny::packed().set_weights("group_size", json!(16)),
            &["weight_scale", "groups of 32 with zeros"],
        ),
        (
            "zeros that config.json does not know",
            Tiny::packed().set_weights("symmetric", json!(true)),
            &["weight_scale", "groups of 32 with zeros"],
        ),
        (
            "scales that divide nothing",
            Tiny::packed().up("weight_scale", "BF16", &[32, 3], halves("BF16", 96)),
            &["up_proj.weight_scale", "is [32, 3]"],
        ),
        (
            "zeros' shape of compressed-tensors",
            Tiny::packed().up("weight_zero_point", "I32", &[1, 4], words(4)),
            &["weight_zero_point", "calls for [4, 1]"],
        ),
        (
            "the order is missing",
            Tiny::packed().set_weights("actorder", json!("group")),
            &["weight_g_idx", "is missing", "actorder"],
        ),
    ]);
}

#[test]
fn a_stack_that_does_not_fit_is_refused_when_it_is_asked_for() {
    for (name, dtype, shape, count, piece) in [
        ("experts.up_scales", "U8", &[2, 3, 3][..], 18, "[2, 3, 3]"),
        ("experts.up_scales", "I8", &[2, 3, 2], 12, "dtype I8"),
        ("experts.up_blocks", "U8", &[2, 3, 4, 8], 192, "expected"),
        ("experts.up_blocks", "U8", &[2, 0, 2, 16], 0, "expected"),
    ] {
        let mut tiny = Tiny::mxfp4();
        put(&mut tiny.tensors, name.to_owned(), dtype, shape, vec![1; count]);
        let checkpoint = tiny.open().unwrap();
        let error = checkpoint.tensor("experts.up").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(piece) && error.contains("experts.up_"), "{error}");
    }
    let mut tiny = Tiny::mxfp4();
    put(&mut tiny.tensors, "experts.up_scales".to_owned(), "U8", &[2, 3, 2], vec![255; 12]);
    let error = tiny.open().unwrap().tensor("experts.up").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("up_scales") && error.contains("scale 0 is NaN"), "{error}");
}

#[test]
fn encoders_of_quantized_weights_are_refused_by_the_method() {
    let config =
        json!({"architectures": ["BertModel"], "quantization_config": {"quant_method": "gptq", "bits": 4}});
    let file = |name: &str, bytes: Vec<u8>| (name.to_owned(), bytes.into());
    let files = vec![file("config.json", config.to_string().into_bytes())];
    let error = headrace_checkpoint::EncoderCheckpoint::from_files(files).unwrap_err().to_string();
    assert!(error.contains("quant_method") && error.contains("\"gptq\"") && error.contains("F16"), "{error}");
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

/// What a case changes in a small model.
#[derive(Debug, Clone)]
enum Damage {
    /// Another type and shape, with as many bytes as they call for, all with this value.
    Tensor(prop::sample::Index, &'static str, Vec<usize>, u8),
    Remove(prop::sample::Index),
    Rename(prop::sample::Index, prop::sample::Index),
    Byte(prop::sample::Index, prop::sample::Index, u8),
    Config(&'static str, usize),
}

const FIELDS: [&str; 8] = [
    "quant_method",
    "bits",
    "group_size",
    "weight_block_size",
    "version",
    "config_groups",
    "format",
    "dynamic",
];

fn value(index: usize) -> Value {
    let values = [
        json!(null),
        json!(0),
        json!(-1),
        json!(4),
        json!(16),
        json!(1_u64 << 63),
        json!(1.5),
        json!("gemm"),
        json!("fp8"),
        json!([]),
        json!([1, 1]),
        json!([1 << 20, 1]),
        json!({}),
        json!(true),
        json!("mxfp4"),
        json!({"a": {"weights": {}}}),
    ];
    values[index % values.len()].clone()
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let dtype = prop::sample::select(vec!["I32", "F16", "BF16", "F32", "U8", "F8_E4M3", "I64", "F8_E5M2"]);
    let shape = prop::collection::vec(prop::sample::select(vec![0_usize, 1, 2, 3, 4, 16, 31, 32, 64]), 0..4);
    prop_oneof![
        4 => (index(), dtype, shape, any::<u8>()).prop_map(|(at, dtype, shape, byte)| Damage::Tensor(at, dtype, shape, byte)),
        1 => index().prop_map(Damage::Remove),
        1 => (index(), index()).prop_map(|(from, to)| Damage::Rename(from, to)),
        2 => (index(), index(), any::<u8>()).prop_map(|(at, byte, value)| Damage::Byte(at, byte, value)),
        2 => (prop::sample::select(FIELDS.to_vec()), 0..16_usize).prop_map(|(field, value)| Damage::Config(field, value)),
    ]
}

fn apply(tiny: &mut Tiny, damage: &Damage) {
    let names: Vec<String> = tiny.tensors.keys().cloned().collect();
    if names.is_empty() {
        return;
    }
    match damage {
        Damage::Tensor(at, dtype, shape, byte) => {
            let bits = match *dtype {
                "U8" | "F8_E4M3" | "F8_E5M2" => 1,
                "F16" | "BF16" => 2,
                "I64" => 8,
                _ => 4,
            };
            let bytes = vec![*byte; shape.iter().product::<usize>() * bits];
            put(&mut tiny.tensors, at.get(&names).clone(), dtype, shape, bytes);
        }
        Damage::Remove(at) => drop(tiny.tensors.remove(at.get(&names))),
        Damage::Rename(from, to) => {
            if let Some(tensor) = tiny.tensors.remove(from.get(&names)) {
                tiny.tensors.insert(to.get(&names).clone(), tensor);
            }
        }
        Damage::Byte(at, byte, new) => {
            if let Some((.., bytes)) = tiny.tensors.get_mut(at.get(&names))
                && !bytes.is_empty()
            {
                let at = byte.index(bytes.len());
                bytes[at] = *new;
            }
        }
        Damage::Config(field, index) => tiny.quantization[*field] = value(*index),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_models_never_panic_or_claim_memory(
        method in 0..5_usize,
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let mut tiny = Tiny::all()[method].clone();
        damages.iter().for_each(|damage| apply(&mut tiny, damage));
        let size = tiny.weights().len();
        let Ok(checkpoint) = tiny.open() else { return Ok(()) };
        let names: Vec<String> = checkpoint.config().tensors().into_iter().map(|(name, _)| name).collect();
        for name in names.iter().map(String::as_str).chain(["experts.up"]) {
            let Ok(tensor) = checkpoint.tensor(name) else { continue };
            let (inner, outer) = tensor.shape.split_last().unwrap();
            let rows: usize = outer.iter().product();
            prop_assert_eq!(Some(tensor.bytes.len()), tensor.dtype.row_bytes(*inner).map(|row| row * rows));
            prop_assert!(tensor.bytes.len() <= 8 * size, "{} bytes from a file of {}", tensor.bytes.len(), size);
            prop_assert_eq!(checkpoint.dtype(name), Some(tensor.dtype));
        }
        prop_assert!(checkpoint.stored_tensors().count() > 0 && checkpoint.tensor_bytes() > 0);
    }
}
