//! Pre-tokenizers of byte-level BPE, by their names in GGUF. The names are those of llama.cpp's
//! `src/llama-vocab.cpp`. The expressions are those of the published `tokenizer.json` files of each family, which
//! llama.cpp sometimes rewrites for its own engine. Must not know vocabularies.

use serde_json::{Value as Json, json};

use crate::error::CheckpointError;
use crate::gguf::meta::Meta;
use crate::gguf::value::Value;

const PRE: &str = "tokenizer.ggml.pre";

/// The name that older converters wrote for families that they did not know.
const DEFAULT: &str = "default";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's expression, with marks joined to letters. Source: the `tokenizer.json` of Qwen3.5.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Another spelling of Qwen 2's expression. Source: the `tokenizer.json` of Ling 2.
const LING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's expression with ideographs apart, and without the slash after punctuation. Source: `tokenization_kimi.py` of
/// Kimi K2.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Hangul, CJK punctuation, Bopomofo, and ideographs with kana, each apart. Source: llama.cpp.
const YOUTU_SCRIPTS: &str = "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
/// GPT-4o's expression with single digits. Source: llama.cpp.
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Groups of three digits, counted from the last digit: the first group has one to three. llama.cpp does the same in a
/// function. Only the first group looks ahead, so the work grows with the text's length and not with its square.
const AFMOE_DIGITS: &str = r"(?<!\p{N})\p{N}{1,2}(?=(?>(?:\p{N}{3})+)(?!\p{N}))|\p{N}{1,3}";
/// Ideographs, kana, Thai, Lao, Khmer, Myanmar and Hangul, together. Source: llama.cpp.
const AFMOE_SCRIPTS: &str = "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+";
/// The place behind the first digits of a number that whole groups of three follow. With [`SUPERBPE_GROUPS`], it cuts as
/// `(?=(\d{3})+(?!\d))` of OLMo2-SuperBPE's `tokenizer.json` does, which looks ahead from every digit.
const SUPERBPE_FIRST: &str = r"(?<!\d)\d{0,2}\K(?=(?>(?:\d{3})+)(?!\d))";
const SUPERBPE_GROUPS: &str = r"\d{3}(?=\d)";
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

const FAMILIES: &[Family] = &[
    Family {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "mellum",
            "olmo",
            "trillion",
            "exaone4",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
        ],
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
    Family { names: &["glm4", "chatglm-bpe", "dbrx", "smaug-bpe"], splits: &[LLAMA3], ..PLAIN },
    Family {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "megrez", "f2llmv2"],
        splits: &[QWEN2],
        composes: true,
        ..PLAIN
    },
    Family { names: &["qwen35"], splits: &[QWEN35], composes: true, ..PLAIN },
    Family { names: &["bailingmoe", "bailingmoe2", "llada-moe"], splits: &[LING], composes: true, ..PLAIN },
    Family {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        splits: &[DIGIT],
        gpt2: true,
        ..PLAIN
    },
    Family { names: &["command-r"], splits: &[DIGIT], gpt2: true, composes: true, ..PLAIN },
    Family { names: &["tekken"], splits: &[TEKKEN], ignores_merges: true, adds_bos: true, ..PLAIN },
    Family { names: &["stablelm2", "hunyuan", "grok-2", "solar-open"], splits: &[QWEN2], ..PLAIN },
    Family {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        splits: &[UP_TO_THREE_DIGITS, IDEOGRAPHS_AND_KANA, DEEPSEEK_V3],
        ..PLAIN
    },
    Family {
        names: &["deepseek-coder"],
        splits: &[LINE_END, SPACED_LETTERS, SPACED_MARKS, IDEOGRAPHS_AND_HANGUL, DIGIT],
        ..PLAIN
    },
    Family { names: &["gpt-4o", "llama4", "kanana2", "talkie"], splits: &[GPT4O], ..PLAIN },
    Family { names: &["minimax-m2"], splits: &[GPT4O], composes: true, ..PLAIN },
    Family { names: &["kimi-k2"], splits: &[KIMI_K2], ..PLAIN },
    Family { names: &["youtu"], splits: &[YOUTU_SCRIPTS, YOUTU], ignores_merges: true, ..PLAIN },
    Family { names: &["afmoe"], splits: &[AFMOE_DIGITS, AFMOE_SCRIPTS, DEEPSEEK_V3], ..PLAIN },
    Family { names: &["superbpe"], splits: &[DIGITS, SUPERBPE_FIRST, SUPERBPE_GROUPS], ..PLAIN },
    Family { names: &["seed-coder"], splits: &[SEED_CODER], ..PLAIN },
    Family { names: &["falcon"], splits: &[FALCON_PUNCTUATION, GPT2, THREE_DIGITS], ..PLAIN },
    Family { names: &["default"], splits: &[PUNCTUATION, GPT2, DIGITS, THREE_DIGITS], ..PLAIN },
];

/// Returns the values of `tokenizer.ggml.pre` that are read.
pub fn pre_tokenizers() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.names).copied()
}

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
        let known: Vec<&str> = pre_tokenizers().collect();
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
