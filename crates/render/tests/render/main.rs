//! What the crate's functions return, and which field they refuse: for models that take tokens (conversations, raw
//! prompts, what constrains and what reuses answers) and for encoders. A body for another provider's server is not
//! rendered here. Tokenizers and templates are those of checkpoints, and calls are read from bodies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod encoders;
mod history;
mod models;
mod prompts;
mod raw_prompts;
