//! Further model names: `[aliases]`, and `[[routes]]` that lead to several models. Each key of a table is checked
//! separately, so that one fault does not hide another. Must not know which models there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::ModelName;
use headrace_rollout::{CanarySpec, FallbackModels, ModelRoute, RouteArm, StickyBy};

use super::SettingsReader;
use super::notices::notice;
use super::shadows::shadow;
use super::table::TableReader;
use super::value::{ParsedValue, SettingKind};

/// Maximum weight of a model in a route.
const MOST_WEIGHT: u32 = 1_000_000;
/// The default thresholds of a canary.
const CANARY: CanarySpec = CanarySpec {
    window: Duration::from_secs(30 * 60),
    min_calls: 40,
    errors: 0.01,
    refusals: 0.02,
    first_token: 1.5,
};
/// The names of [`StickyBy`].
const STICKY: &[&str] = &["none", "key", "user", "conversation"];

impl SettingsReader {
    pub(super) fn aliases(&mut self) -> BTreeMap<ModelName, ModelRoute> {
        let mut aliases = BTreeMap::new();
        if let Some(ParsedValue::Raw(toml::Value::Table(table))) = self.parsed("aliases") {
            for (alias, target) in table.clone() {
                match (ModelName::new(&alias), ModelName::new(target.as_str().unwrap_or_default())) {
                    (Ok(alias), Ok(target)) => drop(aliases.insert(alias, ModelRoute::to(target))),
                    (Err(error), _) | (_, Err(error)) => self.fault("aliases", format!("{alias}: {error}")),
                }
            }
        }
        for mut table in self.list("routes") {
            let name = table.need_name("name");
            let route = route(&mut table);
            let (shadow, notice) = (shadow(&mut table), notice(&mut table));
            if let Some(name) = name {
                self.names.notices.extend(notice.map(|notice| (name.clone(), notice)));
                self.names.shadows.extend(shadow.map(|shadow| (name.clone(), Arc::new(shadow))));
                if aliases.contains_key(&name) {
                    table.problem("name", format!("`{name}` is an alias or another route already"));
                }
                aliases.insert(name, route);
            }
            self.settings.problems.extend(table.end());
        }
        aliases
    }
}

fn route(table: &mut TableReader) -> ModelRoute {
    let mut arms = Vec::new();
    match table.raw("to") {
        Some(toml::Value::Array(items)) if !items.is_empty() => {
            for (at, item) in items.into_iter().enumerate() {
                arms.extend(arm(table, at, item));
            }
        }
        Some(toml::Value::String(text)) => arms.extend(arm(table, 0, toml::Value::String(text))),
        _ => table.problem("to", "must be a list of models: { model = \"a\", weight = 95 }".to_owned()),
    }
    for (at, arm) in arms.iter().enumerate() {
        if arms.iter().skip(at + 1).any(|other| other.model == arm.model) {
            table.problem("to", format!("`{}` is listed twice: give it one weight", arm.model));
        }
    }
    if !arms.is_empty() && arms.iter().all(|arm| arm.weight == 0) {
        table.problem("to", "leads nowhere: give a model a weight above 0".to_owned());
    }
    let sticky = table.take_text("sticky", SettingKind::Choice(STICKY));
    let sticky = StickyBy::ALL.into_iter().find(|known| Some(known.name()) == sticky.as_deref());
    let seed = match table.take("seed", SettingKind::Count { least: 0, most: i64::MAX.unsigned_abs() }) {
        Some(ParsedValue::Count(seed)) => seed,
        _ => 0,
    };
    let fallbacks = match table.raw("fallbacks") {
        None => FallbackModels::default(),
        Some(toml::Value::Table(left)) => {
            let mut inner = TableReader::within(table, "fallbacks", left);
            let fallbacks = FallbackModels {
                context_too_long: models(&mut inner, "context_too_long"),
                overloaded: models(&mut inner, "overloaded"),
                failed: models(&mut inner, "failed"),
                content_refused: models(&mut inner, "content_refused"),
            };
            table.problems.extend(inner.end());
            fallbacks
        }
        Some(_) => {
            let why = "must be a table, such as { context_too_long = [\"large\"], failed = [\"other\"] }";
            table.problem("fallbacks", why.to_owned());
            FallbackModels::default()
        }
    };
    ModelRoute { arms, sticky: sticky.unwrap_or_default(), seed, fallbacks }
}

