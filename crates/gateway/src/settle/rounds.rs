//! The money and limits of a call's rounds. Each round is priced by the length of its own prompt. Must not know why a
//! round follows another one.

use headrace_call_state::Rejection;
use headrace_domain::{Code, NanoDollars, PriceTier, Stage, TokenClass, Usage};
use headrace_ledger::prices::Quote;

use super::round_bill::{EndedRound, RoundBill, common, less};
use super::{CallBill, CallSettlement};
use crate::Gateway;
use crate::request_context::RequestContext;

/// The most rounds of a call. Each of them has at most one line per token class on the bill.
const MOST_ROUNDS: usize = headrace_ledger::core::MAX_LINES / TokenClass::BILLED.len();

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

fn too_many_rounds() -> Rejection {
    let most = MOST_ROUNDS as u64;
    Rejection::new(
        Code::CallTooLong,
        format!("The call had {most} rounds, the most that one bill has lines for."),
    )
    .with_limit("rounds", "rounds", most, most)
}
