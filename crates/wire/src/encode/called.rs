//! What of a call's tools decides how its OpenAI answer shows calls of them: which take a text, and whether one was named.
//! Knows no shapes.

use headrace_domain::{Call, FinishReason, Prompt, ToolChoice};

/// The tools of a call, as far as its answer needs them.
#[derive(Debug, Default)]
pub(super) struct Called {
    /// Those that take a text.
    custom: Vec<String>,
    /// The caller named the tool that had to be called.
    named: bool,
}

impl Called {
    pub(super) fn of(call: &Call) -> Self {
        let Prompt::Conversation(conversation) = &call.prompt else { return Self::default() };
        let custom = conversation.tools.iter().filter(|tool| tool.custom.is_some());
        Self {
            custom: custom.map(|tool| tool.name.clone()).collect(),
            named: matches!(conversation.tool_choice, ToolChoice::Named(_)),
        }
    }

    /// Whether a tool takes a text.
    pub(super) fn is_custom(&self, name: &str) -> bool {
        self.custom.iter().any(|custom| custom == name)
    }

    /// Why an answer ended, as OpenAI says it: a call of the tool that was named is what was asked for, and no wish of the
    /// model's.
    pub(super) const fn reason<'r>(&self, reason: &'r FinishReason) -> &'r FinishReason {
        match reason {
            FinishReason::ToolCalls if self.named => &FinishReason::Stop,
            reason => reason,
        }
    }
}
