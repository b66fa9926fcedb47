//! Finds the tokenizer assets of a model: a model of the configuration by name, or files by path. Must not know their
//! use.

use std::path::Path;

use headrace_config::{DEMO_PATH, ServerSettings};
use headrace_domain::ModelName;
use headrace_server::found_model::FoundModel;

use crate::commands;

/// Finds a model by name or path. Without one, finds the first model of the configuration.
pub(super) fn find(config: Option<&Path>, wanted: Option<&str>) -> Result<FoundModel, String> {
    let config = commands::configuration_of(config)?;
    match wanted {
        Some(DEMO_PATH) => FoundModel::of_files(None, DEMO_PATH),
        None => match config.models.first() {
            Some(model) => FoundModel::of_name(&config, &model.name),
            None => {
                FoundModel::of_name(&config, &config.relayed.first().ok_or("no model is configured")?.name)
            }
        },
        Some(name) if is_configured(&config, name) => FoundModel::of_name(&config, &named(name)?),
        Some(path) if Path::new(path).exists() => FoundModel::of_files(Some(Path::new(path)), path),
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
