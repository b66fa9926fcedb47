//! Reads the content of a message in OpenAI's dialects: a string, or a list of parts. Texts are joined in order. Other
//! parts are kept with their place. Knows no roles.

use std::borrow::Cow;

use headrace_domain::{Code, MediaKind, MediaPart, MediaSource, Message, Role};

use crate::common::cache_options;
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The content of a message.
#[derive(Debug, Default)]
pub(crate) struct MessageContent {
    /// The text. Nothing is put between the parts.
    pub(crate) text: String,
    /// The bytes of `text` at which a further part begins (see [`headrace_domain::Message::joints`]).
    pub(crate) joints: Vec<usize>,
    /// The parts that are not text.
    pub(crate) media: Vec<MediaPart>,
    /// A part is marked as the end of a cached prefix.
    pub(crate) is_marked: bool,
}

impl MessageContent {
    /// A text of one part.
    pub(crate) fn of_text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Adds a part that is text.
    pub(crate) fn push_text(&mut self, part: &str) {
        if !self.text.is_empty() && !part.is_empty() {
            self.joints.push(self.text.len());
        }
        self.text.push_str(part);
    }

    /// Adds the text parts of `more`, the first as a part of its own.
    pub(crate) fn append_text(&mut self, more: &Self) {
        let before = self.text.len();
        self.push_text(&more.text);
        self.joints.extend(more.joints.iter().map(|at| before.saturating_add(*at)));
    }

    /// Puts a text in front of the first part.
    pub(crate) fn put_before(&mut self, text: &str) {
        self.text.insert_str(0, text);
        self.joints.iter_mut().for_each(|at| *at = at.saturating_add(text.len()));
    }

    /// The message that says this.
    pub(crate) fn into_message(self, role: Role) -> Message {
        let Self { text, joints, media, is_marked: _ } = self;
        Message { joints, media, ..Message::text(role, text) }
    }

    /// Adds a part that is not text. It is number `index` of the list at `key`.
    pub(crate) fn push(&mut self, part: ContentMedia, key: &str, index: usize) {
        let ContentMedia { kind, source, detail, name } = part;
        let (behind_bytes, place) = (self.text.len(), format!("{key}[{index}]"));
        self.media.push(MediaPart { kind, source, detail, name, behind_bytes, place });
    }
}

/// A part that is not text.
#[derive(Debug)]
pub(crate) struct ContentMedia {
    pub(crate) kind: MediaKind,
    pub(crate) source: MediaSource,
    pub(crate) detail: Option<String>,
    pub(crate) name: Option<String>,
}

impl ContentMedia {
    pub(crate) const fn new(kind: MediaKind, source: MediaSource) -> Self {
        Self { kind, source, detail: None, name: None }
    }
}

/// Reads a string or a list of chat's parts.
pub(crate) fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<MessageContent> {
    match r.kind()? {
        ValueKind::String => Ok(MessageContent::of_text(r.string()?.into_owned())),
        ValueKind::Array => {
            let mut content = MessageContent::default();
            r.array(limits.max_content_parts, |r, index| part(r, index, &mut content))?;
            Ok(content)
        }
        _ => Err(FieldFault::new(Code::InvalidType, "it must be a string or a list of parts")),
    }
}

/// Types of parts. Each is also the key of the part's content. The addresses of sounds and videos are vLLM's additions.
const TYPES: &[&str] = &["text", "refusal", "image_url", "input_audio", "audio_url", "video_url", "file"];

fn part(r: &mut JsonReader<'_>, index: usize, content: &mut MessageContent) -> Read<()> {
    let (mut kind, mut text, mut other) = (None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let word = r.string()?;
                kind = Some(
                    *TYPES.iter().find(|known| **known == word).ok_or_else(|| no_such_part().of_parent())?,
                );
            }
            "text" => text = Some(("text", r.string()?)),
            "refusal" => text = Some(("refusal", r.string()?)),
            "image_url" => other = Some(("image_url", address(r, MediaKind::Image)?)),
            "audio_url" => other = Some(("audio_url", address(r, MediaKind::Audio)?)),
            "video_url" => other = Some(("video_url", address(r, MediaKind::Video)?)),
            "input_audio" => other = Some(("input_audio", sound(r)?)),
            "file" => other = Some(("file", file(r)?)),
            "prompt_cache_breakpoint" => content.is_marked |= cache_options::read_breakpoint(r)?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    match (text, other) {
        (Some((key, text)), None) if key == kind => content.push_text(&text),
        (None, Some((key, other))) if key == kind => content.push(other, "content", index),
        (None, None) => return Err(FieldFault::missing(kind)),
        (text, other) => {
            let key = text.map_or_else(|| other.map_or(kind, |(key, _)| key), |(key, _)| key);
            return Err(FieldFault::unknown().under_key(key));
        }
    }
    Ok(())
}

