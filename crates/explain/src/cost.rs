//! Where the money of a call went: tokens times the price of their class on that day, what was held against what was charged, what
//! was lost, what discounts were worth, and what others charge for it. Reads no price list: a trace keeps the prices that applied.

use headrace_domain::{
    Attempt, AttemptOutcome, NanoDollars, NanoDollarsPerMillion, Outcome, PriceTier, Rounding, TokenClass,
    TraceRecord, UsageSource,
};
use headrace_trace::{grouped, percent, plain, utc_date};
use serde::Serialize;

use crate::words::count;

/// Why a call cost what it cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CostExplanation {
    /// Which call.
    pub id: String,
    /// Where most of its money went, in one sentence.
    pub sentence: String,
    /// The bill, class by class; it sums to what was charged. Empty where no prices were kept.
    pub terms: Vec<CostLine>,
    /// What was charged, in dollars.
    pub total_dollars: String,
    /// The same in nano-dollars, as a string.
    pub total_nano_dollars: String,
    /// What was held.
    pub held_dollars: String,
    /// Prompt tokens that were held for.
    pub held_prompt_tokens: Option<u64>,
    /// Generated tokens that were held for, of all answers.
    pub held_output_tokens: Option<u64>,
    /// What was given back.
    pub given_back_dollars: String,
    /// What went to the loss account.
    pub loss_dollars: String,
    /// What others charge us for it; `None`: nobody, or nobody knows.
    pub paid_dollars: Option<String>,
    /// What was charged less that.
    pub margin_dollars: Option<String>,
    /// What each try costs us, where others were asked.
    pub tries: Vec<PaidTry>,
    /// The class of service that it was priced in.
    pub tier: &'static str,
    /// The day (UTC) whose prices applied.
    pub priced_at: Option<String>,
    /// What it would have cost more, had nothing come from the cache.
    pub saved_by_cache_dollars: Option<String>,
    /// What else should be known, each a sentence.
    pub notes: Vec<String>,
}

/// A class of tokens on the bill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CostLine {
    /// Which class.
    pub class: &'static str,
    /// Tokens charged.
    pub tokens: u64,
    /// Tokens that were used beyond that, on the house.
    pub lost_tokens: u64,
    /// Dollars for a million of them.
    pub price_per_million_dollars: String,
    /// What is usual, where another price applied.
    pub usual_price_per_million_dollars: Option<String>,
    /// Dollars.
    pub dollars: String,
    /// Nano-dollars, as a string.
    pub nano_dollars: String,
}

/// What a try costs us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PaidTry {
    /// Who was asked.
    pub worker: String,
    /// What came of it.
    pub outcome: &'static str,
    /// What it costs us; `None`: nobody knows.
    pub dollars: Option<String>,
}

/// Why a call cost what it cost.
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

/// The first sentence: the dearest class, and its part of the whole.
fn sentence(record: &TraceRecord) -> String {
    let cost = record.cost;
    let lines = record.billed.as_deref().map_or(&[][..], |billed| &billed.lines);
    let free = match &record.outcome {
        Outcome::Refused(_) => Some("It was refused, and a refused call costs nothing.".to_owned()),
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

/// What the cached tokens would have cost as computed ones, less what they cost.
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
        notes.push(format!("The prices are those of {} (UTC).", utc_date(billed.at)));
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
            "{} was used and is not charged: it was not handed over, or goes beyond what was held, and is the house's loss.",
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

/// `0.000091`: without the sign of the currency, so that a program can parse it.
pub(crate) fn dollars(amount: NanoDollars) -> String {
    amount.to_string().replacen('$', "", 1)
}

/// Dollars for a million tokens.
fn per_million(price: NanoDollarsPerMillion) -> String {
    dollars(NanoDollars::new(price.get()))
}
