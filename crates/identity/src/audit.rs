//! The audit log: one row per administrative act, each with the hash of the row before it. Knows how rows chain. The
//! store writes a row and the change that it describes in one transaction.

use std::fmt;
use std::str::FromStr;

use headrace_domain::UnixNanos;
use serde::Serialize;

use crate::StoreError;

/// An administrative act that has no row in the log yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// When the act happened.
    pub at: UnixNanos,
    /// The person or program that acted, under the name that the administrative interface uses.
    pub actor: String,
    /// What was done, such as `key.create`.
    pub act: String,
    /// The id of the object that was changed.
    pub subject: String,
    /// The new values, as text. Never contains a secret.
    pub detail: String,
}

impl AuditEntry {
    /// Returns this entry as the row that follows `head`.
    pub fn chained(self, head: &AuditSummary) -> AuditRow {
        let seq = head.rows.saturating_add(1);
        let hash = row_hash(seq, &head.head, &self);
        AuditRow { seq, previous: head.head, hash, entry: self }
    }
}

/// BLAKE3 over a row and the hash of the row before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AuditHash([u8; 32]);

impl AuditHash {
    /// The `previous` hash of the first row.
    pub const START: Self = Self([0; 32]);

    /// Creates a hash from its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The hash as bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is no hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHashError;

impl fmt::Display for AuditHashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hash has 64 hexadecimal digits")
    }
}

impl std::error::Error for AuditHashError {}

impl FromStr for AuditHash {
    type Err = AuditHashError;

    fn from_str(text: &str) -> Result<Self, AuditHashError> {
        // `from_str_radix` alone accepts a sign.
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(AuditHashError);
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(2 * index..2 * index + 2).ok_or(AuditHashError)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| AuditHashError)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for AuditHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// The row number. Starts at 1, without gaps.
    pub seq: u64,
    /// The hash of the row before this one.
    pub previous: AuditHash,
    /// The hash of this row.
    pub hash: AuditHash,
    /// The act that the row records.
    pub entry: AuditEntry,
}

/// The end of a log. A copy that is kept elsewhere also reveals rows cut off at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AuditSummary {
    /// Number of rows.
    pub rows: u64,
    /// Hash of the last row.
    pub head: AuditHash,
}

impl AuditSummary {
    /// The empty log.
    pub const EMPTY: Self = Self { rows: 0, head: AuditHash::START };
}

/// Checks a log row by row, in order.
#[derive(Debug)]
pub struct AuditChecker {
    so_far: AuditSummary,
}

impl AuditChecker {
    /// Creates a checker that expects the first row.
    pub const fn new() -> Self {
        Self { so_far: AuditSummary::EMPTY }
    }

    /// Checks the next row.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] names the row that is missing, out of place or altered.
    pub fn check(&mut self, row: &AuditRow) -> Result<(), StoreError> {
        let seq = self.so_far.rows.saturating_add(1);
        let corrupt =
            |why: &str| Err(StoreError::Corrupt { what: format!("audit row {seq}"), why: why.to_owned() });
        if row.seq != seq {
            return corrupt("it is missing");
        }
        if row.previous != self.so_far.head {
            return corrupt("it does not continue the row before it");
        }
        if row.hash != row_hash(seq, &row.previous, &row.entry) {
            return corrupt("its content does not match its hash");
        }
        self.so_far = AuditSummary { rows: seq, head: row.hash };
        Ok(())
    }

    /// Checks the end of the log against the store's own record of it, `recorded`.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the log does not end as `recorded` says.
    pub fn finish(self, recorded: AuditSummary) -> Result<AuditSummary, StoreError> {
        if self.so_far != recorded {
            return Err(StoreError::Corrupt {
                what: "the end of the audit log".to_owned(),
                why: format!(
                    "it should end at row {} with {}, and ends at row {} with {}",
                    recorded.rows, recorded.head, self.so_far.rows, self.so_far.head
                ),
            });
        }
        Ok(self.so_far)
    }
}

