//! The errors of this crate: a refused credential, a refused administrative request, a failed store. No error ever
//! contains a presented credential or a part of one.

use std::fmt;

use headrace_domain::{Code, KeyId, OrgId, ProjectId, Residency, TierName};

use crate::CredentialKind;

/// Why a credential was refused. The variants are for traces and metrics. Callers see only [`AuthRefusal::public`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuthRefusal {
    /// No credential was presented.
    Missing,
    /// The presented credential cannot be a key.
    Malformed,
    /// The presented credential is of a kind that API callers do not have.
    OtherKind(CredentialKind),
    /// `Authorization` holds a key-shaped value without a scheme. Whether the key exists was not checked.
    NoScheme,
    /// Two different credentials were presented in one request.
    Conflicting,
    /// No such key exists.
    Unknown,
    /// The key was revoked.
    Revoked,
    /// The key has expired.
    Expired,
    /// The key is valid, and may not be used from the caller's address.
    Address,
    /// The user or service account that owns the key is not active.
    OwnerInactive,
}

impl AuthRefusal {
    /// The rule that refused, for traces and metrics.
    pub const fn rule(self) -> Code {
        match self {
            Self::Missing => Code::CredentialMissing,
            Self::Malformed | Self::OtherKind(_) => Code::CredentialMalformed,
            Self::NoScheme => Code::CredentialWithoutScheme,
            Self::Conflicting => Code::CredentialConflicting,
            Self::Unknown => Code::KeyUnknown,
            Self::Revoked => Code::KeyRevoked,
            Self::Expired => Code::KeyExpired,
            Self::Address => Code::AddressNotAllowed,
            Self::OwnerInactive => Code::KeyOwnerInactive,
        }
    }

    /// The message that the caller sees. The same for unknown, revoked and malformed keys. The form of a credential of
    /// another kind decides its message.
    pub const fn public(self) -> &'static str {
        match self {
            Self::Missing => {
                "No API key was given. Send it as `Authorization: Bearer sk-...` or as `x-api-key: sk-...`."
            }
            Self::NoScheme => {
                "`Authorization` has no scheme before the key. Send it as `Authorization: Bearer sk-...`."
            }
            Self::Conflicting => {
                "Two different credentials were given. Send one, in `Authorization` or in `x-api-key`."
            }
            Self::Malformed | Self::Unknown | Self::Revoked | Self::OwnerInactive => {
                "The API key is not valid."
            }
            Self::OtherKind(CredentialKind::OperatorKey) => {
                "The credential is an operator's key (`hrop-…`), which only the admin listener takes. Send an API key (`sk-…`) or a JWT."
            }
            Self::OtherKind(CredentialKind::ScimCredential) => {
                "The credential is a SCIM credential (`hrscim-…`), which only `/scim/v2` of the admin listener takes. Send an API key (`sk-…`) or a JWT."
            }
            Self::OtherKind(_) => {
                "The credential is of no kind that this server knows. Send an API key (`sk-…`) or a JWT, which has two dots."
            }
            Self::Expired => "The API key has expired. Ask for a new one.",
            Self::Address => {
                "The API key may not be used from your address: it is not in the key's `allowed_ips`."
            }
        }
    }
}

impl fmt::Display for AuthRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.public())
    }
}

impl std::error::Error for AuthRefusal {}

