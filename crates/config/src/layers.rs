//! Merges the layers default < file < environment < flag, and records the origin of each value. Collects every fault
//! instead of stopping at the first. The caller reads files and the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::fields::{FIELDS, SettingField, find};
use super::otel::{self, OtelVariable};
use super::value::ParsedValue;
use super::variables::{KEY_PREFIX, KEY_SUFFIX, OTHER_VARIABLES, SECRET_SUFFIX, WEBHOOK_PREFIX};

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The default in the table of settings.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A command-line flag, as written.
    Flag(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One fault of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingProblem {
    /// The setting, as far as it is known.
    pub what: String,
    /// The origin of the value.
    pub origin: SettingOrigin,
    /// What is wrong.
    pub why: String,
    /// What to do, if the fault is in what the value names and not in the value.
    pub way_out: Option<String>,
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.what, self.why, self.origin)?;
        self.way_out.as_ref().map_or(Ok(()), |way_out| write!(f, "\n    try: {way_out}"))
    }
}

/// A value with its origin.
#[derive(Debug, Clone)]
pub struct SettingValue {
    /// The parsed value.
    pub value: ParsedValue,
    /// The value as it was written, for display.
    pub written: String,
    /// The origin of the value.
    pub origin: SettingOrigin,
}

/// The merged layers.
#[derive(Debug, Clone, Default)]
pub struct SettingLayers {
    values: BTreeMap<&'static str, SettingValue>,
    /// Every fault so far.
    pub problems: Vec<SettingProblem>,
}

impl SettingLayers {
    /// Settings with only the defaults.
    pub fn defaults() -> Self {
        let mut settings = Self::default();
        for field in FIELDS.iter().filter(|field| !field.default.is_empty()) {
            let value = match toml::from_str::<toml::Table>(&format!("value = {}", field.default)) {
                Ok(mut table) => table.remove("value"),
                Err(_) => None,
            };
            match value {
                Some(value) => settings.set(field, &value, SettingOrigin::Default),
                None => {
                    settings.problem(field.path, SettingOrigin::Default, "its default is not TOML".to_owned())
                }
            }
        }
        settings
    }

    /// Applies the text of a configuration file over the present values.
    pub fn file(&mut self, path: &Path, text: &str) {
        let origin = SettingOrigin::File(path.to_owned());
        match toml::from_str::<toml::Table>(text) {
            Ok(table) => self.table("", table, &origin),
            Err(error) => {
                let why = error.to_string().trim_end().replace('\n', "\n    ");
                self.problem("the file", origin, format!("is not TOML: {why}"));
            }
        }
    }

    fn table(&mut self, prefix: &str, table: toml::Table, origin: &SettingOrigin) {
        for (key, value) in table {
            let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
            match (find(&path), value) {
                (Some(field), value) => self.set(field, &value, origin.clone()),
                (None, toml::Value::Table(inner)) if is_section(&path) => self.table(&path, inner, origin),
                (None, _) if is_section(&path) => {
                    self.problem(&path, origin.clone(), format!("is a section: write [{path}]"));
                }
                (None, _) => {
                    let why = unknown(&path, FIELDS.iter().map(|field| field.path.to_owned()));
                    self.problem(&path, origin.clone(), why);
                }
            }
        }
    }

