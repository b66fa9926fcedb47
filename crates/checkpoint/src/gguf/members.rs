//! Metadata of a GGUF file as the members of a `config.json`, and messages about members as messages about keys. Must not
//! know what a member is for.

use serde_json::{Map, Number, Value as Json};

use crate::error::CheckpointError;

use super::meta::Meta;
use super::value::Value;

/// The members of a `config.json`, each with the key or tensor of the file that it was read from.
pub(super) struct ConfigMembers<'a> {
    meta: Meta<'a>,
    /// The name of the architecture, with which keys begin.
    architecture: &'a str,
    values: Map<String, Json>,
    origins: Vec<(String, String)>,
}

impl<'a> ConfigMembers<'a> {
    pub(super) fn new(meta: Meta<'a>, architecture: &'a str) -> Self {
        Self { meta, architecture, values: Map::new(), origins: Vec::new() }
    }

    /// The full key that ends in `name`.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Sets a member that the key `name` gives, as far as messages are concerned.
    pub(super) fn set(&mut self, member: &str, name: &str, value: Json) {
        self.origins.push((member.to_owned(), self.key(name)));
        self.values.insert(member.to_owned(), value);
    }

    /// Sets a member of an object: its own name follows a dot.
    pub(super) fn set_inner(&mut self, object: &str, member: &str, name: &str, value: Json) {
        self.origins.push((format!("{object}.{member}"), self.key(name)));
        if let Json::Object(inner) = self.values.entry(object).or_insert_with(|| Json::Object(Map::new())) {
            inner.insert(member.to_owned(), value);
        }
    }

    /// Sets a member that says whether the file has the tensor `tensor`.
    pub(super) fn set_flag(&mut self, member: &str, tensor: String, has: bool) {
        self.origins.push((member.to_owned(), tensor));
        self.values.insert(member.to_owned(), Json::Bool(has));
    }

    /// Copies the value of the key `name`, if the file has it. Returns whether it has.
    pub(super) fn copy(&mut self, member: &str, name: &str) -> Result<bool, CheckpointError> {
        let key = self.key(name);
        // The origin is noted also if the key is absent, for messages about absent members.
        self.origins.push((member.to_owned(), key.clone()));
        let Some(value) = self.meta.get(&key) else { return Ok(false) };
        let json = self.json(&key, value)?;
        self.values.insert(member.to_owned(), json);
        Ok(true)
    }

    /// Copies the value of the key `name` like [`ConfigMembers::copy`]. 0 becomes null.
    pub(super) fn copy_unless_zero(&mut self, member: &str, name: &str) -> Result<(), CheckpointError> {
        let is_zero = self.meta.get(&self.key(name)).and_then(Value::number) == Some(0.0);
        match is_zero {
            true => self.set(member, name, Json::Null),
            false => _ = self.copy(member, name)?,
        }
        Ok(())
    }

    fn json(&self, key: &str, value: &Value) -> Result<Json, CheckpointError> {
        let not_a_number = || self.meta.wrong(key, value, "a finite number");
        Ok(match value {
            Value::Integer(n) => match (u64::try_from(*n), i64::try_from(*n)) {
                (Ok(n), _) => n.into(),
                (_, Ok(n)) => n.into(),
                _ => return Err(not_a_number()),
            },
            Value::Float(n) => Json::Number(Number::from_f64(*n).ok_or_else(not_a_number)?),
            Value::Bool(flag) => Json::Bool(*flag),
            Value::Text(text) => Json::String(text.clone()),
            Value::Texts(_) | Value::Numbers(_) => return Err(self.meta.wrong(key, value, "a single value")),
        })
    }

    pub(super) fn values(&self) -> &Map<String, Json> {
        &self.values
    }

    /// Turns an error about a member into one about its key in this file.
    pub(super) fn by_key(&self, error: CheckpointError) -> CheckpointError {
        match error {
            CheckpointError::Field { field, problem, .. } => {
                self.meta.problem(&self.origin(&field), self.with_origins(problem))
            }
            CheckpointError::UnsupportedFeature { field, found, supported, .. } => {
                CheckpointError::UnsupportedFeature {
                    file: self.meta.file().to_owned(),
                    field: self.origin(&field),
                    found: whole_numbers(found),
                    supported: self.with_origins(supported),
                }
            }
            other => other,
        }
    }

    fn origin(&self, member: &str) -> String {
        let known = self.origins.iter().find(|(other, _)| other == member);
        known.map_or_else(|| member.to_owned(), |(_, origin)| origin.clone())
    }

    /// Replaces the names of members by those of their keys.
    fn with_origins(&self, text: String) -> String {
        let known = |word: &str| self.origins.iter().find(|(member, _)| member.as_str() == word);
        let words = text.split(' ').map(|word| known(word).map_or(word, |(_, origin)| origin));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Shows a whole number without a fraction, as messages about metadata do.
fn whole_numbers(found: String) -> String {
    match found.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => found,
    }
}
