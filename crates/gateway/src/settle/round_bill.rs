//! The parts of a bill that rounds have. Must not know the settlement.

use headrace_domain::{BilledLine, MoneyError, NanoDollars, PriceTier, Rounding, TokenClass, Usage};
use headrace_ledger::prices::{CallPrices, Quote};

/// A round before the current one, with its prices.
pub(super) struct EndedRound {
    pub(super) quote: Quote,
    pub(super) tier: PriceTier,
    pub(super) usage: Usage,
}

/// The part of a bill that one round has.
pub(super) struct RoundBill<'a> {
    pub(super) prices: CallPrices<'a>,
    /// The ordinary prices of its model.
    pub(super) usual: CallPrices<'a>,
    pub(super) charged: Usage,
    pub(super) lost: Usage,
}

/// The cost of ended rounds.
pub(super) fn cost_of(rounds: &[EndedRound]) -> Result<NanoDollars, MoneyError> {
    rounds.iter().try_fold(NanoDollars::ZERO, |sum, EndedRound { quote, tier, usage }| {
        sum.checked_add(quote.rates(*tier, usage.prompt_tokens()).cost(usage)?)
    })
}

/// Splits a usage into what was delivered, with the prompts, and the rest. `rounds` are its rounds, in order. Reasoning
/// precedes the text of its round, so delivered tokens count as reasoning first. Reasoning that was never delivered is
/// not charged if the answer is not.
pub(crate) fn delivered_usage(rounds: impl Iterator<Item = Usage>, mut delivered: u64) -> (Usage, Usage) {
    let (mut written, mut unwritten) = (Usage::default(), Usage::default());
    for used in rounds {
        let reasoning = used.reasoning.min(delivered);
        delivered = delivered.saturating_sub(reasoning);
        let output = used.output.min(delivered);
        delivered = delivered.saturating_sub(output);
        let part = Usage { reasoning, output, ..used };
        (written, unwritten) = (written.plus(&part), unwritten.plus(&less(&used, &part)));
    }
    (written, unwritten)
}

/// The bill of a round as the trace keeps it: what was charged and what was lost, by token class.
pub(super) fn billed_lines(
    prices: &CallPrices<'_>,
    usual: &CallPrices<'_>,
    charged: &Usage,
    lost: &Usage,
) -> Vec<BilledLine> {
    let line = |class: TokenClass| {
        let (tokens, lost_tokens) = (charged.of(class), lost.of(class));
        let (price, usual) = (prices.price(class), usual.price(class));
        ((tokens > 0 || lost_tokens > 0) && prices.bills(class)).then(|| BilledLine {
            class,
            tokens,
            lost_tokens,
            price,
            usual_price: Some(usual).filter(|usual| *usual != price),
            amount: price.cost(tokens, Rounding::Nearest).unwrap_or(NanoDollars::MAX),
        })
    };
    TokenClass::BILLED.into_iter().filter_map(line).collect()
}

/// What `all` has beyond `part`, class by class.
pub(super) const fn less(all: &Usage, part: &Usage) -> Usage {
    Usage {
        input: all.input.saturating_sub(part.input),
        cached_input: all.cached_input.saturating_sub(part.cached_input),
        cache_write: all.cache_write.saturating_sub(part.cache_write),
        cache_write_1h: all.cache_write_1h.saturating_sub(part.cache_write_1h),
        output: all.output.saturating_sub(part.output),
        reasoning: all.reasoning.saturating_sub(part.reasoning),
        web_searches: all.web_searches.saturating_sub(part.web_searches),
    }
}

/// What both have, class by class.
pub(super) const fn common(one: &Usage, other: &Usage) -> Usage {
    less(one, &less(one, other))
}
