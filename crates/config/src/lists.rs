//! Settings that are lists of tables: models, prices, costs, weights, rules. Each key of a table is checked separately,
//! so that one fault does not hide another. Must not know how the lists are used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use headrace_catalog::{ControlTokenPolicy, OffForm, PastAnswers, ThinkingPolicy, ToolsOrder};
use headrace_domain::{ModelName, OrgId};
use headrace_ledger::prices::{CostConfig, CostList, PriceConfig, PriceList};
use headrace_limits::LimitSpec;
use headrace_moderation::{RuleConfig, Rules};
use serde::Deserialize;

use super::arithmetic::{ArithmeticConfig, DEVICES, KV_TYPES, MODES, QUANTIZED};
use super::notices::notice;
use super::paths::not_a_model;
use super::prices::{play_price, prices_of};
use super::relayed::{RelayedConfig, UpstreamConfig, find_upstream};
use super::shadows::shadow;
use super::table::TableReader;
use super::thinking::thinking;
use super::upstreams::{self, off_form, parse_special, past_answers, tools_order};
use super::value::{ParsedValue, SettingKind};
use super::{DEMO_NAME, DEMO_PATH, ModelConfig, SettingsReader};

/// Maximum weight of an organisation.
const MOST_WEIGHT: u32 = 1000;

/// One `[[scheduler.weights]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightTable {
    org: OrgId,
    weight: u32,
}

impl SettingsReader {
    /// Returns the tables of a list, ready for reading key by key.
    pub(super) fn list(&self, path: &str) -> Vec<TableReader> {
        let Some(ParsedValue::Raw(toml::Value::Array(items))) = self.parsed(path) else { return Vec::new() };
        let origin = self.settings.origin(path);
        let tables = items.iter().filter_map(toml::Value::as_table).enumerate();
        tables
            .map(|(index, table)| TableReader {
                what: format!("{path}[{index}]"),
                origin: origin.clone(),
                left: table.clone(),
                known: Vec::new(),
                problems: Vec::new(),
            })
            .collect()
    }

    /// Reads the tables of a list as a type of another crate, with the path of each table.
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

    /// Reads the models of engines here, and those that upstreams answer for. Without a `models` setting, only the demo
    /// model is served.
    pub(super) fn models(&mut self) -> (Vec<ModelConfig>, Vec<RelayedConfig>) {
        let demo = || ModelName::new(DEMO_NAME).ok().map(demo_model).into_iter().collect();
        if self.settings.get("models").is_none() {
            return (demo(), Vec::new());
        }
        let tables = self.list("models");
        if tables.is_empty() {
            self.fault("models", "is empty: name a model, or leave it out to serve the demo model");
        }
        let (mut models, mut relayed): (Vec<ModelConfig>, Vec<RelayedConfig>) = (Vec::new(), Vec::new());
        for mut table in tables {
            let name = table.need_name("name");
            let here = models.iter().map(|other| &other.name);
            let twice =
                here.chain(relayed.iter().map(|other| &other.name)).any(|other| Some(other) == name.as_ref());
            if let Some(name) = name.as_ref().filter(|_| twice) {
                table.problem("name", format!("`{name}` is named twice"));
            }
            if let (Some(shadow), Some(name)) = (shadow(&mut table), &name) {
                self.names.shadows.insert(name.clone(), Arc::new(shadow));
            }
            if let (Some(notice), Some(name)) = (notice(&mut table), &name) {
                self.names.notices.insert(name.clone(), notice);
            }
            if table.left.contains_key("targets") {
                relayed.extend(upstreams::relayed(&mut table, name));
            } else {
                models.extend(model(&mut table, name));
            }
            self.settings.problems.extend(table.end());
        }
        (models, relayed)
    }

