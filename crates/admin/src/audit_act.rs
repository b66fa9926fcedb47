//! Commands about the audit log as serializable data, and its rows as they are exported. Contains no decisions.

use headrace_domain::{UnixNanos, rfc3339};
use headrace_identity::{AuditEntry, AuditHash, AuditRow, SignedAuditHead};
use serde::{Deserialize, Serialize};

/// A command about the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum AuditAct {
    /// Returns rows after a row number, oldest first.
    Rows {
        /// The number of the last row of the page before. 0 for the first page.
        after: u64,
        /// Maximum number of rows: 1 to 1,000.
        limit: u32,
    },
    /// Signs the present end of the log.
    Head,
    /// Reads the whole log and checks its chain.
    Verify,
}

/// A row of the audit log with its hashes, as one line of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditLine {
    /// The row number.
    pub row: u64,
    /// When the act happened, in nanoseconds since 1970: the hash covers all digits.
    pub at_ns: u64,
    /// The same time for readers.
    #[serde(with = "rfc3339")]
    pub at: UnixNanos,
    /// The person or program that acted.
    pub actor: String,
    /// What was done.
    pub act: String,
    /// The id of what was changed.
    pub subject: String,
    /// The new values, as text.
    pub detail: String,
    /// The hash of the row before, in hexadecimal.
    pub previous: String,
    /// The hash of this row, in hexadecimal.
    pub hash: String,
}

impl From<AuditRow> for AuditLine {
    fn from(of: AuditRow) -> Self {
        let AuditRow { seq, previous, hash, entry } = of;
        let AuditEntry { at, actor, act, subject, detail } = entry;
        Self {
            row: seq,
            at_ns: at.get(),
            at,
            actor,
            act,
            subject,
            detail,
            previous: previous.to_string(),
            hash: hash.to_string(),
        }
    }
}

impl AuditLine {
    /// The row that the line is of. `None` if a hash is not hexadecimal of its length.
    pub fn into_row(self) -> Option<AuditRow> {
        let Self { row, at_ns, at: _, actor, act, subject, detail, previous, hash } = self;
        let entry = AuditEntry { at: UnixNanos::new(at_ns), actor, act, subject, detail };
        Some(AuditRow { seq: row, previous: hash_of(&previous)?, hash: hash_of(&hash)?, entry })
    }
}

/// Parses a hash in hexadecimal.
fn hash_of(text: &str) -> Option<AuditHash> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(AuditHash::from_bytes(bytes))
}

/// The reply to a command about the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AuditReply {
    /// Rows, oldest first.
    Rows {
        /// The rows.
        rows: Vec<AuditLine>,
    },
    /// The signed end of the log.
    Head {
        /// The statement.
        head: SignedAuditHead,
    },
    /// The chain of the log is whole.
    Verified {
        /// Number of rows.
        rows: u64,
        /// Hash of the last row, in hexadecimal.
        head: String,
    },
}
