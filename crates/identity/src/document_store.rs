//! Numbered documents that never change, such as invoices, and the seam to the stores that keep them. A document, its number
//! and its row of the audit log are one transaction. Must not know what a document says.

use headrace_domain::{OrgId, UnixNanos};

use crate::{AuditEntry, StoreError};

/// A document that gets a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDocument {
    /// The series in which it gets the next number. Numbers begin at 1 and have no gaps.
    pub series: String,
    /// Its kind, such as `invoice`.
    pub kind: String,
    /// The organisation that it is for.
    pub org: OrgId,
    /// The period that it is about, such as `2026-11`.
    pub period: String,
    /// What else it is about. There is one document for each kind, organisation, period and subject.
    pub about: String,
    /// When it was made.
    pub created: UnixNanos,
    /// Who made it.
    pub actor: String,
}

/// A document with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberedDocument {
    /// Its series.
    pub series: String,
    /// Its number in the series.
    pub number: u64,
    /// Its kind.
    pub kind: String,
    /// The organisation that it is for.
    pub org: OrgId,
    /// The period that it is about.
    pub period: String,
    /// What else it is about.
    pub about: String,
    /// When it was made.
    pub created: UnixNanos,
    /// The BLAKE3 hash of its text, which the audit log has too.
    pub hash: [u8; 32],
    /// Its content.
    pub text: String,
}

/// Writes the content of a document that got a number.
pub type DocumentWriter<'a> = &'a (dyn Fn(u64) -> String + Sync);

impl NewDocument {
    /// The document with its number, and its row of the audit log.
    pub fn numbered(&self, number: u64, text: String) -> (NumberedDocument, AuditEntry) {
        let Self { series, kind, org, period, about, created, actor } = self;
        let hash = blake3::hash(text.as_bytes());
        let audit = AuditEntry {
            at: *created,
            actor: actor.clone(),
            act: format!("{kind}.final"),
            subject: format!("{series}-{number}"),
            detail: format!("org {org}, period {period}, blake3 {hash}"),
        };
        let document = NumberedDocument {
            series: series.clone(),
            number,
            kind: kind.clone(),
            org: org.clone(),
            period: period.clone(),
            about: about.clone(),
            created: *created,
            hash: *hash.as_bytes(),
            text,
        };
        (document, audit)
    }
}

impl NumberedDocument {
    /// Checks that the text is the one that was stored.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it has another hash.
    pub fn check(self) -> Result<Self, StoreError> {
        if blake3::hash(self.text.as_bytes()) == self.hash {
            return Ok(self);
        }
        let what = format!("document {}-{}", self.series, self.number);
        Err(StoreError::Corrupt { what, why: "its content does not match its hash".to_owned() })
    }
}

/// Stores numbered documents. Part of a [`crate::KeyStore`].
pub trait DocumentStore: Send + Sync {
    /// Gives a document the next number of its series and stores it. Other processes may do so at the same time.
    /// [`StoreError::Duplicate`] if there is one of the same kind, organisation, period and subject.
    fn number_document(
        &self,
        new: &NewDocument,
        write: DocumentWriter<'_>,
    ) -> Result<NumberedDocument, StoreError>;

    /// Returns all documents, by series and number.
    fn documents(&self) -> Result<Vec<NumberedDocument>, StoreError>;

    /// Returns a document. `None` if there is none with this number.
    fn document(&self, series: &str, number: u64) -> Result<Option<NumberedDocument>, StoreError>;
}
