//! Fills an empty file of identities from other stores, in one transaction.

use headrace_identity::{IdentityContents, StoreError};

use super::account_rows::put_account;
use super::changes::{add_key, put_org, put_project};
use super::detail_rows::put_uses;
use super::documents::put_document;
use super::operators::add_operator;
use super::rows::{RowFailure, corrupt};
use super::tier_rows::{put_tier, put_tier_of};
use super::{SqliteKeyStore, end, log};

impl SqliteKeyStore {
    /// Fills an empty file. All of it is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Duplicate`] if the file has identities already. [`StoreError::Corrupt`] if the audit log does not
    /// have the same end afterwards. After an error, the file is as before.
    pub fn fill(&self, contents: &IdentityContents) -> Result<(), StoreError> {
        self.write("copying identities", async |connection| {
            let taken = "SELECT 1 FROM orgs UNION ALL SELECT 1 FROM operators UNION ALL SELECT 1 FROM audit \
                         UNION ALL SELECT 1 FROM secret_check";
            if sqlx::query(taken).fetch_optional(&mut *connection).await?.is_some() {
                return Err(RowFailure::Store(StoreError::Duplicate { what: "set of identities" }));
            }
            sqlx::query("INSERT INTO secret_check (only, value) VALUES (1, ?)")
                .bind(contents.secret_check.as_slice())
                .execute(&mut *connection)
                .await?;
            for tier in &contents.directory.tiers {
                put_tier(&mut *connection, tier).await?;
            }
            for org in &contents.directory.orgs {
                put_org(&mut *connection, org).await?;
                put_tier_of(&mut *connection, "org", org.id.as_str(), org.tier.as_ref()).await?;
            }
            for project in &contents.directory.projects {
                put_project(&mut *connection, project).await?;
                put_tier_of(&mut *connection, "project", project.id.as_str(), project.tier.as_ref()).await?;
            }
            for key in &contents.directory.keys {
                add_key(&mut *connection, key).await?;
            }
            for account in &contents.directory.accounts {
                put_account(&mut *connection, account).await?;
            }
            put_uses(&mut *connection, &contents.uses).await?;
            for operator in &contents.operators {
                add_operator(&mut *connection, operator).await?;
            }
            for row in &contents.audit {
                log(&mut *connection, row.entry.clone()).await?;
            }
            for document in &contents.documents {
                put_document(&mut *connection, document).await?;
            }
            for (row, act) in &contents.announced {
                let insert = sqlx::query("INSERT INTO announced (seq, act) VALUES (?, ?)");
                let insert = insert.bind(i64::try_from(*row).unwrap_or(i64::MAX)).bind(act);
                insert.execute(&mut *connection).await?;
            }
            if end(&mut *connection).await? != contents.audit_end() {
                return Err(corrupt("the audit log", "its copy has another end"));
            }
            Ok(())
        })
    }
}
