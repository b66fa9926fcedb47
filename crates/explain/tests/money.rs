//! Cost explanations: the lines sum to the bill, discounts and losses are named, and levers report their savings.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

mod support;

use headrace_domain::{
    BilledLine, BilledPrices, CacheMiss, EngineTrace, MissReason, NanoDollars, NanoDollarsPerMillion,
    PriceTier, Rounding, Stage, TokenClass, TraceRecord, UnixNanos,
};
use headrace_explain::{LeverName, Usual, explain, why_cost};

use support::{completed, delayed, numbered};

fn price(dollars_per_million: i64) -> NanoDollarsPerMillion {
    NanoDollarsPerMillion::new(dollars_per_million * 1_000_000_000).unwrap()
}

fn line(class: TokenClass, tokens: u64, dollars_per_million: i64) -> BilledLine {
    let price = price(dollars_per_million);
    let amount = price.cost(tokens, Rounding::Nearest).unwrap();
    BilledLine { class, tokens, lost_tokens: 0, price, usual_price: None, amount }
}

/// The stored call with its bill: 156 computed, 256 cached and 48 generated tokens.
fn billed() -> TraceRecord {
    let lines = vec![
        line(TokenClass::Input, 156, 2),
        line(TokenClass::CachedInput, 256, 1),
        line(TokenClass::Output, 48, 10),
    ];
    let cost = lines.iter().map(|line| line.amount.get()).sum();
    let billed = BilledPrices {
        at: UnixNanos::new(1_795_224_848_123_456_789),
        holder_tier: None,
        held_prompt_tokens: 412,
        held_output_tokens: 1_000,
        prompt_prices: Some([price(2), price(1)]),
        lines,
    };
    TraceRecord {
        billed: Some(Box::new(billed)),
        cost: NanoDollars::new(cost),
        held: NanoDollars::new(10_824_000),
        ..completed()
    }
}

#[test]
fn the_bill_is_told_by_class_and_sums_to_the_charge() {
    let record = billed();
    let explanation = why_cost(&record);
    let sum: i64 = explanation.terms.iter().map(|term| term.nano_dollars.parse::<i64>().unwrap()).sum();
    assert_eq!(sum.to_string(), explanation.total_nano_dollars);
    assert_eq!(
        explanation.sentence,
        "It cost $0.001048: 45.8% of it for 48 generated tokens at $10.00 a million."
    );
    assert_eq!(explanation.saved_by_cache_dollars.as_deref(), Some("0.000256"));
    assert_eq!((explanation.priced_at.as_deref(), explanation.tier), (Some("2026-11-21"), "standard"));
    let text = explanation.text(90);
    for words in
        ["412 prompt tokens and at most 1,000 generated tokens", "that saved $0.000256", "given back"]
    {
        assert!(text.contains(words), "{words}\n{text}");
    }
    assert_eq!(explain(&record, &Usual::unknown()).money_sentence, explanation.sentence);
}

#[test]
fn discounts_losses_and_margins_are_named() {
    let mut record = billed();
    record.price_tier = PriceTier::Flex;
    record.loss = NanoDollars::new(7_000);
    record.paid = Some(NanoDollars::new(400_000));
    let lines = &mut record.billed.as_mut().unwrap().lines;
    lines[2].usual_price = Some(price(20));
    lines[0].usual_price = Some(price(1));
    let explanation = why_cost(&record);
    let all = explanation.notes.join("\n");
    for words in [
        "class of service `flex`",
        "`output` tokens had a discount: $10.00 a million instead of $20.00",
        "`input` tokens had a surcharge: $2.00 a million instead of $1.00",
        "$0.000007 was used and is not charged",
        "Others charge $0.0004 for it: $0.000648 are left",
    ] {
        assert!(all.contains(words), "{words}\n{all}");
    }
    assert_eq!(explanation.margin_dollars.as_deref(), Some("0.000648"));
    // A record without prices says so, and no price is invented.
    let old = why_cost(&completed());
    assert!(old.sentence.contains("keeps no prices") && old.terms.is_empty(), "{}", old.sentence);
}

#[test]
fn levers_say_what_they_would_have_saved() {
    let mut record = billed();
    let miss =
        CacheMiss { reason: MissReason::Differs, token: 256, elsewhere: false, place: None, other: None };
    let engine =
        EngineTrace { prompt_blocks: 25, cached_blocks: 16, miss: Some(miss), ..record.engine.unwrap() };
    record.engine = Some(engine);
    let explanation = explain(&record, &Usual::unknown());
    let lever = |name: LeverName| explanation.levers.iter().find(|lever| lever.name == name);
    // 9 blocks of 16 tokens, at a dollar less per million.
    let cached = lever(LeverName::CachedPrefix).unwrap();
    assert_eq!(cached.saves_nano_dollars.as_deref(), Some("144000"));
    assert!((cached.saves_us - 84_100.0 * 144.0 / 156.0).abs() < 1.0, "{cached:?}");
    let fewer = lever(LeverName::FewerTokens).unwrap();
    assert_eq!(fewer.saves_nano_dollars.as_deref(), Some("240000"));
    let shorter = lever(LeverName::ShorterPrompt).unwrap();
    assert_eq!(shorter.saves_nano_dollars.as_deref(), Some("156000"));
    assert_eq!(explanation.levers[0].name, LeverName::FewerTokens, "what saves most comes first");
    assert!(lever(LeverName::Stream).is_none(), "it was streamed");
    record.stream = false;
    let explanation = explain(&record, &Usual::unknown());
    let stream = explanation.levers.iter().find(|lever| lever.name == LeverName::Stream).unwrap();
    assert_eq!((stream.saves_of, stream.saves_us as u64), ("first_words", 1_835_280));
}

/// An upstream that does not stream: levers save a part of the wait for it.
#[test]
fn levers_of_an_answer_that_came_all_at_once_save_of_its_wait() {
    let mut record = billed();
    (record.engine, record.upstream, record.stream) = (None, Some("provider".into()), false);
    let mut wait = 0;
    for span in &mut record.stages {
        if span.stage == Stage::Decode {
            wait = std::mem::take(&mut span.duration_ns);
        }
    }
    let prefill = record.stages.iter_mut().find(|span| span.stage == Stage::Prefill).unwrap();
    (prefill.stage, prefill.duration_ns) = (Stage::Upstream, prefill.duration_ns + wait);
    let explanation = explain(&record, &Usual::unknown());
    let fewer = explanation.levers.iter().find(|lever| lever.name == LeverName::FewerTokens).unwrap();
    assert!(fewer.saves_us >= wait as f64 / 2e3, "{fewer:?}");
}

#[test]
fn another_model_that_was_faster_is_a_lever() {
    let record = completed();
    let mut quick = delayed(headrace_domain::Stage::Connect, 0);
    quick.model_served = Some("small".to_owned());
    let decode = quick.stages.iter_mut().find(|span| span.stage.name() == "decode").unwrap();
    decode.duration_ns /= 4;
    let calls: Vec<TraceRecord> = (1..9).map(|n| numbered(quick.clone(), n)).collect();
    let explanation = explain(&record, &Usual::of(&calls, &record));
    let smaller = explanation.levers.iter().find(|lever| lever.name == LeverName::SmallerModel).unwrap();
    assert!(smaller.text.starts_with("`small` took") && smaller.saves_us > 1_000_000.0, "{smaller:?}");
    assert!(!smaller.can_be_tried);
}
