//! Reads the messages of a chat completions body: roles, parts, tool calls and their results, and reasoning from
//! earlier answers.
//! Must not know parameters.

use std::borrow::Cow;

use headrace_domain::{Code, Dialect};

use super::neutral_request::{NeutralMedia, NeutralPart, NeutralTurn, Speaker, lacks, no_such, unknown};
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};

/// Reads the turns, one for each message.
pub(super) fn turns<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<NeutralTurn<'a>>> {
    let mut turns = Vec::new();
    r.array(usize::MAX, |r, at| {
        let mut draft = ChatMessageDraft::default();
        r.object(|r, key| draft.take(key, r, to))?;
        turns.push(draft.finish(at, to)?);
        Ok(())
    })?;
    if turns.is_empty() {
        return Err(FieldFault::new(Code::EmptyArray, "it must have at least one message"));
    }
    Ok(turns)
}

/// The fields of a message, before its role says which of them are allowed.
#[derive(Default)]
struct ChatMessageDraft<'a> {
    role: Option<Cow<'a, str>>,
    content: Vec<NeutralPart<'a>>,
    refusal: Option<Cow<'a, str>>,
    named: bool,
    /// The key of the reasoning text, if the text is not empty.
    reasoning: Option<&'static str>,
    details: Vec<NeutralPart<'a>>,
    calls: Vec<NeutralPart<'a>>,
    call_id: Option<Cow<'a, str>>,
    /// The first unknown field. A server may have added it to an answer that the client sends back.
    stranger: Option<String>,
}

impl<'a> ChatMessageDraft<'a> {
    fn take(&mut self, key: &str, r: &mut JsonReader<'a>, to: Dialect) -> Read<()> {
        match key {
            "role" => self.role = Some(r.string()?),
            "content" => self.content = r.optional(|r| content(r, to))?.unwrap_or_default(),
            "refusal" => self.refusal = r.optional(JsonReader::string)?,
            "name" => self.named = r.optional(JsonReader::string)?.is_some(),
            "reasoning_content" => self.reasoning("reasoning_content", r)?,
            "reasoning" => self.reasoning("reasoning", r)?,
            "reasoning_details" => self.details = r.optional(|r| details(r, to))?.unwrap_or_default(),
            "tool_calls" => self.calls = r.optional(|r| tool_calls(r, to))?.unwrap_or_default(),
            "tool_call_id" => self.call_id = r.optional(JsonReader::string)?,
            "audio" | "function_call" => {
                r.optional(|_| Err::<(), _>(no_such(to)))?;
            }
            "annotations" => {
                r.optional(|r| r.array(usize::MAX, |_, _| Err(no_such(to).of_parent())))?;
            }
            key => {
                self.stranger.get_or_insert_with(|| key.to_owned());
                r.skip()?;
            }
        }
        Ok(())
    }

    /// Reads reasoning text, which has two spellings.
    fn reasoning(&mut self, key: &'static str, r: &mut JsonReader<'a>) -> Read<()> {
        if r.optional(JsonReader::string)?.is_some_and(|text| !text.is_empty()) {
            self.reasoning = Some(key);
        }
        Ok(())
    }

    fn finish(mut self, at: usize, to: Dialect) -> Read<NeutralTurn<'a>> {
        let role = self.role.take().ok_or_else(|| FieldFault::missing("role"))?;
        let who = match role.as_ref() {
            "system" | "developer" => Speaker::System,
            "user" | "tool" => Speaker::User,
            "assistant" => Speaker::Assistant,
            _ => {
                let message = "it must be `system`, `developer`, `user`, `assistant` or `tool`";
                return Err(FieldFault::at("role", Code::InvalidValue, message));
            }
        };
        let is_tool = role == "tool";
        // A tool's name is redundant, because the tool call has it.
        if self.named && !is_tool {
            return Err(no_such(to).under_key("name"));
        }
        self.check_owners(who, is_tool, to)?;
        let parts = match who {
            Speaker::Assistant => self.assistant(),
            Speaker::User if is_tool => {
                let id = self.call_id.ok_or_else(|| FieldFault::missing("tool_call_id"))?;
                vec![NeutralPart::Result { id, parts: self.content, is_error: false }]
            }
            Speaker::System | Speaker::User => self.content,
        };
        let text_only = who != Speaker::User
            && parts.iter().any(|part| matches!(part, NeutralPart::Image(_) | NeutralPart::Document { .. }));
        if text_only {
            let why = "has only text in such a message";
            return Err(lacks(to, Code::UnsupportedContent, why).under_key("content"));
        }
        Ok(NeutralTurn { who, at, parts })
    }

    fn check_owners(&self, who: Speaker, is_tool: bool, to: Dialect) -> Read<()> {
        let stray = |key: &str, owner: &str| {
            Err(FieldFault::at(key, Code::InvalidValue, format!("only a message of role `{owner}` has it")))
        };
        if who != Speaker::Assistant {
            if !self.calls.is_empty() {
                return stray("tool_calls", "assistant");
            }
            if let Some(key) = self.reasoning {
                return stray(key, "assistant");
            }
            if !self.details.is_empty() {
                return stray("reasoning_details", "assistant");
            }
            if self.refusal.is_some() {
                return stray("refusal", "assistant");
            }
            if let Some(key) = &self.stranger {
                return Err(unknown(to).under_key(key));
            }
        }
        if !is_tool && self.call_id.is_some() { stray("tool_call_id", "tool") } else { Ok(()) }
    }

    /// Returns the parts in order: reasoning, text, tool calls. Reasoning is passed on only with its writer's
    /// signature, because a server accepts no other. Reasoning without a signature is dropped rather than refused.
    fn assistant(self) -> Vec<NeutralPart<'a>> {
        let mut parts = self.details;
        parts.extend(self.content);
        parts.extend(self.refusal.map(NeutralPart::Text));
        parts.extend(self.calls);
        parts
    }
}

