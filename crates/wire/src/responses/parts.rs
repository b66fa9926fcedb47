//! Reads the parts of an item's content. Texts are joined, and other parts are kept with their place. Knows no items.

use std::borrow::Cow;

use headrace_domain::{Code, MediaKind};

use crate::common::cache_options;
use crate::common::content::{ContentMedia, FileParts, MessageContent, detail, no_such_part, sound};
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// Types of text parts, each with the key of its text.
const TEXTS: &[(&str, &str)] = &[
    ("input_text", "text"),
    ("output_text", "text"),
    ("text", "text"),
    ("summary_text", "text"),
    ("reasoning_text", "text"),
    ("refusal", "refusal"),
];

/// Types of parts that are not text.
const OTHERS: &[(&str, MediaKind)] = &[
    ("input_image", MediaKind::Image),
    ("input_file", MediaKind::Document),
    ("input_audio", MediaKind::Audio),
];

/// Reads a string, or a list of parts that is at `key`.
pub(super) fn read(r: &mut JsonReader<'_>, limits: &WireLimits, key: &str) -> Read<MessageContent> {
    match r.kind()? {
        ValueKind::String => Ok(MessageContent::of_text(r.string()?.into_owned())),
        ValueKind::Array => {
            let mut content = MessageContent::default();
            r.array(limits.max_content_parts, |r, index| part(r, &mut content, (key, index)))?;
            Ok(content)
        }
        _ => Err(FieldFault::new(Code::InvalidType, "it must be a string or a list of parts")),
    }
}

/// Reads a list of text parts, joined with `between`.
pub(super) fn list(r: &mut JsonReader<'_>, limits: &WireLimits, between: &str) -> Read<String> {
    let mut content = MessageContent::default();
    r.array(limits.max_content_parts, |r, index| {
        if index > 0 {
            content.text.push_str(between);
        }
        let before = content.media.len();
        part(r, &mut content, ("", index))?;
        if content.media.len() > before { Err(no_such_part()) } else { Ok(()) }
    })?;
    Ok(content.text)
}

/// The fields of a part, before its type says which of them are allowed.
#[derive(Default)]
struct PartDraft {
    text: Option<String>,
    refusal: Option<String>,
    file: FileParts,
    image_url: Option<String>,
    detail: Option<String>,
    sound: Option<ContentMedia>,
    is_marked: bool,
}

fn part(r: &mut JsonReader<'_>, content: &mut MessageContent, (key, index): (&str, usize)) -> Read<()> {
    let (mut kind, mut draft) = (None, PartDraft::default());
    r.object(|r, key| {
        if key.as_ref() == "type" {
            kind = Some(r.string()?);
            return Ok(());
        }
        draft.take(key.as_ref(), r)
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    content.is_marked |= draft.is_marked;
    if let Some((_, key)) = TEXTS.iter().find(|(text, _)| *text == kind.as_ref()) {
        let said = if *key == "refusal" { draft.refusal } else { draft.text };
        content.push_text(&said.ok_or_else(|| FieldFault::missing(key))?);
        return Ok(());
    }
    let known = OTHERS.iter().find(|(name, _)| *name == kind.as_ref());
    let (_, kind) = known.ok_or_else(no_such_part)?;
    let other = draft.finish(*kind)?;
    content.push(other, key, index);
    Ok(())
}

impl PartDraft {
    fn take(&mut self, key: &str, r: &mut JsonReader<'_>) -> Read<()> {
        match key {
            "text" => self.text = r.optional(JsonReader::string)?.map(Cow::into_owned),
            "refusal" => self.refusal = Some(r.string()?.into_owned()),
            // The parts of an answer have these fields beside their text.
            "annotations" | "logprobs" => r.skip()?,
            "prompt_cache_breakpoint" => self.is_marked = cache_options::read_breakpoint(r)?,
            "image_url" => self.image_url = r.optional(JsonReader::string)?.map(Cow::into_owned),
            "detail" => self.detail = r.optional(detail)?,
            "input_audio" => self.sound = Some(sound(r)?),
            _ => {
                if !self.file.take(key, r)? {
                    return Err(FieldFault::unknown());
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, kind: MediaKind) -> Read<ContentMedia> {
        let key = match kind {
            MediaKind::Audio => return self.sound.ok_or_else(|| FieldFault::missing("input_audio")),
            MediaKind::Image => {
                self.file.at_url(self.image_url.take());
                "image_url"
            }
            MediaKind::Document | MediaKind::Video => "file_data",
        };
        let other = self.file.finish(kind)?.ok_or_else(|| FieldFault::missing(key))?;
        Ok(ContentMedia { detail: self.detail, ..other })
    }
}
