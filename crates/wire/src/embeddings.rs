//! Reads OpenAI's embeddings request: texts or token ids
//! (<https://platform.openai.com/docs/api-reference/embeddings/create>). Also reads the parameters that all encoder
//! calls share. Knows no tokenizer.

use headrace_domain::{
    Call, Code, EncodeText, EncodeWish, Endpoint, Prompt, PromptItem, SamplingRequest, ToEncode, VectorWish,
};

use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};
use crate::params::{Knobs, ids, integer, label};
use crate::refused::{self, Known};
use crate::{WireLimits, blank};

/// The most dimensions that a request may ask for. The model's own limit is checked later.
const MOST_DIMENSIONS: u32 = 1 << 17;

/// Reads the whole body.
pub(crate) fn read(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut knobs = Knobs::new(Endpoint::Embeddings, limits);
    let (mut texts, mut wish) = (None, VectorWish::default());
    r.object(|r, key| {
        match key.as_ref() {
            "input" => texts = r.optional(|r| read_input(r, limits))?,
            "encoding_format" => wish.base64 = r.optional(encoding_format)?.unwrap_or(false),
            "dimensions" => wish.dimensions = r.optional(|r| integer(r, 1, MOST_DIMENSIONS))?,
            "prompt_name" => wish.prompt_name = r.optional(|r| label(r, limits))?,
            key => common(&mut knobs, key, r, limits)?,
        }
        Ok(())
    })?;
    r.end()?;
    let texts = texts.ok_or_else(|| Fault::missing("input"))?;
    call(knobs, Endpoint::Embeddings, ToEncode { texts, wish: EncodeWish::Vectors(wish) })
}

/// Reads a parameter that every encoder call may have.
pub(crate) fn common(knobs: &mut Knobs<'_>, key: &str, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    match key {
        "model" | "headrace" | "timeout" => knobs.take_common(key, r).map(drop),
        "service_tier" | "user" | "safety_identifier" => knobs.take_openai(key, r).map(drop),
        _ => refused::read(Known::Encode, key, r, limits),
    }
}

/// Creates the call for texts to encode.
pub(crate) fn call(mut knobs: Knobs<'_>, endpoint: Endpoint, to_encode: ToEncode) -> Read<Call> {
    Ok(Call {
        sampling: SamplingRequest { max_tokens: Some(0), ..SamplingRequest::default() },
        include_usage: true,
        explain: knobs.explain,
        timeout: knobs.timeout,
        user: knobs.end_user(),
        tier: knobs.tier,
        ..Call::of_prompt(endpoint, knobs.named()?, Prompt::Encode(to_encode))
    })
}

/// The fault for more texts than one call may have.
pub(crate) fn too_many(limits: &WireLimits) -> Fault {
    let message = format!("there may be at most {}; send several requests", limits.max_encode_texts);
    Fault::new(Code::ArrayAboveMaxLength, message).of_parent()
}

fn encoding_format(r: &mut Reader<'_>) -> Read<bool> {
    match r.string()?.as_ref() {
        "float" => Ok(false),
        "base64" => Ok(true),
        _ => Err(Fault::new(Code::InvalidValue, "it must be `float` or `base64`")),
    }
}

/// Reads `"text"`, `["text", …]`, `[id, …]` or `[[id, …], …]`. The first item decides which.
fn read_input(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Vec<EncodeText>> {
    let text =
        |r: &mut Reader<'_>| Ok(EncodeText::One(PromptItem::Text(blank::visible(r.string()?)?.into_owned())));
    match r.kind()? {
        Kind::String => return Ok(vec![text(r)?]),
        Kind::Array => {}
        _ => return Err(wrong_type()),
    }
    let (mut first, mut texts, mut flat) = (None, Vec::new(), Vec::new());
    r.array(limits.max_prompt_ids, |r, index| {
        let kind = r.kind()?;
        if *first.get_or_insert(kind) != kind {
            let message = "all items must be of one type: strings, ids or lists of ids";
            return Err(Fault::new(Code::InvalidType, message));
        }
        if kind != Kind::Number && index >= limits.max_encode_texts {
            return Err(too_many(limits));
        }
        match kind {
            Kind::String => texts.push(text(r)?),
            Kind::Number => flat.push(integer(r, 0, u32::MAX)?),
            Kind::Array => {
                texts.push(EncodeText::One(PromptItem::Ids(some(ids(r, limits.max_prompt_ids)?)?)));
            }
            _ => return Err(wrong_type()),
        }
        Ok(())
    })?;
    if first == Some(Kind::Number) {
        texts.push(EncodeText::One(PromptItem::Ids(flat)));
    }
    some(texts)
}

pub(crate) fn some<T>(list: Vec<T>) -> Read<Vec<T>> {
    if list.is_empty() { Err(Fault::new(Code::EmptyArray, "it must not be empty")) } else { Ok(list) }
}

fn wrong_type() -> Fault {
    let message =
        "it must be a string, a list of strings, a list of token ids, or a list of lists of token ids";
    Fault::new(Code::InvalidType, message)
}
