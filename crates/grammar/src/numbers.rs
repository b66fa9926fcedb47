//! Limits the digits of JSON numbers if the form does not. So numbers cannot run on, and every number is a finite
//! double. Removes ids from a mask, but never the last ones. Knows where strings and numbers are in JSON, and no
//! grammar.

use std::ops::Range;
use std::sync::Arc;

use headrace_tokenizer::Tokenizer;

use crate::bounds::{EXPONENT_DIGITS, NUMBER_DIGITS};

/// The texts of a vocabulary's tokens, indexed for numbers.
pub(crate) struct NumberTokens {
    bytes: Vec<u8>,
    /// End of each id's text in `bytes`.
    ends: Vec<usize>,
    /// Ids whose text begins with part of a number, each with the length of that part in bytes.
    starts: Vec<(u32, u8)>,
}

impl NumberTokens {
    pub(crate) fn of(tokenizer: &Tokenizer, size: u32) -> Self {
        let (mut bytes, mut ends, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for id in 0..size {
            let is_text = !(tokenizer.is_control(id) || tokenizer.is_markup(id));
            let text = tokenizer.token_bytes(id).filter(|_| is_text).unwrap_or_default();
            let of_number = text.iter().take_while(|byte| is_of_number(**byte)).take(255).count();
            if of_number > 0 {
                starts.push((id, of_number as u8));
            }
            bytes.extend_from_slice(text);
            ends.push(bytes.len());
        }
        Self { bytes, ends, starts }
    }

    fn range(&self, id: u32) -> Option<Range<usize>> {
        let start = id.checked_sub(1).map_or(Some(0), |before| self.ends.get(before as usize).copied())?;
        Some(start..*self.ends.get(id as usize)?)
    }

    fn text(&self, id: u32) -> &[u8] {
        self.range(id).and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')
}

/// The position in a JSON text, as far as numbers need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct JsonPosition {
    in_string: bool,
    after_backslash: bool,
    number: Option<NumberSoFar>,
}

/// The digits of a number so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct NumberSoFar {
    mantissa: u32,
    exponent: Option<u32>,
}

impl NumberSoFar {
    fn take(&mut self, byte: u8) {
        match (byte, &mut self.exponent) {
            (b'0'..=b'9', None) => self.mantissa += 1,
            (b'0'..=b'9', Some(digits)) => *digits += 1,
            (b'e' | b'E', None) => self.exponent = Some(0),
            _ => {}
        }
    }

    /// Whether `text` would take the number beyond its limits. A decimal point that leaves no room for a digit counts
    /// as beyond.
    fn exceeds_with(mut self, text: &[u8]) -> bool {
        let ends_open = text.last() == Some(&b'.');
        text.iter().for_each(|byte| self.take(*byte));
        let full = self.mantissa + u32::from(ends_open) > NUMBER_DIGITS;
        full || self.exponent.is_some_and(|digits| digits > EXPONENT_DIGITS)
    }
}

impl JsonPosition {
    fn take(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.after_backslash => self.after_backslash = false,
                b'\\' => self.after_backslash = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        // The `e` of `true` is in no number, because none has begun.
        let begins = matches!(byte, b'0'..=b'9' | b'-');
        if is_of_number(byte) && (begins || self.number.is_some()) {
            self.number.get_or_insert_default().take(byte);
            return;
        }
        self.number = None;
        self.in_string = byte == b'"';
    }
}

/// Tracks the numbers of one answer.
pub(crate) struct NumberTracker {
    tokens: Arc<NumberTokens>,
    place: JsonPosition,
}

impl NumberTracker {
    pub(crate) fn new(tokens: Arc<NumberTokens>) -> Self {
        Self { tokens, place: JsonPosition::default() }
    }

    /// Continues the answer with this id.
    pub(crate) fn take(&mut self, id: u32) {
        for byte in self.tokens.text(id) {
            self.place.take(*byte);
        }
    }

    /// Removes the ids that would make the current number too long, if other ids are left.
    pub(crate) fn bound(&self, allowed: &mut [u32]) {
        if self.place.in_string {
            return;
        }
        let number = self.place.number.unwrap_or_default();
        let too_long = |id: u32, of_number: u8| {
            let text = self.tokens.text(id);
            let text = text.get(..usize::from(of_number)).unwrap_or(text);
            number.exceeds_with(text)
        };
        let mut taken = Vec::new();
        for &(id, of_number) in &self.tokens.starts {
            let (word, bit) = (id as usize / 32, 1u32 << (id % 32));
            let Some(word) = allowed.get_mut(word) else { break };
            if *word & bit != 0 && too_long(id, of_number) {
                *word &= !bit;
                taken.push(id);
            }
        }
        if !taken.is_empty() && allowed.iter().all(|word| *word == 0) {
            for id in taken {
                if let Some(word) = allowed.get_mut(id as usize / 32) {
                    *word |= 1 << (id % 32);
                }
            }
        }
    }
}
