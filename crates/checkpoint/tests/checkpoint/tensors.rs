//! Weight files. Each row of a table of damages must be refused with file, tensor and field. The format's own library
//! gives a second opinion on accepted files.

use headrace_checkpoint::safetensors::Header;
use headrace_checkpoint::{CheckpointError, DType};
use serde_json::{Map, Value, json};

use crate::support::{Files, WEIGHTS, check_refused, safetensors_file, split};

const UP: &str = "model.layers.0.mlp.up_proj.weight";

fn weights(bytes: impl Into<Vec<u8>>) -> Files {
    Files::good().with("model.safetensors", bytes)
}

/// A file with the given header over `data` zero bytes.
fn headed(header: &str, data: usize) -> Files {
    weights(safetensors_file(header.as_bytes(), &vec![0; data]))
}

/// The real header with one field of one tensor set.
fn lying(tensor: &'static str, field: &'static str, value: Value) -> Files {
    Files::good().header(|header| header[tensor][field] = value)
}

#[test]
fn corrupt_containers_are_refused() {
    let with_length = |length: u64| {
        let mut bytes = WEIGHTS.to_vec();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        weights(bytes)
    };
    let (header, data) = split(WEIGHTS);
    let mut not_utf8 = header.to_vec();
    not_utf8[20] = 0xff;
    let nested = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let nested_field = format!(
        "{{\"a\":{{\"dtype\":\"F32\",\"shape\":{}{},\"data_offsets\":[0,4]}}}}",
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    let trailing = [WEIGHTS, &[0; 3]].concat();
    check_refused(vec![
        ("empty file", weights([]), &["model.safetensors: is empty", "download"]),
        ("seven bytes", weights([0; 7]), &["model.safetensors: is 7 bytes long"]),
        ("header length 0", with_length(0), &["model.safetensors", "does not start with"]),
        (
            "header length 2^64-1",
            with_length(u64::MAX),
            &["18446744073709551615", "above the cap of 100000000"],
        ),
        ("header length 2^63", with_length(1 << 63), &["9223372036854775808", "above the cap"]),
        ("header above the cap", with_length(100_000_001), &["100000001", "above the cap"]),
        ("header past the file", with_length(300_000), &["header length 300000", "past the file's end"]),
        (
            "header one too long",
            with_length(header.len() as u64 + 1),
            &["header is not UTF-8 after 2488 bytes"],
        ),
        (
            "header one too short",
            with_length(header.len() as u64 - 70),
            &["header is not as it should be", "EOF"],
        ),
        ("not JSON", headed("{hello}", 0), &["header is not as it should be", "line 1"]),
        ("not an object", headed("[1, 2]", 0), &["does not start with"]),
        ("not UTF-8", weights(safetensors_file(&not_utf8, data)), &["not UTF-8 after 20 bytes"]),
        ("deeply nested", headed(&nested, 0), &["tensor \"a\"", "entry"]),
        ("deeply nested shape", headed(&nested_field, 4), &["tensor \"a\"", "shape"]),
        (
            "cut inside the data",
            weights(&WEIGHTS[..WEIGHTS.len() - 1]),
            &["past the file's 267007 data bytes"],
        ),
        ("cut inside the header", weights(&WEIGHTS[..1000]), &["past the file's end", "992 bytes further"]),
        ("bytes after the data", weights(trailing), &["267011 data bytes", "describe 267008"]),
        ("no tensors", headed("{}", 0), &["tensor \"model.embed_tokens.weight\"", "is missing"]),
        ("metadata not strings", headed("{\"__metadata__\":{\"a\":1}}", 0), &["__metadata__", "strings"]),
        (
            "metadata twice",
            headed("{\"__metadata__\":{},\"__metadata__\":{}}", 0),
            &["__metadata__ is given twice"],
        ),
    ]);
}

#[test]
fn lying_tensor_headers_are_refused() {
    let one = |dtype: &str, shape: &str, offsets: &str, data: usize| {
        headed(&format!(r#"{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}"#), data)
    };
    let two = |first: &str, second: &str| {
        let entry = |offsets: &str| format!(r#"{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}"#);
        headed(&format!(r#"{{"a":{},"b":{}}}"#, entry(first), entry(second)), 16)
    };
    let long_name =
        format!(r#"{{"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#, "n".repeat(5_000_000));
    let long_dtype = format!("\"{}\"", "\u{1b}x".repeat(50_000).replace('\u{1b}', "\\u001b"));
    check_refused(vec![
        (
            "past the file",
            one("\"F32\"", "[1]", "[0,99]", 4),
            &["\"a\": data_offsets [0, 99] end past", "4 data bytes"],
        ),
        ("begin after end", one("\"F32\"", "[1]", "[4,0]", 4), &["data_offsets [4, 0] begin after they end"]),
        ("offset 2^64-1", one("\"F32\"", "[1]", "[0,18446744073709551615]", 4), &["end past"]),
        (
            "offset 2^64",
            one("\"F32\"", "[1]", "[0,18446744073709551616]", 4),
            &["data_offsets", "18446744073709551616"],
        ),
        ("offset negative", one("\"F32\"", "[1]", "[-1,4]", 4), &["data_offsets [-1,4]"]),
        ("offset fraction", one("\"F32\"", "[1]", "[0,4.0]", 4), &["data_offsets [0,4.0]"]),
        ("one offset", one("\"F32\"", "[1]", "[4]", 4), &["data_offsets [4] must be two"]),
        ("three offsets", one("\"F32\"", "[1]", "[0,4,4]", 4), &["data_offsets [0, 4, 4] must be two"]),
        (
            "wrong size",
            one("\"F32\"", "[2]", "[0,4]", 4),
            &["hold 4 bytes", "dtype F32 and shape [2] need 8"],
        ),
        ("shape overflow", one("\"F32\"", "[4294967296,4294967296]", "[0,4]", 4), &["shape", "overflows"]),
        (
            "shape × size overflow",
            one("\"F32\"", "[4611686018427387904]", "[0,4]", 4),
            &["shape", "overflows"],
        ),
        ("shape negative", one("\"F32\"", "[-1]", "[0,4]", 4), &["tensor \"a\": shape [-1]"]),
        ("shape of rank 9", one("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4), &["shape", "at most 8"]),
        ("shape text", one("\"F32\"", "\"big\"", "[0,4]", 4), &["shape", "at most 8 whole numbers"]),
        ("half a byte", one("\"F4\"", "[1]", "[0,1]", 1), &["shape", "does not end at a whole byte"]),
        (
            "dtype unknown",
            one("\"F128\"", "[1]", "[0,4]", 4),
            &["dtype \"F128\" is not one that safetensors knows"],
        ),
        ("dtype number", one("32", "[1]", "[0,4]", 4), &["dtype 32"]),
        ("dtype long and rude", one(&long_dtype, "[1]", "[0,4]", 4), &["dtype", "…"]),
        ("overlap", two("[0,8]", "[4,12]"), &["tensor \"b\": data_offsets [4, 12] overlap", "tensor \"a\""]),
        ("the same bytes", two("[0,8]", "[0,8]"), &["tensor \"b\": data_offsets [0, 8] overlap"]),
        ("hole before", two("[4,12]", "[12,20]"), &["data_offsets [12, 20] end past"]),
        ("hole at the start", two("[8,16]", "[8,16]"), &["data_offsets [8, 16] leave a hole of 8 bytes"]),
        (
            "field missing",
            headed(r#"{"a":{"dtype":"F32","shape":[1]}}"#, 4),
            &["tensor \"a\"", "`data_offsets`"],
        ),
        (
            "field twice",
            headed(r#"{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}"#, 4),
            &["tensor \"a\"", "duplicate field `shape`"],
        ),
        (
            "name twice",
            Files::good().header_text("model.layers.0.mlp.gate_proj.weight", UP),
            &["model.safetensors", UP, "is given twice"],
        ),
        ("name long", headed(&long_name, 0), &["name is 5000000 bytes long", "1 to 512"]),
        ("not an entry", headed(r#"{"a":null}"#, 0), &["tensor \"a\"", "entry"]),
    ]);
    let error = lying(UP, "data_offsets", json!([0, 99_999_999])).open().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "model.safetensors: tensor \"{UP}\": data_offsets [0, 99999999] end past the file's 267008 data bytes"
        )
    );
}

/// The real header with a tensor's entry under another name.
fn renamed(from: &'static str, to: &'static str) -> Files {
    Files::good().header(|header| {
        let entry = header.remove(from).unwrap();
        header.insert(to.to_owned(), entry);
    })
}

#[test]
fn tensors_that_contradict_the_configuration_are_refused() {
    const LAST: &str = "model.layers.1.self_attn.v_proj.weight";
    check_refused(vec![
        (
            "shape turned round",
            lying(UP, "shape", json!([64, 112])),
            &[
                "model.safetensors",
                UP,
                "shape is [64, 112]",
                "config.json says [112, 64]",
                "intermediate_size",
            ],
        ),
        ("shape of another rank", lying(UP, "shape", json!([7168])), &[UP, "shape is [7168]", "[112, 64]"]),
        ("dtype of integers", lying(UP, "dtype", json!("I16")), &[UP, "dtype I16 is not supported", "BF16"]),
        (
            "missing in the last layer",
            renamed(LAST, "other"),
            &["model.safetensors", LAST, "is missing", "[32, 64]"],
        ),
        (
            "norm missing",
            renamed("model.norm.weight", "norm.weight"),
            &["model.norm.weight", "[hidden_size]"],
        ),
        (
            "untied without a head",
            Files::good().config("tie_word_embeddings", json!(false)),
            &["lm_head.weight", "is missing", "tie_word_embeddings must be true"],
        ),
        (
            "a layer too many claimed",
            Files::good().edit("config.json", |config| {
                config.insert("num_hidden_layers".into(), json!(3));
                config.remove("layer_types");
            }),
            &["model.layers.2.input_layernorm.weight", "is missing"],
        ),
        (
            "vocabulary claimed",
            Files::good().config("vocab_size", json!(1 << 22)),
            &["embed_tokens", "[1024, 64]", "[4194304, 64]"],
        ),
        ("hidden claimed", Files::good().config("hidden_size", json!(128)), &["embed_tokens", "[1024, 128]"]),
        (
            "heads claimed",
            Files::good().config("num_attention_heads", json!(8)),
            &["q_proj.weight", "[128, 64]"],
        ),
        (
            "a bias that the configuration denies",
            renamed("model.layers.1.post_attention_layernorm.weight", "model.layers.0.self_attn.q_proj.bias"),
            &["model.layers.0.self_attn.q_proj.bias", "contradicts", "attention_bias"],
        ),
        (
            "a norm that the architecture lacks",
            Files::good()
                .config("architectures", json!(["LlamaForCausalLM"]))
                .config("model_type", json!("llama")),
            &["self_attn.k_norm.weight", "contradicts", "no norm over query and key heads"],
        ),
        (
            "a bias that is not there",
            Files::good().config("attention_bias", json!(true)),
            &["self_attn.q_proj.bias", "is missing", "[64]"],
        ),
    ]);
}

#[test]
fn every_tensor_agrees_with_the_safetensors_library() {
    let checkpoint = Files::good().open().unwrap();
    let oracle = safetensors::SafeTensors::deserialize(WEIGHTS).unwrap();
    let mut names = oracle.names();
    names.sort_unstable();
    assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), names);
    for name in names {
        let (ours, theirs) = (checkpoint.tensor(name).unwrap(), oracle.tensor(name).unwrap());
        assert_eq!((ours.name, ours.dtype, ours.shape), (name, DType::BF16, theirs.shape()));
        assert_eq!(ours.bytes, theirs.data());
        assert_eq!(ours.bytes.len(), ours.dtype.row_bytes(ours.shape.iter().product()).unwrap());
    }
    assert_eq!(checkpoint.weight_bytes(), 267_008);
}

#[test]
fn an_absent_tensor_is_refused_by_name() {
    let checkpoint = Files::good().open().unwrap();
    assert!(checkpoint.has_tensor(UP) && !checkpoint.has_tensor("lm_head.weight"));
    let error = checkpoint.tensor("lm_head.weight").unwrap_err();
    assert_eq!(error.to_string(), "model.safetensors: tensor \"lm_head.weight\": there is no such tensor");
}

#[test]
fn tensors_that_nobody_needs_may_have_any_type_and_any_place() {
    // One byte in front puts every other tensor at an odd offset. The checkpoint must still load.
    let (header, data) = split(WEIGHTS);
    let mut members: Map<String, Value> = serde_json::from_slice(header).unwrap();
    for (name, entry) in &mut members {
        if name != "__metadata__" {
            let offsets =
                entry["data_offsets"].as_array().unwrap().iter().map(|n| json!(n.as_u64().unwrap() + 1));
            entry["data_offsets"] = Value::Array(offsets.collect());
        }
    }
    members.insert("mask".into(), json!({"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}));
    members.insert("nothing".into(), json!({"dtype": "F64", "shape": [3, 0], "data_offsets": [1, 1]}));
    let file = safetensors_file(&serde_json::to_vec(&members).unwrap(), &[&[7], data].concat());
    let odd = weights(file).open().unwrap();
    let even = Files::good().open().unwrap();
    assert_eq!(odd.tensor(UP).unwrap().bytes, even.tensor(UP).unwrap().bytes);
    let error = odd.tensor("mask").unwrap_err();
    assert_eq!(
        error.to_string(),
        "model.safetensors: tensor \"mask\": dtype BOOL is not supported; supported are F32, F16 and BF16"
    );
    assert!(matches!(error, CheckpointError::Tensor { field: "dtype", .. }));
}

#[test]
fn every_element_type_of_the_safetensors_library_is_known() {
    use safetensors::Dtype::*;
    let all = [
        BOOL,
        F4,
        F6_E2M3,
        F6_E3M2,
        U8,
        I8,
        F8_E5M2,
        F8_E4M3,
        F8_E8M0,
        F8_E4M3FNUZ,
        F8_E5M2FNUZ,
        I16,
        U16,
        F16,
        BF16,
        I32,
        U32,
        F32,
        C64,
        F64,
        I64,
        U64,
    ];
    for dtype in all {
        let name = format!("{dtype:?}");
        let header = json!({"a": {"dtype": name, "shape": [8], "data_offsets": [0, dtype.bitsize()]}});
        let file = safetensors_file(header.to_string().as_bytes(), &vec![0; dtype.bitsize()]);
        let entry = Header::parse("x", &file).unwrap().tensors.remove("a").unwrap();
        assert_eq!((entry.element.name, entry.element.bits), (name.as_str(), dtype.bitsize()));
    }
}

#[test]
fn the_fingerprint_is_of_what_was_loaded() {
    let print = |files: Files| files.open().unwrap().fingerprint().to_owned();
    let good = print(Files::good());
    assert_eq!(good.len(), 64);
    assert_eq!(print(Files::good()), good);
    let mut weights = WEIGHTS.to_vec();
    *weights.last_mut().unwrap() ^= 1;
    let others = [
        Files::good().with("model.safetensors", weights),
        Files::good().config("rms_norm_eps", json!(1e-5)),
        Files::good().replace("tokenizer.json", "{", "{ "),
        Files::good().with("chat_template.jinja", "hello"),
        Files::good().without("generation_config.json"),
    ];
    let mut prints: Vec<String> = others.into_iter().map(print).collect();
    prints.push(good);
    prints.sort();
    prints.dedup();
    assert_eq!(prints.len(), 6, "each change must give another fingerprint");
}
