//! Calls under price sheets with separate token classes: what the caller is charged, what is held, what upstreams
//! charge.

use headrace_domain::{AttemptOutcome, Dialect, Endpoint, PriceTier};
use headrace_ledger::prices::{CostConfig, CostList};
use serde_json::json;

use super::scripted_server::{answer_of, chat, head, named, priced_world, server, spent, stream, whole};
use super::world::read;

/// Per million prompt tokens $1, $0.10 cached, $1.25 or $2 written to the cache; $4 per million answer tokens and $8 of
/// reasoning. The priority tier, and prompts above a thousand tokens, have higher prices.
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
        // 8 computed, 4 read from the cache, 8 written to it; 2 of text, 3 of reasoning.
        ("default", 20, PriceTier::Standard, 8_000 + 400 + 10_000 + 8_000 + 24_000),
        // All at the prices of the priority tier.
        ("priority", 20, PriceTier::Priority, 20 * 2_000 + 5 * 8_000),
        // A tier without prices of its own.
        ("scale", 20, PriceTier::Standard, 8_000 + 400 + 10_000 + 8_000 + 24_000),
    ];
    for (tier, prompt, priced, cost) in rows {
        let world = priced_world(
            &[server("gpu", Dialect::OpenAi, vec![whole(&answer(tier, prompt, 5))])],
            SHEET,
            CostList::default(),
        );
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
    let world =
        priced_world(&[server("gpu", Dialect::OpenAi, vec![whole(&answer)])], SHEET, CostList::default());
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(1_200)}]});
    assert!(read(chat(&world, false, &long).await).await.contains("Hi"));
    assert_eq!(spent(world.balance_when_idle().await), 1_001 * 3_000 + 5 * 8_000);
    let record = world.last_trace();
    assert_eq!(record.loss.get(), 0);
    assert!(record.held >= record.cost, "{} of {}", record.cost, record.held);
}

/// What these upstreams charge for their model per million: $0.50 prompt, $0.05 cached, $2 answer.
pub(crate) fn costs(upstreams: &[&str]) -> CostList {
    let price = json!({"model": "their-model", "input": 500_000_000, "cached_input": 50_000_000,
        "output": 2_000_000_000});
    let cost = |upstream: &&str| CostConfig {
        upstream: (*upstream).to_owned(),
        price: serde_json::from_value(price.clone()).unwrap(),
    };
    CostList::from_config(&upstreams.iter().map(cost).collect::<Vec<_>>()).unwrap()
}

#[tokio::test]
async fn what_an_upstream_charges_is_noted_and_no_caller_is_told() {
    // 15 computed, 5 cached, 2 generated.
    for (known, paid) in [(&["gpu"][..], Some(7_500 + 250 + 4_000)), (&["other"], None)] {
        let world = priced_world(&[server("gpu", Dialect::OpenAi, vec![stream()])], SHEET, costs(known));
        let explained = json!({"headrace": {"explain": true}, "stream_options": {"include_usage": true}});
        let text = read(chat(&world, true, &explained).await).await;
        assert!(text.contains("charged_nano_dollars") && !text.contains("paid"), "{text}");
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert_eq!(record.paid.map(|paid| paid.get()), paid, "{known:?}");
        assert_eq!(record.attempts[0].paid, record.paid);
    }
}

#[tokio::test]
async fn what_was_reported_before_it_broke_is_paid_whoever_answers_then() {
    // It reports its prompt, and breaks off before any output.
    let counted = json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
        "content": [], "model": "their-model", "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 900, "cache_read_input_tokens": 80, "output_tokens": 1}}});
    let mut moved = 0;
    for _ in 0..20 {
        let servers = [
            server("a", Dialect::Anthropic, vec![vec![head(), named(&counted)]]),
            server("b", Dialect::OpenAi, vec![stream()]),
        ];
        let world = priced_world(&servers, SHEET, costs(&["a", "b"]));
        let body = json!({"model": "far", "stream": true, "max_tokens": 10,
            "messages": [{"role": "user", "content": "hello out there"}]});
        assert!(read(world.call(Endpoint::ChatCompletions, body).await).await.contains("you"));
        let charged = spent(world.balance_when_idle().await);
        let record = world.last_trace();
        assert_eq!(charged, 15_000 + 500 + 8_000, "the answer alone");
        let [lost, answered] = &record.attempts[..] else { continue };
        moved += 1;
        assert_eq!(lost.paid.map(|paid| paid.get()), Some(900 * 500 + 80 * 50 + 2_000));
        assert_eq!(record.paid, lost.paid.unwrap().checked_add(answered.paid.unwrap()).ok());
    }
    assert!(moved > 1, "{moved}");
}

#[tokio::test]
async fn a_try_that_came_to_nothing_is_paid_once_it_was_heard() {
    let mut moved = 0;
    for known in [&["a", "b"][..], &["b"]].repeat(20) {
        // The first one begins to answer without any output. If it is asked first, the second one answers.
        let servers =
            [server("a", Dialect::OpenAi, vec![vec![head()]]), server("b", Dialect::OpenAi, vec![stream()])];
        let world = priced_world(&servers, SHEET, costs(known));
        assert!(read(chat(&world, true, &json!({})).await).await.contains("you"));
        world.balance_when_idle().await;
        let record = world.last_trace();
        let [lost, answered] = &record.attempts[..] else { continue };
        moved += 1;
        assert!(matches!(lost.outcome, AttemptOutcome::Failed { .. }), "{lost:?}");
        assert_eq!(answered.paid.map(|paid| paid.get()), Some(7_500 + 250 + 4_000));
        match lost.paid {
            Some(paid) => {
                assert!(known.len() == 2 && paid.get() > 0, "its prompt was read");
                assert_eq!(record.paid, paid.checked_add(answered.paid.unwrap()).ok());
            }
            None => assert_eq!((known.len(), record.paid), (1, None), "what is not known is no sum"),
        }
    }
    assert!(moved > 1, "{moved}");
}
