//! `config check`: prints faults and warnings, then the settings, the models to serve, and their prices. Asks the
//! upstreams which models they serve. Must not know running servers.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use headrace_config::{ServerSettings, show};
use headrace_domain::{NanoDollars, SystemClock};
use headrace_ledger::prices::PriceConfig;
use headrace_server::check::{self, CheckedConfig, check};
use headrace_server::first_start;
use headrace_server::running_model::InMemory;
use headrace_server::tokenizer_assets::AssetsByModel;
use headrace_server::upstreams::{UpstreamRegistry, asked};
use headrace_terminal::output;

use super::settings::settings;
use crate::arguments::SettingFlags;

/// Checks whether a configuration can be served. With `all`, also shows settings at their defaults.
pub(super) fn check_configuration(file: Option<&Path>, all: bool, flags: &SettingFlags) -> ExitCode {
    let settings = settings(file, flags);
    let set = show::table(&settings, all);
    let key = first_start::first_key();
    let play_prices = !flags.model.is_empty() || !flags.upstream.is_empty();
    match check(settings, play_prices, key.as_ref(), &InMemory::default()) {
        Err(error) => {
            let code = output::refuse(&error.to_string());
            output::say(&format!("\n{set}"));
            code
        }
        Ok(CheckedConfig { config, plan, assets_by_model, .. }) => {
            let mut warnings = check::remarks(&config);
            let seen = look(&config, assets_by_model, &mut warnings);
            warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
            let verdict = match warnings.len() {
                0 => "no faults".to_owned(),
                1 => "no faults, 1 warning".to_owned(),
                several => format!("no faults, {several} warnings"),
            };
            let prices = prices(config.prices.iter().chain(&seen.prices));
            output::say(&format!("{verdict}\n\n{set}\n{}\n", plan.describe(&config)));
            if !prices.is_empty() {
                output::say(&format!("dollars per million tokens\n{prices}\n"));
            }
            output::say(&seen.tables);
            ExitCode::SUCCESS
        }
    }
}

/// The models that upstreams listed.
#[derive(Default)]
struct SeenUpstreams {
    tables: String,
    /// Prices of models that upstreams list and `[[prices]]` does not name.
    prices: Vec<PriceConfig>,
}

/// Asks the upstreams of a configuration which models they serve. A fault of an upstream is a warning, because the
/// server starts all the same.
fn look(
    config: &ServerSettings,
    assets_by_model: AssetsByModel,
    warnings: &mut Vec<String>,
) -> SeenUpstreams {
    warnings.extend(config.storage.beyond_the_disk(&config.files, &config.data_dir));
    if config.upstreams.is_empty() {
        return SeenUpstreams::default();
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return SeenUpstreams::default();
    };
    let upstreams = UpstreamRegistry::new(Arc::new(SystemClock::new()), None);
    runtime.block_on(upstreams.look_up(config));
    // Cannot fail: the check has built the same sites without a fault.
    let Ok(sites) = upstreams.sites_of(config) else { return SeenUpstreams::default() };
    let sites = runtime.block_on(asked(sites));
    warnings.extend(sites.iter().filter_map(|site| site.fault()));
    let rows = sites.iter().map(|site| site.describe().to_vec()).collect();
    let asked = output::table(&["upstream", "kind", "at", "serves"], rows);
    let fronted = upstreams.fronted(config, assets_by_model, sites);
    let rows = fronted.models.iter().map(|model| {
        let window = model.backend.context_window();
        vec![
            model.name.to_string(),
            window.map_or_else(|| "–".to_owned(), |window| format!("{window} tokens")),
        ]
    });
    let sent_on = output::table(&["sent on as", "context"], rows.collect());
    warnings.extend(fronted.notes);
    SeenUpstreams { tables: format!("{asked}\n{sent_on}\n"), prices: fronted.prices }
}

/// Formats the prices: a row for each table of prices, and a column for each kind of token with a price in any of them.
fn prices<'a>(prices: impl Iterator<Item = &'a PriceConfig>) -> String {
    type Read = fn(&PriceConfig) -> Option<i64>;
    const CLASSES: [(&str, Read); 7] = [
        ("input", |price| price.input),
        ("cached_input", |price| price.cached_input),
        ("cache_write", |price| price.cache_write),
        ("cache_write_1h", |price| price.cache_write_1h),
        ("output", |price| price.output),
        ("reasoning", |price| price.reasoning),
        // Stored per million searches, shown per thousand, as vendors list them.
        ("1,000 searches", |price| Some(price.per_search? / 1_000)),
    ];
    let all: Vec<&PriceConfig> = prices.collect();
    if all.is_empty() {
        return String::new();
    }
    let classes: Vec<_> =
        CLASSES.into_iter().filter(|(_, read)| all.iter().any(|price| read(price).is_some())).collect();
    let rows = all.iter().map(|price| {
        let from = price.from.iter().map(|day| format!("from {day}"));
        let tier = price.tier.iter().map(|tier| tier.name().to_owned());
        let holders = price.holder_tier.iter().map(|tier| format!("holders of {tier}"));
        let above = price.above.iter().map(|tokens| format!("above {tokens} prompt tokens"));
        let applies: Vec<String> = from.chain(holders).chain(tier).chain(above).collect();
        let money = |read: &Read| {
            read(price).map_or_else(|| "–".to_owned(), |nanos| NanoDollars::new(nanos).to_string())
        };
        let name = [
            price.model.to_string(),
            if applies.is_empty() { "always".to_owned() } else { applies.join(", ") },
        ];
        name.into_iter().chain(classes.iter().map(|(_, read)| money(read))).collect()
    });
    let head: Vec<&str> =
        ["model", "applies"].into_iter().chain(classes.iter().map(|(name, _)| *name)).collect();
    output::table(&head, rows.collect())
}
