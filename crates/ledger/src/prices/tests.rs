//! Tests of price sheets, with the numbers of real ones.

use headrace_domain::{MoneyError, NanoDollars, NanoDollarsPerMillion, TokenClass, Usage};
use proptest::prelude::*;

use super::quote::{ClassPrices, ConditionalPrices, PriceSheet};
use super::*;

fn model() -> ModelName {
    ModelName::new("demo-1").unwrap()
}

fn config(input: i64, output: i64) -> PriceConfig {
    PriceConfig {
        model: model(),
        from: None,
        tier: None,
        holder_tier: None,
        above: None,
        input: Some(input),
        cached_input: None,
        cache_write: None,
        cache_write_1h: None,
        output: Some(output),
        reasoning: None,
        per_search: None,
    }
}

fn at(date: &str) -> UnixNanos {
    calendar::parse_date(date).unwrap()
}

#[test]
fn holders_of_a_tier_have_its_prices_and_all_others_those_of_all_callers() {
    let tier = |name: &str| TierName::new(name).unwrap();
    let of = |name: &str, price: PriceConfig| PriceConfig { holder_tier: Some(tier(name)), ..price };
    let list = PriceList::from_config(&[
        config(1_000, 4_000),
        of("gold", config(500, 2_000)),
        of("gold", PriceConfig { tier: Some(PriceTier::Batch), ..config(250, 1_000) }),
        of("free", config(0, 0)),
        of("later", PriceConfig { from: Some("2026-07-01".into()), ..config(7, 7) }),
    ])
    .unwrap();
    let none = HolderTiers::default();
    let [gold, free, later, other] = ["gold", "free", "later", "other"].map(|name| Some(tier(name)));
    let input = |tiers: &HolderTiers, date: &str| {
        let quote = list.quote_for(&model(), Some(tiers), at(date)).unwrap();
        (
            quote.usual().price(TokenClass::Input).get(),
            quote.holder_tier().map(|tier| tier.as_str().to_owned()),
        )
    };
    for (tiers, expected) in [
        (none.clone(), (1_000, None)),
        (HolderTiers { key: other.clone(), ..none.clone() }, (1_000, None)),
        (HolderTiers { key: gold.clone(), ..none.clone() }, (500, Some("gold"))),
        (HolderTiers { project: gold.clone(), org: free.clone(), ..none.clone() }, (500, Some("gold"))),
        (HolderTiers { key: other, org: free, ..none.clone() }, (0, Some("free"))),
        // Prices that have not begun leave those of the next tier.
        (HolderTiers { key: later.clone(), org: gold, ..none.clone() }, (500, Some("gold"))),
    ] {
        let expected = (expected.0, expected.1.map(str::to_owned));
        assert_eq!(input(&tiers, "2026-06-30"), expected, "{tiers:?}");
    }
    let later = HolderTiers { key: later, ..none.clone() };
    assert_eq!(input(&later, "2026-07-01"), (7, Some("later".to_owned())));
    assert_eq!(list.quote_for(&model(), None, at("2026-07-01")), list.quote(&model(), at("2026-07-01")));
    assert!(list.is_free_for_some(&model(), at("2026-07-01")));
    let alone = PriceList::from_config(&[of("gold", config(1, 1))]).unwrap_err();
    assert!(alone[0].to_string().contains("for all other callers"), "{alone:?}");
    let twice = [config(1, 1), of("gold", config(1, 1)), of("gold", config(2, 2))];
    assert!(matches!(PriceList::from_config(&twice).unwrap_err()[..], [PriceError::Twice { .. }]));
}

#[test]
fn an_unpriced_model_has_no_quote() {
    let list = PriceList::from_config(&[PriceConfig { from: Some("2026-02-01".into()), ..config(1, 1) }]);
    let list = list.unwrap();
    assert_eq!(list.quote(&ModelName::new("other").unwrap(), at("2026-03-01")), None);
    assert_eq!(list.quote(&model(), at("2026-01-31")), None, "before its first price");
    assert!(list.quote(&model(), at("2026-02-01")).is_some());
}

