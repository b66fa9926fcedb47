//! The content of an OpenAI message: a string, or a list of text parts that are joined in order.
//! Knows no roles.

use headrace_domain::Code;

use crate::WireLimits;
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};

/// The keys under which parts of other types carry their data.
const MEDIA: &[&str] = &[
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "audio_url",
    "audio",
    "file",
    "input_file",
    "video_url",
    "video",
    "document",
];

/// A string or text parts, joined with nothing between them.
pub(crate) fn text(r: &mut Reader<'_>, limits: &WireLimits) -> Read<String> {
    match r.kind()? {
        Kind::String => Ok(r.string()?.into_owned()),
        Kind::Array => {
            let mut joined = String::new();
            r.array(limits.max_content_parts, |r, _| part(r, &mut joined))?;
            Ok(joined)
        }
        _ => Err(Fault::new(Code::InvalidType, "it must be a string or a list of text parts")),
    }
}

fn part(r: &mut Reader<'_>, joined: &mut String) -> Read<()> {
    let (mut is_text, mut text) = (false, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                is_text = r.string()? == "text";
                if !is_text {
                    return Err(not_text().of_parent());
                }
            }
            "text" => text = Some(r.string()?),
            // The part is to blame, whichever of its keys comes first.
            key if MEDIA.contains(&key) => return Err(not_text().of_parent()),
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    if !is_text {
        return Err(Fault::missing("type"));
    }
    joined.push_str(&text.ok_or_else(|| Fault::missing("text"))?);
    Ok(())
}

/// The one answer to every part that is not text.
pub(crate) fn not_text() -> Fault {
    Fault::new(
        Code::UnsupportedContent,
        "only text parts are supported; images, audio and files are not: put their content into the text",
    )
}
