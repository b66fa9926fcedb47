//! A compiled form, and how far one answer to it has come. Over llguidance's matcher stand: ids that must come, which once known
//! are followed to their end, and the bound on numbers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use headrace_domain::Form;
use headrace_engine_api::{Grammar, GrammarFailed, GrammarState};
use llguidance::Matcher;

use crate::automaton::Automaton;
use crate::numbers::{NumberTokens, Numbers};

/// A form compiled for a vocabulary.
pub(crate) struct Compiled {
    form: Arc<Form>,
    /// At the beginning of an answer. Copied whole for each one: they share no caches, so none can fill another's.
    first: Matcher,
    automaton: Option<Arc<Automaton>>,
    numbers: Option<Arc<NumberTokens>>,
    state_bytes: usize,
    ends: Arc<[u32]>,
}

impl Compiled {
    pub(crate) fn new(
        form: Arc<Form>,
        first: Matcher,
        automaton: Option<Arc<Automaton>>,
        numbers: Option<Arc<NumberTokens>>,
        state_bytes: usize,
        ends: &[u32],
    ) -> Self {
        Self { form, first, automaton, numbers, state_bytes, ends: ends.into() }
    }

    /// What it takes in memory, near enough.
    pub(crate) fn bytes(&self) -> usize {
        self.state_bytes + self.automaton.as_ref().map_or(0, |automaton| automaton.bytes())
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("form", &self.form)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl Grammar for Compiled {
    fn form(&self) -> &Arc<Form> {
        &self.form
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        let mut state = State {
            matcher: self.first.deep_clone(),
            walk: self.automaton.clone().map(|automaton| (automaton, Automaton::BEGINNING)),
            forced: VecDeque::new(),
            numbers: self.numbers.clone().map(Numbers::new),
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

struct State {
    matcher: Matcher,
    /// Where masks are those of an automaton: it, and its state. They are the ones that the matcher would find.
    walk: Option<(Arc<Automaton>, u32)>,
    /// What must come.
    forced: VecDeque<u32>,
    numbers: Option<Numbers>,
    over: bool,
    ends: Arc<[u32]>,
}

impl State {
    /// Finds what must come next, where that is not known yet.
    fn look_ahead(&mut self) {
        if self.forced.is_empty() && !self.over {
            self.forced = self.matcher.compute_ff_tokens().into();
            self.forced.make_contiguous();
        }
    }
}

impl GrammarState for State {
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
            // Where nothing may come it is the matcher that says why.
            if mask.iter().any(|word| *word != 0) {
                allowed.iter_mut().zip(&*mask).for_each(|(to, from)| *to = *from);
                return Ok(());
            }
        }
        let mask = self.matcher.compute_mask().map_err(failed)?;
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
        self.matcher.consume_token(id).map_err(failed)?;
        if let Some((automaton, at)) = self.walk.take() {
            self.walk = automaton.after(at, id).map(|next| (automaton, next));
        }
        if let Some(numbers) = &mut self.numbers {
            numbers.take(id);
        }
        if self.matcher.is_stopped() {
            let reason = self.matcher.stop_reason();
            if !reason.is_ok() {
                return Err(GrammarFailed { why: reason.to_string() });
            }
            self.over = true;
            self.forced.clear();
        }
        self.look_ahead();
        Ok(())
    }

    fn forced(&self) -> &[u32] {
        self.forced.as_slices().0
    }

    fn is_over(&self) -> bool {
        self.over
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

/// What llguidance says of a failure: its first line, without the state behind it.
fn failed(error: impl fmt::Display) -> GrammarFailed {
    let said = error.to_string();
    let why: String = said.lines().next().unwrap_or_default().chars().take(200).collect();
    GrammarFailed { why }
}
