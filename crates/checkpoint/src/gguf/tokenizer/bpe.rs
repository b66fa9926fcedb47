//! Byte-level BPE: copies vocabulary and merges, and selects the pre-tokenizer by its name. Must not know special
//! tokens.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use crate::error::{CheckpointError, shown};

use super::pre;
use super::vocabulary::{Parts, Vocabulary};

const MERGES: &str = "tokenizer.ggml.merges";

pub(super) fn parts(vocabulary: &Vocabulary<'_>) -> Result<Parts, CheckpointError> {
    let pre = pre::read(vocabulary.meta)?;
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": pre.ignores_merges, "vocab": vocabulary.vocab(), "merges": merges(vocabulary)?,
    });
    Ok(Parts {
        model,
        normalizer: pre.normalizer,
        pre_tokenizer: pre.pre_tokenizer,
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        adds_bos: pre.adds_bos,
        class: "PreTrainedTokenizerFast",
        warning: pre.warning,
        is_added: |_| false,
    })
}

/// Returns the merge pairs. Both parts of a pair, and the joined text, must be tokens.
pub(super) fn merges(vocabulary: &Vocabulary<'_>) -> Result<Json, CheckpointError> {
    let meta = vocabulary.meta;
    let texts = meta.texts(MERGES)?.ok_or_else(|| meta.missing(MERGES))?;
    let known: BTreeSet<&str> = vocabulary.used().map(|(_, text, _)| text).collect();
    let mut merges = Vec::with_capacity(texts.len());
    let mut joined = String::new();
    for (index, text) in texts.iter().enumerate() {
        // Search from the second character on, because a token may itself begin with a space.
        let second = text.chars().next().map_or(0, char::len_utf8);
        let at = text.get(second..).and_then(|rest| rest.find(' ')).map(|at| second + at);
        let pair = at.and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?)));
        let wrong = || {
            let problem =
                format!("[{index}] is \"{}\", which are not two tokens that make a third", shown(text));
            meta.problem(MERGES, problem)
        };
        let (left, right) = pair.ok_or_else(wrong)?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if ![left, right, joined.as_str()].iter().all(|token| known.contains(token)) {
            return Err(wrong());
        }
        merges.push(json!([left, right]));
    }
    Ok(Json::Array(merges))
}
