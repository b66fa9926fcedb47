//! The body that is sent to somebody who speaks its caller's dialect: what policy says is edited where it stands, and every
//! other byte stays as it came.
//! Must not know whose policy it is.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use headrace_domain::{CacheLabel, Call, Code, Endpoint, Prompt, Relayed};

use super::fields::{Field, Fields, model_in};
use crate::BadRequest;
use crate::json_out::{raw, value};

/// What of a body is decided on this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edits<'a> {
    /// The model's name at the receiver.
    pub model: &'a str,
    /// Whether a stream of OpenAI's dialect must report its usage, asked for or not.
    pub usage: bool,
    /// Where the caller set no bound to an answer's tokens: in which field it is set, and to what.
    pub max_tokens: Option<(&'static str, u32)>,
    /// The label that separates the tenant's cached prefixes from those of others, and the field for it. The caller's own salt has
    /// a part in the label, and is not passed on.
    pub label: Option<(&'static str, CacheLabel)>,
}

/// Headrace's own additions to the dialects: read here, unknown elsewhere.
pub(super) const OWN: &[&str] = &["headrace", "timeout"];
/// Salts of cached prefixes (vLLM, SGLang). As they came, two tenants with one word would share prefixes.
pub(super) const SALTS: &[&str] = &["cache_salt", "extra_key"];

/// The body of a call that [`super::skim`] read, as its receiver gets it in the same dialect: with the edits, without
/// Headrace's own additions, and every other byte as it came.
///
/// # Errors
/// The call was not read by [`super::skim`].
pub fn edited(call: &Call, edits: &Edits<'_>) -> Result<Bytes, BadRequest> {
    let relayed = relayed(call)?;
    let wants_usage = edits.usage && call.stream && !call.include_usage && !reports_itself(call.endpoint);
    let bound = edits.max_tokens.filter(|_| call.sampling.max_tokens.is_none());
    let edited = if wants_usage || bound.is_some() || relayed.has_own_fields {
        Cuts::of(&relayed.body, edits, wants_usage, bound).map(|cuts| cuts.apply(&relayed.body))
    } else {
        renamed(&relayed.body, edits)
    };
    edited.ok_or_else(not_skimmed)
}

/// The body with another name of the model, the tenant's label behind it, and nothing else changed. What follows the name is not
/// looked at: most calls have it first.
fn renamed(body: &[u8], edits: &Edits<'_>) -> Option<Bytes> {
    let place = model_in(body)?;
    let (before, after) = (body.get(..place.start)?, body.get(place.end..)?);
    // Just as long as it becomes where nothing of the name is escaped: so it need not move.
    let label = edits.label.map_or(0, |(field, _)| field.len() + LABEL_BYTES);
    let mut out = BytesMut::with_capacity(before.len() + edits.model.len() + 2 + label + after.len());
    out.put_slice(before);
    value(&mut out, edits.model);
    put_label(&mut out, edits);
    out.put_slice(after);
    Some(out.freeze())
}

/// Bytes of a label and of what stands around it: a comma, quotes, a colon.
const LABEL_BYTES: usize = 38;

/// Puts the label behind the model's name.
fn put_label(out: &mut BytesMut, edits: &Edits<'_>) {
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

fn relayed(call: &Call) -> Result<&Relayed, BadRequest> {
    match &call.prompt {
        Prompt::Relayed(relayed) => Ok(relayed),
        Prompt::Conversation(_) | Prompt::Raw(_) | Prompt::Encode(_) => Err(not_skimmed()),
    }
}

fn not_skimmed() -> BadRequest {
    let message = "the call was not read to be sent on".to_owned();
    BadRequest { param: None, code: Code::InternalError, message }
}

/// Whether answers of an endpoint tell what they took without being asked.
const fn reports_itself(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::Messages | Endpoint::Responses)
}

/// Places of the body, first to last, and what stands there instead.
#[derive(Default)]
struct Cuts(Vec<(Range<usize>, BytesMut)>);

impl Cuts {
    fn of(
        body: &[u8],
        edits: &Edits<'_>,
        wants_usage: bool,
        bound: Option<(&'static str, u32)>,
    ) -> Option<Self> {
        let mut cuts = Self::default();
        let mut model = BytesMut::new();
        value(&mut model, edits.model);
        put_label(&mut model, edits);
        let fields: Vec<Field<'_>> = Fields::of(body)?.collect();
        let find = |key: &str| fields.iter().find(|field| field.key == key);
        // What is put in follows the model's name, which every body has.
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
        cuts.leave_out(&fields);
        cuts.0.sort_unstable_by_key(|(place, _)| place.start);
        Some(cuts)
    }

    fn replace(&mut self, place: &Range<usize>, text: &str) {
        self.0.push((place.clone(), BytesMut::from(text)));
    }

    /// `stream_options` that do not ask for usage, so that they do.
    fn usage(&mut self, body: &[u8], options: &Field<'_>) -> Option<()> {
        let inside = body.get(options.value.clone())?;
        let Some(fields) = Fields::of(inside) else {
            self.replace(&options.value, "{\"include_usage\":true}");
            return Some(());
        };
        let fields: Vec<Field<'_>> = fields.collect();
        let start = options.value.start;
        if let Some(off) = fields.iter().find(|field| field.key == "include_usage") {
            self.replace(&(start + off.value.start..start + off.value.end), "true");
        } else {
            let comma = if fields.is_empty() { "" } else { "," };
            self.replace(&(start + 1..start + 1), &format!("\"include_usage\":true{comma}"));
        }
        Some(())
    }

    /// Leaves out Headrace's own additions and the caller's salts, each with the comma that its neighbours do not need.
    fn leave_out(&mut self, fields: &[Field<'_>]) {
        let own = |field: &&Field<'_>| {
            let key = field.key.as_ref();
            OWN.contains(&key) || SALTS.contains(&key)
        };
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
