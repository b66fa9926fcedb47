//! LongRoPE through the engine: a request that may pass the original context is computed with the second list of factors
//! from its first token on, and shares no keys and values with requests that are computed with the first one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "engine/directories.rs"]
mod directories;
#[allow(dead_code, reason = "shared with the other test binary, which uses more of it")]
#[path = "engine/support.rs"]
mod support;

use std::sync::Arc;

use headrace_domain::{BLOCK_TOKENS, PrefixKeys};
use headrace_kernels::isa::{ISA_VARIABLE, Isa};
use headrace_model::{LoadOptions, Model};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::ToyVocabulary;
use serde_json::Value;
use support::{Bench, greedy, job};

/// The model's original context.
const ORIGINAL: usize = 96;

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32).collect()
}

#[test]
fn the_factors_of_longrope_are_chosen_for_each_request() {
    let dir = directories::data().join("phi3-longrope");
    let expected: Value = serde_json::from_slice(&std::fs::read(dir.join("expected.json")).unwrap()).unwrap();
    let crossing = &expected["crossing"];
    let [ids, long, short] = ["ids", "greedy_long", "greedy_short"].map(|name| numbers(&crossing[name]));
    let checkpoint = directories::open(&dir).unwrap();
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref()).unwrap();
    let options = LoadOptions { max_positions: Some(256), ..LoadOptions::exact(isa, 2, 200) };
    let model = Model::load(&checkpoint, options, &mut |_, _| {}).unwrap();
    let scheduler = SchedulerConfig { context_window: 256, ..SchedulerConfig::default() };
    let mut bench = Bench::new(Box::new(model), Arc::new(ToyVocabulary), &[], scheduler);
    let fits = ORIGINAL - ids.len();
    // Each request twice, in turn, so that one could find the other's blocks.
    for round in 0..2 {
        for (max_tokens, expected) in
            [(long.len(), &long[..]), (fits, &short[..fits]), (fits + 1, &long[..fits + 1])]
        {
            let (answer, report) = bench.ask(job(&ids, greedy(max_tokens as u32)));
            assert_eq!(answer.choices[&0].ids, expected, "{max_tokens} new tokens, round {round}");
            // A gateway that knows the engine's capabilities alone computes the keys that the engine uses.
            let asked = job(&ids, greedy(max_tokens as u32));
            let capabilities = bench.stepper.capabilities();
            let known = capabilities.block_salt(&asked.salt, ids.len(), max_tokens as u32);
            assert_eq!(known != asked.salt, max_tokens > fits, "{max_tokens} new tokens");
            let full = ids.len() / BLOCK_TOKENS * BLOCK_TOKENS;
            let found = bench.stepper.cached_prefix(&PrefixKeys::of(&known, &asked.prompt));
            assert_eq!(found, full, "{max_tokens} new tokens, round {round}");
            let cached = report.usage.cached_input;
            assert_eq!(
                cached > 0,
                round > 0 || max_tokens == fits + 1,
                "{max_tokens}, round {round}: {cached}"
            );
        }
    }
}
