//! The placeholders of one call and the values that they stand for. They are written nowhere: no formatting shows a
//! value. Must not know where a placeholder occurs.

use std::fmt;

use crate::limits;

/// The most bytes of a placeholder: a label as long as the name of a rule, and a number.
const MAX_BYTES: usize = limits::MAX_NAME_BYTES + 24;

/// See the top of the file.
#[derive(Default)]
pub struct PlaceholderMap {
    /// Placeholders with their values, sorted by placeholder.
    entries: Vec<(String, String)>,
}

/// What a text is among the placeholders of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlaceholderMatch<'m> {
    /// Neither a placeholder nor the start of one.
    None,
    /// The start of a placeholder.
    Start,
    /// A placeholder with this value.
    Whole(&'m str),
}

impl PlaceholderMap {
    pub(crate) fn new(mut entries: Vec<(String, String)>) -> Self {
        entries.sort_unstable();
        Self { entries }
    }

    /// Whether there are no placeholders.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of placeholders.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The placeholders that start with `text`.
    pub(super) fn starting(&self, text: &str) -> impl Iterator<Item = &(String, String)> {
        let first = self.entries.partition_point(|(placeholder, _)| placeholder.as_str() < text);
        let rest = self.entries.get(first..).unwrap_or_default();
        rest.iter().take_while(move |(placeholder, _)| placeholder.starts_with(text))
    }

    /// What `text` is. No placeholder is the start of another one, because each ends in its only `>`.
    pub(super) fn find(&self, text: &str) -> PlaceholderMatch<'_> {
        match self.starting(text).next() {
            None => PlaceholderMatch::None,
            Some((placeholder, value)) if placeholder == text => PlaceholderMatch::Whole(value),
            Some(_) => PlaceholderMatch::Start,
        }
    }
}

impl fmt::Debug for PlaceholderMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaceholderMap({} placeholders)", self.entries.len())
    }
}

/// The placeholder with this label and number.
pub(super) fn placeholder(label: &str, number: usize) -> String {
    format!("<{label}_{number}>")
}

/// Whether a text looks like a placeholder: `<`, capital letters, digits and `_`, and `>`, with a number at the end.
pub(super) fn is_placeholder(text: &str) -> bool {
    let inner = text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
    let parts = inner.and_then(|inner| inner.rsplit_once('_'));
    let is_label =
        |label: &str| label.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    parts.is_some_and(|(label, number)| {
        is_label(label) && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Calls `each` with every part of `text` that looks like a placeholder.
pub(crate) fn each_placeholder<'t>(text: &'t str, each: &mut dyn FnMut(&'t str)) {
    for (start, _) in text.match_indices('<') {
        let rest = text.get(start..).unwrap_or_default();
        let end = rest.bytes().take(MAX_BYTES).position(|b| b == b'>');
        let found = end.and_then(|end| rest.get(..=end));
        if let Some(found) = found.filter(|found| is_placeholder(found)) {
            each(found);
        }
    }
}
