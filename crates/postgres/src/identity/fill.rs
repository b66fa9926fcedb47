//! Fills empty tables of identities from other stores, in one transaction.

use headrace_identity::{IdentityContents, StoreError};
use tokio_postgres::types::Type;

use super::accounts::put_account;
use super::details::put_uses;
use super::documents::put_document;
use super::operators::add_operator;
use super::tiers::put_tier;
use super::{PostgresKeyStore, add_key, exists, log, put_org, put_project};

impl PostgresKeyStore {
    /// Fills empty tables. All of it is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Duplicate`] if the tables have identities already. [`StoreError::Corrupt`] if the audit log does not
    /// have the same end afterwards. After an error, the tables are as before.
    pub fn fill(&self, contents: &IdentityContents) -> Result<(), StoreError> {
        self.write("copying identities", async |client| {
            for table in ["orgs", "operators", "audit", "secret_check"] {
                if exists(client, &format!("SELECT FROM headrace.{table} LIMIT 1"), &[]).await? {
                    return Err(StoreError::Duplicate { what: "set of identities" }.into());
                }
            }
            let check = contents.secret_check.as_slice();
            let insert = "INSERT INTO headrace.secret_check VALUES (0, $1)";
            client.execute_typed(insert, &[(&check, Type::BYTEA)]).await?;
            for tier in &contents.directory.tiers {
                put_tier(client, tier).await?;
            }
            for org in &contents.directory.orgs {
                put_org(client, org).await?;
            }
            for project in &contents.directory.projects {
                put_project(client, project).await?;
            }
            for key in &contents.directory.keys {
                add_key(client, key).await?;
            }
            for account in &contents.directory.accounts {
                put_account(client, account, true).await?;
            }
            put_uses(client, &contents.uses).await?;
            for operator in &contents.operators {
                add_operator(client, operator).await?;
            }
            for row in &contents.audit {
                log(client, &row.entry).await?;
            }
            for document in &contents.documents {
                put_document(client, document).await?;
            }
            for (row, act) in &contents.announced {
                let row = i64::try_from(*row).unwrap_or(i64::MAX);
                let insert = "INSERT INTO headrace.announced VALUES ($1, $2)";
                client.execute_typed(insert, &[(&row, Type::INT8), (act, Type::TEXT)]).await?;
            }
            let end = super::end(client, "").await?;
            if end != contents.audit_end() {
                let (what, why) = ("the audit log".to_owned(), "its copy has another end".to_owned());
                return Err(StoreError::Corrupt { what, why }.into());
            }
            Ok(())
        })
    }
}
