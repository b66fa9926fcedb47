//! The price of a model's tokens at a time: the amount that a call must hold, and the amount that it is charged. All
//! arithmetic of prices is here, for charges to customers and for payments to upstreams. Must not know where prices
//! come from or which call they are for.

use std::sync::Arc;

use headrace_domain::{
    ModelName, MoneyError, NanoDollars, NanoDollarsPerMillion, PriceTier, Rounding, TierName, TokenClass,
    Usage,
};

use super::config::{PriceConfig, PriceError};
use crate::command::ChargeLine;

/// The prices of a model at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    model: ModelName,
    sheet: Arc<PriceSheet>,
    /// The tier whose holders have these prices. `None` for the prices of all callers.
    holder_tier: Option<TierName>,
}

/// All prices of a model at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PriceSheet {
    /// The prices of calls that no special rate applies to.
    pub(super) ordinary: ClassPrices,
    /// The special rates, ordered by tier and length.
    pub(super) special: Vec<ConditionalPrices>,
}

/// Prices, with the calls that they apply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConditionalPrices {
    pub(super) tier: PriceTier,
    /// The rate applies to calls with more prompt tokens than this. 0 means calls of any length.
    pub(super) above: u64,
    pub(super) prices: ClassPrices,
}

/// The price of each token class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassPrices {
    pub(super) input: NanoDollarsPerMillion,
    pub(super) cached_input: NanoDollarsPerMillion,
    pub(super) cache_write: NanoDollarsPerMillion,
    pub(super) cache_write_1h: NanoDollarsPerMillion,
    pub(super) output: NanoDollarsPerMillion,
    pub(super) reasoning: NanoDollarsPerMillion,
    /// The price of a million searches of the provider's own web search. `None` if they have no price.
    pub(super) web_search: Option<NanoDollarsPerMillion>,
}

/// The prices of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallPrices<'a> {
    model: &'a ModelName,
    prices: &'a ClassPrices,
}

impl ConditionalPrices {
    const fn is_for(&self, prompt_tokens: u64) -> bool {
        self.above == 0 || prompt_tokens > self.above
    }
}

impl Quote {
    pub(super) const fn new(model: ModelName, sheet: Arc<PriceSheet>) -> Self {
        Self { model, sheet, holder_tier: None }
    }

    pub(super) fn for_holders_of(self, tier: TierName) -> Self {
        Self { holder_tier: Some(tier), ..self }
    }

    /// Returns the tier whose holders have these prices. `None` for the prices of all callers.
    pub const fn holder_tier(&self) -> Option<&TierName> {
        self.holder_tier.as_ref()
    }

    /// Returns the model.
    pub const fn model(&self) -> &ModelName {
        &self.model
    }

    /// Whether a class of service has its own prices.
    pub fn has_tier(&self, tier: PriceTier) -> bool {
        self.sheet.special.iter().any(|rate| rate.tier == tier)
    }

    /// Whether the provider's own web search has a price.
    pub fn prices_searches(&self) -> bool {
        self.every_price().any(|prices| prices.web_search.is_some())
    }

    /// Returns the maximum cost of `searches`.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn hold_for_searches(&self, searches: u64) -> Result<NanoDollars, MoneyError> {
        let dearest = self.every_price().filter_map(|prices| prices.web_search).max();
        dearest.map_or(Ok(NanoDollars::ZERO), |price| price.cost(searches, Rounding::Up))
    }

    fn every_price(&self) -> impl Iterator<Item = &ClassPrices> {
        std::iter::once(&self.sheet.ordinary).chain(self.sheet.special.iter().map(|rate| &rate.prices))
    }

    /// Whether long prompts have their own prices.
    pub fn has_long_prompts(&self) -> bool {
        self.sheet.special.iter().any(|rate| rate.above > 0)
    }

    /// Returns the prices of a call with this number of prompt tokens in a class of service. A class without its own
    /// prices has the standard ones.
    pub fn rates(&self, tier: PriceTier, prompt_tokens: u64) -> CallPrices<'_> {
        let special = |tier: PriceTier| {
            self.sheet.special.iter().rev().find(|rate| rate.tier == tier && rate.is_for(prompt_tokens))
        };
        let special = special(tier).or_else(|| special(PriceTier::Standard));
        let prices = special.map_or(&self.sheet.ordinary, |rate| &rate.prices);
        CallPrices { model: &self.model, prices }
    }

    /// Returns the ordinary prices: the standard class of service, for lengths without special prices.
    pub fn usual(&self) -> CallPrices<'_> {
        CallPrices { model: &self.model, prices: &self.sheet.ordinary }
    }

    /// Returns the maximum charge for a call with at most these numbers of prompt tokens and generated tokens, in any
    /// split over token classes. Covers the class of service `tier`, or all classes if `tier` is `None`, because then
    /// only the answer shows the class.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn hold_for(
        &self,
        tier: Option<PriceTier>,
        prompt_tokens: u64,
        max_output_tokens: u64,
    ) -> Result<NanoDollars, MoneyError> {
        let PriceSheet { ordinary, special } = &*self.sheet;
        let own = |rate: &ConditionalPrices| tier.is_none_or(|tier| rate.tier == tier);
        // A class of service without prices for some lengths has the standard prices there.
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

impl CallPrices<'_> {
    /// Returns the price of a token class.
    pub const fn price(&self, class: TokenClass) -> NanoDollarsPerMillion {
        self.prices.of(class)
    }

    /// Whether a class appears on bills. Searches without a price do not.
    pub const fn bills(&self, class: TokenClass) -> bool {
        !matches!(class, TokenClass::WebSearch) || self.prices.web_search.is_some()
    }

    /// Returns the bill for this usage: one line for each class with tokens, each rounded once to the nearest
    /// nano-dollar.
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

    /// Returns the total of the bill for this usage.
    ///
    /// # Errors
    /// `Overflow`.
    pub fn cost(&self, usage: &Usage) -> Result<NanoDollars, MoneyError> {
        let amount = |class: TokenClass| self.price(class).cost(usage.of(class), Rounding::Nearest);
        // Most calls use two of the seven classes, and an unused class costs nothing.
        let mut used = TokenClass::BILLED.into_iter().filter(|class| usage.of(*class) > 0);
        used.try_fold(NanoDollars::ZERO, |sum, class| sum.checked_add(amount(class)?))
    }
}

/// A price that is a multiple of this is a whole number of nano-dollars per token, so it never rounds.
const NANOS_THAT_NEVER_ROUND: i64 = 1_000_000;

impl ClassPrices {
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
        // If the price that another class falls back to is missing, only that missing price is an error.
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

    /// Returns the maximum cost of `tokens`, split over `classes` in any way.
    fn most(&self, classes: &[TokenClass], tokens: u64) -> Result<NanoDollars, MoneyError> {
        let prices = || classes.iter().map(|class| self.of(*class));
        let Some(dearest) = prices().max() else { return Ok(NanoDollars::ZERO) };
        let cost = dearest.cost(tokens, Rounding::Up)?;
        // Each line is rounded separately, by at most half a nano-dollar upwards, and each line has at least one token.
        let rounding = prices().filter(|price| price.get() % NANOS_THAT_NEVER_ROUND != 0).count();
        let most = tokens.min(rounding as u64) / 2;
        cost.checked_add(NanoDollars::new(i64::try_from(most).map_err(|_| MoneyError::Overflow)?))
    }
}
