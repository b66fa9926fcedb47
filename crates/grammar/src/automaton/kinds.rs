//! Kinds of bytes that matter from a state on: far behind `(yes|no): .{20,300}` an `e` is a letter like any other. Each kind is known by
//! one class of bytes that is of it.

use std::collections::HashMap;

use super::table::Table;

/// Passes over all states, in which what is known of one reaches those before it.
const MOST_PASSES: usize = 16;

/// For each class of bytes the class that stands for its kind: the first one.
pub(super) type Kinds = Vec<u8>;

/// Kinds by state.
#[derive(Default)]
pub(super) struct AllKinds {
    all: Vec<Kinds>,
    number_of: HashMap<Kinds, u32>,
    /// Those that hold apart what either holds apart.
    both: HashMap<(u32, u32), u32>,
}

impl AllKinds {
    /// The kinds that most states share, and which states those are. `None`: they are not found in so many passes.
    pub(super) fn most_shared(table: &Table) -> Option<(Kinds, Vec<bool>)> {
        let mut kinds = Self::default();
        let mut of: Vec<u32> =
            table.next.chunks_exact(table.classes).map(|row| kinds.number(firsts(row))).collect();
        let mut passes = 0;
        while kinds.pass(table, &mut of) {
            passes += 1;
            if passes > MOST_PASSES {
                return None;
            }
        }
        let mut shared = vec![0u32; kinds.all.len()];
        // The first is the dead one.
        for number in of.iter().skip(1) {
            *shared.get_mut(*number as usize)? += 1;
        }
        let most = (0u32..).zip(&shared).max_by_key(|(_, shared)| **shared)?.0;
        let its = of.iter().map(|number| *number == most).collect();
        Some((kinds.all.get(most as usize)?.clone(), its))
    }

    /// Holds apart in each state what a state behind it holds apart. Whether that changed anything.
    fn pass(&mut self, table: &Table, of: &mut [u32]) -> bool {
        let mut changed = false;
        // States have higher numbers than those from which they were come to first.
        for (state, row) in table.next.chunks_exact(table.classes).enumerate().rev() {
            let Some(former) = of.get(state).copied() else { continue };
            let mut now = former;
            let mut last = None;
            for to in row {
                let behind = of.get(*to as usize).copied();
                if behind != last
                    && let Some(behind) = behind
                {
                    now = self.apart(now, behind);
                    last = Some(behind);
                }
            }
            if let Some(of) = of.get_mut(state)
                && now != former
            {
                *of = now;
                changed = true;
            }
        }
        changed
    }

    fn number(&mut self, kinds: Kinds) -> u32 {
        let all = &mut self.all;
        *self.number_of.entry(kinds).or_insert_with_key(|kinds| {
            all.push(kinds.clone());
            all.len() as u32 - 1
        })
    }

    fn apart(&mut self, one: u32, other: u32) -> u32 {
        if one == other {
            return one;
        }
        if let Some(both) = self.both.get(&(one, other)) {
            return *both;
        }
        let get = |number: u32| self.all.get(number as usize).map(Vec::as_slice).unwrap_or_default();
        let pairs: Vec<(u8, u8)> = get(one).iter().copied().zip(get(other).iter().copied()).collect();
        let both = self.number(firsts(&pairs));
        self.both.insert((one, other), both);
        both
    }
}

/// For each place the first one that is equal.
fn firsts<T: PartialEq>(values: &[T]) -> Kinds {
    let mut different: Vec<(u8, &T)> = Vec::new();
    let first = |(at, value)| match different.iter().find(|(_, other)| *other == value) {
        Some((first, _)) => *first,
        None => {
            different.push((at, value));
            at
        }
    };
    (0u8..=255).zip(values).map(first).collect()
}
