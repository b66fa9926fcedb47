//! A compiled form, and the state of one answer to it. Adds three things to llguidance's parser: runs of forced ids
//! that are followed to their end, a limit on the digits of numbers, and limits on the parser's work.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use headrace_domain::ResponseFormat;
use headrace_engine_api::{CompiledGrammar, GrammarFailed, GrammarState};
use llguidance::earley::ParserStats;
use llguidance::{CancellationHandle, TokenParser};

use crate::automaton::Automaton;
use crate::bounds::STEP_TIME;
use crate::numbers::{NumberTokens, NumberTracker};
use crate::watch::WatchGuard;

/// Item comparisons per unit of work.
const COMPARED_PER_UNIT: u64 = 40;
/// Nodes of the vocabulary's trie per unit of work.
const NODES_PER_UNIT: u64 = 8;

/// A form compiled for a vocabulary.
pub(crate) struct CompiledForm {
    form: Arc<ResponseFormat>,
    /// The parser at the beginning of an answer. Each answer gets a deep copy without shared caches, so none can fill
    /// another's.
    first: TokenParser,
    automaton: Option<Arc<Automaton>>,
    numbers: Option<Arc<NumberTokens>>,
    state_bytes: usize,
    ends: Arc<[u32]>,
}

impl CompiledForm {
    pub(crate) fn new(
        form: Arc<ResponseFormat>,
        first: TokenParser,
        automaton: Option<Arc<Automaton>>,
        numbers: Option<Arc<NumberTokens>>,
        state_bytes: usize,
        ends: &[u32],
    ) -> Self {
        Self { form, first, automaton, numbers, state_bytes, ends: ends.into() }
    }

    /// Its memory in bytes, approximately.
    pub(crate) fn bytes(&self) -> usize {
        self.state_bytes + self.automaton.as_ref().map_or(0, |automaton| automaton.bytes())
    }
}

impl fmt::Debug for CompiledForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("form", &self.form)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl CompiledGrammar for CompiledForm {
    fn form(&self) -> &Arc<ResponseFormat> {
        &self.form
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        let mut parser = self.first.deep_clone();
        let handle = parser.enable_cancellation();
        let mut state = ParserState {
            work: ParserWork { counted: parser.parser.stats().clone(), units: 0 },
            parser,
            handle,
            walk: self.automaton.clone().map(|automaton| (automaton, Automaton::BEGINNING)),
            forced: VecDeque::new(),
            numbers: self.numbers.clone().map(NumberTracker::new),
            over: false,
            ends: Arc::clone(&self.ends),
        };
        state.look_ahead();
        Box::new(state)
    }

    fn state_bytes(&self) -> usize {
        self.state_bytes
    }
}

/// The parser's work since the beginning of the answer.
struct ParserWork {
    /// The parser's counters when they were last read.
    counted: ParserStats,
    units: u64,
}

impl ParserWork {
    /// Adds the parser's work since the last call. Each item is compared with the rows that it continues. In an
    /// ambiguous grammar those rows grow with the answer. Their length is estimated by the mean length of the new rows.
    fn count(&mut self, stats: &ParserStats) {
        let new = stats.delta(&self.counted);
        self.counted = stats.clone();
        let [items, rows, nodes] = [new.all_items, new.rows, new.trie_nodes_walked].map(|count| count as u64);
        let compared = items.saturating_mul(items) / rows.max(1);
        let units = [new.lexer_cost, items, compared / COMPARED_PER_UNIT, nodes / NODES_PER_UNIT];
        self.units = units.into_iter().fold(self.units, u64::saturating_add);
    }
}

struct ParserState {
    parser: TokenParser,
    /// Cancels the parser's current work.
    handle: CancellationHandle,
    work: ParserWork,
    /// The automaton and its state, if masks come from an automaton. Its masks equal those of the matcher.
    walk: Option<(Arc<Automaton>, u32)>,
    /// The ids that must come next.
    forced: VecDeque<u32>,
    numbers: Option<NumberTracker>,
    over: bool,
    ends: Arc<[u32]>,
}

