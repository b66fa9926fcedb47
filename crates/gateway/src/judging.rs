//! Asks the judges of rules about a text: within their deadlines if the call waits for them, beside the call otherwise. Must
//! not know what the text is.

use std::sync::{Arc, Mutex, PoisonError};

use headrace_domain::{OutputVerdict, RequestId};
use headrace_moderation::{Action, JudgeRule, WithoutVerdict};

/// The word for a judge that gave no verdict in time, in place of an action in traces.
const NO_VERDICT: &str = "no_verdict";

/// Verdicts that a call does not wait for.
#[derive(Debug, Default)]
pub(crate) struct LateVerdicts {
    state: Mutex<LateState>,
}

#[derive(Debug, Default)]
struct LateState {
    /// The rules that matched, by name, each once.
    verdicts: Vec<OutputVerdict>,
    /// A rule that blocks has matched in the answer.
    blocked_by: Option<usize>,
    /// The trace is written.
    is_closed: bool,
}

impl LateVerdicts {
    /// The rule that ends the answer, by index.
    pub(crate) fn blocked_by(&self) -> Option<usize> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).blocked_by
    }

    /// Takes the verdicts for the trace. Later ones are logged.
    pub(crate) fn close(&self) -> Vec<OutputVerdict> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = true;
        std::mem::take(&mut state.verdicts)
    }

    /// Notes a verdict. `ends` is the index of the rule, if it ends the answer.
    fn note(&self, request: RequestId, rule: &JudgeRule, action: &str, ends: Option<usize>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            tracing::warn!(%request, rule = %rule.name, action, "a judge answered after the end of the call");
            return;
        }
        let verdict = OutputVerdict { rule: rule.name.to_string(), action: action.to_owned() };
        if !state.verdicts.contains(&verdict) {
            state.verdicts.push(verdict);
        }
        state.blocked_by = state.blocked_by.or(ends);
    }
}

/// The text of an answer, or of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JudgedSide {
    Input,
    Answer,
}

/// A call whose texts are judged.
#[derive(Debug, Clone)]
pub(crate) struct JudgedCall {
    pub(crate) request: RequestId,
    pub(crate) side: JudgedSide,
    pub(crate) late: Arc<LateVerdicts>,
}

impl JudgedCall {
    /// Asks the judges of `rules` about a text, all at once. Returns the rules that the call waited for and that match, by
    /// index, in the order of the list. A judge without a verdict matches if its settings say so.
    pub(crate) async fn ask(&self, rules: &[JudgeRule], text: &str) -> Vec<usize> {
        let mut waited = Vec::new();
        for rule in rules {
            let asked = rule.judge.ask(text.to_owned());
            if rule.waits {
                waited.push(async move { (rule, tokio::time::timeout(rule.judge.deadline(), asked).await) });
                continue;
            }
            let (call, rule) = (self.clone(), rule.clone());
            tokio::spawn(async move {
                let verdict = tokio::time::timeout(rule.judge.deadline(), asked).await;
                match verdict {
                    Ok(Ok(false)) => {}
                    Ok(Ok(true)) => call.matched(&rule),
                    Ok(Err(failure)) => call.no_verdict(&rule, &failure.to_string()),
                    Err(_) => call.no_verdict(&rule, "its deadline has passed"),
                }
            });
        }
        let mut matched = Vec::new();
        for (rule, verdict) in futures_util::future::join_all(waited).await {
            let why = match verdict {
                Ok(Ok(true)) => {
                    matched.push(rule.rule);
                    continue;
                }
                Ok(Ok(false)) => continue,
                Ok(Err(failure)) => failure.to_string(),
                Err(_) => "its deadline has passed".to_owned(),
            };
            self.no_verdict(rule, &why);
            if rule.judge.without_verdict() == WithoutVerdict::Block {
                matched.push(rule.rule);
            }
        }
        matched
    }

    fn matched(&self, rule: &JudgeRule) {
        let ends = (rule.action == Action::Block && self.side == JudgedSide::Answer).then_some(rule.rule);
        self.late.note(self.request, rule, rule.action.name(), ends);
    }

    fn no_verdict(&self, rule: &JudgeRule, why: &str) {
        tracing::warn!(request = %self.request, rule = %rule.name, why, "a judge gave no verdict");
        self.late.note(self.request, rule, NO_VERDICT, None);
    }
}
