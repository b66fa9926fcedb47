//! Commands about the audit log as serializable data, its rows as they are exported, and its signed end. Must not know the
//! algorithm of the signature.

use headrace_domain::{UnixNanos, rfc3339};
use headrace_identity::{AuditEntry, AuditRow};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
        Some(AuditRow { seq: row, previous: previous.parse().ok()?, hash: hash.parse().ok()?, entry })
    }
}

/// A signed statement of where the audit log ended: its rows and the hash of the last one. A copy of it outside of the server
/// shows later whether rows were rewritten or cut off. One line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedAuditHead {
    /// When it was signed.
    #[serde(with = "rfc3339")]
    pub at: UnixNanos,
    /// Number of rows.
    pub rows: u64,
    /// Hash of the last row, in hexadecimal.
    pub head: String,
    /// What counts: the three values above, signed. A JWS in compact form.
    pub jws: String,
    /// The public key as a JWK set.
    pub keys: Value,
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
}
