//! A bounded table of label values: the values known at the start, and a few slots for values learned at run time.
//! Reads take no lock. A value that does not fit becomes `other`, so that no caller can grow the metrics.

use std::collections::HashMap;
use std::sync::OnceLock;

/// Maximum bytes of a learned label value.
const MAX_BYTES: usize = 64;
/// Maximum number of learned values.
const LEARNED: usize = 16;

pub(crate) struct InternedNames {
    known: Vec<&'static str>,
    index_of: HashMap<&'static str, usize>,
    learned: [OnceLock<Box<str>>; LEARNED],
}

impl InternedNames {
    pub(crate) fn new(known: impl IntoIterator<Item = &'static str>) -> Self {
        let mut table = Self { known: Vec::new(), index_of: HashMap::new(), learned: Default::default() };
        for name in known {
            if let std::collections::hash_map::Entry::Vacant(new) = table.index_of.entry(name) {
                new.insert(table.known.len());
                table.known.push(name);
            }
        }
        table
    }

    /// Total number of indices: known values, learned values and `other`.
    pub(crate) fn len(&self) -> usize {
        self.known.len() + LEARNED + 1
    }

    /// The index of a value. Learns the value if there is room.
    pub(crate) fn index(&self, text: &str) -> usize {
        if let Some(known) = self.index_of.get(text) {
            return *known;
        }
        let other = self.known.len() + LEARNED;
        if text.len() > MAX_BYTES {
            return other;
        }
        let found = self.learned.iter().position(|slot| slot.get_or_init(|| text.into()).as_ref() == text);
        found.map_or(other, |at| self.known.len() + at)
    }

    /// The value at an index.
    pub(crate) fn name(&self, index: usize) -> &str {
        if let Some(known) = self.known.get(index) {
            return known;
        }
        let learned = index.checked_sub(self.known.len()).and_then(|at| self.learned.get(at));
        learned.and_then(OnceLock::get).map_or("other", AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_have_their_place_whatever_comes_before_them() {
        let table = InternedNames::new(["a", "b", "a"]);
        assert_eq!(table.len(), 2 + LEARNED + 1);
        for n in 0..LEARNED {
            assert_eq!(table.index(&format!("new-{n}")), 2 + n);
        }
        assert_eq!((table.index("b"), table.index("a"), table.index("new-3")), (1, 0, 5));
        assert_eq!(table.name(table.index("one too many")), "other");
        assert_eq!((table.name(1), table.name(5)), ("b", "new-3"));
        assert_eq!(InternedNames::new([]).index(&"x".repeat(65)), LEARNED, "too long to be a label");
    }
}
