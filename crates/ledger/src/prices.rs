//! Prices: nano-dollars per million tokens, per model and token class, in versions by UTC date; what a call must hold
//! and what it is charged. Knows no accounts. A model without a price has no quote, and is refused rather than free.

use std::collections::BTreeMap;
use std::fmt;

use headrace_domain::{
    ModelName, MoneyError, NanoDollars, NanoDollarsPerMillion, Rounding, TokenClass, UnixNanos, Usage,
};
use serde::{Deserialize, Serialize};

use crate::calendar;
use crate::command::ChargeLine;

/// One version of one model's prices, as configured. Every price is in nano-dollars per million tokens: $1 per million
/// tokens is 1 000 000 000.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceConfig {
    /// The dated model's name.
    pub model: ModelName,
    /// The first UTC day on which these prices apply, `2026-11-05`; from the beginning if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Prompt tokens that are computed. Required.
    #[serde(default)]
    pub input: Option<i64>,
    /// Prompt tokens from the prefix cache; the price of `input` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<i64>,
    /// Prompt tokens whose storing in the cache is priced; the price of `input` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<i64>,
    /// Prompt tokens that the cache keeps for an hour; the price of `cache_write` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<i64>,
    /// Generated tokens. Required.
    #[serde(default)]
    pub output: Option<i64>,
    /// Generated tokens of reasoning, where whoever answers tells them from others; the price of `output` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<i64>,
}

/// A price that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PriceError {
    /// A required class has no price.
    Missing {
        /// The model.
        model: ModelName,
        /// The class.
        class: TokenClass,
    },
    /// A price is below zero.
    Negative {
        /// The model.
        model: ModelName,
        /// The class.
        class: TokenClass,
        /// The price found.
        price: i64,
    },
    /// `from` is not a date.
    NotADate {
        /// The model.
        model: ModelName,
        /// What was found.
        from: String,
    },
    /// Two versions of one model begin on the same day.
    Twice {
        /// The model.
        model: ModelName,
        /// The day; `None` for the beginning.
        from: Option<String>,
    },
}

impl fmt::Display for PriceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { model, class } => {
                write!(f, "the price of {model} lacks `{class}`: write 0 if it is meant to be free")
            }
            Self::Negative { model, class, price } => {
                write!(f, "the price of {model} for `{class}` is {price}: it must not be below zero")
            }
            Self::NotADate { model, from } => {
                write!(
                    f,
                    "the price of {model} has `from = \"{from}\"`: it must be a date such as 2026-11-05"
                )
            }
            Self::Twice { model, from } => {
                let from = from.as_deref().unwrap_or("the beginning");
                write!(f, "{model} has two prices from {from}")
            }
        }
    }
}

impl std::error::Error for PriceError {}

/// Every model's prices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriceList {
    models: BTreeMap<ModelName, BTreeMap<UnixNanos, Prices>>,
}

/// A price for each class, in the order of [`TokenClass::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Prices {
    input: NanoDollarsPerMillion,
    cached_input: NanoDollarsPerMillion,
    cache_write: NanoDollarsPerMillion,
    cache_write_1h: NanoDollarsPerMillion,
    output: NanoDollarsPerMillion,
    reasoning: NanoDollarsPerMillion,
}

/// The prices that apply to a model at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    model: ModelName,
    from: UnixNanos,
    prices: Prices,
}

impl PriceList {
    /// Takes the configured prices.
    ///
    /// # Errors
    /// Everything that is wrong with them, at once.
    pub fn from_config(config: &[PriceConfig]) -> Result<Self, Vec<PriceError>> {
        let mut list = Self::default();
        let mut errors = Vec::new();
        for version in config {
            let model = &version.model;
            let from = match version.from.as_deref().map(calendar::parse_date) {
                None => Some(UnixNanos::new(0)),
                Some(Some(date)) => Some(date),
                Some(None) => {
                    let from = version.from.clone().unwrap_or_default();
                    errors.push(PriceError::NotADate { model: model.clone(), from });
                    None
                }
            };
            let prices = Prices::from_config(version, &mut errors);
            let (Some(from), Some(prices)) = (from, prices) else { continue };
            let versions = list.models.entry(model.clone()).or_default();
            if versions.insert(from, prices).is_some() {
                errors.push(PriceError::Twice { model: model.clone(), from: version.from.clone() });
            }
        }
        if errors.is_empty() { Ok(list) } else { Err(errors) }
    }

