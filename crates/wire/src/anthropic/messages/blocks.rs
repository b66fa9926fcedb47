//! Reads the blocks of Anthropic's turns. Each type is accepted, or refused by its name and place. Knows no roles.

use headrace_domain::{Code, MediaKind, MediaSource, ToolCall};

use crate::common::breakpoints::CacheBreakpoints;
use crate::common::content::{ContentMedia, MessageContent};
use crate::common::params::label;
use crate::common::{names, tools};
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The prefix of a failed tool's result in the prompt, so that the model sees `is_error`.
pub const TOOL_ERROR: &str = "Error: ";

/// The context for reading blocks.
#[derive(Clone, Copy)]
pub(crate) struct BlockContext<'l> {
    pub(crate) limits: &'l WireLimits,
    pub(crate) breakpoints: &'l CacheBreakpoints,
}

/// A block whose role is not known yet.
#[derive(Debug)]
pub(crate) enum ReadBlock {
    /// Text, from a text block or from another block that contains text: a document or a search result.
    Text(MessageContent),
    Thinking(String),
    /// Thinking that only its writer can read.
    Sealed,
    ToolUse(ToolCall),
    ToolResult {
        id: String,
        content: MessageContent,
    },
    /// Content that is not text.
    Media(ContentMedia),
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
pub(crate) fn read(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<Vec<ReadBlock>> {
    match r.kind()? {
        ValueKind::String => Ok(vec![ReadBlock::Text(MessageContent::of_text(r.string()?.into_owned()))]),
        ValueKind::Array => {
            let mut blocks = Vec::new();
            r.array(within.limits.max_content_parts, |r, _| {
                blocks.push(block(r, within)?);
                Ok(())
            })?;
            Ok(blocks)
        }
        _ => Err(FieldFault::new(Code::InvalidType, "it must be a string or a list of blocks")),
    }
}

/// Reads a string or a list of text blocks, and joins the texts without a separator.
fn text(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<MessageContent> {
    texts(r, within).map(|texts| joined(&texts))
}

/// Texts as one, each a part of its own.
pub(crate) fn joined(texts: &[MessageContent]) -> MessageContent {
    let mut content = MessageContent::default();
    texts.iter().for_each(|text| content.append_text(text));
    content
}

/// Reads the result of a tool: its text, and its media with the places of their blocks.
fn result(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<MessageContent> {
    let mut content = MessageContent::default();
    for (index, block) in read(r, within)?.into_iter().enumerate() {
        match block {
            ReadBlock::Text(text) => content.append_text(&text),
            ReadBlock::Media(part) => content.push(part, "content", index),
            _ => {
                let message = "only text, images and documents may stand here";
                return Err(FieldFault::new(Code::InvalidValue, message).under_index(index));
            }
        }
    }
    Ok(content)
}

/// Like [`text`], but does not join the texts.
pub(crate) fn texts(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<Vec<MessageContent>> {
    let blocks = read(r, within)?.into_iter().enumerate();
    let text = |(index, block)| match block {
        ReadBlock::Text(text) => Ok(text),
        _ => {
            Err(FieldFault::new(Code::InvalidValue, "only blocks of text may stand here").under_index(index))
        }
    };
    blocks.map(text).collect()
}

/// The fields of a block, before its type says which of them are allowed.
#[derive(Default)]
struct BlockDraft {
    kind: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    data: bool,
    id: Option<String>,
    name: Option<String>,
    input: Option<String>,
    tool_use_id: Option<String>,
    content: Option<MessageContent>,
    is_error: bool,
    title: Option<String>,
    context: Option<String>,
    source: Option<BlockSource>,
    /// The first unknown field.
    stranger: Option<String>,
}

/// The source of a document, an image or a search result.
enum BlockSource {
    /// A document's text.
    Text(MessageContent),
    /// The name of a search result.
    Name(String),
    /// Data that is not text.
    Data(MediaSource),
}

impl BlockDraft {
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

fn block(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<ReadBlock> {
    let mut draft = BlockDraft::default();
    r.object(|r, key| take(&mut draft, key, r, within))?;
    finish(draft)
}

fn take(draft: &mut BlockDraft, key: &str, r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<()> {
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
        "signature" => r.optional(JsonReader::skip_string).map(drop)?,
        "citations" => r.optional(citations).map(drop)?,
        "id" => draft.id = Some(label(r, within.limits)?),
        "name" => draft.name = Some(names::anthropic_tool_name(r)?),
        "input" => draft.input = Some(tools::arguments_object(r)?.to_owned()),
        "caller" => r.optional(caller).map(drop)?,
        "tool_use_id" => draft.tool_use_id = Some(label(r, within.limits)?),
        "content" => draft.content = r.optional(|r| result(r, within))?,
        "is_error" => draft.is_error = r.optional(JsonReader::bool)?.unwrap_or(false),
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
fn unsupported(why: &str) -> FieldFault {
    FieldFault::new(Code::UnsupportedContent, why).of_parent()
}

fn finish(draft: BlockDraft) -> Read<ReadBlock> {
    let kind = draft.kind.as_deref().ok_or_else(|| FieldFault::missing("type"))?;
    if let Some(key) = draft.stray(kind) {
        return Err(FieldFault::unknown().under_key(key));
    }
    if let Some(key) = draft.stranger.as_deref().filter(|_| !ANSWERED.contains(&kind)) {
        return Err(FieldFault::unknown().under_key(key));
    }
    let missing = |key: &'static str| move || FieldFault::missing(key);
    Ok(match kind {
        "text" => ReadBlock::Text(MessageContent::of_text(draft.text.ok_or_else(missing("text"))?)),
        "thinking" => ReadBlock::Thinking(draft.thinking.ok_or_else(missing("thinking"))?),
        "redacted_thinking" if draft.data => ReadBlock::Sealed,
        "redacted_thinking" => return Err(FieldFault::missing("data")),
        "tool_use" => ReadBlock::ToolUse(ToolCall {
            id: draft.id.ok_or_else(missing("id"))?,
            name: draft.name.ok_or_else(missing("name"))?,
            arguments: draft.input.ok_or_else(missing("input"))?,
        }),
        "tool_result" => {
            let id = draft.tool_use_id.ok_or_else(missing("tool_use_id"))?;
            let mut content = draft.content.unwrap_or_default();
            if draft.is_error {
                content.put_before(TOOL_ERROR);
            }
            ReadBlock::ToolResult { id, content }
        }
        "image" => match draft.source.ok_or_else(missing("source"))? {
            BlockSource::Data(source) => ReadBlock::Media(ContentMedia::new(MediaKind::Image, source)),
            _ => {
                let message = "the source of an image must be of type `base64`, `url` or `file`";
                return Err(FieldFault::at("source", Code::InvalidValue, message));
            }
        },
        "document" => match draft.source.ok_or_else(missing("source"))? {
            BlockSource::Data(source) => {
                let document = ContentMedia::new(MediaKind::Document, source);
                ReadBlock::Media(ContentMedia { name: draft.title, ..document })
            }
            BlockSource::Text(text) => ReadBlock::Text(lines([draft.title, draft.context], &text)),
            BlockSource::Name(_) => {
                return Err(FieldFault::at("source", Code::InvalidType, "it must be an object"));
            }
        },
        _ => match draft.source.ok_or_else(missing("source"))? {
            BlockSource::Name(name) => {
                let content = draft.content.ok_or_else(missing("content"))?;
                if !content.media.is_empty() {
                    return Err(FieldFault::at(
                        "content",
                        Code::UnsupportedContent,
                        "it may hold text alone",
                    ));
                }
                ReadBlock::Text(lines([draft.title, Some(name)], &content))
            }
            BlockSource::Text(_) | BlockSource::Data(_) => {
                return Err(FieldFault::at("source", Code::InvalidType, "it must be a string"));
            }
        },
    })
}

/// Joins the texts of a document or a search result that a model reads, each on its own line.
fn lines(heads: [Option<String>; 2], text: &MessageContent) -> MessageContent {
    let mut lines = MessageContent::default();
    for head in heads.into_iter().flatten() {
        lines.push_text(&head);
        lines.text.push('\n');
    }
    lines.append_text(text);
    lines.text.push('\n');
    lines
}

/// Reads the source of a document, an image or a search result: text, text blocks, data, the data's address, or a name.
fn source(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<BlockSource> {
    if r.kind()? == ValueKind::String {
        return Ok(BlockSource::Name(r.string()?.into_owned()));
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
            _ => return Err(FieldFault::unknown()),
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
    content: Option<MessageContent>,
}

impl SourceDraft {
    fn finish(self) -> Read<BlockSource> {
        let missing = |key: &'static str| move || FieldFault::missing(key);
        let kind = self.kind.ok_or_else(missing("type"))?;
        let media_type = self.media_type;
        if matches!(kind.as_str(), "text" | "content")
            && media_type.as_ref().is_some_and(|media_type| media_type != "text/plain")
        {
            return Err(FieldFault::at("media_type", Code::UnsupportedValue, "it must be `text/plain`"));
        }
        match kind.as_str() {
            "text" => {
                let data = self.data.map(MessageContent::of_text);
                data.map(BlockSource::Text).ok_or_else(missing("data"))
            }
            "content" => self.content.map(BlockSource::Text).ok_or_else(missing("content")),
            "url" => self.url.map(|url| BlockSource::Data(MediaSource::Url(url))).ok_or_else(missing("url")),
            "file" => {
                let file = self.file_id.map(|id| BlockSource::Data(MediaSource::File(id)));
                file.ok_or_else(missing("file_id"))
            }
            "base64" => {
                let data = self.data.ok_or_else(missing("data"))?;
                let media_type = media_type.ok_or_else(missing("media_type"))?;
                Ok(BlockSource::Data(MediaSource::Base64 { media_type, data }))
            }
            _ => {
                let message = "it must be `base64`, `url`, `file`, `text` or `content`";
                Err(FieldFault::at("type", Code::UnsupportedValue, message))
            }
        }
    }
}

/// Reads citations. Those of a text are skipped, because a model does not see them. For a document, they must not be
/// enabled.
fn citations(r: &mut JsonReader<'_>) -> Read<()> {
    if r.kind()? == ValueKind::Array {
        return r.skip();
    }
    r.object(|r, key| match key.as_ref() {
        "enabled" => match r.optional(JsonReader::bool)? {
            Some(true) => Err(FieldFault::new(
                Code::UnsupportedParameter,
                "answers cite nothing; leave it out or send false",
            )),
            _ => Ok(()),
        },
        _ => Err(FieldFault::unknown()),
    })
}

/// Checks the caller of a tool: the model itself, or code that ran at a server.
fn caller(r: &mut JsonReader<'_>) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "type" if r.string()? == "direct" => Ok(()),
        "type" => Err(FieldFault::new(
            Code::UnsupportedValue,
            "only the model calls tools here: it must be `direct`",
        )),
        _ => r.skip(),
    })
}
