//! The ids and log-probabilities of a text that is partly held back or replaced. They repeat the text, so they leave
//! behind it, and those of replaced text never leave. Must not know who decides on the text.

use std::collections::VecDeque;
use std::ops::Range;

use headrace_domain::TokenLogprob;

/// See the top of the file.
#[derive(Default)]
pub(super) struct HeldTokens {
    /// Bytes of the section that came.
    came: usize,
    /// Bytes of its tokens, as far as their log-probabilities show them.
    token_bytes: usize,
    /// Ids and log-probabilities that have not left.
    pieces: VecDeque<HeldPiece>,
    /// Places that were replaced and may belong to `pieces`.
    redacted: Vec<Range<usize>>,
    /// Something of the present section was replaced.
    has_redacted: bool,
    /// Something of the last section that ended was replaced.
    was_redacted: bool,
}

/// The ids and log-probabilities of an event.
struct HeldPiece {
    /// The bytes of the section that they may describe. They leave once these are decided.
    bytes: Range<usize>,
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
}

/// What leaves a section.
#[derive(Default)]
pub(super) struct LeftText {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    pub(super) logprobs: Vec<TokenLogprob>,
    /// Ids that never leave, because their text was replaced.
    pub(super) withheld_ids: u64,
    /// Bytes of the section that were decided.
    pub(super) bytes: u64,
}

/// How far a section is decided.
pub(super) struct DecidedText {
    /// What leaves.
    pub(super) text: String,
    /// The bytes that were decided before.
    pub(super) before: usize,
    /// The bytes that are decided now.
    pub(super) decided: usize,
    /// The places that were replaced meanwhile.
    pub(super) replaced: Vec<Range<usize>>,
    /// Nothing is held back any more.
    pub(super) is_end: bool,
}

impl HeldTokens {
    /// Begins the next section.
    pub(super) fn begin(&mut self) {
        (self.came, self.token_bytes) = (0, 0);
        self.redacted.clear();
    }

    /// Notes that a section has ended.
    pub(super) fn end(&mut self) {
        self.was_redacted = std::mem::take(&mut self.has_redacted);
    }

    /// Drops everything that has not left.
    pub(super) fn clear(&mut self) {
        self.pieces = VecDeque::new();
    }

    /// The bytes of the section that came.
    pub(super) const fn came(&self) -> usize {
        self.came
    }

    /// Whether something of the last section that ended was replaced.
    pub(super) const fn was_redacted(&self) -> bool {
        self.was_redacted
    }

    /// Holds ids and log-probabilities back until their text is decided. The text of a token may come with later
    /// events, if it may become a stop string or is half a character. Log-probabilities show how much of it is to come.
    /// Ids alone do not, so ids that are shown leave at the end, and only if nothing was replaced.
    pub(super) fn hold(&mut self, text: &str, ids: Vec<u32>, logprobs: Vec<TokenLogprob>, shows_ids: bool) {
        let start = self.came;
        self.came = self.came.saturating_add(text.len());
        let of_tokens: usize = logprobs.iter().map(|token| token.bytes.len()).sum();
        self.token_bytes = self.token_bytes.saturating_add(of_tokens);
        if ids.is_empty() && logprobs.is_empty() {
            return;
        }
        let to_come = match logprobs.is_empty() {
            false => self.token_bytes.saturating_sub(self.came),
            true if shows_ids => usize::MAX,
            true => 0,
        };
        let end = self.came.saturating_add(to_come);
        self.pieces.push_back(HeldPiece { bytes: start..end, ids, logprobs });
    }

    /// Takes what leaves.
    pub(super) fn leave(&mut self, decided: DecidedText) -> LeftText {
        let DecidedText { text, before, decided, replaced, is_end } = decided;
        self.has_redacted |= !replaced.is_empty();
        self.redacted.extend(replaced);
        let bytes = decided.saturating_sub(before) as u64;
        let mut left = LeftText { text, bytes, ..LeftText::default() };
        let leaves = |piece: &HeldPiece| piece.bytes.end <= decided || is_end;
        while let Some(piece) = self.pieces.pop_front_if(|piece| leaves(piece)) {
            let is_alone = piece.bytes.end == usize::MAX;
            let describes =
                |place: &Range<usize>| place.start < piece.bytes.end && piece.bytes.start < place.end;
            let is_replaced = self.redacted.iter().any(|place| is_alone || describes(place));
            let is_shown = is_alone || !piece.logprobs.is_empty();
            if is_replaced && is_shown {
                left.withheld_ids += piece.ids.len() as u64;
            } else {
                left.ids.extend(piece.ids);
                left.logprobs.extend(piece.logprobs);
            }
        }
        let first = self.pieces.front().map_or(decided, |piece| piece.bytes.start);
        self.redacted.retain(|place| place.end > first);
        left
    }
}
