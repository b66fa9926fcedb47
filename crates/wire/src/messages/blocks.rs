//! The blocks of Anthropic's turns: each type is taken, or refused by its name and place. Knows no roles.

use headrace_domain::{Code, ToolCall};

use crate::breakpoints::Breakpoints;
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};
use crate::params::label;
use crate::{WireLimits, names, tools};

/// What a failed tool's result is led by in the prompt, so that the model sees `is_error`.
pub(crate) const TOOL_ERROR: &str = "Error: ";

/// What reading blocks needs.
#[derive(Clone, Copy)]
pub(crate) struct Within<'l> {
    pub(crate) limits: &'l WireLimits,
    pub(crate) breakpoints: &'l Breakpoints,
}

/// A block whose role is not known yet.
#[derive(Debug)]
pub(crate) enum Block {
    /// Text, from a block of text or from one that says text: a document, a search's result.
    Text(String),
    Thinking(String),
    /// Thinking that only its writer can read.
    Sealed,
    ToolUse(ToolCall),
    ToolResult {
        id: String,
        text: String,
    },
}

/// Types that are known, and why they are not taken.
const REFUSED: &[(&str, &str)] = &[
    ("image", "images are not supported; describe what they show"),
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

/// Types that are taken.
const TAKEN: &[&str] =
    &["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document", "search_result"];

/// A string or a list of blocks.
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

/// A string or a list of blocks that say text, joined with nothing between them.
pub(crate) fn text(r: &mut Reader<'_>, within: Within<'_>) -> Read<String> {
    texts(r, within).map(|texts| texts.concat())
}

/// As [`text`], not joined.
pub(crate) fn texts(r: &mut Reader<'_>, within: Within<'_>) -> Read<Vec<String>> {
    let blocks = read(r, within)?.into_iter().enumerate();
    let text = |(index, block)| match block {
        Block::Text(text) => Ok(text),
        _ => Err(Fault::new(Code::InvalidValue, "only blocks of text may stand here").under_index(index)),
    };
    blocks.map(text).collect()
}

/// The fields of a block as they come, before its type says which belong.
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
    content: Option<String>,
    is_error: bool,
    title: Option<String>,
    context: Option<String>,
    source: Option<Source>,
}

/// Where the text of a document or of a search's result comes from.
enum Source {
    /// A document's text.
    Text(String),
    /// The name of what a search found.
    Name(String),
}

impl Draft {
    /// A field that a block of this type does not have.
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
            ("source", self.source.is_some(), &["document", "search_result"]),
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
        // It vouches for Anthropic's own thinking text; ours needs none.
        "signature" => r.optional(Reader::skip_string).map(drop)?,
        "citations" => r.optional(citations).map(drop)?,
        "id" => draft.id = Some(label(r, within.limits)?),
        "name" => draft.name = Some(names::anthropic_tool_name(r)?),
        "input" => draft.input = Some(tools::arguments_object(r)?.to_owned()),
        "caller" => r.optional(caller).map(drop)?,
        "tool_use_id" => draft.tool_use_id = Some(label(r, within.limits)?),
        "content" => draft.content = r.optional(|r| text(r, within))?,
        "is_error" => draft.is_error = r.optional(Reader::bool)?.unwrap_or(false),
        "title" => draft.title = r.optional(|r| r.string().map(Into::into))?,
        "context" => draft.context = r.optional(|r| r.string().map(Into::into))?,
        "source" => draft.source = Some(source(r, within)?),
        "cache_control" => within.breakpoints.read(r)?,
        _ => return Err(Fault::unknown()),
    }
    Ok(())
}

/// The block is to blame, whichever of its keys told.
fn unsupported(why: &str) -> Fault {
    Fault::new(Code::UnsupportedContent, why).of_parent()
}

fn finish(draft: Draft) -> Read<Block> {
    let kind = draft.kind.as_deref().ok_or_else(|| Fault::missing("type"))?;
    if let Some(key) = draft.stray(kind) {
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
            let text = draft.content.unwrap_or_default();
            Block::ToolResult { id, text: if draft.is_error { format!("{TOOL_ERROR}{text}") } else { text } }
        }
        "document" => match draft.source.ok_or_else(missing("source"))? {
            Source::Text(text) => Block::Text(lines([draft.title, draft.context, Some(text)])),
            Source::Name(_) => return Err(Fault::at("source", Code::InvalidType, "it must be an object")),
        },
        _ => match draft.source.ok_or_else(missing("source"))? {
            Source::Name(name) => {
                let text = draft.content.ok_or_else(missing("content"))?;
                Block::Text(lines([draft.title, Some(name), Some(text)]))
            }
            Source::Text(_) => return Err(Fault::at("source", Code::InvalidType, "it must be a string")),
        },
    })
}

/// What a model reads of a document or of what a search found: each on a line of its own.
fn lines(parts: [Option<String>; 3]) -> String {
    let mut text = String::new();
    for part in parts.into_iter().flatten() {
        text.push_str(&part);
        text.push('\n');
    }
    text
}

/// The source of a document: text or blocks of text. Others are files, which nobody here can read.
fn source(r: &mut Reader<'_>, within: Within<'_>) -> Read<Source> {
    if r.kind()? == Kind::String {
        return Ok(Source::Name(r.string()?.into_owned()));
    }
    let (mut kind, mut data, mut content, mut media_type) = (None, None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let word = r.string()?;
                if !matches!(word.as_ref(), "text" | "content") {
                    let why =
                        format!("a `document` of source `{}` is not supported; send its text", shown(&word));
                    return Err(unsupported(&why));
                }
                kind = Some(word);
            }
            "media_type" => media_type = Some(r.string()?),
            "data" => data = Some(r.string()?.into_owned()),
            "content" => content = Some(text(r, within)?),
            // What other sources have; the type is to blame.
            "url" | "file_id" => r.skip()?,
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    let (key, text) = match kind.ok_or_else(|| Fault::missing("type"))?.as_ref() {
        "text" => ("data", data),
        _ => ("content", content),
    };
    if media_type.is_some_and(|media_type| media_type != "text/plain") {
        return Err(Fault::at("media_type", Code::UnsupportedValue, "it must be `text/plain`"));
    }
    text.map(Source::Text).ok_or_else(|| Fault::missing(key))
}

/// A word of a type, where it is one of those that exist; what callers wrote is not repeated.
fn shown(word: &str) -> &str {
    ["base64", "url", "file"].into_iter().find(|known| *known == word).unwrap_or("…")
}

/// Of a text: those that it has, which a model is not shown. Of a document: whether they are asked for.
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

/// Who called the tool: the model itself, or code that ran at a server.
fn caller(r: &mut Reader<'_>) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "type" if r.string()? == "direct" => Ok(()),
        "type" => {
            Err(Fault::new(Code::UnsupportedValue, "only the model calls tools here: it must be `direct`"))
        }
        _ => r.skip(),
    })
}
