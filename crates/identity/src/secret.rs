//! The secrets of API keys: generation, format check and hashing. A secret is in memory only while it is created or
//! checked, and is never formatted.

use std::fmt;

use secrecy::zeroize::Zeroize;
use secrecy::{ExposeSecret, SecretBox, SecretString};
use subtle::{Choice, ConstantTimeEq};

use crate::IdentityError;

/// Maximum length of a credential that is checked, in bytes.
pub(crate) const MAX_PRESENTED_BYTES: usize = 256;

const PREFIX: &str = "sk-";
/// Characters after the prefix of a generated secret: 43 · log2(62) = 256 bits.
const FRESH_CHARS: usize = 43;
/// Minimum number of characters after the prefix of a secret that an operator chooses.
const MIN_CHOSEN_CHARS: usize = 4;
/// Minimum number of characters after the prefix for a secret that cannot be guessed, or derived from its hint.
const STRONG_CHARS: usize = 22;
const HINT_CHARS: usize = 4;
/// The bytes allowed after the prefix. A table, since every call's key is checked against it.
const KEY_BYTES: [bool; 256] = {
    let mut fits = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        fits[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        byte += 1;
    }
    fits
};
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The 32 secret bytes that key hashes are derived from. Without them, a stolen store reveals nothing about keys.
pub struct HashSecret(SecretBox<[u8; 32]>);

impl HashSecret {
    /// Creates a secret from existing bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(SecretBox::new(Box::new(bytes)))
    }

    /// Generates fresh bytes.
    ///
    /// # Errors
    /// [`IdentityError::Randomness`] if the operating system provides none.
    pub fn generate() -> Result<Self, IdentityError> {
        let mut bytes = Box::new([0; 32]);
        getrandom::fill(bytes.as_mut_slice()).map_err(|_| IdentityError::Randomness)?;
        Ok(Self(SecretBox::new(bytes)))
    }

    /// The bytes, for storage that only the server can read.
    pub fn expose(&self) -> &[u8; 32] {
        self.0.expose_secret()
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret([redacted])")
    }
}

/// The keyed hash of a key's secret. Stored instead of the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Creates a hash from its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The hash as bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first half of the hash. Entries are looked up by it.
    pub(crate) fn prefix(&self) -> u128 {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = self.0;
        u128::from_le_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
    }
}

impl ConstantTimeEq for KeyHash {
    fn ct_eq(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash([redacted])")
    }
}

/// Hashes secrets with its own key, derived from the [`HashSecret`].
pub(crate) struct KeyHasher {
    key: SecretBox<[u8; 32]>,
    check: [u8; 32],
}

impl KeyHasher {
    pub(crate) fn new(secret: &HashSecret) -> Self {
        let key = blake3::derive_key("headrace 2026 api key hash v1", secret.expose());
        let check = blake3::derive_key("headrace 2026 hash secret check v1", secret.expose());
        Self { key: SecretBox::new(Box::new(key)), check }
    }

    /// Creates a hasher for operator keys. Its key differs from that of [`KeyHasher::new`], so the two kinds of hashes
    /// never collide.
    pub(crate) fn of_operators(secret: &HashSecret) -> Self {
        let key = blake3::derive_key("headrace 2026 operator key hash v1", secret.expose());
        Self { key: SecretBox::new(Box::new(key)), ..Self::new(secret) }
    }

    /// Creates a hasher for the credentials of identity providers.
    pub(crate) fn of_scim(secret: &HashSecret) -> Self {
        let key = blake3::derive_key("headrace 2026 scim credential hash v1", secret.expose());
        Self { key: SecretBox::new(Box::new(key)), ..Self::new(secret) }
    }

    /// Hashes at most the first 256 bytes, so that no credential costs more than another.
    pub(crate) fn hash(&self, presented: &[u8]) -> KeyHash {
        let bytes = presented.get(..MAX_PRESENTED_BYTES).unwrap_or(presented);
        KeyHash(*blake3::keyed_hash(self.key.expose_secret(), bytes).as_bytes())
    }

    /// A value that identifies the [`HashSecret`] without revealing it.
    pub(crate) const fn check(&self) -> [u8; 32] {
        self.check
    }
}

/// Returns `true` if `presented` could be a key: `sk-` and at least four of `A-Z a-z 0-9 - _`.
pub fn is_well_formed(presented: &str) -> bool {
    presented.len() <= MAX_PRESENTED_BYTES
        && presented.strip_prefix(PREFIX).is_some_and(|rest| {
            rest.len() >= MIN_CHOSEN_CHARS
                && rest.bytes().all(|b| KEY_BYTES.get(usize::from(b)) == Some(&true))
        })
}