/// Reads model names: one, or a list.
fn models(table: &mut TableReader, key: &'static str) -> Vec<ModelName> {
    let items = match table.raw(key) {
        None => return Vec::new(),
        Some(toml::Value::Array(items)) => items,
        Some(item) => vec![item],
    };
    let name = |item: toml::Value| match item.as_str().map(ModelName::new) {
        Some(Ok(name)) => Some(name),
        Some(Err(error)) => {
            table.problem(key, error.to_string());
            None
        }
        None => {
            table.problem(key, format!("{item} is no model's name"));
            None
        }
    };
    items.into_iter().filter_map(name).collect()
}

/// Reads an arm of a route: a model's name alone, which has weight 1, or a table with its weight.
fn arm(table: &mut TableReader, at: usize, item: toml::Value) -> Option<RouteArm> {
    let left = match item {
        toml::Value::Table(left) => left,
        item => toml::Table::from_iter([("model".to_owned(), item)]),
    };
    let mut inner = TableReader::within(table, &format!("to[{at}]"), left);
    let model = inner.need_name("model");
    let weight = match inner.take("weight", SettingKind::Count { least: 0, most: u64::from(MOST_WEIGHT) }) {
        Some(ParsedValue::Count(weight)) => u32::try_from(weight).unwrap_or(MOST_WEIGHT),
        _ => 1,
    };
    let canary = canary(&mut inner);
    table.problems.extend(inner.end());
    Some(RouteArm { model: model?, weight, canary })
}

/// Reads the canary of an arm: `true` for the defaults, or a table that overrides some of them.
fn canary(table: &mut TableReader) -> Option<CanarySpec> {
    let left = match table.raw("canary")? {
        toml::Value::Boolean(on) => return on.then_some(CANARY),
        toml::Value::Table(left) => left,
        other => {
            table.problem(
                "canary",
                format!("{other} is no table: true, or {{ min_calls = 40, errors = 0.01 }}"),
            );
            return None;
        }
    };
    let mut inner = TableReader::within(table, "canary", left);
    let (least, most) = (Duration::from_secs(10), Duration::from_secs(7 * 24 * 3600));
    let window = match inner.take("window", SettingKind::Duration { least, most }) {
        Some(ParsedValue::Duration(window)) => window,
        _ => CANARY.window,
    };
    let min_calls = match inner.take("min_calls", SettingKind::Count { least: 8, most: 4096 }) {
        Some(ParsedValue::Count(calls)) => u32::try_from(calls).unwrap_or(CANARY.min_calls),
        _ => CANARY.min_calls,
    };
    let mut part = |key: &'static str, least: f64, most: f64, usual: f64| match inner.raw(key) {
        None => usual,
        Some(toml::Value::Float(part)) if (least..=most).contains(&part) => part,
        Some(toml::Value::Integer(part)) if (least..=most).contains(&(part as f64)) => part as f64,
        Some(other) => {
            inner.problem(key, format!("{other} is no number from {least} to {most}"));
            usual
        }
    };
    let errors = part("errors", 0.0, 1.0, CANARY.errors);
    let refusals = part("refusals", 0.0, 1.0, CANARY.refusals);
    let first_token = part("first_token", 1.0, 100.0, CANARY.first_token);
    table.problems.extend(inner.end());
    Some(CanarySpec { window, min_calls, errors, refusals, first_token })
}
