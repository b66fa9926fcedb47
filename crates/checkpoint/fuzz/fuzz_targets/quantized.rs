//! Feeds arbitrary bytes to the readers of quantized safetensors: the first byte chooses the method, the rest is the
//! weight file. Reading must not panic, and a matrix must have the bytes of its type and shape, no more than eight times
//! the file. Run in `crates/checkpoint` with `RUSTC_BOOTSTRAP=1 cargo fuzz run quantized fuzz/corpus/quantized
//! fuzz/seeds/quantized -- -max_len=8192`.
#![no_main]

use std::borrow::Cow;

use headrace_checkpoint::Checkpoint;
use libfuzzer_sys::fuzz_target;

/// The methods, as `quantization_config` describes them.
const METHODS: [&str; 6] = [
    r#"{"quant_method": "fp8", "weight_block_size": [4, 4]}"#,
    r#"{"quant_method": "awq", "bits": 4, "group_size": 8}"#,
    r#"{"quant_method": "gptq", "bits": 4, "group_size": 8}"#,
    r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
        {"a": {"weights": {"num_bits": 4, "group_size": 8, "symmetric": false}}}}"#,
    r#"{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
        {"a": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}"#,
    r#"{"quant_method": "mxfp4"}"#,
];

fuzz_target!(|bytes: &[u8]| {
    let Some((method, weights)) = bytes.split_first() else { return };
    let method = METHODS[usize::from(*method) % METHODS.len()];
    let config = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
        "intermediate_size": 8, "vocab_size": 3, "tie_word_embeddings": true, "quantization_config": {method}}}"#
    );
    let file = |name: &str, bytes: &[u8]| (name.to_owned(), Cow::Owned(bytes.to_vec()));
    let files = vec![
        file("config.json", config.as_bytes()),
        file("tokenizer.json", b"{}"),
        file("model.safetensors", weights),
    ];
    let Ok(checkpoint) = Checkpoint::from_files(files) else { return };
    let required = checkpoint.config().tensors().into_iter().map(|(name, _)| name);
    let stored = checkpoint.stored_tensors().map(|(name, ..)| name.to_owned());
    for name in required.chain(stored).collect::<Vec<_>>() {
        let Ok(tensor) = checkpoint.tensor(&name) else { continue };
        let (inner, outer) = tensor.shape.split_last().map_or((1, &[][..]), |(inner, outer)| (*inner, outer));
        let rows: usize = outer.iter().product();
        let expected = tensor.dtype.row_bytes(inner).map(|row| row * rows);
        assert_eq!(Some(tensor.bytes.len()), expected, "{name}");
        assert!(tensor.bytes.len() <= 8 * weights.len(), "{name} claims more than the file holds");
        if let Ok(part) = checkpoint.stacked(&name, 1) {
            assert_eq!(Some(part.bytes.len()), tensor.bytes.len().checked_div(tensor.shape[0]), "{name}");
        }
    }
});
