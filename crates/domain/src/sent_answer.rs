//! What was sent as the body of an answer: its hash and its length. Must not know who sent it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The body of an answer as the client got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentAnswer {
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hash,
    /// Number of bytes.
    pub bytes: u64,
}

/// A SHA-256 hash. Shown and stored as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256Hash(pub [u8; 32]);

impl Sha256Hash {
    /// Parses 64 hexadecimal digits. Returns `None` if the text is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Sha256Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a SHA-256 hash has 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written_and_nothing_else_is_read() {
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(0..).for_each(|(byte, at)| *byte = at * 8);
        let sent = SentAnswer { sha256: Sha256Hash(bytes), bytes: 7 };
        let text = serde_json::to_string(&sent).unwrap();
        assert!(text.starts_with("{\"sha256\":\"0008101820"), "{text}");
        assert_eq!(serde_json::from_str::<SentAnswer>(&text).unwrap(), sent);
        let shown = sent.sha256.to_string();
        assert_eq!(Sha256Hash::parse(&shown.to_uppercase()), Some(sent.sha256));
        for bad in
            ["", &shown[..63], &format!("{shown}0"), &shown.replace('8', "g"), &shown.replace('8', "é")]
        {
            assert_eq!(Sha256Hash::parse(bad), None, "{bad}");
        }
    }
}
