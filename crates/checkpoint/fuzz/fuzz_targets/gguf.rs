//! Feeds arbitrary bytes to the GGUF reader. It must not panic, accepted tensors must be inside the bytes, and a
//! generated tokenizer must be JSON. Run in `crates/checkpoint` with `RUSTC_BOOTSTRAP=1 cargo fuzz run gguf
//! fuzz/corpus/gguf fuzz/seeds/gguf -- -dict=fuzz/gguf.dict -max_len=4096`.
#![no_main]

use std::borrow::Cow;

use headrace_checkpoint::Checkpoint;
use headrace_checkpoint::gguf::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Two variants: the bytes are the whole file, or they follow its magic and version.
    let framed = [b"GGUF\x03\0\0\0", bytes].concat();
    for file in [bytes, &framed] {
        if let Ok(header) = Header::parse("m.gguf", file) {
            let mut ranges: Vec<_> = header.tensors.values().map(|entry| entry.range.clone()).collect();
            ranges.sort_by_key(|range| (range.start, range.end));
            for pair in ranges.windows(2) {
                assert!(pair[0].end <= pair[1].start, "tensors overlap");
            }
            for entry in header.tensors.values() {
                let found = file.get(entry.range.clone()).expect("a tensor outside the file").len();
                let blocks = entry.shape.iter().product::<usize>() / entry.kind.block_elements;
                assert_eq!(found, blocks * entry.kind.block_bytes);
            }
        }
        let files = vec![("m.gguf".to_owned(), Cow::Owned(file.to_vec()))];
        let Ok(checkpoint) = Checkpoint::from_files(files) else { continue };
        serde_json::from_slice::<serde_json::Value>(checkpoint.tokenizer_json()).expect("a tokenizer.json");
        let config = checkpoint.config();
        assert!(config.final_norm.eps.is_normal());
        assert!(config.rotary.iter().all(|rotary| rotary.rope.theta.is_finite() && rotary.width.is_multiple_of(2)));
        assert!(config.eos.iter().chain(&config.bos).all(|id| (*id as usize) < config.vocab_size));
        for (name, shape) in config.tensors() {
            let tensor = checkpoint.tensor(&name).expect("a tensor that was checked");
            let (inner, outer) = shape.split_last().expect("one dimension or two");
            let row = tensor.dtype.row_bytes(*inner).expect("whole blocks");
            assert_eq!(
                (tensor.shape, tensor.bytes.len()),
                (&shape[..], outer.iter().product::<usize>() * row)
            );
        }
    }
});
