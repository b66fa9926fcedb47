//! What the ledger keeps of a stored answer's body: its hash and its length.

/// The hash and the length of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerDigest {
    hash: [u8; 32],
    pub(super) bytes: u64,
}

impl AnswerDigest {
    pub(super) fn of(body: &[u8]) -> Self {
        Self { hash: *blake3::hash(body).as_bytes(), bytes: body.len() as u64 }
    }

    /// The hash, then the length in little-endian order.
    pub(super) fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..32].copy_from_slice(&self.hash);
        bytes[32..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Reads what [`Self::to_bytes`] wrote. `None` for anything else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (hash, length) = bytes.split_first_chunk::<32>()?;
        Some(Self { hash: *hash, bytes: u64::from_le_bytes(length.try_into().ok()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_round_trip_and_differ_by_content_and_length() {
        for body in [&b""[..], b"a", b"ab", &[0; 300]] {
            let digest = AnswerDigest::of(body);
            assert_eq!(AnswerDigest::from_bytes(&digest.to_bytes()), Some(digest));
            assert_eq!(digest.bytes, body.len() as u64);
        }
        assert_ne!(AnswerDigest::of(b"a"), AnswerDigest::of(b"b"));
        let digest = AnswerDigest::of(b"a").to_bytes();
        assert_eq!(AnswerDigest::from_bytes(&digest[..39]), None);
        assert_eq!(AnswerDigest::from_bytes(&[&digest[..], &[0]].concat()), None);
    }
}
