//! Tests of the engine on a scripted model: its answers, their independence from everything else, and its thread.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod cache_groups;
mod cold_speeds;
mod engine_thread;
mod failures;
mod grammars;
mod late_grammars;
mod prefix_cache;
mod reasoning_budget;
mod resumed_answers;
mod same_answers;
mod slow_readers;
mod support;
mod work_ahead;
