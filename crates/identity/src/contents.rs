//! Everything that the stores of identities keep, to be copied to empty stores. Knows no database.

use headrace_domain::UnixNanos;

use crate::secret::KeyHasher;
use crate::{
    AuditRow, AuditSummary, HashSecret, IdentityError, KeyStore, KeyUse, NumberedDocument, OperatorStore,
    StoreError, StoredDirectory, StoredOperator,
};

/// Rows of the audit log that are read at a time.
const PAGE_ROWS: usize = 1_000;

/// Everything that the stores of identities keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityContents {
    /// The value that identifies the hash secret.
    pub secret_check: [u8; 32],
    /// Organisations, projects and keys. Nothing is noted.
    pub directory: StoredDirectory,
    /// The last uses of keys and of users' tokens, by the id of the key or the user.
    pub uses: Vec<KeyUse>,
    /// The operators.
    pub operators: Vec<StoredOperator>,
    /// The audit log, from its first row.
    pub audit: Vec<AuditRow>,
    /// Numbered documents, by series and number.
    pub documents: Vec<NumberedDocument>,
    /// The acts that are announced and not concluded, with their rows of the audit log.
    pub announced: Vec<(u64, String)>,
}

impl IdentityContents {
    /// Reads everything. Other programs may write meanwhile, and their last changes may be missing.
    ///
    /// # Errors
    /// [`IdentityError::WrongSecret`] if the keys were hashed with another secret. [`IdentityError::Store`] if a store
    /// fails, or revocations wait to be written.
    pub fn read(
        keys: &dyn KeyStore,
        operators: &dyn OperatorStore,
        secret: &HashSecret,
    ) -> Result<Self, IdentityError> {
        let secret_check = KeyHasher::new(secret).check();
        if keys.secret_check(secret_check)? != secret_check {
            return Err(IdentityError::WrongSecret);
        }
        let end = keys.verify_audit()?;
        let announced = keys.announced()?;
        let directory = keys.load_all()?;
        if !directory.noted.is_empty() {
            let why =
                "revocations wait to be written: start the server, and see `headrace status`".to_owned();
            return Err(StoreError::Unavailable { doing: "copying it", why }.into());
        }
        // Read after the directory: a use of what is not in it is not copied.
        let mut uses = keys.key_uses(UnixNanos::new(0))?;
        uses.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let operators = operators.operators()?;
        let documents = keys.documents()?;
        let mut audit: Vec<AuditRow> = Vec::new();
        loop {
            let after = audit.last().map_or(0, |row| row.seq);
            let rows = keys.audit(after, PAGE_ROWS)?;
            if rows.is_empty() {
                break;
            }
            audit.extend(rows);
        }
        if (audit.len() as u64) < end.rows {
            let why = format!("{} rows were read, and it had {}", audit.len(), end.rows);
            return Err(StoreError::Corrupt { what: "the audit log".to_owned(), why }.into());
        }
        Ok(Self { secret_check, directory, uses, operators, audit, documents, announced })
    }

    /// The end of the audit log.
    pub fn audit_end(&self) -> AuditSummary {
        self.audit.last().map_or(AuditSummary::EMPTY, |row| AuditSummary { rows: row.seq, head: row.hash })
    }
}
