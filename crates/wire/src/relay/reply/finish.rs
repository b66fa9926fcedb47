//! Why upstreams say that an answer ended, in our terms. One table for all dialects: servers mix them.

use headrace_domain::FinishReason;

/// What a finish reason means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// A reason of ours.
    By(FinishReason),
    /// None of ours is the same; this one is nearest.
    Nearly(FinishReason),
    /// The upstream gave up: the answer is not whole.
    GaveUp,
}

/// Reads a finish reason; `matched` is the stop string that the upstream names beside it.
pub(super) fn ended(name: &str, matched: Option<&str>) -> Ended {
    let stopped = || match matched {
        Some(matched) => FinishReason::StopString { matched: matched.to_owned() },
        None => FinishReason::Stop,
    };
    // Some servers write them in capitals.
    let lower;
    let name = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        lower = name.to_ascii_lowercase();
        &lower
    } else {
        name
    };
    match name {
        "stop" | "stop_sequence" => Ended::By(stopped()),
        "end_turn" | "eos" => Ended::By(FinishReason::Stop),
        "length" | "max_tokens" | "model_context_window_exceeded" => Ended::By(FinishReason::Length),
        "tool_calls" | "tool_use" | "function_call" => Ended::By(FinishReason::ToolCalls),
        "content_filter" | "refusal" => Ended::By(FinishReason::ContentFilter),
        "safety" | "recitation" | "sensitive" => Ended::Nearly(FinishReason::ContentFilter),
        // vLLM: aborted, failed. DeepSeek: out of room. The rest of the answer is missing.
        "abort" | "aborted" | "error" | "cancelled" | "insufficient_system_resource" => Ended::GaveUp,
        // vLLM's `repetition`, Anthropic's `pause_turn`, and whatever comes next.
        _ => Ended::Nearly(FinishReason::Stop),
    }
}
