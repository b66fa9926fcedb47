//! What content rules decided about a request and its answer, and what judges on other servers took for it. Never holds the
//! text that was checked.

use serde::{Deserialize, Serialize};

use crate::NanoDollars;

/// A content rule that matched a request or an answer. Never holds the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentVerdict {
    /// The rule's name.
    pub rule: String,
    /// What the rule did: `block`, `redact` or `flag`. `no_verdict` if its judge gave no verdict in time.
    pub action: String,
    /// How the rule matches: `words`, `regex`, `pii`, `classifier` or `judge`. `None` in records of versions without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Box<str>>,
    /// Where the rule matched. `None` in records of versions without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ContentPlace>,
    /// The action that the rule has in the settings, if it is in a dry run and so only flagged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<Box<str>>,
}

/// A part of a call that content rules check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentPlace {
    /// What the caller sent.
    Input,
    /// The text of the answer.
    Answer,
    /// The reasoning before the answer.
    Reasoning,
    /// Names and arguments of tool calls.
    ToolCalls,
}

impl ContentPlace {
    /// The name in settings, traces and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Answer => "answer",
            Self::Reasoning => "reasoning",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What a rule asked a judge on another server about one part of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeUse {
    /// The rule's name.
    pub rule: String,
    /// The judge's name.
    pub judge: String,
    /// The part of the call.
    pub place: ContentPlace,
    /// The call waited for the judge.
    pub waits: bool,
    /// A text without a verdict passes.
    pub passes_without: bool,
    /// Number of questions that ended before the trace was written.
    pub questions: u32,
    /// Number of texts that the judge found unfit.
    pub unfit: u32,
    /// Number of questions without a verdict.
    pub without_verdict: u32,
    /// Nanoseconds of all questions together. Questions about several texts may run at once.
    pub took_ns: u64,
    /// Nanoseconds of the longest question.
    pub longest_ns: u64,
    /// What the questions cost the operator. `None` if the judge has no prices or reports no tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<NanoDollars>,
}

impl JudgeUse {
    /// Adds a later question of the same rule about the same part.
    pub fn add(&mut self, more: &Self) {
        self.questions = self.questions.saturating_add(more.questions);
        self.unfit = self.unfit.saturating_add(more.unfit);
        self.without_verdict = self.without_verdict.saturating_add(more.without_verdict);
        self.took_ns = self.took_ns.saturating_add(more.took_ns);
        self.longest_ns = self.longest_ns.max(more.longest_ns);
        self.cost = match (self.cost, more.cost) {
            (Some(cost), Some(more)) => cost.checked_add(more).ok(),
            (cost, more) => cost.or(more),
        };
    }

    /// Returns whether both are of the same rule and the same part of a call.
    pub fn is_like(&self, other: &Self) -> bool {
        self.rule == other.rule && self.place == other.place
    }
}

/// What content rules decided about a call, as one word. For searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModerationOutcome {
    /// A rule refused the request or ended the answer.
    Blocked,
    /// A rule replaced a part of the answer.
    Redacted,
    /// A rule only named its match.
    Flagged,
    /// A rule in a dry run named its match.
    DryRun,
    /// A judge gave no verdict in time.
    NoVerdict,
}

impl ModerationOutcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [Self::Blocked, Self::Redacted, Self::Flagged, Self::DryRun, Self::NoVerdict];

    /// The name in queries and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Redacted => "redacted",
            Self::Flagged => "flagged",
            Self::DryRun => "dry_run",
            Self::NoVerdict => "no_verdict",
        }
    }

    /// The outcome with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }
}

impl ContentVerdict {
    /// What the rule did, as one word.
    pub fn outcome(&self) -> ModerationOutcome {
        match self.action.as_str() {
            "block" => ModerationOutcome::Blocked,
            "redact" => ModerationOutcome::Redacted,
            "no_verdict" => ModerationOutcome::NoVerdict,
            _ if self.dry_run.is_some() => ModerationOutcome::DryRun,
            _ => ModerationOutcome::Flagged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_of_an_older_version_is_read() {
        let verdict: ContentVerdict = serde_json::from_str(r#"{"rule":"pii","action":"redact"}"#).unwrap();
        assert_eq!((verdict.place, verdict.outcome()), (None, ModerationOutcome::Redacted));
        assert_eq!(serde_json::to_string(&verdict).unwrap(), r#"{"rule":"pii","action":"redact"}"#);
    }

    #[test]
    fn an_outcome_is_one_word() {
        for (action, dry_run, expected) in [
            ("block", None, "blocked"),
            ("redact", None, "redacted"),
            ("flag", None, "flagged"),
            ("flag", Some("block"), "dry_run"),
            ("no_verdict", None, "no_verdict"),
            ("no_verdict", Some("block"), "no_verdict"),
        ] {
            let verdict = ContentVerdict {
                rule: "r".to_owned(),
                action: action.to_owned(),
                kind: None,
                place: None,
                dry_run: dry_run.map(Into::into),
            };
            assert_eq!(verdict.outcome().name(), expected, "{action} {dry_run:?}");
            assert_eq!(ModerationOutcome::named(expected), Some(verdict.outcome()));
        }
    }

    #[test]
    fn questions_of_one_rule_are_summed() {
        let one = |took_ns, cost| JudgeUse {
            rule: "r".to_owned(),
            judge: "guard".to_owned(),
            place: ContentPlace::Answer,
            waits: true,
            passes_without: false,
            questions: 1,
            unfit: 0,
            without_verdict: 1,
            took_ns,
            longest_ns: took_ns,
            cost,
        };
        let mut sum = one(3, None);
        sum.add(&one(5, Some(NanoDollars::new(7))));
        sum.add(&one(2, Some(NanoDollars::new(1))));
        let expected = JudgeUse {
            questions: 3,
            without_verdict: 3,
            longest_ns: 5,
            ..one(10, Some(NanoDollars::new(8)))
        };
        assert_eq!(sum, expected);
    }
}
