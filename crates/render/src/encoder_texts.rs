//! Encodes texts for an encoder, with the model's own prompt before them and its special tokens around them. Every text
//! is the caller's, so none becomes a control token. Must not know what a model computes from ids.

use std::borrow::Cow;
use std::sync::Arc;

use headrace_call_state::{NotEncoded, Rejection, TokenizerMemory};
use headrace_catalog::{EncoderOutput, ServedModel, VectorBackend};
use headrace_domain::{Call, Code, EncodeText, EncodeWish, Endpoint, Prompt, PromptItem, Stage, ToEncode};
use headrace_tokenizer::{Bounds, TokenizerError};

use crate::encode_prompt::not_encoded;

/// Lower-casing divides the bytes of a text by at most this. (The Kelvin sign has three bytes, its lower-case letter
/// one.)
const LOWER_CASE_SHORTENS_BY: usize = 3;

/// The ids of each text, at most `most_tokens` of them in all.
///
/// # Errors
/// A text is empty or too long, the model makes something else, or there is too little memory.
pub fn encode_texts(
    model: &ServedModel,
    backend: &VectorBackend,
    call: &Call,
    most_tokens: u32,
    room: TokenizerMemory<'_>,
) -> Result<Vec<Arc<[u32]>>, Rejection> {
    let Prompt::Encode(ToEncode { texts, wish }) = &call.prompt else {
        return Err(encoder_rejection(model, backend));
    };
    let prompt = match (wish, backend.makes) {
        (EncodeWish::Vectors(wish), EncoderOutput::Vectors { width }) => {
            if let Some(asked) = wish.dimensions.filter(|asked| *asked > width) {
                let message =
                    format!("`dimensions` is {asked}, and `{}` has {width}. Ask for fewer.", model.name);
                return Err(Rejection::new(Code::InvalidValue, message)
                    .at(Stage::Render)
                    .with_param("dimensions"));
            }
            named_prompt(model, backend, wish.prompt_name.as_deref())?
        }
        (EncodeWish::Scores(_), EncoderOutput::Scores) => None,
        _ => return Err(encoder_rejection(model, backend)),
    };
    let param = param(call);
    let window = backend.capabilities.context_window;
    let (mut total, mut encoded) = (0, Vec::with_capacity(texts.len()));
    let mut query = SharedQuery::default();
    for (index, text) in texts.iter().enumerate() {
        could_fit(model, backend, (index, text), param)?;
        // A text that is too long is encoded only until that is certain.
        let ids =
            match room.encode(window as usize, |bounds| ids(backend, prompt, text, (&mut query, bounds))) {
                Err(NotEncoded::TooMany) => {
                    return Err(window_exceeded(model, index, &format!("more than {window}"), param));
                }
                Err(NotEncoded::NoMemory(full)) => return Err(full.at(Stage::Render).with_param(param)),
                Err(NotEncoded::Failed(error)) => return Err(wrong(&error)),
                Ok(ids) => ids,
            };
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if count == 0 {
            let message = format!("Text {index} has no tokens; there is nothing to encode.");
            return Err(Rejection::new(Code::EmptyPrompt, message).at(Stage::Render).with_param(param));
        }
        total = count.saturating_add(total);
        if total > most_tokens {
            let message = format!(
                "The texts have more than {most_tokens} tokens together, counted up to text {index}, and one call may have \
                 {most_tokens}. Send several calls."
            );
            return Err(Rejection::new(Code::ContextLengthExceeded, message).with_param(param));
        }
        encoded.push(ids);
    }
    Ok(encoded)
}

/// The ids of one text as the model receives them, with its special tokens if `adds_special`.
///
/// # Errors
/// The text is longer than the model's window, or there is too little memory.
pub fn text_ids(
    model: &ServedModel,
    backend: &VectorBackend,
    text: String,
    adds_special: bool,
    room: TokenizerMemory<'_>,
) -> Result<Vec<u32>, Rejection> {
    let cased = cased(backend, &text).into_owned();
    could_fit(model, backend, (0, &EncodeText::One(PromptItem::Text(text))), "prompt")?;
    let ids =
        room.encode(usize::MAX, |bounds| backend.tokenizer.encode_plain_within(&cased, adds_special, bounds));
    ids.map_err(not_encoded)
}

