//! What a rule is and does, as traces name it. Must not know how a rule matches.

use std::sync::Arc;

use headrace_domain::{ContentPlace, ContentVerdict};

use crate::{Action, RuleConfig, RuleKind};

/// The word for a judge that gave no verdict in time, in place of an action in traces.
const NO_VERDICT: &str = "no_verdict";

/// A rule, as traces name it.
#[derive(Debug, Clone)]
pub struct RuleDescription {
    /// The rule's name.
    pub name: Arc<str>,
    /// How the rule matches.
    pub kind: RuleKind,
    /// What the rule does on a match. [`Action::Flag`] in a dry run.
    pub action: Action,
    /// The action in the settings, if the rule is in a dry run.
    pub dry_run: Option<Action>,
    /// The name of the judge that decides (`kind = "judge"`).
    pub judge: Option<Arc<str>>,
}

impl RuleDescription {
    /// Describes a rule.
    pub(crate) fn of(config: &RuleConfig) -> Self {
        Self {
            name: config.name.as_str().into(),
            kind: config.kind,
            action: config.effective_action(),
            dry_run: config.dry_run.then_some(config.action),
            judge: config.judge.as_deref().map(Into::into),
        }
    }

    /// The verdict of the rule after a match.
    pub fn matched(&self, place: ContentPlace) -> ContentVerdict {
        self.verdict(self.action.name(), place)
    }

    /// The verdict of the rule after a match that it only notes.
    pub fn noted(&self, place: ContentPlace) -> ContentVerdict {
        self.verdict(Action::Flag.name(), place)
    }

    /// The entry of a trace for a judge that gave no verdict in time.
    pub fn without_verdict(&self, place: ContentPlace) -> ContentVerdict {
        self.verdict(NO_VERDICT, place)
    }

    fn verdict(&self, action: &str, place: ContentPlace) -> ContentVerdict {
        ContentVerdict {
            rule: self.name.to_string(),
            action: action.to_owned(),
            kind: Some(self.kind.name().into()),
            place: Some(place),
            dry_run: self.dry_run.map(|action| action.name().into()),
        }
    }
}
