//! The memory of a model without numbers: what each slot of each block holds is a hash of the salt and of every token up
//! to there. Computing a chunk checks everything that a real model would read.

use headrace_domain::BLOCK_TOKENS;
use headrace_kv_layout::{BlockTables, FREED, KvGroupKind, KvLayout};

use super::mix;

/// A slot for a state: the boundary, the hash up to there, and the rows of the tokens after it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct StateSlot {
    position: usize,
    hash: u64,
    rows: [u64; BLOCK_TOKENS],
}

/// The slots of all groups.
pub(crate) struct Memory {
    layout: KvLayout,
    full: Vec<u64>,
    window: Vec<u64>,
    states: Vec<StateSlot>,
}

/// The tokens of one sequence that a step computes.
pub(crate) struct Chunk<'a> {
    /// The hashes up to each of its known tokens ([`chain`]), at least those before `end`.
    pub(crate) hashes: &'a [u64],
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The hash after one more token.
pub(crate) fn chain(before: u64, salt: u64, token: u32) -> u64 {
    mix(before ^ mix(salt).rotate_left(17) ^ u64::from(token))
}

impl Memory {
    pub(crate) fn new(layout: KvLayout) -> Self {
        let groups = layout.groups();
        let garbage = StateSlot { position: usize::MAX, hash: 1, rows: [1; BLOCK_TOKENS] };
        Self {
            layout,
            full: vec![0; groups.full().positions()],
            window: vec![0; groups.window().positions()],
            states: vec![garbage; groups.state().block_count],
        }
    }

    /// Computes a chunk. Returns the hash after its last token.
    pub(crate) fn compute(&mut self, chunk: &Chunk<'_>, tables: &BlockTables<'_>) -> u64 {
        let hashes = &chunk.hashes[..chunk.end];
        let groups = *self.layout.groups();
        if groups.full().is_used() {
            touch(&mut self.full, tables.full, hashes, 0, chunk.start);
        }
        if let KvGroupKind::Window(window) = groups.window().kind {
            let first = (chunk.start + 1).saturating_sub(window.max(1));
            touch(&mut self.window, tables.window, hashes, first, chunk.start);
        }
        if groups.state().is_used() {
            self.touch_state(chunk, tables, hashes);
        }
        hashes[chunk.end - 1]
    }

    fn touch_state(&mut self, chunk: &Chunk<'_>, tables: &BlockTables<'_>, hashes: &[u64]) {
        let slots = tables.states.expect("a model with states gets slots");
        let base = |position: usize| position / BLOCK_TOKENS * BLOCK_TOKENS;
        let (before, after) = (base(chunk.start), base(chunk.end));
        let from = self.states[slots.from as usize];
        if before > 0 {
            assert_eq!((from.position, from.hash), (before, hashes[before - 1]), "the state at {before}");
        }
        let rows = &from.rows[..chunk.start - before];
        assert_eq!(rows, &hashes[before..chunk.start], "the rows from position {before} on");
        if chunk.start > 0 && after > before {
            assert_ne!(slots.from, slots.own, "the state that is read must stay");
        }
        if slots.from != slots.own {
            assert!(after > before || chunk.start == before, "rows would be lost");
        }
        if let Some(copy) = slots.copy {
            assert!(
                copy.position > chunk.start
                    && copy.position <= chunk.end
                    && copy.position == base(copy.position)
            );
            assert!(copy.slot != slots.from && copy.slot != slots.own);
            let garbage = [2; BLOCK_TOKENS];
            self.states[copy.slot as usize] =
                StateSlot { position: copy.position, hash: hashes[copy.position - 1], rows: garbage };
        }
        let own = &mut self.states[slots.own as usize];
        if after > before || slots.from != slots.own || chunk.start == 0 {
            own.position = after;
            own.hash = after.checked_sub(1).map_or(0, |last| hashes[last]);
            own.rows = [3; BLOCK_TOKENS];
        }
        let first = chunk.start.max(after);
        own.rows[first - after..chunk.end - after].copy_from_slice(&hashes[first..chunk.end]);
    }
}

/// Checks the slots of the positions `first..start`, and writes those from `start` on.
fn touch(slots: &mut [u64], table: &[u32], hashes: &[u64], first: usize, start: usize) {
    for (p, &hash) in hashes.iter().enumerate().skip(first) {
        let block = table[p / BLOCK_TOKENS];
        assert_ne!(block, FREED, "position {p} is needed");
        let slot = &mut slots[block as usize * BLOCK_TOKENS + p % BLOCK_TOKENS];
        if p < start {
            assert_eq!(*slot, hash, "position {p}");
        } else {
            *slot = hash;
        }
    }
}
