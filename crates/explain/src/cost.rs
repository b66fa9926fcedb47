//! Explains where the money of a call went: tokens times the price of their class on that day, the hold and the charge,
//! losses, discounts, and what upstreams charge. Reads no price list, because a trace keeps the prices that applied.

use headrace_domain::{
    Attempt, AttemptOutcome, CallOutcome, NanoDollars, NanoDollarsPerMillion, PriceTier, Rounding,
    TokenClass, TraceRecord, UsageSource,
};
use headrace_trace::{grouped, percent, plain, utc_date};
use serde::Serialize;

use crate::words::count;

/// Why a call cost what it did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CostExplanation {
    /// The call's request id.
    pub id: String,
    /// The largest part of its cost, in one sentence.
    pub sentence: String,
    /// The bill by token class. Its lines sum to the charge. Empty if the record keeps no prices.
    pub terms: Vec<CostLine>,
    /// The charge in dollars.
    pub total_dollars: String,
    /// The charge in nano-dollars, as a string.
    pub total_nano_dollars: String,
    /// The hold in dollars.
    pub held_dollars: String,
    /// Prompt tokens covered by the hold.
    pub held_prompt_tokens: Option<u64>,
    /// Generated tokens covered by the hold, of all choices.
    pub held_output_tokens: Option<u64>,
    /// The released part of the hold, in dollars.
    pub given_back_dollars: String,
    /// Dollars booked to the loss account.
    pub loss_dollars: String,
    /// What upstreams charge us for it, in dollars. `None` if no upstream does, or the price is unknown.
    pub paid_dollars: Option<String>,
    /// The charge less what upstreams charge us, in dollars.
    pub margin_dollars: Option<String>,
    /// The cost of each attempt to us, if an upstream was called.
    pub tries: Vec<PaidTry>,
    /// The service tier of its prices.
    pub tier: &'static str,
    /// The day (UTC) whose prices applied.
    pub priced_at: Option<String>,
    /// What the cache saved, in dollars.
    pub saved_by_cache_dollars: Option<String>,
    /// Further remarks, one sentence each.
    pub notes: Vec<String>,
}

/// A token class on the bill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CostLine {
    /// The name of the class.
    pub class: &'static str,
    /// Tokens charged.
    pub tokens: u64,
    /// Tokens used beyond the charge, at our loss.
    pub lost_tokens: u64,
    /// Price in dollars per million tokens.
    pub price_per_million_dollars: String,
    /// The usual price, if another one applied.
    pub usual_price_per_million_dollars: Option<String>,
    /// The amount in dollars.
    pub dollars: String,
    /// The amount in nano-dollars, as a string.
    pub nano_dollars: String,
}

/// The cost of an attempt to us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PaidTry {
    /// The worker that was called.
    pub worker: String,
    /// The outcome of the attempt.
    pub outcome: &'static str,
    /// Its cost to us in dollars. `None` if it is unknown.
    pub dollars: Option<String>,
}

/// Explains why a call cost what it did.
pub fn why_cost(record: &TraceRecord) -> CostExplanation {
    let billed = record.billed.as_deref();
    let lines: Vec<CostLine> = billed.map_or_else(Vec::new, |billed| {
        billed
            .lines
            .iter()
            .map(|line| CostLine {
                class: line.class.name(),
                tokens: line.tokens,
                lost_tokens: line.lost_tokens,
                price_per_million_dollars: per_million(line.price),
                usual_price_per_million_dollars: line.usual_price.map(per_million),
                dollars: dollars(line.amount),
                nano_dollars: line.amount.get().to_string(),
            })
            .collect()
    });
    let margin = record.paid.and_then(|paid| record.cost.checked_sub(paid).ok());
    let tried = |attempt: &Attempt| PaidTry {
        worker: plain(&attempt.worker),
        outcome: attempt.outcome.name(),
        dollars: attempt.paid.map(dollars),
    };
    CostExplanation {
        id: record.request_id.to_string(),
        sentence: sentence(record),
        terms: lines,
        total_dollars: dollars(record.cost),
        total_nano_dollars: record.cost.get().to_string(),
        held_dollars: dollars(record.held),
        held_prompt_tokens: billed.map(|billed| billed.held_prompt_tokens),
        held_output_tokens: billed.map(|billed| billed.held_output_tokens),
        given_back_dollars: dollars(record.held.checked_sub(record.cost).unwrap_or(NanoDollars::ZERO)),
        loss_dollars: dollars(record.loss),
        paid_dollars: record.paid.map(dollars),
        margin_dollars: margin.map(dollars),
        tries: record.attempts.iter().filter(|_| record.upstream.is_some()).map(tried).collect(),
        tier: record.price_tier.name(),
        priced_at: billed.map(|billed| utc_date(billed.at)),
        saved_by_cache_dollars: saved_by_cache(record).map(dollars),
        notes: notes(record, margin),
    }
}

