//! Reads the turns of an Anthropic messages body: text, images, documents, thinking, tool calls and their results.
//! Must not know parameters.

use std::borrow::Cow;

use headrace_domain::{Code, Dialect};

use super::neutral_request::{NeutralMedia, NeutralPart, NeutralTurn, Speaker, lacks, no_such, unknown};
use super::read_chat::raw_object;
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};

/// Reads the turns. Consecutive messages of the same role form one turn, as the dialect requires.
pub(super) fn turns<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<NeutralTurn<'a>>> {
    let mut turns: Vec<NeutralTurn<'a>> = Vec::new();
    r.array(usize::MAX, |r, at| {
        let (who, parts) = turn(r, to)?;
        match turns.last_mut() {
            Some(last) if last.who == who && who != Speaker::System => last.parts.extend(parts),
            _ => turns.push(NeutralTurn { who, at, parts }),
        }
        Ok(())
    })?;
    if turns.is_empty() {
        return Err(FieldFault::new(Code::EmptyArray, "it must have at least one message"));
    }
    Ok(turns)
}

fn turn<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<(Speaker, Vec<NeutralPart<'a>>)> {
    let (mut who, mut parts) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "role" => {
                who = Some(match r.string()?.as_ref() {
                    "user" => Speaker::User,
                    "assistant" => Speaker::Assistant,
                    "system" => Speaker::System,
                    _ => {
                        let message = "it must be `user`, `assistant` or `system`";
                        return Err(FieldFault::new(Code::InvalidValue, message));
                    }
                });
            }
            "content" => parts = Some(blocks(r, to)?),
            "output_config" => {
                r.optional(|_| Err::<(), _>(no_such(to)))?;
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    let who = who.ok_or_else(|| FieldFault::missing("role"))?;
    let parts = parts.ok_or_else(|| FieldFault::missing("content"))?;
    check(who, &parts).map_err(|fault| fault.under_key("content"))?;
    Ok((who, parts))
}

/// Refuses blocks that belong to another role.
fn check(who: Speaker, parts: &[NeutralPart<'_>]) -> Read<()> {
    for (index, part) in parts.iter().enumerate() {
        let of = match part {
            NeutralPart::Text(_) => who,
            NeutralPart::Thinking { .. } | NeutralPart::Sealed(_) | NeutralPart::Call { .. } => {
                Speaker::Assistant
            }
            NeutralPart::Image(_)
            | NeutralPart::Document { .. }
            | NeutralPart::Paper { .. }
            | NeutralPart::Result { .. } => Speaker::User,
        };
        if of != who {
            let owner = if of == Speaker::User { "user" } else { "assistant" };
            let message = format!("only a message of role `{owner}` may hold such a block");
            return Err(FieldFault::new(Code::InvalidValue, message).under_index(index));
        }
    }
    Ok(())
}

/// Reads `system`: a string or a list of text blocks.
pub(super) fn texts<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<Cow<'a, str>>> {
    let parts = blocks(r, to)?;
    let text = |(index, part)| match part {
        NeutralPart::Text(text) => Ok(text),
        _ => Err(FieldFault::new(Code::InvalidValue, "it must be a block of text").under_index(index)),
    };
    parts.into_iter().enumerate().map(text).collect()
}

fn blocks<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<NeutralPart<'a>>> {
    if r.kind()? == ValueKind::String {
        return Ok(vec![NeutralPart::Text(r.string()?)]);
    }
    let mut parts = Vec::new();
    r.array(usize::MAX, |r, _| block(r, &mut parts, to))?;
    Ok(parts)
}

