//! PostgreSQL behind the seams that several gateways share: the ledger's journal, keys, operators, the audit log, shares
//! in rate limits, and what clients store. Every connection blocks its thread, has
//! its own deadline for each statement, and works through a pooler in transaction mode. Knows no HTTP, no engine, and not
//! what the rows mean.

mod addresses;
mod answers;
mod files;
mod fill;
mod forget;
mod history;
mod identity;
mod journal;
mod object_schema;
mod objects;
mod outbox;
mod pool;
mod rows;
mod schema;
mod secrets;
mod session;
mod setup;
mod shares;
mod tls;
mod url;
mod values;

pub use addresses::{GatewayAddress, PostgresAddresses};
pub use answers::PostgresAnswers;
pub use files::PostgresFiles;
pub use fill::PostgresJournalFiller;
pub use forget::forget;
pub use history::PostgresJournalHistory;
pub use identity::PostgresKeyStore;
pub use journal::{PostgresJournal, PostgresPresence};
pub use objects::{OwnerSource, PostgresObjects};
pub use outbox::{OutboxContents, PostgresOutbox};
pub use secrets::{PostgresSecrets, SecretRow};
pub use setup::SetupLock;
pub use shares::PostgresShares;
pub use url::{PostgresUrl, PostgresUrlError};
