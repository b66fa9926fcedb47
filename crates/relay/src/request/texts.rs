//! Extracts every text of a body that a model may read, for the content rules.
//! Must not know the rules.

use headrace_domain::TextPlace;

use super::body_fields::BodyField;
use super::look::{self, BodyVisitor};
use super::walk;
use headrace_wire::fault::Read;
use headrace_wire::json::{JsonReader, ValueKind};

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

/// Passes every text of `body` that a model may read to `each`, with its place. These are contents, names, `system`, tool
/// calls and results, tools with the keys and texts of their schemas, and texts in unknown fields. The parts of one
/// content are passed singly and joined ([`TextPlace::Apart`]). Tool arguments are also passed without their JSON
/// escapes. Data of images, documents and sounds is left out.
///
/// Returns whether `each` received everything. `false` if a prompt consists of token ids or embeddings, which only the
/// model's own server can read as text.
///
/// The body must be one that [`super::skim`] accepted. For any other body, only the texts before the first fault are
/// passed.
pub fn texts(body: &[u8], each: &mut dyn FnMut(&str, TextPlace)) -> bool {
    let Ok(mut reader) = JsonReader::new(body, usize::MAX, usize::MAX) else { return false };
    let mut texts =
        TextVisitor { each, message: None, is_listed: false, joined: Vec::new(), unreadable: false };
    let read = walk::body(&mut texts, &mut reader, None, &walk::no_limits(), parameter);
    read.is_ok() && !texts.unreadable
}

/// Reads a field beside the conversation.
fn parameter(texts: &mut TextVisitor<'_>, r: &mut JsonReader<'_>, field: BodyField, key: &str) -> Read<()> {
    match (field, key) {
        (BodyField::ResponseFormat | BodyField::OutputConfig, _) => look::described(texts, r, usize::MAX),
        (BodyField::Prompt, _) => prompt(texts, r),
        (_, "suffix" | "instructions") => look::free(texts, r),
        (_, "input_embeds" | "input_ids" | "prompt_embeds" | "prompt_token_ids") => {
            texts.unreadable |= r.kind()? != ValueKind::Null;
            r.skip()
        }
        _ if UNREAD.contains(&key) => r.skip(),
        _ => match r.kind()? {
            ValueKind::String | ValueKind::Array | ValueKind::Object => {
                texts.key(key);
                look::free(texts, r)
            }
            ValueKind::Null | ValueKind::Bool | ValueKind::Number => r.skip(),
        },
    }
}

/// Visits a prompt: texts, or token ids, which cannot be read as text.
fn prompt(texts: &mut TextVisitor<'_>, r: &mut JsonReader<'_>) -> Read<()> {
    match r.kind()? {
        ValueKind::Array => r.array(usize::MAX, |r, _| prompt(texts, r)),
        ValueKind::Number => {
            texts.unreadable = true;
            r.skip()
        }
        _ => look::free(texts, r),
    }
}

struct TextVisitor<'e> {
    each: &'e mut dyn FnMut(&str, TextPlace),
    /// The message or item that is being read.
    message: Option<MessageTexts>,
    /// Texts outside of messages are inputs of their own.
    is_listed: bool,
    /// For each open list of parts: its joined texts so far, and their number.
    joined: Vec<(String, usize)>,
    /// The model receives something other than text.
    unreadable: bool,
}

/// What is known of a message before its last field is read.
#[derive(Default)]
struct MessageTexts {
    /// Whether its role is the user's. `None` before its role was read.
    of_user: Option<bool>,
    /// Contents that came before the role.
    waiting: Vec<String>,
}

impl TextVisitor<'_> {
    fn beside(&mut self, text: &str) {
        let is_apart = self.is_listed && self.message.is_none();
        (self.each)(text, if is_apart { TextPlace::Apart } else { TextPlace::Beside });
    }

    /// A content, or a part of one. Parts within parts, such as those of a tool's result, are not the user's.
    fn content(&mut self, text: &str) {
        let is_nested = self.joined.len() > 1;
        let of_user = match &mut self.message {
            Some(message) if !is_nested => match message.of_user {
                Some(of_user) => of_user,
                None => return message.waiting.push(text.to_owned()),
            },
            _ => false,
        };
        (self.each)(text, TextPlace::Content { of_user });
    }

    fn role_is(&mut self, of_user: bool) {
        let Some(message) = &mut self.message else { return };
        message.of_user = Some(of_user);
        for text in std::mem::take(&mut message.waiting) {
            (self.each)(&text, TextPlace::Content { of_user });
        }
    }
}

impl BodyVisitor for TextVisitor<'_> {
    // Every field of a tool is shown to the rules.
    fn reports_tools(&self) -> bool {
        false
    }

    fn field_begin(&mut self, field: BodyField) {
        self.is_listed = matches!(field, BodyField::Prompt | BodyField::Input);
    }

    fn text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.beside(&r.string()?);
        Ok(())
    }

    fn message_begin(&mut self, _index: usize) {
        self.message = Some(MessageTexts::default());
    }

    fn message_end(&mut self) -> Read<()> {
        // A server that takes a message without a role takes it as the user's.
        self.role_is(true);
        self.message = None;
        Ok(())
    }

    fn role(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let of_user = r.string()? == "user";
        self.role_is(of_user);
        Ok(())
    }

    fn said(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.content(&r.string()?);
        Ok(())
    }

    fn part_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let text = r.string()?;
        self.content(&text);
        if let Some((joined, parts)) = self.joined.last_mut() {
            joined.push_str(&text);
            *parts += 1;
        }
        Ok(())
    }

    fn opaque(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.skip()
    }

    fn found(&mut self, text: &str) {
        self.beside(text);
    }

    fn key(&mut self, key: &str) {
        self.beside(key);
    }

    fn json_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let text = r.string()?;
        self.beside(&text);
        if text.contains('\\')
            && let Ok(mut inner) = JsonReader::new(text.as_bytes(), usize::MAX, usize::MAX)
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
            (self.each)(&joined, TextPlace::Apart);
        }
    }
}
