//! Kinds of bytes: two bytes are of one kind in a state if no state from there on distinguishes them. For example, far
//! behind `(yes|no): .{20,300}` an `e` is a letter like any other. Each kind is represented by one of its byte classes.

use std::collections::HashMap;

use super::table::TransitionTable;

/// Most passes over all states. Each pass carries the distinctions of a state to the states before it.
const MOST_PASSES: usize = 16;

/// For each byte class, the first class of the same kind.
pub(super) type Kinds = Vec<u8>;

/// The kinds of all states. Equal ones are stored once.
#[derive(Default)]
pub(super) struct AllKinds {
    all: Vec<Kinds>,
    number_of: HashMap<Kinds, u32>,
    /// The coarsest kinds that keep the distinctions of both, by the numbers of the two.
    both: HashMap<(u32, u32), u32>,
}

impl AllKinds {
    /// The kinds that most states share, and for each state whether it has them. Returns `None` if they are not stable
    /// after [`MOST_PASSES`] passes.
    pub(super) fn most_shared(table: &TransitionTable) -> Option<(Kinds, Vec<bool>)> {
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
        // The first state is the dead one.
        for number in of.iter().skip(1) {
            *shared.get_mut(*number as usize)? += 1;
        }
        let most = (0u32..).zip(&shared).max_by_key(|(_, shared)| **shared)?.0;
        let its = of.iter().map(|number| *number == most).collect();
        Some((kinds.all.get(most as usize)?.clone(), its))
    }

    /// Adds to each state the distinctions that its next states make. Returns whether anything changed.
    fn pass(&mut self, table: &TransitionTable, of: &mut [u32]) -> bool {
        let mut changed = false;
        // A state has a higher number than the state from which it was first reached.
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

/// For each value, the index of the first equal one.
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
