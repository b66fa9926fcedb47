//! The hash of what a transport took of an answer. Must not know what the answer says.

use std::io::{self, Read};

use headrace_domain::{SentAnswer, Sha256Hash};
use sha2::{Digest, Sha256};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Hashes bytes in the order in which they are sent.
#[derive(Default)]
pub(crate) struct SentHash {
    hash: Sha256,
    bytes: u64,
}

impl SentHash {
    /// Adds bytes that follow those before.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
    }

    /// Returns the hash and the number of all bytes.
    pub(crate) fn finish(self) -> SentAnswer {
        SentAnswer { sha256: Sha256Hash(self.hash.finalize().into()), bytes: self.bytes }
    }
}

/// Returns the hash and the length of a body that is sent as a whole.
pub fn sent_whole(body: &[u8]) -> SentAnswer {
    let mut hash = SentHash::default();
    hash.add(body);
    hash.finish()
}

/// Returns the hash and the length of everything that `answer` yields.
///
/// # Errors
/// The error of `answer`.
pub fn sent_by(mut answer: impl Read) -> io::Result<SentAnswer> {
    let (mut hash, mut piece) = (SentHash::default(), vec![0; READ_BYTES]);
    loop {
        match answer.read(&mut piece) {
            Ok(0) => return Ok(hash.finish()),
            Ok(count) => hash.add(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_of_fips_180_4_however_the_bytes_are_cut() {
        // The example "abc" of FIPS 180-4, and the empty text.
        for (body, sha256) in [
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ] {
            let whole = sent_whole(body.as_bytes());
            assert_eq!((whole.sha256.to_string().as_str(), whole.bytes), (sha256, body.len() as u64));
            let mut cut = SentHash::default();
            body.as_bytes().chunks(1).for_each(|byte| cut.add(byte));
            assert_eq!(cut.finish(), whole);
            assert_eq!(sent_by(body.as_bytes()).unwrap(), whole);
        }
    }
}
