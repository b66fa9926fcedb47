//! Converts between words and tokens. Knows neither words nor a server.

use serde::Serialize;

/// The weight of words for the server's tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenizerGauge {
    /// Mean tokens of a word with the space before it.
    pub tokens_per_word: f64,
    /// Tokens of an empty prompt, which the chat template adds.
    pub overhead_tokens: f64,
    /// Source of the values: the server's `usage` or `tokenize`, `given`, or `assumed`.
    pub source: &'static str,
}

impl TokenizerGauge {
    /// English in a usual vocabulary. Used if the server reports no counts.
    pub(crate) const ASSUMED: Self = Self { tokens_per_word: 1.3, overhead_tokens: 0.0, source: "assumed" };

    /// Number of words with about `tokens` tokens, at least one.
    pub(crate) fn words(&self, tokens: f64) -> u64 {
        // A float cast saturates.
        ((tokens / self.tokens_per_word).round() as u64).max(1)
    }

    /// Computes the weight from the server's token counts of two texts, given as (words, tokens). The longer text
    /// starts with the shorter one.
    pub(crate) fn of_two(source: &'static str, short: (u64, u64), long: (u64, u64)) -> Option<Self> {
        let words = long.0.checked_sub(short.0).filter(|words| *words > 0)?;
        let tokens = long.1.checked_sub(short.1).filter(|tokens| *tokens > 0)?;
        let tokens_per_word = tokens as f64 / words as f64;
        let overhead_tokens = (short.1 as f64 - tokens_per_word * short.0 as f64).max(0.0);
        Some(Self { tokens_per_word, overhead_tokens, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_texts_tell_slope_and_overhead() {
        let gauge = TokenizerGauge::of_two("usage", (32, 59), (256, 395)).unwrap();
        assert_eq!((gauge.tokens_per_word, gauge.overhead_tokens), (1.5, 11.0));
        assert_eq!((gauge.words(150.0), gauge.words(0.0), gauge.words(-5.0)), (100, 1, 1));
        for (short, long) in [((32, 59), (32, 59)), ((32, 59), (64, 59)), ((64, 59), (32, 60))] {
            assert_eq!(TokenizerGauge::of_two("usage", short, long), None);
        }
    }
}