impl ParserState {
    /// Finds the ids that must come next, if none is known yet.
    fn look_ahead(&mut self) {
        if self.forced.is_empty() && !self.over {
            let parser = AssertUnwindSafe(|| self.parser.compute_ff_tokens());
            match catch_unwind(parser) {
                Ok(forced) => self.forced = forced.into(),
                // The parser cannot be used any more.
                Err(_) => self.handle.cancel(),
            }
            self.forced.make_contiguous();
        }
    }

    /// Passes an id to the parser, and checks whether anything can follow.
    fn consume(&mut self, id: u32) -> Result<(), GrammarFailed> {
        let back = guarded(|| self.parser.consume_token(id))?;
        if back != 0 {
            return Err(GrammarFailed { why: "it went back behind what was accepted".to_owned() });
        }
        guarded(|| self.parser.check_stop())?;
        if self.parser.stopped() {
            let reason = self.parser.stop_reason();
            if !reason.is_ok() {
                return Err(GrammarFailed { why: reason.to_string() });
            }
            self.over = true;
            self.forced.clear();
        }
        Ok(())
    }

    /// Replaces the outcome with an error if the parser was cancelled because it took too long.
    fn in_time<T>(&self, outcome: Result<T, GrammarFailed>) -> Result<T, GrammarFailed> {
        if self.handle.is_cancelled() {
            let limit = STEP_TIME.as_millis();
            return Err(GrammarFailed { why: format!("one token took more than {limit} ms of the grammar") });
        }
        outcome
    }
}

impl GrammarState for ParserState {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed> {
        allowed.fill(0);
        if self.over {
            self.ends.iter().for_each(|end| allow(allowed, *end));
            return Ok(());
        }
        if let Some(next) = self.forced.front() {
            allow(allowed, *next);
            return Ok(());
        }
        if let Some((automaton, at)) = &self.walk {
            let mask = automaton.mask(*at);
            // If nothing is allowed, the matcher is asked, because its error says why.
            if mask.iter().any(|word| *word != 0) {
                allowed.iter_mut().zip(&*mask).for_each(|(to, from)| *to = *from);
                return Ok(());
            }
        }
        let watched = WatchGuard::begin(&self.handle, STEP_TIME);
        let mask = guarded(|| self.parser.compute_mask());
        drop(watched);
        self.work.count(self.parser.parser.stats());
        let mask = self.in_time(mask)?;
        allowed.iter_mut().zip(mask.as_slice()).for_each(|(to, from)| *to = *from);
        if let Some(numbers) = &self.numbers {
            numbers.bound(allowed);
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GrammarFailed> {
        if self.over {
            return if self.ends.contains(&id) { Ok(()) } else { Err(forbidden()) };
        }
        if self.forced.pop_front().is_some_and(|next| next != id) {
            return Err(forbidden());
        }
        let watched = WatchGuard::begin(&self.handle, STEP_TIME);
        let mut consumed = self.consume(id);
        if consumed.is_ok() {
            if let Some((automaton, at)) = self.walk.take() {
                self.walk = automaton.after(at, id).map(|next| (automaton, next));
            }
            if let Some(numbers) = &mut self.numbers {
                numbers.take(id);
            }
            self.look_ahead();
            if !self.over {
                consumed =
                    self.parser.parser.get_error().map_or(Ok(()), |error| Err(failed(error.message())));
            }
        }
        drop(watched);
        self.work.count(self.parser.parser.stats());
        self.in_time(consumed)
    }

    fn forced(&self) -> &[u32] {
        self.forced.as_slices().0
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn work_units(&self) -> u64 {
        self.work.units
    }
}

fn allow(allowed: &mut [u32], id: u32) {
    if let Some(word) = allowed.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

fn forbidden() -> GrammarFailed {
    GrammarFailed { why: "an id that it forbids".to_owned() }
}

/// Runs the parser. A panic fails this answer alone.
fn guarded<T, E: fmt::Display>(parse: impl FnOnce() -> Result<T, E>) -> Result<T, GrammarFailed> {
    match catch_unwind(AssertUnwindSafe(parse)) {
        Ok(parsed) => parsed.map_err(failed),
        Err(_) => Err(GrammarFailed::panicked()),
    }
}

/// An error of llguidance, cut to its first line, without the parser state that follows.
fn failed(error: impl fmt::Display) -> GrammarFailed {
    let said = error.to_string();
    let why: String = said.lines().next().unwrap_or_default().chars().take(200).collect();
    GrammarFailed { why }
}
