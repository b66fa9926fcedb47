//! One value for each cache group, stored inline, so that a step allocates nothing for it.

use crate::StateSlots;

/// Number of cache groups: layers that keep every position, layers with a window, and layers with a state. A group that
/// a model does not have is unused: it has no blocks.
pub const GROUPS: usize = 3;

/// One value for each cache group, in the order of the groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerGroup<T>([T; GROUPS]);

/// The blocks and the state slots of one sequence, as a step reads and writes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockTables<'a> {
    /// The ids of the physical blocks in the order of positions, for layers that keep every position.
    pub full: &'a [u32],
    /// The same for layers with a window. The blocks before the window may be [`FREED`](crate::FREED).
    pub window: &'a [u32],
    /// The slots of the states. `None` for models without states.
    pub states: Option<StateSlots>,
}

impl<'a> BlockTables<'a> {
    /// Creates the tables of a model all of whose layers keep every position.
    pub const fn single(full: &'a [u32]) -> Self {
        Self { full, window: &[], states: None }
    }

    /// Creates tables with the same block ids for all layers that keep keys and values, and the first slot for the state.
    /// For a caller that computes one sequence at a time. The state changes in place, so a failed step cannot be computed
    /// again.
    pub const fn same(blocks: &'a [u32]) -> Self {
        Self { full: blocks, window: blocks, states: Some(StateSlots { from: 0, own: 0, copy: None }) }
    }
}

impl<T> PerGroup<T> {
    /// Creates the values of all groups.
    pub const fn new(values: [T; GROUPS]) -> Self {
        Self(values)
    }

    /// Returns the value of the layers that keep every position.
    pub const fn full(&self) -> &T {
        let [full, ..] = &self.0;
        full
    }

    /// Returns the value of the layers with a window.
    pub const fn window(&self) -> &T {
        let [_, window, _] = &self.0;
        window
    }

    /// Returns the value of the layers with a state.
    pub const fn state(&self) -> &T {
        let [.., state] = &self.0;
        state
    }

    /// Returns the values for writing: full, window and state.
    pub const fn each_mut(&mut self) -> (&mut T, &mut T, &mut T) {
        let [full, window, state] = &mut self.0;
        (full, window, state)
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

    #[test]
    fn the_groups_have_a_fixed_order() {
        let mut values = PerGroup::new(["full", "window", "state"]);
        assert_eq!((*values.full(), *values.window(), *values.state()), ("full", "window", "state"));
        *values.each_mut().1 = "other";
        assert_eq!(values.iter().copied().collect::<Vec<_>>(), ["full", "other", "state"]);
    }
}
