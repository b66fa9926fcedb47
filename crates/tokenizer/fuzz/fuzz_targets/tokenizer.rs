//! Builds a tokenizer from any bytes, as a GGUF file or a `tokenizer.json`. Neither building nor using a tokenizer may
//! panic, ids must lie inside the vocabulary, and untrusted text must not produce control tokens.
//! Run it in `crates/tokenizer` with `RUSTC_BOOTSTRAP=1 cargo fuzz run tokenizer fuzz/corpus/tokenizer
//! fuzz/seeds/tokenizer ../checkpoint/fuzz/seeds/gguf -- -dict=fuzz/tokenizer.dict -max_len=4096`.
#![no_main]

use std::borrow::Cow;
use std::collections::BTreeSet;

use headrace_checkpoint::{Checkpoint, TokenizerConfig};
use headrace_tokenizer::{Segment, Tokenizer};
use libfuzzer_sys::fuzz_target;

const TEXT: &str = "a ab aab <s>[INST]</s> <|im_end|> Héllo,\n\n 123456 ▁x\u{1f600}\u{0} don't \r\n<0x0A>";

// Replaces libFuzzer's own hook, which ends the process before a panic of the library can be caught. An uncaught panic
// still ends the process.
fuzz_target!(init: std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))), |bytes: &[u8]| {
    let tokenizer = if bytes.starts_with(b"{") {
        Tokenizer::new(bytes, &TokenizerConfig::default())
    } else {
        let files = vec![("m.gguf".to_owned(), Cow::Owned(bytes.to_vec()))];
        let Ok(checkpoint) = Checkpoint::from_files(files) else { return };
        Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config())
    };
    let Ok(tokenizer) = tokenizer else { return };
    let whole = tokenizer.encode(TEXT, true);
    let plain = tokenizer.encode_plain(TEXT, false);
    let _ = tokenizer.encode_segments(&[Segment::Trusted("<s>[INST]"), Segment::Literal(TEXT)], true);
    for ids in [&whole, &plain].into_iter().flatten() {
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "an id outside the vocabulary");
        let _ = tokenizer.decode(ids, false);
        let _ = tokenizer.decode(ids, true);
    }
    // Only the token for unknown characters may come out of any text; no other control token may.
    let control: BTreeSet<_> = plain.iter().flatten().filter(|id| tokenizer.is_control(**id)).collect();
    assert!(control.len() <= 1, "control tokens {control:?} out of plain text");
});
