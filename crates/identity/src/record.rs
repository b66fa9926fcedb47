//! Organisations, projects and keys as administrators see them. Holds no secret and no hash of a secret: those stay
//! between the directory and its store.

use headrace_domain::{KeyId, OrgId, ProjectId, RecordRules, Residency, TierName, UnixNanos};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::{EndpointAccess, IdentityError, KeyDetails, ModelAccess, RateLimits};

/// An organisation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrgRecord {
    /// The organisation's id.
    pub id: OrgId,
    /// Limits that all its projects share.
    pub limits: RateLimits,
    /// The regions where its calls may be processed.
    #[serde(default)]
    pub regions: Residency,
    /// When the organisation was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// Its tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierName>,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectRecord {
    /// The project's id, unique across organisations.
    pub id: ProjectId,
    /// The organisation that the project belongs to.
    pub org: OrgId,
    /// Limits that all its keys share.
    pub limits: RateLimits,
    /// When the project was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// Its tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierName>,
    /// What it sets of its record policy.
    #[serde(default, skip_serializing_if = "RecordRules::is_default")]
    pub records: RecordRules,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// The key's public id.
    pub id: KeyId,
    /// The organisation that pays for the key's calls.
    pub org: OrgId,
    /// The project that the key belongs to.
    pub project: ProjectId,
    /// The key's name, as its creator chose it.
    pub name: String,
    /// The part of the secret that may be shown: its last four characters. Empty for a short secret.
    pub hint: String,
    /// Models that the key may ask for.
    pub models: ModelAccess,
    /// Endpoints that the key may call.
    pub endpoints: EndpointAccess,
    /// The key's own limits.
    pub limits: RateLimits,
    /// The regions where its calls may be processed, within what its organisation allows.
    #[serde(default)]
    pub regions: Residency,
    /// The number of its secret. The first one is 1, and each rotation makes another one.
    #[serde(default = "first_secret")]
    pub secret_number: u32,
    /// Until when the secret before the last rotation is valid. `None` if there is none.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub former_until: Option<UnixNanos>,
    /// When the key was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// When the key expires.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub expires: Option<UnixNanos>,
    /// When the key was revoked. `None` if it was not.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub revoked: Option<UnixNanos>,
    /// Its owner, and the addresses from which it may be used.
    #[serde(flatten)]
    pub details: KeyDetails,
    /// When it was last used, to about a minute. `None` if it never was.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub last_used: Option<UnixNanos>,
    /// Its tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierName>,
}

const fn first_secret() -> u32 {
    1
}

/// The parameters of a new API key.
#[derive(Debug)]
pub struct NewKey {
    /// The organisation that pays for the key's calls.
    pub org: OrgId,
    /// The project that the key belongs to.
    pub project: ProjectId,
    /// The key's name: 1 to 128 bytes without control characters.
    pub name: String,
    /// Models that the key may ask for.
    pub models: ModelAccess,
    /// Endpoints that the key may call.
    pub endpoints: EndpointAccess,
    /// The key's own limits.
    pub limits: RateLimits,
    /// The regions where its calls may be processed. They must lie within what its organisation allows.
    pub regions: Residency,
    /// When the key expires. Must be later than now.
    pub expires: Option<UnixNanos>,
    /// The secret, if the operator chooses one. Otherwise a random one is generated.
    pub secret: Option<SecretString>,
    /// Its owner, and the addresses from which it may be used.
    pub details: KeyDetails,
    /// Its tier.
    pub tier: Option<TierName>,
}

impl NewKey {
    /// A key without restrictions, without limits of its own and without an expiry.
    pub fn new(org: OrgId, project: ProjectId, name: &str) -> Self {
        Self {
            org,
            project,
            name: name.to_owned(),
            models: ModelAccess::All,
            endpoints: EndpointAccess::All,
            limits: RateLimits::default(),
            regions: Residency::Anywhere,
            expires: None,
            secret: None,
            details: KeyDetails::default(),
            tier: None,
        }
    }
}

/// Maximum bytes of a key's name and of an actor.
const MAX_TEXT_BYTES: usize = 128;

/// Checks a name that people choose and that appears in listings and in the audit log.
pub(crate) fn check_text(field: &'static str, text: &str) -> Result<(), IdentityError> {
    if text.is_empty() || text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
        return Err(IdentityError::Invalid {
            field,
            why: "must have 1 to 128 bytes and no control characters",
        });
    }
    Ok(())
}

/// Checks the owner of a key.
pub(crate) fn check_details(details: &KeyDetails) -> Result<(), IdentityError> {
    details.owner.as_deref().map_or(Ok(()), |owner| check_text("owner", owner))
}
