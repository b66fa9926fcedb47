//! The values that a body of any dialect has: messages, items, parts, tools, schemas. Separates what a model reads (texts)
//! from labels and media data.
//! Knows no parameters and decides nothing. It reports what it passes to a [`BodyVisitor`].

use std::borrow::Cow;

use headrace_domain::Code;

use super::body_fields::BodyField;
use super::guard::{self, StringsHold};
use headrace_wire::WireLimits;
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};

/// A visitor over a body. It fills what its caller asks for. What it does not override costs it nothing.
pub(super) trait BodyVisitor: Sized {
    /// Whether the walk refuses tensors and second spellings of fields. A later visit need not: the first one did.
    fn checks(&self) -> bool {
        true
    }

    /// Whether the walk visits the value of a top-level field. It skips all others.
    fn wants(&self, _field: BodyField) -> bool {
        true
    }

    /// Whether the body's tools are reported one by one. If not, their fields are visited like those of a schema.
    fn reports_tools(&self) -> bool {
        true
    }

    /// The next value is that of a top-level field.
    fn field_begin(&mut self, _field: BodyField) {}

    /// The value of a top-level field took the bytes from `start` to `end`. White space may precede it.
    fn field_end(&mut self, _field: BodyField, _start: usize, _end: usize) {}

    /// The next value names the end user, in this top-level field.
    fn user(&mut self, r: &mut JsonReader<'_>, _field: BodyField) -> Read<()> {
        free(self, r)
    }

    /// The next value is a text that a model may read. The visitor must read or skip it.
    fn text(&mut self, r: &mut JsonReader<'_>) -> Read<()>;

    /// The next value is the text of a message part. A model may see it joined with the neighbouring parts.
    fn part_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text(r)
    }

    /// The next value is a word of the dialect, or data that only its server can read: a role, a type, a signature.
    fn opaque(&mut self, r: &mut JsonReader<'_>) -> Read<()>;

    /// A text that the walk has already read.
    fn found(&mut self, text: &str);

    /// A key that the caller chose: in a schema, in arguments, or of an unknown field.
    fn key(&mut self, key: &str);

    /// The next value is JSON as text: the arguments of a tool call.
    fn json_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text(r)
    }

    /// A part that is not text.
    fn media(&mut self) {}

    /// The message or item at this index begins.
    fn message_begin(&mut self, _index: usize) {}

    /// The current message or item ends.
    fn message_end(&mut self) -> Read<()> {
        Ok(())
    }

    /// The next value is the role of a message.
    fn role(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.opaque(r)
    }

    /// `messages` ends. `is_list` is false if it was no list.
    fn messages_end(&mut self, _is_list: bool) -> Read<()> {
        Ok(())
    }

    /// The next value is in the list of messages, but no object.
    fn no_message(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        free(self, r)
    }

    /// The next value is the content of a message, as a string.
    fn said(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text(r)
    }

    /// The next value is the `content`, `output` or `summary` of a message or item, and no string.
    fn message_content(&mut self, r: &mut JsonReader<'_>, _key: &str, limits: &WireLimits) -> Read<()> {
        content(self, r, limits)
    }

    /// The next value is that of an unknown field of a message or item.
    fn unknown_field(&mut self, r: &mut JsonReader<'_>, key: &str, _limits: &WireLimits) -> Read<()> {
        other(self, r, key, StringsHold::by_name(key))
    }

    /// The next value is the input of a call, as a string.
    fn input_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text(r)
    }

    /// The part at this index of its list begins.
    fn part_begin(&mut self, _index: usize) {}

    /// The type of a message part.
    fn part_kind(&mut self, _kind: &str) {}

    /// The next value carries the image, document or sound of a part.
    fn part_payload(&mut self, r: &mut JsonReader<'_>, _key: &str, limits: &WireLimits) -> Read<()> {
        payload(self, r, limits)
    }

    /// The current part ends.
    fn part_end(&mut self) {}

    /// The next value is the id of an uploaded file, in place of its data.
    fn file_id(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.opaque(r)
    }

    /// An address that a server would fetch. The value starts at byte `at`. Addresses that carry their own data are not
    /// reported.
    fn address(&mut self, _at: usize, _url: &str) -> Read<()> {
        Ok(())
    }

    /// A tool, with its `max_uses`. Its `type` starts at byte `at`.
    fn tool(&mut self, _at: usize, _kind: &str, _most: Option<u32>) -> Read<()> {
        Ok(())
    }

    /// A list of parts begins.
    fn parts_begin(&mut self) {}

    /// The current list of parts ends.
    fn parts_end(&mut self) {}
}

/// Types of parts that are not text.
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

