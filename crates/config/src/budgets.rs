//! Settings of budget rules: `[[budgets]]`. Each key of a table is checked separately, so that one fault does not hide
//! another. Must not know what was used.

use headrace_domain::{BudgetName, OrgId, TierName};
use headrace_ledger::{BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow};

use super::SettingsReader;
use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

const SCOPES: &[&str] = &["key", "user", "project", "org", "model"];
const WINDOWS: &[&str] = &["hour", "day", "week", "month", "total"];
const MEASURES: &[&str] = &["dollars", "tokens", "requests"];

impl SettingsReader {
    /// Reads the budget rules.
    pub(super) fn budgets(&mut self) -> Vec<BudgetRule> {
        let mut rules: Vec<BudgetRule> = Vec::new();
        for mut table in self.list("budgets") {
            if let Some(rule) = budget(&mut table) {
                if let Err(fault) = rule.check() {
                    table.problem(fault.field, fault.why.to_owned());
                }
                if rules.iter().any(|other| other.name == rule.name) {
                    table.problem("name", format!("`{}` is named twice", rule.name));
                }
                rules.push(rule);
            }
            self.settings.problems.extend(table.end());
        }
        rules
    }
}

/// Reads a `[[budgets]]` table. Returns `None` if a required key is missing or has a fault.
fn budget(table: &mut TableReader) -> Option<BudgetRule> {
    let is_hard = !matches!(table.take("soft", SettingKind::Flag), Some(ParsedValue::Flag(true)));
    let rule = measured_rule(table, BudgetWindow::Month);
    let thresholds = thresholds(table);
    Some(BudgetRule { is_hard, thresholds: thresholds?, ..rule? })
}

/// Reads the keys of a table that say what is counted, of whom, and how much of it. Returns `None` if a required key is
/// missing or has a fault.
pub(super) fn measured_rule(table: &mut TableReader, default_window: BudgetWindow) -> Option<BudgetRule> {
    let name = table.need("name");
    let name = parsed::<BudgetName>(table, "name", name);
    let scope = table.take_text("each", SettingKind::Choice(SCOPES));
    let scope = scope.map_or(Some(BudgetScope::Org), |text| {
        BudgetScope::ALL.into_iter().find(|known| known.name() == text)
    });
    let window = table.take_text("per", SettingKind::Choice(WINDOWS));
    let window = window.map_or(Some(default_window), |text| {
        BudgetWindow::ALL.into_iter().find(|known| known.name() == text)
    });
    let measure = table.take_text("measure", SettingKind::Choice(MEASURES));
    let measure = measure.map_or(Some(BudgetMeasure::Dollars), |text| {
        BudgetMeasure::ALL.into_iter().find(|known| known.name() == text)
    });
    let subject = table.take_text("only", SettingKind::Text);
    let org = table.take_text("org", SettingKind::Text);
    let org = parsed::<OrgId>(table, "org", org);
    let tier = table.take_text("tier", SettingKind::Text);
    let tier = parsed::<TierName>(table, "tier", tier);
    let zone = table.take_text("zone", SettingKind::Text).unwrap_or_else(|| "UTC".to_owned());
    let limit = limit(table, measure);
    Some(BudgetRule {
        name: name?,
        scope: scope?,
        org,
        subject: subject.map(Into::into),
        tier,
        window: window?,
        zone: zone.into(),
        measure: measure?,
        limit: limit?,
        is_hard: true,
        thresholds: Vec::new(),
        origin: BudgetOrigin::Settings,
    })
}

/// Parses the text of a key. Returns `None` if there is none, or if it is not valid, which is recorded.
fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    table: &mut TableReader,
    key: &str,
    text: Option<String>,
) -> Option<T> {
    text?.parse().map_err(|error: T::Err| table.problem(key, error.to_string())).ok()
}

/// Takes the limit: dollars in quotes, or a whole number of tokens or requests.
fn limit(table: &mut TableReader, measure: Option<BudgetMeasure>) -> Option<u64> {
    let Some(value) = table.raw("limit") else {
        table.problem("limit", "is missing".to_owned());
        return None;
    };
    let measure = measure?;
    let text = match (&value, measure) {
        (toml::Value::String(text), _) => text.clone(),
        (toml::Value::Integer(number), BudgetMeasure::Tokens | BudgetMeasure::Requests) => number.to_string(),
        _ => {
            table.problem(
                "limit",
                format!("{value} is not an amount: write dollars in quotes, such as \"25\""),
            );
            return None;
        }
    };
    measure.parse(&text).map_err(|why| table.problem("limit", why)).ok()
}

/// Takes the thresholds: whole numbers, in percent. Returns `None` if the value is not a list of them.
fn thresholds(table: &mut TableReader) -> Option<Vec<u16>> {
    let Some(value) = table.raw("alerts") else { return Some(Vec::new()) };
    let percents = value.as_array().and_then(|values| {
        let percent = |value: &toml::Value| value.as_integer().and_then(|number| u16::try_from(number).ok());
        values.iter().map(percent).collect::<Option<Vec<u16>>>()
    });
    if percents.is_none() {
        table.problem("alerts", format!("{value} is not a list of percentages, such as [50, 80, 100]"));
    }
    percents.map(|mut percents| {
        percents.sort_unstable();
        percents
    })
}

#[cfg(test)]
mod tests;