/// Reads reasoning in OpenRouter's shape: text with a signature, or sealed data.
fn details<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<NeutralPart<'a>>> {
    let mut parts = Vec::new();
    r.array(usize::MAX, |r, _| {
        let (mut kind, mut text, mut signature, mut data) = (None, None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => kind = Some(r.string()?),
                "text" => text = r.optional(JsonReader::string)?,
                "signature" => {
                    signature = r.optional(JsonReader::string)?.filter(|signature| !signature.is_empty())
                }
                "data" => data = r.optional(JsonReader::string)?,
                "id" | "format" | "index" => r.skip()?,
                _ => return Err(unknown(to)),
            }
            Ok(())
        })?;
        parts.extend(match kind.as_deref() {
            Some("reasoning.text") => signature.map(|signature| NeutralPart::Thinking {
                text: text.unwrap_or_default(),
                signature: Some(signature),
            }),
            Some("reasoning.encrypted") => {
                Some(NeutralPart::Sealed(data.ok_or_else(|| FieldFault::missing("data"))?))
            }
            Some(_) => {
                return Err(lacks(to, Code::UnsupportedValue, "has no such reasoning").under_key("type"));
            }
            None => return Err(FieldFault::missing("type")),
        });
        Ok(())
    })?;
    Ok(parts)
}

fn tool_calls<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<NeutralPart<'a>>> {
    let mut calls = Vec::new();
    r.array(usize::MAX, |r, _| {
        let (mut id, mut function) = (None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "id" => id = Some(r.string()?),
                "type" => {
                    if r.string()? != "function" {
                        return Err(lacks(
                            to,
                            Code::UnsupportedValue,
                            "has no such call; there is `function`",
                        ));
                    }
                }
                "function" => function = Some(called(r)?),
                // The index of streamed pieces, and fields that servers add. Clients send them back.
                _ => r.skip()?,
            }
            Ok(())
        })?;
        let (name, input) = function.ok_or_else(|| FieldFault::missing("function"))?;
        calls.push(NeutralPart::Call { id: id.ok_or_else(|| FieldFault::missing("id"))?, name, input });
        Ok(())
    })?;
    Ok(calls)
}

fn called<'a>(r: &mut JsonReader<'a>) -> Read<(Cow<'a, str>, Cow<'a, str>)> {
    let (mut name, mut arguments) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(r.string()?),
            "arguments" => arguments = Some(self::arguments(r)?),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok((
        name.ok_or_else(|| FieldFault::missing("name"))?,
        arguments.ok_or_else(|| FieldFault::missing("arguments"))?,
    ))
}

/// Reads arguments as a string that holds a JSON object, and keeps their spelling. The empty string means no arguments.
fn arguments<'a>(r: &mut JsonReader<'a>) -> Read<Cow<'a, str>> {
    let text = r.string()?;
    if text.trim().is_empty() {
        return Ok(Cow::Borrowed("{}"));
    }
    let mut inner = r.inner(&text);
    let checked = inner.require(ValueKind::Object).and_then(|()| inner.skip()).and_then(|()| inner.end());
    checked.map_err(|fault| fault.inside(Code::InvalidValue, "it must be a JSON object as text"))?;
    Ok(text)
}

fn content<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<NeutralPart<'a>>> {
    match r.kind()? {
        ValueKind::String => Ok(vec![NeutralPart::Text(r.string()?)]),
        ValueKind::Array => {
            let mut parts = Vec::new();
            r.array(usize::MAX, |r, _| {
                parts.push(part(r, to)?);
                Ok(())
            })?;
            Ok(parts)
        }
        _ => Err(FieldFault::new(Code::InvalidType, "it must be a string or a list of parts")),
    }
}

