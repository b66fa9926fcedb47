//! The operator's choices for a model's calls: what happens if a worker is lost or slow, and how tools are shown to
//! the model. Knows no worker and no call.

use std::collections::BTreeSet;
use std::sync::Arc;

use headrace_domain::KeyId;
use headrace_fleet::HedgePolicy;

/// The policy of one model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelPolicy {
    /// What happens if an answer breaks off after the client may have seen part of it.
    pub on_break: OnBreak,
    /// When a call that waits for its first token is also sent to a second worker. `None` means never.
    pub hedge: Option<HedgePolicy>,
    /// The order in which tool schemas name properties.
    pub tools_order: ToolsOrder,
    /// What happens if a finished answer violates the requested response format.
    pub off_form: OffForm,
    /// How much the model reasons.
    pub thinking: ThinkingPolicy,
    /// The keys whose raw prompts may contain control tokens written out as text.
    pub parse_special: ControlTokenPolicy,
    /// How earlier answers in a prompt are encoded.
    pub past_answers: PastAnswers,
}

/// How earlier answers in a prompt are encoded, if encoding their text gives other ids than were generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PastAnswers {
    /// By the generated ids, as long as they are known. A conversation then reuses what was computed for it.
    #[default]
    AsGenerated,
    /// By encoding their text. An answer then depends only on what was sent.
    AsText,
}

impl PastAnswers {
    /// All variants, in the order in which they are listed.
    pub const ALL: [Self; 2] = [Self::AsGenerated, Self::AsText];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsGenerated => "generated",
            Self::AsText => "text",
        }
    }
}

/// What happens if a finished answer violates the requested response format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OffForm {
    /// The answer is refused. A stream ends with an error.
    #[default]
    Refuse,
    /// The answer is requested once more, if nothing of it was sent and the retry budget allows it. Otherwise it is
    /// refused.
    Retry,
    /// The answer is sent as it is, unchecked.
    Pass,
}

impl OffForm {
    /// All variants, in the order in which they are listed.
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Retry, Self::Pass];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Retry => "retry",
            Self::Pass => "pass",
        }
    }
}

/// How much a model reasons before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ThinkingPolicy {
    /// The reasoning budget in tokens for each effort, in the order of [`ThinkingPolicy::EFFORTS`]. `None` leaves the
    /// amount to the model's template.
    pub budgets: [Option<u32>; Self::EFFORTS.len()],
    /// The text that ends reasoning when its budget is used up.
    pub last_words: Option<Arc<str>>,
}

impl ThinkingPolicy {
    /// The effort names that may have a budget.
    pub const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

    /// The reasoning budget for an effort, in tokens.
    pub fn budget(&self, effort: &str) -> Option<u32> {
        Self::EFFORTS.into_iter().zip(self.budgets).find_map(|(name, most)| most.filter(|_| name == effort))
    }
}

/// The keys whose raw prompts may contain control tokens written out as text. With these tokens, a prompt can end its
/// own turn and speak in another role.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ControlTokenPolicy {
    /// No key.
    #[default]
    Nobody,
    /// Every key.
    All,
    /// The keys of this set.
    Keys(Arc<BTreeSet<KeyId>>),
}

impl ControlTokenPolicy {
    /// Whether a key may write control tokens.
    pub fn allows(&self, key: &KeyId) -> bool {
        match self {
            Self::Nobody => false,
            Self::All => true,
            Self::Keys(keys) => keys.contains(key),
        }
    }
}

/// The order in which tool schemas name properties in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolsOrder {
    /// The order in which the caller sent them.
    #[default]
    AsSent,
    /// Sorted order, so that callers with different orders share cached prefixes.
    Canonical,
}

impl ToolsOrder {
    /// All variants, in the order in which they are listed.
    pub const ALL: [Self; 2] = [Self::AsSent, Self::Canonical];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsSent => "sent",
            Self::Canonical => "canonical",
        }
    }
}

/// What happens if an answer breaks off and no worker can continue it indistinguishably.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBreak {
    /// The answer ends with an error.
    #[default]
    Error,
    /// Another worker continues from the existing tokens in its own way, and the client is informed.
    Continue,
}

impl OnBreak {
    /// All variants, in the order in which they are listed.
    pub const ALL: [Self; 2] = [Self::Error, Self::Continue];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Continue => "continue",
        }
    }
}
