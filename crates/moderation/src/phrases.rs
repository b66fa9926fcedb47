//! Finds phrases that start in one text and end in a later one, since a caller may split them over messages or parts of
//! a message. Knows no messages.

use crate::fold;
use crate::{Judge, Verdict};

/// Reads the texts of one sequence, such as the contents of a conversation, and checks the places where they meet. Keeps
/// as much of the earlier texts as the longest phrase may need.
pub struct Phrases<'j> {
    judge: &'j dyn Judge,
    longest_chars: usize,
    /// The ends of the texts before, visible characters alone. None is blank.
    before: Vec<String>,
}

impl<'j> Phrases<'j> {
    /// Starts a sequence without texts.
    pub fn of(judge: &'j dyn Judge) -> Self {
        Self { judge, longest_chars: judge.longest_phrase_chars(), before: Vec::new() }
    }

    /// Checks for phrases that end in `text` and start in the texts before it. Takes time proportional to the longest
    /// phrase, plus the invisible characters at the start and the end of `text`.
    pub fn next(&mut self, text: &str) -> Verdict {
        if self.longest_chars == 0 || fold::is_blank(text) {
            return Verdict::Clean;
        }
        // One more character on each side shows whether a word ends there.
        let most = self.longest_chars.saturating_add(1);
        let (head, tail) = (fold::head(text, most), fold::tail(text, most));
        let verdict = match self.before.is_empty() {
            true => Verdict::Clean,
            false => self.judge.judge_seam(&self.before, head),
        };
        if tail.len() < text.len() {
            self.before.clear();
        }
        self.before.push(fold::visible(tail));
        self.forget(most);
        verdict
    }

    /// Forgets texts that no phrase can begin in, as those behind them have `most` characters.
    fn forget(&mut self, most: usize) {
        let mut chars = 0_usize;
        let is_needed = |text: &String| {
            let needed = chars < most;
            chars = chars.saturating_add(fold::visible_chars(text));
            needed
        };
        let needed = self.before.iter().rev().map(is_needed).take_while(|needed| *needed).count();
        self.before.drain(..self.before.len().saturating_sub(needed));
    }
}
