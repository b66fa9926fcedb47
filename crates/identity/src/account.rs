//! Accounts: users, service accounts and groups of organisations, and the credentials of identity providers that keep them
//! by SCIM. Plain data. Must not know who may change it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use headrace_domain::{OrgId, ProjectId, TierName, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::{IdentityError, KeyHash, Role};

/// Maximum length of an account's texts in bytes.
const MAX_TEXT_BYTES: usize = 256;
/// Maximum number of e-mail addresses of a user.
const MAX_EMAILS: usize = 16;
/// Maximum number of members of a group.
const MAX_MEMBERS: usize = 50_000;

/// The kinds of accounts, with the prefixes of their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccountKind {
    /// A person.
    User,
    /// A program of a project.
    ServiceAccount,
    /// A set of users.
    Group,
    /// The credential of an identity provider.
    ScimCredential,
}

impl AccountKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::User, Self::ServiceAccount, Self::Group, Self::ScimCredential];

    /// The first characters of an id.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::User => "usr_",
            Self::ServiceAccount => "svc_",
            Self::Group => "grp_",
            Self::ScimCredential => "scim_",
        }
    }

    /// The kind in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::ServiceAccount => "service account",
            Self::Group => "group",
            Self::ScimCredential => "SCIM credential",
        }
    }
}

/// The id of an account, such as `usr_…`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccountId(Arc<str>);

impl AccountId {
    /// Parses an id: the prefix of a kind, and 1 to 59 letters and digits.
    ///
    /// # Errors
    /// [`IdentityError::Invalid`] if the text has another form.
    pub fn new(text: &str) -> Result<Self, IdentityError> {
        let rest = AccountKind::ALL.into_iter().find_map(|kind| text.strip_prefix(kind.prefix()));
        let rest = rest.filter(|rest| (1..=59).contains(&rest.len()));
        if rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
            return Ok(Self(text.into()));
        }
        let why = "must be `usr_`, `svc_`, `grp_` or `scim_`, and letters and digits";
        Err(IdentityError::Invalid { field: "id", why })
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The kind of the account.
    pub fn kind(&self) -> AccountKind {
        let of = |kind: &AccountKind| self.0.starts_with(kind.prefix());
        AccountKind::ALL.into_iter().find(of).unwrap_or(AccountKind::User)
    }
}

impl TryFrom<String> for AccountId {
    type Error = IdentityError;
    fn try_from(text: String) -> Result<Self, IdentityError> {
        Self::new(&text)
    }
}

impl std::str::FromStr for AccountId {
    type Err = IdentityError;
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        Self::new(text)
    }
}

impl From<AccountId> for String {
    fn from(id: AccountId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl std::borrow::Borrow<str> for AccountId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountId({})", self.0)
    }
}

/// A user at an identity provider, as its tokens name the user.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserLogin {
    /// The `iss` of the tokens.
    pub issuer: String,
    /// The `sub` of the tokens.
    pub subject: String,
}

/// An e-mail address of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserEmail {
    /// The address.
    pub value: String,
    /// The kind of address, such as `work`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether it is the preferred one.
    #[serde(default)]
    pub primary: bool,
}

/// What may be set of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserProfile {
    /// The name, unique in the organisation, without regard to case.
    pub name: String,
    /// The name for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The given name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_name: Option<String>,
    /// The family name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family_name: Option<String>,
    /// The full name, as the identity provider writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formatted_name: Option<String>,
    /// The e-mail addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emails: Vec<UserEmail>,
    /// The user's id at the identity provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The issuer and subject of the user's tokens. Unique in the organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<UserLogin>,
    /// The user's own role in the organisation. Groups may give another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Whether the user's keys, tokens and sessions work.
    pub active: bool,
}

