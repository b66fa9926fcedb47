//! Tests of the engine on a scripted model: its answers, their independence from everything else, and its thread.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod ahead;
mod answers;
mod contained;
mod continues;
mod forms;
mod late_forms;
mod prefixes;
mod readers;
mod same_answers;
mod support;
mod thoughts;
mod thread;
mod waits;
