//! Explains in words why the cache did not contain more of a prompt. Draws nothing.

use headrace_domain::{CacheMiss, MissReason, PromptPlace};

use crate::units::grouped;

/// Explains why the cache did not contain more of the prompt. For operators only: it reveals whether another tenant has
/// the same text cached.
pub fn miss_words(miss: &CacheMiss) -> String {
    let token = grouped(miss.token.into());
    let mut text = match miss.reason {
        MissReason::BelowBlock => {
            "the prompt has no whole block before its last token, which is always computed".to_owned()
        }
        MissReason::Bypassed => "not looked for: the prompt's log-probabilities are wanted".to_owned(),
        MissReason::Disabled => "the cache is switched off".to_owned(),
        MissReason::Evicted => format!("evicted from token {token} on"),
        MissReason::Expired => format!("expired from token {token} on"),
        MissReason::Differs => format!("the nearest cached prompt differs at token {token}"),
        MissReason::NeverSeen => format!("never seen from token {token} on"),
        MissReason::StateNotKept => {
            format!("cached beyond token {token}, but only the state there was kept")
        }
        MissReason::WindowFreed => {
            format!("cached beyond token {token}, but only the window there was kept")
        }
    };
    if let Some(place) = &miss.place {
        text.push_str(": ");
        text.push_str(&place_text(place));
    }
    if miss.elsewhere {
        text.push_str(" (cached for another tenant)");
    }
    text
}

/// A place in a prompt, in the terms of the client's request.
fn place_text(place: &PromptPlace) -> String {
    match place {
        PromptPlace::System { character } => format!("system, character {character}"),
        PromptPlace::Message { index, block: None, character } => {
            format!("messages[{index}], character {character}")
        }
        PromptPlace::Message { index, block: Some(block), character } => {
            format!("messages[{index}].content[{block}], character {character}")
        }
        PromptPlace::Reasoning { index, character } => {
            format!("the reasoning of messages[{index}], character {character}")
        }
        PromptPlace::ToolCall { index, call } => format!("tool call {call} of messages[{index}]"),
        PromptPlace::Tool { index } => format!("tools[{index}]"),
        PromptPlace::Tools => "the list of tools".to_owned(),
        PromptPlace::Template { before_message } => {
            format!("in the template before messages[{before_message}]")
        }
        PromptPlace::Prompt { index, character } => format!("prompt {index}, character {character}"),
    }
}
