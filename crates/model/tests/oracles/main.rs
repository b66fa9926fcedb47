//! Compares models with reference answers (transformers, float32, the same stored weights). Also checks for identical
//! bits with any chunking of a sequence, any batch and any number of threads. Every instruction set is exercised.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../../kernels/tests/common/mod.rs"]
mod common;

mod answers;
mod batches;
mod gguf;
mod refusals;
mod support;
mod weights;
