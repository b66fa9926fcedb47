//! What an ended hold used, in all and by the models that did the work. Knows no rules and no counters.

use headrace_domain::{OrgId, TokenClass};

use crate::budget_rule::BudgetMeasure;
use crate::transaction::HoldSettled;

/// What an ended hold used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HoldUse {
    /// Charged nano-dollars.
    pub(crate) dollars: u64,
    /// Charged tokens.
    pub(crate) tokens: u64,
    /// One if the call ran.
    pub(crate) requests: u64,
}

impl HoldUse {
    /// Returns the part of a settled call that one model used: its lines. The money is charged in the order of the lines. A
    /// call without lines counts as a request of the model that it went over to last.
    pub(crate) fn of_model(self, settled: &HoldSettled, model: &str, is_last: bool) -> Self {
        let mut left = self.dollars;
        let mut of_model = Self::default();
        for line in &settled.lines {
            let charged = u64::try_from(line.amount.get()).unwrap_or(0).min(left);
            left -= charged;
            if line.model.as_str() == model {
                of_model.dollars = of_model.dollars.saturating_add(charged);
                let tokens = if line.class == TokenClass::WebSearch { 0 } else { line.tokens };
                // A call that is not charged used no tokens.
                of_model.tokens = of_model.tokens.saturating_add(tokens).min(self.tokens);
                of_model.requests = self.requests;
            }
        }
        if settled.lines.is_empty() && is_last {
            Self { requests: self.requests, ..of_model }
        } else {
            of_model
        }
    }

    pub(crate) const fn of(self, measure: BudgetMeasure) -> u64 {
        match measure {
            BudgetMeasure::Dollars => self.dollars,
            BudgetMeasure::Tokens => self.tokens,
            BudgetMeasure::Requests => self.requests,
        }
    }
}

/// Returns the subject of a model in an organisation: the same model has a counter in each of them.
pub(crate) fn model_subject(org: &OrgId, model: &str) -> String {
    format!("{org}/{model}")
}

/// Returns the model of a subject that [`model_subject`] made. No id of an organisation has a slash.
pub(crate) fn model_of(subject: &str) -> &str {
    subject.split_once('/').map_or(subject, |(_, model)| model)
}
