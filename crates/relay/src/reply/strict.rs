//! A JSON scanner that is as strict as the readers of the dialects and builds no values. Every method returns `None` if
//! the text is not as expected, and the full reader then decides what the text means. Knows no dialect.

use super::lenient::LenientCount;
use headrace_wire::json::plain_run;

/// Deeper answers are left to the full reader.
const DEEPEST: usize = 64;
/// A count with at most this number of digits is exact for every reader.
const MOST_DIGITS: usize = 15;

/// The rest of a JSON text.
pub(super) struct StrictCursor<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// A string as it is written.
#[derive(Clone, Copy, Default)]
pub(super) struct QuotedText<'a> {
    raw: &'a str,
    /// Bytes of the string without escapes.
    pub(super) length: usize,
}

impl<'a> QuotedText<'a> {
    /// Returns the string if it has no escapes.
    pub(super) fn plain(self) -> Option<&'a str> {
        // An escape is always longer than the character that it encodes.
        (self.raw.len() == self.length).then_some(self.raw)
    }
}

impl<'a> StrictCursor<'a> {
    pub(super) fn new(text: &'a [u8]) -> Option<Self> {
        Some(Self { text: simdutf8::basic::from_utf8(text).ok()?, at: 0, depth: 0 })
    }

    /// Fails if anything but white space follows.
    pub(super) fn end(mut self) -> Option<()> {
        self.next().is_none().then_some(())
    }

    /// Skips white space and returns the next byte, without taking it.
    fn next(&mut self) -> Option<u8> {
        loop {
            let byte = self.text.as_bytes().get(self.at).copied()?;
            // Most texts have no white space between their tokens.
            if byte > b' ' || !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let there = self.next() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text.as_bytes().get(self.at..)?.starts_with(word.as_bytes()).then(|| self.at += word.len())
    }

    /// Whether the next value is `null`. If so, skips it.
    pub(super) fn is_null(&mut self) -> bool {
        self.next() == Some(b'n') && self.word("null").is_some()
    }

    /// Whether the next value is a string.
    pub(super) fn is_string(&mut self) -> bool {
        self.next() == Some(b'"')
    }

    /// Visits an object. `each` reads the value behind a key. Duplicate keys are not detected, and keys with escapes
    /// fail.
    pub(super) fn members(&mut self, mut each: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        self.enter()?;
        if !self.eat(b'}') {
            loop {
                let key = self.string()?.plain()?;
                self.take(b':')?;
                each(self, key)?;
                if !self.eat(b',') {
                    break self.take(b'}')?;
                }
            }
        }
        self.depth -= 1;
        Some(())
    }

    /// Visits an array. `each` reads one item.
    pub(super) fn items(&mut self, mut each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        self.enter()?;
        if !self.eat(b']') {
            loop {
                each(self)?;
                if !self.eat(b',') {
                    break self.take(b']')?;
                }
            }
        }
        self.depth -= 1;
        Some(())
    }

    fn enter(&mut self) -> Option<()> {
        self.depth += 1;
        (self.depth <= DEEPEST).then_some(())
    }

    pub(super) fn string(&mut self) -> Option<QuotedText<'a>> {
        self.take(b'"')?;
        let start = self.at;
        let run = plain_run(self.text.as_bytes().get(start..)?);
        self.at += run;
        if self.text.as_bytes().get(self.at) == Some(&b'"') {
            self.at += 1;
            return Some(QuotedText { raw: self.text.get(start..start + run)?, length: run });
        }
        self.escaped(start)
    }

    /// Reads the rest of a string that began at `start` and has no escapes so far.
    fn escaped(&mut self, start: usize) -> Option<QuotedText<'a>> {
        let mut length = self.at - start;
        loop {
            match self.text.as_bytes().get(self.at)? {
                b'"' => {
                    let raw = self.text.get(start..self.at)?;
                    self.at += 1;
                    return Some(QuotedText { raw, length });
                }
                b'\\' => length += self.escape()?,
                _ => return None,
            }
            let run = plain_run(self.text.as_bytes().get(self.at..)?);
            self.at += run;
            length += run;
        }
    }

    /// Skips the escape at the current position. Returns the number of bytes that it encodes.
    fn escape(&mut self) -> Option<usize> {
        let by = *self.text.as_bytes().get(self.at + 1)?;
        self.at += 2;
        match by {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(1),
            b'u' => {
                let first = self.hex4()?;
                if !(0xD800..0xDC00).contains(&first) {
                    return char::from_u32(first).map(char::len_utf8);
                }
                self.word("\\u")?;
                // The second half of a surrogate pair, for characters beyond the first 65,536.
                (0xDC00..0xE000).contains(&self.hex4()?).then_some(4)
            }
            _ => None,
        }
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    /// Reads a string. `null` reads as the empty string.
    pub(super) fn text(&mut self) -> Option<QuotedText<'a>> {
        if self.is_null() { Some(QuotedText::default()) } else { self.string() }
    }

    /// Reads a string without escapes. The inner `None` means `null` or the empty string.
    pub(super) fn given(&mut self) -> Option<Option<&'a str>> {
        let text = self.text()?.plain()?;
        Some((!text.is_empty()).then_some(text))
    }

    /// Reads a count: only digits, or `null`.
    pub(super) fn count(&mut self) -> Option<LenientCount> {
        if self.is_null() {
            return Some(LenientCount::Absent);
        }
        let (mut count, mut digits) = (0, 0);
        let first = self.text.as_bytes().get(self.at);
        while let Some(digit @ b'0'..=b'9') = self.text.as_bytes().get(self.at) {
            if digits == MOST_DIGITS {
                return None;
            }
            count = count * 10 + u64::from(digit - b'0');
            digits += 1;
            self.at += 1;
        }
        // A leading zero, a fraction, an exponent, or no number at all.
        let is_odd = digits == 0
            || (first == Some(&b'0') && digits > 1)
            || matches!(self.text.as_bytes().get(self.at), Some(b'.' | b'e' | b'E'));
        (!is_odd).then_some(LenientCount::Is(count))
    }

    fn digits(&mut self) -> usize {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        digits
    }

    fn number(&mut self) -> Option<()> {
        let here = |cursor: &Self, one: &[u8]| {
            cursor.text.as_bytes().get(cursor.at).is_some_and(|byte| one.contains(byte))
        };
        self.at += usize::from(here(self, b"-"));
        let zero = here(self, b"0");
        // No digit may follow a leading zero. The caller then finds a digit where it expects a comma or a bracket, and
        // fails.
        let digits = if zero { 1 } else { self.digits() };
        self.at += usize::from(zero);
        let mut good = digits > 0;
        if here(self, b".") {
            self.at += 1;
            good &= self.digits() > 0;
        }
        if here(self, b"eE") {
            self.at += 1;
            self.at += usize::from(here(self, b"+-"));
            good &= self.digits() > 0;
        }
        good.then_some(())
    }

    /// Skips any value.
    pub(super) fn skip(&mut self) -> Option<()> {
        match self.next()? {
            b'"' => self.string().map(drop),
            b'{' => self.members(|cursor, _| cursor.skip()),
            b'[' => self.items(Self::skip),
            b'n' => self.word("null"),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            _ => self.number(),
        }
    }

    /// Skips any value. Returns its length in bytes as written.
    pub(super) fn raw_length(&mut self) -> Option<usize> {
        self.next()?;
        let start = self.at;
        self.skip()?;
        Some(self.at - start)
    }
}
