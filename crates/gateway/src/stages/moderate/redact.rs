//! Redacts a call by the rules on what callers send: everything that a model or its server may read, in the order of the
//! prompt. What the client stores and what its answer repeats stays as the client sent it. Must not know the answer.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_state::Rejection;
use headrace_catalog::ServedModel;
use headrace_domain::{
    Call, Code, Conversation, CustomInput, DialectExtras, EncodeText, Endpoint, MediaSource, Message, Prompt,
    PromptItem, RelayedBody, ResponseFormat, Stage, ToEncode,
};
use headrace_moderation::{InputRedactions, PlaceholderMap, RequestRedactor};
use headrace_relay::{BodyStringForm, body_strings, response_state, with_strings};
use serde_json::Value;

use crate::kept_request::KeptRequest;

use super::texts::each_text;

/// Copies of a call's body that are kept beside it.
#[derive(Default)]
pub(super) struct KeptBodies {
    /// For a model that takes another reading of the call.
    pub(super) fallback: Option<Bytes>,
    /// For the record of the call.
    pub(super) recorded: Option<Box<KeptRequest>>,
}

/// Redacts a call and the copies of its body. Returns the placeholders that an answer gets values for. `None` if there are
/// none.
///
/// # Errors
/// A rule finds something in token ids or in a grammar, which cannot be changed.
pub(super) fn redact(
    rules: &Arc<InputRedactions>,
    model: &ServedModel,
    call: &mut Call,
    bodies: &mut KeptBodies,
) -> Result<Option<Arc<PlaceholderMap>>, Rejection> {
    let mut redactor = RequestRedactor::new(rules);
    each_text(model, call, &mut |text, _| redactor.reserve(text));
    call.sampling
        .stop
        .iter()
        .chain(call.dialect.suffix().map(str::to_owned).as_ref())
        .for_each(|text| redactor.reserve(text));
    if let Prompt::Relayed(relayed) = &call.prompt {
        reserve_body(&mut redactor, &relayed.body);
    }
    let kept = bodies.fallback.iter().chain(bodies.recorded.as_ref().map(|recorded| &recorded.body));
    kept.for_each(|body| reserve_body(&mut redactor, body));
    match &mut call.prompt {
        Prompt::Conversation(conversation) => redact_conversation(&mut redactor, conversation)?,
        Prompt::Raw(items) => {
            for item in items {
                redact_item(&mut redactor, model, item)?;
            }
        }
        Prompt::Encode(to_encode) => redact_encoded(&mut redactor, model, to_encode)?,
        Prompt::Relayed(relayed) => redact_relayed(&mut redactor, relayed),
    }
    if let DialectExtras::Completions(extras) = &mut call.dialect {
        extras.suffix.iter_mut().for_each(|suffix| redact_text(&mut redactor, suffix));
    }
    if let Some(form) = &mut call.form {
        let mut redacted = (**form).clone();
        redact_form(&mut redactor, &mut redacted)?;
        *form = Arc::new(redacted);
    }
    call.sampling.stop.iter_mut().for_each(|stop| redact_text(&mut redactor, stop));
    if let (Some(recorded), Some(ask)) = (&mut bodies.recorded, call.dialect.response()) {
        recorded.echo = redacted_echo(&mut redactor, &ask.echo);
    }
    let recorded = bodies.recorded.as_mut().map(|recorded| &mut recorded.body);
    for body in bodies.fallback.iter_mut().chain(recorded) {
        if let Some(redacted) = redacted_body(&mut redactor, body) {
            *body = redacted;
        }
    }
    let map = redactor.into_map();
    if map.is_some() && continues_elsewhere(call) {
        let message = "A rule on content replaces a part of the call by placeholders, and the response that it continues is \
                       kept by its server, with placeholders of another call. Send the history in `input`. Nothing was \
                       charged.";
        return Err(unchangeable(message).with_param("previous_response_id"));
    }
    Ok(map)
}

