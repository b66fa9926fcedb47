//! Edits a relayed body for a receiver that speaks the caller's dialect. Policy changes are made in place, and all
//! other bytes stay as they came.
//! Must not know whose policy it is.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use headrace_domain::{CacheLabel, Call, Code, Endpoint, Prompt, RelayedBody};

use super::body_fields::{BodyField, model_place};
use super::fields::{ObjectField, ObjectFields};
use headrace_wire::BadRequest;
use headrace_wire::json::writer::{raw, value};

/// The parts of a body that the gateway decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyEdits<'a> {
    /// The model's name at the receiver.
    pub model: &'a str,
    /// Whether a stream of OpenAI's dialect must report its usage even if the caller did not ask for it.
    pub usage: bool,
    /// The bound for the answer's tokens if the caller set none: the field and the value.
    pub max_tokens: Option<(&'static str, u32)>,
    /// The label that separates the tenant's cached prefixes from those of other tenants, with its field. The label
    /// includes the caller's own salt, which is not passed on.
    pub label: Option<(&'static str, CacheLabel)>,
}

/// Returns the body of a call that [`super::skim`] read, for a receiver in the same dialect. The edits are applied,
/// Headrace's own additions are left out, and all other bytes stay as they came.
///
/// # Errors
/// Fails if [`super::skim`] did not read the call.
pub fn edited(call: &Call, edits: &BodyEdits<'_>) -> Result<Bytes, BadRequest> {
    let relayed = relayed(call)?;
    let wants_usage = edits.usage && call.stream && !call.include_usage && !reports_itself(call.endpoint);
    let bound = edits.max_tokens.filter(|_| call.sampling.max_tokens.is_none());
    let edited = if wants_usage || bound.is_some() || relayed.has_own_fields {
        BodyCuts::of(relayed, edits, wants_usage, bound).map(|cuts| cuts.apply(&relayed.body))
    } else {
        renamed(relayed, edits)
    };
    edited.ok_or_else(not_skimmed)
}

/// Replaces the model's name and puts the tenant's label behind it. Bytes after the name are not read.
fn renamed(relayed: &RelayedBody, edits: &BodyEdits<'_>) -> Option<Bytes> {
    let (body, place) = (relayed.body.as_ref(), model_place(relayed)?);
    let (before, after) = (body.get(..place.start)?, body.get(place.end..)?);
    // The exact final length if no character of the name is escaped, so the buffer need not grow.
    let label = edits.label.map_or(0, |(field, _)| field.len() + LABEL_BYTES);
    let mut out = BytesMut::with_capacity(before.len() + edits.model.len() + 2 + label + after.len());
    out.put_slice(before);
    value(&mut out, edits.model);
    put_label(&mut out, edits);
    out.put_slice(after);
    Some(out.freeze())
}

/// Bytes of a label and its punctuation: a comma, quotes and a colon.
const LABEL_BYTES: usize = 38;

/// Puts the label behind the model's name.
fn put_label(out: &mut BytesMut, edits: &BodyEdits<'_>) {
    if let Some((field, label)) = &edits.label {
        raw(out, ",\"");
        raw(out, field);
        raw(out, "\":\"");
        raw(out, &label.to_string());
        raw(out, "\"");
    }
}

/// The body as it came.
pub(super) fn body_of(call: &Call) -> Result<&Bytes, BadRequest> {
    relayed(call).map(|relayed| &relayed.body)
}

fn relayed(call: &Call) -> Result<&RelayedBody, BadRequest> {
    match &call.prompt {
        Prompt::Relayed(relayed) => Ok(relayed),
        Prompt::Conversation(_) | Prompt::Raw(_) | Prompt::Encode(_) => Err(not_skimmed()),
    }
}

fn not_skimmed() -> BadRequest {
    let message = "the call was not read to be sent on".to_owned();
    BadRequest { param: None, code: Code::InternalError, message }
}

/// Whether answers of an endpoint report their usage without a request for it.
const fn reports_itself(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::Messages | Endpoint::Responses)
}

/// Ranges of the body, first to last, each with its replacement.
#[derive(Default)]
struct BodyCuts(Vec<(Range<usize>, BytesMut)>);

impl BodyCuts {
    fn of(
        relayed: &RelayedBody,
        edits: &BodyEdits<'_>,
        wants_usage: bool,
        bound: Option<(&'static str, u32)>,
    ) -> Option<Self> {
        let body = relayed.body.as_ref();
        let mut cuts = Self::default();
        let mut model = BytesMut::new();
        value(&mut model, edits.model);
        put_label(&mut model, edits);
        let fields: Vec<ObjectField<'_>> = ObjectFields::of(body)?.collect();
        let find = |key: &str| fields.iter().find(|field| field.key == key);
        // New fields go behind the model's name, which every body has.
        if let Some((key, tokens)) = bound {
            match find(key) {
                Some(null) => cuts.replace(&null.value, &tokens.to_string()),
                None => {
                    raw(&mut model, ",");
                    value(&mut model, key);
                    raw(&mut model, ":");
                    value(&mut model, &tokens);
                }
            }
        }
        if wants_usage {
            match find("stream_options") {
                Some(options) => cuts.usage(body, options)?,
                None => raw(&mut model, ",\"stream_options\":{\"include_usage\":true}"),
            }
        }
        cuts.0.push((find("model")?.value.clone(), model));
        if relayed.has_own_fields {
            cuts.leave_out(&fields);
        }
        cuts.0.sort_unstable_by_key(|(place, _)| place.start);
        Some(cuts)
    }

    fn replace(&mut self, place: &Range<usize>, text: &str) {
        self.0.push((place.clone(), BytesMut::from(text)));
    }

    /// Changes `stream_options` that do not request usage so that they do.
    fn usage(&mut self, body: &[u8], options: &ObjectField<'_>) -> Option<()> {
        let inside = body.get(options.value.clone())?;
        let Some(fields) = ObjectFields::of(inside) else {
            self.replace(&options.value, "{\"include_usage\":true}");
            return Some(());
        };
        let fields: Vec<ObjectField<'_>> = fields.collect();
        let start = options.value.start;
        if let Some(off) = fields.iter().find(|field| field.key == "include_usage") {
            self.replace(&(start + off.value.start..start + off.value.end), "true");
        } else {
            let comma = if fields.is_empty() { "" } else { "," };
            self.replace(&(start + 1..start + 1), &format!("\"include_usage\":true{comma}"));
        }
        Some(())
    }

    /// Leaves out Headrace's own additions and the caller's salts, each with the comma that becomes superfluous.
    fn leave_out(&mut self, fields: &[ObjectField<'_>]) {
        let own = |field: &&ObjectField<'_>| BodyField::named(&field.key).is_left_out();
        let leading = fields.iter().take_while(own).count();
        if let (true, Some(first), Some(kept)) = (leading > 0, fields.first(), fields.get(leading)) {
            self.replace(&(first.start..kept.start), "");
        }
        let pairs = fields.iter().zip(fields.iter().skip(1)).skip(leading);
        for (before, field) in pairs.filter(|(_, field)| own(field)) {
            self.replace(&(before.value.end..field.value.end), "");
        }
    }

    fn apply(self, body: &[u8]) -> Bytes {
        let more: usize = self.0.iter().map(|(_, text)| text.len()).sum();
        let mut out = BytesMut::with_capacity(body.len() + more);
        let mut at = 0;
        for (place, text) in self.0 {
            out.put_slice(body.get(at..place.start).unwrap_or(&[]));
            out.put_slice(&text);
            at = place.end;
        }
        out.put_slice(body.get(at..).unwrap_or(&[]));
        out.freeze()
    }
}
