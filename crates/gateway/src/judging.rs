//! Asks the judges of rules about a text: within their deadlines if the call waits for them, beside the call otherwise. Must
//! not know what the text is.

use std::sync::{Arc, Mutex, PoisonError};

use headrace_domain::{Clock, ContentPlace, ContentVerdict, JudgeUse, RequestId};
use headrace_moderation::{Action, JudgeAnswer, JudgeRule, WithoutVerdict};

/// What judges decided that the call does not wait for, and what all its judges were asked.
#[derive(Debug, Default)]
pub(crate) struct LateVerdicts {
    state: Mutex<LateState>,
}

#[derive(Debug, Default)]
struct LateState {
    noted: JudgeNotes,
    /// A rule that blocks has matched in the answer: its index, and where.
    blocked_by: Option<(usize, ContentPlace)>,
    /// The trace is written.
    is_closed: bool,
}

/// What a trace says about judges.
#[derive(Debug, Default)]
pub(crate) struct JudgeNotes {
    /// The rules that matched, and those without a verdict, each once for each part of the call.
    pub(crate) verdicts: Vec<ContentVerdict>,
    /// One entry for each rule and part of the call.
    pub(crate) uses: Vec<JudgeUse>,
}

impl LateVerdicts {
    /// The rule that ends the answer, by index, and where it matched.
    pub(crate) fn blocked_by(&self) -> Option<(usize, ContentPlace)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).blocked_by
    }

    /// Takes the notes for the trace. Later verdicts are logged.
    pub(crate) fn close(&self) -> JudgeNotes {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = true;
        std::mem::take(&mut state.noted)
    }

    /// Notes a verdict. `ends` is the index of the rule, if it ends the answer.
    fn note(&self, request: RequestId, verdict: ContentVerdict, ends: Option<(usize, ContentPlace)>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            let ContentVerdict { rule, action, .. } = verdict;
            tracing::warn!(%request, rule, action, "a judge answered after the end of the call");
            return;
        }
        if !state.noted.verdicts.contains(&verdict) {
            state.noted.verdicts.push(verdict);
        }
        state.blocked_by = state.blocked_by.or(ends);
    }

    /// Adds a question that has ended.
    fn add(&self, question: JudgeUse) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return;
        }
        match state.noted.uses.iter_mut().find(|known| known.is_like(&question)) {
            Some(known) => known.add(&question),
            None => state.noted.uses.push(question),
        }
    }
}

/// A call whose texts are judged.
#[derive(Clone)]
pub(crate) struct JudgedCall {
    pub(crate) request: RequestId,
    pub(crate) late: Arc<LateVerdicts>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl JudgedCall {
    /// Asks the judges of `rules` about a text, all at once. Returns the rules that the call waited for and that match, by
    /// index, in the order of the list. A judge without a verdict matches if its settings say so.
    pub(crate) async fn ask(&self, rules: &[JudgeRule], text: &str, place: ContentPlace) -> Vec<usize> {
        let mut waited = Vec::new();
        for rule in rules {
            if rule.waits {
                waited.push(async move { (rule, self.question(rule, text.to_owned(), place).await) });
                continue;
            }
            let (call, rule, text) = (self.clone(), rule.clone(), text.to_owned());
            tokio::spawn(async move {
                match call.question(&rule, text, place).await {
                    Ok(false) => {}
                    Ok(true) => call.matched(&rule, place),
                    Err(why) => call.no_verdict(&rule, place, &why),
                }
            });
        }
        let mut matched = Vec::new();
        for (rule, verdict) in futures_util::future::join_all(waited).await {
            match verdict {
                Ok(true) => matched.push(rule.rule),
                Ok(false) => {}
                Err(why) => {
                    self.no_verdict(rule, place, &why);
                    if rule.judge.without_verdict() == WithoutVerdict::Block {
                        matched.push(rule.rule);
                    }
                }
            }
        }
        matched
    }

    /// Asks one judge within its deadline, and notes the question. Returns whether the text is unfit.
    ///
    /// # Errors
    /// Why there is no verdict, for operators.
    async fn question(&self, rule: &JudgeRule, text: String, place: ContentPlace) -> Result<bool, String> {
        let began_ns = self.clock.monotonic_nanos();
        let asked = tokio::time::timeout(rule.judge.deadline(), rule.judge.ask(text)).await;
        let took_ns = self.clock.monotonic_nanos().saturating_sub(began_ns);
        let answer = match asked {
            Ok(answer) => answer.map_err(|failure| failure.to_string()),
            Err(_) => Err("its deadline has passed".to_owned()),
        };
        let is_unfit = matches!(answer, Ok(JudgeAnswer { is_unfit: true, .. }));
        self.late.add(JudgeUse {
            rule: rule.description.name.to_string(),
            judge: rule.description.judge.as_deref().unwrap_or_default().to_owned(),
            place,
            waits: rule.waits,
            passes_without: rule.judge.without_verdict() == WithoutVerdict::Pass,
            questions: 1,
            unfit: is_unfit.into(),
            without_verdict: answer.is_err().into(),
            took_ns,
            longest_ns: took_ns,
            cost: answer.as_ref().ok().and_then(|answer| answer.cost),
        });
        answer.map(|answer| answer.is_unfit)
    }

    fn matched(&self, rule: &JudgeRule, place: ContentPlace) {
        let ends = rule.description.action == Action::Block && place != ContentPlace::Input;
        let ends = ends.then_some((rule.rule, place));
        // A call that has begun is not refused: the match is noted.
        let verdict = match place {
            ContentPlace::Input => rule.description.noted(place),
            _ => rule.description.matched(place),
        };
        self.late.note(self.request, verdict, ends);
    }

    fn no_verdict(&self, rule: &JudgeRule, place: ContentPlace, why: &str) {
        let name = &rule.description.name;
        tracing::warn!(request = %self.request, rule = %name, why, "a judge gave no verdict");
        self.late.note(self.request, rule.description.without_verdict(place), None);
    }
}
