//! The same seed gives the same model in both formats: every test configuration is made as a directory and as a GGUF file,
//! and both answer a prompt with the same bits.

use std::path::{Path, PathBuf};

use headrace_checkpoint::{Checkpoint, ModelConfig};
use headrace_kernels::Isa;
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::BlockTables;
use headrace_model::{LoadOptions, Model};
use headrace_quant::BlockType;
use serde_json::{Map, Value, json};

use super::make;
use crate::arguments::MakeArgs;

/// Sizes that every row of a small model is whole blocks of 32 with, and the vocabulary's bytes are tokens.
const SIZES: [(&str, usize); 10] = [
    ("linear_value_head_dim", 32),
    ("vocab_size", 320),
    ("hidden_size", 64),
    ("intermediate_size", 96),
    ("moe_intermediate_size", 32),
    ("shared_expert_intermediate_size", 32),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 2),
    ("vocab_size_per_layer_input", 320),
    ("head_dim", 16),
];
/// Models that the metadata of a GGUF file cannot say.
const UNSAYABLE: [&str; 2] = ["deepseek-v3-yarn", "nemotron-h-latent"];
/// Files whose frequencies are divided by factors that were rounded once more.
const ROUNDED: [&str; 1] = ["llama-tied-rope3"];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data")
}

/// The configuration in `dir` with other sizes. `None` if it is no decoder's.
fn config(dir: &Path) -> Option<(Map<String, Value>, ModelConfig)> {
    let mut members = ModelConfig::members(&std::fs::read(dir.join("config.json")).ok()?).unwrap();
    ModelConfig::from_json(&serde_json::to_vec(&members).unwrap()).ok()?;
    members.remove("quantization_config");
    let text = match members.get_mut("text_config") {
        Some(Value::Object(text)) => text,
        _ => &mut members,
    };
    // The widths of latent heads and of Mamba depend on each other.
    let is_bound =
        ["kv_lora_rank", "mamba_n_heads", "mamba_num_heads"].iter().any(|name| text.contains_key(*name));
    for (name, size) in SIZES {
        let given = text.get(name).and_then(Value::as_u64).filter(|n| *n > 0);
        let is_vocabulary = name.starts_with("vocab_size");
        let is_replaced = match is_vocabulary {
            true => given.is_some_and(|n| n < size as u64),
            false => given.is_some() && !is_bound,
        };
        if is_replaced {
            text.insert(name.to_owned(), json!(size));
        }
    }
    let parsed = ModelConfig::from_json(&serde_json::to_vec(&members).unwrap());
    Some((members, parsed.unwrap_or_else(|error| panic!("{}: {error}", dir.display()))))
}

fn made(config: &Path, format: &str, r#type: &str, out: PathBuf) -> Result<Checkpoint, String> {
    make::run(&MakeArgs {
        shape: None,
        config: Some(config.to_owned()),
        format: format.to_owned(),
        r#type: r#type.to_owned(),
        embedding_type: Some("f32".to_owned()),
        seed: 7,
        out: out.clone(),
    })?;
    Checkpoint::open(&out).map_err(|error| error.to_string())
}

/// The logits of a prompt, as bits.
fn logits(checkpoint: &Checkpoint, quantize: Option<BlockType>) -> Vec<u32> {
    let isa = Isa::supported().last().copied().unwrap();
    let options = LoadOptions { quantize, max_positions: Some(32), ..LoadOptions::exact(isa, 1, 4) };
    let mut model = Model::load(checkpoint, options, &mut |_, _| {}).unwrap();
    let tokens: Vec<u32> = (0..21).map(|i| (i * 37 + 11) % 256).collect();
    let tables = [0, 1, 2, 3];
    let chunk = SequenceChunk {
        tokens: &tokens,
        start: 0,
        tables: BlockTables::same(&tables),
        logits: LogitsWanted::Last,
        long_context: model.shape().is_long(tokens.len()),
    };
    let mut out = Logits::default();
    model.step(&[chunk], &mut out).unwrap();
    out.row(0).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

fn furthest(left: &[u32], right: &[u32]) -> f32 {
    let pairs = left.iter().zip(right);
    pairs.map(|(l, r)| (f32::from_bits(*l) - f32::from_bits(*r)).abs()).fold(0.0, f32::max)
}

#[test]
fn both_formats_give_the_same_model() {
    let (mut directories, mut files, mut quantized) = (0, 0, 0);
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(data()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for dir in names {
        let Some((members, config)) = config(&dir) else { continue };
        let name = dir.file_name().unwrap().to_str().unwrap();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("wanted.json");
        std::fs::write(&path, serde_json::to_vec(&members).unwrap()).unwrap();
        let failed = |error: String| panic!("{name}: {error}");
        let directory = made(&path, "safetensors", "f32", place.path().join("m")).unwrap_or_else(failed);
        let expected = logits(&directory, None);
        let all: Vec<f32> = expected.iter().map(|bits| f32::from_bits(*bits)).collect();
        assert!(all.iter().all(|logit| logit.is_finite()), "{name}");
        assert!(all.iter().any(|logit| *logit != all[0]), "{name}");
        directories += 1;
        if !config.architecture.is_read_from_gguf() || UNSAYABLE.contains(&name) {
            let error = made(&path, "gguf", "f32", place.path().join("m.gguf")).err().unwrap();
            assert!(
                error.contains("safetensors") || error.contains("feed_forward_length"),
                "{name}: {error}"
            );
            continue;
        }
        let file = made(&path, "gguf", "f32", place.path().join("m.gguf")).unwrap_or_else(failed);
        let found = logits(&file, None);
        if ROUNDED.contains(&name) {
            assert!(furthest(&found, &expected) < 1e-4, "{name}: {}", furthest(&found, &expected));
        } else {
            assert!(found == expected, "{name}: {} apart", furthest(&found, &expected));
        }
        files += 1;
        let mut inputs =
            config.layers.iter().flat_map(|layer| layer.matrices()).flatten().map(|linear| linear.inputs);
        if inputs.any(|inputs| !inputs.is_multiple_of(32)) {
            continue;
        }
        // The embedding is quantized while it is loaded, where it is also the output projection.
        let q8 = Some(BlockType::Q8_0);
        let file = made(&path, "gguf", "q8_0", place.path().join("q8.gguf")).unwrap_or_else(failed);
        let (found, expected) = (logits(&file, q8), logits(&directory, q8));
        if !ROUNDED.contains(&name) {
            assert!(found == expected, "{name} in q8_0: {} apart", furthest(&found, &expected));
            quantized += 1;
        }
    }
    assert!(directories > 50 && files > 40 && quantized > 25, "{directories} {files} {quantized}");
}
