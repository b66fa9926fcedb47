//! A rendered prompt: its text, and which parts of it are whose.
//! Must not know how it was rendered, or how it is tokenized.

use std::ops::Range;

use headrace_tokenizer::Segment;

/// A rendered prompt, which knows its parts' origin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Byte ranges that control tokens must not begin or run through: ascending, apart.
    literal: Vec<Range<usize>>,
}

impl Rendered {
    pub(crate) fn new(text: String, literal: Vec<Range<usize>>) -> Self {
        Self { text, literal }
    }

    /// The prompt as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The prompt as text, without a copy.
    pub fn into_text(self) -> String {
        self.text
    }

    /// The prompt in pieces, for [`headrace_tokenizer::Tokenizer::encode_segments`]. Literal pieces are those characters of messages
    /// that could open (or complete) a control token; the rest of a message is harmless without them and stands in
    /// trusted pieces.
    pub fn segments(&self) -> Vec<Segment<'_>> {
        let mut segments = Vec::with_capacity(self.literal.len().saturating_mul(2).saturating_add(1));
        let mut from = 0;
        let piece = |range: Range<usize>| self.text.get(range).unwrap_or("");
        for range in &self.literal {
            if from < range.start {
                segments.push(Segment::Trusted(piece(from..range.start)));
            }
            segments.push(Segment::Literal(piece(range.clone())));
            from = range.end;
        }
        if from < self.text.len() {
            segments.push(Segment::Trusted(piece(from..self.text.len())));
        }
        segments
    }
}