/// The fields of a block, before its type says which of them are allowed.
#[derive(Default)]
struct TurnBlockDraft<'a> {
    kind: Option<Cow<'a, str>>,
    text: Option<Cow<'a, str>>,
    thinking: Option<Cow<'a, str>>,
    signature: Option<Cow<'a, str>>,
    data: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    input: Option<&'a str>,
    tool_use_id: Option<Cow<'a, str>>,
    content: Vec<NeutralPart<'a>>,
    is_error: bool,
    source: Option<MediaOrigin<'a>>,
    title: Option<Cow<'a, str>>,
    context: Option<Cow<'a, str>>,
    /// The first unknown field.
    stranger: Option<String>,
}

/// Block types that only answers have. Unknown fields in them are ignored, because a server may have added them.
const ANSWERED: &[&str] = &["thinking", "redacted_thinking", "tool_use"];

/// The source of an image or a document: its media, or the content itself.
enum MediaOrigin<'a> {
    Media(NeutralMedia<'a>),
    Text(Cow<'a, str>),
    Parts(Vec<NeutralPart<'a>>),
    /// The source name of a search result.
    Name(Cow<'a, str>),
}

/// Block types that have a counterpart in the other dialect.
const KINDS: &[&str] = &[
    "text",
    "image",
    "document",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "search_result",
];

fn block<'a>(r: &mut JsonReader<'a>, parts: &mut Vec<NeutralPart<'a>>, to: Dialect) -> Read<()> {
    let mut draft = TurnBlockDraft::default();
    r.object(|r, key| draft.take(key, r, to))?;
    draft.finish(parts, to)
}

impl<'a> TurnBlockDraft<'a> {
    fn take(&mut self, key: &str, r: &mut JsonReader<'a>, to: Dialect) -> Read<()> {
        match key {
            "type" => {
                let kind = r.string()?;
                if !KINDS.contains(&kind.as_ref()) {
                    let why = "has no such block; send what it says as text";
                    return Err(lacks(to, Code::UnsupportedContent, why).of_parent());
                }
                self.kind = Some(kind);
            }
            "text" => self.text = Some(r.string()?),
            "thinking" => self.thinking = Some(r.string()?),
            "signature" => self.signature = r.optional(JsonReader::string)?.filter(|text| !text.is_empty()),
            "data" => self.data = Some(r.string()?),
            "id" => self.id = Some(r.string()?),
            "name" => self.name = Some(r.string()?),
            "input" => self.input = Some(raw_object(r)?),
            "tool_use_id" => self.tool_use_id = Some(r.string()?),
            "content" => self.content = r.optional(|r| blocks(r, to))?.unwrap_or_default(),
            "is_error" => self.is_error = r.optional(JsonReader::bool)?.unwrap_or(false),
            "source" => self.source = Some(source(r, to)?),
            "title" => self.title = r.optional(JsonReader::string)?,
            "context" => self.context = r.optional(JsonReader::string)?,
            "citations" => {
                r.optional(|r| citations(r, to))?;
            }
            "caller" => {
                r.optional(|r| caller(r, to))?;
            }
            "toolset_name" | "transformations" => {
                r.optional(|_| Err::<(), _>(no_such(to)))?;
            }
            // A hint that a cached prefix may end here.
            "cache_control" => r.skip()?,
            key => {
                self.stranger.get_or_insert_with(|| key.to_owned());
                r.skip()?;
            }
        }
        Ok(())
    }

    fn finish(self, parts: &mut Vec<NeutralPart<'a>>, to: Dialect) -> Read<()> {
        let missing = |key: &'static str| move || FieldFault::missing(key);
        let kind = self.kind.ok_or_else(missing("type"))?;
        if let Some(key) = self.stranger.filter(|_| !ANSWERED.contains(&kind.as_ref())) {
            return Err(unknown(to).under_key(&key));
        }
        parts.push(match kind.as_ref() {
            "text" => NeutralPart::Text(self.text.ok_or_else(missing("text"))?),
            "thinking" => NeutralPart::Thinking {
                text: self.thinking.ok_or_else(missing("thinking"))?,
                signature: self.signature,
            },
            "redacted_thinking" => NeutralPart::Sealed(self.data.ok_or_else(missing("data"))?),
            "tool_use" => NeutralPart::Call {
                id: self.id.ok_or_else(missing("id"))?,
                name: self.name.ok_or_else(missing("name"))?,
                input: Cow::Borrowed(self.input.ok_or_else(missing("input"))?),
            },
            "tool_result" => {
                let id = self.tool_use_id.ok_or_else(missing("tool_use_id"))?;
                NeutralPart::Result { id, parts: self.content, is_error: self.is_error }
            }
            "image" => match self.source.ok_or_else(missing("source"))? {
                MediaOrigin::Media(media) => NeutralPart::Image(media),
                _ => {
                    let message = "an image's is of type `base64` or `url`";
                    return Err(FieldFault::at("source", Code::InvalidValue, message));
                }
            },
            // A search result, or a document of blocks. A model reads their texts in this order.
            _ => match self.source.ok_or_else(missing("source"))? {
                MediaOrigin::Media(media) => {
                    NeutralPart::Document { title: self.title, context: self.context, media }
                }
                MediaOrigin::Text(text) => {
                    NeutralPart::Paper { title: self.title, context: self.context, text }
                }
                MediaOrigin::Parts(more) => {
                    parts.extend([self.title, self.context].into_iter().flatten().map(NeutralPart::Text));
                    parts.extend(more);
                    return Ok(());
                }
                MediaOrigin::Name(name) => {
                    parts.extend([self.title, Some(name)].into_iter().flatten().map(NeutralPart::Text));
                    parts.extend(self.content);
                    return Ok(());
                }
            },
        });
        Ok(())
    }
}

fn source<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<MediaOrigin<'a>> {
    if r.kind()? == ValueKind::String {
        return r.string().map(MediaOrigin::Name);
    }
    let (mut kind, mut media_type, mut data, mut url, mut content) = (None, None, None, None, Vec::new());
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let word = r.string()?;
                if !matches!(word.as_ref(), "base64" | "url" | "text" | "content") {
                    let why = "has other files than this path; send the data";
                    return Err(lacks(to, Code::UnsupportedContent, why));
                }
                kind = Some(word);
            }
            "media_type" => media_type = Some(r.string()?),
            "data" => data = Some(r.string()?),
            "url" => url = Some(r.string()?),
            "content" => content = blocks(r, to)?,
            // The type is the fault, whichever field comes first.
            "file_id" => r.skip()?,
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    let missing = |key: &'static str| move || FieldFault::missing(key);
    Ok(match kind.ok_or_else(missing("type"))?.as_ref() {
        "base64" => MediaOrigin::Media(NeutralMedia::Base64 {
            media_type: media_type.ok_or_else(missing("media_type"))?,
            data: data.ok_or_else(missing("data"))?,
        }),
        "url" => MediaOrigin::Media(NeutralMedia::Url(url.ok_or_else(missing("url"))?)),
        "text" => MediaOrigin::Text(data.ok_or_else(missing("data"))?),
        _ => MediaOrigin::Parts(content),
    })
}

/// Checks citations. A document's value says whether they are requested, and a text's value lists them.
fn citations(r: &mut JsonReader<'_>, to: Dialect) -> Read<()> {
    if r.kind()? == ValueKind::Array {
        return r.array(usize::MAX, |_, _| Err(no_such(to).of_parent()));
    }
    r.object(|r, key| match key.as_ref() {
        "enabled" => match r.optional(JsonReader::bool)? {
            Some(true) => Err(no_such(to)),
            _ => Ok(()),
        },
        _ => Err(unknown(to)),
    })
}

/// Checks the caller of a tool: the model itself, or code that ran at the server.
fn caller(r: &mut JsonReader<'_>, to: Dialect) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "type" if r.string()? == "direct" => Ok(()),
        "type" => Err(lacks(to, Code::UnsupportedValue, "has no such caller; there is `direct`")),
        _ => r.skip(),
    })
}
