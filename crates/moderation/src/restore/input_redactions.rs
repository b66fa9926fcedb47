//! The rules that redact what callers send, compiled. Must not know a call.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::output::{MatchSpan, OutputFilter, TextRules};
use crate::pii::PiiEntity;
use crate::{Action, JudgesByName, RuleConfig, RuleError};

/// See the top of the file.
#[derive(Debug)]
pub struct InputRedactions {
    rules: Arc<TextRules>,
    /// For each rule of the list: the label of its placeholders. `None` if its matches are not put back.
    labels: Vec<Option<Box<str>>>,
}

/// A match in a text of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RedactedSpan {
    /// Offset of the first byte.
    pub(super) start: usize,
    /// Offset after the last byte.
    pub(super) end: usize,
    rule: usize,
    entity: Option<PiiEntity>,
}

/// What takes the place of a match.
pub(super) enum InputReplacement<'r> {
    /// A numbered placeholder with this label.
    Numbered(&'r str),
    /// This text, which is not put back.
    Fixed(&'r str),
}

impl InputRedactions {
    /// Compiles the rules that redact the input. `None` if there are none.
    pub(crate) fn compile(configs: &[RuleConfig], errors: &mut Vec<RuleError>) -> Option<Self> {
        let redacts =
            |config: &RuleConfig| config.applies_to.input && config.effective_action() == Action::Redact;
        let used: BTreeSet<usize> =
            configs.iter().enumerate().filter(|(_, config)| redacts(config)).map(|(at, _)| at).collect();
        let mut found = Vec::new();
        let rules = TextRules::compile(configs, &used, &JudgesByName::new(), &mut found);
        // The same fault may be known from another use of the rule.
        for error in found {
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
        let rules = rules?;
        let labels = configs.iter().map(|config| config.restore.then(|| label(&config.name).into()));
        Some(Self { rules: Arc::new(rules), labels: labels.collect() })
    }

    /// The matches in a text, in order. Matches that overlap count as one.
    pub(super) fn find(&self, text: &str) -> Vec<RedactedSpan> {
        let mut filter = OutputFilter::new(&self.rules);
        let mut ignored = String::new();
        filter.push(text, &mut ignored);
        filter.finish(&mut ignored);
        let mut spans: Vec<RedactedSpan> = Vec::new();
        for MatchSpan { start, rule, end, entity } in filter.take_replaced() {
            match spans.last_mut() {
                Some(last) if start < last.end => last.end = last.end.max(end),
                _ => spans.push(RedactedSpan { start, end, rule, entity }),
            }
        }
        spans
    }

    /// What takes the place of a match.
    pub(super) fn replacement(&self, span: &RedactedSpan) -> InputReplacement<'_> {
        match self.labels.get(span.rule).and_then(Option::as_deref) {
            Some(label) => InputReplacement::Numbered(span.entity.map_or(label, |entity| entity.label())),
            None => InputReplacement::Fixed(self.rules.replacement(span.rule, span.entity)),
        }
    }
}

/// The label of the placeholders of a rule: its name in capital letters, digits and `_`.
fn label(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(letter).collect()
}
