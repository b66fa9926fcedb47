//! Labels that a caller gives to a call (`metadata`). Only labels: they grant nothing, and no answer depends on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum number of labels that are kept of a call.
const MAX_LABELS: usize = 16;
/// Maximum bytes of a name. Labels with longer names are not kept.
const MAX_NAME_BYTES: usize = 64;
/// Maximum bytes of a value. The end of a longer value is not kept.
pub(crate) const MAX_VALUE_BYTES: usize = 256;
/// The label by which usage can be grouped.
const TAG: &str = "tag";

/// The labels of a call, by name. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallLabels(BTreeMap<Box<str>, Box<str>>);

impl CallLabels {
    /// Keeps labels within the bounds. `None` if none is left.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut labels = BTreeMap::new();
        for (name, value) in pairs {
            if labels.len() >= MAX_LABELS {
                break;
            }
            if name.is_empty() || name.len() > MAX_NAME_BYTES {
                continue;
            }
            let value = value.get(..value.floor_char_boundary(MAX_VALUE_BYTES)).unwrap_or_default();
            labels.insert(name.into(), value.into());
        }
        (!labels.is_empty()).then_some(Self(labels))
    }

    /// Reads the pairs of a JSON object whose values are strings. Other values are skipped. `None` if there is none.
    pub fn of_json(text: &str) -> Option<Self> {
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
        Self::of(fields.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))))
    }

    /// The value of a label.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(AsRef::as_ref)
    }

    /// The value by which usage is grouped: that of the label `tag`.
    pub fn tag(&self) -> Option<&str> {
        self.get(TAG)
    }

    /// All labels, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// Removes the labels whose name `is_removed`, and replaces the values for which `replaced` returns another one.
    /// Returns whether a label changed. The caller removes labels that are empty then.
    pub(crate) fn rewrite(
        &mut self,
        is_removed: impl Fn(&str) -> bool,
        replaced: impl Fn(&str) -> Option<String>,
    ) -> bool {
        let before = self.0.len();
        self.0.retain(|name, _| !is_removed(name));
        let mut has_changed = self.0.len() < before;
        for value in self.0.values_mut() {
            if let Some(other) = replaced(value) {
                *value = other.into();
                has_changed = true;
            }
        }
        has_changed
    }

    /// Whether all labels were removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let long = "é".repeat(200);
        let many: Vec<(String, String)> = (0..40).map(|n| (format!("n{n:02}"), long.clone())).collect();
        let labels =
            CallLabels::of(many.iter().map(|(name, value)| (name.as_str(), value.as_str()))).unwrap();
        assert_eq!(labels.iter().count(), MAX_LABELS);
        assert!(labels.iter().all(|(_, value)| value.len() == MAX_VALUE_BYTES));
        assert_eq!(CallLabels::of([("", "x"), ("n".repeat(65).as_str(), "x")]), None);
        let read = CallLabels::of_json(r#"{"tag":"checkout","n":1,"b":"x"}"#).unwrap();
        assert_eq!((read.tag(), read.get("n"), read.iter().count()), (Some("checkout"), None, 2));
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"{"b":"x","tag":"checkout"}"#);
        for none in ["{}", "[]", "null", "7", "{\"a\":1}", "{"] {
            assert_eq!(CallLabels::of_json(none), None, "{none}");
        }
    }
}
