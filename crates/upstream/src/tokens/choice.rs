//! One answer in progress: turns its ids into deliverable text and ends it by our own rules. Must not know a server.

use std::sync::Arc;

use headrace_domain::{FinishReason, Sampling};
use headrace_tokenizer::{StopMatcher, TextDecoder};

use crate::tokens::model::TokenModelSpec;

/// Settings that all choices of a job share.
#[derive(Debug)]
pub(super) struct ChoiceRules {
    pub(super) sampling: Sampling,
    /// Ids that end a choice.
    pub(super) stop_ids: Vec<u32>,
    /// Maximum number of ids per choice: `max_tokens`, or what the context window leaves.
    pub(super) limit: u32,
}

/// One answer.
#[derive(Debug)]
pub(super) struct TokenChoice {
    pub(super) number: u32,
    generated: u32,
    ended: bool,
    decoder: TextDecoder,
    stops: StopMatcher,
}

impl ChoiceRules {
    pub(super) fn new(sampling: Sampling, model: &TokenModelSpec, prompt: usize) -> Self {
        let mut stop_ids = sampling.stop_token_ids.clone();
        if !sampling.ignore_eos {
            stop_ids.extend_from_slice(&model.eos);
        }
        let left = model.context_window.saturating_sub(u32::try_from(prompt).unwrap_or(u32::MAX));
        let limit = sampling.max_tokens.min(left);
        Self { sampling, stop_ids, limit }
    }
}

impl TokenChoice {
    pub(super) fn new(number: u32, rules: &ChoiceRules, model: &TokenModelSpec) -> Self {
        let decoder = Arc::clone(&model.tokenizer).decoder(model.skip_special);
        Self { number, generated: 0, ended: false, decoder, stops: StopMatcher::new(&rules.sampling.stop) }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Replays the ids that another engine generated. Returns the finish reason if the answer ends with them.
    pub(super) fn take_up(&mut self, generated: &[u32], rules: &ChoiceRules) -> Option<FinishReason> {
        let mut told_before = String::new();
        generated.iter().find_map(|id| self.take(*id, rules, &mut told_before))
    }

    /// Adds the next id and its text. As in our own engine, stop strings and stop ids apply only after the first
    /// `min_tokens` ids.
    pub(super) fn take(&mut self, id: u32, rules: &ChoiceRules, text: &mut String) -> Option<FinishReason> {
        self.generated += 1;
        let free = self.generated <= rules.sampling.min_tokens;
        if !free && rules.stop_ids.contains(&id) {
            return Some(self.end(FinishReason::Stop, rules, text));
        }
        let piece = self.decoder.push(id);
        if free {
            text.push_str(&piece);
        } else if let Some(matched) = self.deliver(&piece, rules, text) {
            self.ended = true;
            return Some(matched);
        }
        (self.generated >= rules.limit).then(|| self.end(FinishReason::Length, rules, text))
    }

    /// Ends the answer because the server ended it. Adds the text that was held back, which may complete a stop string.
    pub(super) fn end(
        &mut self,
        reason: FinishReason,
        rules: &ChoiceRules,
        text: &mut String,
    ) -> FinishReason {
        self.ended = true;
        let rest = self.decoder.flush();
        if let Some(matched) = self.deliver(&rest, rules, text) {
            return matched;
        }
        text.push_str(&self.stops.flush());
        reason
    }

    fn deliver(&mut self, piece: &str, rules: &ChoiceRules, text: &mut String) -> Option<FinishReason> {
        let step = self.stops.push(piece);
        text.push_str(&step.deliver);
        let matched = step.matched.and_then(|at| rules.sampling.stop.get(at))?;
        Some(FinishReason::StopString { matched: matched.clone() })
    }
}
