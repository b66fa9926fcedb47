//! Finds phrases that start in one text and end in a later one, since a caller may split them over messages. Knows no
//! messages.

use crate::fold;
use crate::{Judge, Verdict};

/// Reads the texts of one sequence, such as the messages of a conversation, and checks the places where they meet.
/// Keeps as much of the earlier texts as the longest phrase may need.
pub struct Phrases<'j> {
    judge: &'j dyn Judge,
    longest_chars: usize,
    before: String,
}

impl<'j> Phrases<'j> {
    /// Starts a sequence without texts.
    pub fn of(judge: &'j dyn Judge) -> Self {
        Self { judge, longest_chars: judge.longest_phrase_chars(), before: String::new() }
    }

    /// Checks for phrases that end in `text` and start in the texts before it. Takes time proportional to the longest
    /// phrase, plus the invisible characters at the end of the earlier text and at the start of `text`.
    pub fn next(&mut self, text: &str) -> Verdict {
        let most = self.longest_chars;
        if most == 0 || text.is_empty() {
            return Verdict::Clean;
        }
        // One more character on each side shows whether a word ends there.
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
