//! Reads JSON documents in which any field may be missing. Must not know what they describe.

use serde_json::{Map, Value};

/// The anchor of a heading.
pub(super) fn slug(heading: &str) -> String {
    let lower = heading.chars().flat_map(char::to_lowercase);
    let kept = lower.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

pub(super) fn text_of<'v>(of: &'v Value, name: &str) -> &'v str {
    of.get(name).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn list(of: Option<&Value>) -> &[Value] {
    of.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn object(of: Option<&Value>) -> impl Iterator<Item = (&str, &Value)> {
    of.and_then(Value::as_object).into_iter().flat_map(Map::iter).map(|(name, value)| (name.as_str(), value))
}
