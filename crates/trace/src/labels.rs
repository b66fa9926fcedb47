//! The models that have their own label in the metrics: those known at the start, and a limited number of later ones.
//! Looking up a name takes no lock. Knows nothing of what is counted.

use std::sync::OnceLock;

/// Maximum number of later models. Further models count as `other`.
const LATER: usize = 32;

/// A bounded, append-only list of names, and the labels `other` and `none`.
pub(crate) struct LabelList {
    /// Filled from the front.
    names: Box<[OnceLock<String>]>,
}

impl LabelList {
    /// Creates labels for these names. Duplicates count once.
    pub(crate) fn new(names: &[String]) -> Self {
        let labels = Self { names: (0..names.len() + LATER).map(|_| OnceLock::new()).collect() };
        names.iter().for_each(|name| labels.add(name));
        labels
    }

    /// Adds a label for a name, if there is room.
    pub(crate) fn add(&self, name: &str) {
        // Finds the first slot that has this name or is free, and fills it.
        let _ = self.names.iter().any(|place| place.get_or_init(|| name.to_owned()) == name);
    }

    /// Maximum number of labels in all.
    pub(crate) fn len(&self) -> usize {
        self.names.len() + 2
    }

    /// The label index of a name, or of a missing name.
    pub(crate) fn index(&self, name: Option<&str>) -> usize {
        let Some(name) = name else { return self.names.len() + 1 };
        let known = self.names.iter().map_while(OnceLock::get).position(|known| known == name);
        known.unwrap_or(self.names.len())
    }

    /// The text of a label.
    pub(crate) fn name(&self, at: usize) -> &str {
        match self.names.get(at) {
            Some(place) => place.get().map_or("other", String::as_str),
            None if at == self.names.len() => "other",
            None => "none",
        }
    }

    /// All labels in use, with their indices.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &str)> {
        let named = self.names.iter().map_while(OnceLock::get).map(String::as_str).enumerate();
        named.chain([(self.names.len(), "other"), (self.names.len() + 1, "none")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_later_and_keep_their_place_until_there_is_no_more_room() {
        let labels = LabelList::new(&["a".to_owned(), "a".to_owned()]);
        let none = labels.index(None);
        assert_eq!((labels.index(Some("a")), labels.name(labels.index(Some("b")))), (0, "other"));
        labels.add("b");
        labels.add("a");
        assert_eq!((labels.index(Some("b")), labels.name(1), labels.name(none)), (1, "b", "none"));
        let all: Vec<&str> = labels.all().map(|(_, name)| name).collect();
        assert_eq!(all, ["a", "b", "other", "none"]);
        (0..100).for_each(|more| labels.add(&more.to_string()));
        assert_eq!((labels.name(labels.index(Some("99"))), labels.index(None)), ("other", none));
        assert!(labels.all().all(|(at, name)| at < labels.len() && labels.name(at) == name));
    }
}