/// Visits any value. All of its strings are texts, and the caller chose all of its keys.
pub(super) fn free(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>) -> Read<()> {
    r.count_value()?;
    match r.kind()? {
        ValueKind::String => look.text(r),
        ValueKind::Array => r.array(usize::MAX, |r, _| free(look, r)),
        ValueKind::Object => r.object(|r, key| {
            look.key(key);
            free(look, r)
        }),
        ValueKind::Null | ValueKind::Bool | ValueKind::Number => r.skip_scalar().map(drop),
    }
}

/// Visits the value of an unknown field like [`free`], and also reports the addresses in it.
pub(super) fn unknown(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, holds: StringsHold) -> Read<()> {
    r.count_value()?;
    match r.kind()? {
        ValueKind::String if holds == StringsHold::Texts => look.text(r),
        ValueKind::String => {
            let at = r.position();
            let ((), raw) = r.with_raw(|r| look.text(r))?;
            let text = r.inner(raw).string()?;
            let is_address = match holds {
                StringsHold::Addresses => !guard::is_data(&text),
                StringsHold::Texts | StringsHold::Both => guard::looks_like_address(&text),
            };
            if is_address { look.address(at, &text) } else { Ok(()) }
        }
        ValueKind::Array => r.array(usize::MAX, |r, _| unknown(look, r, holds)),
        ValueKind::Object => r.object(|r, key| {
            look.key(key);
            let within = if holds == StringsHold::Texts {
                StringsHold::by_name(key)
            } else {
                StringsHold::in_part(key)
            };
            unknown(look, r, within)
        }),
        ValueKind::Null | ValueKind::Bool | ValueKind::Number => r.skip_scalar().map(drop),
    }
}

/// Visits any value that no model reads.
pub(super) fn opaque(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>) -> Read<()> {
    r.count_value()?;
    match r.kind()? {
        ValueKind::String => look.opaque(r),
        ValueKind::Array => r.array(usize::MAX, |r, _| opaque(look, r)),
        ValueKind::Object => r.object(|r, _| opaque(look, r)),
        ValueKind::Null | ValueKind::Bool | ValueKind::Number => r.skip_scalar().map(drop),
    }
}

/// Visits a scalar that no model reads. Accepts any other value in its place.
fn word(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>) -> Read<()> {
    if r.skip_scalar()? {
        return Ok(());
    }
    if r.kind()? == ValueKind::String { look.opaque(r) } else { opaque(look, r) }
}

/// Visits a string that a model reads. Accepts any other value in its place.
fn text(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>) -> Read<()> {
    if r.skip_scalar()? {
        return Ok(());
    }
    if r.kind()? == ValueKind::String { look.text(r) } else { free(look, r) }
}

/// Visits `messages`.
pub(super) fn messages(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    let is_list = r.kind()? == ValueKind::Array;
    if is_list {
        r.array(limits.max_messages, |r, index| message(look, r, index, limits))?;
    } else {
        free(look, r)?;
    }
    look.messages_end(is_list)
}

/// Visits `input` of the Responses API or of embeddings: a text or a list.
pub(super) fn input(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    match r.kind()? {
        ValueKind::Array => r.array(limits.max_messages, |r, index| item(look, r, index, limits)),
        ValueKind::String => look.input_text(r),
        _ => text(look, r),
    }
}

fn item(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, index: usize, limits: &WireLimits) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return free(look, r);
    }
    look.message_begin(index);
    r.object(|r, key| match key.as_ref() {
        "content" if r.kind()? == ValueKind::String => look.said(r),
        "role" if r.kind()? == ValueKind::String => look.role(r),
        "content" | "output" | "summary" => look.message_content(r, key, limits),
        "arguments" | "input" if r.kind()? == ValueKind::String => look.json_text(r),
        "type" | "role" | "status" | "phase" | "id" | "call_id" => word(look, r),
        "encrypted_content" => opaque(look, r),
        "tools" => tools(look, r, limits.max_tools),
        "name" => text(look, r),
        key => look.unknown_field(r, key, limits),
    })?;
    look.message_end()
}

/// Visits an unknown field of a message, an item or a part.
fn other(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, key: &str, holds: StringsHold) -> Read<()> {
    if look.checks() {
        guard::spelled_once(key, guard::MESSAGE)?;
    }
    look.key(key);
    // No server fetches the addresses that earlier answers cite.
    match key {
        "action" | "annotations" | "citations" | "logprobs" | "results" => free(look, r),
        _ => unknown(look, r, holds),
    }
}

