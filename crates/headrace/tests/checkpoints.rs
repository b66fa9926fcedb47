//! Tests of `headrace models`: random checkpoints are the same model in every format, and `inspect` describes them
//! correctly.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};

use headrace_checkpoint::{Checkpoint, DType, Format};
use serde_json::{Value, json};

fn headrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headrace")).args(args).output().unwrap()
}

fn make(args: &[&str], out: &Path) -> String {
    let run = headrace(&[&["models", "make"], args, &[out.to_str().unwrap()]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stderr).unwrap()
}

fn inspect(path: &Path) -> Value {
    let run = headrace(&["models", "inspect", "--json", path.to_str().unwrap()]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

#[test]
fn a_seed_makes_the_same_model_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let (file, again, folder, other) = (
        dir.path().join("a.gguf"),
        dir.path().join("b.gguf"),
        dir.path().join("c"),
        dir.path().join("d.gguf"),
    );
    make(&["--type", "f32", "--seed", "7"], &file);
    make(&["--type", "f32", "--seed", "7"], &again);
    make(&["--type", "f32", "--seed", "7", "--format", "safetensors"], &folder);
    make(&["--type", "f32", "--seed", "8"], &other);
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(&again).unwrap());
    let open = |path: &Path| Checkpoint::open(path).unwrap();
    let (file, folder, other) = (open(&file), open(&folder), open(&other));
    assert_eq!((file.format(), folder.format()), (Format::Gguf, Format::Safetensors));
    assert!(file.tensor_names().eq(folder.tensor_names()));
    for name in file.tensor_names() {
        let (ours, theirs) = (file.tensor(name).unwrap(), folder.tensor(name).unwrap());
        assert_eq!((ours.dtype, ours.shape), (theirs.dtype, theirs.shape), "{name}");
        assert!(ours.bytes == theirs.bytes, "{name}");
        assert!(ours.bytes != other.tensor(name).unwrap().bytes, "{name}");
    }
    let tokenizer = |checkpoint: &Checkpoint| {
        headrace_tokenizer::Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config())
            .unwrap()
    };
    let text = "<|im_start|>user\nThe people wanted 123 answers.<|im_end|>\n  fn main() {}";
    let ids = tokenizer(&file).encode(text, true).unwrap();
    assert_eq!(ids, tokenizer(&folder).encode(text, true).unwrap());
    assert_eq!(file.chat_template(), folder.chat_template());
    assert_eq!(file.config().eos[0], folder.config().eos[0]);
}

#[test]
fn every_type_is_made_and_found() {
    let dir = tempfile::tempdir().unwrap();
    for name in
        ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4"]
    {
        let path = dir.path().join(format!("{name}.gguf"));
        make(&["--type", name, "--embedding-type", "q8_0"], &path);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let dtype = |tensor: &str| checkpoint.tensor(tensor).unwrap().dtype;
        assert_eq!(dtype("model.layers.1.mlp.down_proj.weight"), DType::from_name(name).unwrap());
        assert_eq!(dtype("model.embed_tokens.weight").name(), "q8_0");
        assert_eq!(dtype("model.norm.weight"), DType::F32);
        let facts = inspect(&path);
        assert_eq!((&facts["format"], &facts["fits"]), (&Value::from("gguf"), &Value::from(true)));
        let total: u64 = facts["tensor_types"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["weights"].as_u64().unwrap())
            .sum();
        assert_eq!(facts["parameters"], total);
        assert_eq!(facts["kv"][0]["type"], "f32");
        assert_eq!(facts["kv"][0]["bytes_per_token"], 2 * 2 * 2 * 64 * 4);
        // The embedding is also the output projection, so that a token reads all matrices.
        assert_eq!(facts["active_weight_bytes"], facts["weight_bytes"]);
        assert_eq!(facts["kv"][0]["context_that_fits"], facts["context_length"]);
    }
}

#[test]
fn quantized_directories_are_inspected_with_the_memory_that_they_take() {
    let oracle = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name);
    for (name, kind, matrices) in [
        ("qwen2-awq", "AWQ", 14),
        ("qwen3-gptq", "GPTQ", 14),
        ("llama-ct-w4a16", "INT4", 14),
        ("qwen3-fp8", "F8_E4M3", 14),
        ("gpt-oss-mxfp4", "MXFP4", 8),
    ] {
        let facts = inspect(&oracle(name));
        let types = facts["tensor_types"].as_array().unwrap();
        let row = types.iter().find(|row| row["type"] == kind).unwrap();
        assert_eq!(row["tensors"], matrices, "{name}: {types:?}");
        let shapes = Checkpoint::open(&oracle(name)).unwrap().config().tensors();
        let weights: usize = shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(facts["parameters"], weights, "{name}");
        let (stored, held) =
            (facts["stored_bytes"].as_u64().unwrap(), facts["weight_bytes"].as_u64().unwrap());
        // Matrices keep their bits, and the rows of so small ones are padded.
        assert!(
            (stored * 9 / 10..stored * 3 / 2).contains(&held),
            "{name}: {stored} bytes, {held} in memory"
        );
    }
}

