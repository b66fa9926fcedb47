//! The `usage` object of an upstream's answer, under all names that servers use for its counts.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/object>,
//! <https://platform.openai.com/docs/api-reference/responses/object>, <https://docs.anthropic.com/en/api/messages>.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::lenient::{LenientCount, LenientText};

/// A `usage` object. vLLM's `created_cache_tokens` is not read, because those tokens have no price.
#[derive(Default, Deserialize)]
pub(super) struct UsageBody<'a> {
    /// Chat.
    #[serde(default)]
    pub(super) prompt_tokens: LenientCount,
    /// Chat.
    #[serde(default)]
    pub(super) completion_tokens: LenientCount,
    /// Responses and Anthropic.
    #[serde(default)]
    pub(super) input_tokens: LenientCount,
    /// Responses and Anthropic.
    #[serde(default)]
    pub(super) output_tokens: LenientCount,
    #[serde(default)]
    pub(super) total_tokens: LenientCount,
    #[serde(default, deserialize_with = "details")]
    pub(super) prompt_tokens_details: PromptDetails,
    #[serde(default, deserialize_with = "details")]
    pub(super) input_tokens_details: PromptDetails,
    #[serde(default, deserialize_with = "details")]
    pub(super) completion_tokens_details: AnswerDetails,
    #[serde(default, deserialize_with = "details")]
    pub(super) output_tokens_details: AnswerDetails,
    /// DeepSeek.
    #[serde(default)]
    pub(super) prompt_cache_hit_tokens: LenientCount,
    /// DeepSeek.
    #[serde(default)]
    pub(super) prompt_cache_miss_tokens: LenientCount,
    /// Moonshot.
    #[serde(default)]
    pub(super) cached_tokens: LenientCount,
    /// SGLang.
    #[serde(default)]
    pub(super) reasoning_tokens: LenientCount,
    /// Anthropic.
    #[serde(default)]
    pub(super) cache_read_input_tokens: LenientCount,
    /// Anthropic.
    #[serde(default)]
    pub(super) cache_creation_input_tokens: LenientCount,
    /// Anthropic.
    #[serde(default, deserialize_with = "details")]
    pub(super) cache_creation: CacheCreation,
    /// Anthropic.
    #[serde(default, deserialize_with = "details")]
    pub(super) server_tool_use: ServerTools,
    /// Anthropic.
    #[serde(default, borrow)]
    pub(super) service_tier: LenientText<'a>,
}

/// Parts of the prompt.
#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct PromptDetails {
    #[serde(default)]
    pub(super) cached_tokens: LenientCount,
    #[serde(default)]
    pub(super) cache_write_tokens: LenientCount,
    #[serde(default)]
    pub(super) audio_tokens: LenientCount,
}

/// Parts of the answer.
#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct AnswerDetails {
    #[serde(default)]
    pub(super) reasoning_tokens: LenientCount,
    /// Anthropic.
    #[serde(default)]
    pub(super) thinking_tokens: LenientCount,
    #[serde(default)]
    pub(super) audio_tokens: LenientCount,
}

/// Cache writes by their lifetime.
#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct CacheCreation {
    #[serde(default)]
    pub(super) ephemeral_5m_input_tokens: LenientCount,
    #[serde(default)]
    pub(super) ephemeral_1h_input_tokens: LenientCount,
}

/// Uses of tools that run at the upstream.
#[derive(Default, Clone, Copy, Deserialize)]
pub(super) struct ServerTools {
    #[serde(default)]
    pub(super) web_search_requests: LenientCount,
    #[serde(default)]
    pub(super) web_fetch_requests: LenientCount,
}

/// Details whose type may differ from the dialect's.
trait UsageDetails: Default {
    /// The value for details that are not an object. One count is [`LenientCount::Absurd`], so that the report gets a note.
    const ABSURD: Self;
}

impl UsageDetails for PromptDetails {
    const ABSURD: Self = Self {
        cached_tokens: LenientCount::Absurd,
        cache_write_tokens: LenientCount::Absent,
        audio_tokens: LenientCount::Absent,
    };
}

impl UsageDetails for AnswerDetails {
    const ABSURD: Self = Self {
        reasoning_tokens: LenientCount::Absurd,
        thinking_tokens: LenientCount::Absent,
        audio_tokens: LenientCount::Absent,
    };
}

impl UsageDetails for CacheCreation {
    const ABSURD: Self = Self {
        ephemeral_5m_input_tokens: LenientCount::Absurd,
        ephemeral_1h_input_tokens: LenientCount::Absent,
    };
}

impl UsageDetails for ServerTools {
    const ABSURD: Self =
        Self { web_search_requests: LenientCount::Absurd, web_fetch_requests: LenientCount::Absent };
}

/// Parses details and never fails, so that a wrong type does not cost the report its other fields.
fn details<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: UsageDetails + Deserialize<'de>,
{
    let text = <&RawValue>::deserialize(deserializer)?.get();
    if text == "null" {
        return Ok(T::default());
    }
    let parsed = text.starts_with('{').then(|| serde_json::from_str(text).ok());
    Ok(parsed.flatten().unwrap_or(T::ABSURD))
}