    /// The prices of `model` at `now`; `None` if it has none then: the call is refused.
    pub fn quote(&self, model: &ModelName, now: UnixNanos) -> Option<Quote> {
        let (from, prices) = self.models.get(model)?.range(..=now).next_back()?;
        Some(Quote { model: model.clone(), from: *from, prices: *prices })
    }

    /// The models that have a price at some time.
    pub fn models(&self) -> impl Iterator<Item = &ModelName> {
        self.models.keys()
    }
}

impl Prices {
    fn from_config(config: &PriceConfig, errors: &mut Vec<PriceError>) -> Option<Self> {
        let mut price = |class: TokenClass, given: Option<i64>| match given.map(NanoDollarsPerMillion::new) {
            Some(Ok(price)) => Some(price),
            Some(Err(_)) => {
                let price = given.unwrap_or_default();
                errors.push(PriceError::Negative { model: config.model.clone(), class, price });
                None
            }
            None => {
                errors.push(PriceError::Missing { model: config.model.clone(), class });
                None
            }
        };
        let input = price(TokenClass::Input, config.input);
        let output = price(TokenClass::Output, config.output);
        // A class that stands for another says nothing of its own when that one is missing.
        let mut or =
            |class: TokenClass, given: Option<i64>, sibling: Option<NanoDollarsPerMillion>| match given {
                None => sibling,
                given => price(class, given),
            };
        let cached_input = or(TokenClass::CachedInput, config.cached_input, input);
        let cache_write = or(TokenClass::CacheWrite, config.cache_write, input);
        let cache_write_1h = or(TokenClass::CacheWrite1h, config.cache_write_1h, cache_write);
        let reasoning = or(TokenClass::Reasoning, config.reasoning, output);
        Some(Self {
            input: input?,
            cached_input: cached_input?,
            cache_write: cache_write?,
            cache_write_1h: cache_write_1h?,
            output: output?,
            reasoning: reasoning?,
        })
    }

    const fn of(&self, class: TokenClass) -> NanoDollarsPerMillion {
        match class {
            TokenClass::Input => self.input,
            TokenClass::CachedInput => self.cached_input,
            TokenClass::CacheWrite => self.cache_write,
            TokenClass::CacheWrite1h => self.cache_write_1h,
            TokenClass::Output => self.output,
            TokenClass::Reasoning => self.reasoning,
        }
    }
}

/// A price of whole nano-dollars per token never rounds.
const NANOS_THAT_NEVER_ROUND: i64 = 1_000_000;

impl Quote {
    /// The model.
    pub const fn model(&self) -> &ModelName {
        &self.model
    }

    /// Since when these prices apply.
    pub const fn from(&self) -> UnixNanos {
        self.from
    }

    /// The price of a class.
    pub const fn price(&self, class: TokenClass) -> NanoDollarsPerMillion {
        self.prices.of(class)
    }

