//! Skips over JSON with the same checks as reading. Keeps only lengths and places.
//! Knows no dialect.

use super::{JsonReader, ValueKind, plain_run};
use crate::fault::Read;

impl<'a> JsonReader<'a> {
    /// Returns a reader of the same text from its start, to search it first.
    pub const fn again(&self) -> Self {
        self.inner(self.text)
    }

    /// Skips a string. Returns its length in bytes after unescaping.
    #[inline]
    pub fn skip_string(&mut self) -> Read<usize> {
        self.require(ValueKind::String)?;
        self.at += 1;
        let mut bytes = 0;
        loop {
            let run = plain_run(self.text.as_bytes().get(self.at..).unwrap_or(&[]));
            self.at += run;
            bytes += run;
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(bytes);
                }
                Some(b'\\') => {
                    self.at += 1;
                    bytes += self.escape()?.len_utf8();
                }
                Some(_) => return Err(self.syntax("a control character must be escaped in a string")),
                None => return Err(self.syntax("the text ends inside a string")),
            }
        }
    }

    /// Skips `null`, a boolean or a number. Returns `false` if the next value is of another kind, and skips nothing
    /// then.
    #[inline]
    pub fn skip_scalar(&mut self) -> Read<bool> {
        match self.kind()? {
            ValueKind::Null => self.literal("null")?,
            ValueKind::Bool => self.bool().map(drop)?,
            ValueKind::Number => self.number().map(drop)?,
            ValueKind::String | ValueKind::Array | ValueKind::Object => return Ok(false),
        }
        Ok(true)
    }

    /// Skips a value of any kind, within the budget of free-form values.
    pub fn skip(&mut self) -> Read<()> {
        self.count_value()?;
        match self.kind()? {
            ValueKind::String => self.skip_string().map(drop),
            ValueKind::Array => self.array(usize::MAX, |r, _| r.skip()),
            ValueKind::Object => self.object(|r, _| r.skip()),
            ValueKind::Null | ValueKind::Bool | ValueKind::Number => self.skip_scalar().map(drop),
        }
    }

    /// Reads the next value with `read`. Returns the result, and the value's text as written.
    pub fn with_raw<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<(T, &'a str)> {
        self.kind()?;
        let start = self.at;
        let value = read(self)?;
        Ok((value, self.text.get(start..self.at).unwrap_or("")))
    }

    /// Returns the text of the next value as written. It is checked as in [`Self::skip`].
    pub fn raw(&mut self) -> Read<&'a str> {
        self.kind()?;
        let start = self.at;
        self.skip()?;
        Ok(self.text.get(start..self.at).unwrap_or(""))
    }
}
