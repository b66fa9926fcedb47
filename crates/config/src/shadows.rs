//! `shadow = { … }` of a model or a route: which share of its calls is copied, to which model, and within which budget.
//! Must not know which models there are.

use std::time::Duration;

use headrace_domain::NanoDollars;
use headrace_rollout::{ShadowBudget, ShadowSpec};

use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

/// Default for the number of copies in flight.
const USUAL_IN_FLIGHT: u32 = 4;
/// Default for the number of copies that wait in the queue.
const USUAL_QUEUE: u32 = 64;
/// Maximum for both numbers.
const MOST: u64 = 4096;

/// Reads the `shadow` of a table, if it has one.
pub(super) fn shadow(table: &mut TableReader) -> Option<ShadowSpec> {
    let left = match table.raw("shadow")? {
        toml::Value::Table(left) => left,
        other => {
            let why =
                format!("{other} is no table: {{ model = \"next\", share = 0.1, budget = \"$5/day\" }}");
            table.problem("shadow", why);
            return None;
        }
    };
    let mut inner = TableReader::within(table, "shadow", left);
    let model = inner.need_name("model");
    let share = inner.raw("share").map_or(Ok(1.0), |value| share(&value));
    let share = share.map_err(|why| inner.problem("share", why)).ok();
    let budget = inner.need("budget").and_then(|text| {
        let read = budget(&text);
        read.map_err(|why| inner.problem("budget", why)).ok()
    });
    let compare = inner.take("compare", SettingKind::Flag) != Some(ParsedValue::Flag(false));
    let mut count = |key: &'static str, least: u64, usual: u32| match inner
        .take(key, SettingKind::Count { least, most: MOST })
    {
        Some(ParsedValue::Count(count)) => u32::try_from(count).unwrap_or(usual),
        _ => usual,
    };
    let (in_flight, queue) = (count("in_flight", 1, USUAL_IN_FLIGHT), count("queue", 0, USUAL_QUEUE));
    table.problems.extend(inner.end());
    Some(ShadowSpec {
        model: model?,
        share: share?,
        budget: budget?,
        compare,
        in_flight,
        queue: queue as usize,
    })
}

fn share(value: &toml::Value) -> Result<f64, String> {
    let share = match value {
        toml::Value::Float(share) => *share,
        toml::Value::Integer(share) => *share as f64,
        _ => f64::NAN,
    };
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        Err(format!("{value} is no share: write 0.1 for one call in ten"))
    }
}

/// Parses a budget: `$5/day`, `0.50/hour`.
fn budget(text: &str) -> Result<ShadowBudget, String> {
    let shape = || format!("`{text}` is no budget: write \"$5/day\" or \"$0.50/hour\"");
    let (amount, period) = text.split_once('/').ok_or_else(shape)?;
    let amount = NanoDollars::from_dollars(amount.trim().trim_start_matches('$')).map_err(|_| shape())?;
    let seconds = match period.trim() {
        "hour" => 3600,
        "day" => 24 * 3600,
        _ => return Err(shape()),
    };
    if amount.is_negative() {
        return Err(shape());
    }
    Ok(ShadowBudget { amount, period: Duration::from_secs(seconds) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_money_for_a_period() {
        for (text, dollars, seconds) in [
            ("$5/day", "5", 86_400),
            ("0.50/hour", "0.50", 3600),
            (" $2 / day", "2", 86_400),
            ("0/day", "0", 86_400),
        ] {
            let read = budget(text).unwrap();
            assert_eq!(read.amount, NanoDollars::from_dollars(dollars).unwrap(), "{text}");
            assert_eq!(read.period.as_secs(), seconds, "{text}");
        }
        for text in ["$5", "5", "$/day", "$5/year", "-1/day", "$5/day/hour", ""] {
            assert!(budget(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_is_a_part_of_one() {
        let of = |text: &str| share(&text.parse::<toml::Table>().unwrap()["x"]);
        for (text, expected) in [("x = 0.25", 0.25), ("x = 1", 1.0), ("x = 0", 0.0)] {
            assert_eq!(of(text), Ok(expected), "{text}");
        }
        for text in ["x = 1.5", "x = -0.1", "x = \"0.1\"", "x = nan", "x = 2"] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