/// Whether a server keeps a part of the conversation, so that its placeholders are not known here.
fn continues_elsewhere(call: &Call) -> bool {
    match &call.prompt {
        Prompt::Relayed(relayed) if call.endpoint == Endpoint::Responses => {
            response_state(&relayed.body).previous.is_some()
        }
        _ => false,
    }
}

/// What a response repeats of its call, for the record: fields of JSON, each with a comma. `None` if it stays as it is.
fn redacted_echo(redactor: &mut RequestRedactor, echo: &str) -> Option<String> {
    let redacted = redacted_body(redactor, format!("{{{echo}}}").as_bytes())?;
    let redacted = std::str::from_utf8(&redacted).ok()?;
    redacted.strip_prefix('{')?.strip_suffix('}').map(str::to_owned)
}

fn reserve_body(redactor: &mut RequestRedactor, body: &[u8]) {
    body_strings(body).iter().for_each(|string| redactor.reserve(&string.text));
}

fn redact_text(redactor: &mut RequestRedactor, text: &mut String) {
    if let Some(redacted) = redactor.text(text) {
        *text = redacted;
    }
}

fn redact_item(
    redactor: &mut RequestRedactor,
    model: &ServedModel,
    item: &mut PromptItem,
) -> Result<(), Rejection> {
    match item {
        PromptItem::Text(text) => redact_text(redactor, text),
        PromptItem::Ids(ids) => {
            let text = model.backend.tokenizer().map(|tokenizer| tokenizer.decode(ids, false));
            if text.is_some_and(|text| redactor.finds(&text)) {
                let message = "A rule on content redacts a part of the prompt, and a prompt in token ids cannot be \
                               changed. Send text. Nothing was charged.";
                return Err(unchangeable(message).with_param("prompt"));
            }
        }
    }
    Ok(())
}

fn redact_encoded(
    redactor: &mut RequestRedactor,
    model: &ServedModel,
    to_encode: &mut ToEncode,
) -> Result<(), Rejection> {
    // Pairs that share a query share it afterwards, too.
    let mut last: Option<(Arc<str>, Arc<str>)> = None;
    for text in &mut to_encode.texts {
        match text {
            EncodeText::One(item) => redact_item(redactor, model, item)?,
            EncodeText::Pair(query, document) => {
                let known = last.as_ref().filter(|(sent, _)| Arc::ptr_eq(sent, query));
                let redacted = match known {
                    Some((_, redacted)) => Arc::clone(redacted),
                    None => redactor.text(query).map_or_else(|| Arc::clone(query), Into::into),
                };
                last = Some((Arc::clone(query), Arc::clone(&redacted)));
                *query = redacted;
                if let Some(redacted) = redactor.text(document) {
                    *document = redacted.into();
                }
            }
        }
    }
    Ok(())
}

fn redact_conversation(
    redactor: &mut RequestRedactor,
    conversation: &mut Conversation,
) -> Result<(), Rejection> {
    for tool in &mut conversation.tools {
        tool.description.iter_mut().for_each(|text| redact_text(redactor, text));
        tool.parameters.iter_mut().for_each(|schema| redact_json(redactor, schema));
        if let Some(CustomInput::Form(form)) = &mut tool.custom {
            redact_form(redactor, form)?;
        }
    }
    for value in conversation.template.values_mut() {
        redact_json(redactor, value);
    }
    for message in &mut conversation.messages {
        redact_content(redactor, message);
        let Message { name, reasoning, tool_calls, media, .. } = message;
        name.iter_mut().chain(reasoning).for_each(|text| redact_text(redactor, text));
        for call in tool_calls {
            if let Some(redacted) = redactor.arguments(&call.arguments) {
                call.arguments = redacted;
            }
        }
        for part in media {
            part.name.iter_mut().for_each(|text| redact_text(redactor, text));
            if let MediaSource::Url(url) = &mut part.source
                && !url.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"))
            {
                redact_text(redactor, url);
            }
        }
    }
    Ok(())
}

