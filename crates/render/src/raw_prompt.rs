//! Encodes raw prompts: as plain text, with spelled-out control tokens if that is allowed, or around a gap, with the
//! marks that the model was trained on. Must not know who computes.

use std::sync::Arc;

use headrace_call_state::{Rejection, TokenizerMemory};
use headrace_catalog::{ServedModel, TokenBackend};
use headrace_domain::{Call, Code, KeyId, PromptItem, Stage};
use headrace_tokenizer::{Segment, Tokenizer};

use crate::encode_prompt::{not_encoded, out_of_vocabulary};

/// How a family of models writes a gap that is to be filled.
struct FillMarkup {
    /// The first, middle and last mark.
    marks: [&'static str; 3],
    /// The text after the gap comes before the text that precedes the gap.
    suffix_first: bool,
    /// The token that ends the filling, besides the model's own end.
    end: Option<&'static str>,
}

/// The known families. A model belongs to the first one whose marks are all in its vocabulary.
const FILLS: &[FillMarkup] = &[
    // Qwen 2.5 Coder, CodeGemma. <https://github.com/QwenLM/Qwen2.5-Coder>
    FillMarkup::new(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]),
    // StarCoder, StarCoder 2, Granite Code. <https://huggingface.co/bigcode/starcoder2-15b>
    FillMarkup::new(["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]),
    // SantaCoder. <https://huggingface.co/bigcode/santacoder>
    FillMarkup::new(["<fim-prefix>", "<fim-suffix>", "<fim-middle>"]),
    // DeepSeek Coder and V2, V3. <https://github.com/deepseek-ai/DeepSeek-Coder>
    FillMarkup::new(["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"]),
    // GLM. <https://huggingface.co/zai-org/codegeex4-all-9b>
    FillMarkup::new(["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"]),
    // Code Llama. <https://huggingface.co/docs/transformers/model_doc/code_llama>
    FillMarkup { end: Some("▁<EOT>"), ..FillMarkup::new(["▁<PRE>", "▁<SUF>", "▁<MID>"]) },
    // Codestral. <https://docs.mistral.ai/capabilities/code_generation>
    FillMarkup { suffix_first: true, ..FillMarkup::new(["[SUFFIX]", "[PREFIX]", ""]) },
];

impl FillMarkup {
    const fn new(marks: [&'static str; 3]) -> Self {
        Self { marks, suffix_first: false, end: None }
    }

    fn of(tokenizer: &Tokenizer) -> Option<&'static Self> {
        let known =
            |mark: &str| mark.is_empty() || tokenizer.id_of(mark).is_some_and(|id| tokenizer.is_markup(id));
        FILLS.iter().find(|fill| fill.marks.into_iter().all(known))
    }
}

/// Checks whether a call may spell out control tokens.
///
/// # Errors
/// It may not. Names the setting.
pub fn may_spell(model: &ServedModel, call: &Call, key: &KeyId) -> Result<(), Rejection> {
    if !call.dialect.parse_special() || model.policy.parse_special.allows(key) {
        return Ok(());
    }
    let message = format!(
        "`parse_special`: control tokens spelt out in prompts are not taken as such from this key at `{}`. Its operator allows \
         that by `parse_special` in `[[models]]`: a list of keys, or \"all\". Leave it out, or send the prompt as token ids.",
        model.name
    );
    Err(Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param("parse_special"))
}

/// A token id that ends a filling, besides the model's own end.
pub fn end_of_fill(backend: &TokenBackend, call: &Call) -> Option<u32> {
    call.dialect.suffix()?;
    backend.tokenizer.id_of(FillMarkup::of(&backend.tokenizer)?.end?)
}

/// Encodes prompt number `index` of a call.
///
/// # Errors
/// The prompt has no tokens or unknown ones, the model fills no gaps, or there is too little memory.
pub fn encode_raw_prompt(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    (index, item): (usize, &PromptItem),
    room: TokenizerMemory<'_>,
) -> Result<Arc<[u32]>, Rejection> {
    let ids: Arc<[u32]> = match (item, call.dialect.suffix()) {
        (PromptItem::Text(text), Some(suffix)) => fill(model, backend, call, (text, suffix), room)?,
        (PromptItem::Text(text), None) => text_ids(backend, call.dialect.parse_special(), text, room)?,
        (PromptItem::Ids(ids), _) => {
            if let Some(id) = ids.iter().find(|id| **id >= backend.capabilities.vocab) {
                return Err(out_of_vocabulary("prompt", *id, model, &backend.capabilities));
            }
            ids.as_slice().into()
        }
    };
    if ids.is_empty() {
        let message = format!("Prompt {index} has no tokens; there is nothing to continue.");
        return Err(Rejection::new(Code::EmptyPrompt, message).at(Stage::Render).with_param("prompt"));
    }
    Ok(ids)
}

fn text_ids(
    backend: &TokenBackend,
    parse_special: bool,
    text: &str,
    room: TokenizerMemory<'_>,
) -> Result<Arc<[u32]>, Rejection> {
    let tokenizer = &backend.tokenizer;
    let prefix = tokenizer.prefix();
    let ids = room.encode(usize::MAX, |bounds| match parse_special {
        true => tokenizer.encode_within(text, true, bounds),
        false => tokenizer.encode_plain_within(text, true, bounds),
    });
    let ids = ids.map_err(not_encoded)?;
    // A prompt that spells out its own prefix does not get a second one.
    let twice = parse_special && !prefix.is_empty() && {
        let rest = ids.get(prefix.len()..).unwrap_or_default();
        rest.starts_with(prefix)
    };
    Ok(if twice { ids.get(prefix.len()..).unwrap_or_default().into() } else { ids.into() })
}

/// Encodes the text around a gap with the marks of the model's family. The text between the marks is the caller's: it
/// yields no control tokens unless the call may spell them out.
fn fill(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    (before, after): (&str, &str),
    room: TokenizerMemory<'_>,
) -> Result<Arc<[u32]>, Rejection> {
    let tokenizer = &backend.tokenizer;
    let Some(fill) = FillMarkup::of(tokenizer) else {
        let message = format!(
            "`suffix`: `{}` has none of the tokens by which models are taught to fill a gap. Leave it out, or use a model for code.",
            model.name
        );
        return Err(Rejection::new(Code::UnsupportedParameter, message)
            .at(Stage::Render)
            .with_param("suffix"));
    };
    let words =
        |text| if call.dialect.parse_special() { Segment::Trusted(text) } else { Segment::Literal(text) };
    let [first, second, last] = fill.marks.map(Segment::Trusted);
    let (before, after) = (words(before), words(after));
    let (one, two) = if fill.suffix_first { (after, before) } else { (before, after) };
    let mut ids = tokenizer.prefix().to_vec();
    let segments = [first, one, second, two, last];
    let text = room.encode(usize::MAX, |bounds| tokenizer.encode_segments_within(&segments, false, bounds));
    ids.extend(text.map_err(not_encoded)?);
    Ok(ids.into())
}
