//! The errors in a list of rules: all of them at once, each with the rule's name.

use std::fmt;

use crate::RuleConfig;

/// An error in one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// The rule's name, or its position in the list if the name is invalid.
    pub rule: String,
    /// The invalid field.
    pub field: &'static str,
    /// What is wrong with the field.
    pub why: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "moderation rule `{}`: `{}` {}", self.rule, self.field, self.why)
    }
}

/// All errors in a list of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesError(pub Vec<RuleError>);

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("; ")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for RulesError {}

/// An error in a field of a rule.
pub(crate) fn error(config: &RuleConfig, field: &'static str, why: String) -> RuleError {
    RuleError { rule: config.name.clone(), field, why }
}
