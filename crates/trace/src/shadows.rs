//! Compares two models by shadow copies of calls: how often their answers agree, and their length, speed and cost. Must
//! not know the text of an answer.

use std::collections::BTreeMap;

use headrace_domain::{CallOutcome, NanoDollars, RequestId, ShadowComparison, TraceRecord};
use serde::Serialize;

use crate::units::{grouped, humane_duration, percent, three_digits};

/// Maximum number of examples per pair.
const WORST: usize = 5;

/// A model, the model that got copies of its calls, and the comparison of both. In each pair of figures, the original's
/// comes first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShadowPair {
    /// The model that answered the callers.
    pub model: String,
    /// The model that answered the copies.
    pub shadow: String,
    /// Number of copies that were started.
    pub copies: u64,
    /// Number of copies that were answered completely. All further figures are about these.
    pub answered: u64,
    /// Number of copies whose answers were compared.
    pub compared: u64,
    /// Of `compared`: number of equal answers, including tool calls.
    pub same: u64,
    /// Mean length of the common prefix, in thousandths of the longer answer's characters.
    pub common_permille: u64,
    /// Of `compared`: number of answers that ended for the same reason.
    pub same_finish: u64,
    /// Of `compared`: number of pairs in which at least one answer calls a tool.
    pub with_tools: u64,
    /// Of `with_tools`: number of pairs that call the same tools.
    pub same_tools: u64,
    /// Of `with_tools`: number of pairs with the same tool arguments.
    pub same_arguments: u64,
    /// Mean tokens per answer.
    pub output_tokens: [f64; 2],
    /// Nanoseconds to the first token: median and 95th percentile.
    pub first_token_ns: [[u64; 2]; 2],
    /// Nanoseconds that the server took for the whole call: median and 95th percentile.
    pub server_ns: [[u64; 2]; 2],
    /// Total cost of all answered calls, at list prices.
    pub cost: [NanoDollars; 2],
    /// The pairs that differ most, worst first.
    pub worst: Vec<ShadowExample>,
}

/// Two answers that differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShadowExample {
    /// The original call.
    pub call: RequestId,
    /// Its shadow copy.
    pub copy: RequestId,
    /// The comparison of both answers.
    pub compared: ShadowComparison,
}

/// Compares each pair of models, in the order of their names. Skips records that are not shadow copies.
pub fn shadow_pairs(records: &[TraceRecord]) -> Vec<ShadowPair> {
    let mut pairs: BTreeMap<(&str, &str), Vec<&TraceRecord>> = BTreeMap::new();
    for record in records {
        if let Some(shadow) = &record.shadow_of {
            let served = record.model_served.as_deref().unwrap_or("?");
            pairs.entry((&shadow.model, served)).or_default().push(record);
        }
    }
    pairs.into_iter().map(|((model, shadow), copies)| pair(model, shadow, &copies)).collect()
}