#[test]
fn prices_change_at_midnight_utc() {
    let list = PriceList::from_config(&[
        config(1_000_000, 4_000_000),
        PriceConfig { from: Some("2026-07-01".into()), ..config(2_000_000, 8_000_000) },
    ]);
    let list = list.unwrap();
    let before = UnixNanos::new(at("2026-07-01").get() - 1);
    for (now, input) in [(before, 1_000_000), (at("2026-07-01"), 2_000_000), (at("2030-01-01"), 2_000_000)] {
        assert_eq!(
            list.quote(&model(), now).unwrap().rates(PriceTier::Standard, 1).price(TokenClass::Input).get(),
            input
        );
    }
}

#[test]
fn classes_default_to_their_dear_sibling() {
    let (cached_input, cache_write, reasoning) = (Some(100), Some(1250), Some(6000));
    let rows = [
        (PriceConfig { cached_input, ..config(1000, 4000) }, [1000, 100, 1000, 1000, 4000, 4000]),
        (PriceConfig { cache_write, reasoning, ..config(1000, 4000) }, [1000, 1000, 1250, 1250, 4000, 6000]),
        (
            PriceConfig { cache_write_1h: Some(2000), ..config(1000, 4000) },
            [1000, 1000, 1000, 2000, 4000, 4000],
        ),
    ];
    for (config, expected) in rows {
        let quote = PriceList::from_config(&[config]).unwrap().quote(&model(), at("2026-01-01")).unwrap();
        assert_eq!(
            TokenClass::ALL.map(|class| quote.rates(PriceTier::Standard, 1).price(class).get()),
            expected
        );
    }
}

