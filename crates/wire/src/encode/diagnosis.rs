//! What a call changed since the answer that it names, as answers say it (Anthropic's `diagnostics`, OpenAI's `prompt_cache_diagnostics`).
//! Must not know how it was found.
//!
//! Sources: the types of the SDKs (`CacheMissReason`, `PromptCacheDiagnostics`). `place` and `hint` are Headrace's own.

use bytes::BytesMut;
use headrace_domain::{PromptPlace, Usage};
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
        place: Option<PromptPlace>,
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
    /// In Anthropic's words.
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
    /// In a word, and how many tokens of the former prompt are lost by it.
    pub const fn told(&self) -> (&'static str, u64) {
        match self {
            Self::Nothing => ("nothing", 0),
            Self::NotFound => ("not_found", 0),
            Self::Unavailable { .. } => ("unavailable", 0),
            Self::Same { .. } => ("same", 0),
            Self::Changed { what, missed_tokens, .. } => (what.name(), *missed_tokens),
        }
    }
}

/// Tokens of a former prompt that stand in this one and were not found, where they are more than a block's rest.
fn lost(tokens: u64, usage: &Usage) -> Option<String> {
    let missed = tokens.saturating_sub(usage.cached_input);
    (missed > BLOCK_SLACK_TOKENS)
        .then(|| format!("nothing was changed: {missed} tokens of the former prompt are cached no longer"))
}

/// `,"prompt_cache_diagnostics":…`: `null` where nothing was compared.
pub(crate) fn write_cache_diagnostics(out: &mut BytesMut, diagnosis: &CacheDiagnosis, usage: &Usage) {
    let told = match diagnosis {
        CacheDiagnosis::Nothing => Value::Null,
        CacheDiagnosis::NotFound => json!({"type": "comparison_response_not_found"}),
        CacheDiagnosis::Unavailable { why } => json!({"type": "unavailable", "hint": why}),
        CacheDiagnosis::Same { tokens } => match lost(*tokens, usage) {
            Some(hint) => json!({"type": "unavailable", "hint": hint}),
            None => json!({"type": "cache_hit"}),
        },
        CacheDiagnosis::Changed { what, missed_tokens, place, hint } => {
            // Instructions are input there.
            let reason = match what {
                Changed::Model => "model_changed",
                Changed::Tools => "tools_changed",
                Changed::System | Changed::Messages => "input_changed",
            };
            let miss = json!({"type": "cache_miss", "reason": reason, "cache_missed_tokens": missed_tokens});
            with_own(miss, *place, hint.as_deref())
        }
    };
    raw(out, ",\"prompt_cache_diagnostics\":");
    value(out, &told);
}

/// With what is Headrace's own.
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

/// `,"diagnostics":{"cache_miss_reason":…}`: `null` where nothing was missed.
pub(super) fn write(out: &mut BytesMut, diagnosis: &CacheDiagnosis, usage: &Usage) {
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