/// The first sentence: the most expensive class, and its share of the charge.
fn sentence(record: &TraceRecord) -> String {
    let cost = record.cost;
    let lines = record.billed.as_deref().map_or(&[][..], |billed| &billed.lines);
    let free = match &record.outcome {
        CallOutcome::Refused(_) => Some("It was refused, and a refused call costs nothing.".to_owned()),
        _ if cost == NanoDollars::ZERO && record.loss > NanoDollars::ZERO => {
            Some(format!("Nothing was charged: {} of it went to the loss account.", record.loss))
        }
        _ if cost == NanoDollars::ZERO => Some("Nothing was charged.".to_owned()),
        _ => None,
    };
    if let Some(free) = free {
        return free;
    }
    let Some(dearest) = lines.iter().max_by_key(|line| line.amount) else {
        return format!("It cost {cost}; the record keeps no prices (it is of an older version).");
    };
    let share = percent(dearest.amount.get().unsigned_abs(), cost.get().unsigned_abs());
    format!(
        "It cost {cost}: {share} of it for {} at ${} a million.",
        count(dearest.tokens, class_words(dearest.class)),
        per_million(dearest.price)
    )
}

const fn class_words(class: TokenClass) -> &'static str {
    match class {
        TokenClass::Input => "computed prompt token",
        TokenClass::CachedInput => "cached prompt token",
        TokenClass::CacheWrite => "prompt token that the cache keeps",
        TokenClass::CacheWrite1h => "prompt token kept for an hour",
        TokenClass::Output => "generated token",
        TokenClass::Reasoning => "thought token",
        TokenClass::WebSearch => "web search",
    }
}

/// The price of the cached tokens as computed ones, less their actual price.
fn saved_by_cache(record: &TraceRecord) -> Option<NanoDollars> {
    let billed = record.billed.as_deref()?;
    let [computed, cached] = billed.prompt_prices?;
    let tokens = billed.lines.iter().find(|line| line.class == TokenClass::CachedInput)?.tokens;
    let cost = |price: NanoDollarsPerMillion| price.cost(tokens, Rounding::Nearest).ok();
    cost(computed)?.checked_sub(cost(cached)?).ok().filter(|saved| saved.get() > 0)
}

fn notes(record: &TraceRecord, margin: Option<NanoDollars>) -> Vec<String> {
    let mut notes = Vec::new();
    let billed = record.billed.as_deref();
    if let Some(billed) = billed {
        notes.push(format!(
            "{} were held for: {} and at most {}, each at the dearest price that it could have. {} came back.",
            record.held,
            count(billed.held_prompt_tokens, "prompt token"),
            count(billed.held_output_tokens, "generated token"),
            record.held.checked_sub(record.cost).unwrap_or(NanoDollars::ZERO)
        ));
        notes.push(match &billed.holder_tier {
            None => format!("The prices are those of {} (UTC).", utc_date(billed.at)),
            Some(tier) => format!("The prices are those of tier `{tier}` on {} (UTC).", utc_date(billed.at)),
        });
    }
    if record.price_tier != PriceTier::Standard {
        notes.push(format!("It was priced in the class of service `{}`.", record.price_tier));
    }
    for line in billed.map_or(&[][..], |billed| &billed.lines) {
        if let Some(usual) = line.usual_price {
            let kind = if line.price < usual { "a discount" } else { "a surcharge" };
            notes.push(format!(
                "`{}` tokens had {kind}: ${} a million instead of ${}.",
                line.class,
                per_million(line.price),
                per_million(usual)
            ));
        }
    }
    if let Some(saved) = saved_by_cache(record) {
        let cached = grouped(record.usage.cached_input);
        notes.push(format!("{cached} prompt tokens came from the cache: that saved {saved}."));
    }
    if record.loss > NanoDollars::ZERO {
        notes.push(format!(
            "{} was used and is not charged: that part was not delivered, or exceeds the hold. The operator bears the loss.",
            record.loss
        ));
    }
    match record.usage_source {
        UsageSource::Counted => {}
        UsageSource::Reported => {
            notes.push("The tokens are what the server that answered reported.".to_owned())
        }
        UsageSource::Estimated => {
            let why = record.why_estimated.as_deref().unwrap_or("the upstream reported no usage");
            notes.push(format!("Tokens are estimated from the bytes: {why}."));
        }
    }
    if let (Some(paid), Some(margin)) = (record.paid, margin) {
        notes.push(format!("Others charge {paid} for it: {margin} are left."));
    }
    let in_vain = record.attempts.iter().filter(|attempt| {
        !matches!(attempt.outcome, AttemptOutcome::Answered)
            && attempt.paid.is_some_and(|paid| paid.get() > 0)
    });
    let in_vain = in_vain.count() as u64;
    if in_vain > 0 {
        notes.push(format!("{} that did not answer it cost us money all the same.", count(in_vain, "try")));
    }
    notes
}

/// An amount such as `0.000091`, without a currency sign, so that a program can parse it.
pub(crate) fn dollars(amount: NanoDollars) -> String {
    amount.to_string().replacen('$', "", 1)
}

/// A price in dollars per million tokens.
fn per_million(price: NanoDollarsPerMillion) -> String {
    dollars(NanoDollars::new(price.get()))
}
