//! Texts for an encoder as ids: with the model's own words before them, and its special tokens around them. Every text is the
//! caller's, so that none becomes a control token. Must not know what a model makes of ids.

use std::borrow::Cow;
use std::sync::Arc;

use headrace_domain::{Call, Code, EncodeText, EncodeWish, Endpoint, Prompt, PromptItem, Stage, ToEncode};

use crate::catalog::ServedModel;
use crate::lane::{Makes, VectorLane};
use crate::refused::Why;

/// The ids of each text, at most `most_tokens` of them in all.
pub(super) fn encode(
    model: &ServedModel,
    lane: &VectorLane,
    call: &Call,
    most_tokens: u32,
) -> Result<Vec<Arc<[u32]>>, Why> {
    let Prompt::Encode(ToEncode { texts, wish }) = &call.prompt else { return Err(encodes(model, lane)) };
    let prompt = match (wish, lane.makes) {
        (EncodeWish::Vectors(wish), Makes::Vectors { width }) => {
            if let Some(asked) = wish.dimensions.filter(|asked| *asked > width) {
                let message =
                    format!("`dimensions` is {asked}, and `{}` has {width}. Ask for fewer.", model.name);
                return Err(Why::new(Code::InvalidValue, message).at(Stage::Render).with_param("dimensions"));
            }
            named_prompt(model, lane, wish.prompt_name.as_deref())?
        }
        (EncodeWish::Scores(_), Makes::Scores) => None,
        _ => return Err(encodes(model, lane)),
    };
    let param = param(call);
    let window = lane.capabilities.context_window;
    let (mut total, mut encoded) = (0, Vec::with_capacity(texts.len()));
    for (index, text) in texts.iter().enumerate() {
        let ids = ids(model, lane, prompt, text)?;
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if count == 0 {
            let message = format!("Text {index} has no tokens; there is nothing to encode.");
            return Err(Why::new(Code::EmptyPrompt, message).with_param(param));
        }
        if count > window {
            let message = format!(
                "Text {index} has {count} tokens and `{}` takes {window} in one text. Shorten it, or split it.",
                model.name
            );
            return Err(Why::new(Code::ContextLengthExceeded, message).with_param(param));
        }
        total = count.saturating_add(total);
        if total > most_tokens {
            let message = format!(
                "The texts have more than {most_tokens} tokens together, counted up to text {index}, and one call may have \
                 {most_tokens}. Send several calls."
            );
            return Err(Why::new(Code::ContextLengthExceeded, message).with_param(param));
        }
        encoded.push(ids);
    }
    Ok(encoded)
}

fn ids(
    model: &ServedModel,
    lane: &VectorLane,
    prompt: Option<&str>,
    text: &EncodeText,
) -> Result<Arc<[u32]>, Why> {
    let wrong = |error: headrace_tokenizer::TokenizerError| {
        let message = format!("The text could not be rendered: {error}. Nothing was charged.");
        // What a tokenizer says may repeat the text.
        Why::new(Code::RenderFailed, message).keeping("The text could not be rendered.")
    };
    let ids = match text {
        EncodeText::One(PromptItem::Ids(ids)) => {
            let vocab = lane.capabilities.vocab;
            if let Some(id) = ids.iter().find(|id| **id >= vocab) {
                let message = format!(
                    "Token id {id} is not in the vocabulary of `{}`, whose last id is {}. Ids are those of the model's own \
                     tokenizer; send text where you have another one's.",
                    model.name,
                    vocab.saturating_sub(1)
                );
                return Err(Why::new(Code::InvalidValue, message).at(Stage::Render).with_param("input"));
            }
            return Ok(ids.as_slice().into());
        }
        EncodeText::One(PromptItem::Text(text)) => {
            let text = match prompt {
                Some(prompt) => Cow::Owned(format!("{prompt}{text}")),
                None => Cow::Borrowed(text.as_str()),
            };
            lane.tokenizer.encode_plain(&cased(lane, &text), true).map_err(wrong)?
        }
        EncodeText::Pair(query, document) => {
            lane.tokenizer.encode_pair(&cased(lane, query), &cased(lane, document)).map_err(wrong)?
        }
    };
    Ok(ids.into())
}

fn cased<'t>(lane: &VectorLane, text: &'t str) -> Cow<'t, str> {
    if lane.lower_case { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) }
}

/// What is put before each text.
fn named_prompt<'l>(
    model: &ServedModel,
    lane: &'l VectorLane,
    name: Option<&str>,
) -> Result<Option<&'l str>, Why> {
    let Some(name) = name else { return Ok(lane.default_prompt.as_deref()) };
    lane.prompts.get(name).map(|prompt| Some(prompt.as_str())).ok_or_else(|| {
        let known: Vec<&str> = lane.prompts.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message =
            format!("`{}` has no prompt of this name; it has {known}. Leave `prompt_name` out.", model.name);
        Why::new(Code::InvalidValue, message).at(Stage::Render).with_param("prompt_name")
    })
}

fn param(call: &Call) -> &'static str {
    match call.endpoint {
        Endpoint::Rerank => "documents",
        Endpoint::Score => "text_2",
        _ => "input",
    }
}

/// The refusal of what an encoder does not do.
fn encodes(model: &ServedModel, lane: &VectorLane) -> Why {
    let (makes, instead) = match lane.makes {
        Makes::Vectors { .. } => ("makes embeddings", "`POST /v1/embeddings`"),
        Makes::Scores => ("scores pairs of texts", "`POST /v1/rerank` or `POST /v1/score`"),
    };
    let message =
        format!("The model `{}` {makes}, and nothing else. Use {instead}, or another model.", model.name);
    Why::new(Code::WrongKindOfModel, message).with_param("model")
}

/// The refusal of vectors and scores where text is generated.
pub(super) fn generates(model: &ServedModel) -> Why {
    let message = format!(
        "The model `{}` generates text: it makes no embeddings and scores nothing. Use `POST /v1/chat/completions`, or a model \
         that is an encoder.",
        model.name
    );
    Why::new(Code::WrongKindOfModel, message).with_param("model")
}
