//! One walk over a body of any dialect. It separates what a model reads (texts) from labels and media data.
//! Knows no parameters and decides nothing. It reports what it passes to a [`BodyVisitor`].

use std::borrow::Cow;

use headrace_domain::Code;

use super::guard;
use headrace_wire::WireLimits;
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};

/// A visitor over the strings of a body.
pub(super) trait BodyVisitor {
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

    /// A message or an item begins.
    fn message_begin(&mut self) {}

    /// The current message or item ends.
    fn message_end(&mut self) -> Read<()> {
        Ok(())
    }

    /// The next value is the role of a message.
    fn role(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.opaque(r)
    }

    /// The next value is the content of a message, as a string.
    fn said(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text(r)
    }

    /// The type of a message part.
    fn part_kind(&mut self, _kind: &str) {}

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

/// The kinds of strings that an unknown field may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StringsHold {
    /// Texts. Nested fields with the name of an address field hold addresses.
    Texts,
    /// Addresses.
    Addresses,
    /// Texts. A text that looks like an address counts as one.
    Both,
}

impl StringsHold {
    /// The kind of a field, by its name alone.
    pub(super) fn by_name(key: &str) -> Self {
        if guard::is_address(key) { Self::Addresses } else { Self::Texts }
    }

    /// The kind of a field of a part. A server may fetch anything there that looks like an address.
    fn in_part(key: &str) -> Self {
        match Self::by_name(key) {
            Self::Texts if !guard::TEXTS.contains(&key) => Self::Both,
            holds => holds,
        }
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
    if r.kind()? != ValueKind::Array {
        return free(look, r);
    }
    r.array(limits.max_messages, |r, _| message(look, r, limits))
}

/// Visits `input` of the Responses API or of embeddings: a text or a list.
pub(super) fn input(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != ValueKind::Array {
        return text(look, r);
    }
    r.array(limits.max_messages, |r, _| item(look, r, limits))
}

fn item(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return free(look, r);
    }
    look.message_begin();
    r.object(|r, key| match key.as_ref() {
        "content" if r.kind()? == ValueKind::String => look.said(r),
        "role" if r.kind()? == ValueKind::String => look.role(r),
        "content" | "output" | "summary" => content(look, r, limits),
        "arguments" | "input" if r.kind()? == ValueKind::String => look.json_text(r),
        "type" | "role" | "status" | "phase" | "id" | "call_id" => word(look, r),
        "encrypted_content" => opaque(look, r),
        "tools" => tools(look, r, limits.max_tools),
        "name" => text(look, r),
        key => other(look, r, key, StringsHold::by_name(key)),
    })?;
    look.message_end()
}

/// Visits an unknown field of a message, an item or a part.
fn other(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, key: &str, holds: StringsHold) -> Read<()> {
    guard::spelled_once(key, guard::MESSAGE)?;
    look.key(key);
    // No server fetches the addresses that earlier answers cite.
    match key {
        "action" | "annotations" | "citations" | "logprobs" | "results" => free(look, r),
        _ => unknown(look, r, holds),
    }
}

fn message(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return free(look, r);
    }
    look.message_begin();
    r.object(|r, key| match key.as_ref() {
        "content" if r.kind()? == ValueKind::String => look.said(r),
        "role" if r.kind()? == ValueKind::String => look.role(r),
        "content" => {
            if !matches!(r.kind()?, ValueKind::Array | ValueKind::Null) {
                // If the content is neither a string nor a list, its receiver judges whether it is empty.
                look.part_kind("unknown");
            }
            content(look, r, limits)
        }
        "role" => word(look, r),
        "name" | "tool_call_id" | "reasoning_content" | "reasoning" | "refusal" => text(look, r),
        "tool_calls" if r.kind()? == ValueKind::Array => {
            r.array(limits.max_tool_calls, |r, _| tool_call(look, r))
        }
        "function_call" => tool_call(look, r),
        "cache_control" => opaque(look, r),
        key => other(look, r, key, StringsHold::by_name(key)),
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
            guard::spelled_once(key, guard::MESSAGE)?;
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
    r.array(limits.max_content_parts, |r, _| part(look, r, limits))?;
    look.parts_end();
    Ok(())
}

fn part(look: &mut impl BodyVisitor, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    match r.kind()? {
        ValueKind::Object => {}
        // Some servers accept plain strings as parts.
        ValueKind::String => return look.part_text(r),
        _ => return free(look, r),
    }
    let (mut cites, mut address) = (false, None);
    r.object(|r, key| match key.as_ref() {
        "type" if r.kind()? == ValueKind::String => {
            let kind = r.string()?;
            if MEDIA.contains(&kind.as_ref()) {
                look.media();
            }
            look.part_kind(&kind);
            not_a_tensor(&kind)?;
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
        | "video" | "file_url" => payload(look, r, limits),
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
            not_a_tensor(key)?;
            other(look, r, key, StringsHold::in_part(key))
        }
    })?;
    match address.filter(|(_, url)| !cites && !guard::is_data(url)) {
        Some((at, url)) => look.address(at, &url),
        None => Ok(()),
    }
}

/// Types of parts that cite an address.
const CITING: &[&str] = &["search_result", "url_citation", "web_fetch_result", "web_search_result"];

fn not_a_tensor(name: &str) -> Read<()> {
    if !guard::TENSORS.contains(&name) {
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
            is_text = matches!(r.string()?.as_ref(), "text" | "content");
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
            guard::spelled_once(key, guard::TOOL)?;
            look.key(key);
            match StringsHold::by_name(key) {
                StringsHold::Addresses => unknown(look, r, StringsHold::Addresses),
                StringsHold::Texts | StringsHold::Both => free(look, r),
            }
        }
    }
}
