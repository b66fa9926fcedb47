//! Ed25519 signatures (RFC 8032) over short texts, by a key that is derived from a secret of 32 bytes. Programs with the
//! same secret have the same key. Must not know what is signed.

use std::fmt;

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

/// Separates the seeds of signing keys from all other uses of a secret.
const DOMAIN: &[u8] = b"headrace 2026 signing key v1";

/// Why a key cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadSigningKey;

impl fmt::Display for BadSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the secret makes no signing key")
    }
}

impl std::error::Error for BadSigningKey {}

/// A key that signs. Never shown.
pub struct SigningKey(Ed25519KeyPair);

/// The public part of a key. It verifies signatures and is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey([u8; 32]);

impl SigningKey {
    /// Derives the key for a purpose, such as `audit`, from a secret. Another purpose makes another key.
    ///
    /// # Errors
    /// [`BadSigningKey`] if the key cannot be made.
    pub fn derive(secret: &[u8; 32], purpose: &'static str) -> Result<Self, BadSigningKey> {
        let mut seed = Zeroizing::new([0; 32]);
        let key = Salt::new(HKDF_SHA256, DOMAIN).extract(secret);
        let info = [purpose.as_bytes()];
        let expanded = key.expand(&info, HKDF_SHA256).map_err(|_| BadSigningKey)?;
        expanded.fill(seed.as_mut_slice()).map_err(|_| BadSigningKey)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_slice()).map_err(|_| BadSigningKey)?;
        Ok(Self(pair))
    }

    /// Signs a text.
    pub fn sign(&self, text: &[u8]) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (byte, signed) in bytes.iter_mut().zip(self.0.sign(text).as_ref()) {
            *byte = *signed;
        }
        bytes
    }

    /// The public part.
    pub fn verifying(&self) -> VerifyingKey {
        let mut bytes = [0; 32];
        for (byte, public) in bytes.iter_mut().zip(self.0.public_key().as_ref()) {
            *byte = *public;
        }
        VerifyingKey(bytes)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.verifying()).finish()
    }
}

impl VerifyingKey {
    /// The key of these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key as bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether the key signed this text.
    pub fn verifies(&self, text: &[u8], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(text, signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_text_signature_or_key_is_noticed() {
        let key = SigningKey::derive(&[7; 32], "audit").unwrap();
        let (signature, public) = (key.sign(b"text"), key.verifying());
        assert!(public.verifies(b"text", &signature));
        assert!(!public.verifies(b"tex", &signature));
        for at in 0..signature.len() {
            let mut changed = signature;
            changed[at] ^= 1;
            assert!(!public.verifies(b"text", &changed), "byte {at}");
        }
        for (secret, purpose) in [([7; 32], "other"), ([8; 32], "audit")] {
            let other = SigningKey::derive(&secret, purpose).unwrap();
            assert!(!other.verifying().verifies(b"text", &signature));
        }
        assert_eq!(SigningKey::derive(&[7; 32], "audit").unwrap().verifying(), public);
        assert!(!format!("{key:?}").contains("seed"));
    }
}
