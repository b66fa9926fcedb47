//! SQLite implementations of the seams that `identity`, `ledger`, `objects` and `trace` define. [`Storage`] opens them by
//! URL, or the ones of a database that several programs share. Knows no HTTP and no engine.

pub mod answers;
pub mod backup;
pub mod contents;
pub mod disk;
mod forget;
mod grouped;
mod outbox;
mod pair;
mod sealing;
mod secret_series;
mod secrets;
mod series_names;
mod sqlite;
mod statement_error;
mod storage;
mod transfer;
mod url;

pub mod files;
pub mod identity;
pub mod journal;
pub mod late;
pub mod objects;
pub mod trace;
pub mod usage;

pub use forget::ForgottenRecords;
pub use headrace_postgres::{GatewayAddress, OwnerSource, PostgresAddresses, SetupLock};
pub use outbox::SqliteOutbox;
pub use sealing::{SETTING as SECRET_FILE_SETTING, SealError, SealKeyId, SecretSealer, StoredSecret};
pub use secrets::{SHARED_SECRETS, SecretBytes};
pub use series_names::{MAX_SERIES_SECRETS, RECEIPT_KEYS, is_of_series, series_name};
pub use sqlite::CommitDurability;
pub use storage::{IdentityStores, OpenedLedger, Storage, StorageReader, StoreName, StorePlace};
pub use transfer::{CopiedObjects, TransferError, TransferReport};
pub use url::{StorageUrl, StorageUrlError};
