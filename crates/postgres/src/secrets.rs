//! The secrets that all gateways of a database have in common, as rows. Every change is one transaction under a lock that
//! one program has at a time. Must not know what the bytes of a secret mean.

use std::sync::Arc;
use std::time::Duration;

use headrace_identity::StoreError;
use tokio_postgres::types::Type;

use crate::schema;
use crate::session::{DatabaseSession, SessionFault};
use crate::url::PostgresUrl;

/// How long reading, deciding and writing may take, each.
const LIMIT: Duration = Duration::from_secs(4);
/// Takes the lock. Another program has it for a few milliseconds.
const BEGIN: &str = "BEGIN; SET LOCAL synchronous_commit = 'on'; \
    SET LOCAL idle_in_transaction_session_timeout = '4s'; SELECT pg_advisory_xact_lock(1213363045)";
const READ: &str = "SELECT name, value FROM headrace.secret ORDER BY name";
const WRITE: &str =
    "INSERT INTO headrace.secret VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";

/// A secret's name and its stored bytes.
pub type SecretRow = (String, Vec<u8>);

/// The shared secrets of a database.
#[derive(Debug)]
pub struct PostgresSecrets {
    session: DatabaseSession,
}

impl PostgresSecrets {
    /// Opens a database, and makes its tables if they are missing.
    ///
    /// # Errors
    /// [`StoreError::Newer`] if a newer program made the tables. [`StoreError::Unavailable`] if the database cannot be
    /// reached.
    pub fn open(url: Arc<PostgresUrl>) -> Result<Self, StoreError> {
        let mut session = DatabaseSession::new(url);
        schema::ensure(&mut session).map_err(|error| match error {
            headrace_ledger::JournalError::NewerFormat { found, known, .. } => {
                StoreError::Newer { found: i64::from(found), known: i64::from(known) }
            }
            other => StoreError::Unavailable { doing: "opening", why: other.to_string() },
        })?;
        Ok(Self { session })
    }

    /// Passes all rows to `decide` and writes the rows that it returns, in one transaction under the lock. Nothing is
    /// written if `decide` fails.
    ///
    /// # Errors
    /// Returns the error of `decide`, or one of the database. After an error of the database, all rows were written or
    /// none.
    pub fn change<E: From<StoreError>>(
        &mut self,
        decide: impl FnOnce(&[SecretRow]) -> Result<Vec<SecretRow>, E>,
    ) -> Result<(), E> {
        let read = self.session.run(LIMIT, async |client| {
            client.batch_execute(BEGIN).await?;
            let rows = client.query_typed(READ, &[]).await?;
            Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<SecretRow>>())
        });
        let rows = read.map_err(|fault| self.failed("reading the shared secrets", fault))?;
        let changed = match decide(&rows) {
            Ok(changed) => changed,
            Err(error) => {
                // Ends the transaction with its connection.
                self.session.close();
                return Err(error);
            }
        };
        let written = self.session.run_open(LIMIT, async |client| {
            for (name, value) in &changed {
                client.execute_typed(WRITE, &[(name, Type::TEXT), (value, Type::BYTEA)]).await?;
            }
            client.batch_execute("COMMIT").await
        });
        written.map_err(|fault| self.failed("writing the shared secrets", fault).into())
    }

    fn failed(&mut self, doing: &'static str, fault: SessionFault) -> StoreError {
        self.session.close();
        StoreError::Unavailable { doing, why: fault.why() }
    }
}
