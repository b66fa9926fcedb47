//! What the first visit of a relayed body records: its size for the model, its concerns, its end user, the places of its
//! fields. Refuses messages that say nothing.
//! Must not know what a receiver understands.

use headrace_domain::{BodyFields, Code, ConcernKind, EndUser, FieldConcern, is_blank};

use super::body_fields::{BodyField, no_fields, record};
use super::guard;
use super::look::{self, BodyVisitor};
use headrace_wire::common::{blank, content};
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};

/// Bytes that one token id of a prompt adds to [`headrace_domain::RelayedBody::text_bytes`]: about the length of a token's text.
const BYTES_PER_ID: usize = 4;
/// The most addresses in one call.
const MOST_ADDRESSES: usize = 64;
/// The most extras and tools that are judged in one call.
const MOST_CONCERNS: usize = 1_024;

/// The facts that the gateway records of a body: its size for the model, its end user, its fields, its concerns.
#[derive(Debug)]
pub(super) struct BodyFacts {
    pub(super) text_bytes: usize,
    pub(super) media: u32,
    pub(super) concerns: Vec<FieldConcern>,
    /// The end user, by the newer parameter and by the older one.
    pub(super) user: (Option<EndUser>, Option<EndUser>),
    /// The places of the fields so far.
    pub(super) fields: BodyFields,
    /// At least one field is left out of the body that is sent.
    pub(super) has_own_fields: bool,
    message: SeenMessage,
    messages: usize,
    /// At least one message has visible content, or its role is neither user nor system.
    any_says_something: bool,
}

/// The current message.
#[derive(Debug, Default, Clone, Copy)]
struct SeenMessage {
    is_user: bool,
    is_system: bool,
    has_content: bool,
    says_something: bool,
}

/// Types of parts that carry nothing beside their text.
const TEXT_PARTS: &[&str] = &["input_text", "output_text", "refusal", "text"];

impl BodyFacts {
    /// The facts before the first field is read.
    pub(super) fn new() -> Self {
        Self {
            text_bytes: 0,
            media: 0,
            concerns: Vec::new(),
            user: (None, None),
            fields: no_fields(),
            has_own_fields: false,
            message: SeenMessage::default(),
            messages: 0,
            any_says_something: false,
        }
    }

    /// Records a concern.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn note(&mut self, concern: FieldConcern) -> Read<()> {
        if self.concerns.len() >= MOST_CONCERNS {
            let message =
                format!("a call may have at most {MOST_CONCERNS} tools and extras of a provider; send fewer");
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message));
        }
        self.concerns.push(concern);
        Ok(())
    }

    /// Skips a text and counts its bytes. Returns whether it has a visible character.
    pub(super) fn read_visible(&mut self, r: &mut JsonReader<'_>) -> Read<bool> {
        let ((), raw) = r.with_raw(|r| self.text(r))?;
        // Shortcut: nearly every text begins with a letter.
        let first = raw.as_bytes().get(1).copied().unwrap_or(b'"');
        let is_plain = first.is_ascii_graphic() && !matches!(first, b'"' | b'\\');
        Ok(is_plain || !is_blank(&r.inner(raw).string()?))
    }

    /// Skips a token id and counts it.
    pub(super) fn id(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text_bytes += BYTES_PER_ID;
        r.skip_scalar().map(drop)
    }

    /// Reads the end user. `None` if the value is empty or not a string.
    fn read_user(&mut self, r: &mut JsonReader<'_>) -> Read<Option<EndUser>> {
        if r.kind()? != ValueKind::String {
            return look::free(self, r).map(|()| None);
        }
        r.count_value()?;
        let text = r.string()?;
        self.text_bytes += text.len();
        Ok(EndUser::named(&text))
    }
}

impl BodyVisitor for BodyFacts {
    fn field_end(&mut self, field: BodyField, start: usize, end: usize) {
        self.has_own_fields |= field.is_left_out();
        record(&mut self.fields, field, start, end);
    }

    fn user(&mut self, r: &mut JsonReader<'_>, field: BodyField) -> Read<()> {
        let user = self.read_user(r)?;
        match field {
            BodyField::User => self.user.1 = user,
            _ => self.user.0 = user,
        }
        Ok(())
    }

    fn text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text_bytes += r.skip_string()?;
        Ok(())
    }

    // Signatures and encrypted reasoning count, because the model that wrote them reads them.
    fn opaque(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text(r)
    }

    fn found(&mut self, text: &str) {
        self.text_bytes += text.len();
    }

    fn key(&mut self, _key: &str) {}

    fn part_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let seen = self.read_visible(r)?;
        self.message.has_content = true;
        self.message.says_something |= seen;
        Ok(())
    }

    fn message_begin(&mut self, _index: usize) {
        self.message = SeenMessage::default();
        self.messages += 1;
    }

    fn message_end(&mut self) -> Read<()> {
        let SeenMessage { is_user, is_system, has_content, says_something } = self.message;
        self.any_says_something |= says_something || !(is_user || is_system);
        if is_user && has_content && !says_something {
            return Err(blank::message().under_key("content"));
        }
        Ok(())
    }

    /// At least one message must have content.
    fn messages_end(&mut self, is_list: bool) -> Read<()> {
        match self.messages {
            0 if is_list => Err(FieldFault::new(Code::EmptyArray, "it must have at least one message")),
            1.. if !self.any_says_something => Err(blank::conversation()),
            _ => Ok(()),
        }
    }

    fn role(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let role = r.string()?;
        self.text_bytes += role.len();
        self.message.is_user = role == "user";
        self.message.is_system = matches!(role.as_ref(), "system" | "developer");
        Ok(())
    }

    fn said(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.part_text(r)
    }

    fn input_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        if self.read_visible(r)? { Ok(()) } else { Err(blank::message()) }
    }

    fn parts_begin(&mut self) {
        self.message.has_content = true;
    }

    fn part_kind(&mut self, kind: &str) {
        self.message.says_something |= !TEXT_PARTS.contains(&kind);
    }

    fn file_id(&mut self, _r: &mut JsonReader<'_>) -> Read<()> {
        Err(content::stored_file())
    }

    fn media(&mut self) {
        self.media = self.media.saturating_add(1);
    }

    fn address(&mut self, at: usize, url: &str) -> Read<()> {
        let addresses =
            self.concerns.iter().filter(|concern| matches!(concern.ask, ConcernKind::Url(_))).count();
        if addresses >= MOST_ADDRESSES {
            let message = format!("a call may name at most {MOST_ADDRESSES} addresses; send the data itself");
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message));
        }
        self.concerns.push(FieldConcern { at, ask: ConcernKind::Url(url.into()) });
        Ok(())
    }

    fn tool(&mut self, at: usize, kind: &str, most: Option<u32>) -> Read<()> {
        guard::tool(at, kind, most).map_or(Ok(()), |concern| self.note(concern))
    }
}
