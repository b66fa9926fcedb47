//! Feeds arbitrary bytes to each JSON reader. Reading must not panic, and accepted values must be within the limits.
//! Run in `crates/checkpoint` with `RUSTC_BOOTSTRAP=1 cargo fuzz run configuration fuzz/corpus/configuration
//! tests/data/configs -- -max_len=4096`.
#![no_main]

use std::borrow::Cow;

use headrace_checkpoint::decoder::MixerConfig;
use headrace_checkpoint::{Checkpoint, ModelConfig, limits};
use libfuzzer_sys::fuzz_target;

const CONFIG: &[u8] = include_bytes!("../../tests/data/qwen3-tied/config.json");

fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = ModelConfig::from_json(bytes) {
        assert!((1..=limits::MAX_LAYERS).contains(&config.layers.len()));
        assert!(config.final_norm.eps.is_normal());
        assert!(config.rotary.iter().all(|rotary| rotary.rope.theta.is_finite() && rotary.width.is_multiple_of(2)));
        for layer in &config.layers {
            match &layer.mixer {
                MixerConfig::Attention(attention) => assert!(attention.heads.is_multiple_of(attention.kv_heads)),
                MixerConfig::Latent(latent) => assert_eq!(latent.heads, latent.key.len()),
                _ => {}
            }
        }
    }
    for name in ["generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"] {
        let file = |name: &str, bytes: &[u8]| (name.to_owned(), Cow::Owned(bytes.to_vec()));
        let files = vec![file("config.json", CONFIG), file("tokenizer.json", b"{}"), file(name, bytes)];
        assert!(Checkpoint::from_files(files).is_err(), "there are no weights");
    }
});
