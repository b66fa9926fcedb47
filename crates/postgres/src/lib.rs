//! PostgreSQL behind the seams that several gateways share: the ledger's journal, keys, operators, the audit log and shares in rate limits. Every connection blocks its thread, has
//! its own deadline for each statement, and works through a pooler in transaction mode. Knows no HTTP, no engine, and not
//! what the rows mean.

mod addresses;
mod fill;
mod history;
mod identity;
mod journal;
mod rows;
mod schema;
mod secrets;
mod session;
mod setup;
mod shares;
mod tls;
mod url;

pub use addresses::{GatewayAddress, PostgresAddresses};
pub use fill::PostgresJournalFiller;
pub use history::PostgresJournalHistory;
pub use identity::PostgresKeyStore;
pub use journal::{PostgresJournal, PostgresPresence};
pub use secrets::{PostgresSecrets, SecretRow};
pub use setup::SetupLock;
pub use shares::PostgresShares;
pub use url::{PostgresUrl, PostgresUrlError};
