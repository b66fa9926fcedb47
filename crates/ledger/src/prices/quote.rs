//! What a model's tokens cost at a time: what a call must hold, and what it is charged. All arithmetic of prices stands here,
//! for what is charged and for what is paid. Must not know where prices come from, or which call asks.

use std::sync::Arc;

use headrace_domain::{
    ModelName, MoneyError, NanoDollars, NanoDollarsPerMillion, PriceTier, Rounding, TokenClass, Usage,
};

use super::config::{PriceConfig, PriceError};
use crate::command::ChargeLine;

/// The prices that apply to a model at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    model: ModelName,
    sheet: Arc<Sheet>,
}

/// All prices of a model at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sheet {
    /// Of calls that nothing else is for.
    pub(super) ordinary: Prices,
    /// The others, in the order of tier and length.
    pub(super) special: Vec<Rate>,
}

/// Prices, and what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) tier: PriceTier,
    /// Calls of more prompt tokens than this; 0: of any length.
    pub(super) above: u64,
    pub(super) prices: Prices,
}

/// A price for each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prices {
    pub(super) input: NanoDollarsPerMillion,
    pub(super) cached_input: NanoDollarsPerMillion,
    pub(super) cache_write: NanoDollarsPerMillion,
    pub(super) cache_write_1h: NanoDollarsPerMillion,
    pub(super) output: NanoDollarsPerMillion,
    pub(super) reasoning: NanoDollarsPerMillion,
    /// A million searches of the provider's own web search. `None` if they have no price.
    pub(super) web_search: Option<NanoDollarsPerMillion>,
}

/// The prices of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates<'a> {
    model: &'a ModelName,
    prices: &'a Prices,
}

impl Rate {
    const fn is_for(&self, prompt_tokens: u64) -> bool {
        self.above == 0 || prompt_tokens > self.above
    }
}

impl Quote {
    pub(super) const fn new(model: ModelName, sheet: Arc<Sheet>) -> Self {
        Self { model, sheet }
    }

    /// The model.
    pub const fn model(&self) -> &ModelName {
        &self.model
    }

    /// Whether calls of a class of service have prices of their own.
    pub fn has_tier(&self, tier: PriceTier) -> bool {
        self.sheet.special.iter().any(|rate| rate.tier == tier)
    }

    /// Whether the provider's own web search has a price.
    pub fn prices_searches(&self) -> bool {
        self.every_price().any(|prices| prices.web_search.is_some())
    }

    /// Returns the most that `searches` can cost.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn hold_for_searches(&self, searches: u64) -> Result<NanoDollars, MoneyError> {
        let dearest = self.every_price().filter_map(|prices| prices.web_search).max();
        dearest.map_or(Ok(NanoDollars::ZERO), |price| price.cost(searches, Rounding::Up))
    }

    fn every_price(&self) -> impl Iterator<Item = &Prices> {
        std::iter::once(&self.sheet.ordinary).chain(self.sheet.special.iter().map(|rate| &rate.prices))
    }

    /// Whether long prompts have prices of their own.
    pub fn has_long_prompts(&self) -> bool {
        self.sheet.special.iter().any(|rate| rate.above > 0)
    }

    /// What a call of so many prompt tokens costs in a class of service. Where that has no prices of its own, it is the usual.
    pub fn rates(&self, tier: PriceTier, prompt_tokens: u64) -> Rates<'_> {
        let special = |tier: PriceTier| {
            self.sheet.special.iter().rev().find(|rate| rate.tier == tier && rate.is_for(prompt_tokens))
        };
        let special = special(tier).or_else(|| special(PriceTier::Standard));
        let prices = special.map_or(&self.sheet.ordinary, |rate| &rate.prices);
        Rates { model: &self.model, prices }
    }

    /// What a call costs that nothing else is for: of the usual class of service, and of a length without prices of its own.
    pub fn usual(&self) -> Rates<'_> {
        Rates { model: &self.model, prices: &self.sheet.ordinary }
    }

    /// The most that a call of at most so many prompt tokens and generated ones can be charged, whatever classes they end up in:
    /// in the class of service `tier`; in any where there is none, as it is told only by whoever answers.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn hold_for(
        &self,
        tier: Option<PriceTier>,
        prompt_tokens: u64,
        max_output_tokens: u64,
    ) -> Result<NanoDollars, MoneyError> {
        let Sheet { ordinary, special } = &*self.sheet;
        let own = |rate: &Rate| tier.is_none_or(|tier| rate.tier == tier);
        // A class without prices for some lengths has the usual ones there.
        let usual = tier.is_none() || !special.iter().any(|rate| own(rate) && rate.above == 0);
        let mut dearest = NanoDollars::ZERO;
        let applies = special.iter().filter(|rate| {
            rate.is_for(prompt_tokens) && (own(rate) || (usual && rate.tier == PriceTier::Standard))
        });
        for prices in applies.map(|rate| &rate.prices).chain(usual.then_some(ordinary)) {
            dearest = dearest.max(prices.hold_for(prompt_tokens, max_output_tokens)?);
        }
        Ok(dearest)
    }
}