/// Returns `true` if a secret that an operator chose is long enough for a public address.
pub fn is_strong(secret: &SecretString) -> bool {
    let secret = secret.expose_secret();
    is_well_formed(secret) && secret.len() >= PREFIX.len() + STRONG_CHARS
}

/// The part of a secret that may be shown: its last four characters. Empty for a short secret.
pub(crate) fn hint(secret: &SecretString) -> String {
    let text = secret.expose_secret();
    match text.len().checked_sub(HINT_CHARS).and_then(|at| text.get(at..)) {
        Some(tail) if is_strong(secret) => tail.to_owned(),
        _ => String::new(),
    }
}

/// The last four characters of a generated secret.
pub(crate) fn tail(secret: &SecretString) -> String {
    let text = secret.expose_secret();
    text.len().checked_sub(HINT_CHARS).and_then(|at| text.get(at..)).unwrap_or_default().to_owned()
}

/// Generates a secret of 256 bits.
pub(crate) fn fresh_secret() -> Result<SecretString, IdentityError> {
    random_base62(PREFIX, FRESH_CHARS).map(SecretString::from)
}

/// Returns `prefix` and `chars` characters, each drawn uniformly from 62.
pub(crate) fn random_base62(prefix: &str, chars: usize) -> Result<String, IdentityError> {
    let whole = prefix.len().saturating_add(chars);
    let mut text = String::with_capacity(whole);
    text.push_str(prefix);
    let mut bytes = [0_u8; 64];
    while text.len() < whole {
        getrandom::fill(&mut bytes).map_err(|_| IdentityError::Randomness)?;
        // 248 is the largest multiple of 62 that fits in a byte. Higher values would favour the first characters.
        let even = bytes.iter().filter(|&&b| b < 248).filter_map(|b| BASE62.get(usize::from(b % 62)));
        text.extend(even.take(whole - text.len()).map(|&b| char::from(b)));
    }
    bytes.zeroize();
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn fresh_secrets_are_long_well_formed_and_differ() {
        let mut seen = BTreeSet::new();
        let mut used = BTreeSet::new();
        for _ in 0..200 {
            let secret = fresh_secret().unwrap();
            let text = secret.expose_secret();
            assert_eq!(text.len(), 46);
            assert!(is_well_formed(text) && is_strong(&secret));
            assert_eq!(hint(&secret).len(), 4);
            used.extend(text.bytes().skip(3));
            assert!(seen.insert(text.to_owned()));
        }
        assert_eq!(used.len(), 62, "every character is drawn");
    }

    #[test]
    fn shapes() {
        for good in ["sk-test", "sk-abc_DEF-123", &format!("sk-{}", "a".repeat(253))] {
            assert!(is_well_formed(good), "{good}");
        }
        for bad in [
            "",
            "sk-",
            "sk-abc",
            "SK-abcdef",
            "abcdef",
            "sk-ab cd",
            "sk-abc'd",
            "sk-é000",
            &"sk-a".repeat(99),
        ] {
            assert!(!is_well_formed(bad), "{bad}");
        }
    }

    #[test]
    fn short_secrets_have_no_hint() {
        assert_eq!(hint(&SecretString::from("sk-test")), "");
        assert_eq!(hint(&SecretString::from("sk-0123456789012345678abc")), "8abc");
    }

    #[test]
    fn nothing_secret_is_formatted() {
        let secret = HashSecret::new([0xab; 32]);
        let hasher = KeyHasher::new(&secret);
        let shown = format!("{secret:?} {:?} {:?}", hasher.hash(b"sk-test"), SecretString::from("sk-test"));
        assert!(!shown.contains("171") && !shown.contains("ab, ") && !shown.contains("sk-test"), "{shown}");
    }

    #[test]
    fn hashes_depend_on_the_secret_and_on_every_byte() {
        let (a, b) = (KeyHasher::new(&HashSecret::new([1; 32])), KeyHasher::new(&HashSecret::new([2; 32])));
        assert!(a.hash(b"sk-test") == a.hash(b"sk-test"));
        assert!(a.hash(b"sk-test") != b.hash(b"sk-test"));
        assert!(a.hash(b"sk-test") != a.hash(b"sk-tesu"));
        assert_ne!(a.check(), b.check());
        // Stored hashes must stay valid across versions of the program.
        let shown: String = a.hash(b"sk-test").as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(shown, "0eb2ad772036c30f38c331a16969087d6feb949bfcca6b3c551e520c27d1adba");
    }
}
