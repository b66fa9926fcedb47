//! A text that arrives in pieces, folded character by character as [`crate::fold::for_words`] folds a whole text, and
//! the words found in it. Must not know what follows a match.

use std::collections::VecDeque;

use headrace_domain::is_ignorable;
use unicode_normalization_alignments::char::{canonical_combining_class, decompose_compatible};

use super::span::MatchSpan;
use super::words::{StateID, WordSet};
use crate::fold::is_accent;
use crate::look_alike;

/// A folded character and the bytes of the text that it comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoldedChar {
    pub(super) c: char,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A word that counts if the next character is no letter or digit.
#[derive(Debug, Clone, Copy)]
struct PendingWord {
    span: MatchSpan,
    acts: bool,
}

/// See the top of the file.
#[derive(Debug, Clone)]
pub(super) struct WordText {
    /// Look-alike letters are replaced by Latin ones.
    unmasks: bool,
    /// The state of each set.
    states: Vec<StateID>,
    /// The last folded characters, as many as the longest word has, and one more.
    recent: VecDeque<FoldedChar>,
    /// The most characters of `recent`.
    most_recent: usize,
    ends_in_space: bool,
    /// Combining marks after the last letter, whose order is not known yet.
    marks: Vec<FoldedChar>,
    pending: Vec<PendingWord>,
}

impl WordText {
    /// An empty text, for words of `sets`.
    pub(super) fn new(sets: &[WordSet], unmasks: bool) -> Self {
        let longest = sets.iter().map(WordSet::longest_chars).max().unwrap_or(0);
        Self {
            unmasks,
            states: sets.iter().map(WordSet::start).collect(),
            recent: VecDeque::new(),
            most_recent: longest.saturating_add(1),
            ends_in_space: false,
            marks: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// The same text with look-alike letters replaced. It has none so far.
    pub(super) fn unmasked(&self) -> Self {
        Self { unmasks: true, ..self.clone() }
    }

    /// Adds a character of the text, which has the bytes from `start` to `end`.
    pub(super) fn push(
        &mut self,
        sets: &[WordSet],
        c: char,
        start: usize,
        end: usize,
        found: &mut Vec<MatchSpan>,
    ) {
        if c.is_ascii() {
            self.end_marks(sets, found);
            self.add(sets, FoldedChar { c: c.to_ascii_lowercase(), start, end }, found);
            return;
        }
        if is_ignorable(c) {
            return;
        }
        let unmasks = self.unmasks;
        decompose_compatible(c, |c| {
            let c = if unmasks { look_alike::latin(c).unwrap_or(c) } else { c };
            if is_ignorable(c) || is_accent(c) {
                return;
            }
            if canonical_combining_class(c) != 0 {
                self.marks.push(FoldedChar { c, start, end });
                return;
            }
            self.end_marks(sets, found);
            self.add_folded(sets, FoldedChar { c, start, end }, found);
        });
    }

    /// Takes the end of the text.
    pub(super) fn finish(&mut self, sets: &[WordSet], found: &mut Vec<MatchSpan>) {
        self.end_marks(sets, found);
        found.extend(self.pending.drain(..).map(|word| word.span));
    }

    /// The first byte of the text that may still belong to a word of a rule that acts. `None` if no byte may.
    pub(super) fn held_from(&self, sets: &[WordSet]) -> Option<usize> {
        let open = sets.iter().zip(&self.states).map(|(set, state)| set.open_chars(*state)).max();
        let open = open.filter(|open| *open > 0);
        let open = open.and_then(|open| self.recent.get(self.recent.len().checked_sub(open)?));
        let pending = self.pending.iter().filter(|word| word.acts).map(|word| word.span.start);
        let marks = self.marks.first().map(|mark| mark.start);
        pending.chain(open.map(|c| c.start)).chain(marks).min()
    }

    fn end_marks(&mut self, sets: &[WordSet], found: &mut Vec<MatchSpan>) {
        if self.marks.is_empty() {
            return;
        }
        let mut marks = std::mem::take(&mut self.marks);
        marks.sort_by_key(|mark| canonical_combining_class(mark.c));
        for mark in marks {
            self.add_folded(sets, mark, found);
        }
    }

    fn add_folded(&mut self, sets: &[WordSet], folded: FoldedChar, found: &mut Vec<MatchSpan>) {
        for c in folded.c.to_uppercase().flat_map(char::to_lowercase) {
            self.add(sets, FoldedChar { c, ..folded }, found);
        }
    }

    fn add(&mut self, sets: &[WordSet], folded: FoldedChar, found: &mut Vec<MatchSpan>) {
        let mut folded = folded;
        if folded.c.is_whitespace() {
            if self.ends_in_space {
                return;
            }
            folded.c = ' ';
        }
        self.ends_in_space = folded.c == ' ';
        if !self.pending.is_empty() {
            let is_alone = !folded.c.is_alphanumeric();
            found.extend(self.pending.drain(..).filter(|_| is_alone).map(|word| word.span));
        }
        if self.recent.len() == self.most_recent {
            self.recent.pop_front();
        }
        self.recent.push_back(folded);
        for (set, state) in sets.iter().zip(&mut self.states) {
            *state = set.next(*state, folded.c);
            for word in set.words_at(*state) {
                let Some(first) = self.recent.len().checked_sub(word.chars) else { continue };
                let Some(start) = self.recent.get(first).map(|c| c.start) else { continue };
                let span = MatchSpan { start, end: folded.end, rule: word.rule, entity: None };
                if !word.whole_word {
                    found.push(span);
                    continue;
                }
                let before = first.checked_sub(1).and_then(|at| self.recent.get(at));
                if !before.is_some_and(|before| before.c.is_alphanumeric()) {
                    self.pending.push(PendingWord { span, acts: word.acts });
                }
            }
        }
    }
}
