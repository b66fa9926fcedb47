//! Finds the end of a JSON object or array, character by character. Must not know its content.

/// An object or an array whose opening bracket has been read.
#[derive(Debug)]
pub(super) struct BracketSpan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl BracketSpan {
    /// Creates a span after the opening bracket.
    pub(super) const fn open() -> Self {
        Self { depth: 1, in_string: false, escaped: false }
    }

    /// Takes the next character and returns whether it is the last one. Brackets are counted and not matched, because
    /// the result is parsed anyway.
    pub(super) fn step(&mut self, c: char) -> bool {
        if self.in_string {
            self.in_string = self.escaped || c != '"';
            self.escaped = !self.escaped && c == '\\';
            return false;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth = self.depth.saturating_add(1),
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.depth == 0
    }
}

/// Whether `c` is white space in JSON.
pub(super) const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
