//! Descriptions of GGUF files, held against files that were made as llama.cpp's converter makes them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use headrace_checkpoint::gguf::{ElementChange, Header, RowOrigin, Value, describe};
use headrace_checkpoint::{Checkpoint, DType, ModelConfig};
use serde_json::{Map, Value as Json, json};

/// Models that the metadata cannot say, and the field that is named.
const UNSAYABLE: [(&str, &str); 2] = [
    ("nemotron-h-latent", "feed_forward_length"),
    // Its checkpoint rotates halves, and files of its class have neighbouring pairs.
    ("deepseek-v3-yarn", "the attention of layer 0"),
];
/// A file that also gives the width of a network that no layer has.
const UNUSED_WIDTH: &str = "granite-hybrid-dense";
/// Files of an older converter, whose projections from the latents are one tensor.
const OLD_LATENTS: &str = "deepseek-v2-lite";

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data")
}

/// Opens the directory that a file was made from.
fn original(name: &str) -> Checkpoint {
    let mut files = vec![("tokenizer.json".to_owned(), Cow::Borrowed(b"{}".as_slice()))];
    for file in ["config.json", "model.safetensors"] {
        files.push((file.to_owned(), Cow::Owned(std::fs::read(data().join(name).join(file)).unwrap())));
    }
    Checkpoint::from_files(files).unwrap()
}

