//! A judge's verdict on a text, and the trait that every judge implements. Knows no rules. A verdict names the rule,
//! never the text that matched.

use std::sync::Arc;

use headrace_domain::ProjectId;

use crate::{InputRedactions, JudgeRule, OutputRules, RuleDescription};

/// The verdict on a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    /// The text may pass.
    #[default]
    Clean,
    /// The text may pass, and the trace names the rule that matched.
    Flagged {
        /// The rule's name.
        rule: Arc<str>,
    },
    /// The text must not pass.
    Blocked {
        /// The rule's name.
        rule: Arc<str>,
        /// The message to the caller.
        message: Arc<str>,
    },
}

impl Verdict {
    /// Returns `true` if the text must not pass.
    pub const fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    /// The name of the rule that matched.
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Clean => None,
            Self::Flagged { rule } | Self::Blocked { rule, .. } => Some(rule),
        }
    }

    /// Returns the more severe of two verdicts. If they are equally severe, returns `self`.
    #[must_use]
    pub fn graver(self, other: Self) -> Self {
        if other.gravity() > self.gravity() { other } else { self }
    }

    const fn gravity(&self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Flagged { .. } => 1,
            Self::Blocked { .. } => 2,
        }
    }
}

/// Judges texts.
pub trait Judge: Send + Sync {
    /// Returns the verdict on one text. Takes at most time proportional to its length.
    fn judge(&self, text: &str) -> Verdict;

    /// The judge of a project's calls. `None` if it is this one.
    fn of_project(&self, _project: Option<&ProjectId>) -> Option<Arc<dyn Judge>> {
        None
    }

    /// Whether the judge checks what callers send.
    fn judges_input(&self) -> bool {
        true
    }

    /// The rules on what callers send that ask judges on other servers.
    fn input_judges(&self) -> &[JudgeRule] {
        &[]
    }

    /// The rules that redact what callers send. `None` if there are none.
    fn input_redactions(&self) -> Option<&Arc<InputRedactions>> {
        None
    }

    /// The message to a caller whose call a rule blocked, by the rule's index.
    fn message(&self, _rule: usize) -> Option<&Arc<str>> {
        None
    }

    /// What the rule of this name is and does. `None` if there is no such rule.
    fn rule_named(&self, _name: &str) -> Option<&RuleDescription> {
        None
    }

    /// The rules on what models write. `None` if there are none.
    fn output(&self) -> Option<&Arc<OutputRules>> {
        None
    }

    /// Maximum number of characters in a phrase that [`Self::judge_seam`] can find. 0 if it finds none.
    fn longest_phrase_chars(&self) -> usize {
        0
    }

    /// Returns the verdict on phrases that start in one of the texts `before` and end in `after`. A phrase may have a space
    /// or none where two texts meet.
    fn judge_seam(&self, _before: &[String], _after: &str) -> Verdict {
        Verdict::Clean
    }

    /// Returns the most severe verdict on several texts, each judged by itself. Stops at the first text that must not
    /// pass.
    fn judge_all(&self, texts: &mut dyn Iterator<Item = &str>) -> Verdict {
        let mut gravest = Verdict::Clean;
        for text in texts {
            gravest = gravest.graver(self.judge(text));
            if gravest.is_blocked() {
                break;
            }
        }
        gravest
    }
}
