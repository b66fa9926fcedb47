//! Replaces personal data in texts that are recorded. Must not know whose texts they are.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::arguments::screen_text;
use super::text_rules::TextRules;
use crate::{Action, AppliesTo, JudgeMode, JudgesByName, RuleConfig, RuleKind};

/// Recognises every kind of personal data, and replaces it.
#[derive(Debug)]
pub struct PiiRedactor(Arc<TextRules>);

impl PiiRedactor {
    /// Compiles the recognisers.
    ///
    /// # Errors
    /// Why a recogniser cannot be compiled.
    pub fn new() -> Result<Self, String> {
        let rule = RuleConfig {
            name: "pii".to_owned(),
            kind: RuleKind::Pii,
            words: Vec::new(),
            whole_word: false,
            pattern: None,
            window: None,
            entities: Vec::new(),
            labels: Vec::new(),
            threshold: None,
            judge: None,
            mode: JudgeMode::Sync,
            action: Action::Redact,
            replacement: None,
            restore: false,
            applies_to: AppliesTo::OUTPUT,
            projects: Vec::new(),
            dry_run: false,
            message: None,
        };
        let mut errors = Vec::new();
        let compiled = TextRules::compile(&[rule], &BTreeSet::from([0]), &JudgesByName::new(), &mut errors);
        match (compiled, errors.first()) {
            (Some(rules), None) => Ok(Self(Arc::new(rules))),
            (_, error) => Err(error.map_or_else(String::new, ToString::to_string)),
        }
    }

    /// The text with personal data replaced. `None` if there is none in it.
    pub fn redact(&self, text: &str) -> Option<String> {
        screen_text(&self.0, text).changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn personal_data_is_replaced_and_the_rest_stays() {
        let redactor = PiiRedactor::new().unwrap();
        let redacted = redactor.redact("Write to eva@example.com, card 4111 1111 1111 1111, thanks.");
        assert_eq!(redacted.as_deref(), Some("Write to <EMAIL>, card <CARD>, thanks."));
        assert_eq!(redactor.redact("Nothing to see in 2026."), None);
    }
}
