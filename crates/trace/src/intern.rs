//! A bounded table of label values learned as they come: lock-free to read, never more than its capacity.
//! What does not fit is `other`, so that no caller can grow the metrics without end.

use std::sync::OnceLock;

/// Longest label value kept, in bytes.
const MAX_BYTES: usize = 64;

pub(crate) struct Interned {
    slots: Box<[OnceLock<Box<str>>]>,
}

impl Interned {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { slots: (0..capacity).map(|_| OnceLock::new()).collect() }
    }

    /// How many indices there are: the slots and `other`.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() + 1
    }

    /// The index of a value, learning it if there is room.
    pub(crate) fn index(&self, text: &str) -> usize {
        let other = self.slots.len();
        if text.len() > MAX_BYTES {
            return other;
        }
        // Values are few and fixed in the program, so a scan is shorter than a hash.
        let found = self.slots.iter().position(|slot| slot.get_or_init(|| text.into()).as_ref() == text);
        found.unwrap_or(other)
    }

    /// The value at an index.
    pub(crate) fn name(&self, index: usize) -> &str {
        self.slots.get(index).and_then(OnceLock::get).map_or("other", AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_learned_up_to_the_capacity() {
        let table = Interned::new(2);
        assert_eq!((table.index("a"), table.index("b"), table.index("a")), (0, 1, 0));
        assert_eq!(table.index("c"), 2, "no room: other");
        assert_eq!(table.name(2), "other");
        assert_eq!(table.name(1), "b");
        assert_eq!(Interned::new(4).index(&"x".repeat(65)), 4, "too long to be a label");
    }
}
