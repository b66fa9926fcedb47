//! What servers that take ids say of an answer, whatever they are: ids, log-probabilities, an end. Knows no bodies.

use headrace_domain::FinishReason;

/// A token's log-probability, and its alternatives, best first.
#[derive(Debug, PartialEq)]
pub(super) struct Score {
    pub(super) chosen: f32,
    pub(super) top: Vec<(u32, f32)>,
}

impl Score {
    /// With the alternatives in order.
    pub(super) fn new(chosen: Option<f32>, mut top: Vec<(u32, f32)>) -> Self {
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // What JSON cannot write comes as nothing: a token that could not be chosen.
        Self { chosen: chosen.unwrap_or(f32::NEG_INFINITY), top }
    }
}

/// What one event of the stream brings, or an answer in one piece.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Piece {
    /// Ids since the last event.
    pub(super) ids: Vec<u32>,
    /// One for each id where asked for, or nothing.
    pub(super) scores: Vec<Score>,
    /// It ends, says the server.
    pub(super) finish: Option<FinishReason>,
    /// Prompt tokens out of the prefix cache.
    pub(super) cached: Option<u64>,
    /// The last event was this one.
    pub(super) done: bool,
    /// Ids were left out that cannot be told: from here on they have to be asked for again.
    pub(super) lost: bool,
}

impl Piece {
    /// # Errors
    /// Where there are not as many log-probabilities as ids.
    pub(super) fn checked(self) -> Result<Self, String> {
        if !self.scores.is_empty() && self.scores.len() != self.ids.len() {
            return Err(format!("{} log-probabilities for {} tokens", self.scores.len(), self.ids.len()));
        }
        Ok(self)
    }

    pub(super) const DONE: Self =
        Self { ids: Vec::new(), scores: Vec::new(), finish: None, cached: None, done: true, lost: false };
}

/// Reads a count of tokens. What is none reads as absent: the answer has its ids, and does not fail for its statistics.
pub(super) fn tokens_of(value: Option<&serde_json::Value>) -> Option<u64> {
    value?.as_u64()
}

/// Why an answer is over, by OpenAI's words for it.
pub(super) fn finish(reason: &str) -> Result<FinishReason, String> {
    match reason {
        "stop" => Ok(FinishReason::Stop),
        "length" | "max_tokens" | "model_length" => Ok(FinishReason::Length),
        other => Err(format!("it ended its answer with `{other}`")),
    }
}

/// What an error within an answer says.
pub(super) fn error_within(error: &serde_json::Value) -> String {
    let message = error.get("message").unwrap_or(error);
    format!("an error within its answer: {}", message.as_str().unwrap_or("without a message"))
}

/// A seed for each choice, within the positive numbers of 63 bits that all take (SplitMix64's finalizer). `generated`: how many ids
/// of it there are already, so that what goes on does not repeat what came before.
pub(super) fn seed(seed: u64, choice: u32, generated: u32) -> u64 {
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
            .flat_map(|choice| [seed(1, choice, 0), seed(1, choice, 7), seed(u64::MAX, choice, 0)])
            .collect();
        assert!(seeds.len() == 300 && seeds.iter().all(|seed| *seed <= i64::MAX as u64));
    }
}
