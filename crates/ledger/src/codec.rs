//! The binary encoding of journal rows and snapshots. Integers are LEB128 (signed ones in zigzag form), and strings and
//! lists begin with their length. The reader trusts no input. Does not know the records.

use std::fmt;

/// An error for bytes that do not have the expected form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MalformedBytes {
    /// The offset at which reading failed.
    at: usize,
    /// The item that was being read.
    what: &'static str,
}

impl fmt::Display for MalformedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {} at byte {}", self.what, self.at)
    }
}

/// Appends encoded values to a buffer.
#[derive(Debug, Default)]
pub(crate) struct ByteWriter {
    bytes: Vec<u8>,
}

impl ByteWriter {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub(crate) fn u64(&mut self, mut value: u64) {
        // Most values are lengths and tags of one byte.
        if value < 0x80 {
            return self.u8(value as u8);
        }
        let mut bytes = [0; 10];
        let mut length = 0;
        for byte in &mut bytes {
            length += 1;
            *byte = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                break;
            }
            *byte |= 0x80;
        }
        self.bytes.extend_from_slice(bytes.get(..length).unwrap_or(&bytes));
    }

    pub(crate) fn len_of(&mut self, length: usize) {
        self.u64(length as u64);
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.u64(((value << 1) ^ (value >> 63)) as u64);
    }

    pub(crate) fn u128(&mut self, value: u128) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn hash(&mut self, value: &[u8; 32]) {
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn raw(&mut self, value: &[u8]) {
        self.len_of(value.len());
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn str(&mut self, value: &str) {
        self.raw(value.as_bytes());
    }
}

/// Reads encoded values from a slice.
#[derive(Debug)]
pub(crate) struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns an error at the current offset.
    pub(crate) fn malformed(&self, what: &'static str) -> MalformedBytes {
        MalformedBytes { at: self.at, what }
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(&self) -> Result<(), MalformedBytes> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.malformed("end of the record")) }
    }

    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], MalformedBytes> {
        let end = self.at.checked_add(length).ok_or_else(|| self.malformed(what))?;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| self.malformed(what))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], MalformedBytes> {
        self.take(N, what)?.try_into().map_err(|_| self.malformed(what))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, MalformedBytes> {
        Ok(u8::from_le_bytes(self.array("byte")?))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, MalformedBytes> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed("flag")),
        }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MalformedBytes> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let low = u64::from(byte & 0x7f);
            // The tenth byte carries one bit, and each number has only one encoding.
            if (shift == 63 && low > 1) || (byte == 0 && shift > 0) {
                return Err(self.malformed("integer"));
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed("integer"))
    }

    /// Reads the number of elements that follow. Each has at least one byte, so the number cannot exceed the remaining
    /// bytes.
    pub(crate) fn len_of(&mut self) -> Result<usize, MalformedBytes> {
        let length = self.u64()?;
        let left = self.bytes.len() - self.at;
        usize::try_from(length).ok().filter(|n| *n <= left).ok_or_else(|| self.malformed("length"))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, MalformedBytes> {
        let folded = self.u64()?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }

    pub(crate) fn u128(&mut self) -> Result<u128, MalformedBytes> {
        Ok(u128::from_le_bytes(self.array("128-bit id")?))
    }

    pub(crate) fn hash(&mut self) -> Result<[u8; 32], MalformedBytes> {
        self.array("hash")
    }

    pub(crate) fn raw(&mut self) -> Result<&'a [u8], MalformedBytes> {
        let length = self.len_of()?;
        self.take(length, "bytes")
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, MalformedBytes> {
        std::str::from_utf8(self.raw()?).map_err(|_| self.malformed("text"))
    }

    /// Reads a string that parses into an id or a name.
    pub(crate) fn id<T: std::str::FromStr>(&mut self, what: &'static str) -> Result<T, MalformedBytes> {
        self.str()?.parse().map_err(|_| self.malformed(what))
    }

    /// Reads an optional value after its flag.
    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, MalformedBytes>,
    ) -> Result<Option<T>, MalformedBytes> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(unsigned: u64, signed: i64, wide: u128, text in ".*", flag: bool) {
            let mut writer = ByteWriter::default();
            writer.u64(unsigned);
            writer.i64(signed);
            writer.u128(wide);
            writer.str(&text);
            writer.bool(flag);
            let bytes = writer.into_bytes();
            let mut reader = ByteReader::new(&bytes);
            prop_assert_eq!(reader.u64(), Ok(unsigned));
            prop_assert_eq!(reader.i64(), Ok(signed));
            prop_assert_eq!(reader.u128(), Ok(wide));
            prop_assert_eq!(reader.str(), Ok(text.as_str()));
            prop_assert_eq!(reader.bool(), Ok(flag));
            prop_assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let table: [(&[u8], &str); 5] = [
            (&[0x80; 11], "an integer without end"),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], "an integer of 65 bits"),
            (&[0x80, 0], "an integer spelled too long"),
            (&[5, b'a'], "a length past the end"),
            (&[], "nothing"),
        ];
        for (bytes, why) in table {
            assert!(ByteReader::new(bytes).raw().is_err(), "{why}");
        }
        assert!(ByteReader::new(&[2]).bool().is_err());
        assert!(ByteReader::new(&[1, 0xff]).str().is_err());
    }
}