    /// Applies environment variables over the present values. Ignores all but `HEADRACE_…` and those of OpenTelemetry.
    pub fn environment(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        let mut variables: Vec<_> = variables.into_iter().collect();
        variables.sort();
        // `HEADRACE_…` variables apply later and so win over OpenTelemetry's. OpenTelemetry's apply only if a
        // destination is set, so that machine-wide variables cannot stop a server that exports nothing.
        let sends =
            otel::ENDPOINTS.iter().any(|path| self.is_given(path)) || variables.iter().any(otel::is_address);
        for (name, text) in variables.iter().filter(|(_, text)| sends && !text.is_empty()) {
            let origin = SettingOrigin::Environment(name.clone());
            match otel::variable(name, text) {
                Some(OtelVariable::Says(path, text)) => {
                    find(path).into_iter().for_each(|field| self.text(field, &text, origin.clone()))
                }
                Some(OtelVariable::Refused(why)) => self.problem(name, origin, why),
                None => {}
            }
        }
        for (name, text) in variables {
            // Keys of upstreams and secrets of webhooks are no settings.
            let is_key = (name.starts_with(KEY_PREFIX)
                && (name.ends_with(KEY_SUFFIX) || name.ends_with(SECRET_SUFFIX)))
                || (name.starts_with(WEBHOOK_PREFIX) && name.ends_with(SECRET_SUFFIX));
            if !name.starts_with("HEADRACE_") || is_key {
                continue;
            }
            let other = OTHER_VARIABLES.iter().find(|(known, _)| *known == name);
            let field = match other {
                Some((_, None)) => continue,
                Some((_, Some(path))) => find(path),
                None => FIELDS.iter().find(|field| field.variable() == name),
            };
            let origin = SettingOrigin::Environment(name.clone());
            match field {
                // An empty variable counts as unset, because shells and compose files leave such variables.
                Some(_) if text.is_empty() => {}
                Some(field) => self.text(field, &text, origin),
                None => {
                    let known = FIELDS.iter().map(SettingField::variable);
                    let why = unknown(
                        &name,
                        known.chain(OTHER_VARIABLES.iter().map(|(name, _)| (*name).to_owned())),
                    );
                    self.problem(&name, origin, why);
                }
            }
        }
    }

    /// Applies a flag over the present values.
    pub fn flag(&mut self, path: &str, flag: &'static str, text: &str) {
        match find(path) {
            Some(field) => self.text(field, text, SettingOrigin::Flag(flag)),
            None => {
                let why = unknown(path, FIELDS.iter().map(|field| field.path.to_owned()));
                self.problem(path, SettingOrigin::Flag(flag), why);
            }
        }
    }

    /// Records a fault of a flag.
    pub fn flag_problem(&mut self, path: &str, flag: &'static str, why: String) {
        self.problem(path, SettingOrigin::Flag(flag), why);
    }

    /// Applies a flag whose value is not text over the present values.
    pub fn flag_value(&mut self, path: &str, flag: &'static str, value: &toml::Value) {
        if let Some(field) = find(path) {
            self.set(field, value, SettingOrigin::Flag(flag));
        }
    }

    fn is_given(&self, path: &str) -> bool {
        matches!(self.value(path), Some(ParsedValue::Text(text)) if !text.is_empty())
    }

    fn text(&mut self, field: &'static SettingField, text: &str, origin: SettingOrigin) {
        match field.kind.parse_text(text) {
            Ok(value) => self.keep(field, value, text.to_owned(), origin),
            Err(why) => self.problem(field.path, origin, why),
        }
    }

    fn set(&mut self, field: &'static SettingField, value: &toml::Value, origin: SettingOrigin) {
        match field.kind.parse(value) {
            Ok(parsed) => self.keep(field, parsed, value.to_string(), origin),
            Err(why) => self.problem(field.path, origin, why),
        }
    }

    fn keep(
        &mut self,
        field: &'static SettingField,
        value: ParsedValue,
        written: String,
        origin: SettingOrigin,
    ) {
        let written = field.kind.shown(written);
        self.values.insert(field.path, SettingValue { value, written, origin });
    }

    /// Records a fault of a value.
    pub fn problem(&mut self, what: &str, origin: SettingOrigin, why: String) {
        self.problems.push(SettingProblem { what: what.to_owned(), origin, why, way_out: None });
    }

    /// The value of a setting with its origin. `None` if it has no value.
    pub fn get(&self, path: &str) -> Option<&SettingValue> {
        self.values.get(path)
    }

    /// The value of a setting. `None` if it has no value.
    pub fn value(&self, path: &str) -> Option<&ParsedValue> {
        self.get(path).map(|setting| &setting.value)
    }

    /// The origin of a setting's value.
    pub fn origin(&self, path: &str) -> SettingOrigin {
        self.get(path).map_or(SettingOrigin::Default, |setting| setting.origin.clone())
    }
}

