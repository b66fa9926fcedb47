//! Recently sent prompts of a worker, by prefix. A worker that had a conversation or a system prompt before is likely
//! to have its prefix cached. This is a guess for workers that do not report their caches. Bounded: the least recently
//! sent prefixes go first. Keys include the tenant's salt, so one tenant's prompts reveal nothing about another's.

use std::collections::HashSet;

use headrace_domain::{BLOCK_TOKENS, PrefixKeys};

use crate::plain_hash::{Plain, mark};

/// One in this many blocks of a prompt is remembered.
const STRIDE: usize = 4;
/// Tokens between two remembered blocks.
const STRIDE_TOKENS: usize = STRIDE * BLOCK_TOKENS;
/// Marks for a worker with an unknown cache size: four million tokens' worth.
pub(crate) const USUAL_MARKS: usize = 65_536;

/// Prefix marks of a prompt, from its beginning. Each mark covers a part of the prompt and all parts before it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PrefixMarks<'a> {
    Keys(&'a PrefixKeys),
    Trail(&'a [u64]),
}

impl PrefixMarks<'_> {
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

    /// Number of the prompt's tokens that `held` marks cover.
    pub(crate) fn tokens(&self, held: usize, prompt_tokens: usize) -> usize {
        match self {
            Self::Keys(_) => held * STRIDE_TOKENS,
            Self::Trail(trail) => prompt_tokens * held / trail.len().max(1),
        }
    }
}

/// Remembered marks of one worker. Two generations approximate the order of use: new marks go into the young one, and
/// when it is full the old one is dropped. A prompt's marks go into one generation together, so a mark never outlives
/// those before it.
#[derive(Debug)]
pub(crate) struct RememberedMarks {
    young: HashSet<u64, Plain>,
    old: HashSet<u64, Plain>,
    /// Most marks in one generation.
    most: usize,
}

impl RememberedMarks {
    /// Creates the memory for a cache of this many tokens.
    pub(crate) fn of_tokens(tokens: u64) -> Self {
        let marks = usize::try_from(tokens / STRIDE_TOKENS as u64).unwrap_or(usize::MAX);
        Self::of_marks(marks.clamp(1, USUAL_MARKS))
    }

    pub(crate) fn of_marks(marks: usize) -> Self {
        Self { young: HashSet::default(), old: HashSet::default(), most: (marks / 2).max(1) }
    }

    /// Remembers a prompt that was sent.
    pub(crate) fn sent(&mut self, marks: PrefixMarks<'_>) {
        let count = marks.len().min(self.most);
        if self.young.len() + count > self.most {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.extend((0..count).map_while(|at| marks.get(at)));
    }

    /// Number of the prompt's leading marks that are remembered.
    pub(crate) fn held(&self, marks: PrefixMarks<'_>) -> usize {
        let has = |at| {
            let found = marks.get(at).map(|mark| self.young.contains(&mark) || self.old.contains(&mark));
            found.unwrap_or(false)
        };
        // If a mark is remembered, so are all before it. Hence a binary search.
        let (mut held, mut not) = (0, marks.len() + 1);
        while held + 1 < not {
            let middle = held.midpoint(not);
            if has(middle - 1) { held = middle } else { not = middle }
        }
        held
    }

    /// Upper bound on the remembered blocks: a mark in both generations counts twice.
    pub(crate) fn blocks(&self) -> usize {
        (self.young.len() + self.old.len()) * STRIDE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_beginning_is_found_and_the_oldest_is_forgotten() {
        let mut sent = RememberedMarks::of_marks(16);
        sent.sent(PrefixMarks::Trail(&[1, 2, 3, 4]));
        sent.sent(PrefixMarks::Trail(&[1, 2, 9]));
        for (trail, held) in
            [(&[1u64, 2, 3, 5][..], 3), (&[1, 2, 9, 8], 3), (&[7, 2], 0), (&[], 0), (&[1], 1)]
        {
            assert_eq!(sent.held(PrefixMarks::Trail(trail)), held, "{trail:?}");
        }
        // A prefix that is sent again stays, and others go.
        for at in 0..20u64 {
            sent.sent(PrefixMarks::Trail(&[1, 2]));
            sent.sent(PrefixMarks::Trail(&[100 + at * 2, 101 + at * 2]));
            assert!(sent.young.len() + sent.old.len() <= 16);
        }
        assert_eq!(sent.held(PrefixMarks::Trail(&[1, 2, 3])), 2);
    }

    #[test]
    fn a_prompt_longer_than_a_generation_is_remembered_by_its_beginning() {
        let mut sent = RememberedMarks::of_marks(8);
        let long: Vec<u64> = (0..100).collect();
        sent.sent(PrefixMarks::Trail(&long));
        assert_eq!(sent.held(PrefixMarks::Trail(&long)), 4);
    }
}
