//! A model without weights. Its logits are a hash of the token history *that is read back from the KV blocks*. So a
//! wrong block table, a stale block or a missed write shows as a wrong token. Faults can be injected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::{BLOCK_TOKENS, KvGroup, KvLayout};

use crate::cache::{GARBAGE, NOT_FINITE, ScriptedCache, SeenHistory};
use crate::hash::mix;

/// Half the width of the logits' range.
const SPREAD: f32 = 4.0;
/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The step panics.
    Panic,
    /// Keys and values of the chunk (or of the whole call) are NaN, and so is every position that sees them.
    NotFinite,
    /// Keys and values are right, but logits are infinite: id 3 is +∞, or all ids are -∞.
    Infinite {
        /// Whether the infinite logit is positive.
        up: bool,
    },
    /// The step returns an error.
    Error,
}

/// A count of computed tokens, shared with the test that reads it.
#[derive(Debug, Clone, Default)]
pub struct Computed(Arc<AtomicU64>);

impl Computed {
    /// Tokens computed so far. A recomputed token counts again.
    pub fn tokens(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// When a fault occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// In call number n of `step`, counted from 1.
    Call(u64),
    /// Whenever a chunk contains this id.
    Token(u32),
}

/// The injected faults, shared with the test that injects them.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<(Trigger, Fault)>>>);

impl Faults {
    /// Injects a fault from now on.
    pub fn add(&self, trigger: Trigger, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((trigger, fault));
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn of(&self, call: u64, chunk: &SequenceChunk<'_>) -> Option<Fault> {
        let faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hits = |trigger: &Trigger| match trigger {
            Trigger::Call(n) => *n == call,
            Trigger::Token(id) => chunk.tokens.contains(id),
        };
        faults.iter().find(|(trigger, _)| hits(trigger)).map(|&(_, fault)| fault)
    }
}

/// The scripted model. The same history gives the same logits in any batch.
#[derive(Debug)]
pub struct ScriptedForward {
    shape: ForwardShape,
    memory: ScriptedCache,
    faults: Faults,
    computed: Computed,
    calls: u64,
}

impl ScriptedForward {
    /// Creates a model of `vocab` ids with `block_count` KV blocks, for sequences of at most `max_positions` tokens.
    pub fn new(vocab: usize, max_positions: usize, block_count: usize) -> Self {
        let group = KvGroup::full(block_count, BLOCK_TOKENS * size_of::<u64>());
        Self::with_layout(vocab, max_positions, KvLayout::single(group))
    }

    /// Creates a model like [`Self::new`] with these cache groups. Its layers with a window see only the window, and its
    /// recurrent layers only their state.
    pub fn with_layout(vocab: usize, max_positions: usize, layout: KvLayout) -> Self {
        let shape = ForwardShape { vocab, max_positions, kv: layout, weight_bytes: 0, short_positions: None };
        let (faults, computed) = (Faults::default(), Computed::default());
        Self { shape, memory: ScriptedCache::new(layout), faults, computed, calls: 0 }
    }

    /// The handle for injecting faults.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The count of computed tokens.
    pub fn computed(&self) -> Computed {
        self.computed.clone()
    }

    fn check(&self, at: usize, chunk: &SequenceChunk<'_>) -> Result<(), ForwardError> {
        let end = chunk.start.saturating_add(chunk.tokens.len());
        let message = if chunk.tokens.is_empty() {
            "no tokens".to_owned()
        } else if end > self.shape.max_positions {
            format!("position {end} is beyond {}", self.shape.max_positions)
        } else if chunk.tokens.iter().any(|&id| id as usize >= self.shape.vocab) {
            "an id outside the vocabulary".to_owned()
        } else {
            return Ok(());
        };
        Err(ForwardError::BadBatch { chunk: at, message })
    }

    /// Reads the history back from the blocks, and writes the wanted logits from row `row` on.
    fn answer(
        &self,
        chunk: &SequenceChunk<'_>,
        (fault, spoilt): (Option<Fault>, Option<u64>),
        row: &mut usize,
        out: &mut Logits,
    ) {
        let end = chunk.start + chunk.tokens.len();
        let histories = self.memory.histories(chunk, |p, token| stored(spoilt, p, token));
        for (position, SeenHistory { hash, is_nan }) in (chunk.start..).zip(histories) {
            let wanted = match chunk.logits {
                LogitsWanted::None => false,
                LogitsWanted::Last => position + 1 == end,
                LogitsWanted::All => true,
            };
            if wanted && let Some(logits) = out.row_mut(*row) {
                for (id, logit) in logits.iter_mut().enumerate() {
                    let unit = (mix(hash.wrapping_add(id as u64)) >> 40) as f32 / (1u64 << 24) as f32;
                    *logit = match fault {
                        Some(Fault::Infinite { up: true }) if id == 3 => f32::INFINITY,
                        Some(Fault::Infinite { up: false }) => f32::NEG_INFINITY,
                        _ if is_nan && id == 0 => f32::NAN,
                        _ => (unit * 2.0 - 1.0) * SPREAD,
                    };
                }
                *row += 1;
            }
        }
    }
}

/// What is stored for a token at a position.
fn stored(spoilt: Option<u64>, position: usize, token: u32) -> u64 {
    spoilt.unwrap_or_else(|| mix((position as u64) << 32 | u64::from(token)))
}

impl Forward for ScriptedForward {
    fn shape(&self) -> &ForwardShape {
        &self.shape
    }

    fn numerics(&self) -> &str {
        "scripted"
    }

    fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError> {
        self.calls += 1;
        let rows = batch.iter().map(|chunk| chunk.logits.rows(chunk.tokens.len())).sum();
        out.reset(rows, self.shape.vocab);
        let faults: Vec<_> = batch.iter().map(|chunk| self.faults.of(self.calls, chunk)).collect();
        let fatal = faults.iter().flatten().find(|fault| matches!(fault, Fault::Panic | Fault::Error));
        for (at, chunk) in batch.iter().enumerate() {
            self.check(at, chunk)?;
            // A failed step leaves garbage in the slots that it would have written.
            let spoilt = match (fatal, faults.get(at)) {
                (Some(_), _) => Some(GARBAGE),
                (None, Some(Some(Fault::NotFinite))) => Some(NOT_FINITE),
                _ => None,
            };
            self.memory
                .store(chunk, |p, token| stored(spoilt, p, token))
                .map_err(|message| ForwardError::BadBatch { chunk: at, message })?;
        }
        match fatal {
            // Not `panic!`, because a panic hook would print every simulated fault.
            Some(Fault::Panic) => std::panic::resume_unwind(Box::new("a scripted panic")),
            Some(_) => return Err(ForwardError::Failed { message: "a scripted error".to_owned() }),
            None => {}
        }
        let mut row = 0;
        for (chunk, fault) in batch.iter().zip(faults) {
            self.computed.0.fetch_add(chunk.tokens.len() as u64, Ordering::SeqCst);
            let spoilt = (fault == Some(Fault::NotFinite)).then_some(NOT_FINITE);
            self.answer(chunk, (fault, spoilt), &mut row, out);
        }
        Ok(())
    }
}
