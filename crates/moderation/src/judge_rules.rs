//! The rules of a list that ask judges on other servers, and the verdicts of these judges on the passages of an answer. Must
//! not know how a judge is asked.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headrace_domain::NanoDollars;

use crate::classifier::PassageEnd;
use crate::config::JudgeMode;
use crate::{Action, RuleConfig, RuleDescription, RuleKind};

/// The answer of a judge, or why there is none.
pub type JudgeFuture = Pin<Box<dyn Future<Output = Result<JudgeAnswer, JudgeFailure>> + Send>>;

/// What a judge answers about a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgeAnswer {
    /// The text is unfit.
    pub is_unfit: bool,
    /// What the answer costs the operator. `None` if it is unknown.
    pub cost: Option<NanoDollars>,
}

impl From<bool> for JudgeAnswer {
    /// An answer of unknown cost.
    fn from(is_unfit: bool) -> Self {
        Self { is_unfit, cost: None }
    }
}

/// Why a judge gave no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgeFailure {
    /// For people, without the text that was to be judged.
    pub why: String,
}

impl fmt::Display for JudgeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// What happens to a text whose judge gives no verdict in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WithoutVerdict {
    /// The text counts as unfit.
    #[default]
    Block,
    /// The text may pass.
    Pass,
}

/// A judge on another server.
pub trait PassageJudge: fmt::Debug + Send + Sync {
    /// Asks about a text. The future may be dropped at any time.
    fn ask(&self, text: String) -> JudgeFuture;

    /// The longest time that a call waits for a verdict.
    fn deadline(&self) -> Duration;

    /// What happens to a text without a verdict.
    fn without_verdict(&self) -> WithoutVerdict;
}

/// Judges by name.
pub type JudgesByName = BTreeMap<String, Arc<dyn PassageJudge>>;

/// A rule that asks a judge.
#[derive(Debug, Clone)]
pub struct JudgeRule {
    /// The index in the list.
    pub rule: usize,
    /// What the rule is and does.
    pub description: RuleDescription,
    /// The judge.
    pub judge: Arc<dyn PassageJudge>,
    /// The call waits for the verdict. Never set for a rule that only flags.
    pub waits: bool,
}

impl JudgeRule {
    /// The rules of kind `judge`, each with its index in the list. A rule that names an unknown judge is left out.
    pub(crate) fn of<'c>(
        configs: impl Iterator<Item = (usize, &'c RuleConfig)>,
        judges: &JudgesByName,
    ) -> Vec<Self> {
        let judged = configs.filter(|(_, config)| config.kind == RuleKind::Judge);
        let of = |(rule, config): (usize, &RuleConfig)| {
            let description = RuleDescription::of(config);
            let waits = description.action != Action::Flag && config.mode == JudgeMode::Sync;
            let judge = Arc::clone(judges.get(config.judge.as_deref()?)?);
            Some(Self { rule, description, judge, waits })
        };
        judged.filter_map(of).collect()
    }
}

/// A passage of an answer, as a judge sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JudgedPassage {
    /// The end of the text before the passage, and the passage.
    pub text: String,
    /// Bytes of `text` before the passage.
    pub context_bytes: usize,
}

impl JudgedPassage {
    /// A text without other text before it.
    pub const fn alone(text: String) -> Self {
        Self { text, context_bytes: 0 }
    }

    pub(crate) fn of(end: &PassageEnd<'_>) -> Self {
        let text = end.with_context.unwrap_or(end.passage);
        Self { text: text.to_owned(), context_bytes: text.len().saturating_sub(end.passage.len()) }
    }
}

/// The verdicts on the passages of an answer that are known before a filter reads them.
#[derive(Debug, Default)]
pub struct PassageVerdicts {
    matched: Mutex<HashMap<JudgedPassage, Vec<usize>>>,
}

impl PassageVerdicts {
    /// Notes the rules that match a passage, by index.
    pub fn set(&self, passage: JudgedPassage, rules: Vec<usize>) {
        self.matched.lock().unwrap_or_else(PoisonError::into_inner).insert(passage, rules);
    }

    /// Returns whether a passage was judged.
    pub fn has(&self, passage: &JudgedPassage) -> bool {
        self.matched.lock().unwrap_or_else(PoisonError::into_inner).contains_key(passage)
    }

    /// The rules that match a passage. `None` if it was not judged.
    pub(crate) fn of(&self, end: &PassageEnd<'_>) -> Option<Vec<usize>> {
        let matched = self.matched.lock().unwrap_or_else(PoisonError::into_inner);
        matched.get(&JudgedPassage::of(end)).cloned()
    }
}

/// Divides a text of an answer into the passages that judges are asked about, as an
/// [`OutputFilter`](crate::OutputFilter) of the same text does.
#[derive(Debug, Clone, Default)]
pub struct JudgedText {
    reader: crate::classifier::PassageReader,
    end: usize,
}

impl JudgedText {
    /// Takes the next piece, and adds the passages that ended with it.
    pub fn push(&mut self, piece: &str, ended: &mut Vec<JudgedPassage>) {
        let start = self.end;
        for (at, c) in piece.char_indices() {
            let end = start.saturating_add(at).saturating_add(c.len_utf8());
            self.reader.push(c, end, &mut |end| ended.push(JudgedPassage::of(&end)));
        }
        self.end = start.saturating_add(piece.len());
    }

    /// Takes the end of the text.
    pub fn finish(&mut self, ended: &mut Vec<JudgedPassage>) {
        self.reader.finish(&mut |end| ended.push(JudgedPassage::of(&end)));
    }
}
