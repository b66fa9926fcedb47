//! SentencePiece BPE with byte fallback. Derives the merges from the tokens' scores, as transformers does when it
//! converts such a vocabulary. Must not know special tokens.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use crate::error::CheckpointError;
use crate::limits::MAX_MERGE_WORK_BYTES;

use super::vocabulary::{Kind, Parts, TOKENS, Vocabulary};

const SCORES: &str = "tokenizer.ggml.scores";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

pub(super) fn parts(vocabulary: &Vocabulary<'_>) -> Result<Parts, CheckpointError> {
    let prefix = vocabulary.meta.flag(SPACE_PREFIX)?.unwrap_or(true);
    let unknown = vocabulary.used().find(|(.., kind)| *kind == Kind::Unknown).map(|(_, text, _)| text);
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocabulary.vocab(), "merges": merges(vocabulary)?,
    });
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", "▁")];
    let mut decoders = vec![replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Parts {
        model,
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        adds_bos: true,
        class: "LlamaTokenizerFast",
        warning: None,
        is_added: |_| false,
    })
}

/// One way to join two tokens to a third. Lengths are in characters.
struct Merge<'a> {
    score: f64,
    left: (&'a str, usize),
    right: (&'a str, usize),
}

/// Returns every way to join two tokens to a third. Higher scores come first, then longer parts.
fn merges(vocabulary: &Vocabulary<'_>) -> Result<Json, CheckpointError> {
    let meta = vocabulary.meta;
    let scores = meta.numbers(SCORES, vocabulary.tokens.len())?.ok_or_else(|| meta.missing(SCORES))?;
    if let Some(at) = scores.iter().position(|score| score.is_nan()) {
        return Err(meta.problem(SCORES, format!("[{at}] is NaN, which has no place in an order")));
    }
    // Only these kinds can result from text. A control token cannot.
    let normal: Vec<(&str, u32)> = vocabulary
        .used()
        .filter(|(.., kind)| matches!(kind, Kind::Normal | Kind::UserDefined))
        .map(|(id, text, _)| (text, id))
        .collect();
    let work: u64 =
        normal.iter().map(|(text, _)| (text.len() as u64).saturating_mul(text.len() as u64)).sum();
    if work > MAX_MERGE_WORK_BYTES {
        let problem = format!(
            "are so long that taking them apart would look at {work} bytes, the most is {MAX_MERGE_WORK_BYTES}"
        );
        return Err(meta.problem(TOKENS, problem));
    }
    let ids: HashMap<&str, u32> = normal.iter().copied().collect();
    let mut merges = Vec::with_capacity(normal.len());
    let mut ways = Vec::new();
    for (text, id) in normal {
        let score = usize::try_from(id).ok().and_then(|id| scores.get(id)).copied().unwrap_or(0.0);
        ways.clear();
        for (count, (at, _)) in text.char_indices().enumerate().skip(1) {
            let (left, right) = (text.get(..at).unwrap_or(""), text.get(at..).unwrap_or(""));
            if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                let after = right.chars().count();
                ways.push((*left_id, *right_id, Merge { score, left: (left, count), right: (right, after) }));
            }
        }
        ways.sort_by_key(|(left, right, _)| (*left, *right));
        merges.extend(ways.drain(..).map(|(.., merge)| merge));
    }
    merges.sort_by(|a, b| {
        // Adding 0 turns -0 into 0, because both are equal in a float comparison.
        let by_score = (b.score + 0.0).total_cmp(&(a.score + 0.0));
        by_score.then(b.left.1.cmp(&a.left.1)).then(b.right.1.cmp(&a.right.1))
    });
    Ok(Json::Array(merges.into_iter().map(|merge| json!([merge.left.0, merge.right.0])).collect()))
}
