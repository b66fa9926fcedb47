//! Typed, range-checked access to the fields of a JSON configuration object. Every refusal names file and field. `null`
//! means absent, as in transformers. Must not know what any field is for.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{CheckpointError, shown_json};

/// One JSON object of a file, with the dotted path of the object.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    prefix: &'a str,
    members: &'a Map<String, Value>,
    read: Option<&'a ReadFields>,
}

/// The names of the fields that were read.
#[derive(Default)]
pub(crate) struct ReadFields(RefCell<BTreeSet<String>>);

impl ReadFields {
    pub(crate) fn has(&self, field: &str) -> bool {
        self.0.borrow().contains(field)
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn new(file: &'a str, members: &'a Map<String, Value>) -> Self {
        Self { file, prefix: "", members, read: None }
    }

    /// Returns the object in `field` of an object within the file. Errors show its own fields only.
    pub(crate) fn inner_object(&self, field: &str) -> Option<Fields<'a>> {
        let (_, value) = self.members.get_key_value(field)?;
        let members = value.as_object()?;
        Some(Self { file: self.file, prefix: self.prefix, members, read: None })
    }

    /// The same fields. The names of those that are read are noted in `read`.
    pub(crate) fn noting(self, read: &'a ReadFields) -> Self {
        Self { read: Some(read), ..self }
    }

    /// Returns the object in `field`, if there is one.
    pub(crate) fn object(&self, field: &'a str) -> Result<Option<Fields<'a>>, CheckpointError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(members)) => {
                Ok(Some(Self { file: self.file, prefix: field, members, read: None }))
            }
            Some(other) => Err(self.wrong(field, other, "an object or null")),
        }
    }

    /// Returns access to `members`, an object of the same file. `prefix` is the object's dotted path.
    pub(crate) fn within<'b>(&self, prefix: &'b str, members: &'b Map<String, Value>) -> Fields<'b>
    where
        'a: 'b,
    {
        Fields { file: self.file, prefix, members, read: None }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        if let Some(read) = self.read {
            read.0.borrow_mut().insert(field.to_owned());
        }
        self.peek(field)
    }

    /// Like [`Fields::get`], without noting that the field was read.
    pub(crate) fn peek(&self, field: &str) -> Option<&'a Value> {
        self.members.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.members.iter()
    }

    /// Reads a whole number in `range`.
    pub(crate) fn count(
        &self,
        field: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n));
        match number {
            Some(n) => Ok(Some(n)),
            None => {
                let expected = format!("a whole number from {} to {}", range.start(), range.end());
                Err(self.wrong(field, value, &expected))
            }
        }
    }

    pub(crate) fn required_count(
        &self,
        field: &str,
        range: RangeInclusive<usize>,
    ) -> Result<usize, CheckpointError> {
        self.count(field, range)?.ok_or_else(|| self.missing(field))
    }

    /// Reads a finite number `n` with `more_than < n <= at_most`.
    pub(crate) fn number(
        &self,
        field: &str,
        more_than: f64,
        at_most: f64,
    ) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_f64().filter(|n| *n > more_than && *n <= at_most) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(
                field,
                value,
                &format!("a number above {more_than:e} and at most {at_most:e}"),
            )),
        }
    }

    /// Reads a finite number from `at_least` to `at_most`, both included.
    pub(crate) fn number_from(
        &self,
        field: &str,
        at_least: f64,
        at_most: f64,
    ) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_f64().filter(|n| *n >= at_least && *n <= at_most) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(field, value, &format!("a number from {at_least} to {at_most}"))),
        }
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(field, other, "true, false or null")),
        }
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(field, other, "a string or null")),
        }
    }

    /// Reads one token id, or a list of at most `most`, each below `vocab_size`. An empty list differs from an absent
    /// field.
    pub(crate) fn token_ids(
        &self,
        field: &str,
        most: usize,
        vocab_size: usize,
    ) -> Result<Option<Vec<u32>>, CheckpointError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let expected = || format!("ids below vocab_size {vocab_size}, at most {most} of them");
        let items = match value {
            Value::Array(items) if items.len() <= most => items.as_slice(),
            Value::Array(_) => return Err(self.wrong(field, value, &expected())),
            one => std::slice::from_ref(one),
        };
        let limit = u64::try_from(vocab_size).unwrap_or(u64::MAX);
        let id = |item: &Value| {
            let id = item.as_u64().filter(|id| *id < limit).and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| self.wrong(field, item, &expected()))
        };
        items.iter().map(id).collect::<Result<Vec<u32>, _>>().map(Some)
    }

    /// The error for an invalid value.
    pub(crate) fn wrong(&self, field: &str, found: &Value, expected: &str) -> CheckpointError {
        self.problem(field, format!("found {}, expected {expected}", shown_json(found)))
    }

    pub(crate) fn missing(&self, field: &str) -> CheckpointError {
        self.problem(field, "is missing and has no default".to_owned())
    }

    pub(crate) fn problem(&self, field: &str, problem: String) -> CheckpointError {
        CheckpointError::Field { file: self.file.to_owned(), field: self.path(field), problem }
    }

    /// The error for a valid value that is not supported.
    pub(crate) fn unsupported(&self, field: &str, found: &Value, supported: &str) -> CheckpointError {
        CheckpointError::UnsupportedFeature {
            file: self.file.to_owned(),
            field: self.path(field),
            found: shown_json(found),
            supported: supported.to_owned(),
        }
    }

    /// Returns the dotted path of a field.
    pub(crate) fn path(&self, field: &str) -> String {
        if self.prefix.is_empty() { field.to_owned() } else { format!("{}.{field}", self.prefix) }
    }
}
