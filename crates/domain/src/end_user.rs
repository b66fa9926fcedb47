//! The end user that a caller names for a call. Only a label: it grants no permission, and no answer depends on it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest name that is kept unchanged, in bytes.
const MAX_BYTES: usize = 128;
/// Number of hexadecimal digits kept from the digest of a longer name.
const DIGEST_DIGITS: usize = 32;

/// The end user of a call, as the caller names it: OpenAI's `safety_identifier` or `user`, Anthropic's
/// `metadata.user_id`.
///
/// The label is never empty, has at most 128 bytes and no control characters. A name that is longer, or has control
/// characters, is replaced by its BLAKE3 digest, so that one user keeps one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EndUser(Box<str>);

impl EndUser {
    /// Creates the label for a name. Returns `None` if the name is empty.
    pub fn named(name: &str) -> Option<Self> {
        if name.is_empty() {
            return None;
        }
        if name.len() <= MAX_BYTES && !name.chars().any(char::is_control) {
            return Some(Self(name.into()));
        }
        let digest = blake3::hash(name.as_bytes()).to_hex();
        let digits = digest.get(..DIGEST_DIGITS).unwrap_or(&digest);
        Some(Self(format!("blake3:{digits}").into()))
    }

    /// Returns the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EndUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_or_its_digest() {
        let named = |name: &str| EndUser::named(name).map(|user| user.to_string());
        assert_eq!(named(""), None);
        let longest = "ü".repeat(MAX_BYTES / 2);
        for kept in ["u", "eva@example.com", "{\"device_id\":\"d\"}", &longest] {
            assert_eq!(named(kept).as_deref(), Some(kept));
        }
        for digested in ["a\nb", "x\u{1b}[2J", &format!("{longest}a")] {
            let user = named(digested).unwrap();
            assert_eq!((user.len(), &user[..7]), (39, "blake3:"), "{digested:?}");
            assert_eq!(named(&user).as_deref(), Some(user.as_str()), "{digested:?}");
        }
        assert_ne!(named("a\nb"), named("a\nc"));
    }
}
