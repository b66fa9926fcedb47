//! Maps the finish reasons of upstreams to our own. One table serves all dialects, because servers mix their words.
//!
//! A word that is not in the table is [`FinishMeaning::Unknown`]: the server says that the answer is whole, but a part may be
//! missing. It counts as `length`, the reason for which every client asks for more, and the trace records the word.

use headrace_domain::FinishReason;

/// The meaning of a finish reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FinishMeaning {
    /// One of our finish reasons.
    By(FinishReason),
    /// None of our finish reasons is the same. This one is the nearest.
    Nearly(FinishReason),
    /// An unknown reason.
    Unknown,
    /// The upstream gave up, so the answer is not whole.
    GaveUp,
}

/// Maps a finish reason. `matched` is the stop string that the upstream names beside it.
pub(super) fn ended(name: &str, matched: Option<&str>) -> FinishMeaning {
    let stopped = || match matched {
        Some(matched) => FinishReason::StopString { matched: matched.to_owned() },
        None => FinishReason::Stop,
    };
    // Some servers write the reasons in capitals.
    let lower;
    let name = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        lower = name.to_ascii_lowercase();
        &lower
    } else {
        name
    };
    match name {
        "stop" | "stop_sequence" => FinishMeaning::By(stopped()),
        "end_turn" | "eos" | "eos_token" | "stop_token" | "end" | "complete" | "completed" => {
            FinishMeaning::By(FinishReason::Stop)
        }
        "length" | "max_tokens" | "max_output_tokens" | "model_context_window_exceeded" => {
            FinishMeaning::By(FinishReason::Length)
        }
        // Mistral: the model's context window is full.
        "model_length" | "max_length" => FinishMeaning::By(FinishReason::Length),
        "tool_calls" | "tool_call" | "tool_use" | "function_call" | "function_calls" => {
            FinishMeaning::By(FinishReason::ToolCalls)
        }
        "content_filter" | "refusal" => FinishMeaning::By(FinishReason::ContentFilter),
        "safety" | "recitation" | "sensitive" | "blocklist" | "prohibited_content" | "spii" => {
            FinishMeaning::Nearly(FinishReason::ContentFilter)
        }
        // vLLM: aborted, failed. DeepSeek: no capacity. Z.ai: a network error. The rest of the answer is missing.
        "abort" | "aborted" | "error" | "failed" | "cancelled" | "canceled" | "timeout" => {
            FinishMeaning::GaveUp
        }
        "insufficient_system_resource" | "network_error" | "server_error" | "internal_error" => {
            FinishMeaning::GaveUp
        }
        // Anthropic: the turn may be continued. vLLM: the model repeats itself.
        "pause_turn" | "repetition" => FinishMeaning::Nearly(FinishReason::Stop),
        _ => FinishMeaning::Unknown,
    }
}
