//! `config check`: settings with their values and origins. Shows no secrets, because settings only name files.

use std::fmt::Write;

use super::fields::FIELDS;
use super::layers::{SettingLayers, SettingOrigin};

/// Formats one line per setting that differs from its default. With `all`, one line per setting.
pub fn table(settings: &SettingLayers, all: bool) -> String {
    let rows: Vec<(&str, String, String)> = FIELDS
        .iter()
        .filter(|field| all || settings.origin(field.path) != SettingOrigin::Default)
        .map(|field| match settings.get(field.path) {
            Some(setting) => (field.path, setting.written.clone(), setting.origin.to_string()),
            None => (field.path, "–".to_owned(), "default".to_owned()),
        })
        .collect();
    const WIDEST_VALUE: usize = 48;
    let names = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let values = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or(0).min(WIDEST_VALUE);
    let shown = rows.len();
    let mut out = String::new();
    for (name, value, origin) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:names$}  {value:values$}  {origin}");
    }
    if !all {
        let rest = FIELDS.len().saturating_sub(shown);
        let _ = writeln!(out, "{rest} other settings have their default values; --all shows them");
    }
    out
}
