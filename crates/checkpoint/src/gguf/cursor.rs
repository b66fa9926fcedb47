//! Reads numbers and texts from bytes, one after the other. Every refusal names the file and the position. Must not
//! know GGUF's layout.

use crate::error::{CheckpointError, shown};

/// A read position in a file.
pub(super) struct Cursor<'b> {
    file: &'b str,
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Cursor<'b> {
    pub(super) fn new(file: &'b str, bytes: &'b [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    pub(super) fn file(&self) -> &'b str {
        self.file
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(super) fn bytes(&mut self, count: usize, what: &str) -> Result<&'b [u8], CheckpointError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        match end.and_then(|end| Some((end, self.bytes.get(self.at..end)?))) {
            Some((end, found)) => {
                self.at = end;
                Ok(found)
            }
            None => Err(self.broken(format!(
                "ends inside {what}: {count} bytes are needed at byte {}, {} are left; cut off? download it again",
                self.at,
                self.left()
            ))),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], CheckpointError> {
        let bytes = self.bytes(N, what)?;
        // `bytes` returned exactly `N` bytes or an error, so the default is never used.
        Ok(bytes.first_chunk().copied().unwrap_or([0; N]))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, CheckpointError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, CheckpointError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a length and then that many bytes of text.
    pub(super) fn raw_text(
        &mut self,
        what: &str,
        most: usize,
        limit: &str,
    ) -> Result<&'b [u8], CheckpointError> {
        let length = self.u64(what)?;
        match usize::try_from(length).ok().filter(|length| *length <= most) {
            Some(length) => self.bytes(length, what),
            None => {
                let at = self.at;
                Err(self.broken(format!(
                    "{what} before byte {at} is {length} bytes long, the most is {most} ({limit})"
                )))
            }
        }
    }

    /// Reads a text into memory of its own.
    pub(super) fn text(&mut self, what: &str, most: usize, limit: &str) -> Result<String, CheckpointError> {
        let bytes = self.raw_text(what, most, limit)?;
        let at = self.at;
        // Copy before the check: the file may be mapped, and the checked bytes must be the bytes that are kept.
        String::from_utf8(bytes.to_vec())
            .map_err(|_| self.broken(format!("{what} before byte {at} is not UTF-8")))
    }

    /// Checks that `count` items of at least `least_bytes_each` bytes fit into the rest of the file and are at most
    /// `most`.
    pub(super) fn check_count(
        &self,
        what: &str,
        count: u64,
        most: usize,
        least_bytes_each: u64,
    ) -> Result<usize, CheckpointError> {
        let fits = count.checked_mul(least_bytes_each).is_some_and(|bytes| bytes <= self.left() as u64);
        let small = usize::try_from(count).ok().filter(|count| *count <= most);
        match small {
            Some(count) if fits => Ok(count),
            Some(_) => Err(self.broken(format!(
                "says that it has {count} {what}, which {} more bytes cannot hold: cut off? download it again",
                self.left()
            ))),
            None => Err(self.broken(format!("says that it has {count} {what}, the most is {most}"))),
        }
    }

    pub(super) fn broken(&self, problem: String) -> CheckpointError {
        CheckpointError::Header { file: self.file.to_owned(), problem }
    }

    pub(super) fn field(&self, key: &str, problem: String) -> CheckpointError {
        CheckpointError::Field { file: self.file.to_owned(), field: shown(key), problem }
    }
}
