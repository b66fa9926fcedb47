//! What a call changed since the answer that it names, as answers say it (Anthropic's `diagnostics`). Must not know how it was found.
//!
//! Source: the types of Anthropic's SDK (`CacheMissReason`). `place` and `hint` are Headrace's own.

use bytes::BytesMut;
use headrace_domain::Usage;
use serde_json::{Value, json};

use crate::json_out::{raw, value};

/// Prompt tokens by which less may have been found than a former prompt has: the last block is not whole.
const BLOCK_SLACK_TOKENS: u64 = 32;

/// What there is to say of a call's prompt beside that of a former one.
#[derive(Debug, Clone, PartialEq)]
pub enum CacheDiagnosis {
    /// There is none to compare it with.
    Nothing,
    /// Nobody knows the answer that the call names, or nobody does any more.
    NotFound,
    /// Nothing can be said.
    Unavailable {
        /// Why.
        why: &'static str,
    },
    /// All of the former prompt stands at its beginning.
    Same {
        /// So many tokens.
        tokens: u64,
    },
    /// Something of it is another.
    Changed {
        /// What.
        what: Changed,
        /// Tokens of the former prompt that cannot be found because of that.
        missed_tokens: u64,
        /// Where, as in traces.
        place: Option<Value>,
        /// What else there is to know.
        hint: Option<String>,
    },
}

/// What a call changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The model.
    Model,
    /// The instructions.
    System,
    /// The tools.
    Tools,
    /// What was said.
    Messages,
}

impl Changed {
    const fn name(self) -> &'static str {
        match self {
            Self::Model => "model_changed",
            Self::System => "system_changed",
            Self::Tools => "tools_changed",
            Self::Messages => "messages_changed",
        }
    }
}

/// `,"diagnostics":{"cache_miss_reason":…}`: `null` where nothing was missed.
pub(super) fn write(out: &mut BytesMut, diagnosis: &CacheDiagnosis, usage: &Usage) {
    let reason = match diagnosis {
        CacheDiagnosis::Nothing => Value::Null,
        CacheDiagnosis::NotFound => json!({"type": "previous_message_not_found"}),
        CacheDiagnosis::Unavailable { why } => json!({"type": "unavailable", "hint": why}),
        CacheDiagnosis::Same { tokens } => {
            let missed = tokens.saturating_sub(usage.cached_input);
            match missed > BLOCK_SLACK_TOKENS {
                true => json!({"type": "unavailable", "hint":
                    format!("nothing was changed: {missed} tokens of the former prompt are cached no longer")}),
                false => Value::Null,
            }
        }
        CacheDiagnosis::Changed { what, missed_tokens, place, hint } => {
            let mut reason = json!({"type": what.name(), "cache_missed_input_tokens": missed_tokens});
            let more = [("place", place.clone()), ("hint", hint.clone().map(Value::String))];
            if let Some(reason) = reason.as_object_mut() {
                let more = more.into_iter().filter_map(|(key, more)| Some((key.to_owned(), more?)));
                reason.extend(more);
            }
            reason
        }
    };
    raw(out, ",\"diagnostics\":{\"cache_miss_reason\":");
    value(out, &reason);
    raw(out, "}");
}
