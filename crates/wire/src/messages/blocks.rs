//! Reads the blocks of Anthropic's turns. Each type is accepted, or refused by its name and place. Knows no roles.

use headrace_domain::{Code, MediaKind, MediaSource, ToolCall};

use crate::breakpoints::Breakpoints;
use crate::content::{Content, Other};
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};
use crate::params::label;
use crate::{WireLimits, names, tools};

/// The prefix of a failed tool's result in the prompt, so that the model sees `is_error`.
pub(crate) const TOOL_ERROR: &str = "Error: ";

/// The context for reading blocks.
#[derive(Clone, Copy)]
pub(crate) struct Within<'l> {
    pub(crate) limits: &'l WireLimits,
    pub(crate) breakpoints: &'l Breakpoints,
}

/// A block whose role is not known yet.
#[derive(Debug)]
pub(crate) enum Block {
    /// Text, from a text block or from another block that contains text: a document or a search result.
    Text(String),
    Thinking(String),
    /// Thinking that only its writer can read.
    Sealed,
    ToolUse(ToolCall),
    ToolResult {
        id: String,
        content: Content,
    },
    /// Content that is not text.
    Media(Other),
}

/// Known types that are refused, each with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("server_tool_use", SERVER),
    ("web_search_tool_result", SERVER),
    ("web_fetch_tool_result", SERVER),
    ("code_execution_tool_result", SERVER),
    ("bash_code_execution_tool_result", SERVER),
    ("text_editor_code_execution_tool_result", SERVER),
    ("tool_search_tool_result", SERVER),
    ("mcp_tool_use", SERVER),
    ("mcp_tool_result", SERVER),
    ("advisor_tool_result", SERVER),
    ("container_upload", "there is no code execution; send the file's content as text"),
    ("tool_reference", "all tools stand in the prompt; leave it out"),
    ("browser_state", "there is no browser; say what it shows as text"),
    ("compaction", "the conversation is taken as it is sent; send what it says as text"),
    ("input_audio", "sounds are not supported; send what is said as text"),
    ("video", "films are not supported; describe what they show"),
];

const SERVER: &str = "no tools run at the server; send what it says as text";

/// The types that are accepted.
const TAKEN: &[&str] = &[
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "document",
    "search_result",
    "image",
];

/// Types that only answers have. Unknown fields in them are ignored, because other servers may have added them.
const ANSWERED: &[&str] = &["thinking", "redacted_thinking", "tool_use"];

/// Reads a string or a list of blocks.
pub(crate) fn read(r: &mut Reader<'_>, within: Within<'_>) -> Read<Vec<Block>> {
    match r.kind()? {
        Kind::String => Ok(vec![Block::Text(r.string()?.into_owned())]),
        Kind::Array => {
            let mut blocks = Vec::new();
            r.array(within.limits.max_content_parts, |r, _| {
                blocks.push(block(r, within)?);
                Ok(())
            })?;
            Ok(blocks)
        }
        _ => Err(Fault::new(Code::InvalidType, "it must be a string or a list of blocks")),
    }
}

/// Reads a string or a list of text blocks, and joins the texts without a separator.
pub(crate) fn text(r: &mut Reader<'_>, within: Within<'_>) -> Read<String> {
    texts(r, within).map(|texts| texts.concat())
}

/// Reads the result of a tool: its text, and its media with the places of their blocks.
fn result(r: &mut Reader<'_>, within: Within<'_>) -> Read<Content> {
    let mut content = Content::default();
    for (index, block) in read(r, within)?.into_iter().enumerate() {
        match block {
            Block::Text(text) => content.text.push_str(&text),
            Block::Media(part) => content.push(part, "content", index),
            _ => {
                let message = "only text, images and documents may stand here";
                return Err(Fault::new(Code::InvalidValue, message).under_index(index));
            }
        }
    }
    Ok(content)
}

/// Like [`text`], but does not join the texts.
pub(crate) fn texts(r: &mut Reader<'_>, within: Within<'_>) -> Read<Vec<String>> {
    let blocks = read(r, within)?.into_iter().enumerate();
    let text = |(index, block)| match block {
        Block::Text(text) => Ok(text),
        _ => Err(Fault::new(Code::InvalidValue, "only blocks of text may stand here").under_index(index)),
    };
    blocks.map(text).collect()
}

/// The fields of a block, before its type says which of them are allowed.
#[derive(Default)]
struct Draft {
    kind: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    data: bool,
    id: Option<String>,
    name: Option<String>,
    input: Option<String>,
    tool_use_id: Option<String>,
    content: Option<Content>,
    is_error: bool,
    title: Option<String>,
    context: Option<String>,
    source: Option<Source>,
    /// The first unknown field.
    stranger: Option<String>,
}

/// The source of a document, an image or a search result.
enum Source {
    /// A document's text.
    Text(String),
    /// The name of a search result.
    Name(String),
    /// Data that is not text.
    Data(MediaSource),
}

