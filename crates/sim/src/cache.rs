//! The cache of the model without weights: what each slot of each block holds, and what is read back from there. Must not
//! know: vocabularies, or faults.

use headrace_kernels::forward::SequenceChunk;
use headrace_kv_layout::{BLOCK_TOKENS, FREED, KvGroupKind, KvLayout};

use crate::hash::mix;

/// Content of a slot that was never written, or whose write failed.
pub(crate) const GARBAGE: u64 = 0xdead_beef_dead_beef;
/// Content of a slot whose values are not numbers. Everything that is computed from it is not a number either.
pub(crate) const NOT_FINITE: u64 = 0x7ff8_7ff8_7ff8_7ff8;

/// The slots of every cache group.
#[derive(Debug)]
pub(crate) struct ScriptedCache {
    layout: KvLayout,
    full: Vec<u64>,
    window: Vec<u64>,
    states: Vec<StateSlot>,
}

/// A state at a multiple of the block size, and the rows of the tokens after it.
#[derive(Clone, Copy, Debug)]
struct StateSlot {
    state: u64,
    rows: [u64; BLOCK_TOKENS],
}

/// What a position is computed from: a hash of everything that its token sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenHistory {
    pub(crate) hash: u64,
    /// Whether something that it sees is not a number.
    pub(crate) is_nan: bool,
}

impl ScriptedCache {
    /// Creates slots that hold garbage.
    pub(crate) fn new(layout: KvLayout) -> Self {
        let groups = layout.groups();
        let garbage = StateSlot { state: GARBAGE, rows: [GARBAGE; BLOCK_TOKENS] };
        Self {
            layout,
            full: vec![GARBAGE; groups.full().positions()],
            window: vec![GARBAGE; groups.window().positions()],
            states: vec![garbage; groups.state().block_count],
        }
    }

    /// Stores a value for each token of a chunk.
    ///
    /// # Errors
    /// Names the position that has no block.
    pub(crate) fn store(
        &mut self,
        chunk: &SequenceChunk<'_>,
        value: impl Fn(usize, u32) -> u64,
    ) -> Result<(), String> {
        let groups = *self.layout.groups();
        let (full, window) = (chunk.tables.full, chunk.tables.window);
        for (i, &token) in chunk.tokens.iter().enumerate() {
            let position = chunk.start + i;
            let missing = || format!("no block for position {position}");
            if groups.full().is_used() {
                *slot(&mut self.full, full, position).ok_or_else(missing)? = value(position, token);
            }
            if groups.window().is_used() {
                *slot(&mut self.window, window, position).ok_or_else(missing)? = value(position, token);
            }
        }
        if groups.state().is_used() {
            self.store_state(chunk, value).ok_or_else(|| "no slot for the state".to_owned())?;
        }
        Ok(())
    }

    /// Leaves the state after a chunk in its slot. Does not change the state that the chunk continues from.
    fn store_state(&mut self, chunk: &SequenceChunk<'_>, value: impl Fn(usize, u32) -> u64) -> Option<()> {
        let slots = chunk.tables.states?;
        let mut from = self.before(chunk)?;
        let end = chunk.start + chunk.tokens.len();
        for (i, &token) in chunk.tokens.iter().enumerate() {
            let position = chunk.start + i;
            from.rows[position % BLOCK_TOKENS] = value(position, token);
            if (position + 1).is_multiple_of(BLOCK_TOKENS) {
                from.state = from.rows.iter().fold(from.state, |state, &row| join(state, row));
            }
            if let Some(copy) = slots.copy.filter(|copy| copy.position == position + 1) {
                self.states.get_mut(copy.slot as usize)?.state = from.state;
            }
        }
        let own = self.states.get_mut(slots.own as usize)?;
        let completes = chunk.start / BLOCK_TOKENS < end / BLOCK_TOKENS;
        if completes || slots.own != slots.from || chunk.start == 0 {
            own.state = from.state;
        }
        let first = if completes { 0 } else { chunk.start % BLOCK_TOKENS };
        own.rows[first..end % BLOCK_TOKENS].copy_from_slice(&from.rows[first..end % BLOCK_TOKENS]);
        Some(())
    }

    /// The state and the rows before a chunk.
    fn before(&self, chunk: &SequenceChunk<'_>) -> Option<StateSlot> {
        let mut from = *self.states.get(chunk.tables.states?.from as usize)?;
        if chunk.start < BLOCK_TOKENS {
            from.state = 0;
        }
        Some(from)
    }

    /// Reads back what each position of a chunk is computed from. The chunk's own values must be stored.
    pub(crate) fn histories(
        &self,
        chunk: &SequenceChunk<'_>,
        value: impl Fn(usize, u32) -> u64,
    ) -> Vec<SeenHistory> {
        let (groups, end) = (*self.layout.groups(), chunk.start + chunk.tokens.len());
        let mut all = SeenHistory { hash: 0, is_nan: false };
        let mut histories = Vec::with_capacity(chunk.tokens.len());
        if groups.full().is_used() {
            for position in 0..end {
                all.add(read(&self.full, chunk.tables.full, position));
                if position >= chunk.start {
                    histories.push(all);
                }
            }
        } else {
            histories.resize(chunk.tokens.len(), all);
        }
        if let KvGroupKind::Window(window) = groups.window().kind {
            for (position, history) in (chunk.start..).zip(&mut histories) {
                for seen in (position + 1).saturating_sub(window)..=position {
                    history.add(read(&self.window, chunk.tables.window, seen));
                }
            }
        }
        if groups.state().is_used() {
            let from =
                self.before(chunk).unwrap_or(StateSlot { state: GARBAGE, rows: [GARBAGE; BLOCK_TOKENS] });
            let known = chunk.start % BLOCK_TOKENS;
            let mut state = from.rows[..known].iter().fold(from.state, |state, &row| join(state, row));
            for ((position, &token), history) in (chunk.start..).zip(chunk.tokens).zip(&mut histories) {
                state = join(state, value(position, token));
                history.add(state);
            }
        }
        histories
    }
}

impl SeenHistory {
    fn add(&mut self, value: u64) {
        self.is_nan |= value == NOT_FINITE;
        self.hash = mix(self.hash.rotate_left(5) ^ value);
    }
}

/// The state after one more row. A row that is not a number spoils the state for good.
fn join(state: u64, row: u64) -> u64 {
    if state == NOT_FINITE || row == NOT_FINITE { NOT_FINITE } else { mix(state.rotate_left(5) ^ row) }
}

fn slot<'m>(slots: &'m mut [u64], table: &[u32], position: usize) -> Option<&'m mut u64> {
    let block = *table.get(position / BLOCK_TOKENS)?;
    slots.get_mut(block as usize * BLOCK_TOKENS + position % BLOCK_TOKENS)
}

fn read(slots: &[u64], table: &[u32], position: usize) -> u64 {
    let block = table.get(position / BLOCK_TOKENS).copied().unwrap_or(FREED);
    slots.get(block as usize * BLOCK_TOKENS + position % BLOCK_TOKENS).copied().unwrap_or(GARBAGE)
}