/// Rejects a text that cannot fit the window under any tokenization, and ids outside the model's vocabulary.
fn could_fit(
    model: &ServedModel,
    backend: &VectorBackend,
    (index, text): (usize, &EncodeText),
    param: &str,
) -> Result<(), Rejection> {
    let window = backend.capabilities.context_window as usize;
    let texts = match text {
        EncodeText::One(PromptItem::Ids(ids)) => {
            let vocab = backend.capabilities.vocab;
            if let Some(id) = ids.iter().find(|id| **id >= vocab) {
                let message = format!(
                    "Token id {id} is not in the vocabulary of `{}`, whose last id is {}. Ids are those of the model's own \
                     tokenizer; send text where you have another one's.",
                    model.name,
                    vocab.saturating_sub(1)
                );
                return Err(Rejection::new(Code::InvalidValue, message)
                    .at(Stage::Render)
                    .with_param("input"));
            }
            if ids.len() > window {
                return Err(window_exceeded(model, index, &ids.len().to_string(), param));
            }
            return Ok(());
        }
        EncodeText::One(PromptItem::Text(text)) => [text.as_str(), ""],
        EncodeText::Pair(query, document) => [&**query, &**document],
    };
    let bytes = texts.iter().map(|text| text.trim().len()).sum::<usize>();
    match backend.tokenizer.most_bytes_per_token() {
        Some(each) if bytes > window.saturating_mul(each).saturating_mul(LOWER_CASE_SHORTENS_BY) => {
            Err(window_exceeded(model, index, &format!("more than {window}"), param))
        }
        _ => Ok(()),
    }
}

fn window_exceeded(model: &ServedModel, index: usize, tokens: &str, param: &str) -> Rejection {
    let window = model.backend.context_window().unwrap_or(0);
    let message = format!(
        "Text {index} has {tokens} tokens and `{}` takes {window} in one text. Shorten it, or split it.",
        model.name
    );
    Rejection::new(Code::ContextLengthExceeded, message).with_param(param)
}

fn wrong(error: &TokenizerError) -> Rejection {
    let message = format!("The text could not be rendered: {error}. Nothing was charged.");
    // The tokenizer's message may repeat the text.
    Rejection::new(Code::RenderFailed, message).keeping("The text could not be rendered.")
}

/// The first text of the previous pair, and its ids. Most pairs of a call share their first text.
#[derive(Default)]
struct SharedQuery {
    text: Option<Arc<str>>,
    ids: Vec<u32>,
}

fn ids(
    backend: &VectorBackend,
    prompt: Option<&str>,
    text: &EncodeText,
    (known, bounds): (&mut SharedQuery, &Bounds<'_>),
) -> Result<Arc<[u32]>, TokenizerError> {
    let ids = match text {
        EncodeText::One(PromptItem::Ids(ids)) => return Ok(ids.as_slice().into()),
        EncodeText::One(PromptItem::Text(text)) => {
            let text = match prompt {
                Some(prompt) => Cow::Owned(format!("{prompt}{text}")),
                None => Cow::Borrowed(text.as_str()),
            };
            backend.tokenizer.encode_plain_within(&cased(backend, &text), true, bounds)?
        }
        EncodeText::Pair(query, document) => {
            if known.text.as_ref().is_none_or(|text| !Arc::ptr_eq(text, query)) {
                known.ids = backend.tokenizer.encode_plain_within(&cased(backend, query), false, bounds)?;
                known.text = Some(Arc::clone(query));
            }
            backend.tokenizer.encode_pair_within(&known.ids, &cased(backend, document), bounds)?
        }
    };
    Ok(ids.into())
}

fn cased<'t>(backend: &VectorBackend, text: &'t str) -> Cow<'t, str> {
    if backend.lower_case { Cow::Owned(text.to_lowercase()) } else { Cow::Borrowed(text) }
}

/// The prompt that is put before each text.
fn named_prompt<'l>(
    model: &ServedModel,
    backend: &'l VectorBackend,
    name: Option<&str>,
) -> Result<Option<&'l str>, Rejection> {
    let Some(name) = name else { return Ok(backend.default_prompt.as_deref()) };
    backend.prompts.get(name).map(|prompt| Some(prompt.as_str())).ok_or_else(|| {
        let known: Vec<&str> = backend.prompts.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message =
            format!("`{}` has no prompt of this name; it has {known}. Leave `prompt_name` out.", model.name);
        Rejection::new(Code::InvalidValue, message).at(Stage::Render).with_param("prompt_name")
    })
}

fn param(call: &Call) -> &'static str {
    match call.endpoint {
        Endpoint::Rerank => "documents",
        Endpoint::Score => "text_2",
        _ => "input",
    }
}

/// The rejection of a call that an encoder cannot serve.
pub fn encoder_rejection(model: &ServedModel, backend: &VectorBackend) -> Rejection {
    let (makes, instead) = match backend.makes {
        EncoderOutput::Vectors { .. } => ("makes embeddings", "`POST /v1/embeddings`"),
        EncoderOutput::Scores => ("scores pairs of texts", "`POST /v1/rerank` or `POST /v1/score`"),
    };
    let message =
        format!("The model `{}` {makes}, and nothing else. Use {instead}, or another model.", model.name);
    Rejection::new(Code::WrongKindOfModel, message).with_param("model")
}

/// The rejection of embeddings and scores by a model that generates text.
pub fn generator_rejection(model: &ServedModel) -> Rejection {
    let message = format!(
        "The model `{}` generates text: it makes no embeddings and scores nothing. Use `POST /v1/chat/completions`, or a model \
         that is an encoder.",
        model.name
    );
    Rejection::new(Code::WrongKindOfModel, message).with_param("model")
}
