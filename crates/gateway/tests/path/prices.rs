//! Calls by price sheets with classes of their own: what the caller is charged, what is held, what others charge for them.

use headrace_domain::{Dialect, PriceTier};
use serde_json::json;

use super::told::{answer_of, chat, priced_world, server, spent, whole};
use super::world::read;

/// $1, $0.10, $1.25 and $2 a million of the prompt, $4 of the answer and $8 of its reasoning; twice that for what goes first,
/// and above a thousand prompt tokens.
const SHEET: &str = r#"[
    {"model": "far", "input": 1000000000, "cached_input": 100000000, "cache_write": 1250000000,
        "cache_write_1h": 2000000000, "output": 4000000000, "reasoning": 8000000000},
    {"model": "far", "tier": "priority", "input": 2000000000, "output": 8000000000},
    {"model": "far", "above": 1000, "input": 3000000000, "output": 8000000000}
]"#;

#[tokio::test]
async fn each_class_of_tokens_has_its_price() {
    let answer = |tier: &str, prompt: u64, completion: u64| {
        let mut answer = answer_of("Hi");
        answer["service_tier"] = json!(tier);
        answer["usage"] = json!({"prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3}});
        answer
    };
    let rows = [
        // 8 computed, 4 read, 8 written; 2 said, 3 thought.
        ("default", 20, PriceTier::Standard, 8_000 + 400 + 10_000 + 8_000 + 24_000),
        // All at the prices of what goes first.
        ("priority", 20, PriceTier::Priority, 20 * 2_000 + 5 * 8_000),
        // A class without prices of its own.
        ("scale", 20, PriceTier::Standard, 8_000 + 400 + 10_000 + 8_000 + 24_000),
    ];
    for (tier, prompt, priced, cost) in rows {
        let world =
            priced_world(&[server("gpu", Dialect::OpenAi, vec![whole(&answer(tier, prompt, 5))])], SHEET);
        assert!(read(chat(&world, false, &json!({})).await).await.contains("Hi"));
        assert_eq!(spent(world.balance_when_idle().await), cost, "{tier}");
        let record = world.last_trace();
        assert_eq!((record.cost.get(), record.price_tier, record.loss.get()), (cost, priced, 0), "{tier}");
    }
}

#[tokio::test]
async fn a_long_prompt_is_held_for_and_charged_at_its_own_prices() {
    let mut answer = answer_of("Hi");
    answer["usage"] = json!({"prompt_tokens": 1_001, "completion_tokens": 5, "total_tokens": 1_006});
    let world = priced_world(&[server("gpu", Dialect::OpenAi, vec![whole(&answer)])], SHEET);
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(1_200)}]});
    assert!(read(chat(&world, false, &long).await).await.contains("Hi"));
    assert_eq!(spent(world.balance_when_idle().await), 1_001 * 3_000 + 5 * 8_000);
    let record = world.last_trace();
    assert_eq!(record.loss.get(), 0);
    assert!(record.held >= record.cost, "{} of {}", record.cost, record.held);
}
