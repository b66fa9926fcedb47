//! The settings that are lists of tables: models, prices, aliases, weights, rules. Each key of a table is read for
//! itself, so that one fault hides no other. Must not know what becomes of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use headrace_domain::{ModelName, OrgId};
use headrace_ledger::prices::{PriceConfig, PriceList};
use headrace_limits::LimitSpec;
use headrace_moderation::{RuleConfig, Rules};
use serde::Deserialize;

use super::arithmetic::{Arithmetic, KV_TYPES, MODES, QUANTIZED};
use super::fields::find;
use super::layers::{Origin, Problem, unknown};
use super::value::{Kind, Parsed};
use super::{DEMO_NAME, DEMO_PATH, ModelConfig, Reader};

/// The greatest weight of an organisation.
const MOST_WEIGHT: u32 = 1000;
/// $0.10 per million input tokens, a tenth of it for cached ones, four times it for output: what the demo model costs,
/// and what `up --model` charges where nothing is configured.
const PLAY_INPUT: i64 = 100_000_000;
/// The keys of a `[[prices]]` table that are prices.
const PRICED: [&str; 5] = ["input", "cached_input", "cache_write", "output", "reasoning"];

/// One `[[scheduler.weights]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightTable {
    org: OrgId,
    weight: u32,
}

/// One table of a list, whose keys are taken out one after another.
struct Table {
    /// Such as `models[0]`.
    what: String,
    origin: Origin,
    left: toml::Table,
    known: Vec<&'static str>,
    problems: Vec<Problem>,
}

impl Table {
    fn problem(&mut self, key: &str, why: String) {
        let what = if key.is_empty() { self.what.clone() } else { format!("{}.{key}", self.what) };
        self.problems.push(Problem { what, origin: self.origin.clone(), why });
    }

    fn raw(&mut self, key: &'static str) -> Option<toml::Value> {
        self.known.push(key);
        self.left.remove(key)
    }

    /// The value of a key, if it stands there and is right.
    fn take(&mut self, key: &'static str, kind: Kind) -> Option<Parsed> {
        let value = self.raw(key)?;
        kind.parse(&value).map_err(|why| self.problem(key, why)).ok()
    }

    /// The same, of the kind and within the bounds of a setting.
    fn take_as(&mut self, key: &'static str, setting: &str) -> Option<u64> {
        match self.take(key, find(setting)?.kind) {
            Some(Parsed::Count(count)) => Some(count),
            _ => None,
        }
    }

    fn take_text(&mut self, key: &'static str, kind: Kind) -> Option<String> {
        if let Some(Parsed::Text(text)) = self.take(key, kind) { Some(text) } else { None }
    }

    /// A text that must stand there.
    fn need(&mut self, key: &'static str) -> Option<String> {
        if !self.left.contains_key(key) {
            self.known.push(key);
            self.problem(key, "is missing".to_owned());
            return None;
        }
        self.take_text(key, Kind::Text)
    }

    fn need_name(&mut self, key: &'static str) -> Option<ModelName> {
        let text = self.need(key)?;
        ModelName::new(&text).map_err(|error| self.problem(key, error.to_string())).ok()
    }

    /// What is wrong with it, keys that nobody asked for included.
    fn end(mut self) -> Vec<Problem> {
        let strange: Vec<String> = self.left.keys().cloned().collect();
        for key in strange {
            let why = unknown(&key, self.known.iter().map(|known| (*known).to_owned()));
            self.problem(&key, why);
        }
        self.problems
    }
}

impl Reader {
    /// The tables of a list, to be taken apart.
    fn list(&self, path: &str) -> Vec<Table> {
        let Some(Parsed::Raw(toml::Value::Array(items))) = self.parsed(path) else { return Vec::new() };
        let origin = self.settings.origin(path);
        let tables = items.iter().filter_map(toml::Value::as_table).enumerate();
        tables
            .map(|(index, table)| Table {
                what: format!("{path}[{index}]"),
                origin: origin.clone(),
                left: table.clone(),
                known: Vec::new(),
                problems: Vec::new(),
            })
            .collect()
    }

    /// The tables of a list of another room's type.
    fn tables<T: serde::de::DeserializeOwned>(&mut self, path: &str) -> Vec<(String, T)> {
        let mut read = Vec::new();
        for table in self.list(path) {
            match toml::Value::Table(table.left).try_into() {
                Ok(found) => read.push((table.what, found)),
                Err(error) => {
                    let why = error.to_string().trim_end().replace('\n', " ");
                    self.settings.problem(&table.what, table.origin, why);
                }
            }
        }
        read
    }