/// The fault for every unknown type of part.
pub(crate) fn no_such_part() -> FieldFault {
    FieldFault::new(Code::UnsupportedContent, "there is no such type of part; put what it says into the text")
}

/// The fault for a file's id if the content must go to an upstream. Upstreams do not have the files that are stored
/// here.
pub fn stored_file() -> FieldFault {
    let message = "no upstream knows the id of a file, as files that are stored here are not sent along; send the content itself, in \
                   base64 (nothing was charged)";
    FieldFault::new(Code::UnsupportedContent, message)
}

/// Reads `{"url": …, "detail": …}`.
fn address(r: &mut JsonReader<'_>, kind: MediaKind) -> Read<ContentMedia> {
    let (mut url, mut detail) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "url" => url = Some(r.string()?.into_owned()),
            "detail" if kind == MediaKind::Image => detail = r.optional(self::detail)?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let url = url.ok_or_else(|| FieldFault::missing("url"))?;
    Ok(ContentMedia { detail, ..ContentMedia::new(kind, MediaSource::Url(url)) })
}

/// Reads how closely the model should look at an image.
pub(crate) fn detail(r: &mut JsonReader<'_>) -> Read<String> {
    match r.string()?.as_ref() {
        word @ ("auto" | "low" | "high" | "original") => Ok(word.to_owned()),
        _ => Err(FieldFault::new(Code::InvalidValue, "it must be `auto`, `low`, `high` or `original`")),
    }
}

/// Reads `{"data": …, "format": "wav"}`.
pub(crate) fn sound(r: &mut JsonReader<'_>) -> Read<ContentMedia> {
    let (mut data, mut format) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "data" => data = Some(r.string()?.into_owned()),
            "format" => format = Some(r.string()?.into_owned()),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let data = data.ok_or_else(|| FieldFault::missing("data"))?;
    let media_type = format.ok_or_else(|| FieldFault::missing("format"))?;
    Ok(ContentMedia::new(MediaKind::Audio, MediaSource::Base64 { media_type, data }))
}

/// Reads `{"file_data": …, "filename": …}` or `{"file_id": …}`.
fn file(r: &mut JsonReader<'_>) -> Read<ContentMedia> {
    let mut found = FileParts::default();
    r.object(|r, key| if found.take(key, r)? { Ok(()) } else { Err(FieldFault::unknown()) })?;
    found.finish(MediaKind::Document)?.ok_or_else(|| FieldFault::missing("file_data"))
}

/// The fields in which a file's data may be given.
#[derive(Default)]
pub(crate) struct FileParts {
    data: Option<String>,
    id: Option<String>,
    url: Option<String>,
    name: Option<String>,
}

impl FileParts {
    /// Reads a field of a file. Returns `false` and reads nothing if `key` is not one.
    pub(crate) fn take(&mut self, key: &str, r: &mut JsonReader<'_>) -> Read<bool> {
        let field = match key {
            "file_data" => &mut self.data,
            "file_id" => &mut self.id,
            "file_url" => &mut self.url,
            "filename" => &mut self.name,
            _ => return Ok(false),
        };
        *field = r.optional(JsonReader::string)?.map(Cow::into_owned);
        Ok(true)
    }

    /// Sets an address that another key has.
    pub(crate) fn at_url(&mut self, url: Option<String>) {
        self.url = url;
    }

    /// Returns the file. `None` if no field gives its data.
    ///
    /// # Errors
    /// Fails if the file has both data and an id.
    pub(crate) fn finish(self, kind: MediaKind) -> Read<Option<ContentMedia>> {
        let sources = [self.data.or(self.url).map(MediaSource::Url), self.id.map(MediaSource::File)];
        let [Some(_), Some(_)] = &sources else {
            let source = sources.into_iter().flatten().next();
            return Ok(
                source.map(|source| ContentMedia { name: self.name, ..ContentMedia::new(kind, source) })
            );
        };
        Err(FieldFault::at(
            "file_id",
            Code::InvalidValue,
            "send the data, or the id of an uploaded file, not both",
        ))
    }
}