fn part<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<NeutralPart<'a>> {
    let (mut kind, mut found) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let word = r.string()?;
                if !matches!(word.as_ref(), "text" | "refusal" | "image_url" | "file") {
                    let why = "has no such part; there are `text`, `image_url` and `file`";
                    return Err(lacks(to, Code::UnsupportedContent, why).of_parent());
                }
                kind = Some(word);
            }
            "text" => found = Some(("text", NeutralPart::Text(r.string()?))),
            "refusal" => found = Some(("refusal", NeutralPart::Text(r.string()?))),
            "image_url" => found = Some(("image_url", image(r, to)?)),
            "file" => found = Some(("file", file(r, to)?)),
            // A hint that a cached prefix may end here.
            "prompt_cache_breakpoint" | "cache_control" => r.skip()?,
            // Fields of other part types: the fault names the part.
            "input_audio" | "audio_url" | "video_url" => {
                let why = "has no sounds and videos";
                return Err(lacks(to, Code::UnsupportedContent, why).of_parent());
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    match found {
        Some((key, part)) if key == kind => Ok(part),
        _ => Err(FieldFault::missing(&kind)),
    }
}

fn image<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<NeutralPart<'a>> {
    let mut url = None;
    r.object(|r, key| {
        match key.as_ref() {
            "url" => url = Some(r.string()?),
            "detail" => {
                if !matches!(r.optional(JsonReader::string)?.as_deref(), None | Some("auto" | "high")) {
                    let why = "shows images as they are: there are `auto` and `high`";
                    return Err(lacks(to, Code::UnsupportedValue, why));
                }
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    match inline(url.ok_or_else(|| FieldFault::missing("url"))?) {
        InlineData::No(url) => Ok(NeutralPart::Image(NeutralMedia::Url(url))),
        InlineData::Base64 { media_type, data } => {
            Ok(NeutralPart::Image(NeutralMedia::Base64 { media_type, data }))
        }
        InlineData::Otherwise => Err(not_base64("url")),
    }
}

fn file<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<NeutralPart<'a>> {
    let (mut data, mut title) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "file_data" => data = r.optional(JsonReader::string)?,
            "filename" => title = r.optional(JsonReader::string)?,
            "file_id" => {
                let why = "has other files than this path; send the file's data";
                r.optional(|_| Err::<(), _>(lacks(to, Code::UnsupportedParameter, why)))?;
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    let data = data.ok_or_else(|| FieldFault::missing("file_data"))?;
    match inline(data) {
        InlineData::Base64 { media_type, data } if media_type == "application/pdf" => {
            Ok(NeutralPart::Document {
                title,
                context: None,
                media: NeutralMedia::Base64 { media_type, data },
            })
        }
        InlineData::Base64 { .. } => {
            let why = "takes files of type `application/pdf`; send a text as text, an image as `image_url`";
            Err(lacks(to, Code::UnsupportedContent, why).under_key("file_data"))
        }
        InlineData::No(_) | InlineData::Otherwise => Err(not_base64("file_data")),
    }
}

fn not_base64(key: &str) -> FieldFault {
    FieldFault::at(key, Code::InvalidValue, "it must be a data URL in base64: `data:TYPE;base64,DATA`")
}

/// The data that a URL itself contains.
enum InlineData<'a> {
    /// None: the URL is an address.
    No(Cow<'a, str>),
    Base64 {
        media_type: Cow<'a, str>,
        data: Cow<'a, str>,
    },
    /// Data in an encoding other than base64.
    Otherwise,
}

/// Splits a URL. Borrows from the URL if it can, because images are long.
fn inline(url: Cow<'_, str>) -> InlineData<'_> {
    if !url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
        return InlineData::No(url);
    }
    let base64 = match &url {
        Cow::Borrowed(text) => base64_of(text).map(|(kind, data)| (Cow::Borrowed(kind), Cow::Borrowed(data))),
        Cow::Owned(text) => {
            base64_of(text).map(|(kind, data)| (Cow::Owned(kind.to_owned()), Cow::Owned(data.to_owned())))
        }
    };
    base64.map_or(InlineData::Otherwise, |(media_type, data)| InlineData::Base64 { media_type, data })
}

/// Returns the media type and the data of a data URL.
fn base64_of(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.get(5..)?.split_once(',')?;
    let head = head.strip_suffix(";base64")?;
    // Parameters of the type, such as a character set, mean nothing for images and PDF.
    Some((head.split(';').next().unwrap_or(head), data))
}
