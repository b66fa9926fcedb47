//! A rendered prompt: its text, and the ranges that come from messages. Must not know how it was rendered or how it is
//! tokenized.

use std::ops::Range;

use headrace_tokenizer::Segment;

/// A rendered prompt that knows the origin of its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    /// Byte ranges in which no control token may begin and through which none may run. They are ascending and do not
    /// touch.
    literal: Vec<Range<usize>>,
}

impl RenderedPrompt {
    pub(crate) fn new(text: String, literal: Vec<Range<usize>>) -> Self {
        Self { text, literal }
    }

    /// Returns the prompt as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the prompt as text, without a copy.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Returns the prompt in pieces, for [`headrace_tokenizer::Tokenizer::encode_segments`]. Literal pieces are the
    /// characters of messages that could open or complete a control token. The rest of a message is harmless without
    /// them and is part of trusted pieces.
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
