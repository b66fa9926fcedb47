//! Methods that are not read, and tensors that do not fit each other: each is refused by name, with what is read.

use headrace_checkpoint::Checkpoint;
use serde_json::{Value, json};

use super::tiny::{Tensors, Tiny, UP, codes, halves, put};

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
        let error = checkpoint.tensor("experts.up_blocks").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(piece) && error.contains("experts.up_"), "{error}");
    }
    let mut tiny = Tiny::mxfp4();
    put(&mut tiny.tensors, "experts.up_scales".to_owned(), "U8", &[2, 3, 2], vec![255; 12]);
    let error = tiny.open().unwrap().tensor("experts.up_blocks").map(|_| ()).unwrap_err().to_string();
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
fn codes_without_their_method_are_refused_with_the_field_that_is_missing() {
    for (tiny, piece) in [(Tiny::fp8(), "dtype F8_E4M3"), (Tiny::mxfp4(), "dtype U8")] {
        let mut tiny = tiny;
        tiny.quantization = Value::Null;
        let message = match tiny.open() {
            Ok(checkpoint) => checkpoint.tensor("experts.up_blocks").map(|_| ()).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(
            message.contains(piece) && message.contains("if quantization_config in config.json"),
            "{message}"
        );
    }
}

#[test]
fn a_part_that_is_not_stacked_is_refused_by_name() {
    let stack = "experts.up_blocks";
    for (tiny, name, index, piece) in [
        (Tiny::mxfp4(), stack, 2, "has 2 matrices, and no 2"),
        (Tiny::mxfp4(), stack, usize::MAX, "has 2 matrices"),
        (Tiny::mxfp4(), "model.embed_tokens.weight", 4, "has no part 4"),
        (Tiny::mxfp4(), "model.embed_tokens.weight", usize::MAX, "has no part"),
        (Tiny::fp8(), "model.layers.0.mlp.up_proj.weight", 0, "no stack of matrices"),
        (Tiny::packed(), "model.layers.0.mlp.up_proj.weight", 0, "no stack of matrices"),
        (Tiny::packed(), "absent", 0, "there is no such tensor"),
    ] {
        let error = tiny.open().unwrap().stacked(name, index).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(piece), "{name}: {error}");
    }
    let mut tiny = Tiny::mxfp4();
    let scales = [vec![120; 6], vec![120, 255, 120, 120, 120, 120]].concat();
    put(&mut tiny.tensors, "experts.up_scales".to_owned(), "U8", &[2, 3, 2], scales);
    let checkpoint = tiny.open().unwrap();
    checkpoint.stacked(stack, 0).unwrap();
    let error = checkpoint.stacked(stack, 1).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("experts.up_scales")
            && error.contains("of matrix 1")
            && error.contains("scale 1 is NaN"),
        "{error}"
    );
}

/// GPT-2 stores its matrices as inputs × outputs. Blocks along the inputs cannot be taken out of that order.
#[test]
fn a_quantized_matrix_that_is_stored_transposed_is_refused_when_the_checkpoint_is_opened() {
    let mut tensors = Tensors::new();
    let mut plain = |name: &str, shape: &[usize]| {
        put(&mut tensors, name.to_owned(), "BF16", shape, halves("BF16", shape.iter().product()));
    };
    plain("wte.weight", &[4, 32]);
    plain("wpe.weight", &[8, 32]);
    for (name, inputs, outputs) in [("attn.c_attn", 32, 96), ("mlp.c_fc", 32, 128), ("mlp.c_proj", 128, 32)] {
        plain(&format!("h.0.{name}.weight"), &[inputs, outputs]);
        plain(&format!("h.0.{name}.bias"), &[outputs]);
    }
    plain("h.0.attn.c_proj.bias", &[32]);
    for norm in ["ln_f", "h.0.ln_1", "h.0.ln_2"] {
        plain(&format!("{norm}.weight"), &[32]);
        plain(&format!("{norm}.bias"), &[32]);
    }
    let open = |tensors: &Tensors| {
        let weights = Tiny { quantization: Value::Null, tensors: tensors.clone() }.weights();
        let config = json!({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 1,
            "n_positions": 8, "vocab_size": 4, "quantization_config": {"quant_method": "fp8"},
        });
        let file = |name: &str, bytes: Vec<u8>| (name.to_owned(), bytes.into());
        Checkpoint::from_files(vec![
            file("config.json", config.to_string().into_bytes()),
            file("tokenizer.json", b"{}".to_vec()),
            file("model.safetensors", weights),
        ])
    };
    let name = "h.0.attn.c_proj.weight".to_owned();
    put(&mut tensors, name.clone(), "BF16", &[32, 32], halves("BF16", 1024));
    open(&tensors).unwrap();
    put(&mut tensors, name, "F8_E4M3", &[32, 32], vec![0x38; 1024]);
    put(&mut tensors, "h.0.attn.c_proj.weight_scale".to_owned(), "F32", &[1], halves("F32", 1));
    let error = open(&tensors).map(|_| ()).unwrap_err().to_string();
    for piece in ["h.0.attn.c_proj.weight", "inputs × outputs", "F32, F16 and BF16", "not quantized"] {
        assert!(error.contains(piece), "{error}");
    }
}