/// What no engine here computes is refused in the same words by every command that opens it.
#[test]
fn weights_that_are_not_computed_are_refused_alike_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/qwen2-awq");
    let copy = |name: &str| {
        let to = dir.path().join(name);
        std::fs::create_dir(&to).unwrap();
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        to
    };
    let described = |name: &str, field: &str, value: Value| {
        let to = copy(name);
        let config = std::fs::read(to.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        match field {
            "quantization_config" => config[field] = value,
            _ => config["quantization_config"][field] = value,
        }
        std::fs::write(to.join("config.json"), config.to_string()).unwrap();
        to
    };
    // NVFP4, number 40, takes as many bytes as Q4_0, number 2.
    let file = dir.path().join("nvfp4.gguf");
    make(&["--type", "q4_0", "--embedding-type", "f32"], &file);
    let name = b"blk.0.ffn_up.weight";
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len() + 4 + 16;
    assert_eq!(bytes[at..at + 4], 2_u32.to_le_bytes());
    bytes[at..at + 4].copy_from_slice(&40_u32.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    for (path, pieces) in [
        (
            described("method", "quant_method", Value::from("hqq")),
            &["quant_method", "\"hqq\" is not supported", "\"gptq\" (4 bits)", "GGUF file", "--upstream"][..],
        ),
        (
            described("bits", "bits", Value::from(8)),
            &["quantization_config.bits", "8 is not supported; 4 bits are read", "--upstream"],
        ),
        (
            described("none", "quantization_config", Value::Null),
            &["model.layers.0.self_attn.q_proj.weight", "is missing", "config.json calls for shape"],
        ),
        (
            file,
            &[
                "blk.0.ffn_up.weight",
                "NVFP4 is not supported",
                "take a copy of the model in MXFP4",
                "--upstream",
            ],
        ),
    ] {
        let path = path.to_str().unwrap();
        let data = dir.path().join("data");
        let up = ["up", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap(), "--model", path];
        let json = headrace(&["models", "inspect", "--json", path]);
        let facts: Value = serde_json::from_slice(&json.stdout).unwrap();
        let doctor: Value = serde_json::from_slice(&headrace(&["doctor", "--json", path]).stdout).unwrap();
        let findings = doctor["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["code"] == "not_computed_here").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        for (command, said) in [
            ("inspect", text(headrace(&["models", "inspect", path]).stderr)),
            (
                "inspect --json",
                ["message", "way_out"].map(|part| facts["refused"][part].as_str().unwrap()).join("; "),
            ),
            (
                "doctor",
                format!("{}; {}", found["evidence"].as_str().unwrap(), found["way_out"].as_str().unwrap()),
            ),
            ("up", text(headrace(&up).stderr)),
        ] {
            for piece in pieces {
                assert!(said.contains(piece), "{command} {path}: {said}");
            }
        }
        assert_eq!(json.status.code(), Some(1), "{path}");
        assert_eq!(headrace(&up).status.code(), Some(2), "{path}");
    }
}

#[test]
fn shapes_come_from_configurations_too_and_rows_that_are_no_blocks_fall_back() {
    let dir = tempfile::tempdir().unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/qwen3/config.json");
    let (file, folder) = (dir.path().join("a.gguf"), dir.path().join("b"));
    let said = make(&["--config", config.to_str().unwrap(), "--type", "q4_k"], &file);
    assert!(said.contains("rows of 64 are no whole q4_k blocks: q5_0 instead"), "{said}");
    assert!(said.contains("rows of 112 are no whole q4_k blocks: f16 instead"), "{said}");
    make(&["--config", config.to_str().unwrap(), "--format", "safetensors"], &folder);
    for path in [&file, &folder] {
        let facts = inspect(path);
        assert_eq!(facts["architecture"], "Qwen3ForCausalLM");
        assert_eq!((&facts["head_dim"], &facts["tokenizer"]["tokens"]), (&32.into(), &1024.into()));
    }
}

#[test]
fn what_cannot_be_made_or_read_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let path = path.to_str().unwrap();
    std::fs::write(dir.path().join("there.gguf"), "GGUF").unwrap();
    let there = dir.path().join("there.gguf");
    for (args, pieces) in [
        (&["make", "--shape", "2b", path][..], &["`2b` is not a shape", "0.39b"][..]),
        (&["make", "--type", "q3_k", path], &["`q3_k` is not a type", "mxfp4"]),
        (&["make", "--format", "safetensors", "--type", "q8_0", path], &["--format gguf"]),
        (&["make", "--config", "absent.json", path], &["absent.json"]),
        (&["make", there.to_str().unwrap()], &["is there already"]),
        (
            &["inspect", there.to_str().unwrap()],
            &["there.gguf", "ends inside the version", "download it again"],
        ),
        (&["inspect", dir.path().to_str().unwrap(), "--quantize", "q9"], &["`--quantize`", "q8_0"]),
        (&["inspect", path], &["x.gguf"]),
    ] {
        let run = headrace(&[&["models"], args].concat());
        let message = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{args:?}: {message}");
        for piece in pieces {
            assert!(message.contains(piece), "{args:?}: {message}");
        }
    }
    assert!(!Path::new(path).exists() && !Path::new(&format!("{path}.part")).exists());
}