    /// The most that a call of so many prompt tokens and at most so many generated ones can be charged, whatever
    /// classes they end up in.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn hold_for(&self, prompt_tokens: u64, max_output_tokens: u64) -> Result<NanoDollars, MoneyError> {
        let prompt = self.most(&TokenClass::PROMPT, prompt_tokens)?;
        prompt.checked_add(self.most(&TokenClass::GENERATED, max_output_tokens)?)
    }

    /// The most that `tokens` can cost, split over `classes` in any way.
    fn most(&self, classes: &[TokenClass], tokens: u64) -> Result<NanoDollars, MoneyError> {
        let prices = || classes.iter().map(|class| self.price(*class));
        let Some(dearest) = prices().max() else { return Ok(NanoDollars::ZERO) };
        let cost = dearest.cost(tokens, Rounding::Up)?;
        // Each line is rounded for itself, by at most half a nano-dollar upwards, and each has a token at least.
        let rounding = prices().filter(|price| price.get() % NANOS_THAT_NEVER_ROUND != 0).count();
        let most = tokens.min(rounding as u64) / 2;
        cost.checked_add(NanoDollars::new(i64::try_from(most).map_err(|_| MoneyError::Overflow)?))
    }

    /// The bill for what was used: a line for each class with tokens, each rounded once to the nearest.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn lines(&self, usage: &Usage, model: &ModelName) -> Result<Vec<ChargeLine>, MoneyError> {
        let used = TokenClass::ALL.into_iter().map(|class| (class, usage.of(class)));
        used.filter(|(_, tokens)| *tokens > 0)
            .map(|(class, tokens)| {
                let price = self.price(class);
                let amount = price.cost(tokens, Rounding::Nearest)?;
                Ok(ChargeLine { model: model.clone(), class, tokens, price, amount })
            })
            .collect()
    }

    /// What the bill for this usage comes to.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn cost(&self, usage: &Usage) -> Result<NanoDollars, MoneyError> {
        NanoDollars::checked_sum(self.lines(usage, &self.model)?.into_iter().map(|line| line.amount))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model() -> ModelName {
        ModelName::new("demo-1").unwrap()
    }

    fn config(input: i64, output: i64) -> PriceConfig {
        PriceConfig {
            model: model(),
            from: None,
            input: Some(input),
            cached_input: None,
            cache_write: None,
            cache_write_1h: None,
            output: Some(output),
            reasoning: None,
        }
    }

    fn at(date: &str) -> UnixNanos {
        calendar::parse_date(date).unwrap()
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
        for (now, input) in
            [(before, 1_000_000), (at("2026-07-01"), 2_000_000), (at("2030-01-01"), 2_000_000)]
        {
            assert_eq!(list.quote(&model(), now).unwrap().price(TokenClass::Input).get(), input);
        }
    }

    #[test]
    fn classes_default_to_their_dear_sibling() {
        let (cached_input, cache_write, reasoning) = (Some(100), Some(1250), Some(6000));
        let rows = [
            (PriceConfig { cached_input, ..config(1000, 4000) }, [1000, 100, 1000, 1000, 4000, 4000]),
            (
                PriceConfig { cache_write, reasoning, ..config(1000, 4000) },
                [1000, 1000, 1250, 1250, 4000, 6000],
            ),
            (
                PriceConfig { cache_write_1h: Some(2000), ..config(1000, 4000) },
                [1000, 1000, 1000, 2000, 4000, 4000],
            ),
        ];
        for (config, expected) in rows {
            let quote = PriceList::from_config(&[config]).unwrap().quote(&model(), at("2026-01-01")).unwrap();
            assert_eq!(TokenClass::ALL.map(|class| quote.price(class).get()), expected);
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
            PriceError::Twice { model: model(), from: None },
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
        let lines = quote.lines(&usage, &model()).unwrap();
        let bill: Vec<_> = lines.iter().map(|l| (l.class, l.tokens, l.amount.get())).collect();
        let (input, cached, output) = (TokenClass::Input, TokenClass::CachedInput, TokenClass::Output);
        assert_eq!(bill, [(input, 10, 10), (cached, 16, 2), (output, 5, 20)]);
        assert_eq!(quote.cost(&usage).unwrap().get(), 32);
        assert_eq!(quote.hold_for(26, 100).unwrap().get(), 26 + 400);
    }

    #[test]
    fn overflow_is_an_error() {
        let quote = PriceList::from_config(&[config(i64::MAX, 0)]).unwrap().quote(&model(), at("2026-01-01"));
        let quote = quote.unwrap();
        assert_eq!(quote.hold_for(u64::MAX, 1), Err(MoneyError::Overflow));
        let usage = Usage { input: u64::MAX, ..Usage::default() };
        assert_eq!(quote.cost(&usage), Err(MoneyError::Overflow));
    }

    proptest! {
        #[test]
        fn a_hold_covers_every_way_of_spending_it(
            prices in prop::array::uniform6(0i64..3_000_000_000),
            counts in prop::array::uniform6(prop_oneof![0u64..3, 0u64..3_000]),
            unused in 0u64..100,
        ) {
            let [input, cached_input, cache_write, cache_write_1h, output, reasoning] =
                prices.map(|price| NanoDollarsPerMillion::new(price).unwrap());
            let prices = Prices { input, cached_input, cache_write, cache_write_1h, output, reasoning };
            let quote = Quote { model: model(), from: at("2026-01-01"), prices };
            let [input, cached_input, cache_write, cache_write_1h, output, reasoning] = counts;
            let usage = Usage { input, cached_input, cache_write, cache_write_1h, output, reasoning };
            let held = quote.hold_for(usage.prompt_tokens(), usage.completion_tokens() + unused).unwrap();
            prop_assert!(quote.cost(&usage).unwrap() <= held);
        }
    }
}