/// The elements of a dense tensor.
fn elements(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::BF16 => {
            let widened = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            bytes.as_chunks::<2>().0.iter().map(widened).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn descriptions_are_those_of_converted_files() {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(data().join("gguf")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 30);
    for path in files {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name == OLD_LATENTS || UNSAYABLE.iter().any(|(unsayable, _)| *unsayable == name) {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let mut header = Header::parse("m.gguf", &bytes).unwrap();
        let checkpoint = original(name);
        let described = describe(checkpoint.config()).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Layers that only draft tokens are not made.
        let layers = checkpoint.config().layers.len();
        let layer = |tensor: &str| tensor.strip_prefix("blk.")?.split_once('.')?.0.parse::<usize>().ok();
        header.tensors.retain(|tensor, _| layer(tensor).is_none_or(|layer| layer < layers));
        let lists = ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];
        let found = lists.iter().filter(|name| header.tensors.contains_key(**name)).count();
        assert_eq!(described.rope_factors.len(), found, "{name}");
        for (list, factors) in &described.rope_factors {
            let entry = header.tensors.remove(*list).unwrap();
            assert_eq!(entry.shape, [factors.len()], "{name}: {list}");
            for (mine, theirs) in factors.iter().zip(elements(&bytes[entry.range], DType::F32)) {
                assert!((mine - theirs).abs() <= 1e-6 * theirs, "{name}: {mine} {theirs}");
            }
        }
        let names: Vec<&str> = header.tensors.keys().map(String::as_str).collect();
        let mut mine: Vec<&str> = described.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        mine.sort_unstable();
        assert_eq!(mine, names, "{name}");
        let mut stored: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
        for tensor in &described.tensors {
            let entry = &header.tensors[&tensor.name];
            let long = |shape: &[usize]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
            assert_eq!(long(&tensor.shape), long(&entry.shape), "{name}: {}", tensor.name);
            let theirs = elements(&bytes[entry.range.clone()], entry.kind.dtype().unwrap());
            for (row, theirs) in theirs.chunks_exact(tensor.row_elements).enumerate() {
                let origin: RowOrigin<'_> = tensor.origin(row).unwrap();
                let whole = stored.entry(&origin.tensor.name).or_insert_with(|| {
                    let tensor = checkpoint.tensor(&origin.tensor.name).unwrap();
                    elements(&tensor.bytes, tensor.dtype)
                });
                for (column, theirs) in theirs.iter().enumerate() {
                    let element = whole[origin.element(column)];
                    let mine = match origin.change {
                        ElementChange::None => element,
                        ElementChange::PlusOne => element + 1.0,
                        ElementChange::NegativeExponential => -element.exp(),
                    };
                    assert!(
                        (mine - theirs).abs() <= 1e-6 * mine.abs(),
                        "{name}: row {row} of {}",
                        tensor.name
                    );
                    let is_moved = origin.change != ElementChange::NegativeExponential;
                    assert!(
                        !is_moved || mine.to_bits() == theirs.to_bits(),
                        "{name}: row {row} of {}",
                        tensor.name
                    );
                }
            }
            assert_eq!(tensor.origin(tensor.rows()), None);
        }
        // The converter writes some keys only for some classes, and readers take the same number without them. It also
        // writes a width that no layer has, if all layers have experts of a width of their own.
        let has_width = |key: &String| key.ends_with("expert_feed_forward_length");
        let has_drafts = header.metadata.keys().any(|key| key.ends_with(".nextn_predict_layers"));
        let experts_only = name == UNUSED_WIDTH
            || header.metadata.keys().any(has_width) && !header.tensors.contains_key("blk.0.ffn_up.weight");
        for (key, setting) in &described.settings {
            if has_drafts && key.ends_with(".block_count") {
                continue;
            }
            if experts_only && key.ends_with(".feed_forward_length") {
                continue;
            }
            if let Some(theirs) = header.metadata.get(key) {
                let is_same = match (theirs, setting.value()) {
                    (Value::Float(theirs), Value::Float(mine)) => {
                        (theirs - mine).abs() <= 1e-6 * theirs.abs()
                    }
                    (theirs, mine) => *theirs == mine,
                };
                assert!(is_same, "{name}: {key} is {theirs:?}, not {setting:?}");
            }
        }
    }
}

#[test]
fn every_class_that_is_read_is_described_and_no_other() {
    let mut described = 0;
    for entry in std::fs::read_dir(data()).unwrap() {
        let dir = entry.unwrap().path();
        let Ok(bytes) = std::fs::read(dir.join("config.json")) else { continue };
        let Ok(config) = ModelConfig::from_json(&bytes) else { continue };
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        match describe(&config) {
            Ok(_) => described += 1,
            Err(error) if config.architecture.is_read_from_gguf() => {
                let unsayable = UNSAYABLE.iter().find(|(other, _)| *other == name);
                let (_, field) = unsayable.unwrap_or_else(|| panic!("{name}: {error}"));
                assert!(error.to_string().contains(field), "{error}");
            }
            Err(error) => {
                let class = config.architecture.hf_name();
                assert!(
                    error.to_string().contains(class) && error.to_string().contains("safetensors"),
                    "{error}"
                );
            }
        }
    }
    assert!(described > 35, "{described}");
}

/// The configuration of test data with these members set.
fn changed(name: &str, changes: &[(&str, Json)]) -> ModelConfig {
    let bytes = std::fs::read(data().join(name).join("config.json")).unwrap();
    let mut members: Map<String, Json> = serde_json::from_slice(&bytes).unwrap();
    for (field, value) in changes {
        members.insert((*field).to_owned(), value.clone());
    }
    ModelConfig::from_json(&serde_json::to_vec(&members).unwrap()).unwrap()
}

#[test]
fn models_that_metadata_cannot_say_are_refused_by_the_member() {
    let long = |attention: f64| {
        json!({"type": "longrope", "attention_factor": attention, "short_factor": vec![1.0; 8],
            "long_factor": vec![2.0; 8]})
    };
    let full = |parameters: Json| json!({"full_attention": parameters, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}});
    let share = |factor: f64| {
        full(json!({"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": factor}))
    };
    for (name, changes, field) in [
        ("gemma4-ple", vec![("vocab_size_per_layer_input", json!(513))], Some("vocab_size_per_layer_input")),
        ("gemma4-ple", vec![("rope_parameters", share(1.0))], None),
        ("gemma4-ple", vec![("rope_parameters", share(2.0))], Some("rope_parameters")),
        ("gemma4-ple", vec![("sliding_window", json!(4096))], None),
        ("gemma4-ple", vec![("layer_types", json!(vec!["full_attention"; 8]))], None),
        ("gemma4-moe", vec![("per_layer_config", json!({"0": {"num_key_value_heads": 1}}))], Some("layer 1")),
        // The file has 32 bits, and readers take a factor near the usual one for that.
        ("phi3-longrope", vec![("rope_scaling", long(1.25))], None),
        ("phi3-longrope", vec![("rope_scaling", long(1.169_085))], Some("rope_parameters")),
        (
            "llama-gqa-untied",
            vec![("rope_scaling", long(1.25)), ("original_max_position_embeddings", json!(64))],
            Some("rope_parameters"),
        ),
    ] {
        let described = describe(&changed(name, &changes)).map(|_| ()).map_err(|error| error.to_string());
        match field {
            None => assert_eq!(described, Ok(()), "{name}: {changes:?}"),
            Some(field) => {
                let message = described.expect_err(name);
                assert!(message.contains(field) && message.contains("safetensors"), "{name}: {message}");
            }
        }
    }
}
