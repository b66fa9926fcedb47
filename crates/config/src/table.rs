//! A table from a list of settings, whose keys are taken out one by one. Each key is checked separately, so that one
//! fault does not hide another. Must not know how the values are used.

use headrace_domain::ModelName;
use headrace_prompt::ReplyFamily;

use super::fields::find;
use super::layers::{SettingOrigin, SettingProblem, unknown};
use super::value::{ParsedValue, SettingKind};

/// One table of a list, whose keys are taken out one by one.
pub(super) struct TableReader {
    /// Its path, such as `models[0]`.
    pub(super) what: String,
    pub(super) origin: SettingOrigin,
    pub(super) left: toml::Table,
    pub(super) known: Vec<&'static str>,
    pub(super) problems: Vec<SettingProblem>,
}

impl TableReader {
    /// A table inside another one.
    pub(super) fn within(outer: &Self, key: &str, left: toml::Table) -> Self {
        let (what, origin) = (format!("{}.{key}", outer.what), outer.origin.clone());
        Self { what, origin, left, known: Vec::new(), problems: Vec::new() }
    }

    /// The whole table as TOML text.
    pub(super) fn text(&self) -> String {
        self.left.to_string()
    }

    pub(super) fn problem(&mut self, key: &str, why: String) {
        let what = if key.is_empty() { self.what.clone() } else { format!("{}.{key}", self.what) };
        self.problems.push(SettingProblem { what, origin: self.origin.clone(), why, way_out: None });
    }

    pub(super) fn raw(&mut self, key: &'static str) -> Option<toml::Value> {
        self.known.push(key);
        self.left.remove(key)
    }

    /// Takes the value of a key. Returns `None` if the key is absent, or if its value is invalid, which is recorded.
    pub(super) fn take(&mut self, key: &'static str, kind: SettingKind) -> Option<ParsedValue> {
        let value = self.raw(key)?;
        kind.parse(&value).map_err(|why| self.problem(key, why)).ok()
    }

    /// Like [`TableReader::take`], with the kind and bounds of the setting `setting`.
    pub(super) fn take_as(&mut self, key: &'static str, setting: &str) -> Option<u64> {
        match self.take(key, find(setting)?.kind) {
            Some(ParsedValue::Count(count)) => Some(count),
            _ => None,
        }
    }

    pub(super) fn take_text(&mut self, key: &'static str, kind: SettingKind) -> Option<String> {
        if let Some(ParsedValue::Text(text)) = self.take(key, kind) { Some(text) } else { None }
    }

    /// Takes `reply`: the format in which a model writes tool calls.
    pub(super) fn take_family(&mut self) -> Option<ReplyFamily> {
        let name = self.take_text("reply", SettingKind::Text)?;
        let family = ReplyFamily::named(&name);
        if family.is_none() {
            let known: Vec<&str> = ReplyFamily::ALL.iter().map(|family| family.name()).collect();
            self.problem("reply", format!("\"{name}\" is none of {}", known.join(", ")));
        }
        family
    }

    /// Takes a required text. A missing key is recorded.
    pub(super) fn need(&mut self, key: &'static str) -> Option<String> {
        if !self.left.contains_key(key) {
            self.known.push(key);
            self.problem(key, "is missing".to_owned());
            return None;
        }
        self.take_text(key, SettingKind::Text)
    }

    pub(super) fn need_name(&mut self, key: &'static str) -> Option<ModelName> {
        let text = self.need(key)?;
        ModelName::new(&text).map_err(|error| self.problem(key, error.to_string())).ok()
    }

    /// Ends reading and returns all faults. Keys that were not taken are unknown and count as faults.
    pub(super) fn end(mut self) -> Vec<SettingProblem> {
        let strange: Vec<String> = self.left.keys().cloned().collect();
        for key in strange {
            let why = unknown(&key, self.known.iter().map(|known| (*known).to_owned()));
            self.problem(&key, why);
        }
        self.problems
    }
}