impl UserProfile {
    /// An active user without further data.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            display_name: None,
            given_name: None,
            family_name: None,
            formatted_name: None,
            emails: Vec::new(),
            external_id: None,
            login: None,
            role: None,
            active: true,
        }
    }

    /// The preferred e-mail address, or the first one.
    pub fn email(&self) -> Option<&str> {
        let preferred = self.emails.iter().find(|email| email.primary).or(self.emails.first());
        preferred.map(|email| email.value.as_str())
    }

    pub(crate) fn check(&self) -> Result<(), IdentityError> {
        check_words("name", &self.name)?;
        for (field, text) in [
            ("display_name", &self.display_name),
            ("given_name", &self.given_name),
            ("family_name", &self.family_name),
            ("formatted_name", &self.formatted_name),
            ("external_id", &self.external_id),
        ] {
            text.as_deref().map_or(Ok(()), |text| check_words(field, text))?;
        }
        if self.emails.len() > MAX_EMAILS {
            return Err(IdentityError::Invalid { field: "emails", why: "must be at most 16" });
        }
        for email in &self.emails {
            check_words("emails", &email.value)?;
            email.kind.as_deref().map_or(Ok(()), |kind| check_words("emails", kind))?;
        }
        if let Some(UserLogin { issuer, subject }) = &self.login {
            check_words("issuer", issuer)?;
            check_words("subject", subject)?;
        }
        Ok(())
    }
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    /// The user's id.
    pub id: AccountId,
    /// The organisation that the user belongs to.
    pub org: OrgId,
    /// Name, addresses, role and state.
    #[serde(flatten)]
    pub profile: UserProfile,
    /// How often the user was written. From 1.
    pub version: u64,
    /// When the user was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// When the user was last changed.
    #[serde(with = "headrace_domain::rfc3339")]
    pub changed: UnixNanos,
    /// When the user was removed. `None` if it was not.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub removed: Option<UnixNanos>,
    /// Whether the first token of the user made the record, and no identity provider or operator has created the user
    /// since.
    #[serde(default, skip_serializing_if = "is_false")]
    pub by_token: bool,
    /// When a token of the user was last accepted, to the minute. `None` if none was, and in stores.
    #[serde(default, with = "headrace_domain::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<UnixNanos>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl UserRecord {
    /// A user that is created now.
    pub const fn new(id: AccountId, org: OrgId, profile: UserProfile, now: UnixNanos) -> Self {
        let (created, changed) = (now, now);
        Self {
            id,
            org,
            profile,
            version: 1,
            created,
            changed,
            removed: None,
            by_token: false,
            last_seen: None,
        }
    }

    /// Whether the user's keys, tokens and sessions work.
    pub const fn is_active(&self) -> bool {
        self.profile.active && self.removed.is_none()
    }
}

/// A service account: a program that owns keys of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccountRecord {
    /// The service account's id.
    pub id: AccountId,
    /// The organisation of the project.
    pub org: OrgId,
    /// The project that it belongs to.
    pub project: ProjectId,
    /// The name, unique in the organisation.
    pub name: String,
    /// Whether its keys work.
    pub active: bool,
    /// How often it was written. From 1.
    pub version: u64,
    /// When it was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// When it was last changed.
    #[serde(with = "headrace_domain::rfc3339")]
    pub changed: UnixNanos,
    /// When it was removed. `None` if it was not.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub removed: Option<UnixNanos>,
}

impl ServiceAccountRecord {
    /// Whether its keys work.
    pub const fn is_active(&self) -> bool {
        self.active && self.removed.is_none()
    }
}

/// What may be set of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupProfile {
    /// The name, unique in the organisation.
    pub name: String,
    /// The group's id at the identity provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The users in the group.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub members: BTreeSet<AccountId>,
    /// The role in the organisation that the group gives its members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The tier that restricts the members' keys and tokens, besides the tiers of keys, projects and organisations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierName>,
}

impl GroupProfile {
    /// A group without members, role and tier.
    pub fn new(name: &str) -> Self {
        let members = BTreeSet::new();
        Self { name: name.to_owned(), external_id: None, members, role: None, tier: None }
    }

    pub(crate) fn check(&self) -> Result<(), IdentityError> {
        check_words("name", &self.name)?;
        self.external_id.as_deref().map_or(Ok(()), |id| check_words("external_id", id))?;
        match self.members.len() {
            0..=MAX_MEMBERS => Ok(()),
            _ => Err(IdentityError::Invalid { field: "members", why: "must be at most 50000" }),
        }
    }
}

