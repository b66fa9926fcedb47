//! The step loop: plan → forward → sample → commit. It covers sampling, stops, log-probabilities, and the text that
//! may be delivered. Must not know: HTTP, keys, limits or money, or how a model computes.
//!
//! [`EmbeddedEngine`] runs the loop on its own thread. [`Stepper`] is the same loop for callers that run each step
//! themselves: tests, simulations, capacity planning.
//!
//! A choice's `ids` are all generated ids, including the stop token that ended it (as in vLLM's `return_token_ids`).
//! The text of a stop token or stop string is not delivered. With a stop string, the last id is the one that
//! completed the string.

#[cfg(test)]
mod any_ids;
mod choice_grammar;
mod config;
mod embedded;
mod intake;
mod job;
mod logprobs;
mod masks;
mod random;
mod reasoning;
mod restarts;
mod sampler;
mod stepper;
mod text;
mod times;
mod work_meter;

pub use config::{EngineConfig, EngineError, MAX_LOGPROBS};
pub use embedded::EmbeddedEngine;
pub use masks::{MaskRunner, MaskTask};
pub use stepper::{Progress, Stepper};
pub use text::{Decode, TextOf, TokenizerText};
