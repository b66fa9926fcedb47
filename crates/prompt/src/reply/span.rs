//! Where a JSON object or array ends, character by character. Must not know what is in it.

/// An object or an array whose first bracket has been seen.
#[derive(Debug)]
pub(super) struct Span {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Span {
    /// Behind its opening bracket.
    pub(super) const fn open() -> Self {
        Self { depth: 1, in_string: false, escaped: false }
    }

    /// Takes the next character; whether it is the last one. Brackets are counted, not matched: what comes of it is parsed anyhow.
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

/// JSON's white space.
pub(super) const fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
