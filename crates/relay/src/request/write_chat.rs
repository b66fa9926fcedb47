//! Writes a [`NeutralRequest`] as a chat completions body. Must not know the dialect that it was read from.

use std::borrow::Cow;

use bytes::BytesMut;
use headrace_domain::{Call, Code, Dialect};

use super::edit::BodyEdits;
use super::neutral_request::{
    NeutralMedia, NeutralPart, NeutralRequest, NeutralTool, NeutralToolChoice, NeutralTurn, ReasoningAmount,
    RequestedTier, Speaker, lacks,
};
use headrace_wire::anthropic::TOOL_ERROR;
use headrace_wire::fault::Read;
use headrace_wire::json::object::{ObjectWriter, array, object};
use headrace_wire::json::writer::{escaped, raw, value};

const TO: Dialect = Dialect::OpenAi;

/// The field for the answer's token bound if the edits name none.
const MAX_TOKENS: &str = "max_completion_tokens";
/// File name for a document without a title.
const UNTITLED: &str = "document.pdf";
/// Text of a tool result that contains no text of its own.
const SEE_NEXT: &str = "The result is in the next message.";

/// Writes the body.
pub(super) fn write(
    request: &NeutralRequest<'_>,
    call: &Call,
    edits: &BodyEdits<'_>,
    out: &mut BytesMut,
) -> Read<()> {
    if let Some(last) = request.turns.last().filter(|last| last.who == Speaker::Assistant) {
        let why = "does not continue a last message of the assistant; end with a message of the user";
        return Err(lacks(TO, Code::UnsupportedValue, why).under_index(last.at).under_key("messages"));
    }
    object(out, |body| {
        body.text("model", edits.model);
        array(body.field("messages"), messages(request)?, message)?;
        if !request.tools.is_empty() {
            array(body.field("tools"), &request.tools, tool)?;
        }
        choice(request, body)?;
        let (field, bound) = edits.max_tokens.map_or((MAX_TOKENS, None), |(field, most)| (field, Some(most)));
        if let Some(tokens) = call.sampling.max_tokens.or(bound) {
            value(body.field(field), &tokens);
        }
        request.temperature.iter().for_each(|number| body.raw("temperature", number));
        request.top_p.iter().for_each(|number| body.raw("top_p", number));
        request.top_k.iter().for_each(|number| body.raw("top_k", number));
        if !request.stop.is_empty() {
            value(body.field("stop"), &request.stop);
        }
        match request.reasoning {
            // The model decides how much it reasons by default.
            None | Some(ReasoningAmount::Auto) => {}
            Some(ReasoningAmount::Off) => body.text("reasoning_effort", "none"),
            Some(ReasoningAmount::Effort(word)) => body.text("reasoning_effort", word),
        }
        if let Some(format) = &request.format {
            let out = body.field("response_format");
            raw(out, r#"{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":"#);
            raw(out, format.schema);
            raw(out, "}}");
        }
        request.user.iter().for_each(|user| body.text("user", user));
        match request.tier {
            None => {}
            Some(RequestedTier::Auto) => body.text("service_tier", "auto"),
            Some(RequestedTier::Standard) => body.text("service_tier", "default"),
        }
        request.cache_salt.iter().for_each(|salt| body.text("cache_salt", salt));
        if call.stream {
            body.raw("stream", "true");
            if edits.usage || call.include_usage {
                body.raw("stream_options", r#"{"include_usage":true}"#);
            }
        }
        Ok(())
    })
}

/// A message of the chat.
enum ChatTurn<'t, 'a> {
    Said { role: &'static str, pieces: Vec<ContentPiece<'t, 'a>> },
    Assistant(&'t [NeutralPart<'a>]),
    Result { id: &'t str, pieces: Vec<ContentPiece<'t, 'a>> },
}

/// A piece of a message's content.
enum ContentPiece<'t, 'a> {
    Text(Cow<'t, str>),
    Image(&'t NeutralMedia<'a>),
    File { title: Option<&'t str>, media_type: &'t str, data: &'t str },
}

/// Returns the messages. Tool results become messages of their own, before the rest of the user's turn. Such messages
/// cannot hold images and files, so these follow in the user's message.
fn messages<'t, 'a>(request: &'t NeutralRequest<'a>) -> Read<Vec<ChatTurn<'t, 'a>>> {
    let mut messages = Vec::new();
    if !request.system.is_empty() {
        let pieces =
            request.system.iter().map(|text| ContentPiece::Text(Cow::Borrowed(text.as_ref()))).collect();
        messages.push(ChatTurn::Said { role: "system", pieces });
    }
    for turn in &request.turns {
        match turn.who {
            Speaker::System => {
                messages.push(ChatTurn::Said { role: "system", pieces: pieces(turn.at, &turn.parts)? });
            }
            Speaker::Assistant => messages.push(ChatTurn::Assistant(&turn.parts)),
            Speaker::User => user(turn, &mut messages)?,
        }
    }
    Ok(messages)
}

fn user<'t, 'a>(turn: &'t NeutralTurn<'a>, messages: &mut Vec<ChatTurn<'t, 'a>>) -> Read<()> {
    let mut said = Vec::new();
    let mut results = 0;
    for part in &turn.parts {
        let NeutralPart::Result { id, parts, is_error } = part else { continue };
        results += 1;
        let all = pieces(turn.at, parts)?;
        let (mut texts, media): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|piece| matches!(piece, ContentPiece::Text(_)));
        if texts.is_empty() && !media.is_empty() {
            texts.push(ContentPiece::Text(Cow::Borrowed(SEE_NEXT)));
        }
        if *is_error {
            match texts.first_mut() {
                Some(ContentPiece::Text(text)) => *text = Cow::Owned(format!("{TOOL_ERROR}{text}")),
                _ => texts.push(ContentPiece::Text(Cow::Borrowed(TOOL_ERROR))),
            }
        }
        if !media.is_empty() {
            said.push(ContentPiece::Text(Cow::Owned(format!(
                "Images and files of the result of the tool call `{id}`:"
            ))));
            said.extend(media);
        }
        messages.push(ChatTurn::Result { id, pieces: texts });
    }
    said.extend(pieces(turn.at, &turn.parts)?);
    if results == 0 || !said.is_empty() {
        messages.push(ChatTurn::Said { role: "user", pieces: said });
    }
    Ok(())
}

/// Converts parts into pieces. Tool results are left out.
fn pieces<'t, 'a>(at: usize, parts: &'t [NeutralPart<'a>]) -> Read<Vec<ContentPiece<'t, 'a>>> {
    let mut pieces = Vec::new();
    let text = |text: &'t Cow<'a, str>| ContentPiece::Text(Cow::Borrowed(text.as_ref()));
    for part in parts {
        match part {
            NeutralPart::Text(part) => pieces.push(text(part)),
            NeutralPart::Image(media) => pieces.push(ContentPiece::Image(media)),
            NeutralPart::Document { title, context, media: NeutralMedia::Base64 { media_type, data } } => {
                pieces.extend(context.iter().map(text));
                pieces.push(ContentPiece::File { title: title.as_deref(), media_type, data });
            }
            NeutralPart::Document { media: NeutralMedia::Url(_), .. } => {
                let why = "fetches no documents; send the document's data";
                let fault = lacks(TO, Code::UnsupportedContent, why).under_key("content");
                return Err(fault.under_index(at).under_key("messages"));
            }
            NeutralPart::Paper { title, context, text: paper } => {
                pieces.extend([title, context].into_iter().flatten().map(text));
                pieces.push(text(paper));
            }
            NeutralPart::Thinking { .. }
            | NeutralPart::Sealed(_)
            | NeutralPart::Call { .. }
            | NeutralPart::Result { .. } => {}
        }
    }
    Ok(pieces)
}

fn message(out: &mut BytesMut, message: ChatTurn<'_, '_>) -> Read<()> {
    object(out, |written| match message {
        ChatTurn::Said { role, pieces } => {
            written.text("role", role);
            content(written, &pieces)
        }
        ChatTurn::Result { id, pieces } => {
            written.text("role", "tool");
            written.text("tool_call_id", id);
            content(written, &pieces)
        }
        ChatTurn::Assistant(parts) => assistant(written, parts),
    })
}

/// Writes a single text as a string, and anything else as parts.
fn content(message: &mut ObjectWriter<'_>, pieces: &[ContentPiece<'_, '_>]) -> Read<()> {
    match pieces {
        [] => message.text("content", ""),
        [ContentPiece::Text(text)] => message.text("content", text),
        pieces => {
            array(message.field("content"), pieces, |out, part| object(out, |written| piece(written, part)))?
        }
    }
    Ok(())
}

fn piece(written: &mut ObjectWriter<'_>, piece: &ContentPiece<'_, '_>) -> Read<()> {
    match piece {
        ContentPiece::Text(text) => {
            written.text("type", "text");
            written.text("text", text);
            Ok(())
        }
        ContentPiece::Image(media) => {
            written.text("type", "image_url");
            object(written.field("image_url"), |image| {
                match media {
                    NeutralMedia::Url(url) => image.text("url", url),
                    NeutralMedia::Base64 { media_type, data } => {
                        data_url(image.field("url"), media_type, data)
                    }
                }
                Ok(())
            })
        }
        ContentPiece::File { title, media_type, data } => {
            written.text("type", "file");
            object(written.field("file"), |file| {
                file.text("filename", title.unwrap_or(UNTITLED));
                data_url(file.field("file_data"), media_type, data);
                Ok(())
            })
        }
    }
}

fn data_url(out: &mut BytesMut, media_type: &str, data: &str) {
    raw(out, "\"data:");
    escaped(out, media_type);
    raw(out, ";base64,");
    escaped(out, data);
    raw(out, "\"");
}

fn assistant(written: &mut ObjectWriter<'_>, parts: &[NeutralPart<'_>]) -> Read<()> {
    written.text("role", "assistant");
    let texts: Vec<ContentPiece<'_, '_>> = parts
        .iter()
        .filter_map(|part| match part {
            NeutralPart::Text(text) => Some(ContentPiece::Text(Cow::Borrowed(text.as_ref()))),
            _ => None,
        })
        .collect();
    let calls: Vec<&NeutralPart<'_>> =
        parts.iter().filter(|part| matches!(part, NeutralPart::Call { .. })).collect();
    if texts.is_empty() && !calls.is_empty() {
        written.raw("content", "null");
    } else {
        content(written, &texts)?;
    }
    reasoning(written, parts)?;
    if !calls.is_empty() {
        array(written.field("tool_calls"), calls, call)?;
    }
    Ok(())
}

/// Writes reasoning as text, in the field that most servers read. Signed or sealed reasoning is also written with all
/// of its fields, in OpenRouter's shape.
fn reasoning(written: &mut ObjectWriter<'_>, parts: &[NeutralPart<'_>]) -> Read<()> {
    let mut plain = String::new();
    let mut proved = false;
    for part in parts {
        match part {
            NeutralPart::Thinking { text, signature } => {
                plain.push_str(text);
                proved |= signature.is_some();
            }
            NeutralPart::Sealed(_) => proved = true,
            _ => {}
        }
    }
    if !plain.is_empty() {
        written.text("reasoning_content", &plain);
    }
    if !proved {
        return Ok(());
    }
    let details =
        parts.iter().filter(|part| matches!(part, NeutralPart::Thinking { .. } | NeutralPart::Sealed(_)));
    array(written.field("reasoning_details"), details.enumerate(), |out, (index, part)| {
        object(out, |detail| {
            match part {
                NeutralPart::Thinking { text, signature } => {
                    detail.text("type", "reasoning.text");
                    detail.text("text", text);
                    signature.iter().for_each(|signature| detail.text("signature", signature));
                }
                NeutralPart::Sealed(data) => {
                    detail.text("type", "reasoning.encrypted");
                    detail.text("data", data);
                }
                _ => {}
            }
            detail.text("format", "anthropic-claude-v1");
            value(detail.field("index"), &index);
            Ok(())
        })
    })
}

fn call(out: &mut BytesMut, part: &NeutralPart<'_>) -> Read<()> {
    let NeutralPart::Call { id, name, input } = part else { return Ok(()) };
    object(out, |written| {
        written.text("id", id);
        written.text("type", "function");
        object(written.field("function"), |function| {
            function.text("name", name);
            function.text("arguments", input);
            Ok(())
        })
    })
}

fn tool(out: &mut BytesMut, tool: &NeutralTool<'_>) -> Read<()> {
    object(out, |written| {
        written.text("type", "function");
        object(written.field("function"), |function| {
            function.text("name", &tool.name);
            tool.description.iter().for_each(|text| function.text("description", text));
            tool.schema.iter().for_each(|schema| function.raw("parameters", schema));
            if let Some(strict) = tool.strict {
                value(function.field("strict"), &strict);
            }
            Ok(())
        })
    })
}

/// Writes the tool choice. The dialect accepts none without tools.
fn choice(request: &NeutralRequest<'_>, body: &mut ObjectWriter<'_>) -> Read<()> {
    match &request.choice {
        None | Some(NeutralToolChoice::Auto | NeutralToolChoice::None) if request.tools.is_empty() => {
            return Ok(());
        }
        None => {}
        Some(NeutralToolChoice::Auto) => body.text("tool_choice", "auto"),
        Some(NeutralToolChoice::None) => body.text("tool_choice", "none"),
        Some(NeutralToolChoice::Required) => body.text("tool_choice", "required"),
        Some(NeutralToolChoice::Named(name)) => object(body.field("tool_choice"), |choice| {
            choice.text("type", "function");
            object(choice.field("function"), |function| {
                function.text("name", name);
                Ok(())
            })
        })?,
    }
    if request.parallel == Some(false) {
        body.raw("parallel_tool_calls", "false");
    }
    Ok(())
}
