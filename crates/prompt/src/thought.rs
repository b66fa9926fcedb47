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

/// The marks that are searched for in templates, in this order. Each row has the texts that show that a template knows
/// the marks: the closing mark, or the form in which a template with variables writes it.
const KNOWN: [(ReasoningMarks, &[&str]); 11] = [
    (
        ReasoningMarks { open: "<|open|>think<|sep|>", close: "<|close|>think<|sep|>" },
        &["<|close|>think<|sep|>", "close_tag('think')"],
    ),
    // The published template of Hunyuan 3 writes the suffix of its tags as a variable.
    (
        ReasoningMarks { open: "<think:opensource>", close: "</think:opensource>" },
        &["</think:opensource>", "HYTK"],
    ),
    (ReasoningMarks { open: "<mm:think>", close: "</mm:think>" }, &["</mm:think>"]),
    (ReasoningMarks { open: "<longcat_think>", close: "</longcat_think>" }, &["</longcat_think>"]),
    (ReasoningMarks { open: "<|inner_prefix|>", close: "<|inner_suffix|>" }, &["<|inner_suffix|>"]),
    (ReasoningMarks { open: "<think>", close: "</think>" }, &["</think>"]),
    (ReasoningMarks { open: "[THINK]", close: "[/THINK]" }, &["[/THINK]"]),
    (ReasoningMarks { open: "<|channel>thought", close: "<channel|>" }, &["<channel|>"]),
    (ReasoningMarks { open: "<seed:think>", close: "</seed:think>" }, &["</seed:think>"]),
    (ReasoningMarks { open: "◁think▷", close: "◁/think▷" }, &["◁/think▷"]),
    (ReasoningMarks { open: "<|START_THINKING|>", close: "<|END_THINKING|>" }, &["<|END_THINKING|>"]),
];

impl ReasoningMarks {
    /// Returns the marks that a chat template knows. GPT-OSS is not among them: it reasons in a channel, which belongs
    /// to the form of its replies.
    pub fn detect(template: &str) -> Option<Self> {
        let shown = |texts: &&[&str]| texts.iter().any(|text| template.contains(text));
        KNOWN.iter().find(|(_, texts)| shown(texts)).map(|(thought, _)| *thought)
    }

    /// Whether a prompt ends inside a reasoning block, so that the answer begins there.
    pub fn is_open_at_end(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}
