//! Writes what a call changed since the answer that it names (Anthropic's `diagnostics`, OpenAI's
//! `prompt_cache_diagnostics`).
//! Must not know how the change was found.
//!
//! Sources: the types of the SDKs (`CacheMissReason`, `PromptCacheDiagnostics`). `place` and `hint` are Headrace's own.

use bytes::BytesMut;
use headrace_domain::{PromptPlace, Usage};
use serde_json::{Value, json};

use crate::json::writer::{raw, value};

/// Prompt tokens that the cache may lack of a previous prompt without a cause, because the prompt's last block is not
/// whole.
const BLOCK_SLACK_TOKENS: u64 = 32;

/// The result of the comparison between a call's prompt and a previous one.
#[derive(Debug, Clone, PartialEq)]
pub enum CacheDiagnosis {
    /// There is no previous prompt.
    Nothing,
    /// The answer that the call names is unknown, or no longer known.
    NotFound,
    /// The prompts could not be compared.
    Unavailable {
        /// The reason.
        why: &'static str,
    },
    /// The whole previous prompt is the start of this one.
    Same {
        /// The number of its tokens.
        tokens: u64,
    },
    /// A part of the previous prompt has changed.
    Changed {
        /// The kind of the change.
        what: ChangedPart,
        /// Tokens of the previous prompt that cannot come from the cache because of the change.
        missed_tokens: u64,
        /// The place of the change, as in traces.
        place: Option<PromptPlace>,
        /// An additional explanation.
        hint: Option<String>,
    },
}

/// The part of a prompt that a call changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedPart {
    /// The model.
    Model,
    /// The instructions.
    System,
    /// The tools.
    Tools,
    /// The messages.
    Messages,
}

impl ChangedPart {
    /// Anthropic's name for the change.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model_changed",
            Self::System => "system_changed",
            Self::Tools => "tools_changed",
            Self::Messages => "messages_changed",
        }
    }
}

impl CacheDiagnosis {
    /// Returns a name for the result, and the number of tokens of the previous prompt that are lost by the change.
    pub const fn describe(&self) -> (&'static str, u64) {
        match self {
            Self::Nothing => ("nothing", 0),
            Self::NotFound => ("not_found", 0),
            Self::Unavailable { .. } => ("unavailable", 0),
            Self::Same { .. } => ("same", 0),
            Self::Changed { what, missed_tokens, .. } => (what.name(), *missed_tokens),
        }
    }
}

/// Describes tokens that both prompts share but the cache lacks. `None` if they are no more than an incomplete block.
fn lost(tokens: u64, usage: &Usage) -> Option<String> {
    let missed = tokens.saturating_sub(usage.cached_input);
    (missed > BLOCK_SLACK_TOKENS)
        .then(|| format!("nothing was changed: {missed} tokens of the former prompt are cached no longer"))
}

/// Writes `,"prompt_cache_diagnostics":…`. The value is `null` if nothing was compared.
pub(crate) fn write_cache_diagnostics(out: &mut BytesMut, diagnosis: &CacheDiagnosis, usage: &Usage) {
    let json = match diagnosis {
        CacheDiagnosis::Nothing => Value::Null,
        CacheDiagnosis::NotFound => json!({"type": "comparison_response_not_found"}),
        CacheDiagnosis::Unavailable { why } => json!({"type": "unavailable", "hint": why}),
        CacheDiagnosis::Same { tokens } => match lost(*tokens, usage) {
            Some(hint) => json!({"type": "unavailable", "hint": hint}),
            None => json!({"type": "cache_hit"}),
        },
        CacheDiagnosis::Changed { what, missed_tokens, place, hint } => {
            // OpenAI counts instructions as input.
            let reason = match what {
                ChangedPart::Model => "model_changed",
                ChangedPart::Tools => "tools_changed",
                ChangedPart::System | ChangedPart::Messages => "input_changed",
            };
            let miss = json!({"type": "cache_miss", "reason": reason, "cache_missed_tokens": missed_tokens});
            with_own(miss, *place, hint.as_deref())
        }
    };
    raw(out, ",\"prompt_cache_diagnostics\":");
    value(out, &json);
}

/// Adds the fields that are Headrace's own.
fn with_own(mut reason: Value, place: Option<PromptPlace>, hint: Option<&str>) -> Value {
    let more = [
        ("place", place.and_then(|place| serde_json::to_value(place).ok())),
        ("hint", hint.map(Value::from)),
    ];
    if let Some(reason) = reason.as_object_mut() {
        reason.extend(more.into_iter().filter_map(|(key, more)| Some((key.to_owned(), more?))));
    }
    reason
}

/// Writes `,"diagnostics":{"cache_miss_reason":…}`. The reason is `null` if nothing was missed.
pub(crate) fn write(out: &mut BytesMut, diagnosis: &CacheDiagnosis, usage: &Usage) {
    let reason = match diagnosis {
        CacheDiagnosis::Nothing => Value::Null,
        CacheDiagnosis::NotFound => json!({"type": "previous_message_not_found"}),
        CacheDiagnosis::Unavailable { why } => json!({"type": "unavailable", "hint": why}),
        CacheDiagnosis::Same { tokens } => match lost(*tokens, usage) {
            Some(hint) => json!({"type": "unavailable", "hint": hint}),
            None => Value::Null,
        },
        CacheDiagnosis::Changed { what, missed_tokens, place, hint } => {
            let reason = json!({"type": what.name(), "cache_missed_input_tokens": missed_tokens});
            with_own(reason, *place, hint.as_deref())
        }
    };
    raw(out, ",\"diagnostics\":{\"cache_miss_reason\":");
    value(out, &reason);
    raw(out, "}");
}
