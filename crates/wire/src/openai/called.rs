//! The facts about a call's tools on which its OpenAI answer depends: which tools take a text, and whether the caller
//! named one.
//! Knows no JSON.

use headrace_domain::{Call, FinishReason, Prompt, ToolChoice};

/// The tools of a call, as far as its answer needs them.
#[derive(Debug, Default)]
pub(super) struct CalledTools {
    /// The names of the tools that take a text.
    custom: Vec<String>,
    /// The caller named the tool that had to be called.
    named: bool,
}

impl CalledTools {
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

    /// Returns the finish reason in OpenAI's sense. If the caller named the tool, a call of it is a regular stop,
    /// because the model did not choose the call.
    pub(super) const fn reason<'r>(&self, reason: &'r FinishReason) -> &'r FinishReason {
        match reason {
            FinishReason::ToolCalls if self.named => &FinishReason::Stop,
            reason => reason,
        }
    }
}