/// Why a store operation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// The store could not be reached, read or written.
    Unavailable {
        /// The operation that failed.
        doing: &'static str,
        /// The store's own error message.
        why: String,
    },
    /// The store's contents contradict themselves.
    Corrupt {
        /// The row or table.
        what: String,
        /// The contradiction.
        why: String,
    },
    /// A record cannot be removed, because others refer to it.
    InUse {
        /// The record.
        what: &'static str,
    },
    /// Another process changed the record since it was read.
    Conflict {
        /// The kind of object.
        what: &'static str,
    },
    /// The store was written by a newer version of the program.
    Newer {
        /// The format version of the store.
        found: i64,
        /// The newest format version that this program knows.
        known: i64,
    },
    /// The object to insert exists already.
    Duplicate {
        /// The kind of object.
        what: &'static str,
    },
    /// The object to change does not exist.
    NotFound {
        /// The kind of object.
        what: &'static str,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { doing, why } => write!(f, "the identity store failed while {doing}: {why}"),
            Self::Corrupt { what, why } => write!(f, "stored data is damaged at {what}: {why}"),
            Self::Newer { found, known } => write!(
                f,
                "the identity store has format {found}, and this program knows formats up to {known}: \
                 run the newer program that wrote it"
            ),
            Self::Duplicate { what } => write!(f, "such a {what} is there already"),
            Self::Conflict { what } => write!(f, "the {what} was changed by another process"),
            Self::InUse { what } => write!(f, "the {what} is in use"),
            Self::NotFound { what } => write!(f, "there is no such {what}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Why an administrator's request was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityError {
    /// The store failed.
    Store(StoreError),
    /// No such organisation.
    UnknownOrg(OrgId),
    /// No such project.
    UnknownProject(ProjectId),
    /// No such key.
    UnknownKey(KeyId),
    /// No such user, service account, group or SCIM credential.
    UnknownAccount(String),
    /// The user is not active.
    InactiveUser(String),
    /// No such tier.
    UnknownTier(TierName),
    /// The tier is assigned, and cannot be removed.
    TierInUse {
        /// The tier.
        tier: TierName,
        /// What it is assigned to, in words.
        holders: String,
    },
    /// No such operator.
    UnknownOperator(String),
    /// The operator is the last owner. Without one, no operator could administer operators.
    LastOwner,
    /// The project belongs to an organisation other than the one named.
    ProjectOfAnotherOrg {
        /// The project.
        project: ProjectId,
        /// The organisation that was named.
        org: OrgId,
    },
    /// The object to create exists already.
    Exists {
        /// The object, with its id if it has one.
        what: String,
    },
    /// A field is invalid.
    Invalid {
        /// The field's name.
        field: &'static str,
        /// What the value must be.
        why: &'static str,
    },
    /// The key was rotated a short time ago, and the secret before that is still valid.
    Rotated {
        /// For how many seconds.
        seconds: u64,
    },
    /// A key may narrow the regions of its organisation, but never widen them.
    Widens {
        /// The regions requested for the key.
        key: Residency,
        /// The regions that the organisation allows.
        org: Residency,
    },
    /// The hash secret is not the one that the stored keys were hashed with.
    WrongSecret,
    /// The operating system provided no randomness.
    Randomness,
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::UnknownOrg(id) => write!(f, "there is no organisation `{id}`"),
            Self::UnknownProject(id) => write!(f, "there is no project `{id}`"),
            Self::UnknownKey(id) => write!(f, "there is no key `{id}`"),
            Self::UnknownAccount(id) => write!(f, "there is no account `{id}`"),
            Self::InactiveUser(id) => write!(f, "user `{id}` is not active"),
            Self::UnknownTier(name) => write!(f, "there is no tier `{name}`"),
            Self::TierInUse { tier, holders } => {
                write!(
                    f,
                    "tier `{tier}` is assigned to {holders}, and cannot be removed before it is assigned to none"
                )
            }
            Self::UnknownOperator(id) => write!(f, "there is no operator `{id}`"),
            Self::LastOwner => f.write_str("this is the last owner, and only an owner can create another"),
            Self::ProjectOfAnotherOrg { project, org } => {
                write!(f, "project `{project}` does not belong to organisation `{org}`")
            }
            Self::Exists { what } => write!(f, "{what} is there already"),
            Self::Invalid { field, why } => write!(f, "`{field}` {why}"),
            Self::Rotated { seconds } => write!(
                f,
                "the key was rotated before, and its former secret works for another {seconds} s: wait so long, or rotate with an \
                 overlap of 0, which ends both former secrets at once"
            ),
            Self::Widens { key, org } => write!(
                f,
                "the organisation is pinned to {org}, and a key of it cannot be worked on in {key}: name only regions of the \
                 organisation's"
            ),
            Self::WrongSecret => f.write_str(
                "the hash secret is not the one that the stored keys were hashed with: \
                 restore the secret file that belongs to this data directory",
            ),
            Self::Randomness => f.write_str("the operating system gave no randomness for a new secret"),
        }
    }
}

impl std::error::Error for IdentityError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for IdentityError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
