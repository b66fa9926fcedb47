//! What a judge says of a text, and the seam that every judge stands behind.
//! Knows no rules; a verdict names the rule and never the text that it matched.

use std::sync::Arc;

/// What was decided about a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass.
    #[default]
    Clean,
    /// It may pass, and the trace says that a rule matched.
    Flagged {
        /// The rule's name.
        rule: Arc<str>,
    },
    /// It must not pass.
    Blocked {
        /// The rule's name.
        rule: Arc<str>,
        /// What the caller is told.
        message: Arc<str>,
    },
}

impl Verdict {
    /// Whether the text must not pass.
    pub const fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    /// The rule that matched.
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Clean => None,
            Self::Flagged { rule } | Self::Blocked { rule, .. } => Some(rule),
        }
    }

    /// The graver of two verdicts; of two alike, the first.
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
    /// The verdict on one text. May take time in proportion to its length, never more.
    fn judge(&self, text: &str) -> Verdict;

    /// The most characters of a phrase that [`Self::judge_seam`] may find. 0 if it finds none.
    fn longest_phrase_chars(&self) -> usize {
        0
    }

    /// The verdict on phrases that begin in one of the texts `before` and end in `after`. Where two texts meet, a phrase may have a
    /// space or none.
    fn judge_seam(&self, _before: &[String], _after: &str) -> Verdict {
        Verdict::Clean
    }

    /// The gravest verdict on several texts, each by itself; stops at the first that must not pass.
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
