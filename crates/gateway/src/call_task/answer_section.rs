//! The kinds of text that an answer has. Must not know what is checked in them.

use headrace_domain::{ContentPlace, ReplyEvent};

/// The kind of text that an answer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AnswerSection {
    Answer,
    Reasoning,
    ToolCalls,
}

impl AnswerSection {
    /// The section as traces name it.
    pub(super) const fn place(self) -> ContentPlace {
        match self {
            Self::Answer => ContentPlace::Answer,
            Self::Reasoning => ContentPlace::Reasoning,
            Self::ToolCalls => ContentPlace::ToolCalls,
        }
    }
}

/// The choice of an event.
pub(super) const fn choice_of(event: &ReplyEvent) -> u32 {
    match event {
        ReplyEvent::Prompt { choice, .. }
        | ReplyEvent::Text { choice, .. }
        | ReplyEvent::Reasoning { choice, .. }
        | ReplyEvent::ReasoningSignature { choice, .. }
        | ReplyEvent::RedactedReasoning { choice, .. }
        | ReplyEvent::ToolCallStart { choice, .. }
        | ReplyEvent::ToolCallArguments { choice, .. }
        | ReplyEvent::Encoded { choice, .. }
        | ReplyEvent::Finish { choice, .. } => *choice,
    }
}
