//! The part of a search for calls that is about content rules. Must not know how records are kept.

use headrace_domain::{ContentVerdict, ModerationOutcome};

/// Selects calls by the verdicts that content rules decided about their requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModerationFilter {
    /// Any rule matched, or a judge gave no verdict.
    Any,
    /// A rule had this outcome.
    Outcome(ModerationOutcome),
}

impl ModerationFilter {
    /// The name of [`Self::Any`].
    const ANY: &str = "any";

    /// The name in queries.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => Self::ANY,
            Self::Outcome(outcome) => outcome.name(),
        }
    }

    /// Reads a name.
    ///
    /// # Errors
    /// A message that lists the names, if the name is none of them.
    pub fn named(name: &str) -> Result<Self, String> {
        let outcomes = ModerationOutcome::ALL.map(Self::Outcome);
        let all = std::iter::once(Self::Any).chain(outcomes);
        all.clone().find(|filter| filter.name() == name).ok_or_else(|| {
            let names: Vec<&str> = all.map(Self::name).collect();
            format!("it must be one of {}", names.join(", "))
        })
    }

    /// Whether a verdict meets the filter.
    pub fn matches(self, verdict: &ContentVerdict) -> bool {
        match self {
            Self::Any => true,
            Self::Outcome(outcome) => verdict.outcome() == outcome,
        }
    }
}