impl Draft {
    /// Returns a field that blocks of this type do not have.
    fn stray(&self, kind: &str) -> Option<&'static str> {
        let fields: [(&'static str, bool, &[&str]); 12] = [
            ("text", self.text.is_some(), &["text"]),
            ("thinking", self.thinking.is_some(), &["thinking"]),
            ("data", self.data, &["redacted_thinking"]),
            ("id", self.id.is_some(), &["tool_use"]),
            ("name", self.name.is_some(), &["tool_use"]),
            ("input", self.input.is_some(), &["tool_use"]),
            ("tool_use_id", self.tool_use_id.is_some(), &["tool_result"]),
            ("content", self.content.is_some(), &["tool_result", "search_result"]),
            ("is_error", self.is_error, &["tool_result"]),
            ("title", self.title.is_some(), &["document", "search_result"]),
            ("context", self.context.is_some(), &["document"]),
            ("source", self.source.is_some(), &["document", "search_result", "image"]),
        ];
        fields.iter().find(|(_, present, owners)| *present && !owners.contains(&kind)).map(|(key, ..)| *key)
    }
}

fn block(r: &mut Reader<'_>, within: Within<'_>) -> Read<Block> {
    let mut draft = Draft::default();
    r.object(|r, key| take(&mut draft, key, r, within))?;
    finish(draft)
}

fn take(draft: &mut Draft, key: &str, r: &mut Reader<'_>, within: Within<'_>) -> Read<()> {
    match key {
        "type" => {
            let kind = r.string()?;
            if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == kind) {
                return Err(unsupported(&format!("`{kind}`: {why}")));
            }
            if !TAKEN.contains(&kind.as_ref()) {
                return Err(unsupported("there is no such type of block; send what it says as text"));
            }
            draft.kind = Some(kind.into_owned());
        }
        "text" => draft.text = Some(r.string()?.into_owned()),
        "thinking" => draft.thinking = Some(r.string()?.into_owned()),
        "data" => draft.data = r.skip_string().map(|_| true)?,
        // It proves Anthropic's own thinking text. This server's thinking needs no proof.
        "signature" => r.optional(Reader::skip_string).map(drop)?,
        "citations" => r.optional(citations).map(drop)?,
        "id" => draft.id = Some(label(r, within.limits)?),
        "name" => draft.name = Some(names::anthropic_tool_name(r)?),
        "input" => draft.input = Some(tools::arguments_object(r)?.to_owned()),
        "caller" => r.optional(caller).map(drop)?,
        "tool_use_id" => draft.tool_use_id = Some(label(r, within.limits)?),
        "content" => draft.content = r.optional(|r| result(r, within))?,
        "is_error" => draft.is_error = r.optional(Reader::bool)?.unwrap_or(false),
        "title" => draft.title = r.optional(|r| r.string().map(Into::into))?,
        "context" => draft.context = r.optional(|r| r.string().map(Into::into))?,
        "source" => draft.source = Some(source(r, within)?),
        "cache_control" => within.breakpoints.read(r)?,
        key => {
            draft.stranger.get_or_insert_with(|| key.to_owned());
            r.skip()?;
        }
    }
    Ok(())
}

/// The fault names the block, whichever of its keys revealed it.
fn unsupported(why: &str) -> Fault {
    Fault::new(Code::UnsupportedContent, why).of_parent()
}

fn finish(draft: Draft) -> Read<Block> {
    let kind = draft.kind.as_deref().ok_or_else(|| Fault::missing("type"))?;
    if let Some(key) = draft.stray(kind) {
        return Err(Fault::unknown().under_key(key));
    }
    if let Some(key) = draft.stranger.as_deref().filter(|_| !ANSWERED.contains(&kind)) {
        return Err(Fault::unknown().under_key(key));
    }
    let missing = |key: &'static str| move || Fault::missing(key);
    Ok(match kind {
        "text" => Block::Text(draft.text.ok_or_else(missing("text"))?),
        "thinking" => Block::Thinking(draft.thinking.ok_or_else(missing("thinking"))?),
        "redacted_thinking" if draft.data => Block::Sealed,
        "redacted_thinking" => return Err(Fault::missing("data")),
        "tool_use" => Block::ToolUse(ToolCall {
            id: draft.id.ok_or_else(missing("id"))?,
            name: draft.name.ok_or_else(missing("name"))?,
            arguments: draft.input.ok_or_else(missing("input"))?,
        }),
        "tool_result" => {
            let id = draft.tool_use_id.ok_or_else(missing("tool_use_id"))?;
            let mut content = draft.content.unwrap_or_default();
            if draft.is_error {
                content.text.insert_str(0, TOOL_ERROR);
            }
            Block::ToolResult { id, content }
        }
        "image" => match draft.source.ok_or_else(missing("source"))? {
            Source::Data(source) => Block::Media(Other::new(MediaKind::Image, source)),
            _ => {
                let message = "the source of an image must be of type `base64`, `url` or `file`";
                return Err(Fault::at("source", Code::InvalidValue, message));
            }
        },
        "document" => match draft.source.ok_or_else(missing("source"))? {
            Source::Data(source) => {
                let document = Other::new(MediaKind::Document, source);
                Block::Media(Other { name: draft.title, ..document })
            }
            Source::Text(text) => Block::Text(lines([draft.title, draft.context, Some(text)])),
            Source::Name(_) => return Err(Fault::at("source", Code::InvalidType, "it must be an object")),
        },
        _ => match draft.source.ok_or_else(missing("source"))? {
            Source::Name(name) => {
                let content = draft.content.ok_or_else(missing("content"))?;
                if !content.media.is_empty() {
                    return Err(Fault::at("content", Code::UnsupportedContent, "it may hold text alone"));
                }
                Block::Text(lines([draft.title, Some(name), Some(content.text)]))
            }
            Source::Text(_) | Source::Data(_) => {
                return Err(Fault::at("source", Code::InvalidType, "it must be a string"));
            }
        },
    })
}