impl Rates<'_> {
    /// The price of a class.
    pub const fn price(&self, class: TokenClass) -> NanoDollarsPerMillion {
        self.prices.of(class)
    }

    /// Whether a class is on bills. Searches without a price are not.
    pub const fn bills(&self, class: TokenClass) -> bool {
        !matches!(class, TokenClass::WebSearch) || self.prices.web_search.is_some()
    }

    /// The bill for what was used: a line for each class with tokens, each rounded once to the nearest.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn lines(&self, usage: &Usage) -> Result<Vec<ChargeLine>, MoneyError> {
        let used = TokenClass::BILLED.into_iter().map(|class| (class, usage.of(class)));
        used.filter(|(class, tokens)| *tokens > 0 && self.bills(*class))
            .map(|(class, tokens)| {
                let price = self.price(class);
                let amount = price.cost(tokens, Rounding::Nearest)?;
                Ok(ChargeLine { model: self.model.clone(), class, tokens, price, amount })
            })
            .collect()
    }

    /// What the bill for this usage comes to.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn cost(&self, usage: &Usage) -> Result<NanoDollars, MoneyError> {
        let amount = |class: TokenClass| self.price(class).cost(usage.of(class), Rounding::Nearest);
        // Most calls use two classes of six, and a class of which nothing was used costs nothing.
        let mut used = TokenClass::BILLED.into_iter().filter(|class| usage.of(*class) > 0);
        used.try_fold(NanoDollars::ZERO, |sum, class| sum.checked_add(amount(class)?))
    }
}

/// A price of whole nano-dollars per token never rounds.
const NANOS_THAT_NEVER_ROUND: i64 = 1_000_000;

impl Prices {
    pub(super) fn from_config(config: &PriceConfig, errors: &mut Vec<PriceError>) -> Option<Self> {
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
        let web_search = match config.per_search {
            None => None,
            given => Some(price(TokenClass::WebSearch, given)?),
        };
        Some(Self {
            input: input?,
            cached_input: cached_input?,
            cache_write: cache_write?,
            cache_write_1h: cache_write_1h?,
            output: output?,
            reasoning: reasoning?,
            web_search,
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
            TokenClass::WebSearch => match self.web_search {
                Some(price) => price,
                None => NanoDollarsPerMillion::FREE,
            },
        }
    }

    fn hold_for(&self, prompt_tokens: u64, max_output_tokens: u64) -> Result<NanoDollars, MoneyError> {
        let prompt = self.most(&TokenClass::PROMPT, prompt_tokens)?;
        prompt.checked_add(self.most(&TokenClass::GENERATED, max_output_tokens)?)
    }

    /// The most that `tokens` can cost, split over `classes` in any way.
    fn most(&self, classes: &[TokenClass], tokens: u64) -> Result<NanoDollars, MoneyError> {
        let prices = || classes.iter().map(|class| self.of(*class));
        let Some(dearest) = prices().max() else { return Ok(NanoDollars::ZERO) };
        let cost = dearest.cost(tokens, Rounding::Up)?;
        // Each line is rounded for itself, by at most half a nano-dollar upwards, and each has a token at least.
        let rounding = prices().filter(|price| price.get() % NANOS_THAT_NEVER_ROUND != 0).count();
        let most = tokens.min(rounding as u64) / 2;
        cost.checked_add(NanoDollars::new(i64::try_from(most).map_err(|_| MoneyError::Overflow)?))
    }
}
