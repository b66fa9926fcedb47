//! One value for each cache group, stored inline, so that a step allocates nothing for it.

/// Number of cache groups of a model. It becomes the largest number once a model has layers that keep different
/// positions or widths. This file and the loops over [`PerGroup`] are the only code that depends on it.
pub const GROUPS: usize = 1;

/// One value for each cache group, in the order of the groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerGroup<T>([T; GROUPS]);

/// The block tables of one sequence: for each group, the ids of its physical blocks in the order of positions.
pub type BlockTables<'a> = PerGroup<&'a [u32]>;

impl<T> PerGroup<T> {
    /// Creates the values of all groups.
    pub const fn new(values: [T; GROUPS]) -> Self {
        Self(values)
    }

    /// Returns the value of the first group.
    pub const fn first(&self) -> &T {
        let [first, ..] = &self.0;
        first
    }

    /// Returns the value of the last group.
    pub const fn last(&self) -> &T {
        let [.., last] = &self.0;
        last
    }

    /// Returns the values in the order of the groups.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Returns the values for writing, in the order of the groups.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// Computes a value from that of each group.
    pub fn map<'a, U>(&'a self, of: impl FnMut(&'a T) -> U) -> PerGroup<U> {
        PerGroup(self.0.each_ref().map(of))
    }

    /// Computes a value from that of each group. Returns `None` if a group has none.
    pub fn try_map<'a, U: Default>(&'a self, mut of: impl FnMut(&'a T) -> Option<U>) -> Option<PerGroup<U>> {
        let mut values = PerGroup::default();
        for (to, from) in values.iter_mut().zip(self.iter()) {
            *to = of(from)?;
        }
        Some(values)
    }
}

impl<T: Copy> PerGroup<T> {
    /// Creates the same value for every group.
    pub const fn repeat(value: T) -> Self {
        Self([value; GROUPS])
    }
}

impl PerGroup<usize> {
    /// Returns the sum over all groups.
    #[inline]
    pub fn total(&self) -> usize {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_without_a_value_leaves_none() {
        let lengths = PerGroup::repeat(3_usize);
        assert_eq!(lengths.try_map(|length| length.checked_sub(1)), Some(PerGroup::repeat(2)));
        assert_eq!(lengths.try_map(|length| length.checked_sub(4)), None);
        assert_eq!(lengths.total(), 3 * GROUPS);
    }
}
