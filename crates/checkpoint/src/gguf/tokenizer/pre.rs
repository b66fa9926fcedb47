//! Pre-tokenizers of byte-level BPE, by their names in GGUF. The expressions are those of the published
//! `tokenizer.json` files of each family. Must not know vocabularies.

use serde_json::{Value as Json, json};

use crate::error::CheckpointError;
use crate::gguf::meta::Meta;
use crate::gguf::value::Value;

const PRE: &str = "tokenizer.ggml.pre";

/// The name that older converters wrote for families that they did not know.
const DEFAULT: &str = "default";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-2's expression without its final `\s+`: text that no expression matches is a word anyway.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";
const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const UP_TO_THREE_DIGITS: &str = r"\p{N}{1,3}";
const IDEOGRAPHS_AND_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const LINE_END: &str = r"[\r\n]";
const SPACED_LETTERS: &str = r"\s?\p{L}+";
const SPACED_MARKS: &str = r"\s?\p{P}+";
const IDEOGRAPHS_AND_HANGUL: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
const THREE_DIGITS: &str = r"[0-9][0-9][0-9]";

/// One family's rules for splitting text into words.
struct Family {
    names: &'static [&'static str],
    /// Split expressions in order. If `gpt2` is set, GPT-2's expression follows.
    splits: &'static [&'static str],
    gpt2: bool,
    composes: bool,
    /// Whether a word that is a token is used directly, without merges.
    ignores_merges: bool,
    adds_bos: bool,
}

const PLAIN: Family =
    Family { names: &[], splits: &[], gpt2: false, composes: false, ignores_merges: false, adds_bos: false };

const FAMILIES: [Family; 12] = [
    Family {
        names: &["gpt-2", "gpt2", "phi-2", "mellum", "olmo", "trillion", "exaone4"],
        gpt2: true,
        ..PLAIN
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"],
        splits: &[LLAMA3],
        ignores_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    Family {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "megrez"],
        splits: &[QWEN2],
        composes: true,
        ..PLAIN
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        splits: &[DIGIT],
        gpt2: true,
        ..PLAIN
    },
    Family { names: &["tekken"], splits: &[TEKKEN], ignores_merges: true, adds_bos: true, ..PLAIN },
    Family { names: &["stablelm2", "hunyuan", "grok-2"], splits: &[QWEN2], ..PLAIN },
    Family {
        names: &["deepseek-v3", "hunyuan-dense"],
        splits: &[UP_TO_THREE_DIGITS, IDEOGRAPHS_AND_KANA, DEEPSEEK_V3],
        ..PLAIN
    },
    Family {
        names: &["deepseek-coder"],
        splits: &[LINE_END, SPACED_LETTERS, SPACED_MARKS, IDEOGRAPHS_AND_HANGUL, DIGIT],
        ..PLAIN
    },
    Family { names: &["gpt-4o"], splits: &[GPT4O], ..PLAIN },
    Family { names: &["seed-coder"], splits: &[SEED_CODER], ..PLAIN },
    Family { names: &["falcon"], splits: &[FALCON_PUNCTUATION, GPT2, THREE_DIGITS], ..PLAIN },
    Family { names: &["default"], splits: &[PUNCTUATION, GPT2, DIGITS, THREE_DIGITS], ..PLAIN },
];

/// The family's parts of a `tokenizer.json`.
pub(super) struct Pre {
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) ignores_merges: bool,
    pub(super) adds_bos: bool,
    /// Set if the metadata does not name the model's family.
    pub(super) warning: Option<String>,
}

/// Returns the pre-tokenizer that the metadata names.
pub(super) fn read(meta: Meta<'_>) -> Result<Pre, CheckpointError> {
    // Files from before this key are read as llama.cpp reads them.
    let named = meta.text(PRE)?;
    let name = named.unwrap_or(DEFAULT);
    let family = FAMILIES.iter().find(|family| family.names.contains(&name)).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
        meta.unsupported(PRE, &Value::Text(name.to_owned()), &format!("supported are {}", known.join(", ")))
    })?;
    let mut steps: Vec<Json> = family.splits.iter().map(|pattern| split(pattern)).collect();
    steps.push(json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": family.gpt2,
    }));
    Ok(Pre {
        normalizer: if family.composes { json!({"type": "NFC"}) } else { Json::Null },
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": steps}),
        ignores_merges: family.ignores_merges,
        adds_bos: family.adds_bos,
        warning: (name == DEFAULT).then(|| unnamed(named)),
    })
}

/// The warning for a file that does not say how text is split into words.
fn unnamed(named: Option<&str>) -> String {
    let says = match named {
        Some(name) => format!("`{PRE}` is `{name}`, which names no family"),
        None => format!("`{PRE}` is missing"),
    };
    format!(
        "{says}, so texts are cut into words as llama.cpp does by default. They may become other tokens than the model was trained with, \
         and answers may be worse. Convert the model anew, or download a newer file"
    )
}

fn split(pattern: &str) -> Json {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}
