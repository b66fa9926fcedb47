//! The content of an answer by ids, for all kinds of servers: ids, log-probabilities, finish reason. Must not know
//! response bodies.

use headrace_domain::FinishReason;

/// A token's log-probability, and its alternatives, best first.
#[derive(Debug, PartialEq)]
pub(super) struct TokenScore {
    pub(super) chosen: f32,
    pub(super) top: Vec<(u32, f32)>,
}

impl TokenScore {
    /// Creates a score and sorts the alternatives.
    pub(super) fn new(chosen: Option<f32>, mut top: Vec<(u32, f32)>) -> Self {
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // JSON cannot express minus infinity, so an impossible token has no value.
        Self { chosen: chosen.unwrap_or(f32::NEG_INFINITY), top }
    }
}

/// The content of one event of a stream, or of an answer in one piece.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TokenPiece {
    /// Ids since the last event.
    pub(super) ids: Vec<u32>,
    /// One score per id if log-probabilities were requested, otherwise empty.
    pub(super) scores: Vec<TokenScore>,
    /// Set if the server ends the answer.
    pub(super) finish: Option<FinishReason>,
    /// Prompt tokens that came from the server's prefix cache.
    pub(super) cached: Option<u64>,
    /// This is the last event.
    pub(super) done: bool,
    /// Some ids are missing and cannot be restored. The answer must be requested again from here on.
    pub(super) lost: bool,
}

impl TokenPiece {
    /// Checks the piece.
    ///
    /// # Errors
    /// The numbers of log-probabilities and ids differ.
    pub(super) fn checked(self) -> Result<Self, String> {
        if !self.scores.is_empty() && self.scores.len() != self.ids.len() {
            return Err(format!("{} log-probabilities for {} tokens", self.scores.len(), self.ids.len()));
        }
        Ok(self)
    }

    pub(super) const DONE: Self =
        Self { ids: Vec::new(), scores: Vec::new(), finish: None, cached: None, done: true, lost: false };
}

/// Parses a token count. An invalid value counts as absent: the answer has its ids and must not fail because of its
/// statistics.
pub(super) fn tokens_of(value: Option<&serde_json::Value>) -> Option<u64> {
    value?.as_u64()
}

/// Parses OpenAI's finish reason.
pub(super) fn finish(reason: &str) -> Result<FinishReason, String> {
    match reason {
        "stop" => Ok(FinishReason::Stop),
        "length" | "max_tokens" | "model_length" => Ok(FinishReason::Length),
        other => Err(format!("it ended its answer with `{other}`")),
    }
}

/// Describes an error that a server sent inside an answer.
pub(super) fn error_within(error: &serde_json::Value) -> String {
    let message = error.get("message").unwrap_or(error);
    format!("an error within its answer: {}", message.as_str().unwrap_or("without a message"))
}

/// Derives a seed for each choice (SplitMix64's finalizer), within the positive 63-bit numbers that all servers accept.
/// `generated` is the number of existing ids, so that a continuation does not repeat random numbers.
pub(super) fn choice_seed(seed: u64, choice: u32, generated: u32) -> u64 {
    let step = u64::from(generated) << 32 | u64::from(choice);
    let mut x = seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_has_a_seed_of_its_own_that_all_take() {
        let seeds: std::collections::BTreeSet<u64> = (0..100)
            .flat_map(|choice| {
                [choice_seed(1, choice, 0), choice_seed(1, choice, 7), choice_seed(u64::MAX, choice, 0)]
            })
            .collect();
        assert!(seeds.len() == 300 && seeds.iter().all(|seed| *seed <= i64::MAX as u64));
    }
}
