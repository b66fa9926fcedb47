//! How models mark their thoughts. Must not know templates beyond their marks, or what a thought is counted as.

/// The marks around a thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Thought {
    /// What opens it.
    pub open: &'static str,
    /// What closes it.
    pub close: &'static str,
}

/// What bounds a thought, and what the answer behind it begins with where the model is not left to say so itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThoughtBounds {
    /// What opens it.
    pub open: &'static str,
    /// What closes it.
    pub close: &'static str,
    /// What stands between it and the first word of the answer; empty: nothing that must.
    pub onward: &'static str,
}

/// Those of GPT-OSS, whose thoughts are messages in a channel.
pub(crate) const ANALYSIS: ThoughtBounds = ThoughtBounds {
    open: "<|channel|>analysis<|message|>",
    close: "<|end|>",
    onward: "<|start|>assistant<|channel|>final<|message|>",
};

/// What is looked for in templates, in this order.
const KNOWN: [Thought; 6] = [
    Thought { open: "<think>", close: "</think>" },
    Thought { open: "[THINK]", close: "[/THINK]" },
    Thought { open: "<|channel>thought", close: "<channel|>" },
    Thought { open: "<seed:think>", close: "</seed:think>" },
    Thought { open: "◁think▷", close: "◁/think▷" },
    Thought { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
];

impl Thought {
    /// The marks that a chat template knows. (GPT-OSS thinks in a channel: that belongs to its replies' form.)
    pub fn detect(template: &str) -> Option<Self> {
        KNOWN.into_iter().find(|thought| template.contains(thought.close))
    }

    /// Whether a prompt ends within a thought, so that the answer begins there.
    pub fn is_open_at_end(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}