/// Copies the demo model's files and changes its `config.json`. Leaves out the file `without`.
fn demo_with(dir: &Path, without: &str, change: impl Fn(&mut Value)) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        if name != without {
            std::fs::copy(demo.join(name), dir.join(name)).unwrap();
        }
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// A change of `config.json`, a missing file, and the code, the feature and the nearest of the refusal.
type Refused = (fn(&mut Value), &'static str, &'static str, &'static str, Option<&'static str>);

const REFUSED: &[Refused] = &[
    (
        |config| {
            config["architectures"] = json!(["Llama9ForCausalLM"]);
            config["model_type"] = json!("llama9");
        },
        "",
        "architecture_unsupported",
        "config.json: architectures",
        Some("LlamaForCausalLM"),
    ),
    (
        |config| config["hidden_act"] = json!("gelu"),
        "",
        "feature_unsupported",
        "config.json: hidden_act",
        Some("silu"),
    ),
    (|config| config["num_experts"] = json!(8), "", "feature_unsupported", "config.json: num_experts", None),
    (|_| (), "model.safetensors", "file_missing", "model.safetensors", None),
];

#[test]
fn a_refusal_is_the_same_wherever_it_is_shown() {
    for (change, without, code, feature, nearest) in REFUSED {
        let dir = tempfile::tempdir().unwrap();
        let (path, data) = (dir.path().join("model"), dir.path().join("data"));
        std::fs::create_dir(&path).unwrap();
        demo_with(&path, without, change);
        let path = path.to_str().unwrap();
        let run = headrace(&["models", "inspect", "--json", path]);
        assert_eq!((run.status.code(), run.stderr.is_empty()), (Some(1), true), "{code}");
        let shown: Value = serde_json::from_slice(&run.stdout).unwrap();
        let refused = &shown["refused"];
        assert_eq!(
            (&refused["code"], &refused["feature"], &refused["nearest"]),
            (&json!(code), &json!(feature), &json!(nearest)),
            "{shown:#}"
        );
        let text = |name: &str| refused[name].as_str().unwrap();
        let (message, way_out) = (text("message"), text("way_out"));
        assert!(message.starts_with(path) && !way_out.is_empty(), "{shown:#}");
        let run = headrace(&["models", "inspect", path]);
        assert_eq!(run.status.code(), Some(1));
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(said.contains(message) && said.contains(&format!("\n  try: {way_out}")), "{said}");
        let run = headrace(&["doctor", "--json", path]);
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["code"] == "not_computed_here").unwrap();
        assert!(message.ends_with(finding["evidence"].as_str().unwrap()), "{finding:#}");
        assert_eq!(finding["way_out"], way_out);
        let run = headrace(&[
            "up",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            data.to_str().unwrap(),
            "--model",
            path,
        ]);
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(message) && said.contains(&format!("\n    try: {way_out}")), "{said}");
        assert!(said.contains("headrace doctor PATH") && !said.contains("config check"), "{said}");
    }
}

#[test]
fn an_encoder_that_is_served_is_not_refused_by_the_doctor() {
    for name in ["bert-embed", "qwen3-embed", "xlmr-embed"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name);
        let run = headrace(&["doctor", "--json", path.to_str().unwrap()]);
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(run.status.code(), Some(0), "{name}: {report:#}");
        for finding in report["findings"].as_array().unwrap() {
            let code = finding["code"].as_str().unwrap();
            let of_decoders = ["not_computed_here", "eos_missing", "eos_disagrees", "no_template"];
            assert!(!of_decoders.contains(&code), "{name}: {finding:#}");
        }
    }
}
