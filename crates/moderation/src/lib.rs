//! Decides whether a text may pass: a list of rules, and the [`Judge`] trait for other kinds of judges. Knows text
//! only, not who wrote it or what happens to the request. A verdict never repeats the text that it matched.

mod classifier;
mod classifier_rules;
mod compile;
mod config;
mod error;
mod fold;
mod judge_rules;
mod look_alike;
mod output;
mod phrases;
mod pii;
mod restore;
#[cfg(test)]
mod restore_tests;
mod rule_description;
mod rules;
mod seam;
mod verdict;

pub use classifier::ContentLabel;
pub use config::{Action, AppliesTo, JudgeMode, LabelThreshold, RuleConfig, RuleKind, limits};
pub use error::{RuleError, RulesError};
pub use judge_rules::{
    JudgeAnswer, JudgeFailure, JudgeFuture, JudgeRule, JudgedPassage, JudgedText, JudgesByName, PassageJudge,
    PassageVerdicts, WithoutVerdict,
};
pub use output::{
    OutputFilter, OutputRules, PiiRedactor, ScreenedText, TextRules, screen_arguments, screen_text,
};
pub use phrases::Phrases;
pub use pii::PiiEntity;
pub use restore::{InputRedactions, PlaceholderMap, PlaceholderReader, RequestRedactor, RestoredForm};
pub use rule_description::RuleDescription;
pub use rules::Rules;
pub use verdict::{Judge, Verdict};