fn message(
    look: &mut impl BodyVisitor,
    r: &mut JsonReader<'_>,
    index: usize,
    limits: &WireLimits,
) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return look.no_message(r);
    }
    look.message_begin(index);
    r.object(|r, key| match key.as_ref() {
        "content" if r.kind()? == ValueKind::String => look.said(r),
        "role" if r.kind()? == ValueKind::String => look.role(r),
        "content" => {
            if !matches!(r.kind()?, ValueKind::Array | ValueKind::Null) {
                // If the content is neither a string nor a list, its receiver judges whether it is empty.
                look.part_kind("unknown");
            }
            look.message_content(r, key, limits)
        }
        "role" => word(look, r),
        "name" | "tool_call_id" | "reasoning_content" | "reasoning" | "refusal" => text(look, r),
        "tool_calls" if r.kind()? == ValueKind::Array => {
            r.array(limits.max_tool_calls, |r, _| tool_call(look, r))
        }
        "function_call" => tool_call(look, r),
        "cache_control" => opaque(look, r),
        key => look.unknown_field(r, key, limits),
    })?;
    look.message_end()
}

/// Visits an OpenAI tool call, including its `function`.
fn tool_call(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return free(look, r);
    }
    r.object(|r, key| match key.as_ref() {
        "id" | "name" => text(look, r),
        "type" | "index" => word(look, r),
        "function" | "custom" => tool_call(look, r),
        "arguments" | "input" if r.kind()? == ValueKind::String => look.json_text(r),
        key => {
            if look.checks() {
                guard::spelled_once(key, guard::MESSAGE)?;
            }
            look.key(key);
            free(look, r)
        }
    })
}

/// Visits a string or a list of parts: the content of a message, `system`, or a tool result.
pub(super) fn content(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    match r.kind()? {
        ValueKind::Array => {}
        // An output that consists of one part.
        ValueKind::Object => return unknown(look, r, StringsHold::Texts),
        _ => return text(look, r),
    }
    look.parts_begin();
    r.array(limits.max_content_parts, |r, index| part(look, r, index, limits))?;
    look.parts_end();
    Ok(())
}

fn part(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, index: usize, limits: &WireLimits) -> Read<()> {
    match r.kind()? {
        ValueKind::Object => {}
        // Some servers accept plain strings as parts.
        ValueKind::String => return look.part_text(r),
        _ => return free(look, r),
    }
    look.part_begin(index);
    let (mut cites, mut address) = (false, None);
    r.object(|r, key| match key.as_ref() {
        "type" if r.kind()? == ValueKind::String => {
            let kind = r.string()?;
            if MEDIA.contains(&kind.as_ref()) {
                look.media();
            }
            look.part_kind(&kind);
            not_a_tensor(look, &kind)?;
            cites = CITING.contains(&kind.as_ref());
            Ok(())
        }
        "text" if r.kind()? == ValueKind::String => look.part_text(r),
        "thinking" | "reasoning" | "refusal" | "name" | "id" | "tool_use_id" | "title" | "context" => {
            text(look, r)
        }
        "input" | "citations" => free(look, r),
        // Only the server that wrote these values can read them.
        "signature" | "data" | "encrypted_content" | "cache_control" | "caller" | "is_error" | "detail"
        | "media_type" => opaque(look, r),
        "content" => content(look, r, limits),
        // A label, such as the source of a search result.
        "source" if r.kind()? == ValueKind::String => text(look, r),
        "source" | "image_url" | "audio_url" | "video_url" | "input_audio" | "file" | "image" | "audio"
        | "video" | "file_url" => look.part_payload(r, key, limits),
        "file_data" if r.kind()? == ValueKind::String => {
            let at = r.position();
            carried(look, at, &r.string()?)
        }
        "file_id" if r.kind()? == ValueKind::String => look.file_id(r),
        "url" if r.kind()? == ValueKind::String => {
            let at = r.position();
            let text = r.string()?;
            look.key("url");
            look.found(&text);
            address = Some((at, text));
            Ok(())
        }
        key => {
            not_a_tensor(look, key)?;
            other(look, r, key, StringsHold::in_part(key))
        }
    })?;
    look.part_end();
    match address.filter(|(_, url)| !cites && !guard::is_data(url)) {
        Some((at, url)) => look.address(at, &url),
        None => Ok(()),
    }
}

/// Types of parts that cite an address.
const CITING: &[&str] = &["search_result", "url_citation", "web_fetch_result", "web_search_result"];

fn not_a_tensor(look: &impl BodyVisitor, name: &str) -> Read<()> {
    if !look.checks() || !guard::TENSORS.contains(&name) {
        return Ok(());
    }
    let why = "tensors are not taken from a request, as servers unpickle them; send the text, image or sound itself";
    Err(FieldFault::new(Code::UnsupportedContent, why))
}

/// Reports an address that is given in place of data. Data in the body itself is not reported.
fn carried(look: &mut impl BodyVisitor, at: usize, data: &str) -> Read<()> {
    if guard::looks_like_address(data) { look.address(at, data) } else { Ok(()) }
}

