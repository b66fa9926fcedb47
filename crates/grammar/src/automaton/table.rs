//! The states of an expression, and the transitions between them by byte. Knows no vocabulary.

use std::collections::HashMap;

use regex_automata::dfa::{Automaton as _, StartKind, dense};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};
use regex_syntax::hir::{Hir, HirKind, Look};

use crate::bounds::{AUTOMATON_BYTES, AUTOMATON_NFA_BYTES, AUTOMATON_SET_BYTES};

/// A state that cannot reach a match.
pub(super) const DEAD: u32 = 0;
/// The initial state.
pub(super) const FIRST: u32 = 1;

/// The transition table of an expression that must match a whole text.
pub(super) struct TransitionTable {
    class_of: [u8; 256],
    /// Number of byte classes.
    pub(super) classes: usize,
    /// The next state, by state and byte class.
    pub(super) next: Vec<u32>,
    /// By state: whether an answer may end there.
    pub(super) accepts: Vec<bool>,
}

impl TransitionTable {
    /// Builds the table of an expression. Returns `None` if it is too large, or the expression needs more than an
    /// automaton.
    pub(super) fn of(pattern: &str) -> Option<Self> {
        // In llguidance `<stop>` marks a text that ends the match and is not part of it.
        if pattern.contains("<stop>") {
            return None;
        }
        let hir = without_anchors(regex_syntax::parse(pattern).ok()?)?;
        let config = thompson::Config::new()
            .nfa_size_limit(Some(AUTOMATON_NFA_BYTES))
            .which_captures(WhichCaptures::None);
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(&hir).ok()?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .match_kind(MatchKind::All)
            .accelerate(false)
            .dfa_size_limit(Some(AUTOMATON_BYTES))
            .determinize_size_limit(Some(AUTOMATON_SET_BYTES));
        let dfa = dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()?;
        Self::of_dfa(&dfa)
    }

    fn of_dfa(dfa: &dense::DFA<Vec<u32>>) -> Option<Self> {
        let mut class_of = [0; 256];
        let mut bytes = Vec::new();
        for byte in 0..=255 {
            let class = dfa.byte_classes().get(byte);
            *class_of.get_mut(usize::from(byte))? = class;
            if usize::from(class) == bytes.len() {
                bytes.push(byte);
            }
        }
        let first = dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()?;
        // States are numbered in the order in which they are reached. The dead state is 0.
        let (mut states, mut number_of) = (vec![first], HashMap::from([(first, FIRST)]));
        let mut next = vec![DEAD; bytes.len()];
        let mut at = 0;
        while let Some(state) = states.get(at).copied() {
            for byte in &bytes {
                let to = dfa.next_state(state, *byte);
                if dfa.is_quit_state(to) {
                    return None;
                }
                let number = match dfa.is_dead_state(to) {
                    true => DEAD,
                    false => *number_of.entry(to).or_insert_with(|| {
                        states.push(to);
                        states.len() as u32
                    }),
                };
                next.push(number);
            }
            at += 1;
        }
        let ends = |state: &_| dfa.is_match_state(dfa.next_eoi_state(*state));
        let accepts = std::iter::once(false).chain(states.iter().map(ends)).collect();
        let mut table = Self { class_of, classes: bytes.len(), next, accepts };
        table.bury();
        Some(table)
    }

    /// Replaces every state that cannot reach a match with the dead one.
    fn bury(&mut self) {
        let mut from = vec![Vec::new(); self.accepts.len()];
        for (state, row) in self.next.chunks_exact(self.classes).enumerate() {
            for to in row {
                if let Some(from) = from.get_mut(*to as usize)
                    && from.last() != Some(&state)
                {
                    from.push(state);
                }
            }
        }
        let mut lives = self.accepts.clone();
        let mut todo: Vec<usize> =
            (0..lives.len()).filter(|state| lives.get(*state) == Some(&true)).collect();
        while let Some(state) = todo.pop() {
            for before in from.get(state).into_iter().flatten() {
                if let Some(lives) = lives.get_mut(*before)
                    && !*lives
                {
                    *lives = true;
                    todo.push(*before);
                }
            }
        }
        for to in &mut self.next {
            if lives.get(*to as usize) != Some(&true) {
                *to = DEAD;
            }
        }
    }

    pub(super) fn class(&self, byte: u8) -> u8 {
        self.class_of.get(usize::from(byte)).copied().unwrap_or_default()
    }

    pub(super) fn next(&self, state: u32, byte: u8) -> u32 {
        self.next_by_class(state, self.class(byte))
    }

    pub(super) fn next_by_class(&self, state: u32, class: u8) -> u32 {
        self.next.get(state as usize * self.classes + usize::from(class)).copied().unwrap_or(DEAD)
    }
}

/// Removes anchors at both ends, which mean nothing because an expression matches a whole text. Returns `None` if it
/// has other look-around.
fn without_anchors(hir: Hir) -> Option<Hir> {
    let hir = match hir.into_kind() {
        HirKind::Concat(mut parts) => {
            let is = |part: &Hir, look| matches!(part.kind(), HirKind::Look(it) if *it == look);
            parts.drain(..parts.iter().take_while(|part| is(part, Look::Start)).count());
            parts.truncate(parts.len() - parts.iter().rev().take_while(|part| is(part, Look::End)).count());
            Hir::concat(parts)
        }
        HirKind::Look(Look::Start | Look::End) => Hir::empty(),
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => Hir::repetition(repetition),
        HirKind::Capture(capture) => Hir::capture(capture),
        HirKind::Alternation(parts) => Hir::alternation(parts),
    };
    hir.properties().look_set().is_empty().then_some(hir)
}
