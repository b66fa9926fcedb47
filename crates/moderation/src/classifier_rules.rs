//! The rules of a list that use the classifier. Each passage of a text is classified once for all of them. Must not know
//! what a match does.

use std::sync::LazyLock;

use crate::classifier::{ContentLabel, LabelScores, PassageClassifier, PassageEnd, PassageReader};
use crate::config::LabelThreshold;
use crate::{Action, RuleConfig, RuleKind};

static CLASSIFIER: LazyLock<PassageClassifier<'static>> = LazyLock::new(PassageClassifier::embedded);

/// One rule.
#[derive(Debug, Clone, Copy)]
struct LabelRule {
    /// The index in the list.
    rule: usize,
    /// The probability from which each label matches. `None` for labels that the rule does not look for.
    thresholds: [Option<f32>; ContentLabel::ALL.len()],
}

/// See the top of the file.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassifierRules {
    rules: Vec<LabelRule>,
    /// Some rule does more than note its matches.
    acts: bool,
}

impl ClassifierRules {
    /// Takes the rules of kind `classifier`, each with its index in the list.
    pub(crate) fn of<'c>(configs: impl Iterator<Item = (usize, &'c RuleConfig)>) -> Self {
        let mut found = Self::default();
        for (rule, config) in configs.filter(|(_, config)| config.kind == RuleKind::Classifier) {
            let threshold = config.threshold.unwrap_or(LabelThreshold::DEFAULT).probability();
            let looks_for = |label| config.labels.is_empty() || config.labels.contains(&label);
            let thresholds = ContentLabel::ALL.map(|label| looks_for(label).then_some(threshold));
            found.rules.push(LabelRule { rule, thresholds });
            found.acts |= config.effective_action() != Action::Flag;
        }
        found
    }

    /// Whether there are no rules.
    pub(crate) const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether some rule does more than note its matches.
    pub(crate) const fn acts(&self) -> bool {
        self.acts
    }

    /// Calls `found` with the index of each rule that matches a passage, by itself or after the text before it.
    pub(crate) fn judge(&self, end: &PassageEnd<'_>, found: &mut dyn FnMut(usize)) {
        let alone = CLASSIFIER.scores(end.passage);
        let with_context = end.with_context.map(|text| CLASSIFIER.scores(text));
        let matches = |rule: &LabelRule, scores: &LabelScores| {
            let mut labels = rule.thresholds.iter().zip(scores);
            labels.any(|(threshold, score)| threshold.is_some_and(|threshold| *score >= threshold))
        };
        for rule in &self.rules {
            if matches(rule, &alone) || with_context.is_some_and(|scores| matches(rule, &scores)) {
                found(rule.rule);
            }
        }
    }

    /// Judges each passage of a whole text.
    pub(crate) fn judge_all(&self, text: &str, found: &mut dyn FnMut(usize)) {
        if self.is_empty() {
            return;
        }
        let mut reader = PassageReader::default();
        let mut judge = |end: PassageEnd<'_>| self.judge(&end, found);
        for (at, c) in text.char_indices() {
            reader.push(c, at.saturating_add(c.len_utf8()), &mut judge);
        }
        reader.finish(&mut judge);
    }
}
