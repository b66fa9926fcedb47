//! Typed, range-checked access to GGUF metadata. Every refusal names file and key. Must not know what any key is for.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::error::CheckpointError;
use crate::limits;

use super::value::{Texts, Value};

/// The metadata of one file.
#[derive(Clone, Copy)]
pub(super) struct Meta<'a> {
    file: &'a str,
    values: &'a BTreeMap<String, Value>,
}

impl<'a> Meta<'a> {
    pub(super) fn new(file: &'a str, values: &'a BTreeMap<String, Value>) -> Self {
        Self { file, values }
    }

    /// The name of the file.
    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.values.keys().map(String::as_str)
    }

    /// Reads a whole number in `range`.
    pub(super) fn count(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, CheckpointError> {
        self.get(key).map(|value| self.counted(key, value, value, &range)).transpose()
    }

    pub(super) fn required_count(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<usize, CheckpointError> {
        self.count(key, range)?.ok_or_else(|| self.missing(key))
    }

    /// Reads a whole number in `range`, or a list that repeats the same number for every layer.
    pub(super) fn uniform_count(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Numbers(numbers) = value else { return self.count(key, range) };
        match self.same_count((key, value), numbers.iter(), &range, "the same for every layer is")? {
            None => Err(self.wrong(key, value, "a whole number for each layer")),
            number => Ok(number),
        }
    }

    /// Reads a whole number in `range` for each of `layers`: a list, or one number for all.
    pub(super) fn each_count(
        &self,
        key: &str,
        layers: usize,
        range: RangeInclusive<usize>,
    ) -> Result<Option<Vec<usize>>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Numbers(numbers) = value else {
            return Ok(self.count(key, range)?.map(|number| vec![number; layers]));
        };
        if numbers.len() != layers {
            return Err(self.wrong(key, value, &format!("a whole number for each of {layers} layers")));
        }
        numbers
            .iter()
            .map(|number| self.counted(key, value, &number, &range))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Reads a whole number in `range`, or a list with 0 for layers that have no such part and the same number for all
    /// others. 0 if no layer has it.
    pub(super) fn layer_count(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Numbers(numbers) = value else { return self.count(key, range) };
        let each = numbers.iter().filter(|number| number.integer() != Some(0));
        let supported = "the same for every layer that has it is";
        Ok(Some(self.same_count((key, value), each, &range, supported)?.unwrap_or(0)))
    }

    /// Reads the number that all of `each` are. `None` if there are none.
    fn same_count(
        &self,
        (key, value): (&str, &Value),
        mut each: impl Iterator<Item = Value>,
        range: &RangeInclusive<usize>,
        supported: &str,
    ) -> Result<Option<usize>, CheckpointError> {
        let Some(first) = each.next() else { return Ok(None) };
        match each.any(|other| other != first) {
            true => Err(self.unsupported(key, value, supported)),
            false => self.counted(key, value, &first, range).map(Some),
        }
    }

    fn counted(
        &self,
        key: &str,
        whole: &Value,
        value: &Value,
        range: &RangeInclusive<usize>,
    ) -> Result<usize, CheckpointError> {
        let number = value.integer().and_then(|n| usize::try_from(n).ok());
        number.filter(|n| range.contains(n)).ok_or_else(|| {
            self.wrong(key, whole, &format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// Reads a finite number `n` with `more_than < n <= at_most`.
    pub(super) fn number(
        &self,
        key: &str,
        more_than: f64,
        at_most: f64,
    ) -> Result<Option<f64>, CheckpointError> {
        let expected = || format!("a number above {more_than:e} and at most {at_most:e}");
        self.filtered(key, |n| n > more_than && n <= at_most, expected)
    }

    /// Reads a finite number from `at_least` to `at_most`, both included.
    pub(super) fn number_from(
        &self,
        key: &str,
        at_least: f64,
        at_most: f64,
    ) -> Result<Option<f64>, CheckpointError> {
        let expected = || format!("a number from {at_least} to {at_most}");
        self.filtered(key, |n| n >= at_least && n <= at_most, expected)
    }

    fn filtered(
        &self,
        key: &str,
        fits: impl Fn(f64) -> bool,
        expected: impl Fn() -> String,
    ) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.number().filter(|n| fits(*n));
        number.map(Some).ok_or_else(|| self.wrong(key, value, &expected()))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "a truth value")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a text")),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<&'a Texts>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => Ok(Some(texts)),
            Some(other) => Err(self.wrong(key, other, "a list of texts")),
        }
    }

    /// Reads a list of exactly `count` numbers. `None` if the key is absent.
    pub(super) fn numbers(&self, key: &str, count: usize) -> Result<Option<Vec<f64>>, CheckpointError> {
        let expected = || format!("a list of {count} numbers");
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Numbers(numbers)) if numbers.len() == count => {
                let list: Option<Vec<f64>> = numbers.iter().map(|value| value.number()).collect();
                list.map(Some).ok_or_else(|| self.wrong(key, value, &expected()))
            }
            Some(other) => Err(self.wrong(key, other, &expected())),
        }
    }

    /// The error for an invalid value.
    pub(super) fn wrong(&self, key: &str, found: &Value, expected: &str) -> CheckpointError {
        self.problem(key, format!("found {}, expected {expected}", found.shown()))
    }

    pub(super) fn missing(&self, key: &str) -> CheckpointError {
        self.problem(key, "is missing and has no default".to_owned())
    }

    pub(super) fn problem(&self, key: &str, problem: String) -> CheckpointError {
        CheckpointError::Field { file: self.file.to_owned(), field: key.to_owned(), problem }
    }

    /// The error for a valid value that is not supported.
    pub(super) fn unsupported(&self, key: &str, found: &Value, supported: &str) -> CheckpointError {
        self.unsupported_as(key, found.shown(), supported)
    }

    /// Like [`Meta::unsupported`]. `found` is the value as the message shows it.
    pub(super) fn unsupported_as(&self, key: &str, found: String, supported: &str) -> CheckpointError {
        CheckpointError::UnsupportedFeature {
            file: self.file.to_owned(),
            field: key.to_owned(),
            found,
            supported: supported.to_owned(),
        }
    }

    /// Reads which layers have a window: a list with an item for each, or how many layers there are from one without to
    /// the next.
    pub(super) fn windowed_layers(
        self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<bool>>, CheckpointError> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Numbers(numbers)) => {
                let each = numbers.iter().map(|number| match number {
                    Value::Bool(is_window) => Some(is_window),
                    Value::Integer(0) => Some(false),
                    Value::Integer(1) => Some(true),
                    _ => None,
                });
                let each = each.collect::<Option<Vec<bool>>>().filter(|each| each.len() == layers);
                let expected = || format!("a truth value for each of {layers} layers");
                each.map(Some).ok_or_else(|| self.wrong(key, value, &expected()))
            }
            Some(_) => {
                let group = self.required_count(key, 0..=limits::MAX_LAYERS)?;
                let is_window = |index: usize| group == 0 || !(index + 1).is_multiple_of(group);
                Ok(Some((0..layers).map(is_window).collect()))
            }
        }
    }
}