fn is_section(path: &str) -> bool {
    FIELDS.iter().any(|field| field.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// An error message for an unknown name. Suggests the nearest known name.
pub(super) fn unknown(name: &str, known: impl Iterator<Item = String>) -> String {
    let near = known.map(|known| (strsim::levenshtein(name, &known), known)).min();
    match near {
        Some((far, known)) if far <= 1 + name.len() / 4 => {
            format!("there is no such setting; did you mean `{known}`?")
        }
        _ => "there is no such setting; `headrace config reference` lists all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn the_last_layer_wins_and_is_named() {
        let mut settings = SettingLayers::defaults();
        assert_eq!(settings.problems, []);
        assert_eq!(settings.origin("server.drain"), SettingOrigin::Default);
        settings.file(
            Path::new("h.toml"),
            "[server]\ndrain = \"5s\"\nlisten = \"[::1]:1\"\n[scheduler]\nmax_running = 3",
        );
        settings.environment(variables(&[
            ("HEADRACE_SERVER__DRAIN", "6s"),
            ("PATH", "x"),
            ("HEADRACE_ISA", "avx2"),
        ]));
        settings.flag("server.drain", "--drain", "7s");
        assert_eq!(settings.problems, []);
        let rows = [
            ("server.drain", "7s", "flag --drain"),
            ("server.listen", "\"[::1]:1\"", "file h.toml"),
            ("engine.isa", "avx2", "environment HEADRACE_ISA"),
            ("scheduler.max_running", "3", "file h.toml"),
            ("scheduler.max_chunk", "512", "default"),
        ];
        for (path, written, origin) in rows {
            let setting = settings.get(path).unwrap();
            assert_eq!((setting.written.as_str(), setting.origin.to_string().as_str()), (written, origin));
        }
    }

    #[test]
    fn every_fault_is_found_at_once_with_what_was_meant() {
        let mut settings = SettingLayers::defaults();
        let text = "data_dri = \"x\"\n[server]\nlissten = \"x\"\ndrain = \"soon\"\n[scheduler]\nmax_running = 0\n[nonsense]\na = 1";
        settings.file(Path::new("h.toml"), text);
        settings.environment(variables(&[("HEADRACE_SERVER__LISTN", "x"), ("HEADRACE_WIRE__MAX_N", "many")]));
        let said: Vec<String> = settings.problems.iter().map(ToString::to_string).collect();
        let said = said.join("\n");
        for expected in [
            "data_dri: there is no such setting; did you mean `data_dir`? (file h.toml)",
            "server.lissten: there is no such setting; did you mean `server.listen`?",
            "server.drain: \"soon\" is not a duration such as \"30s\", from 0s to 1d",
            "scheduler.max_running: 0 is not an integer from 1",
            "nonsense: there is no such setting; `headrace config reference` lists all",
            "HEADRACE_SERVER__LISTN: there is no such setting; did you mean `HEADRACE_SERVER__LISTEN`?",
            "wire.max_n: `many` is not an integer from 1 to 1048576 (environment HEADRACE_WIRE__MAX_N)",
        ] {
            assert!(said.contains(expected), "{expected}\n---\n{said}");
        }
    }

    #[test]
    fn text_that_is_not_toml_is_shown_with_its_line() {
        let mut settings = SettingLayers::defaults();
        settings.file(Path::new("h.toml"), "[server\n");
        assert!(
            settings.problems.iter().any(|p| p.to_string().contains("line 1")),
            "{:?}",
            settings.problems
        );
    }

    #[test]
    fn a_password_in_a_url_is_never_shown() {
        let mut settings = SettingLayers::defaults();
        let file = "storage.url = \"postgres://me:secret@db/headrace\"";
        settings.file(Path::new("a.toml"), file);
        let shown = |settings: &SettingLayers| settings.get("storage.url").unwrap().written.clone();
        assert_eq!(shown(&settings), "\"postgres://…@db/headrace\"");
        for (url, expected) in [
            ("postgres://me:se@cret@db/headrace", "postgres://…@db/headrace"),
            ("me:secret@db", "…@db"),
            ("sqlite:/var/lib", "sqlite:/var/lib"),
        ] {
            settings.flag("storage.url", "--storage", url);
            assert_eq!(shown(&settings), expected);
        }
        assert_eq!(settings.problems, []);
    }
}