/// Joins the texts of a document or a search result that a model reads, each on its own line.
fn lines(parts: [Option<String>; 3]) -> String {
    let mut text = String::new();
    for part in parts.into_iter().flatten() {
        text.push_str(&part);
        text.push('\n');
    }
    text
}

/// Reads the source of a document, an image or a search result: text, text blocks, data, the data's address, or a name.
fn source(r: &mut Reader<'_>, within: Within<'_>) -> Read<Source> {
    if r.kind()? == Kind::String {
        return Ok(Source::Name(r.string()?.into_owned()));
    }
    let mut draft = SourceDraft::default();
    r.object(|r, key| {
        let field = match key.as_ref() {
            "content" => {
                draft.content = Some(text(r, within)?);
                return Ok(());
            }
            "type" => &mut draft.kind,
            "media_type" => &mut draft.media_type,
            "data" => &mut draft.data,
            "url" => &mut draft.url,
            "file_id" => &mut draft.file_id,
            _ => return Err(Fault::unknown()),
        };
        *field = Some(r.string()?.into_owned());
        Ok(())
    })?;
    draft.finish()
}

#[derive(Default)]
struct SourceDraft {
    kind: Option<String>,
    media_type: Option<String>,
    data: Option<String>,
    url: Option<String>,
    file_id: Option<String>,
    content: Option<String>,
}

impl SourceDraft {
    fn finish(self) -> Read<Source> {
        let missing = |key: &'static str| move || Fault::missing(key);
        let kind = self.kind.ok_or_else(missing("type"))?;
        let media_type = self.media_type;
        if matches!(kind.as_str(), "text" | "content")
            && media_type.as_ref().is_some_and(|media_type| media_type != "text/plain")
        {
            return Err(Fault::at("media_type", Code::UnsupportedValue, "it must be `text/plain`"));
        }
        match kind.as_str() {
            "text" => self.data.map(Source::Text).ok_or_else(missing("data")),
            "content" => self.content.map(Source::Text).ok_or_else(missing("content")),
            "url" => self.url.map(|url| Source::Data(MediaSource::Url(url))).ok_or_else(missing("url")),
            "file" => {
                let file = self.file_id.map(|id| Source::Data(MediaSource::File(id)));
                file.ok_or_else(missing("file_id"))
            }
            "base64" => {
                let data = self.data.ok_or_else(missing("data"))?;
                let media_type = media_type.ok_or_else(missing("media_type"))?;
                Ok(Source::Data(MediaSource::Base64 { media_type, data }))
            }
            _ => {
                let message = "it must be `base64`, `url`, `file`, `text` or `content`";
                Err(Fault::at("type", Code::UnsupportedValue, message))
            }
        }
    }
}

/// Reads citations. Those of a text are skipped, because a model does not see them. For a document, they must not be
/// enabled.
fn citations(r: &mut Reader<'_>) -> Read<()> {
    if r.kind()? == Kind::Array {
        return r.skip();
    }
    r.object(|r, key| match key.as_ref() {
        "enabled" => match r.optional(Reader::bool)? {
            Some(true) => Err(Fault::new(
                Code::UnsupportedParameter,
                "answers cite nothing; leave it out or send false",
            )),
            _ => Ok(()),
        },
        _ => Err(Fault::unknown()),
    })
}

/// Checks the caller of a tool: the model itself, or code that ran at a server.
fn caller(r: &mut Reader<'_>) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "type" if r.string()? == "direct" => Ok(()),
        "type" => {
            Err(Fault::new(Code::UnsupportedValue, "only the model calls tools here: it must be `direct`"))
        }
        _ => r.skip(),
    })
}
