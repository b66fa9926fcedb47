//! Reads the messages of a chat completions body: roles, parts, tool calls and their results, and reasoning from
//! earlier answers.
//! Must not know parameters.

use std::borrow::Cow;

use headrace_domain::{Code, Dialect};

use super::talk::{Media, Part, Turn, Who, lacks, no_such, unknown};
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};

/// Reads the turns, one for each message.
pub(super) fn turns<'a>(r: &mut Reader<'a>, to: Dialect) -> Read<Vec<Turn<'a>>> {
    let mut turns = Vec::new();
    r.array(usize::MAX, |r, at| {
        let mut draft = Draft::default();
        r.object(|r, key| draft.take(key, r, to))?;
        turns.push(draft.finish(at, to)?);
        Ok(())
    })?;
    if turns.is_empty() {
        return Err(Fault::new(Code::EmptyArray, "it must have at least one message"));
    }
    Ok(turns)
}

/// The fields of a message, before its role says which of them are allowed.
#[derive(Default)]
struct Draft<'a> {
    role: Option<Cow<'a, str>>,
    content: Vec<Part<'a>>,
    refusal: Option<Cow<'a, str>>,
    named: bool,
    /// The key of the reasoning text, if the text is not empty.
    reasoning: Option<&'static str>,
    details: Vec<Part<'a>>,
    calls: Vec<Part<'a>>,
    call_id: Option<Cow<'a, str>>,
    /// The first unknown field. A server may have added it to an answer that the client sends back.
    stranger: Option<String>,
}

impl<'a> Draft<'a> {
    fn take(&mut self, key: &str, r: &mut Reader<'a>, to: Dialect) -> Read<()> {
        match key {
            "role" => self.role = Some(r.string()?),
            "content" => self.content = r.optional(|r| content(r, to))?.unwrap_or_default(),
            "refusal" => self.refusal = r.optional(Reader::string)?,
            "name" => self.named = r.optional(Reader::string)?.is_some(),
            "reasoning_content" => self.reasoning("reasoning_content", r)?,
            "reasoning" => self.reasoning("reasoning", r)?,
            "reasoning_details" => self.details = r.optional(|r| details(r, to))?.unwrap_or_default(),
            "tool_calls" => self.calls = r.optional(|r| tool_calls(r, to))?.unwrap_or_default(),
            "tool_call_id" => self.call_id = r.optional(Reader::string)?,
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
    fn reasoning(&mut self, key: &'static str, r: &mut Reader<'a>) -> Read<()> {
        if r.optional(Reader::string)?.is_some_and(|text| !text.is_empty()) {
            self.reasoning = Some(key);
        }
        Ok(())
    }

    fn finish(mut self, at: usize, to: Dialect) -> Read<Turn<'a>> {
        let role = self.role.take().ok_or_else(|| Fault::missing("role"))?;
        let who = match role.as_ref() {
            "system" | "developer" => Who::System,
            "user" | "tool" => Who::User,
            "assistant" => Who::Assistant,
            _ => {
                let message = "it must be `system`, `developer`, `user`, `assistant` or `tool`";
                return Err(Fault::at("role", Code::InvalidValue, message));
            }
        };
        let is_tool = role == "tool";
        // A tool's name is redundant, because the tool call has it.
        if self.named && !is_tool {
            return Err(no_such(to).under_key("name"));
        }
        self.check_owners(who, is_tool, to)?;
        let parts = match who {
            Who::Assistant => self.assistant(),
            Who::User if is_tool => {
                let id = self.call_id.ok_or_else(|| Fault::missing("tool_call_id"))?;
                vec![Part::Result { id, parts: self.content, is_error: false }]
            }
            Who::System | Who::User => self.content,
        };
        let text_only = who != Who::User
            && parts.iter().any(|part| matches!(part, Part::Image(_) | Part::Document { .. }));
        if text_only {
            let why = "has only text in such a message";
            return Err(lacks(to, Code::UnsupportedContent, why).under_key("content"));
        }
        Ok(Turn { who, at, parts })
    }

    fn check_owners(&self, who: Who, is_tool: bool, to: Dialect) -> Read<()> {
        let stray = |key: &str, owner: &str| {
            Err(Fault::at(key, Code::InvalidValue, format!("only a message of role `{owner}` has it")))
        };
        if who != Who::Assistant {
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
    fn assistant(self) -> Vec<Part<'a>> {
        let mut parts = self.details;
        parts.extend(self.content);
        parts.extend(self.refusal.map(Part::Text));
        parts.extend(self.calls);
        parts
    }
}

/// Reads reasoning in OpenRouter's shape: text with a signature, or sealed data.
fn details<'a>(r: &mut Reader<'a>, to: Dialect) -> Read<Vec<Part<'a>>> {
    let mut parts = Vec::new();
    r.array(usize::MAX, |r, _| {
        let (mut kind, mut text, mut signature, mut data) = (None, None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => kind = Some(r.string()?),
                "text" => text = r.optional(Reader::string)?,
                "signature" => {
                    signature = r.optional(Reader::string)?.filter(|signature| !signature.is_empty())
                }
                "data" => data = r.optional(Reader::string)?,
                "id" | "format" | "index" => r.skip()?,
                _ => return Err(unknown(to)),
            }
            Ok(())
        })?;
        parts.extend(match kind.as_deref() {
            Some("reasoning.text") => signature.map(|signature| Part::Thinking {
                text: text.unwrap_or_default(),
                signature: Some(signature),
            }),
            Some("reasoning.encrypted") => Some(Part::Sealed(data.ok_or_else(|| Fault::missing("data"))?)),
            Some(_) => {
                return Err(lacks(to, Code::UnsupportedValue, "has no such reasoning").under_key("type"));
            }
            None => return Err(Fault::missing("type")),
        });
        Ok(())
    })?;
    Ok(parts)
}

