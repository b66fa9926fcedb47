//! How the next token is chosen: the caller's parameters, the model's recommendation, and the two resolved. `wire`
//! checks the values when they arrive. This module only merges them.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// The seed of a call's random choices. Each random number is a function of (seed, choice, position).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

/// The caller's parameters. `None` if the caller did not set one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SamplingRequest {
    /// 0 (greedy) to 2.
    pub temperature: Option<f32>,
    /// Above 0, to 1.
    pub top_p: Option<f32>,
    /// Keeps the k likeliest tokens. `Some(None)` switches a model's default off.
    pub top_k: Option<Option<NonZeroU32>>,
    /// 0 to 1. Keeps tokens at least this likely, relative to the likeliest.
    pub min_p: Option<f32>,
    /// −2 to 2, multiplied by the token's count in the output so far.
    pub frequency_penalty: Option<f32>,
    /// −2 to 2, applied once to each token that is already in the output.
    pub presence_penalty: Option<f32>,
    /// Above 0, to 2. Divides positive and multiplies negative logits of tokens seen in the prompt or the output.
    pub repetition_penalty: Option<f32>,
    /// Token id and bias (−100 to 100), ascending by id.
    pub logit_bias: Vec<(u32, f32)>,
    /// The caller's seed.
    pub seed: Option<u64>,
    /// Maximum number of tokens to generate, at least 1 (0 only to score a prompt).
    pub max_tokens: Option<u32>,
    /// Number of tokens before which no stop applies.
    pub min_tokens: u32,
    /// Stop strings. The text from the match on is not delivered.
    pub stop: Vec<String>,
    /// Stop token ids in addition to the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's end-of-text tokens are treated as ordinary tokens.
    pub ignore_eos: bool,
    /// Number of independent answers, at least 1.
    pub n: u32,
    /// Number of alternatives reported with each generated token, 0 to 20. 0 reports only the chosen token's
    /// log-probability.
    pub logprobs: Option<u8>,
    /// Number of alternatives reported with each prompt token, likewise.
    pub prompt_logprobs: Option<u8>,
}

/// The recommendation in a model's `generation_config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SamplingDefaults {
    /// As in [`SamplingRequest`].
    pub temperature: Option<f32>,
    /// As in [`SamplingRequest`].
    pub top_p: Option<f32>,
    /// As in [`SamplingRequest`].
    pub top_k: Option<NonZeroU32>,
    /// As in [`SamplingRequest`].
    pub min_p: Option<f32>,
    /// As in [`SamplingRequest`].
    pub repetition_penalty: Option<f32>,
}

/// How each next token is chosen, with every parameter resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
    /// `None` keeps all.
    pub top_k: Option<NonZeroU32>,
    /// 0 keeps all.
    pub min_p: f32,
    /// 0 changes nothing.
    pub frequency_penalty: f32,
    /// 0 changes nothing.
    pub presence_penalty: f32,
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// Token id and bias, ascending by id.
    pub logit_bias: Vec<(u32, f32)>,
    /// The caller's seed or a random one.
    pub seed: Seed,
    /// Maximum number of tokens to generate.
    pub max_tokens: u32,
    /// Number of tokens before which no stop applies.
    pub min_tokens: u32,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Stop token ids in addition to the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's end-of-text tokens are treated as ordinary tokens.
    pub ignore_eos: bool,
    /// Number of independent answers.
    pub n: u32,
    /// Number of alternatives reported with each generated token. `None` reports no log-probabilities.
    pub logprobs: Option<u8>,
    /// Number of alternatives reported with each prompt token. `None` does not score the prompt.
    pub prompt_logprobs: Option<u8>,
}

impl SamplingRequest {
    /// Resolves every parameter: the caller's value first, then the model's recommendation, then the neutral value.
    /// `drawn_seed` is used if the caller sent no seed.
    pub fn resolve(&self, defaults: &SamplingDefaults, max_tokens: u32, drawn_seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature.or(defaults.temperature).unwrap_or(1.0),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
            logit_bias: self.logit_bias.clone(),
            seed: Seed(self.seed.unwrap_or(drawn_seed)),
            max_tokens,
            min_tokens: self.min_tokens,
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            ignore_eos: self.ignore_eos,
            n: self.n.max(1),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
        }
    }
}

impl Default for Sampling {
    /// Greedy, with one answer of at most 16 tokens.
    fn default() -> Self {
        let greedy = SamplingDefaults { temperature: Some(0.0), ..SamplingDefaults::default() };
        SamplingRequest::default().resolve(&greedy, 16, 0)
    }
}
