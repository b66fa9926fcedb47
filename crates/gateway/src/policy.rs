//! What the operator of a model decides of its calls: what is done where a worker is lost or slow, and how tools are shown to it.
//! Knows no worker and no call.

use std::collections::BTreeSet;
use std::sync::Arc;

use headrace_domain::KeyId;
use headrace_fleet::Hedge;

/// Of one model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// What follows where an answer breaks of which its client may have seen something.
    pub on_break: OnBreak,
    /// When a call that waits for its first word is put to a second worker; `None`: never.
    pub hedge: Option<Hedge>,
    /// In which order tools' schemas name properties.
    pub tools_order: ToolsOrder,
    /// What follows where a finished answer is not of the form that was asked for.
    pub off_form: OffForm,
    /// How much it thinks.
    pub thinking: ThinkingPolicy,
    /// Whose raw prompts may hold control tokens that are spelt out.
    pub parse_special: Spellers,
    /// What former answers in a prompt are read as.
    pub past_answers: PastAnswers,
}

/// What former answers in a prompt are read as, where their texts would become other ids than were generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PastAnswers {
    /// What was generated, as long as that is known: a conversation goes on from what was computed of it.
    #[default]
    AsGenerated,
    /// What their texts become: an answer depends on nothing but what was sent.
    AsText,
}

impl PastAnswers {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 2] = [Self::AsGenerated, Self::AsText];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsGenerated => "generated",
            Self::AsText => "text",
        }
    }
}

/// What follows where a finished answer is not of the form that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OffForm {
    /// It is refused; of a stream, the end of it.
    #[default]
    Refuse,
    /// It is asked for once more where nothing of it has gone out, as long as retries last; then it is refused.
    Retry,
    /// It goes out as it is, and is not judged.
    Pass,
}

impl OffForm {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Retry, Self::Pass];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Retry => "retry",
            Self::Pass => "pass",
        }
    }
}

/// How much a model thinks before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ThinkingPolicy {
    /// The most tokens of thought for an effort, in the order of [`ThinkingPolicy::EFFORTS`]; `None`: as its template has it.
    pub budgets: [Option<u32>; Self::EFFORTS.len()],
    /// What a thought ends with that has had enough.
    pub last_words: Option<Arc<str>>,
}

impl ThinkingPolicy {
    /// The words for efforts that may have a budget.
    pub const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

    /// The most tokens of thought for an effort.
    pub fn budget(&self, effort: &str) -> Option<u32> {
        Self::EFFORTS.into_iter().zip(self.budgets).find_map(|(name, most)| most.filter(|_| name == effort))
    }
}

/// Whose raw prompts may hold control tokens that are spelt out: with them a prompt can end its own turn and speak as others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Spellers {
    /// Nobody's.
    #[default]
    Nobody,
    /// Everybody's.
    All,
    /// Those of these keys.
    Keys(Arc<BTreeSet<KeyId>>),
}

impl Spellers {
    /// Whether a key is one of them.
    pub fn allows(&self, key: &KeyId) -> bool {
        match self {
            Self::Nobody => false,
            Self::All => true,
            Self::Keys(keys) => keys.contains(key),
        }
    }
}

/// In which order the schemas of tools name properties, where a model is shown them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolsOrder {
    /// As their caller sent them.
    #[default]
    AsSent,
    /// Sorted, so that callers who name them in different orders share cached prefixes.
    Canonical,
}

impl ToolsOrder {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 2] = [Self::AsSent, Self::Canonical];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsSent => "sent",
            Self::Canonical => "canonical",
        }
    }
}

/// What follows where an answer breaks in its middle, and nobody can go on with it as if nothing had happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBreak {
    /// It ends with an error.
    #[default]
    Error,
    /// Another worker goes on with it from the tokens that are there, in its own way, and that is told.
    Continue,
}

impl OnBreak {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 2] = [Self::Error, Self::Continue];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Continue => "continue",
        }
    }
}
