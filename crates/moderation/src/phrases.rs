//! Phrases that begin in one text and end in a later one: a caller may split them over messages.
//! Knows no messages.

use crate::fold;
use crate::{Judge, Verdict};

/// Reads the texts of one sequence, such as the messages of a conversation, and looks where they meet. Keeps as much of what came
/// before as the longest phrase may need.
pub struct Phrases<'j> {
    judge: &'j dyn Judge,
    longest_chars: usize,
    before: String,
}

impl<'j> Phrases<'j> {
    /// A sequence without texts yet.
    pub fn of(judge: &'j dyn Judge) -> Self {
        Self { judge, longest_chars: judge.longest_phrase_chars(), before: String::new() }
    }

    /// The verdict on phrases that end in `text` and begin in the texts before it. Takes time in proportion to the longest phrase,
    /// and to the invisible characters at the end of the one text and at the beginning of the other.
    pub fn next(&mut self, text: &str) -> Verdict {
        let most = self.longest_chars;
        if most == 0 || text.is_empty() {
            return Verdict::Clean;
        }
        // One character more on each side shows whether a word ends there.
        let (head, tail) = (fold::head(text, most + 1), fold::tail(text, most + 1));
        let verdict = match self.before.is_empty() {
            true => Verdict::Clean,
            false => self.judge.judge_seam(&self.before, head),
        };
        if tail.len() < text.len() {
            self.before.clear();
        } else if !self.before.is_empty() {
            self.before.push(' ');
        }
        self.before.push_str(tail);
        let kept = fold::tail(&self.before, most + 1).len();
        self.before.drain(..self.before.len() - kept);
        verdict
    }
}
