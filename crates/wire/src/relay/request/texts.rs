//! Extracts every text of a body that a model may read, for the content rules.
//! Must not know the rules.

use super::look::{self, Look};
use crate::WireLimits;
use crate::fault::Read;
use crate::json::{Kind, Reader};

/// Parameters that no model reads: numbers, switches, labels of the call, and names that refer to other parts of the
/// body.
const UNREAD: &[&str] = &[
    "cache_control",
    "cache_salt",
    "client_metadata",
    "headrace",
    "include",
    "metadata",
    "modalities",
    "model",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "stop",
    "stop_sequences",
    "stream_options",
    "thinking",
    "tool_choice",
    "user",
    "verbosity",
];

/// Passes every text of `body` that a model may read to `each`. These are contents, names, `system`, tool calls and
/// results, tools with the keys and texts of their schemas, and texts in unknown fields. The parts of one content are
/// passed singly and joined. Tool arguments are also passed without their JSON escapes. Data of images, documents and
/// sounds is left out.
///
/// Returns whether `each` received everything. `false` if a prompt consists of token ids or embeddings, which only the
/// model's own server can read as text.
///
/// The body must be one that [`super::skim`] accepted. For any other body, only the texts before the first fault are
/// passed.
pub fn texts(body: &[u8], each: &mut dyn FnMut(&str)) -> bool {
    let Ok(mut reader) = Reader::new(body, usize::MAX, usize::MAX) else { return false };
    let mut texts = Texts { each, joined: Vec::new(), unreadable: false };
    let read = read(&mut texts, &mut reader);
    read.is_ok() && !texts.unreadable
}

fn read(texts: &mut Texts<'_>, r: &mut Reader<'_>) -> Read<()> {
    let limits = WireLimits {
        max_messages: usize::MAX,
        max_content_parts: usize::MAX,
        max_tools: usize::MAX,
        max_tool_calls: usize::MAX,
        ..WireLimits::default()
    };
    r.object(|r, key| match key.as_ref() {
        "messages" => look::messages(texts, r, &limits),
        "system" => look::content(texts, r, &limits),
        "tools" | "functions" | "response_format" | "output_config" | "text" => {
            look::described(texts, r, usize::MAX)
        }
        "prompt" => prompt(texts, r),
        "input" => look::input(texts, r, &limits),
        "suffix" | "instructions" => look::free(texts, r),
        "input_embeds" | "input_ids" | "prompt_embeds" | "prompt_token_ids" => {
            texts.unreadable |= r.kind()? != Kind::Null;
            r.skip()
        }
        key if UNREAD.contains(&key) => r.skip(),
        key => match r.kind()? {
            Kind::String | Kind::Array | Kind::Object => {
                texts.key(key);
                look::free(texts, r)
            }
            Kind::Null | Kind::Bool | Kind::Number => r.skip(),
        },
    })
}

/// Visits a prompt: texts, or token ids, which cannot be read as text.
fn prompt(texts: &mut Texts<'_>, r: &mut Reader<'_>) -> Read<()> {
    match r.kind()? {
        Kind::Array => r.array(usize::MAX, |r, _| prompt(texts, r)),
        Kind::Number => {
            texts.unreadable = true;
            r.skip()
        }
        _ => look::free(texts, r),
    }
}

struct Texts<'e> {
    each: &'e mut dyn FnMut(&str),
    /// For each open list of parts: its joined texts so far, and their number.
    joined: Vec<(String, usize)>,
    /// The model receives something other than text.
    unreadable: bool,
}

impl Look for Texts<'_> {
    fn text(&mut self, r: &mut Reader<'_>) -> Read<()> {
        (self.each)(&r.string()?);
        Ok(())
    }

    fn part_text(&mut self, r: &mut Reader<'_>) -> Read<()> {
        let text = r.string()?;
        (self.each)(&text);
        if let Some((joined, parts)) = self.joined.last_mut() {
            joined.push_str(&text);
            *parts += 1;
        }
        Ok(())
    }

    fn opaque(&mut self, r: &mut Reader<'_>) -> Read<()> {
        r.skip()
    }

    fn found(&mut self, text: &str) {
        (self.each)(text);
    }

    fn key(&mut self, key: &str) {
        (self.each)(key);
    }

    fn json_text(&mut self, r: &mut Reader<'_>) -> Read<()> {
        let text = r.string()?;
        (self.each)(&text);
        if text.contains('\\')
            && let Ok(mut inner) = Reader::new(text.as_bytes(), usize::MAX, usize::MAX)
        {
            // Text that is not JSON was passed to `each` as it is.
            let _ = look::free(self, &mut inner);
        }
        Ok(())
    }

    fn parts_begin(&mut self) {
        self.joined.push((String::new(), 0));
    }

    fn parts_end(&mut self) {
        if let Some((joined, parts)) = self.joined.pop()
            && parts > 1
        {
            (self.each)(&joined);
        }
    }
}
