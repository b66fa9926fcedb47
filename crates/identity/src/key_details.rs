//! What an operator may set of a key besides its limits: its owner, and the addresses from which it may be used.

use headrace_domain::{KeyId, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::{AddressList, AuditEntry, KeyUse, StoreError};

/// Data of a key that does not identify it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyDetails {
    /// The person or team that the key belongs to: a name, or a user's id. `None` if unknown.
    pub owner: Option<String>,
    /// The addresses from which the key may be used.
    #[serde(skip_serializing_if = "AddressList::is_empty")]
    pub allowed_ips: AddressList,
}

impl KeyDetails {
    /// The details in words, for the audit log.
    pub(crate) fn words(&self) -> String {
        let owner =
            self.owner.as_ref().map_or_else(|| "no owner".to_owned(), |owner| format!("owner {owner:?}"));
        format!("{owner}, from {}", self.allowed_ips)
    }
}

/// A change of a key's details. An absent field stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyChange {
    /// The new owner. Empty to remove it.
    pub owner: Option<String>,
    /// The new addresses. They replace all addresses. An empty list allows every address.
    pub allowed_ips: Option<AddressList>,
}

impl KeyChange {
    /// Returns the details after the change.
    pub(crate) fn apply(self, before: &KeyDetails) -> KeyDetails {
        let KeyDetails { owner, allowed_ips } = before.clone();
        KeyDetails {
            owner: self.owner.map_or(owner, |owner| Some(owner).filter(|owner| !owner.is_empty())),
            allowed_ips: self.allowed_ips.unwrap_or(allowed_ips),
        }
    }
}

/// Stores details and uses of keys. Part of a [`crate::KeyStore`].
pub trait KeyDetailStore: Send + Sync {
    /// Changes a key's details. [`StoreError::NotFound`] if there is no such key.
    fn set_key_details(&self, id: &KeyId, details: &KeyDetails, audit: &AuditEntry)
    -> Result<(), StoreError>;

    /// Keeps when keys were used, unless a later use is stored. Is no change of the records, and has no audit row. A key
    /// that does not exist is passed over.
    fn put_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError>;

    /// The last uses of keys later than `since`, by any process.
    fn key_uses(&self, since: UnixNanos) -> Result<Vec<KeyUse>, StoreError>;
}