fn pair(model: &str, shadow: &str, copies: &[&TraceRecord]) -> ShadowPair {
    let answered: Vec<_> = copies
        .iter()
        .filter(|copy| matches!(copy.outcome, CallOutcome::Completed { .. }))
        .filter_map(|copy| Some((*copy, copy.shadow_of.as_deref()?)))
        .collect();
    let mut examples: Vec<ShadowExample> = answered
        .iter()
        .filter_map(|(copy, of)| {
            let compared = of.compared.clone()?;
            Some(ShadowExample { call: of.call, copy: copy.request_id, compared })
        })
        .collect();
    let pairs: Vec<ShadowComparison> = examples.iter().map(|example| example.compared.clone()).collect();
    let count =
        |holds: &dyn Fn(&ShadowComparison) -> bool| number(pairs.iter().filter(|pair| holds(pair)).count());
    let with_tools = |pair: &ShadowComparison| pair.tool_calls != [0, 0];
    let common: u64 = pairs.iter().map(|pair| u64::from(pair.common_permille)).sum();
    let times = |real: &dyn Fn(usize) -> Option<u64>, copy: &dyn Fn(usize) -> Option<u64>| {
        [real, copy].map(|of| quantiles((0..answered.len()).filter_map(of).collect()))
    };
    let at = |at: usize| answered.get(at);
    let mean = |sum: u64| sum as f64 / answered.len().max(1) as f64;
    let sum = |costs: &mut dyn Iterator<Item = NanoDollars>| {
        NanoDollars::checked_sum(costs).unwrap_or(NanoDollars::MAX)
    };
    let figures = ShadowPair {
        model: model.to_owned(),
        shadow: shadow.to_owned(),
        copies: number(copies.len()),
        answered: number(answered.len()),
        compared: number(pairs.len()),
        same: count(&|pair| pair.same),
        common_permille: common.checked_div(number(pairs.len())).unwrap_or(0),
        same_finish: count(&|pair| pair.same_finish),
        with_tools: count(&with_tools),
        same_tools: count(&|pair| with_tools(pair) && pair.same_tools),
        same_arguments: count(&|pair| with_tools(pair) && pair.same_arguments),
        output_tokens: [
            mean(answered.iter().map(|(_, of)| of.went.output_tokens).sum()),
            mean(answered.iter().map(|(copy, _)| copy.usage.completion_tokens()).sum()),
        ],
        first_token_ns: times(&|n| at(n).and_then(|(_, of)| of.went.first_token_ns), &|n| {
            at(n).and_then(|(copy, _)| copy.time_to_first_token_ns())
        }),
        server_ns: times(&|n| at(n).map(|(_, of)| of.went.server_ns), &|n| {
            at(n).map(|(copy, _)| copy.server_ns())
        }),
        cost: [
            sum(&mut answered.iter().map(|(_, of)| of.went.cost)),
            sum(&mut answered.iter().map(|(copy, _)| copy.loss)),
        ],
        worst: Vec::new(),
    };
    examples.retain(|example| !example.compared.same);
    examples.sort_by_key(|example| {
        let ShadowComparison { same_tools, same_arguments, common_permille, .. } = example.compared;
        (same_tools, same_arguments, common_permille)
    });
    examples.truncate(WORST);
    ShadowPair { worst: examples, ..figures }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The median and the 95th percentile, by the nearest rank. Zeros if there are no values.
fn quantiles(mut values: Vec<u64>) -> [u64; 2] {
    values.sort_unstable();
    [50, 95].map(|percent| {
        let rank = (values.len() * percent).div_ceil(100);
        values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    })
}

impl ShadowPair {
    /// Text for people. Each line ends in `\n`.
    pub fn text(&self) -> String {
        let Self { model, shadow, copies, answered, compared, .. } = self;
        let mut out = format!(
            "{model} → {shadow}: {} copies, {} answered, {} compared\n",
            grouped(*copies),
            grouped(*answered),
            grouped(*compared)
        );
        let mut row = |name: &str, [real, copy]: [String; 2]| {
            out.push_str(&format!("  {name:<20}{real:>12} → {copy}\n"))
        };
        row("tokens, mean", self.output_tokens.map(three_digits));
        for (name, of) in [("first token", self.first_token_ns), ("whole call", self.server_ns)] {
            for (at, quantile) in ["p50", "p95"].into_iter().enumerate() {
                let of = of.map(|times| humane_duration(times.get(at).copied().unwrap_or(0)));
                row(&format!("{name}, {quantile}"), of);
            }
        }
        row("cost of all", self.cost.map(|cost| cost.to_string()));
        if *compared > 0 {
            let of = |part: u64| percent(part, *compared);
            out.push_str(&format!(
                "  the same answer {}, the same finish {}, {} of the characters in common\n",
                of(self.same),
                of(self.same_finish),
                percent(self.common_permille, 1000)
            ));
        }
        if self.with_tools > 0 {
            let of = |part: u64| percent(part, self.with_tools);
            out.push_str(&format!(
                "  {} with tool calls: the same tools {}, the same arguments {}\n",
                grouped(self.with_tools),
                of(self.same_tools),
                of(self.same_arguments)
            ));
        }
        for example in &self.worst {
            let ShadowExample { call, copy, compared } = example;
            let tools = if compared.same_arguments { "" } else { ", other tool calls" };
            out.push_str(&format!(
                "  farthest apart: {call} and its copy {copy}: {} in common{tools}\n",
                percent(u64::from(compared.common_permille), 1000)
            ));
        }
        out
    }
}

#[cfg(test)]
mod tests;