    /// Reads the prices. With `play_prices`, a model without a price gets the demo model's.
    pub(super) fn prices(
        &mut self,
        models: &[ModelConfig],
        relayed: &[RelayedConfig],
        upstreams: &[UpstreamConfig],
        play_prices: bool,
    ) -> Vec<PriceConfig> {
        let mut prices = Vec::new();
        let mut named = Vec::new();
        for mut table in self.list("prices") {
            let model = table.need_name("model");
            let price = model.clone().and_then(|model| prices_of(&mut table, model));
            // The prices of holders of a tier come beside those of all callers.
            let is_of_holders = price.as_ref().is_some_and(|price| price.holder_tier.is_some());
            prices.extend(price);
            named.extend(model.filter(|_| !is_of_holders));
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
        for model in relayed.iter().filter(|model| !named.contains(&model.name)) {
            let first = model.targets.first().and_then(|target| find_upstream(upstreams, &target.upstream));
            match first.and_then(|upstream| upstream.price_of(&model.name, play_prices)) {
                Some(price) => prices.push(price),
                None => {
                    let why = format!(
                        "model `{0}` has no price and would be refused: add [[prices]] with model = \"{0}\", or a \
                         `price` to its upstream",
                        model.name
                    );
                    self.fault("prices", why);
                }
            }
        }
        if let Err(errors) = PriceList::from_config(&prices) {
            errors.iter().for_each(|error| self.fault("prices", error));
        }
        prices
    }

    /// Reads the prices that upstreams charge the operator.
    pub(super) fn costs(&mut self, upstreams: &[UpstreamConfig]) -> Vec<CostConfig> {
        let mut costs = Vec::new();
        for mut table in self.list("costs") {
            let upstream = table.need("upstream");
            if let Some(name) = upstream.as_deref().filter(|name| find_upstream(upstreams, name).is_none()) {
                table.problem("upstream", format!("there is no upstream `{name}`"));
            }
            let price = table.need_name("model").and_then(|model| prices_of(&mut table, model));
            if price.as_ref().is_some_and(|price| price.holder_tier.is_some()) {
                table.problem("holder_tier", "costs are the same for all callers".to_owned());
            }
            costs.extend(upstream.zip(price).map(|(upstream, price)| CostConfig { upstream, price }));
            self.settings.problems.extend(table.end());
        }
        if let Err(errors) = CostList::from_config(&costs) {
            errors.iter().for_each(|error| self.fault("costs", error));
        }
        costs
    }

    pub(super) fn weights(&mut self) -> BTreeMap<OrgId, u32> {
        let mut weights = BTreeMap::new();
        for (what, table) in self.tables::<WeightTable>("scheduler.weights") {
            let twice = weights.insert(table.org.clone(), table.weight).is_some();
            let why = match table.weight {
                _ if twice => format!("`org` {} is listed twice", table.org),
                1..=MOST_WEIGHT => continue,
                weight => format!("`weight` is {weight}; it must be 1 to {MOST_WEIGHT}"),
            };
            let origin = self.settings.origin("scheduler.weights");
            self.settings.problem(&what, origin, why);
        }
        weights
    }

    pub(super) fn rules(&mut self) -> Option<Arc<Rules>> {
        let tables: Vec<(String, RuleConfig)> = self.tables("moderation.rules");
        let configs: Vec<RuleConfig> = tables.into_iter().map(|(_, rule)| rule).collect();
        let judges = self.judges();
        if configs.is_empty() {
            return None;
        }
        Rules::compile_with(&configs, &judges)
            .map(Arc::new)
            .map_err(|errors| self.fault("moderation.rules", errors))
            .ok()
    }
}

/// Reads a `[[models]]` table. Returns `None` if it has no usable name.
fn model(table: &mut TableReader, name: Option<ModelName>) -> Option<ModelConfig> {
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
    let names = [("device", DEVICES), ("compute", MODES), ("kv_type", KV_TYPES), ("quantize", QUANTIZED)];
    let [device, mode, kv, quantize] =
        names.map(|(key, known)| table.take_text(key, SettingKind::Choice(known)));
    // Unknown names have already been reported.
    let arithmetic =
        ArithmeticConfig::parse(device.as_deref(), mode.as_deref(), kv.as_deref(), quantize.as_deref());
    let reply = table.take_family();
    let limits = table.raw("limits").map(LimitSpec::deserialize).transpose().unwrap_or_else(|error| {
        table.problem("limits", error.to_string().trim_end().replace('\n', " "));
        None
    });
    let (tools_order, off_form, thinking) = (tools_order(table), off_form(table), thinking(table));
    let (parse_special, past_answers) = (parse_special(table), past_answers(table));
    Some(ModelConfig {
        setting: table.what.clone(),
        name: name?,
        path,
        reply,
        threads,
        kv_bytes,
        max_positions,
        default_max_tokens: answer.and_then(|count| u32::try_from(count).ok()),
        limits: limits.unwrap_or(LimitSpec::UNLIMITED),
        arithmetic: arithmetic.unwrap_or_default(),
        tools_order,
        thinking,
        off_form,
        parse_special,
        past_answers,
    })
}

fn demo_model(name: ModelName) -> ModelConfig {
    ModelConfig {
        setting: "models".to_owned(),
        name,
        path: None,
        reply: None,
        threads: None,
        kv_bytes: None,
        max_positions: None,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
        arithmetic: ArithmeticConfig::default(),
        tools_order: ToolsOrder::default(),
        thinking: ThinkingPolicy::default(),
        off_form: OffForm::default(),
        parse_special: ControlTokenPolicy::default(),
        past_answers: PastAnswers::default(),
    }
}
