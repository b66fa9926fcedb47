//! Idempotency keys of ended calls: kept with their answers for a day, or freed. Does not know how a call ended.

use std::sync::Arc;

use headrace_domain::{NanoDollars, ProjectId, UnixNanos};

use crate::command::{SettleOutcome, StoredAnswer};
use crate::core::LedgerCore;
use crate::state::{FinishedAnswer, HeldFunds, LedgerState, MAX_ANSWERS_BYTES};
use crate::transaction::HoldSettled;

fn answer_size(answer: &StoredAnswer) -> usize {
    answer.body.len() + answer.content_type.len()
}

impl LedgerCore {
    /// Returns whether a call of the project claimed this key. It may have ended since, or expired.
    pub fn knows_key(&self, project: &ProjectId, key: &str) -> bool {
        self.state.projects.get(project).is_some_and(|project| project.keys.contains_key(key))
    }
}

impl LedgerState {
    /// Frees or keeps the idempotency key of a settled call.
    pub(crate) fn settle_key(&mut self, settled: &HoldSettled, held: &HeldFunds, until: UnixNanos) {
        let Some((key, _)) = &held.claim else { return };
        if !keeps_key(settled) {
            return self.free_key(held);
        }
        let finished = FinishedAnswer { until, answer: settled.answer.clone() };
        if let Some(project) = self.projects.name(held.project).cloned() {
            self.finish_key(&project, key, finished);
        }
    }

    /// Marks a claimed key as finished.
    pub(crate) fn finish_key(&mut self, project: &ProjectId, name: &Arc<str>, finished: FinishedAnswer) {
        let Some(key) = self.projects.get_mut(project).and_then(|p| p.keys.get_mut(name)) else { return };
        self.finished.push_back((finished.until, project.clone(), Arc::clone(name)));
        if let Some(answer) = &finished.answer {
            self.kept.push_back((project.clone(), Arc::clone(name)));
            self.answers_bytes += answer_size(answer);
        }
        key.finished = Some(finished);
        while self.answers_bytes > MAX_ANSWERS_BYTES {
            let Some((project, name)) = self.kept.pop_front() else { return };
            let key = self.projects.get_mut(&project).and_then(|p| p.keys.get_mut(&name));
            if let Some(answer) = key.and_then(|k| k.finished.as_mut()).and_then(|f| f.answer.take()) {
                self.answers_bytes -= answer_size(&answer);
            }
        }
    }

    pub(crate) fn free_key(&mut self, held: &HeldFunds) {
        if let (Some((key, _)), Some(project)) = (&held.claim, self.projects.at_mut(held.project)) {
            project.keys.remove(key);
        }
    }

    /// Removes the keys whose lifetime is over. From that time on they count as free, even before they are removed.
    pub(crate) fn forget_keys(&mut self, now: UnixNanos) {
        while self.finished.front().is_some_and(|(until, ..)| *until <= now) {
            let Some((_, project, name)) = self.finished.pop_front() else { return };
            let key = self.projects.get_mut(&project).and_then(|p| p.keys.remove(&name));
            if let Some(answer) = key.and_then(|k| k.finished).and_then(|f| f.answer) {
                // Both queues have the same order, so this key is the oldest one with an answer.
                self.kept.pop_front();
                self.answers_bytes -= answer_size(&answer);
            }
        }
    }
}

/// Whether the idempotency key of a settled call stays taken. Otherwise it is free for another try.
fn keeps_key(settled: &HoldSettled) -> bool {
    match settled.outcome {
        SettleOutcome::Completed => true,
        // The call was charged, so it must not run again.
        SettleOutcome::Cancelled => settled.charged > NanoDollars::ZERO,
        SettleOutcome::Failed => false,
    }
}
