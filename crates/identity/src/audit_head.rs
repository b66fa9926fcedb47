//! A signed statement of where the audit log ended: its rows and the hash of the last one. A copy of it outside of the
//! server shows later whether rows were rewritten or cut off. Knows the text, not the signature's algorithm.

use std::fmt;

use headrace_domain::UnixNanos;
use headrace_domain::rfc3339;
use serde::{Deserialize, Serialize};

use crate::audit::{AuditHash, AuditSummary};

/// The format of the statement.
const VERSION: u32 = 1;

/// A statement as it is written: one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedAuditHead {
    /// The format of the statement. 1.
    pub version: u32,
    /// When it was signed.
    #[serde(with = "rfc3339")]
    pub at: UnixNanos,
    /// Number of rows.
    pub rows: u64,
    /// Hash of the last row, in hexadecimal.
    pub head: String,
    /// The public key, in hexadecimal.
    pub key: String,
    /// The signature over [`SignedAuditHead::text`], in hexadecimal.
    pub signature: String,
}

/// Why a statement does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditHeadFault {
    /// Another program made it.
    Version(u32),
    /// A field is not hexadecimal of its length.
    Field(&'static str),
    /// Another key signed it.
    OtherKey,
    /// The signature does not fit to the text.
    Signature,
    /// The log does not have this row, or has another one in its place.
    Row {
        /// The number of the row.
        row: u64,
    },
}

impl fmt::Display for AuditHeadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "it has format {version}, and this program knows {VERSION}"),
            Self::Field(name) => write!(f, "`{name}` is not hexadecimal of its length"),
            Self::OtherKey => f.write_str("another key signed it"),
            Self::Signature => f.write_str("its signature does not fit"),
            Self::Row { row } => write!(f, "row {row} of the log is another one, or missing"),
        }
    }
}

impl std::error::Error for AuditHeadFault {}

impl SignedAuditHead {
    /// The text that is signed.
    pub fn text(at: UnixNanos, end: &AuditSummary) -> String {
        format!("headrace audit head v{VERSION}\n{}\n{}\n{}", at.get(), end.rows, end.head)
    }

    /// Makes a statement. `sign` returns the signature of a text, and `key` is the public key.
    pub fn sign(
        at: UnixNanos,
        end: &AuditSummary,
        key: &[u8; 32],
        sign: impl FnOnce(&[u8]) -> [u8; 64],
    ) -> Self {
        Self {
            version: VERSION,
            at,
            rows: end.rows,
            head: end.head.to_string(),
            key: hex(key),
            signature: hex(&sign(Self::text(at, end).as_bytes())),
        }
    }

    /// Checks the signature, and returns the end of the log that it states. `key` is the expected public key, or `None` for
    /// the one that the statement names. `verify` checks a signature of a text by a key.
    ///
    /// # Errors
    /// [`AuditHeadFault`]
    pub fn check(
        &self,
        key: Option<&[u8; 32]>,
        verify: impl FnOnce(&[u8; 32], &[u8], &[u8; 64]) -> bool,
    ) -> Result<AuditSummary, AuditHeadFault> {
        if self.version != VERSION {
            return Err(AuditHeadFault::Version(self.version));
        }
        let named: [u8; 32] = unhex(&self.key).ok_or(AuditHeadFault::Field("key"))?;
        if key.is_some_and(|key| *key != named) {
            return Err(AuditHeadFault::OtherKey);
        }
        let head = unhex(&self.head).ok_or(AuditHeadFault::Field("head"))?;
        let signature = unhex(&self.signature).ok_or(AuditHeadFault::Field("signature"))?;
        let end = AuditSummary { rows: self.rows, head: AuditHash::from_bytes(head) };
        match verify(&named, Self::text(self.at, &end).as_bytes(), &signature) {
            true => Ok(end),
            false => Err(AuditHeadFault::Signature),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of exactly this length in hexadecimal.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signature that a test can check: the beginning of the text.
    fn signature(text: &[u8]) -> [u8; 64] {
        std::array::from_fn(|at| text.get(at).copied().unwrap_or(0))
    }

    #[test]
    fn a_changed_statement_does_not_hold() {
        let end = AuditSummary { rows: 7, head: AuditHash::from_bytes([5; 32]) };
        let head = SignedAuditHead::sign(UnixNanos::new(1_000), &end, &[9; 32], signature);
        let check = |head: &SignedAuditHead, key: Option<[u8; 32]>| {
            head.check(key.as_ref(), |_, text, signed| signature(text) == *signed)
        };
        assert_eq!(check(&head, Some([9; 32])), Ok(end));
        assert_eq!(check(&head, None), Ok(end));
        assert_eq!(check(&head, Some([8; 32])), Err(AuditHeadFault::OtherKey));
        let text = serde_json::to_string(&head).unwrap();
        assert_eq!(serde_json::from_str::<SignedAuditHead>(&text).unwrap(), head);
        let changed = |change: fn(&mut SignedAuditHead)| {
            let mut other = head.clone();
            change(&mut other);
            check(&other, None)
        };
        assert_eq!(changed(|head| head.rows = 8), Err(AuditHeadFault::Signature));
        assert_eq!(changed(|head| head.at = UnixNanos::new(2_000)), Err(AuditHeadFault::Signature));
        assert_eq!(changed(|head| head.version = 2), Err(AuditHeadFault::Version(2)));
        assert_eq!(changed(|head| head.head = "zz".to_owned()), Err(AuditHeadFault::Field("head")));
        assert_eq!(changed(|head| head.signature.push('0')), Err(AuditHeadFault::Field("signature")));
    }
}
