//! The money and limits of a call's rounds. Each round is priced by the length of its own prompt. Must not know why a
//! round follows another one.

use headrace_call_state::Rejection;
use headrace_domain::{
    BilledLine, Code, MoneyError, NanoDollars, PriceTier, Rounding, Stage, TokenClass, Usage,
};
use headrace_ledger::prices::{CallPrices, Quote};

use super::{CallBill, CallSettlement};
use crate::Gateway;
use crate::request_context::RequestContext;

/// The most rounds of a call. Each of them has at most one line per token class on the bill.
const MOST_ROUNDS: usize = headrace_ledger::core::MAX_LINES / TokenClass::BILLED.len();

/// A round before the current one, with its prices.
pub(super) struct EndedRound {
    quote: Quote,
    tier: PriceTier,
    usage: Usage,
}

/// The part of a bill that one round has.
pub(super) struct RoundBill<'a> {
    pub(super) prices: CallPrices<'a>,
    /// The ordinary prices of its model.
    pub(super) usual: CallPrices<'a>,
    pub(super) charged: Usage,
    pub(super) lost: Usage,
}

impl CallSettlement {
    /// Ends the current round, and takes limits and money for a further one with `tokens` tokens at most, which may cost
    /// `amount`. Call it when the ended round is in the call's record, and before anything of the further one is sent.
    ///
    /// # Errors
    /// The number of rounds, limits or money refuse. The round before has then ended, the call holds nothing for a
    /// further one, and its answer can still be completed and settled.
    pub(crate) async fn begin_round(
        &mut self,
        gateway: &Gateway,
        tokens: u64,
        (quote, amount): (Quote, NanoDollars),
        context: &mut RequestContext,
    ) -> Result<(), Rejection> {
        let parts = gateway.parts();
        let now = parts.clock.now();
        let usage = self.current(&context.record.usage);
        if usage != Usage::default() {
            let tier = context.record.price_tier;
            self.ended.push(EndedRound { quote: self.quote.clone(), tier, usage });
            if let Some(lease) = &mut self.lease {
                lease.end_round(usage.total(), now);
            }
        }
        if self.ended.len() >= MOST_ROUNDS {
            return Err(too_many_rounds());
        }
        if let Some(lease) = &mut self.lease
            && lease.counts_tokens()
        {
            if let Some(fetch) = lease.fetch_quota(&[], tokens, now) {
                fetch.await;
            }
            let taken = lease.take(&[], tokens, now);
            taken.map_err(|refusal| {
                Rejection::limited(refusal, &lease.standing(now), context.dialect, now).at(Stage::Hold)
            })?;
        }
        if let Err(refusal) = self.cover(gateway, amount, None, context).await {
            if let Some(lease) = &mut self.lease {
                lease.end_round(0, now);
            }
            return Err(refusal);
        }
        self.quote = quote;
        context.end_stage(Stage::Hold);
        Ok(())
    }

    /// Whether rounds have ended before the current one.
    pub(crate) const fn has_ended_rounds(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The usage of each round, in order. `used` is that of the whole call.
    pub(crate) fn usages(&self, used: Usage) -> impl Iterator<Item = Usage> {
        self.ended.iter().map(|round| round.usage).chain([self.current(&used)])
    }

    /// The usage of the current round, of a call that used `used`.
    fn current(&self, used: &Usage) -> Usage {
        self.ended.iter().fold(*used, |rest, round| less(&rest, &round.usage))
    }

    /// Splits a bill among the rounds, in order: a charge that does not cover all rounds covers the first ones. `tier` is
    /// the class of service of the current round.
    pub(super) fn by_round(&self, bill: &CallBill, tier: PriceTier) -> impl Iterator<Item = RoundBill<'_>> {
        let mut unbilled = bill.charged;
        let current = self.current(&bill.charged.plus(&bill.lost));
        let ended = self.ended.iter().map(|round| (&round.quote, round.tier, round.usage));
        ended.chain([(&self.quote, tier, current)]).map(move |(quote, tier, usage)| {
            let charged = common(&usage, &unbilled);
            unbilled = less(&unbilled, &charged);
            let prices = quote.rates(tier, usage.prompt_tokens());
            RoundBill { prices, usual: quote.usual(), charged, lost: less(&usage, &charged) }
        })
    }
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
const fn less(all: &Usage, part: &Usage) -> Usage {
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
const fn common(one: &Usage, other: &Usage) -> Usage {
    less(one, &less(one, other))
}

fn too_many_rounds() -> Rejection {
    let most = MOST_ROUNDS as u64;
    Rejection::new(
        Code::CallTooLong,
        format!("The call had {most} rounds, the most that one bill has lines for."),
    )
    .with_limit("rounds", "rounds", most, most)
}