/// Redacts the text parts of a message, which the model reads as one text. Keeps the places of its other parts.
fn redact_content(redactor: &mut RequestRedactor, message: &mut Message) {
    let Some(content) = &message.content else { return };
    let Some(parts) = redactor.parts(&message.text_parts().collect::<Vec<_>>()) else { return };
    let begins = std::iter::once(0).chain(message.joints.iter().copied());
    let before: Vec<usize> = begins.chain(std::iter::once(content.len())).collect();
    let (mut text, mut after, mut joints) = (String::new(), vec![0], Vec::new());
    for part in &parts {
        if !part.is_empty() && !text.is_empty() {
            joints.push(text.len());
        }
        text.push_str(part);
        after.push(text.len());
    }
    for part in &mut message.media {
        // A part that is not text is between two text parts.
        let at = before.partition_point(|at| *at < part.behind_bytes);
        part.behind_bytes = after.get(at).copied().unwrap_or(text.len());
    }
    (message.content, message.joints) = (Some(text), joints);
}

/// Redacts the keys and texts of a JSON value.
fn redact_json(redactor: &mut RequestRedactor, value: &mut Value) {
    match value {
        Value::String(text) => redact_text(redactor, text),
        Value::Array(values) => values.iter_mut().for_each(|value| redact_json(redactor, value)),
        Value::Object(fields) => {
            for (mut key, mut value) in std::mem::take(fields) {
                redact_text(redactor, &mut key);
                redact_json(redactor, &mut value);
                fields.insert(key, value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn redact_form(redactor: &mut RequestRedactor, form: &mut ResponseFormat) -> Result<(), Rejection> {
    match form {
        ResponseFormat::JsonObject => {}
        ResponseFormat::JsonSchema(form) => redact_json(redactor, &mut form.schema),
        ResponseFormat::Choice(texts) => texts.iter_mut().for_each(|text| redact_text(redactor, text)),
        ResponseFormat::Tags(form) => {
            form.tags.iter_mut().for_each(|tag| redact_json(redactor, &mut tag.schema))
        }
        ResponseFormat::Regex(text) | ResponseFormat::Grammar { text, .. } => {
            if redactor.finds(text) {
                let message = "A rule on content redacts a part of the grammar of the answer, which would then be another \
                               grammar. Leave it out of the grammar. Nothing was charged.";
                return Err(unchangeable(message));
            }
        }
    }
    Ok(())
}

fn redact_relayed(redactor: &mut RequestRedactor, relayed: &mut RelayedBody) {
    if let Some(body) = redacted_body(redactor, &relayed.body) {
        let longer = body.len().saturating_sub(relayed.body.len());
        *relayed = relayed.with_body(body);
        relayed.text_bytes = relayed.text_bytes.saturating_add(longer);
    }
}

/// A body with its strings redacted. `None` if they stay as they are.
fn redacted_body(redactor: &mut RequestRedactor, body: &[u8]) -> Option<Bytes> {
    let strings = body_strings(body);
    let mut changes = Vec::new();
    let mut from = 0;
    while let Some(first) = strings.get(from) {
        let rest = strings.get(from..).unwrap_or_default();
        let parts = match first.list {
            Some(_) => rest.iter().take_while(|string| string.list == first.list).count(),
            None => 1,
        };
        let parts = rest.get(..parts).unwrap_or_default();
        if first.form == BodyStringForm::Arguments {
            changes.extend(redactor.arguments(&first.text).map(|text| (first.place.clone(), text)));
        } else {
            let texts: Vec<&str> = parts.iter().map(|part| part.text.as_str()).collect();
            let redacted = redactor.parts(&texts).unwrap_or_default();
            for (part, text) in parts.iter().zip(redacted).filter(|(part, text)| part.text != *text) {
                // Some servers refuse a part without text.
                let text = if text.is_empty() { " ".to_owned() } else { text };
                changes.push((part.place.clone(), text));
            }
        }
        from = from.saturating_add(parts.len().max(1));
    }
    (!changes.is_empty()).then(|| with_strings(body, changes).into())
}

fn unchangeable(message: &str) -> Rejection {
    Rejection::new(Code::UnsupportedValue, message).at(Stage::Moderate)
}