#[test]
fn every_bad_price_is_reported_at_once() {
    let bad = [
        PriceConfig { input: None, ..config(0, 0) },
        PriceConfig { output: Some(-1), from: Some("2026-02-30".into()), ..config(0, 0) },
        PriceConfig {
            cache_write_1h: Some(-2),
            reasoning: Some(-3),
            from: Some("2026-03-01".into()),
            ..config(0, 0)
        },
        config(1, 1),
        config(2, 2),
    ];
    let errors = PriceList::from_config(&bad).unwrap_err();
    let wanted = [
        PriceError::Missing { model: model(), class: TokenClass::Input },
        PriceError::NotADate { model: model(), from: "2026-02-30".into() },
        PriceError::Negative { model: model(), class: TokenClass::Output, price: -1 },
        PriceError::Negative { model: model(), class: TokenClass::CacheWrite1h, price: -2 },
        PriceError::Negative { model: model(), class: TokenClass::Reasoning, price: -3 },
        PriceError::Twice { model: model(), from: None, tier: PriceTier::Standard, above: 0 },
    ];
    assert_eq!(errors, wanted);
    let unknown = serde_json::from_str::<PriceConfig>(r#"{"model": "m", "inptu": 3}"#);
    assert!(unknown.unwrap_err().to_string().contains("inptu"));
}

#[test]
fn a_bill_has_a_line_per_class_used() {
    let list = PriceList::from_config(&[PriceConfig {
        cached_input: Some(100_000),
        ..config(1_000_000, 4_000_000)
    }]);
    let quote = list.unwrap().quote(&model(), at("2026-01-01")).unwrap();
    let usage = Usage { input: 10, cached_input: 16, output: 5, ..Usage::default() };
    let rates = quote.rates(PriceTier::Standard, usage.prompt_tokens());
    let lines = rates.lines(&usage).unwrap();
    let bill: Vec<_> = lines.iter().map(|l| (l.class, l.tokens, l.amount.get())).collect();
    let (input, cached, output) = (TokenClass::Input, TokenClass::CachedInput, TokenClass::Output);
    assert_eq!(bill, [(input, 10, 10), (cached, 16, 2), (output, 5, 20)]);
    assert_eq!(rates.cost(&usage).unwrap().get(), 32);
    assert_eq!(quote.hold_for(None, 26, 100).unwrap().get(), 26 + 400);
}

#[test]
fn overflow_is_an_error() {
    let quote = PriceList::from_config(&[config(i64::MAX, 0)]).unwrap().quote(&model(), at("2026-01-01"));
    let quote = quote.unwrap();
    assert_eq!(quote.hold_for(None, u64::MAX, 1), Err(MoneyError::Overflow));
    let usage = Usage { input: u64::MAX, ..Usage::default() };
    assert_eq!(quote.rates(PriceTier::Standard, 1).cost(&usage), Err(MoneyError::Overflow));
}

/// Returns a sheet in dollars per million tokens: input, cached, written, written for an hour, output. `more` sets
/// further fields.
fn sheet(prices: [&str; 5], more: impl FnOnce(&mut PriceConfig)) -> PriceConfig {
    let [input, cached_input, cache_write, cache_write_1h, output] =
        prices.map(|dollars| Some(NanoDollars::from_dollars(dollars).unwrap().get()));
    let mut config = PriceConfig { input, cached_input, cache_write, cache_write_1h, output, ..config(0, 0) };
    more(&mut config);
    config
}

/// Two real price sheets. OpenAI's rates all change above 272,000 prompt tokens, and cost half for flex work and double
/// for priority work. Anthropic's cache writes cost 1.25 and 2 times the input, and cache reads a tenth.
fn real() -> PriceList {
    let openai = ["2.50", "0.25", "3.125", "3.125", "10"];
    let claude = ModelName::new("claude").unwrap();
    PriceList::from_config(&[
        sheet(openai, |_| {}),
        sheet(["5", "0.50", "6.25", "6.25", "15"], |config| config.above = Some(272_000)),
        sheet(["1.25", "0.125", "1.5625", "1.5625", "5"], |config| config.tier = Some(PriceTier::Flex)),
        sheet(["5", "0.50", "6.25", "6.25", "20"], |config| config.tier = Some(PriceTier::Priority)),
        sheet(["1.25", "0.125", "1.5625", "1.5625", "5"], |config| {
            config.tier = Some(PriceTier::Batch);
            config.above = Some(1_000);
        }),
        sheet(["2.25", "0.225", "2.8125", "2.8125", "9"], |config| config.from = Some("2026-07-01".into())),
        sheet(["3", "0.30", "3.75", "6", "15"], |config| config.model = claude),
    ])
    .unwrap()
}

#[test]
fn real_sheets_come_to_their_bills() {
    use PriceTier::{Batch, Flex, Priority, Standard};
    let used = |input, cached_input, cache_write, cache_write_1h, output, reasoning| Usage {
        input,
        cached_input,
        cache_write,
        cache_write_1h,
        output,
        reasoning,
        web_searches: 0,
    };
    let rows = [
        ("demo-1", "2026-01-01", Standard, used(1_000, 0, 0, 0, 100, 0), "0.0035"),
        // 18,014 prompt tokens: 3 computed, 18,011 written.
        ("demo-1", "2026-01-01", Standard, used(3, 0, 18_011, 0, 10, 0), "0.056391875"),
        ("demo-1", "2026-01-01", Standard, used(3, 18_011, 0, 0, 10, 200), "0.00661025"),
        // Above the limit, but not at it, all rates change for all tokens, in every token class.
        ("demo-1", "2026-01-01", Standard, used(272_000, 0, 0, 0, 1_000, 0), "0.69"),
        ("demo-1", "2026-01-01", Standard, used(272_001, 0, 0, 0, 1_000, 0), "1.375005"),
        ("demo-1", "2026-01-01", Standard, used(1, 270_000, 2_000, 0, 1_000, 0), "0.162505"),
        ("demo-1", "2026-01-01", Flex, used(1_000, 0, 0, 0, 100, 0), "0.00175"),
        ("demo-1", "2026-01-01", Priority, used(1_000, 0, 0, 0, 100, 0), "0.007"),
        // A class of service with prices only for long prompts has the standard prices for other prompts.
        ("demo-1", "2026-01-01", Batch, used(1_000, 0, 0, 0, 100, 0), "0.0035"),
        ("demo-1", "2026-01-01", Batch, used(1_001, 0, 0, 0, 100, 0), "0.00175125"),
        // The ordinary prices fell, and the others did not.
        ("demo-1", "2026-07-01", Standard, used(1_000, 0, 0, 0, 100, 0), "0.00315"),
        ("demo-1", "2026-07-01", Standard, used(272_001, 0, 0, 0, 1_000, 0), "1.375005"),
        ("demo-1", "2026-07-01", Flex, used(1_000, 0, 0, 0, 100, 0), "0.00175"),
        ("claude", "2026-01-01", Standard, used(7, 100_000, 20, 10, 10, 40), "0.030906"),
        ("claude", "2026-01-01", Standard, used(0, 0, 1_000_000, 0, 0, 0), "3.75"),
        ("claude", "2026-01-01", Standard, used(0, 0, 0, 1_000_000, 0, 0), "6"),
        ("claude", "2026-01-01", Flex, used(1_000_000, 0, 0, 0, 0, 0), "3"),
    ];
    let list = real();
    for (name, day, tier, usage, dollars) in rows {
        let quote = list.quote(&ModelName::new(name).unwrap(), at(day)).unwrap();
        let rates = quote.rates(tier, usage.prompt_tokens());
        let cost = rates.cost(&usage).unwrap();
        assert_eq!(cost, NanoDollars::from_dollars(dollars).unwrap(), "{name} {day} {tier} {usage:?}");
        let lines = rates.lines(&usage).unwrap().into_iter().map(|line| line.amount);
        assert_eq!(NanoDollars::checked_sum(lines).unwrap(), cost, "a bill is its lines");
        for tier in [Some(tier), None] {
            let held = quote.hold_for(tier, usage.prompt_tokens(), usage.completion_tokens()).unwrap();
            assert!(held >= cost, "{held} for {name} {day} {tier:?} {usage:?}");
        }
    }
}

#[test]
fn a_hold_takes_the_dearest_rates_that_could_apply() {
    let quote = real().quote(&model(), at("2026-01-01")).unwrap();
    let rows = [
        // A prompt of 272,000 tokens may be written to the cache. With one more token, all rates change.
        (Some(PriceTier::Standard), 272_000, 1_000, "0.86"),
        (Some(PriceTier::Standard), 272_001, 1_000, "1.715006250"),
        (Some(PriceTier::Flex), 272_001, 1_000, "0.430001564"),
        (Some(PriceTier::Batch), 1_000, 100, "0.004125"),
        (None, 1_000, 100, "0.00825"),
    ];
    for (tier, prompt, output, dollars) in rows {
        let held = quote.hold_for(tier, prompt, output).unwrap();
        assert_eq!(held, NanoDollars::from_dollars(dollars).unwrap(), "{tier:?} {prompt}");
    }
}

#[test]
fn a_hold_allows_for_every_line_rounding_up() {
    let quote = PriceList::from_config(&[config(500_000, 500_000)]).unwrap();
    let quote = quote.quote(&model(), at("2026-01-01")).unwrap();
    let usage = Usage {
        input: 1,
        cached_input: 1,
        cache_write: 1,
        cache_write_1h: 1,
        output: 1,
        reasoning: 1,
        web_searches: 0,
    };
    assert_eq!(quote.rates(PriceTier::Standard, 4).cost(&usage).unwrap().get(), 6);
    assert_eq!(quote.hold_for(None, 4, 2).unwrap().get(), 6);
}

#[test]
fn costs_are_of_an_upstream_and_its_own_name_of_a_model() {
    let cost = |upstream: &str, input| CostConfig { upstream: upstream.to_owned(), price: config(input, 1) };
    let list = CostList::from_config(&[cost("a", 1), cost("b", 2)]).unwrap();
    for (upstream, model, input) in
        [("a", "demo-1", Some(1)), ("b", "demo-1", Some(2)), ("a", "other", None), ("c", "demo-1", None)]
    {
        let quote = list.quote(upstream, model, at("2026-01-01"));
        let price = quote.map(|quote| quote.rates(PriceTier::Standard, 1).price(TokenClass::Input).get());
        assert_eq!(price, input, "{upstream} {model}");
    }
    assert_eq!(CostList::from_config(&[cost("a", 1), cost("a", 1), cost("b", -1)]).unwrap_err().len(), 2);
}

#[test]
fn special_prices_need_ordinary_ones() {
    let only = PriceConfig { above: Some(5), ..config(1, 1) };
    let errors = PriceList::from_config(&[only.clone(), only]).unwrap_err();
    let twice = PriceError::Twice { model: model(), from: None, tier: PriceTier::Standard, above: 5 };
    assert_eq!(errors, [twice, PriceError::NoOrdinary { model: model() }]);
    let words = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert!(words.contains("two prices from the beginning for `above = 5`; "), "{words}");
    assert!(words.contains("add a table without them"), "{words}");
}

fn prices() -> impl Strategy<Value = ClassPrices> {
    prop::array::uniform7(0i64..3_000_000_000).prop_map(|prices| {
        let [input, cached_input, cache_write, cache_write_1h, output, reasoning, search] =
            prices.map(|price| NanoDollarsPerMillion::new(price).unwrap());
        let web_search = Some(search);
        ClassPrices { input, cached_input, cache_write, cache_write_1h, output, reasoning, web_search }
    })
}

fn tier() -> impl Strategy<Value = PriceTier> {
    prop_oneof![Just(PriceTier::Standard), prop::sample::select(PriceTier::NAMED.to_vec())]
}

proptest! {
    #[test]
    fn a_hold_covers_every_way_of_spending_it(
        ordinary in prices(),
        special in prop::collection::btree_map((tier(), 0u64..9_000), prices(), 0..6),
        counts in prop::array::uniform7(prop_oneof![0u64..3, 0u64..3_000]),
        tier in tier(),
        unused in (0u64..100, 0u64..100),
    ) {
        let special = special.into_iter().filter(|(what, _)| *what != ORDINARY);
        let special = special.map(|((tier, above), prices)| ConditionalPrices { tier, above, prices }).collect();
        let quote = Quote::new(model(), Arc::new(PriceSheet { ordinary, special }));
        let [input, cached_input, cache_write, cache_write_1h, output, reasoning, web_searches] = counts;
        let usage = Usage { input, cached_input, cache_write, cache_write_1h, output, reasoning, web_searches };
        let cost = quote.rates(tier, usage.prompt_tokens()).cost(&usage).unwrap();
        let (prompt, output) = (usage.prompt_tokens() + unused.0, usage.completion_tokens() + unused.1);
        let searches = quote.hold_for_searches(web_searches).unwrap();
        let known = quote.hold_for(Some(tier), prompt, output).unwrap();
        prop_assert!(cost <= known.checked_add(searches).unwrap());
        prop_assert!(known <= quote.hold_for(None, prompt, output).unwrap());
    }
}

#[test]
fn searches_are_held_for_and_charged_where_they_have_a_price() {
    let quote = |config: PriceConfig| {
        PriceList::from_config(&[config]).unwrap().quote(&model(), at("2026-01-01")).unwrap()
    };
    let usage = Usage { input: 1_000_000, web_searches: 3, ..Usage::default() };
    // $10 per thousand searches.
    let priced = quote(PriceConfig { per_search: Some(10_000_000_000_000), ..config(1_000, 4_000) });
    assert!(priced.prices_searches());
    assert_eq!(priced.hold_for_searches(50), Ok(NanoDollars::new(50 * 10_000_000)));
    let rates = priced.rates(PriceTier::Standard, 1);
    assert_eq!(rates.cost(&usage), Ok(NanoDollars::new(1_000 + 3 * 10_000_000)));
    let lines: Vec<_> =
        rates.lines(&usage).unwrap().into_iter().map(|line| (line.class, line.tokens)).collect();
    assert_eq!(lines, [(TokenClass::Input, 1_000_000), (TokenClass::WebSearch, 3)]);
    let unpriced = quote(config(1_000, 4_000));
    assert!(!unpriced.prices_searches());
    assert_eq!(unpriced.rates(PriceTier::Standard, 1).cost(&usage), Ok(NanoDollars::new(1_000)));
    assert_eq!(unpriced.rates(PriceTier::Standard, 1).lines(&usage).unwrap().len(), 1);
    let tiered = PriceList::from_config(&[
        config(1_000, 4_000),
        PriceConfig { tier: Some(PriceTier::Priority), ..config(2_000, 8_000) },
        PriceConfig { above: Some(200_000), ..config(2_000, 8_000) },
    ]);
    let tiered = tiered.unwrap().quote(&model(), at("2026-01-01")).unwrap();
    assert!(
        tiered.has_tier(PriceTier::Priority)
            && !tiered.has_tier(PriceTier::Flex)
            && tiered.has_long_prompts()
    );
    assert!(!unpriced.has_tier(PriceTier::Priority) && !unpriced.has_long_prompts());
    assert!(PriceList::from_config(&[PriceConfig { per_search: Some(-1), ..config(1, 1) }]).is_err());
}
