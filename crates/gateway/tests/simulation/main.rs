//! The call task in seeded worlds of virtual time: clients of every kind, an engine and a disk that fail realistically,
//! clocks that step, panics, drains. After each world the ledger must be right. `HEADRACE_SEEDS=n` runs more seeds; a
//! failure prints its seed, and `HEADRACE_SEED=n` runs that one alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod engine;
mod seen;
mod twins;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of seeds without `HEADRACE_SEEDS`.
const SEEDS: u64 = 4_000;
/// The same for twins.
const TWIN_SEEDS: u64 = 500;

fn seeds(usual: u64) -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match number("HEADRACE_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("HEADRACE_SEEDS").unwrap_or(usual)).collect(),
    }
}

#[test]
fn twins_with_one_key_run_once_whatever_happens_to_their_process() {
    world::quiet_panics();
    let seeds = seeds(TWIN_SEEDS);
    let mut seen = twins::SeenTwins::default();
    for &seed in &seeds {
        match catch_unwind(AssertUnwindSafe(|| twins::run(seed))) {
            Ok(run) => seen.add(&run),
            Err(_) => panic!("seed {seed} failed (HEADRACE_SEED={seed} runs it alone)"),
        }
    }
    if seeds.len() as u64 >= TWIN_SEEDS {
        seen.check();
    }
    println!("{seen:?}");
}

#[test]
fn whatever_happens_to_calls_every_hold_ends_once_and_every_call_is_answered_and_traced() {
    world::quiet_panics();
    let seeds = seeds(SEEDS);
    let mut seen = seen::Seen::default();
    for &seed in &seeds {
        match catch_unwind(AssertUnwindSafe(|| world::run(seed))) {
            Ok(run) => seen.add(&run),
            Err(_) => panic!("seed {seed} failed (HEADRACE_SEED={seed} runs it alone)"),
        }
    }
    if seeds.len() as u64 >= SEEDS {
        seen.check();
    }
    println!("{seen:?}");
}
