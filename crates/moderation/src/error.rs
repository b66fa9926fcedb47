//! What is wrong with a list of rules: all of it at once, each with the rule's name.

use std::fmt;

/// What is wrong with one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    /// Its name, or its place in the list if that is what is wrong.
    pub rule: String,
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "moderation rule `{}`: `{}` {}", self.rule, self.field, self.why)
    }
}

/// Everything that is wrong with a list of rules.
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
