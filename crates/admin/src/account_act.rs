//! Commands about users, service accounts, groups and SCIM credentials as serializable data. Contains no decisions.

use headrace_domain::{OrgId, ProjectId, TierName};
use headrace_identity::{
    AccountId, AccountRecord, Role, ScimCredentialRecord, ScimSubject, UserEmail, UserLogin, UserProfile,
};
use serde::{Deserialize, Serialize};

use crate::secret_text::SecretText;

/// A command about accounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum AccountAct {
    /// Lists users, service accounts, groups or SCIM credentials.
    List {
        /// The kind.
        kind: ListedAccounts,
        /// Only those of this organisation.
        #[serde(default)]
        org: Option<OrgId>,
    },
    /// Creates a user.
    CreateUser {
        /// The organisation.
        org: OrgId,
        /// Name, addresses and role.
        profile: Box<UserProfile>,
    },
    /// Changes a user.
    ChangeUser {
        /// The user.
        id: AccountId,
        /// The change.
        change: UserChange,
    },
    /// Creates a service account.
    CreateServiceAccount {
        /// The project.
        project: ProjectId,
        /// The name, unique in the organisation.
        name: String,
    },
    /// Activates or deactivates a user or a service account.
    SetActive {
        /// The account.
        id: AccountId,
        /// Whether its keys, tokens and sessions work from now on.
        active: bool,
    },
    /// Removes a user, a service account or a group.
    Remove {
        /// The account.
        id: AccountId,
    },
    /// Changes what a group gives its members.
    MapGroup {
        /// The group.
        id: AccountId,
        /// The change.
        change: GroupMapping,
    },
    /// Creates a SCIM credential.
    CreateScim {
        /// The organisation whose users and groups it keeps.
        org: OrgId,
        /// The issuer of the users' tokens.
        #[serde(default)]
        issuer: Option<String>,
        /// The attribute that is the subject of the tokens.
        #[serde(default)]
        subject: ScimSubject,
    },
    /// Revokes a SCIM credential.
    RevokeScim {
        /// The credential.
        id: AccountId,
    },
}

/// The reply to a command about accounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "done", content = "of", rename_all = "snake_case")]
pub enum AccountReply {
    /// Accounts, by id.
    Listed(Vec<AccountRecord>),
    /// An account was created or changed.
    Set(Box<AccountRecord>),
    /// An account was activated or deactivated.
    Active {
        /// The account.
        id: AccountId,
        /// Whether its keys, tokens and sessions work now.
        active: bool,
    },
    /// An account was removed, or a SCIM credential was revoked.
    Removed(AccountId),
    /// A SCIM credential was created. Only this reply shows its secret.
    ScimCreated {
        /// The credential.
        credential: ScimCredentialRecord,
        /// The secret.
        secret: SecretText,
    },
}

/// The kind of accounts that a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListedAccounts {
    /// Users.
    Users,
    /// Service accounts.
    ServiceAccounts,
    /// Groups.
    Groups,
    /// SCIM credentials.
    ScimCredentials,
}

/// A change of a user. An absent field stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserChange {
    /// The new name.
    pub name: Option<String>,
    /// The new name for display. Empty to remove it.
    pub display_name: Option<String>,
    /// The new e-mail address. It replaces all addresses. Empty to remove them.
    pub email: Option<String>,
    /// The new id at the identity provider. Empty to remove it.
    pub external_id: Option<String>,
    /// The new issuer and subject of the user's tokens. Both empty to remove them.
    pub login: Option<UserLogin>,
    /// The new role. `Some(None)` to remove it.
    pub role: Option<Option<Role>>,
}

impl UserChange {
    /// Changes a profile.
    pub fn apply(&self, profile: &mut UserProfile) {
        let Self { name, display_name, email, external_id, login, role } = self.clone();
        let or_none = |text: String| Some(text).filter(|text| !text.is_empty());
        if let Some(name) = name {
            profile.name = name;
        }
        if let Some(text) = display_name {
            profile.display_name = or_none(text);
        }
        if let Some(value) = email {
            let email = or_none(value).map(|value| UserEmail { value, kind: None, primary: true });
            profile.emails = email.into_iter().collect();
        }
        if let Some(text) = external_id {
            profile.external_id = or_none(text);
        }
        if let Some(login) = login {
            let is_empty = login.issuer.is_empty() && login.subject.is_empty();
            profile.login = (!is_empty).then_some(login);
        }
        if let Some(role) = role {
            profile.role = role;
        }
    }
}

/// A change of what a group gives its members. An absent field stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupMapping {
    /// The new role. `Some(None)` for none.
    pub role: Option<Option<Role>>,
    /// The new tier. `Some(None)` for none.
    pub tier: Option<Option<TierName>>,
}