impl Default for AuditChecker {
    fn default() -> Self {
        Self::new()
    }
}

/// Each text is preceded by its length, so no two different rows hash the same bytes.
fn row_hash(seq: u64, previous: &AuditHash, entry: &AuditEntry) -> AuditHash {
    let mut hasher = blake3::Hasher::new_derive_key("headrace 2026 audit row v1");
    hasher.update(previous.as_bytes());
    hasher.update(&seq.to_le_bytes());
    hasher.update(&entry.at.get().to_le_bytes());
    for text in [&entry.actor, &entry.act, &entry.subject, &entry.detail] {
        hasher.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    AuditHash(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_parsed_from_what_it_writes_and_from_nothing_else() {
        let hash = AuditHash(std::array::from_fn(|at| u8::try_from(at * 8).unwrap()));
        let text = hash.to_string();
        assert_eq!((text.parse(), text.to_uppercase().parse()), (Ok(hash), Ok(hash)));
        let digits = |count| "a".repeat(count);
        for bad in [
            String::new(),
            digits(63),
            digits(65),
            digits(62) + "é",
            digits(63) + "g",
            format!("+{}", digits(63)),
            format!(" {}", digits(63)),
        ] {
            assert_eq!(bad.parse::<AuditHash>(), Err(AuditHashError), "{bad}");
        }
    }

    fn entry(n: u64) -> AuditEntry {
        AuditEntry {
            at: UnixNanos::new(n),
            actor: "ops".to_owned(),
            act: "key.create".to_owned(),
            subject: format!("key_{n}"),
            detail: String::new(),
        }
    }

    fn log(rows: u64) -> (Vec<AuditRow>, AuditSummary) {
        let mut end = AuditSummary::EMPTY;
        let rows = (1..=rows)
            .map(|n| {
                let row = entry(n).chained(&end);
                end = AuditSummary { rows: row.seq, head: row.hash };
                row
            })
            .collect();
        (rows, end)
    }

    fn verify(rows: &[AuditRow], end: AuditSummary) -> Result<AuditSummary, StoreError> {
        let mut checker = AuditChecker::new();
        rows.iter().try_for_each(|row| checker.check(row))?;
        checker.finish(end)
    }

    #[test]
    fn a_whole_log_passes_and_every_alteration_is_found() {
        let (rows, end) = log(5);
        assert_eq!(verify(&rows, end), Ok(end));
        assert_eq!(verify(&[], AuditSummary::EMPTY), Ok(AuditSummary::EMPTY));

        type Alter = fn(&mut Vec<AuditRow>);
        let alterations: &[(&str, Alter)] = &[
            ("removed", |rows| drop(rows.remove(2))),
            ("removed at the start", |rows| drop(rows.remove(0))),
            ("removed at the end", |rows| drop(rows.pop())),
            ("swapped", |rows| rows.swap(1, 2)),
            ("actor", |rows| rows[1].entry.actor = "nobody".to_owned()),
            ("moved between texts", |rows| {
                rows[1].entry.actor = "opskey".to_owned();
                rows[1].entry.act = ".create".to_owned();
            }),
            ("time", |rows| rows[4].entry.at = UnixNanos::new(99)),
            ("hash", |rows| rows[3].hash = AuditHash::START),
            ("rewritten from there on", |rows| {
                rows[3].entry.detail = "forged".to_owned();
                for at in 3..5 {
                    let before = AuditSummary { rows: rows[at - 1].seq, head: rows[at - 1].hash };
                    rows[at] = rows[at].entry.clone().chained(&before);
                }
            }),
        ];
        for (name, alter) in alterations {
            let mut altered = rows.clone();
            alter(&mut altered);
            assert!(verify(&altered, end).is_err(), "{name}");
        }
    }

    #[test]
    fn row_hashes_never_change_between_versions() {
        let (rows, _) = log(2);
        assert_eq!(
            rows[1].hash.to_string(),
            "0b36789a486787552d4fa7fe736cdeac09f7b24f7022f349dac8991d1dcc2f07"
        );
    }
}
