//! The rules on one kind of text of an answer, compiled. Must not know the text.

use std::collections::BTreeSet;

use super::patterns::{OutputPattern, PatternUse};
use super::words::{RuleWord, WordSet};
use crate::classifier_rules::ClassifierRules;
use crate::compile::masked_forms;
use crate::error::error;
use crate::judge_rules::{JudgeRule, JudgesByName};
use crate::pii::{self, PiiEntity};
use crate::{Action, RuleConfig, RuleError, RuleKind, fold};

/// What replaces a match of a rule that names no other text.
const REDACTED: &str = "<REDACTED>";

/// See the top of the file.
#[derive(Debug)]
pub struct TextRules {
    /// The action of every rule in the list, and the text that replaces its matches.
    actions: Vec<(Action, Option<Box<str>>)>,
    /// One automaton, or none.
    words: Vec<WordSet>,
    /// Words of other scripts with their look-alike letters replaced: one automaton, or none.
    masked: Vec<WordSet>,
    patterns: Vec<OutputPattern>,
    classifier: ClassifierRules,
    judges: Vec<JudgeRule>,
    sees_beyond_ascii: bool,
    /// The ASCII characters that a match of a rule that acts may start with.
    first: [bool; 128],
}

impl TextRules {
    /// Compiles the rules that are in `used`, by index. `None` if there are none.
    pub(crate) fn compile(
        configs: &[RuleConfig],
        used: &BTreeSet<usize>,
        judges: &JudgesByName,
        errors: &mut Vec<RuleError>,
    ) -> Option<Self> {
        if used.is_empty() {
            return None;
        }
        let (mut words, mut masked, mut patterns) = (Vec::new(), Vec::new(), Vec::new());
        for (rule, config) in configs.iter().enumerate().filter(|(rule, _)| used.contains(rule)) {
            let action = config.effective_action();
            let acts = action != Action::Flag;
            let pattern_use = PatternUse { rule, acts, blocks: action == Action::Block };
            match config.kind {
                RuleKind::Classifier | RuleKind::Judge => {}
                RuleKind::Words => {
                    let add = |word| RuleWord { rule, word, whole_word: config.whole_word, acts };
                    for word in &config.words {
                        words.push(add(fold::for_words(word).trim().to_owned()));
                        masked.extend(masked_forms(word).into_iter().map(add));
                    }
                }
                RuleKind::Regex => {
                    let pattern = config.pattern.as_deref().unwrap_or_default();
                    match OutputPattern::compile(pattern_use, pattern, config.window) {
                        Ok(pattern) => patterns.push(pattern),
                        Err((field, why)) => errors.push(error(config, field, why)),
                    }
                }
                RuleKind::Pii => {
                    for recogniser in pii::patterns_of(&config.entities) {
                        match OutputPattern::recogniser(pattern_use, recogniser) {
                            Ok(pattern) => patterns.push(pattern),
                            Err(why) => errors.push(error(config, "entities", why)),
                        }
                    }
                }
            }
        }
        let mut compiled = |words: &[RuleWord]| match WordSet::compile(words) {
            Ok(set) => set.into_iter().collect(),
            Err(why) => {
                errors.push(RuleError { rule: "all of kind words".to_owned(), field: "words", why });
                Vec::new()
            }
        };
        let (words, masked) = (compiled(&words), compiled(&masked));
        let of = |config: &RuleConfig| {
            let replacement = config.replacement.as_deref().map(Into::into);
            (config.effective_action(), replacement)
        };
        let mine = configs.iter().enumerate().filter(|(rule, _)| used.contains(rule));
        let classifier = ClassifierRules::of(mine.clone());
        let judges = JudgeRule::of(mine, judges);
        let acting = || patterns.iter().filter(|pattern| pattern.acts());
        let sees_beyond_ascii = acting().any(OutputPattern::sees_beyond_ascii);
        let first = std::array::from_fn(|byte| {
            acting().any(|pattern| u8::try_from(byte).is_ok_and(|byte| pattern.may_start_with(byte)))
        });
        Some(Self {
            actions: configs.iter().map(of).collect(),
            words,
            masked,
            patterns,
            classifier,
            judges,
            sees_beyond_ascii,
            first,
        })
    }

    pub(super) fn words(&self) -> &[WordSet] {
        &self.words
    }

    pub(super) fn masked(&self) -> &[WordSet] {
        &self.masked
    }

    pub(super) fn patterns(&self) -> &[OutputPattern] {
        &self.patterns
    }

    pub(super) const fn classifier(&self) -> &ClassifierRules {
        &self.classifier
    }

    /// The rules that ask judges on other servers.
    pub fn judges(&self) -> &[JudgeRule] {
        &self.judges
    }

    /// Whether some rule judges passages.
    pub(super) fn has_passages(&self) -> bool {
        !self.classifier.is_empty() || self.waits()
    }

    /// Whether a passage is held back until it is judged.
    pub(super) fn holds_passages(&self) -> bool {
        self.classifier.acts() || self.waits()
    }

    /// Whether some rule waits for a judge on another server.
    pub(super) fn waits(&self) -> bool {
        self.judges.iter().any(|judge| judge.waits)
    }

    /// Whether a match of a rule that acts may contain characters that are not ASCII.
    pub(super) const fn sees_beyond_ascii(&self) -> bool {
        self.sees_beyond_ascii
    }

    /// Whether a character that may still compose with what follows may be the start of a match of a rule that acts.
    pub(super) fn may_start_with(&self, undecided: &str) -> bool {
        let is_first = |byte: &u8| self.first.get(usize::from(*byte)).copied().unwrap_or(true);
        self.sees_beyond_ascii || undecided.as_bytes().iter().any(is_first)
    }

    /// What a rule does.
    pub(super) fn action(&self, rule: usize) -> Action {
        self.actions.get(rule).map_or(Action::Flag, |(action, _)| *action)
    }

    /// The text that replaces a match.
    pub(crate) fn replacement(&self, rule: usize, entity: Option<PiiEntity>) -> &str {
        let named = self.actions.get(rule).and_then(|(_, replacement)| replacement.as_deref());
        named.unwrap_or_else(|| entity.map_or(REDACTED, PiiEntity::placeholder))
    }
}
