//! Whether a text may pass: one list of rules, and the [`Judge`] seam that other judges stand behind too.
//! Knows text only: not who wrote it, nor what becomes of a request. A verdict never repeats what it matched.

mod config;
mod error;
mod fold;
mod look_alike;
mod phrases;
mod rules;
mod seam;
mod verdict;

pub use config::{Action, AppliesTo, RuleConfig, RuleKind, limits};
pub use error::{RuleError, RulesError};
pub use phrases::Phrases;
pub use rules::Rules;
pub use verdict::{Judge, Verdict};
