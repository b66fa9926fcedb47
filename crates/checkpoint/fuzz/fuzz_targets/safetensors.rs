//! Feeds arbitrary bytes to the safetensors reader. It must not panic, and accepted tensors must be inside the bytes.
//! Run in `crates/checkpoint` with `RUSTC_BOOTSTRAP=1 cargo fuzz run safetensors fuzz/corpus/safetensors
//! fuzz/seeds/safetensors -- -max_len=4096`.
#![no_main]

use std::borrow::Cow;

use headrace_checkpoint::Checkpoint;
use headrace_checkpoint::safetensors::Header;
use libfuzzer_sys::fuzz_target;

/// A model so small that a mutated file can still contain all of it.
const CONFIG: &[u8] = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2, "num_hidden_layers": 1,
    "num_attention_heads": 1, "intermediate_size": 1, "vocab_size": 3, "tie_word_embeddings": true}"#;

fuzz_target!(|bytes: &[u8]| {
    // Two variants: the bytes are the whole file, or they are its header and the data is eight zeros.
    let framed = [&(bytes.len() as u64).to_le_bytes(), bytes, &[0; 8]].concat();
    for file in [bytes, &framed] {
        let Ok(header) = Header::parse("model.safetensors", file) else { continue };
        let mut covered = header.data_start;
        for entry in header.tensors.values() {
            covered += file.get(entry.range.clone()).expect("a tensor outside the file").len();
        }
        assert_eq!(covered, file.len(), "tensors must cover the file");
    }
    let file = |name: &str, bytes: &[u8]| (name.to_owned(), Cow::Owned(bytes.to_vec()));
    let files =
        vec![file("config.json", CONFIG), file("tokenizer.json", b"{}"), file("model.safetensors", bytes)];
    if let Ok(checkpoint) = Checkpoint::from_files(files) {
        for (name, shape) in checkpoint.config().tensors() {
            let tensor = checkpoint.tensor(&name).expect("a tensor that was checked");
            assert_eq!(tensor.shape, shape);
        }
        for name in checkpoint.tensor_names() {
            let _ = checkpoint.tensor(name);
        }
    }
});
