//! A table of named rows that are never removed. After one look-up by name, a row is accessed by its index. Does not
//! know the content of the rows.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;

/// A map whose keys are chosen by this program. Clients cannot choose them, so the hash need not resist attacks.
pub(crate) type Map<K, V> = HashMap<K, V, RandomState>;

/// A table of named rows, in the order of insertion.
#[derive(Debug, Clone)]
pub(crate) struct RowTable<K, V> {
    places: HashMap<K, RowIndex, RandomState>,
    rows: Vec<(K, V)>,
}

/// A row index. Valid for the table that issued it and for clones of that table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowIndex(usize);

impl<K, V> Default for RowTable<K, V> {
    fn default() -> Self {
        Self { places: HashMap::default(), rows: Vec::new() }
    }
}

impl<K: Hash + Eq + Clone, V> RowTable<K, V> {
    pub(crate) fn place(&self, name: &K) -> Option<RowIndex> {
        self.places.get(name).copied()
    }

    /// Like [`RowTable::place`], for a caller that expects the index `likely`. If `likely` is correct, no hash is
    /// computed.
    pub(crate) fn place_near(&self, name: &K, likely: Option<RowIndex>) -> Option<RowIndex> {
        let is_there = |place: &RowIndex| self.name(*place).is_some_and(|known| known == name);
        likely.filter(is_there).or_else(|| self.place(name))
    }

    pub(crate) fn row(&self, place: RowIndex) -> Option<(&K, &V)> {
        self.rows.get(place.0).map(|(name, row)| (name, row))
    }

    pub(crate) fn name(&self, place: RowIndex) -> Option<&K> {
        self.rows.get(place.0).map(|(name, _)| name)
    }

    pub(crate) fn at(&self, place: RowIndex) -> Option<&V> {
        self.rows.get(place.0).map(|(_, row)| row)
    }

    pub(crate) fn at_mut(&mut self, place: RowIndex) -> Option<&mut V> {
        self.rows.get_mut(place.0).map(|(_, row)| row)
    }

    pub(crate) fn get(&self, name: &K) -> Option<&V> {
        self.at(self.place(name)?)
    }

    pub(crate) fn get_mut(&mut self, name: &K) -> Option<&mut V> {
        self.at_mut(self.place(name)?)
    }

    pub(crate) fn contains(&self, name: &K) -> bool {
        self.places.contains_key(name)
    }

    /// Returns the index of the row with this name. Inserts the row if it does not exist.
    pub(crate) fn place_or_insert(&mut self, name: &K, row: impl FnOnce() -> V) -> RowIndex {
        if let Some(place) = self.place(name) {
            return place;
        }
        let place = RowIndex(self.rows.len());
        self.places.insert(name.clone(), place);
        self.rows.push((name.clone(), row()));
        place
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().map(|(name, row)| (name, row))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.rows.iter().map(|(_, row)| row)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.rows.iter_mut().map(|(_, row)| row)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A returned index belongs to the name, and a wrong `likely` index is never trusted.
        #[test]
        fn it_finds_what_a_plain_list_would(names in prop::collection::vec(0_u8..20, 0..60), likely in 0_usize..25) {
            let (mut table, mut plain) = (RowTable::default(), Vec::new());
            for (row, name) in names.into_iter().enumerate() {
                if !plain.iter().any(|(known, _)| *known == name) {
                    plain.push((name, row));
                }
                let place = table.place_or_insert(&name, || row);
                prop_assert_eq!(table.row(place), plain.iter().find(|(known, _)| *known == name).map(|(name, row)| (name, row)));
            }
            prop_assert!(table.iter().eq(plain.iter().map(|(name, row)| (name, row))));
            for name in 0..25 {
                let row = plain.iter().find(|(known, _)| *known == name).map(|(_, row)| row);
                let near = table.place_near(&name, Some(RowIndex(likely)));
                prop_assert_eq!(near.and_then(|place| table.at(place)), row);
                prop_assert_eq!((table.get(&name), table.contains(&name)), (row, row.is_some()));
            }
        }
    }
}
