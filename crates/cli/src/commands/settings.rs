//! Settings of a command: defaults, the file, environment variables and flags. Each overrides the previous. Must not
//! know what a setting means.

use std::path::Path;

use headrace_config::layers::SettingLayers;
use headrace_config::stored::{self, FoundCheckpoint, ModelFolders};
use headrace_config::upstreams::{targets_flag, upstream_flag};
use headrace_config::value::ParsedValue;
use headrace_config::variables::of_process;
use headrace_config::{DEMO_NAME, DEMO_PATH, layered, model_flag};
use headrace_terminal::output;

use crate::arguments::SettingFlags;

/// Reads the settings of a server: the file, the environment and the flags over the defaults.
pub(super) fn settings(file: Option<&Path>, flags: &SettingFlags) -> SettingLayers {
    let mut settings = layered(file, of_process());
    let named = [
        ("data_dir", "--data-dir", &flags.data_dir),
        ("storage.url", "--storage", &flags.storage),
        ("server.listen", "--listen", &flags.listen),
        ("server.metrics_listen", "--metrics-listen", &flags.metrics_listen),
        ("admin.listen", "--admin-listen", &flags.admin_listen),
        ("worker.secret_file", "--worker-secret-file", &flags.worker_secret_file),
        ("server.tls_cert", "--tls-cert", &flags.tls_cert),
        ("server.tls_key", "--tls-key", &flags.tls_key),
        ("engine.threads", "--threads", &flags.threads),
        ("engine.device", "--device", &flags.device),
        ("engine.quantize", "--quantize", &flags.quantize),
        ("engine.compute", "--compute", &flags.compute),
        ("engine.kv_type", "--kv-type", &flags.kv_type),
    ];
    for (path, flag, text) in named {
        if let Some(text) = text {
            settings.flag(path, flag, text);
        }
    }
    upstream_flags(&mut settings, flags);
    let names = upstream_names(&settings);
    let mut models = Vec::new();
    let mut paths = 0;
    for text in &flags.model {
        if let Some(table) = targets_flag(text, &names) {
            models.push(toml::Value::Table(table));
            continue;
        }
        paths += 1;
        match model_flag(text).and_then(|table| stored_by_others(table, text)) {
            Ok(table) => models.push(toml::Value::Table(table)),
            Err(why) => settings.flag_problem("models", "--model", why),
        }
    }
    if !models.is_empty() && paths == 0 {
        // Names for models of upstreams do not replace the model that is served by default.
        models.extend(settings.get("models").is_none().then(demo_table));
    }
    if !models.is_empty() {
        settings.flag_value("models", "--model", &toml::Value::Array(models));
    }
    for text in &flags.set {
        match text.split_once('=') {
            Some((path, value)) => settings.flag(path.trim(), "--set", value.trim()),
            None => settings.flag_problem(text, "--set", "must be NAME=VALUE".to_owned()),
        }
    }
    settings
}

/// Replaces a path that does not exist by the path of the model that another program stored under this name.
fn stored_by_others(mut table: toml::Table, text: &str) -> Result<toml::Table, String> {
    let path = table.get("path").and_then(toml::Value::as_str).unwrap_or_default().to_owned();
    if path == DEMO_PATH || Path::new(&path).exists() || !stored::could_be_a_name(Path::new(&path)) {
        return Ok(table);
    }
    let found = match ModelFolders::of_process().find(&path) {
        FoundCheckpoint::One(found) => found,
        FoundCheckpoint::None(why) => return Err(why),
    };
    let at = found.path.to_str().ok_or_else(|| format!("{} is not UTF-8", found.path.display()))?;
    output::note(&format!("{path} is {}'s {}, at {at}", found.program, found.name));
    // Without a given name, clients request the model by the name on the command line.
    if !text.contains('=') {
        table.insert("name".to_owned(), toml::Value::String(path));
    }
    table.insert("path".to_owned(), toml::Value::String(at.to_owned()));
    Ok(table)
}

fn demo_table() -> toml::Value {
    let text = |text: &str| toml::Value::String(text.to_owned());
    let entries = [("name", text(DEMO_NAME)), ("path", text(DEMO_PATH))];
    toml::Value::Table(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Adds the upstreams of `--upstream` to those of the file.
fn upstream_flags(settings: &mut SettingLayers, flags: &SettingFlags) {
    let mut upstreams = tables(settings, "upstreams");
    let before = upstreams.len();
    for text in &flags.upstream {
        match upstream_flag(text) {
            Ok(table) => upstreams.push(toml::Value::Table(table)),
            Err(why) => settings.flag_problem("upstreams", "--upstream", why),
        }
    }
    if upstreams.len() > before {
        settings.flag_value("upstreams", "--upstream", &toml::Value::Array(upstreams));
    }
}

/// Returns the tables of a list, without their defaults.
fn tables(settings: &SettingLayers, path: &str) -> Vec<toml::Value> {
    match settings.get(path).map(|setting| &setting.value) {
        Some(ParsedValue::Raw(toml::Value::Array(items))) => items.clone(),
        _ => Vec::new(),
    }
}

fn upstream_names(settings: &SettingLayers) -> Vec<String> {
    let named = |table: &toml::Value| table.get("name")?.as_str().map(str::to_owned);
    tables(settings, "upstreams").iter().filter_map(named).collect()
}