/// A group of users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The group's id.
    pub id: AccountId,
    /// The organisation that the group belongs to.
    pub org: OrgId,
    /// Name, members, role and tier.
    #[serde(flatten)]
    pub profile: GroupProfile,
    /// How often the group was written. From 1.
    pub version: u64,
    /// When the group was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// When the group was last changed.
    #[serde(with = "headrace_domain::rfc3339")]
    pub changed: UnixNanos,
    /// When the group was removed. `None` if it was not.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub removed: Option<UnixNanos>,
}

/// The attribute of a SCIM user that is the subject of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScimSubject {
    /// `externalId`.
    #[default]
    ExternalId,
    /// `userName`.
    UserName,
}

/// The credential with which an identity provider keeps the users and groups of an organisation, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScimCredentialRecord {
    /// The credential's id.
    pub id: AccountId,
    /// The organisation whose users and groups it keeps.
    pub org: OrgId,
    /// The part of the secret that may be shown: its last four characters.
    pub hint: String,
    /// The issuer of the users' tokens. `None` if the users have no tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// The attribute that is the subject of a user's tokens.
    #[serde(default)]
    pub subject: ScimSubject,
    /// When the credential was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// When the credential was revoked. `None` if it was not.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub revoked: Option<UnixNanos>,
}

/// An account of any kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AccountRecord {
    /// A user.
    User(UserRecord),
    /// A service account.
    ServiceAccount(ServiceAccountRecord),
    /// A group.
    Group(GroupRecord),
    /// A SCIM credential.
    ScimCredential(ScimCredentialRecord),
}

/// An account as a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAccount {
    /// The keyed hash of a SCIM credential's secret.
    pub hash: Option<KeyHash>,
    /// The rest.
    pub record: AccountRecord,
}

impl AccountRecord {
    /// The account's id.
    pub const fn id(&self) -> &AccountId {
        match self {
            Self::User(user) => &user.id,
            Self::ServiceAccount(account) => &account.id,
            Self::Group(group) => &group.id,
            Self::ScimCredential(credential) => &credential.id,
        }
    }

    /// The organisation that the account belongs to.
    pub const fn org(&self) -> &OrgId {
        match self {
            Self::User(user) => &user.org,
            Self::ServiceAccount(account) => &account.org,
            Self::Group(group) => &group.org,
            Self::ScimCredential(credential) => &credential.org,
        }
    }

    /// How often the account was written. A write of version n + 1 replaces version n only.
    pub const fn version(&self) -> u64 {
        match self {
            Self::User(user) => user.version,
            Self::ServiceAccount(account) => account.version,
            Self::Group(group) => group.version,
            Self::ScimCredential(credential) => match credential.revoked {
                None => 1,
                Some(_) => 2,
            },
        }
    }

    /// The name that must be unique among accounts of the same kind and organisation, in lower case. `None` for a removed
    /// account, and for a credential.
    pub fn unique_name(&self) -> Option<String> {
        let name = match self {
            Self::User(UserRecord { profile, removed: None, .. }) => &profile.name,
            Self::ServiceAccount(ServiceAccountRecord { name, removed: None, .. }) => name,
            Self::Group(GroupRecord { profile, removed: None, .. }) => &profile.name,
            _ => return None,
        };
        Some(name.to_lowercase())
    }

    /// Organisation, issuer and subject of a user as one text that must be unique. `None` without a login, and for a removed
    /// user.
    pub fn unique_login(&self) -> Option<String> {
        match self {
            Self::User(UserRecord {
                org,
                profile: UserProfile { login: Some(login), .. },
                removed: None,
                ..
            }) => Some(format!("{org}\n{}\n{}", login.issuer, login.subject)),
            _ => None,
        }
    }

    /// The tier of a group.
    pub const fn tier(&self) -> Option<&TierName> {
        match self {
            Self::Group(GroupRecord { profile, removed: None, .. }) => profile.tier.as_ref(),
            _ => None,
        }
    }
}

/// Checks a text of an account.
fn check_words(field: &'static str, text: &str) -> Result<(), IdentityError> {
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
        return Err(IdentityError::Invalid {
            field,
            why: "must have 1 to 256 bytes, no control characters, and not only spaces",
        });
    }
    Ok(())
}

/// Checks the name of a service account.
pub(crate) fn check_account_name(name: &str) -> Result<(), IdentityError> {
    check_words("name", name)
}
