//! The step loop: plan → forward → sample → commit. Sampling, stops, log-probabilities, and the text that may be
//! delivered. Knows nothing of HTTP, keys, limits or money, and nothing of how a model computes.
//!
//! [`EmbeddedEngine`] runs the loop on a thread of its own; [`Stepper`] is the same loop for callers that turn it
//! themselves: tests, simulations, capacity planning.
//!
//! What a choice's `ids` hold: every generated id, the stop token that ended it included (as vLLM's
//! `return_token_ids`); the text of a stop token or stop string is not delivered. With a stop string the id that
//! completed it is the last one.

#[cfg(test)]
mod any_ids;
mod around;
mod config;
mod embedded;
mod held;
mod intake;
mod job;
mod logprobs;
mod masks;
mod random;
mod restarts;
mod sampler;
mod stepper;
mod text;
mod thought;
mod times;

pub use config::{EngineConfig, EngineError, MAX_LOGPROBS};
pub use embedded::EmbeddedEngine;
pub use masks::{MaskRunner, MaskTask};
pub use stepper::{Progress, Stepper};
pub use text::{Decode, TextOf, TokenizerText};
