//! The tokenizer of Gemma 4: BPE with merges of its own over text in which marks replace spaces. Characters without a
//! token become their bytes. Must not know other families.

use serde_json::{Value as Json, json};

use crate::error::CheckpointError;

use super::bpe;
use super::vocabulary::{Kind, Parts, Vocabulary};

/// The name of this kind of tokenizer in the metadata.
pub(super) const MODEL: &str = "gemma4";

/// Control tokens that llama.cpp's converter lists as tokens of the user, so that its reply parser sees them. Source:
/// `Gemma4Model` of that converter.
const MARKS: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Returns the parts as in Gemma 4's published `tokenizer.json`.
///
/// Text is cut only between line breaks and the rest. A run of line breaks that is a token is that token. No other
/// token contains line breaks, so listing those tokens as added ones does both.
pub(super) fn parts(vocabulary: &mut Vocabulary<'_>) -> Result<Parts, CheckpointError> {
    vocabulary.make_control(&MARKS);
    let unknown = vocabulary.used().find(|(.., kind)| *kind == Kind::Unknown).map(|(_, text, _)| text);
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocabulary.vocab(), "merges": bpe::merges(vocabulary)?,
    });
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let decoders = [replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    Ok(Parts {
        model,
        normalizer: replace(" ", "▁"),
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        adds_bos: true,
        class: "GemmaTokenizerFast",
        warning: None,
        is_added: |text| text.chars().all(|c| c == '\n'),
    })
}
