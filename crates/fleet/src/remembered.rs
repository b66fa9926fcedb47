//! What was sent to a worker lately, by prefix: where a conversation or a system prompt went before, its beginning is likely to
//! be cached. A guess for workers that do not tell what they have. Bounded; what was not sent for longest goes first.
//! Keys carry the tenant's salt, so nobody's prompts say anything about another's.

use std::collections::HashSet;

use headrace_domain::{BLOCK_TOKENS, PrefixKeys};

use crate::plain_hash::{Plain, mark};

/// Every so many blocks of a prompt one is remembered.
const STRIDE: usize = 4;
/// Tokens between two that are remembered.
const STRIDE_TOKENS: usize = STRIDE * BLOCK_TOKENS;
/// Marks of a worker that does not say how many tokens it can cache: four million tokens' worth.
pub(crate) const USUAL_MARKS: usize = 65_536;

/// Where a prompt leads, from its beginning on: each mark stands for a part of it and for all before.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Marks<'a> {
    Keys(&'a PrefixKeys),
    Trail(&'a [u64]),
}

impl Marks<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.keys().len() / STRIDE,
            Self::Trail(trail) => trail.len(),
        }
    }

    fn get(&self, at: usize) -> Option<u64> {
        match self {
            Self::Keys(keys) => keys.keys().get(at * STRIDE + STRIDE - 1).map(mark),
            Self::Trail(trail) => trail.get(at).copied(),
        }
    }

    /// How many of a prompt's tokens so many marks stand for.
    pub(crate) fn tokens(&self, held: usize, prompt_tokens: usize) -> usize {
        match self {
            Self::Keys(_) => held * STRIDE_TOKENS,
            Self::Trail(trail) => prompt_tokens * held / trail.len().max(1),
        }
    }
}

/// See the top of the file. Two generations stand for the order of use: what is sent is put into the young one, and when
/// that is full the old one is dropped. A prompt's marks go into one generation together, so that a mark is never there
/// longer than those before it.
#[derive(Debug)]
pub(crate) struct Remembered {
    young: HashSet<u64, Plain>,
    old: HashSet<u64, Plain>,
    /// Of one generation.
    most: usize,
}

impl Remembered {
    /// For a cache of so many tokens.
    pub(crate) fn of_tokens(tokens: u64) -> Self {
        let marks = usize::try_from(tokens / STRIDE_TOKENS as u64).unwrap_or(usize::MAX);
        Self::of_marks(marks.clamp(1, USUAL_MARKS))
    }

    pub(crate) fn of_marks(marks: usize) -> Self {
        Self { young: HashSet::default(), old: HashSet::default(), most: (marks / 2).max(1) }
    }

    /// A prompt was sent there.
    pub(crate) fn sent(&mut self, marks: Marks<'_>) {
        let count = marks.len().min(self.most);
        if self.young.len() + count > self.most {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.extend((0..count).map_while(|at| marks.get(at)));
    }

    /// How many of a prompt's marks are there, from its first one on.
    pub(crate) fn held(&self, marks: Marks<'_>) -> usize {
        let has = |at| {
            let found = marks.get(at).map(|mark| self.young.contains(&mark) || self.old.contains(&mark));
            found.unwrap_or(false)
        };
        // Where one is there, all before it are.
        let (mut held, mut not) = (0, marks.len() + 1);
        while held + 1 < not {
            let middle = held.midpoint(not);
            if has(middle - 1) { held = middle } else { not = middle }
        }
        held
    }

    /// How many blocks' worth is remembered, at most: what is in both generations counts twice.
    pub(crate) fn blocks(&self) -> usize {
        (self.young.len() + self.old.len()) * STRIDE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_beginning_is_found_and_the_oldest_is_forgotten() {
        let mut sent = Remembered::of_marks(16);
        sent.sent(Marks::Trail(&[1, 2, 3, 4]));
        sent.sent(Marks::Trail(&[1, 2, 9]));
        for (trail, held) in
            [(&[1u64, 2, 3, 5][..], 3), (&[1, 2, 9, 8], 3), (&[7, 2], 0), (&[], 0), (&[1], 1)]
        {
            assert_eq!(sent.held(Marks::Trail(trail)), held, "{trail:?}");
        }
        // Sent again, it stays; what was not sent goes.
        for at in 0..20u64 {
            sent.sent(Marks::Trail(&[1, 2]));
            sent.sent(Marks::Trail(&[100 + at * 2, 101 + at * 2]));
            assert!(sent.young.len() + sent.old.len() <= 16);
        }
        assert_eq!(sent.held(Marks::Trail(&[1, 2, 3])), 2);
    }

    #[test]
    fn a_prompt_longer_than_a_generation_is_remembered_by_its_beginning() {
        let mut sent = Remembered::of_marks(8);
        let long: Vec<u64> = (0..100).collect();
        sent.sent(Marks::Trail(&long));
        assert_eq!(sent.held(Marks::Trail(&long)), 4);
    }
}