/// Visits the value that carries an image, a document or a sound. Skips its data, but visits text in place of data.
fn payload(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    match r.kind()? {
        ValueKind::Object => {}
        ValueKind::String => {
            let at = r.position();
            return url(look, at, &r.string()?);
        }
        _ => return unknown(look, r, StringsHold::Addresses),
    }
    let (mut is_text, mut data) = (false, None::<Cow<'_, str>>);
    r.object(|r, key| match key.as_ref() {
        "type" if r.kind()? == ValueKind::String => {
            is_text = holds_text(&r.string()?);
            Ok(())
        }
        "data" | "file_data" if r.kind()? == ValueKind::String => {
            let at = r.position();
            let text = r.string()?;
            carried(look, at, &text)?;
            data = Some(text);
            Ok(())
        }
        "url" | "file_url" if r.kind()? == ValueKind::String => {
            let at = r.position();
            url(look, at, &r.string()?)
        }
        "content" => content(look, r, limits),
        "filename" | "title" => text(look, r),
        "file_id" if r.kind()? == ValueKind::String => look.file_id(r),
        "media_type" | "format" | "detail" | "file_id" => word(look, r),
        key => other(look, r, key, StringsHold::in_part(key)),
    })?;
    if is_text && let Some(data) = data {
        look.found(&data);
    }
    Ok(())
}

/// Whether the source of a document holds text. Reads an object, and skips any other value.
pub(super) fn is_text_source(r: &mut JsonReader<'_>) -> Read<bool> {
    if r.kind()? != ValueKind::Object {
        return r.skip().map(|()| false);
    }
    let mut is_text = false;
    r.object(|r, key| match key.as_ref() {
        "type" if r.kind()? == ValueKind::String => {
            is_text = holds_text(&r.string()?);
            Ok(())
        }
        _ => r.skip(),
    })?;
    Ok(is_text)
}

/// Whether a source of this type holds text in place of data.
fn holds_text(kind: &str) -> bool {
    matches!(kind, "text" | "content")
}

fn url(look: &mut impl BodyVisitor, at: usize, url: &str) -> Read<()> {
    if guard::is_data(url) {
        return Ok(());
    }
    look.found(url);
    look.address(at, url)
}

/// Visits `tools` like [`described`], and reports each tool with its type.
pub(super) fn tools(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, max: usize) -> Read<()> {
    if r.kind()? != ValueKind::Array {
        return described(look, r, max);
    }
    r.array(max, |r, _| match r.kind()? {
        ValueKind::Object => tool(look, r, max),
        _ => described(look, r, max),
    })
}

fn tool(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, max: usize) -> Read<()> {
    let (mut kind, mut most, mut is_described) = (None, None, false);
    let begin = r.position();
    r.object(|r, key| match key.as_ref() {
        "type" if r.kind()? == ValueKind::String => {
            let at = r.position();
            let ((), raw) = r.with_raw(|r| look.opaque(r))?;
            kind = Some((at, raw));
            Ok(())
        }
        "max_uses" if r.kind()? == ValueKind::Number => {
            most = r.number()?.parse().ok();
            Ok(())
        }
        "tools" => tools(look, r, max),
        key => {
            is_described |= matches!(key, "name" | "function" | "custom");
            field_of_described(look, r, max, key)
        }
    })?;
    match kind {
        Some((at, raw)) => look.tool(at, &r.inner(raw).string()?, most),
        None if !is_described => look.tool(begin, "", most),
        None => Ok(()),
    }
}

/// Visits `functions`, `response_format` or `output_config`: names, descriptions and schemas.
pub(super) fn described(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, max: usize) -> Read<()> {
    match r.kind()? {
        ValueKind::Array => r.array(max, |r, _| described(look, r, max)),
        ValueKind::Object => r.object(|r, key| field_of_described(look, r, max, key)),
        _ => free(look, r),
    }
}

fn field_of_described(
    look: &mut impl BodyVisitor,
    r: &mut JsonReader<'_>,
    max: usize,
    key: &str,
) -> Read<()> {
    match key {
        "type" | "strict" | "effort" | "cache_control" | "defer_loading" | "allowed_callers" => {
            opaque(look, r)
        }
        "function" | "custom" | "json_schema" | "format" => described(look, r, max),
        "name" | "description" => text(look, r),
        "parameters" | "input_schema" | "schema" => free(look, r),
        key => {
            if look.checks() {
                guard::spelled_once(key, guard::TOOL)?;
            }
            look.key(key);
            match StringsHold::by_name(key) {
                StringsHold::Addresses => unknown(look, r, StringsHold::Addresses),
                StringsHold::Texts | StringsHold::Both => free(look, r),
            }
        }
    }
}
