//! The marks that models put around their reasoning. Must not know templates beyond their marks, or how reasoning
//! tokens are counted.

/// The marks around a reasoning block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReasoningMarks {
    /// The opening mark.
    pub open: &'static str,
    /// The closing mark.
    pub close: &'static str,
}

/// The bounds of a reasoning block, and the beginning of the answer after it if the model does not write that itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThoughtBounds {
    /// The opening mark.
    pub open: &'static str,
    /// The closing mark.
    pub close: &'static str,
    /// The text between the reasoning and the first word of the answer. Empty if no text is required.
    pub onward: &'static str,
}

/// The bounds for GPT-OSS, which writes its reasoning as messages in a channel.
pub(crate) const ANALYSIS: ThoughtBounds = ThoughtBounds {
    open: "<|channel|>analysis<|message|>",
    close: "<|end|>",
    onward: "<|start|>assistant<|channel|>final<|message|>",
};

/// The marks that are searched for in templates, in this order.
const KNOWN: [ReasoningMarks; 6] = [
    ReasoningMarks { open: "<think>", close: "</think>" },
    ReasoningMarks { open: "[THINK]", close: "[/THINK]" },
    ReasoningMarks { open: "<|channel>thought", close: "<channel|>" },
    ReasoningMarks { open: "<seed:think>", close: "</seed:think>" },
    ReasoningMarks { open: "◁think▷", close: "◁/think▷" },
    ReasoningMarks { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
];

impl ReasoningMarks {
    /// Returns the marks that a chat template knows. GPT-OSS is not among them: it reasons in a channel, which belongs
    /// to the form of its replies.
    pub fn detect(template: &str) -> Option<Self> {
        KNOWN.into_iter().find(|thought| template.contains(thought.close))
    }

    /// Whether a prompt ends inside a reasoning block, so that the answer begins there.
    pub fn is_open_at_end(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}
