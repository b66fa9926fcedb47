//! A grammar without a language: the allowed ids are a hash of the ids so far. It has choices, runs of forced ids,
//! places where the answer may end, and an end. It can be made to fail.

use std::sync::Arc;

use headrace_domain::ResponseFormat;
use headrace_engine_api::{CompiledGrammar, GrammarFailed, GrammarState};

use crate::hash::mix;

/// Most ids in a forced run.
const LONGEST_RUN: u64 = 6;

/// A grammar made of a hash.
#[derive(Debug, Clone)]
pub struct ToyGrammar {
    /// Identifies the grammar.
    pub seed: u64,
    /// Ids below this bound may be allowed.
    pub ids: u32,
    /// The id that ends an answer.
    pub end: u32,
    /// The grammar is complete after this many ids.
    pub longest: usize,
    /// Number of ids after which the grammar fails.
    pub fails_at: Option<usize>,
    /// Units of work for each accepted id.
    pub units_per_id: u64,
    /// The form that it claims to be compiled from.
    pub form: Arc<ResponseFormat>,
}

struct State {
    grammar: ToyGrammar,
    history: u64,
    count: usize,
    forced: Vec<u32>,
}

impl ToyGrammar {
    /// Creates grammar number `seed` over the ids below `ids`. The id `end` ends an answer.
    pub fn new(seed: u64, ids: u32, end: u32) -> Self {
        let longest = 5 + (mix(seed) % 40) as usize;
        Self {
            seed,
            ids,
            end,
            longest,
            fails_at: None,
            units_per_id: 0,
            form: Arc::new(ResponseFormat::JsonObject),
        }
    }
}

impl CompiledGrammar for ToyGrammar {
    fn form(&self) -> &Arc<ResponseFormat> {
        &self.form
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        let mut state =
            State { grammar: self.clone(), history: mix(self.seed), count: 0, forced: Vec::new() };
        state.look_ahead();
        Box::new(state)
    }

    fn state_bytes(&self) -> usize {
        size_of::<State>()
    }
}

impl State {
    fn may_come(&self, id: u32) -> bool {
        match id == self.grammar.end {
            true => mix(self.history ^ 1).is_multiple_of(9),
            false => id < self.grammar.ids && mix(self.history.wrapping_add(u64::from(id))).is_multiple_of(4),
        }
    }

    fn look_ahead(&mut self) {
        let hash = mix(self.history ^ 2);
        if !self.forced.is_empty() || self.count >= self.grammar.longest || !hash.is_multiple_of(3) {
            return;
        }
        let left = (self.grammar.longest - self.count) as u64;
        let id = |at: u64| (mix(hash.wrapping_add(at)) % u64::from(self.grammar.ids)) as u32;
        let run = (0..(1 + hash % LONGEST_RUN).min(left)).map(id);
        self.forced = run.map(|id| if id == self.grammar.end { 0 } else { id }).collect();
    }
}

impl GrammarState for State {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed> {
        allowed.fill(0);
        let ids: Vec<u32> = match self.forced.first() {
            Some(next) => vec![*next],
            None if self.is_over() => vec![self.grammar.end],
            None => (0..self.grammar.ids).filter(|id| self.may_come(*id)).collect(),
        };
        // At least one id must be allowed.
        let ids = if ids.is_empty() { vec![0] } else { ids };
        for id in ids {
            if let Some(word) = allowed.get_mut(id as usize / 32) {
                *word |= 1 << (id % 32);
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GrammarFailed> {
        if self.grammar.fails_at == Some(self.count) {
            return Err(GrammarFailed { why: "it was made to fail".to_owned() });
        }
        match self.forced.first() {
            Some(next) if *next != id => {
                return Err(GrammarFailed { why: format!("{id} where {next} must come") });
            }
            Some(_) => drop(self.forced.remove(0)),
            None => {}
        }
        self.count += 1;
        self.history = mix(self.history.rotate_left(7) ^ u64::from(id));
        self.look_ahead();
        Ok(())
    }

    fn forced(&self) -> &[u32] {
        &self.forced
    }

    fn is_over(&self) -> bool {
        self.forced.is_empty() && self.count >= self.grammar.longest
    }

    fn work_units(&self) -> u64 {
        self.grammar.units_per_id * self.count as u64
    }
}
