//! A text that arrives in pieces, folded as [`crate::fold::for_patterns`] folds a whole text, with the bytes that each
//! folded character comes from. Must not know patterns.

use std::collections::VecDeque;

use headrace_domain::is_ignorable;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::{canonical_combining_class, is_combining_mark};

use crate::look_alike;

/// The bytes of the text that a folded character comes from.
#[derive(Debug, Clone, Copy)]
struct SourceBytes {
    /// Offset of the character in the folded text.
    at: usize,
    start: usize,
    end: usize,
}

/// See the top of the file.
#[derive(Debug, Clone)]
pub(super) struct PatternText {
    /// Look-alike letters are replaced by Latin ones.
    unmasks: bool,
    /// The part of the folded text that is kept.
    text: String,
    /// Bytes of the folded text before it.
    base: usize,
    sources: VecDeque<SourceBytes>,
    /// A character and the marks behind it, which may still compose with what follows.
    segment: String,
    segment_start: usize,
    segment_end: usize,
}

impl PatternText {
    /// Starts with a text that folding has not changed so far: `text`, from the offset `base` on. Its last character may
    /// still compose with what follows.
    pub(super) fn starting(text: &str, base: usize) -> Self {
        let mut folded = Self {
            unmasks: false,
            text: String::with_capacity(text.len()),
            base,
            sources: VecDeque::new(),
            segment: String::new(),
            segment_start: base,
            segment_end: base,
        };
        for (at, c) in text.char_indices() {
            let start = base.saturating_add(at);
            folded.push(c, start, start.saturating_add(c.len_utf8()));
        }
        folded
    }

    /// The same text with look-alike letters replaced. It has none so far.
    pub(super) fn unmasked(&self) -> Self {
        Self { unmasks: true, ..self.clone() }
    }

    /// Adds a character of the text, which has the bytes from `start` to `end`.
    pub(super) fn push(&mut self, c: char, start: usize, end: usize) {
        if is_ignorable(c) {
            return;
        }
        if may_begin_segment(c) {
            self.end_segment();
        }
        if self.segment.is_empty() {
            self.segment_start = start;
        }
        self.segment.push(c);
        self.segment_end = end;
    }

    /// Folds the characters whose form is decided.
    pub(super) fn end_segment(&mut self) {
        let segment = std::mem::take(&mut self.segment);
        if segment.len() == 1 {
            segment.chars().for_each(|c| self.add(c));
        } else if self.unmasks {
            let plain = segment.nfkd().map(|(c, _)| c).filter(|c| !is_ignorable(*c));
            let unmasked = plain.map(|c| look_alike::latin(c).unwrap_or(c));
            unmasked.nfc().for_each(|(c, _)| self.add(c));
        } else {
            segment.nfkc().filter(|(c, _)| !is_ignorable(*c)).for_each(|(c, _)| self.add(c));
        }
        self.segment = segment;
        self.segment.clear();
    }

    fn add(&mut self, c: char) {
        let c = match c.is_whitespace() {
            false => c,
            true if self.text.ends_with(' ') => return,
            true => ' ',
        };
        let at = self.end();
        self.sources.push_back(SourceBytes { at, start: self.segment_start, end: self.segment_end });
        self.text.push(c);
    }

    /// The folded text that is kept, and its offset.
    pub(super) fn kept(&self) -> (&str, usize) {
        (&self.text, self.base)
    }

    fn end(&self) -> usize {
        self.base.saturating_add(self.text.len())
    }

    /// The characters whose form is not decided, and where they start. `None` if there are none.
    pub(super) fn undecided(&self) -> Option<(&str, usize)> {
        (!self.segment.is_empty()).then_some((&self.segment, self.segment_start))
    }

    /// The bytes of the text that a range of folded bytes comes from.
    pub(super) fn source(&self, start: usize, end: usize) -> (usize, usize) {
        let of = |at: usize| {
            let after = self.sources.partition_point(|source| source.at <= at);
            after.checked_sub(1).and_then(|at| self.sources.get(at))
        };
        let first = of(start).map_or(start, |source| source.start);
        let last = of(end.saturating_sub(1)).map_or(end, |source| source.end);
        (first, last)
    }

    /// Forgets the folded text before `at`, but for one character.
    pub(super) fn forget(&mut self, at: usize) {
        let before = at.saturating_sub(self.base);
        let Some(last) = self.text.get(..before).and_then(|before| before.char_indices().next_back()) else {
            return;
        };
        self.text.drain(..last.0);
        self.base = self.base.saturating_add(last.0);
        while self.sources.front().is_some_and(|source| source.at < self.base) {
            self.sources.pop_front();
        }
    }
}

/// Whether no character composes with a `c` behind it, nor is put in order with it.
fn may_begin_segment(c: char) -> bool {
    c.is_ascii()
        || !(is_combining_mark(c)
            || canonical_combining_class(c) != 0
            || matches!(c, '\u{1160}'..='\u{11ff}' | '\u{d7b0}'..='\u{d7ff}' | '\u{ff9e}' | '\u{ff9f}' | '\u{ffa0}'..='\u{ffdc}'))
}

/// Whether folding for patterns leaves `c` as it is, behind a text that it left as it is and that ends in `last`.
pub(super) fn stays(c: char, last: Option<char>) -> bool {
    c.is_ascii() && !matches!(c, '\t'..='\r') && !(c == ' ' && last == Some(' '))
}
