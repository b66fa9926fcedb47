//! Words over a text that arrives in pieces: one automaton for the words of all rules, and how much of a text may still
//! become a word. Must not know regular expressions.

use std::collections::HashMap;

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

pub(super) use aho_corasick::automaton::StateID;

/// A folded word and its rule.
#[derive(Debug, Clone)]
pub(super) struct RuleWord {
    /// The index of the rule.
    pub(super) rule: usize,
    /// The word, folded as [`crate::fold::for_words`] folds texts.
    pub(super) word: String,
    /// Whether no letter or digit may touch it.
    pub(super) whole_word: bool,
    /// Whether the rule withholds its matches. Other rules only note them.
    pub(super) acts: bool,
}

/// A word of the automaton.
#[derive(Debug)]
pub(super) struct SetWord {
    pub(super) rule: usize,
    /// Its length in characters.
    pub(super) chars: usize,
    pub(super) whole_word: bool,
    pub(super) acts: bool,
}

/// Words as one automaton.
#[derive(Debug)]
pub(super) struct WordSet {
    automaton: NFA,
    start: StateID,
    words: Vec<SetWord>,
    /// For each state, the characters at the end of the text that may still become a longer word of a rule that acts.
    /// A state that is not here has none.
    open_chars: HashMap<StateID, usize>,
    longest_chars: usize,
}

impl WordSet {
    /// Compiles the words. `None` if there are none.
    ///
    /// # Errors
    /// The automaton is too large.
    pub(super) fn compile(words: &[RuleWord]) -> Result<Option<Self>, String> {
        if words.is_empty() {
            return Ok(None);
        }
        let texts = words.iter().map(|word| word.word.as_str());
        let automaton =
            NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(texts).map_err(fault)?;
        let start = automaton.start_state(Anchored::No).map_err(fault)?;
        let set_words = words.iter().map(|word| SetWord {
            rule: word.rule,
            chars: word.word.chars().count(),
            whole_word: word.whole_word,
            acts: word.acts,
        });
        let set_words: Vec<SetWord> = set_words.collect();
        let longest_chars = set_words.iter().map(|word| word.chars).max().unwrap_or(0);
        let mut set = Self { automaton, start, words: set_words, open_chars: HashMap::new(), longest_chars };
        set.open_chars = set.find_open_chars(words, longest_chars);
        Ok(Some(set))
    }

    /// Computes `open_chars`, for shorter prefixes of words first: a prefix that cannot become a longer word has the
    /// open characters of its longest suffix that is a prefix of some word.
    fn find_open_chars(&self, words: &[RuleWord], longest_chars: usize) -> HashMap<StateID, usize> {
        let mut open = HashMap::new();
        let mut walks: Vec<(std::str::Chars<'_>, StateID, StateID, bool)> =
            words.iter().map(|word| (word.word.chars(), self.start, self.start, word.acts)).collect();
        for depth in 1..=longest_chars {
            let mut leaves = Vec::new();
            for (chars, state, suffix, acts) in &mut walks {
                let Some(c) = chars.next() else { continue };
                *state = self.next(*state, c);
                if depth > 1 {
                    *suffix = self.next(*suffix, c);
                }
                if *acts && !chars.as_str().is_empty() {
                    open.insert(*state, depth);
                } else {
                    leaves.push((*state, *suffix));
                }
            }
            for (state, suffix) in leaves {
                let shorter = open.get(&suffix).copied().unwrap_or(0);
                if shorter > 0 {
                    open.entry(state).or_insert(shorter);
                }
            }
        }
        open
    }

    pub(super) const fn start(&self) -> StateID {
        self.start
    }

    /// The characters of the longest word.
    pub(super) const fn longest_chars(&self) -> usize {
        self.longest_chars
    }

    /// The state after another character.
    pub(super) fn next(&self, state: StateID, c: char) -> StateID {
        let mut bytes = [0; 4];
        let bytes = c.encode_utf8(&mut bytes).bytes();
        bytes.fold(state, |state, byte| self.automaton.next_state(Anchored::No, state, byte))
    }

    /// The words that end at a state.
    pub(super) fn words_at(&self, state: StateID) -> impl Iterator<Item = &SetWord> {
        let count = match self.automaton.is_match(state) {
            true => self.automaton.match_len(state),
            false => 0,
        };
        (0..count).filter_map(move |at| self.words.get(self.automaton.match_pattern(state, at).as_usize()))
    }

    /// The characters at the end of the text that may still become a longer word of a rule that acts.
    pub(super) fn open_chars(&self, state: StateID) -> usize {
        self.open_chars.get(&state).copied().unwrap_or(0)
    }
}

fn fault(error: impl std::fmt::Display) -> String {
    format!("do not compile: {error}")
}
