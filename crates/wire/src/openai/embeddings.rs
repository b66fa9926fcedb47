//! Reads OpenAI's embeddings request: texts or token ids
//! (<https://platform.openai.com/docs/api-reference/embeddings/create>). Also reads the parameters that all encoder
//! calls share. Knows no tokenizer.

use headrace_domain::{
    Call, Code, EncodeText, EncodeWish, Endpoint, Prompt, PromptItem, SamplingRequest, ToEncode, VectorWish,
};

use crate::common::blank;
use crate::common::blank::not_empty;
use crate::common::params::{CommonParams, ids, integer, label};
use crate::common::refused;
use crate::common::refused::KnownParameters;
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The most dimensions that a request may ask for. The model's own limit is checked later.
const MOST_DIMENSIONS: u32 = 1 << 17;

/// Reads the whole body.
pub(crate) fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::Embeddings, limits);
    let (mut texts, mut wish) = (None, VectorWish::default());
    r.object(|r, key| {
        match key.as_ref() {
            "input" => texts = r.optional(|r| read_input(r, limits))?,
            "encoding_format" => wish.base64 = r.optional(encoding_format)?.unwrap_or(false),
            "dimensions" => wish.dimensions = r.optional(|r| integer(r, 1, MOST_DIMENSIONS))?,
            "prompt_name" => wish.prompt_name = r.optional(|r| label(r, limits))?,
            key => common(&mut params, key, r, limits)?,
        }
        Ok(())
    })?;
    r.end()?;
    let texts = texts.ok_or_else(|| FieldFault::missing("input"))?;
    call(params, Endpoint::Embeddings, ToEncode { texts, wish: EncodeWish::Vectors(wish) })
}

/// Reads a parameter that every encoder call may have.
pub(crate) fn common(
    params: &mut CommonParams<'_>,
    key: &str,
    r: &mut JsonReader<'_>,
    limits: &WireLimits,
) -> Read<()> {
    match key {
        "model" | "headrace" | "timeout" => params.take_common(key, r).map(drop),
        "service_tier" | "user" | "safety_identifier" => params.take_openai(key, r).map(drop),
        _ => refused::read(KnownParameters::Encode, key, r, limits),
    }
}

/// Creates the call for texts to encode.
pub(crate) fn call(mut params: CommonParams<'_>, endpoint: Endpoint, to_encode: ToEncode) -> Read<Call> {
    Ok(Call {
        sampling: SamplingRequest { max_tokens: Some(0), ..SamplingRequest::default() },
        include_usage: true,
        explain: params.explain,
        timeout: params.timeout,
        user: params.end_user(),
        tier: params.tier,
        ..Call::of_prompt(endpoint, params.named()?, Prompt::Encode(to_encode))
    })
}

/// The fault for more texts than one call may have.
pub(crate) fn too_many(limits: &WireLimits) -> FieldFault {
    let message = format!("there may be at most {}; send several requests", limits.max_encode_texts);
    FieldFault::new(Code::ArrayAboveMaxLength, message).of_parent()
}

fn encoding_format(r: &mut JsonReader<'_>) -> Read<bool> {
    match r.string()?.as_ref() {
        "float" => Ok(false),
        "base64" => Ok(true),
        _ => Err(FieldFault::new(Code::InvalidValue, "it must be `float` or `base64`")),
    }
}

/// Reads `"text"`, `["text", …]`, `[id, …]` or `[[id, …], …]`. The first item decides which.
fn read_input(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<EncodeText>> {
    let text = |r: &mut JsonReader<'_>| {
        Ok(EncodeText::One(PromptItem::Text(blank::visible(r.string()?)?.into_owned())))
    };
    match r.kind()? {
        ValueKind::String => return Ok(vec![text(r)?]),
        ValueKind::Array => {}
        _ => return Err(wrong_type()),
    }
    let (mut first, mut texts, mut flat) = (None, Vec::new(), Vec::new());
    r.array(limits.max_prompt_ids, |r, index| {
        let kind = r.kind()?;
        if *first.get_or_insert(kind) != kind {
            let message = "all items must be of one type: strings, ids or lists of ids";
            return Err(FieldFault::new(Code::InvalidType, message));
        }
        if kind != ValueKind::Number && index >= limits.max_encode_texts {
            return Err(too_many(limits));
        }
        match kind {
            ValueKind::String => texts.push(text(r)?),
            ValueKind::Number => flat.push(integer(r, 0, u32::MAX)?),
            ValueKind::Array => {
                texts.push(EncodeText::One(PromptItem::Ids(some(ids(r, limits.max_prompt_ids)?)?)));
            }
            _ => return Err(wrong_type()),
        }
        Ok(())
    })?;
    if first == Some(ValueKind::Number) {
        texts.push(EncodeText::One(PromptItem::Ids(flat)));
    }
    some(texts)
}

pub(crate) fn some<T>(list: Vec<T>) -> Read<Vec<T>> {
    not_empty(list.len()).map(|()| list)
}

fn wrong_type() -> FieldFault {
    let message =
        "it must be a string, a list of strings, a list of token ids, or a list of lists of token ids";
    FieldFault::new(Code::InvalidType, message)
}
