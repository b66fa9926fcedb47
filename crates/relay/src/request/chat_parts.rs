//! Converts the messages of a Responses call to chat's. Images, files and sounds keep their places between the texts.
//! Those from a tool's result follow in a message of the user, because a tool's own message can only hold text. Knows
//! no parameters.

use bytes::BytesMut;
use headrace_domain::{Call, Code, MediaKind, MediaPart, MediaSource, Message, Role, ToolCall};

use headrace_wire::common::content;
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::object::{ObjectWriter, array, object};
use headrace_wire::json::writer::value;

/// The text of a tool's message whose result contains no text.
const SEE_NEXT: &str = "See the next message.";
/// The name of a file that has none.
const UNTITLED: &str = "file";

/// Writes the messages as a JSON list.
///
/// # Errors
/// Names the place of the first part that chat cannot express.
pub(super) fn messages(out: &mut BytesMut, call: &Call, messages: &[Message]) -> Read<()> {
    let mut said = Vec::with_capacity(messages.len());
    let mut shown = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if message.role != Role::Tool && !shown.is_empty() {
            said.push(ChatEntry::Shown(std::mem::take(&mut shown)));
        }
        said.push(ChatEntry::Message(at, message));
        if message.role == Role::Tool && !message.media.is_empty() {
            shown.push((at, message));
        }
    }
    if !shown.is_empty() {
        said.push(ChatEntry::Shown(shown));
    }
    array(out, &said, |out, said| match said {
        ChatEntry::Message(at, message) => self::message(out, call, *at, message),
        ChatEntry::Shown(results) => results_shown(out, call, results),
    })
}

/// A message of the chat.
enum ChatEntry<'c> {
    Message(usize, &'c Message),
    /// The parts of tool results that are not text.
    Shown(Vec<(usize, &'c Message)>),
}

fn message(out: &mut BytesMut, call: &Call, at: usize, message: &Message) -> Read<()> {
    object(out, |written| {
        written.text("role", message.role.name());
        match &message.content {
            Some(text) if message.role == Role::Tool && text.is_empty() && !message.media.is_empty() => {
                written.text("content", SEE_NEXT);
            }
            Some(text) if message.role == Role::Tool || message.media.is_empty() => {
                written.text("content", text);
            }
            Some(text) => {
                let pieces = pieces(text, &message.media);
                array(written.field("content"), pieces, |out, piece| match piece {
                    ChatPiece::Text(text) => self::text(out, text),
                    ChatPiece::Media(part) => media(out, call, at, part),
                })?;
            }
            None => written.raw("content", "null"),
        }
        message.reasoning.iter().for_each(|text| written.text("reasoning_content", text));
        message.tool_call_id.iter().for_each(|id| written.text("tool_call_id", id));
        debug_assert!(
            message.tool_calls.is_empty() || message.role == Role::Assistant,
            "others call nothing"
        );
        if message.tool_calls.is_empty() {
            return Ok(());
        }
        array(written.field("tool_calls"), &message.tool_calls, tool_call)
    })
}

fn results_shown(out: &mut BytesMut, call: &Call, results: &[(usize, &Message)]) -> Read<()> {
    let pieces = results.iter().flat_map(|(at, message)| {
        let id = message.tool_call_id.as_deref().unwrap_or_default();
        let head = format!("Images and files of the result of the tool call `{id}`:");
        std::iter::once(Ok(head)).chain(message.media.iter().map(|part| Err((*at, part))))
    });
    object(out, |written| {
        written.text("role", "user");
        array(written.field("content"), pieces, |out, piece| match piece {
            Ok(head) => text(out, &head),
            Err((at, part)) => media(out, call, at, part),
        })
    })
}

fn tool_call(out: &mut BytesMut, call: &ToolCall) -> Read<()> {
    object(out, |written| {
        written.text("id", &call.id);
        written.text("type", "function");
        object(written.field("function"), |function| {
            function.text("name", &call.name);
            function.text("arguments", &call.arguments);
            Ok(())
        })
    })
}

/// A piece of a message's content.
enum ChatPiece<'m> {
    Text(&'m str),
    Media(&'m MediaPart),
}

/// Splits the text at the places of the other parts.
fn pieces<'m>(text: &'m str, media: &'m [MediaPart]) -> Vec<ChatPiece<'m>> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    for part in media {
        let between = text.get(from..part.behind_bytes).filter(|between| !between.is_empty());
        pieces.extend(between.map(ChatPiece::Text));
        pieces.push(ChatPiece::Media(part));
        from = part.behind_bytes;
    }
    pieces.extend(text.get(from..).filter(|rest| !rest.is_empty()).map(ChatPiece::Text));
    pieces
}

fn text(out: &mut BytesMut, text: &str) -> Read<()> {
    object(out, |written| {
        written.text("type", "text");
        written.text("text", text);
        Ok(())
    })
}

fn media(out: &mut BytesMut, call: &Call, at: usize, part: &MediaPart) -> Read<()> {
    let lacks = |why: &str| {
        let message = format!("{}: chat completions of the model's upstream {why}", part.kind.name());
        Err(FieldFault::at(&call.place(at, part), Code::UnsupportedContent, message))
    };
    object(out, |written| match (part.kind, &part.source) {
        (_, MediaSource::File(_)) => {
            let place = call.place(at, part);
            // For a part of a stored item, the place names the whole item, so no key is added.
            let fault = content::stored_file();
            let fault = if place.ends_with(']') { fault.under_key("file_id") } else { fault };
            Err(fault.under_key(&place))
        }
        (MediaKind::Document, MediaSource::Url(url)) if !is_data(url) => {
            lacks("fetch no documents; send the file's data")
        }
        (MediaKind::Image, MediaSource::Url(url)) => {
            written.text("type", "image_url");
            object(written.field("image_url"), |image| {
                image.text("url", url);
                part.detail.iter().for_each(|detail| image.text("detail", detail));
                Ok(())
            })
        }
        (MediaKind::Document, source) => {
            written.text("type", "file");
            object(written.field("file"), |file| file_source(file, part, source))
        }
        (MediaKind::Audio, MediaSource::Base64 { media_type, data }) => {
            written.text("type", "input_audio");
            object(written.field("input_audio"), |sound| {
                sound.text("data", data);
                sound.text("format", media_type);
                Ok(())
            })
        }
        // Chat has no other parts.
        (MediaKind::Image | MediaKind::Audio | MediaKind::Video, _) => lacks("have no such parts"),
    })
}

fn file_source(file: &mut ObjectWriter<'_>, part: &MediaPart, source: &MediaSource) -> Read<()> {
    match source {
        MediaSource::Url(url) => {
            file.text("filename", part.name.as_deref().unwrap_or(UNTITLED));
            file.text("file_data", url);
        }
        MediaSource::File(_) => return Err(content::stored_file().under_key("file_id")),
        MediaSource::Base64 { media_type, data } => {
            file.text("filename", part.name.as_deref().unwrap_or(UNTITLED));
            value(file.field("file_data"), &format!("data:{media_type};base64,{data}"));
        }
    }
    Ok(())
}

fn is_data(url: &str) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}
