//! Reading over JSON: the same checks as reading it, nothing kept of it but lengths and places.
//! Knows no dialect.

use super::{Kind, Reader, plain_run};
use crate::fault::Read;

impl<'a> Reader<'a> {
    /// The same text from its beginning, to look for something in it first.
    pub(crate) const fn again(&self) -> Self {
        self.inner(self.text)
    }

    /// Reads over a string. Returns how many bytes it has, unescaped.
    pub(crate) fn skip_string(&mut self) -> Read<usize> {
        self.require(Kind::String)?;
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

    /// Reads over `null`, a boolean or a number. `false`: something else stands next, and nothing was read.
    pub(crate) fn skip_scalar(&mut self) -> Read<bool> {
        match self.kind()? {
            Kind::Null => self.literal("null")?,
            Kind::Bool => self.bool().map(drop)?,
            Kind::Number => self.number().map(drop)?,
            Kind::String | Kind::Array | Kind::Object => return Ok(false),
        }
        Ok(true)
    }

    /// Reads over a value of any kind, within the budget of free-form values.
    pub(crate) fn skip(&mut self) -> Read<()> {
        self.count_value()?;
        match self.kind()? {
            Kind::String => self.skip_string().map(drop),
            Kind::Array => self.array(usize::MAX, |r, _| r.skip()),
            Kind::Object => self.object(|r, _| r.skip()),
            Kind::Null | Kind::Bool | Kind::Number => self.skip_scalar().map(drop),
        }
    }

    /// What `read` makes of the next value, and the value's text, just as it is written.
    pub(crate) fn with_raw<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<(T, &'a str)> {
        self.kind()?;
        let start = self.at;
        let value = read(self)?;
        Ok((value, self.text.get(start..self.at).unwrap_or("")))
    }

    /// The text of the next value, just as it is written; checked as [`Self::skip`] checks it.
    pub(crate) fn raw(&mut self) -> Read<&'a str> {
        self.kind()?;
        let start = self.at;
        self.skip()?;
        Ok(self.text.get(start..self.at).unwrap_or(""))
    }
}
