//! The parts of an item's content, joined to one text. Knows no items.

use headrace_domain::Code;

use crate::WireLimits;
use crate::content::not_text;
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};

/// Types of parts that are text, with the key that has it.
const TEXTS: &[(&str, &str)] = &[
    ("input_text", "text"),
    ("output_text", "text"),
    ("text", "text"),
    ("summary_text", "text"),
    ("reasoning_text", "text"),
    ("refusal", "refusal"),
];

/// A string, or a list of parts that are text.
pub(super) fn text(r: &mut Reader<'_>, limits: &WireLimits) -> Read<String> {
    match r.kind()? {
        Kind::String => Ok(r.string()?.into_owned()),
        Kind::Array => list(r, limits, ""),
        _ => Err(Fault::new(Code::InvalidType, "it must be a string or a list of text parts")),
    }
}

/// A list of parts that are text, with `between` between them.
pub(super) fn list(r: &mut Reader<'_>, limits: &WireLimits, between: &str) -> Read<String> {
    let mut joined = String::new();
    r.array(limits.max_content_parts, |r, index| {
        if index > 0 {
            joined.push_str(between);
        }
        part(r, &mut joined)
    })?;
    Ok(joined)
}

fn part(r: &mut Reader<'_>, joined: &mut String) -> Read<()> {
    let (mut kind, mut text, mut refusal) = (None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let name = r.string()?;
                let found = TEXTS.iter().find(|(text, _)| *text == name.as_ref());
                kind = Some(*found.ok_or_else(|| not_text().of_parent())?);
            }
            "text" => text = r.optional(crate::json::Reader::string)?,
            "refusal" => refusal = Some(r.string()?),
            // What an answer's parts have beside their text, and where a cached prefix may end: prompts are cached by content anyway.
            "annotations" | "logprobs" | "prompt_cache_breakpoint" => r.skip()?,
            // What images, files and sounds carry their data in: the part is to blame.
            "image_url" | "file_id" | "file_data" | "file_url" | "filename" | "detail" | "input_audio"
            | "video_url" => return Err(not_text().of_parent()),
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    let (_, key) = kind.ok_or_else(|| Fault::missing("type"))?;
    let said = if key == "refusal" { refusal } else { text };
    joined.push_str(&said.ok_or_else(|| Fault::missing(key))?);
    Ok(())
}
