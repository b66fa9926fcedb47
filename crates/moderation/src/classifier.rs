//! A small classifier of passages: insults, threats, and attempts to take over a model by instructions in its input.
//! Linear over hashed words, pairs of words and character sequences. Its weights are in the program, made by
//! `classifier/training.rs` from texts of `classifier/generator.rs`. Must not know rules or calls.

use serde::{Deserialize, Serialize};

mod features;
#[cfg(test)]
mod generator;
mod passages;
#[cfg(test)]
mod templates;
#[cfg(test)]
mod training;

pub(crate) use passages::{PassageEnd, PassageReader};

use features::{FEATURES, text_features};

/// What a passage may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentLabel {
    /// An insult to a person.
    Insult,
    /// A threat of harm to a person.
    Threat,
    /// An attempt to replace a model's instructions, or to read them.
    PromptInjection,
}

impl ContentLabel {
    /// All labels, in the order of the weights.
    pub const ALL: [Self; 3] = [Self::Insult, Self::Threat, Self::PromptInjection];

    /// The label's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Insult => "insult",
            Self::Threat => "threat",
            Self::PromptInjection => "prompt_injection",
        }
    }
}

/// The probability of each label, by the order of [`ContentLabel::ALL`]. They need not sum to 1.
pub(crate) type LabelScores = [f32; ContentLabel::ALL.len()];

/// For each label: the bias and the value of a weight of 1, as little-endian `f32`. Then for each feature one signed byte
/// per label.
const WEIGHTS: &[u8] = include_bytes!("classifier/weights.bin");

/// Bytes before the weights.
const HEAD_BYTES: usize = ContentLabel::ALL.len() * 8;

/// The linear model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassageClassifier<'w> {
    bias: LabelScores,
    unit: LabelScores,
    weights: &'w [u8],
}

impl PassageClassifier<'static> {
    /// The classifier in the program.
    pub(crate) fn embedded() -> Self {
        Self::parse(WEIGHTS)
    }
}

impl<'w> PassageClassifier<'w> {
    fn parse(bytes: &'w [u8]) -> Self {
        let number = |at: usize| -> f32 {
            let found = bytes.get(at..at.saturating_add(4)).and_then(|bytes| bytes.try_into().ok());
            f32::from_le_bytes(found.unwrap_or_default())
        };
        Self {
            bias: std::array::from_fn(|label| number(label.saturating_mul(8))),
            unit: std::array::from_fn(|label| number(label.saturating_mul(8).saturating_add(4))),
            weights: bytes.get(HEAD_BYTES..).unwrap_or_default(),
        }
    }

    /// Returns the probability of each label for a passage.
    pub(crate) fn scores(&self, passage: &str) -> LabelScores {
        let features = text_features(passage);
        let mut sums = [0_i32; ContentLabel::ALL.len()];
        for feature in &features {
            let at = (feature % FEATURES).saturating_mul(sums.len());
            let weights = self.weights.get(at..at.saturating_add(sums.len())).unwrap_or_default();
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = sum.saturating_add(i32::from(i8::from_le_bytes([*weight])));
            }
        }
        let norm = norm(features.len());
        let of = |label: usize| {
            let [sum, unit, bias] = [
                sums.get(label).map_or(0.0, |sum| *sum as f32),
                self.unit.get(label).copied().unwrap_or_default(),
                self.bias.get(label).copied().unwrap_or_default(),
            ];
            probability(sum * unit * norm + bias)
        };
        std::array::from_fn(of)
    }
}

/// The factor that makes texts of any length comparable.
fn norm(features: usize) -> f32 {
    1.0 / (features.max(1) as f32).sqrt()
}

/// The logistic function. Made of additions, multiplications and divisions alone, so it has the same bits on every machine.
fn probability(score: f32) -> f32 {
    let mut power = 1.0 - score.clamp(-16.0, 16.0) / 1024.0;
    for _ in 0..10 {
        power *= power;
    }
    1.0 / (1.0 + power)
}
