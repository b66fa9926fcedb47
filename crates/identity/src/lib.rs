//! Maps a credential to a principal and the principal's entitlements: orgs, projects, API keys, operators, the audit
//! log. Knows nothing of HTTP status codes, money or SQL. A [`KeyStore`] keeps what must outlive the process.

mod account;
mod account_store;
mod address_list;
mod audit;
mod contents;
mod credential;
mod credential_kind;
mod directory;
mod document_store;
mod error;
mod first_token;
mod key_details;
mod key_use;
mod memory;
mod operators;
mod principal;
mod record;
mod role;
mod secret;
mod store;
mod tier;
mod tier_entitlements;
mod tier_store;
mod user_grant;
mod user_roles;

pub use account::{
    AccountId, AccountKind, AccountRecord, GroupProfile, GroupRecord, ScimCredentialRecord, ScimSubject,
    ServiceAccountRecord, StoredAccount, UserEmail, UserLogin, UserProfile, UserRecord,
};
pub use account_store::AccountStore;
pub use address_list::{AddressList, AddressRange};
pub use audit::{AuditChecker, AuditEntry, AuditHash, AuditHashError, AuditRow, AuditSummary};
pub use contents::IdentityContents;
pub use credential::{MAX_TOKEN_BYTES, credential};
pub use credential_kind::{CredentialKind, is_token};
pub use directory::{Directory, KeyEnd, Revocation, TokenUse};
pub use document_store::{DocumentStore, DocumentWriter, NewDocument, NumberedDocument};
pub use error::{AuthRefusal, IdentityError, StoreError};
pub use first_token::FirstToken;
pub use key_details::{KeyChange, KeyDetailStore, KeyDetails};
pub use key_use::KeyUse;
pub use memory::MemoryKeyStore;
pub use operators::{OperatorId, OperatorRecord, OperatorScope, OperatorStore, Operators, StoredOperator};
pub use principal::{EndpointAccess, EntitlementRefusal, ModelAccess, Principal, RateLimits, may_use};
pub use record::{KeyRecord, NewKey, OrgRecord, ProjectRecord};
pub use role::Role;
pub use secrecy::{ExposeSecret, SecretString};
pub use secret::{HashSecret, KeyHash, is_strong, is_well_formed};
pub use store::{
    ActLock, DirectoryChanges, KeyStore, NotedRevocation, RotatedSecret, StoredDirectory, StoredKey,
};
pub use tier::{TierHolder, TierRecord, TierRules};
pub use tier_entitlements::{TierBound, TierEntitlements};
pub use tier_store::TierStore;
pub use user_grant::{ServiceAccountGrant, UserGrant};
pub use user_roles::UserRoles;
