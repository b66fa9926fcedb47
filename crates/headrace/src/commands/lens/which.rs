//! Finds the tokenizer assets of a model: a model of the configuration by name, or files by path. Must not know their
//! use.

use std::path::Path;

use headrace_catalog::ToolsOrder;
use headrace_checkpoint::Wording;
use headrace_domain::{Clock, ModelName, SystemClock};
use headrace_ledger::prices::{PriceList, Quote};
use headrace_lens::Words;
use headrace_prompt::ReplyFamily;

use crate::commands;
use crate::config::relayed::WordsAt;
use crate::config::{DEMO_PATH, ServerSettings};
use crate::models::demo_files;
use crate::tokenizer_assets::open_wording;

/// A model's tokenizer assets, and its settings.
pub(crate) struct FoundModel {
    pub(crate) name: String,
    pub(crate) wording: Wording,
    /// The path of its files. `None` for the model that is built into the program.
    pub(crate) path: Option<std::path::PathBuf>,
    pub(crate) family: Option<ReplyFamily>,
    pub(crate) tools_order: ToolsOrder,
    /// The current price of its tokens, if one is configured.
    pub(crate) quote: Option<Quote>,
}

/// Finds a model by name or path. Without one, finds the first model of the configuration.
pub(super) fn find(config: Option<&Path>, wanted: Option<&str>) -> Result<FoundModel, String> {
    let config = commands::configuration_of(config)?;
    match wanted {
        Some(DEMO_PATH) => of_files(None, DEMO_PATH),
        None => match config.models.first() {
            Some(model) => of_name(&config, &model.name),
            None => of_name(&config, &config.relayed.first().ok_or("no model is configured")?.name),
        },
        Some(name) if is_configured(&config, name) => of_name(&config, &named(name)?),
        Some(path) if Path::new(path).exists() => of_files(Some(Path::new(path)), path),
        Some(other) => {
            let names = config.models.iter().map(|model| model.name.as_str());
            let names: Vec<&str> =
                names.chain(config.relayed.iter().map(|model| model.name.as_str())).collect();
            Err(format!(
                "`{other}` is neither a file nor a model of the configuration, which has {}",
                names.join(", ")
            ))
        }
    }
}

/// Returns whether the configuration has a model of this name.
pub(super) fn knows(config: Option<&Path>, name: &str) -> bool {
    commands::configuration_of(config).is_ok_and(|config| is_configured(&config, name))
}

fn named(name: &str) -> Result<ModelName, String> {
    name.parse().map_err(|_| format!("`{name}` is no name of a model"))
}

fn is_configured(config: &ServerSettings, name: &str) -> bool {
    let served = config.models.iter().any(|model| model.name.as_str() == name);
    served || config.relayed.iter().any(|model| model.name.as_str() == name)
}

/// Finds a model of a configuration.
///
/// # Errors
/// If there is no model of that name, or only its server has its tokenizer.
pub(crate) fn of_name(config: &ServerSettings, name: &ModelName) -> Result<FoundModel, String> {
    let prices = PriceList::from_config(&config.prices).ok();
    let quote = prices.and_then(|prices| prices.quote(name, SystemClock::new().now()));
    let found = |path: Option<&Path>, family, tools_order| {
        let found = of_files(path, name.as_str())?;
        Ok(FoundModel { family, tools_order, quote: quote.clone(), ..found })
    };
    if let Some(model) = config.models.iter().find(|model| model.name == *name) {
        return found(model.path.as_deref(), model.reply, model.tools_order);
    }
    let relayed = config.relayed.iter().find(|model| model.name == *name);
    let relayed = relayed.ok_or_else(|| format!("no model `{name}`"))?;
    let order = relayed.policy.tools_order;
    match &relayed.words {
        Some(WordsAt::Demo) => found(None, relayed.reply, order),
        Some(WordsAt::Files(path)) => found(Some(path), relayed.reply, order),
        None => Err(format!(
            "`{name}` is asked in messages: only its server has its template and tokenizer. Give `path` beside `targets`, \
             or name a directory"
        )),
    }
}

fn of_files(path: Option<&Path>, name: &str) -> Result<FoundModel, String> {
    let wording = match path {
        None => Wording::from_files(demo_files()).map_err(|error| error.to_string())?,
        Some(path) => open_wording(path)?,
    };
    Ok(FoundModel {
        name: name.to_owned(),
        wording,
        path: path.map(Path::to_owned),
        family: None,
        tools_order: ToolsOrder::default(),
        quote: None,
    })
}

impl FoundModel {
    /// Reads the tokenizer assets for use.
    pub(super) fn words(&self) -> Result<Words, String> {
        let wording = &self.wording;
        let read = Words::read(
            wording.tokenizer_json(),
            wording.tokenizer_config(),
            wording.chat_template(),
            self.family,
        );
        read.map_err(|error| format!("{}: {error}\n  try: headrace doctor {}", self.name, self.name))
    }
}
