//! Files that describe no tokenizer, or a strange one, are refused or used, and never cause a panic.

use headrace_checkpoint::TokenizerConfig;
use headrace_tokenizer::{Segment, Tokenizer, TokenizerError};
use proptest::prelude::*;

use crate::common::{NAMES, data};

fn refusal(json: &[u8]) -> String {
    let error = Tokenizer::new(json, &TokenizerConfig::default()).unwrap_err();
    assert!(matches!(error, TokenizerError::Load { .. }), "{error}");
    error.to_string()
}

#[test]
fn broken_files_are_refused() {
    for bad in ["", "{}", "null", "[]", r#"{"version":"1.0"}"#, r#"{"model":{"type":"BPE"}}"#, "\u{0}"] {
        refusal(bad.as_bytes());
    }
}

#[test]
fn files_whose_parts_are_no_json_are_refused_where_they_are_wrong() {
    let good = data("spbpe-llama2/tokenizer.json");
    let at = good.windows(12).position(|part| part == b"ByteFallback").unwrap();
    for (what, byte, says) in [
        ("a control character in a decoder", 1, "control character"),
        ("a decoder that is not UTF-8", 0xff, "invalid utf-8 sequence"),
        ("a decoder's key that is no text", b'"', "at line 1 column"),
    ] {
        let mut bad = good.clone();
        bad[at + 4] = byte;
        let message = refusal(&bad);
        assert!(message.contains(says) && !message.contains("gave up"), "{what}: {message}");
    }
}

#[test]
fn what_the_library_panics_on_is_refused() {
    let file = String::from_utf8(data("spbpe-llama2/tokenizer.json")).unwrap();
    // Its post-processor adds a token that the file does not define.
    let bad = file.replace(r#""special_tokens":{"<s>":"#, r#""special_tokens":{"<t>":"#);
    assert_ne!(bad, file);
    let message = refusal(bad.as_bytes());
    assert!(message.ends_with("the tokenizers library gave up: no entry found for key"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn damaged_files_never_panic(
        name in prop::sample::select(NAMES.to_vec()),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..40_usize), 1..4),
    ) {
        let mut json = data(&format!("{name}/tokenizer.json"));
        // Copies pieces of the file over other pieces. The result is often still JSON, but seldom meaningful.
        for (from, to, length) in damages {
            let from = from.index(json.len());
            let piece = json[from..(from + length).min(json.len())].to_vec();
            let to = to.index(json.len());
            json.splice(to..(to + length).min(to.max(json.len())), piece);
        }
        let Ok(tokenizer) = Tokenizer::new(&json, &TokenizerConfig::default()) else { return Ok(()) };
        let text = "Héllo <s>, 123\n";
        for ids in [tokenizer.encode(text, true), tokenizer.encode_segments(&[Segment::Literal(text)], true)] {
            let ids = ids.unwrap_or_default();
            prop_assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
            tokenizer.decode(&ids, false);
        }
    }
}
