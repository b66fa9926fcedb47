//! Reads requests that score pairs of texts: Jina's and Cohere's reranking (`query` and `documents`), vLLM's scoring
//! (`text_1` and `text_2`). Knows no tokenizer.

use std::sync::Arc;

use headrace_domain::{Call, Code, EncodeText, EncodeWish, Endpoint, ScoreWish, ToEncode};

use crate::common::blank;
use crate::common::params::{CommonParams, integer};
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;
use crate::openai::embeddings::{call, common, some, too_many};

/// Reads the whole body of a reranking.
pub(crate) fn read_rerank(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::Rerank, limits);
    let (mut query, mut documents, mut wish) = (None, None, ScoreWish::default());
    r.object(|r, key| {
        match key.as_ref() {
            "query" => query = r.optional(text)?,
            "documents" => documents = r.optional(|r| texts(r, limits))?,
            "top_n" => wish.top_n = r.optional(|r| integer(r, 1, u32::MAX))?,
            "return_documents" => wish.return_documents = r.optional(JsonReader::bool)?.unwrap_or(false),
            key => common(&mut params, key, r, limits)?,
        }
        Ok(())
    })?;
    r.end()?;
    let query = query.ok_or_else(|| FieldFault::missing("query"))?;
    let documents = some(documents.ok_or_else(|| FieldFault::missing("documents"))?);
    let documents = documents.map_err(|fault| fault.under_key("documents"))?;
    let texts =
        documents.into_iter().map(|document| EncodeText::Pair(Arc::clone(&query), document)).collect();
    call(params, Endpoint::Rerank, ToEncode { texts, wish: EncodeWish::Scores(wish) })
}

/// Reads the whole body of a scoring: one text against each of several, or two lists of the same length, pair by pair.
pub(crate) fn read_score(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::Score, limits);
    let (mut first, mut second) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "text_1" => first = r.optional(|r| one_or_more(r, limits))?,
            "text_2" => second = r.optional(|r| one_or_more(r, limits))?,
            key => common(&mut params, key, r, limits)?,
        }
        Ok(())
    })?;
    r.end()?;
    let given = |texts: Option<Vec<Arc<str>>>, key: &str| {
        some(texts.ok_or_else(|| FieldFault::missing(key))?).map_err(|fault| fault.under_key(key))
    };
    let (first, second) = (given(first, "text_1")?, given(second, "text_2")?);
    if first.len() != 1 && first.len() != second.len() {
        let message =
            format!("it has {} texts and `text_1` {}: as many, or one there", second.len(), first.len());
        return Err(FieldFault::at("text_2", Code::InvalidValue, message));
    }
    let texts = first.iter().cycle().zip(second);
    let texts = texts.map(|(first, second)| EncodeText::Pair(Arc::clone(first), second)).collect();
    call(params, Endpoint::Score, ToEncode { texts, wish: EncodeWish::Scores(ScoreWish::default()) })
}

/// Reads a text, given directly or as an object with the field `text`.
fn text(r: &mut JsonReader<'_>) -> Read<Arc<str>> {
    if r.kind()? != ValueKind::Object {
        return Ok(Arc::from(&*blank::visible(r.string()?)?));
    }
    let mut text = None;
    r.object(|r, key| match key.as_ref() {
        "text" => {
            text = Some(Arc::from(&*blank::visible(r.string()?)?));
            Ok(())
        }
        _ => Err(FieldFault::new(Code::UnsupportedParameter, "a document is one text; leave it out")),
    })?;
    text.ok_or_else(|| FieldFault::missing("text"))
}

fn texts(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<Arc<str>>> {
    let mut texts = Vec::new();
    r.array(limits.max_encode_texts.saturating_add(1), |r, index| {
        if index >= limits.max_encode_texts {
            return Err(too_many(limits));
        }
        texts.push(text(r)?);
        Ok(())
    })?;
    Ok(texts)
}

fn one_or_more(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<Arc<str>>> {
    match r.kind()? {
        ValueKind::Array => texts(r, limits),
        _ => Ok(vec![text(r)?]),
    }
}
