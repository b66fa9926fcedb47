//! Accounts behind their seam.

use headrace_identity::{AccountStore, AuditEntry, StoreError, StoredAccount};

use super::account_rows::change_account;
use super::{SqliteKeyStore, log};

impl AccountStore for SqliteKeyStore {
    fn put_account(&self, account: &StoredAccount, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("writing an account", async |connection| {
            change_account(connection, account).await?;
            log(connection, audit.clone()).await
        })
    }
}