    pub(super) fn models(&mut self) -> Vec<ModelConfig> {
        if self.settings.get("models").is_none() {
            return ModelName::new(DEMO_NAME).ok().map(demo_model).into_iter().collect();
        }
        let tables = self.list("models");
        if tables.is_empty() {
            self.fault("models", "is empty: name a model, or leave it out to serve the demo model");
        }
        let mut models: Vec<ModelConfig> = Vec::new();
        for mut table in tables {
            if let Some(model) = model(&mut table) {
                if models.iter().any(|other| other.name == model.name) {
                    table.problem("name", format!("`{}` is named twice", model.name));
                }
                models.push(model);
            }
            self.settings.problems.extend(table.end());
        }
        models
    }

    /// The prices; with `play_prices`, a model without one gets the demo model's.
    pub(super) fn prices(&mut self, models: &[ModelConfig], play_prices: bool) -> PriceList {
        let mut prices = Vec::new();
        let mut named = Vec::new();
        for mut table in self.list("prices") {
            let model = table.need_name("model");
            prices.extend(model.clone().and_then(|model| price(&mut table, model)));
            named.extend(model);
            self.settings.problems.extend(table.end());
        }
        for model in models.iter().filter(|model| !named.contains(&model.name)) {
            if play_prices || model.path.is_none() {
                prices.push(play_price(model.name.clone()));
                continue;
            }
            let why = format!(
                "model `{0}` has no price and would be refused: add [[prices]] with model = \"{0}\"",
                model.name
            );
            self.fault("prices", why);
        }
        PriceList::from_config(&prices).unwrap_or_else(|errors| {
            errors.iter().for_each(|error| self.fault("prices", error));
            PriceList::default()
        })
    }

    pub(super) fn aliases(&mut self) -> BTreeMap<ModelName, ModelName> {
        let Some(Parsed::Raw(toml::Value::Table(table))) = self.parsed("aliases") else {
            return BTreeMap::new();
        };
        let mut aliases = BTreeMap::new();
        for (alias, target) in table.clone() {
            match (ModelName::new(&alias), ModelName::new(target.as_str().unwrap_or_default())) {
                (Ok(alias), Ok(target)) => drop(aliases.insert(alias, target)),
                (Err(error), _) | (_, Err(error)) => self.fault("aliases", format!("{alias}: {error}")),
            }
        }
        aliases
    }

    pub(super) fn weights(&mut self) -> BTreeMap<OrgId, u32> {
        let mut weights = BTreeMap::new();
        for (what, table) in self.tables::<WeightTable>("scheduler.weights") {
            let twice = weights.insert(table.org.clone(), table.weight).is_some();
            let why = match table.weight {
                _ if twice => format!("`org` {} stands there twice", table.org),
                1..=MOST_WEIGHT => continue,
                weight => format!("`weight` is {weight}; it must be 1 to {MOST_WEIGHT}"),
            };
            let origin = self.settings.origin("scheduler.weights");
            self.settings.problem(&what, origin, why);
        }
        weights
    }

    pub(super) fn rules(&mut self) -> Option<Rules> {
        let tables: Vec<(String, RuleConfig)> = self.tables("moderation.rules");
        let configs: Vec<RuleConfig> = tables.into_iter().map(|(_, rule)| rule).collect();
        if configs.is_empty() {
            return None;
        }
        Rules::compile(&configs).map_err(|errors| self.fault("moderation.rules", errors)).ok()
    }
}

/// A `[[models]]` table; `None` where nothing could be called by it.
fn model(table: &mut Table) -> Option<ModelConfig> {
    let name = table.need_name("name");
    let path = table.need("path");
    let path = path.filter(|path| path != DEMO_PATH).map(PathBuf::from);
    if let Some(why) = path.as_deref().and_then(not_a_model) {
        table.problem("path", why);
    }
    let size = |count: u64| usize::try_from(count).ok();
    let threads = table.take_as("threads", "engine.threads").and_then(size);
    let kv_bytes = table.take_as("kv_memory", "engine.kv_memory");
    let max_positions = table.take_as("max_positions", "engine.max_positions").and_then(size);
    let answer = table.take_as("default_max_tokens", "gateway.default_max_tokens");
    let names = [("compute", MODES), ("kv_type", KV_TYPES), ("quantize", QUANTIZED)];
    let [mode, kv, quantize] = names.map(|(key, known)| table.take_text(key, Kind::Choice(known)));
    // Names that are not of the lists have been reported as such.
    let arithmetic = Arithmetic::parse(mode.as_deref(), kv.as_deref(), quantize.as_deref());
    let limits = table.raw("limits").map(LimitSpec::deserialize).transpose().unwrap_or_else(|error| {
        table.problem("limits", error.to_string().trim_end().replace('\n', " "));
        None
    });
    Some(ModelConfig {
        setting: table.what.clone(),
        name: name?,
        path,
        threads,
        kv_bytes,
        max_positions,
        default_max_tokens: answer.and_then(|count| u32::try_from(count).ok()),
        limits: limits.unwrap_or(LimitSpec::UNLIMITED),
        arithmetic: arithmetic.unwrap_or_default(),
    })
}

