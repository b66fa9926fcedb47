//! Prices as tables write them: dollars in quotes. Must not know which models there are.

use headrace_domain::{ModelName, PriceTier, TierName};
use headrace_ledger::prices::PriceConfig;

use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

/// $0.10 per million input tokens, a tenth of it for cached ones, four times it for output. The demo model costs this,
/// and `up --model` charges it without a configured price.
const PLAY_INPUT: i64 = 100_000_000;
/// The keys of a `[[prices]]` table that are token prices.
const PRICED: [&str; 6] = ["input", "cached_input", "cache_write", "cache_write_1h", "output", "reasoning"];

/// The service tiers that may have prices of their own.
const TIERS: &[&str] = &["flex", "batch", "priority"];

/// Reads the prices of a table. Returns `None` if the table has any fault.
pub(super) fn prices_of(table: &mut TableReader, model: ModelName) -> Option<PriceConfig> {
    let from = table.take_text("from", SettingKind::Text);
    let per = table.take_text("per", SettingKind::Choice(&["million", "thousand"]));
    let tier = table.take_text("tier", SettingKind::Choice(TIERS));
    let tier = PriceTier::NAMED.into_iter().find(|known| Some(known.name()) == tier.as_deref());
    let holder_tier = table.take_text("holder_tier", SettingKind::Text);
    let holder_tier = holder_tier.and_then(|text| {
        TierName::new(&text).map_err(|error| table.problem("holder_tier", error.to_string())).ok()
    });
    let above = table.take("above", SettingKind::Count { least: 1, most: u64::MAX });
    let above = if let Some(ParsedValue::Count(tokens)) = above { Some(tokens) } else { None };
    let thousand = per.as_deref() == Some("thousand");
    for key in ["input", "output"] {
        if !table.left.contains_key(key) {
            table.problem(key, "is missing: write \"0\" if it is meant to be free".to_owned());
        }
    }
    let [input, cached_input, cache_write, cache_write_1h, output, reasoning] = PRICED.map(|key| {
        let value = table.raw(key)?;
        nano_dollars_per_million(&value, thousand).map_err(|why| table.problem(key, why)).ok()
    });
    let per_search = table.raw("per_search");
    let per_search = per_search.and_then(|value| {
        nano_dollars_per_million_searches(&value).map_err(|why| table.problem("per_search", why)).ok()
    });
    table.problems.is_empty().then_some(PriceConfig {
        model,
        from,
        tier,
        holder_tier,
        above,
        input,
        cached_input,
        cache_write,
        cache_write_1h,
        output,
        reasoning,
        per_search,
    })
}

/// Reads the price of one search: text, in dollars. Returns nano-dollars per million searches.
///
/// # Errors
/// Returns why the value is not a price.
fn nano_dollars_per_million_searches(value: &toml::Value) -> Result<i64, String> {
    let toml::Value::String(text) = value else { return Err(not_in_quotes(value, "for each search")) };
    let each = headrace_domain::NanoDollars::from_dollars(text).ok();
    let million = each.and_then(|each| each.get().checked_mul(1_000_000));
    million.ok_or_else(|| {
        format!("\"{text}\" is no price of a search: write dollars for each, such as \"0.01\"")
    })
}

/// Reads a token price: text, in dollars per million or per thousand tokens. Returns nano-dollars per million tokens.
///
/// # Errors
/// Returns why the value is not a price.
fn nano_dollars_per_million(value: &toml::Value, per_thousand: bool) -> Result<i64, String> {
    match value {
        toml::Value::String(text) if per_thousand => dollars(&times_thousand(text), text),
        toml::Value::String(text) => dollars(text, text),
        _ if per_thousand => Err(not_in_quotes(value, "per thousand tokens")),
        _ => Err(not_in_quotes(value, "per million tokens")),
    }
}

/// Explains why a value that is not text is no price, and how to write it.
fn not_in_quotes(value: &toml::Value, unit: &str) -> String {
    match value {
        toml::Value::Integer(_) | toml::Value::Float(_) => {
            format!("{value} must stand in quotes to be exact: \"{value}\" is ${value} {unit}")
        }
        _ => format!("{value} is not a price: write dollars {unit} in quotes, such as \"0.10\""),
    }
}

fn dollars(text: &str, written: &str) -> Result<i64, String> {
    headrace_domain::NanoDollars::from_dollars(text).map(headrace_domain::NanoDollars::get).map_err(|_| {
        format!(
            "\"{written}\" is no price: write dollars, such as \"0.10\", that come to whole nano-dollars per \
             million tokens (nine decimals; twelve per thousand tokens)"
        )
    })
}

/// Moves the decimal point three places to the right. Text that is not a decimal number does not become one.
fn times_thousand(text: &str) -> String {
    const PLACES: usize = 3;
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    if whole.is_empty() || !fraction.is_ascii() {
        return text.to_owned();
    }
    let padded = format!("{fraction:0<PLACES$}");
    let (moved, rest) = padded.split_at(PLACES);
    format!("{whole}{moved}.{rest}")
}

pub(super) fn play_price(model: ModelName) -> PriceConfig {
    PriceConfig {
        model,
        from: None,
        tier: None,
        holder_tier: None,
        above: None,
        input: Some(PLAY_INPUT),
        cached_input: Some(PLAY_INPUT / 10),
        cache_write: None,
        cache_write_1h: None,
        output: Some(PLAY_INPUT * 4),
        reasoning: None,
        per_search: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_exact_or_refused() {
        let text = |text: &str| toml::Value::String(text.to_owned());
        let rows = [
            (text("0.10"), false, Some(100_000_000)),
            (text("$3"), false, Some(3_000_000_000)),
            (text("0.000000001"), false, Some(1)),
            (text("0.0000000001"), false, None),
            (text("0.0001"), true, Some(100_000_000)),
            (text("2"), true, Some(2_000_000_000_000)),
            (text(".5"), false, None),
            (text(".5"), true, None),
            (text("0.000000000001"), true, Some(1)),
            (text("0.0000000000001"), true, None),
            (text("-1"), false, Some(-1_000_000_000)),
            (text("99999999999"), false, None),
            (text("9999999999"), true, None),
            (text("one"), true, None),
            (text("0.é"), true, None),
            (text(""), true, None),
            (toml::Value::Integer(7), false, None),
            (toml::Value::Integer(7), true, None),
            (toml::Value::Integer(0), false, None),
            (toml::Value::Integer(100_000_000), false, None),
            (toml::Value::Float(0.1), false, None),
            (toml::Value::Boolean(true), false, None),
        ];
        for (value, per_thousand, expected) in rows {
            let read = nano_dollars_per_million(&value, per_thousand);
            assert_eq!(read.clone().ok(), expected, "{value} {per_thousand}: {read:?}");
        }
        let quoted = nano_dollars_per_million(&toml::Value::Float(0.1), false).unwrap_err();
        assert!(quoted.contains("in quotes to be exact: \"0.1\""), "{quoted}");
        for (number, per_thousand, expected) in [
            (
                toml::Value::Integer(10),
                false,
                "10 must stand in quotes to be exact: \"10\" is $10 per million tokens",
            ),
            (
                toml::Value::Integer(2),
                true,
                "2 must stand in quotes to be exact: \"2\" is $2 per thousand tokens",
            ),
            (toml::Value::Float(0.5), true, "\"0.5\" is $0.5 per thousand tokens"),
        ] {
            let why = nano_dollars_per_million(&number, per_thousand).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let search = nano_dollars_per_million_searches(&toml::Value::Integer(1)).unwrap_err();
        assert!(search.contains("\"1\" is $1 for each search"), "{search}");
    }
}