fn tool_calls<'a>(r: &mut Reader<'a>, to: Dialect) -> Read<Vec<Part<'a>>> {
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
        let (name, input) = function.ok_or_else(|| Fault::missing("function"))?;
        calls.push(Part::Call { id: id.ok_or_else(|| Fault::missing("id"))?, name, input });
        Ok(())
    })?;
    Ok(calls)
}

fn called<'a>(r: &mut Reader<'a>) -> Read<(Cow<'a, str>, Cow<'a, str>)> {
    let (mut name, mut arguments) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(r.string()?),
            "arguments" => arguments = Some(self::arguments(r)?),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok((name.ok_or_else(|| Fault::missing("name"))?, arguments.ok_or_else(|| Fault::missing("arguments"))?))
}

/// Reads arguments as a string that holds a JSON object, and keeps their spelling. The empty string means no arguments.
fn arguments<'a>(r: &mut Reader<'a>) -> Read<Cow<'a, str>> {
    let text = r.string()?;
    if text.trim().is_empty() {
        return Ok(Cow::Borrowed("{}"));
    }
    let mut inner = r.inner(&text);
    let checked = inner.require(Kind::Object).and_then(|()| inner.skip()).and_then(|()| inner.end());
    checked.map_err(|fault| fault.inside(Code::InvalidValue, "it must be a JSON object as text"))?;
    Ok(text)
}

fn content<'a>(r: &mut Reader<'a>, to: Dialect) -> Read<Vec<Part<'a>>> {
    match r.kind()? {
        Kind::String => Ok(vec![Part::Text(r.string()?)]),
        Kind::Array => {
            let mut parts = Vec::new();
            r.array(usize::MAX, |r, _| {
                parts.push(part(r, to)?);
                Ok(())
            })?;
            Ok(parts)
        }
        _ => Err(Fault::new(Code::InvalidType, "it must be a string or a list of parts")),
    }
}

fn part<'a>(r: &mut Reader<'a>, to: Dialect) -> Read<Part<'a>> {
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
            "text" => found = Some(("text", Part::Text(r.string()?))),
            "refusal" => found = Some(("refusal", Part::Text(r.string()?))),
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
    let kind = kind.ok_or_else(|| Fault::missing("type"))?;
    match found {
        Some((key, part)) if key == kind => Ok(part),
        _ => Err(Fault::missing(&kind)),
    }
}

fn image<'a>(r: &mut Reader<'a>, to: Dialect) -> Read<Part<'a>> {
    let mut url = None;
    r.object(|r, key| {
        match key.as_ref() {
            "url" => url = Some(r.string()?),
            "detail" => {
                if !matches!(r.optional(Reader::string)?.as_deref(), None | Some("auto" | "high")) {
                    let why = "shows images as they are: there are `auto` and `high`";
                    return Err(lacks(to, Code::UnsupportedValue, why));
                }
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    match inline(url.ok_or_else(|| Fault::missing("url"))?) {
        Inline::No(url) => Ok(Part::Image(Media::Url(url))),
        Inline::Base64 { media_type, data } => Ok(Part::Image(Media::Base64 { media_type, data })),
        Inline::Otherwise => Err(not_base64("url")),
    }
}

fn file<'a>(r: &mut Reader<'a>, to: Dialect) -> Read<Part<'a>> {
    let (mut data, mut title) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "file_data" => data = r.optional(Reader::string)?,
            "filename" => title = r.optional(Reader::string)?,
            "file_id" => {
                let why = "has other files than this path; send the file's data";
                r.optional(|_| Err::<(), _>(lacks(to, Code::UnsupportedParameter, why)))?;
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    let data = data.ok_or_else(|| Fault::missing("file_data"))?;
    match inline(data) {
        Inline::Base64 { media_type, data } if media_type == "application/pdf" => {
            Ok(Part::Document { title, context: None, media: Media::Base64 { media_type, data } })
        }
        Inline::Base64 { .. } => {
            let why = "takes files of type `application/pdf`; send a text as text, an image as `image_url`";
            Err(lacks(to, Code::UnsupportedContent, why).under_key("file_data"))
        }
        Inline::No(_) | Inline::Otherwise => Err(not_base64("file_data")),
    }
}

fn not_base64(key: &str) -> Fault {
    Fault::at(key, Code::InvalidValue, "it must be a data URL in base64: `data:TYPE;base64,DATA`")
}

/// The data that a URL itself contains.
enum Inline<'a> {
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
fn inline(url: Cow<'_, str>) -> Inline<'_> {
    if !url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
        return Inline::No(url);
    }
    let base64 = match &url {
        Cow::Borrowed(text) => base64_of(text).map(|(kind, data)| (Cow::Borrowed(kind), Cow::Borrowed(data))),
        Cow::Owned(text) => {
            base64_of(text).map(|(kind, data)| (Cow::Owned(kind.to_owned()), Cow::Owned(data.to_owned())))
        }
    };
    base64.map_or(Inline::Otherwise, |(media_type, data)| Inline::Base64 { media_type, data })
}

/// Returns the media type and the data of a data URL.
fn base64_of(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.get(5..)?.split_once(',')?;
    let head = head.strip_suffix(";base64")?;
    // Parameters of the type, such as a character set, mean nothing for images and PDF.
    Some((head.split(';').next().unwrap_or(head), data))
}
