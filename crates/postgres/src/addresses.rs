//! The addresses at which gateways that share a database ask each other. Must not know what they ask.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_ledger::{JournalError, Owner};
use tokio_postgres::types::Type;

use crate::rows::owner_of;
use crate::schema::{self, journal_error};
use crate::session::{DatabaseSession, locked};
use crate::url::PostgresUrl;

/// How long reading or writing an address may take.
const LIMIT: Duration = Duration::from_secs(1);
/// A table beside `headrace.gateway`, so that older programs, which do not know it, work with the database.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS headrace.gateway_address (\
    owner bytea PRIMARY KEY REFERENCES headrace.gateway (owner) ON DELETE CASCADE, address text NOT NULL)";
/// Serializes programs that make the table at the same time.
const LOCK: &str = "BEGIN; SELECT pg_advisory_xact_lock(1213359969)";
const PUT: &str = "INSERT INTO headrace.gateway_address VALUES ($1, $2) \
    ON CONFLICT (owner) DO UPDATE SET address = excluded.address";
/// A gateway that was silent for longer than its lease has ended, even if no other one has noticed yet. Commands join under
/// names that begin with that of this program, and answer nothing.
const LIVE: &str = "SELECT gateway.owner, gateway.name, address.address FROM headrace.gateway \
    LEFT JOIN headrace.gateway_address AS address ON address.owner = gateway.owner \
    WHERE gateway.state = 'live' AND gateway.seen > clock_timestamp() - interval '15 seconds' \
    AND gateway.name NOT LIKE 'headrace %' \
    ORDER BY gateway.name, gateway.owner";
/// Gateways of the last days that are not live, and are not live again under another owner. Commands have no files of their
/// own.
const ENDED: &str = "SELECT DISTINCT ended.name FROM headrace.gateway AS ended \
    WHERE (ended.state <> 'live' OR ended.seen <= clock_timestamp() - interval '15 seconds') \
    AND ended.name NOT LIKE 'headrace %' \
    AND NOT EXISTS (SELECT FROM headrace.gateway AS live WHERE live.name = ended.name AND live.state = 'live' \
        AND live.seen > clock_timestamp() - interval '15 seconds') ORDER BY ended.name";

/// A live gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    /// The name under which it takes holds.
    pub owner: Owner,
    /// The name that its operator gave it.
    pub name: String,
    /// The URL at which other gateways ask it. `None` if it has none.
    pub address: Option<String>,
}

/// The addresses in a database, on a connection of their own.
#[derive(Debug)]
pub struct PostgresAddresses {
    state: Mutex<AddressState>,
}

#[derive(Debug)]
struct AddressState {
    session: DatabaseSession,
    /// Whether the tables were found.
    is_ready: bool,
}

impl PostgresAddresses {
    /// Names the database. No connection is opened yet.
    pub fn new(url: Arc<PostgresUrl>) -> Self {
        Self { state: Mutex::new(AddressState { session: DatabaseSession::new(url), is_ready: false }) }
    }

    /// Stores the address of a live gateway.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached, or does not know the gateway.
    pub fn put(&self, owner: Owner, address: &str) -> Result<(), JournalError> {
        let mut state = locked(&self.state);
        state.ensure()?;
        let owner = owner.get().to_be_bytes().to_vec();
        let values = [(&owner as _, Type::BYTEA), (&address as _, Type::TEXT)];
        let put = state.session.run(LIMIT, async |client| client.execute_typed(PUT, &values).await);
        put.map(drop).map_err(journal_error)
    }

    /// Returns the live gateways with their addresses, by name.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached.
    pub fn live(&self) -> Result<Vec<GatewayAddress>, JournalError> {
        let mut state = locked(&self.state);
        state.ensure()?;
        let rows = state.session.run(LIMIT, async |client| client.query_typed(LIVE, &[]).await);
        let read = |row: &tokio_postgres::Row| {
            Ok(GatewayAddress { owner: owner_of(row.get(0))?, name: row.get(1), address: row.get(2) })
        };
        rows.map_err(journal_error)?.iter().map(read).collect()
    }

    /// Returns the names of the gateways that were live in the last seven days and are not now.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached.
    pub fn ended(&self) -> Result<Vec<String>, JournalError> {
        let mut state = locked(&self.state);
        state.ensure()?;
        let rows = state.session.run(LIMIT, async |client| client.query_typed(ENDED, &[]).await);
        Ok(rows.map_err(journal_error)?.iter().map(|row| row.get(0)).collect())
    }
}

impl AddressState {
    fn ensure(&mut self) -> Result<(), JournalError> {
        if self.is_ready {
            return Ok(());
        }
        schema::ensure(&mut self.session)?;
        let made = self.session.run(LIMIT, async |client| {
            client.batch_execute(LOCK).await?;
            client.batch_execute(TABLE).await?;
            client.batch_execute("COMMIT").await
        });
        if made.is_err() {
            self.session.close();
        }
        made.map_err(journal_error)?;
        self.is_ready = true;
        Ok(())
    }
}
