//! `retires`, `deprecated`, `successor`, `page` and `after` of a model or a route: when its name retires, and what
//! replaces it. Must not know which models there are.

use headrace_catalog::RetirementNotice;
use headrace_domain::UnixNanos;
use headrace_trace::utc_midnight;

use super::table::TableReader;
use super::value::SettingKind;

const AFTER: &[&str] = &["refuse", "move"];

/// Reads the retirement notice of a table, if it has one.
pub(super) fn notice(table: &mut TableReader) -> Option<RetirementNotice> {
    let dated = table.left.contains_key("retires");
    for key in ["deprecated", "successor", "page", "after"] {
        if !dated && table.left.contains_key(key) {
            table.problem(key, "says something of an end that has no day: give it `retires`".to_owned());
        }
    }
    let retires = day(table, "retires");
    let deprecated = day(table, "deprecated");
    let successor = if table.left.contains_key("successor") { table.need_name("successor") } else { None };
    let link = table.take_text("page", SettingKind::Text);
    let moves = table.take_text("after", SettingKind::Choice(AFTER)).as_deref() == Some("move");
    if link.as_deref().is_some_and(|link| !is_address(link)) {
        table.problem("page", "is no address: https://…, in ASCII, without spaces, `<` and `>`".to_owned());
    }
    if deprecated.zip(retires).is_some_and(|(deprecated, retires)| deprecated > retires) {
        table.problem("deprecated", "is later than `retires`".to_owned());
    }
    Some(RetirementNotice { retires: retires?, deprecated, successor, link, moves })
}

/// Reads a day as its first moment in UTC. Accepts text and TOML dates.
fn day(table: &mut TableReader, key: &'static str) -> Option<UnixNanos> {
    let value = table.raw(key)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let day = utc_midnight(&text);
    if day.is_none() {
        table.problem(key, format!("{value} is no day: write \"2027-01-31\""));
    }
    day
}

fn is_address(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_graphic() && !matches!(b, b'<' | b'>' | b'"');
    text.split_once("://")
        .is_some_and(|(scheme, rest)| matches!(scheme, "http" | "https") && !rest.is_empty())
        && text.bytes().all(fits)
}