/// A `[[prices]]` table; `None` where a key of it could not be read.
fn price(table: &mut Table, model: ModelName) -> Option<PriceConfig> {
    let from = table.take_text("from", Kind::Text);
    let per = table.take_text("per", Kind::Choice(&["million", "thousand"]));
    let thousand = per.as_deref() == Some("thousand");
    for key in ["input", "output"] {
        if !table.left.contains_key(key) {
            table.problem(key, "is missing: write \"0\" if it is meant to be free".to_owned());
        }
    }
    let [input, cached_input, cache_write, output, reasoning] = PRICED.map(|key| {
        let value = table.raw(key)?;
        nano_dollars_per_million(&value, thousand).map_err(|why| table.problem(key, why)).ok()
    });
    let price = PriceConfig { model, from, input, cached_input, cache_write, output, reasoning };
    table.problems.is_empty().then_some(price)
}

/// A price: text is dollars per million tokens (or per thousand), an integer is nano-dollars per million.
fn nano_dollars_per_million(value: &toml::Value, per_thousand: bool) -> Result<i64, String> {
    match value {
        toml::Value::String(text) if per_thousand => dollars(&times_thousand(text), text),
        toml::Value::String(text) => dollars(text, text),
        toml::Value::Integer(nanos) if !per_thousand => Ok(*nanos),
        toml::Value::Integer(_) => Err(format!(
            "{value} is a whole number, which means nano-dollars per million tokens: with per = \"thousand\" write dollars in quotes, such as \"0.0001\""
        )),
        toml::Value::Float(_) => Err(format!("{value} must stand in quotes to be exact: \"{value}\"")),
        _ => Err(format!("{value} is no price: write dollars in quotes, such as \"0.10\"")),
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

/// The decimal point three digits further to the right; what is no decimal number stays none.
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

fn demo_model(name: ModelName) -> ModelConfig {
    ModelConfig {
        setting: "models".to_owned(),
        name,
        path: None,
        threads: None,
        kv_bytes: None,
        max_positions: None,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
        arithmetic: Arithmetic::default(),
    }
}

fn play_price(model: ModelName) -> PriceConfig {
    PriceConfig {
        model,
        from: None,
        input: Some(PLAY_INPUT),
        cached_input: Some(PLAY_INPUT / 10),
        cache_write: None,
        output: Some(PLAY_INPUT * 4),
        reasoning: None,
    }
}

/// Why a path cannot be a model, as far as one look tells.
fn not_a_model(path: &Path) -> Option<String> {
    let shown = path.display();
    if !path.exists() {
        return Some(format!("{shown}: there is no such file or directory"));
    }
    let is_gguf =
        |path: &Path| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if !path.is_dir() {
        let what = "is neither a directory nor a .gguf file; give a GGUF file or the directory that holds config.json";
        return (!is_gguf(path)).then(|| format!("{shown}: {what}"));
    }
    let holds_gguf = || {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| is_gguf(&entry.path()))
    };
    (!path.join("config.json").exists() && !holds_gguf()).then(|| {
        format!("{shown}: holds neither config.json nor a .gguf file; give a model directory or a GGUF file")
    })
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
            (toml::Value::Integer(7), false, Some(7)),
            (toml::Value::Integer(7), true, None),
            (toml::Value::Float(0.1), false, None),
            (toml::Value::Boolean(true), false, None),
        ];
        for (value, per_thousand, expected) in rows {
            let read = nano_dollars_per_million(&value, per_thousand);
            assert_eq!(read.clone().ok(), expected, "{value} {per_thousand}: {read:?}");
        }
        let quoted = nano_dollars_per_million(&toml::Value::Float(0.1), false).unwrap_err();
        assert!(quoted.contains("in quotes to be exact: \"0.1\""), "{quoted}");
    }
}
