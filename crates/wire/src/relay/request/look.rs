//! One way through a body of any dialect, told apart by what a model reads in it: texts, labels, data of media.
//! Knows no parameters and decides nothing: it shows what it passes to a [`Look`].

use std::borrow::Cow;

use crate::WireLimits;
use crate::fault::Read;
use crate::json::{Kind, Reader};

/// What somebody wants to know of the strings of a body.
pub(super) trait Look {
    /// A text that a model may read stands next: read it, or read over it.
    fn text(&mut self, r: &mut Reader<'_>) -> Read<()>;

    /// A part of a message is read as text, which stands next: it may be joined with the parts beside it.
    fn part_text(&mut self, r: &mut Reader<'_>) -> Read<()> {
        self.text(r)
    }

    /// A word of the dialect, or what only its server can read, stands next: a role, a type, a signature.
    fn opaque(&mut self, r: &mut Reader<'_>) -> Read<()>;

    /// A text that was read already.
    fn found(&mut self, text: &str);

    /// A key that the caller chose: of a schema, of arguments, of a field that is not known.
    fn key(&mut self, key: &str);

    /// JSON as text stands next: arguments of a tool call.
    fn json_text(&mut self, r: &mut Reader<'_>) -> Read<()> {
        self.text(r)
    }

    /// A part that is no text.
    fn media(&mut self) {}

    /// A list of parts begins.
    fn parts_begin(&mut self) {}

    /// The list of parts that began last ends.
    fn parts_end(&mut self) {}
}

/// Types of parts that are no text.
const MEDIA: &[&str] = &[
    "audio",
    "audio_url",
    "container_upload",
    "document",
    "file",
    "image",
    "image_url",
    "input_audio",
    "input_file",
    "input_image",
    "video",
    "video_url",
];

/// Any value: all of its strings are texts, all of its keys the caller's.
pub(super) fn free(look: &mut impl Look, r: &mut Reader<'_>) -> Read<()> {
    r.count_value()?;
    match r.kind()? {
        Kind::String => look.text(r),
        Kind::Array => r.array(usize::MAX, |r, _| free(look, r)),
        Kind::Object => r.object(|r, key| {
            look.key(key);
            free(look, r)
        }),
        Kind::Null | Kind::Bool | Kind::Number => r.skip_scalar().map(drop),
    }
}

/// Any value that no model reads.
pub(super) fn opaque(look: &mut impl Look, r: &mut Reader<'_>) -> Read<()> {
    r.count_value()?;
    match r.kind()? {
        Kind::String => look.opaque(r),
        Kind::Array => r.array(usize::MAX, |r, _| opaque(look, r)),
        Kind::Object => r.object(|r, _| opaque(look, r)),
        Kind::Null | Kind::Bool | Kind::Number => r.skip_scalar().map(drop),
    }
}

/// A scalar that a model does not read, or whatever stands there instead.
fn word(look: &mut impl Look, r: &mut Reader<'_>) -> Read<()> {
    if r.skip_scalar()? {
        return Ok(());
    }
    if r.kind()? == Kind::String { look.opaque(r) } else { opaque(look, r) }
}

/// A string that a model reads, or whatever stands there instead.
fn text(look: &mut impl Look, r: &mut Reader<'_>) -> Read<()> {
    if r.skip_scalar()? {
        return Ok(());
    }
    if r.kind()? == Kind::String { look.text(r) } else { free(look, r) }
}

/// `messages`.
pub(super) fn messages(look: &mut impl Look, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != Kind::Array {
        return free(look, r);
    }
    r.array(limits.max_messages, |r, _| message(look, r, limits))
}

/// `input` of the Responses API, or of embeddings: a text, or a list.
pub(super) fn input(look: &mut impl Look, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != Kind::Array {
        return text(look, r);
    }
    r.array(limits.max_messages, |r, _| item(look, r, limits))
}

fn item(look: &mut impl Look, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != Kind::Object {
        return free(look, r);
    }
    r.object(|r, key| match key.as_ref() {
        "content" | "output" | "summary" => content(look, r, limits),
        "arguments" | "input" if r.kind()? == Kind::String => look.json_text(r),
        "type" | "role" | "status" | "phase" | "id" | "call_id" => word(look, r),
        "encrypted_content" => opaque(look, r),
        "tools" => described(look, r, limits.max_tools),
        "name" => text(look, r),
        key => {
            look.key(key);
            free(look, r)
        }
    })
}

fn message(look: &mut impl Look, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != Kind::Object {
        return free(look, r);
    }
    r.object(|r, key| match key.as_ref() {
        "content" => content(look, r, limits),
        "role" => word(look, r),
        "name" | "tool_call_id" | "reasoning_content" | "reasoning" | "refusal" => text(look, r),
        "tool_calls" if r.kind()? == Kind::Array => r.array(limits.max_tool_calls, |r, _| tool_call(look, r)),
        "function_call" => tool_call(look, r),
        "cache_control" => opaque(look, r),
        key => {
            look.key(key);
            free(look, r)
        }
    })
}

/// A tool call of OpenAI's, its `function` included.
fn tool_call(look: &mut impl Look, r: &mut Reader<'_>) -> Read<()> {
    if r.kind()? != Kind::Object {
        return free(look, r);
    }
    r.object(|r, key| match key.as_ref() {
        "id" | "name" => text(look, r),
        "type" | "index" => word(look, r),
        "function" | "custom" => tool_call(look, r),
        "arguments" | "input" if r.kind()? == Kind::String => look.json_text(r),
        key => {
            look.key(key);
            free(look, r)
        }
    })
}

/// A string or a list of parts: of a message, of `system`, of a tool's result.
pub(super) fn content(look: &mut impl Look, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != Kind::Array {
        return text(look, r);
    }
    look.parts_begin();
    r.array(limits.max_content_parts, |r, _| part(look, r, limits))?;
    look.parts_end();
    Ok(())
}

fn part(look: &mut impl Look, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    match r.kind()? {
        Kind::Object => {}
        // Some servers take plain strings as parts.
        Kind::String => return look.part_text(r),
        _ => return free(look, r),
    }
    r.object(|r, key| match key.as_ref() {
        "type" if r.kind()? == Kind::String => {
            let kind = r.string()?;
            if MEDIA.contains(&kind.as_ref()) {
                look.media();
            }
            Ok(())
        }
        "text" if r.kind()? == Kind::String => look.part_text(r),
        "thinking" | "reasoning" | "refusal" | "name" | "id" | "tool_use_id" | "title" | "context" => {
            text(look, r)
        }
        "input" | "citations" => free(look, r),
        // What only the server that wrote it can read.
        "signature" | "data" | "encrypted_content" | "cache_control" | "caller" | "is_error" | "detail"
        | "media_type" => opaque(look, r),
        "content" => content(look, r, limits),
        "source" | "image_url" | "audio_url" | "video_url" | "input_audio" | "file" | "image" | "audio" => {
            payload(look, r, limits)
        }
        key => {
            look.key(key);
            free(look, r)
        }
    })
}

/// What carries the data of an image, a document or a sound. Data is left out, text that came in its place is not.
fn payload(look: &mut impl Look, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    match r.kind()? {
        Kind::Object => {}
        Kind::String => {
            url(look, &r.string()?);
            return Ok(());
        }
        _ => return free(look, r),
    }
    let (mut is_text, mut data) = (false, None::<Cow<'_, str>>);
    r.object(|r, key| match key.as_ref() {
        "type" if r.kind()? == Kind::String => {
            is_text = matches!(r.string()?.as_ref(), "text" | "content");
            Ok(())
        }
        "data" | "file_data" if r.kind()? == Kind::String => {
            data = Some(r.string()?);
            Ok(())
        }
        "url" if r.kind()? == Kind::String => {
            url(look, &r.string()?);
            Ok(())
        }
        "content" => content(look, r, limits),
        "filename" | "title" => text(look, r),
        "media_type" | "format" | "detail" | "file_id" => word(look, r),
        key => {
            look.key(key);
            free(look, r)
        }
    })?;
    if is_text && let Some(data) = data {
        look.found(&data);
    }
    Ok(())
}

fn url(look: &mut impl Look, url: &str) {
    let scheme = url.trim_start().get(..5);
    if !scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
        look.found(url);
    }
}

/// `tools`, `functions`, `response_format`, `output_config`: names, descriptions and schemas.
pub(super) fn described(look: &mut impl Look, r: &mut Reader<'_>, max: usize) -> Read<()> {
    match r.kind()? {
        Kind::Array => r.array(max, |r, _| described(look, r, max)),
        Kind::Object => r.object(|r, key| match key.as_ref() {
            "type" | "strict" | "effort" | "cache_control" | "defer_loading" | "allowed_callers" => {
                opaque(look, r)
            }
            "function" | "custom" | "json_schema" | "format" => described(look, r, max),
            "name" | "description" => text(look, r),
            "parameters" | "input_schema" | "schema" => free(look, r),
            key => {
                look.key(key);
                free(look, r)
            }
        }),
        _ => free(look, r),
    }
}
