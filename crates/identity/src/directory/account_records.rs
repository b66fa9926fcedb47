//! Accounts in memory, and what they decide about keys and tokens. Knows no store and no clock.

use std::collections::{BTreeMap, HashMap, HashSet};

use headrace_domain::{KeyId, OrgId, TierName};

use crate::user_grant::token_user_id;
use crate::{
    AccountId, AccountKind, AccountRecord, GroupRecord, KeyHash, Role, ScimCredentialRecord,
    ServiceAccountRecord, StoredAccount, UserLogin, UserRecord,
};

/// All accounts by id, removed ones among them.
#[derive(Default)]
pub(super) struct AccountRecords {
    pub(super) users: BTreeMap<AccountId, UserRecord>,
    pub(super) service_accounts: BTreeMap<AccountId, ServiceAccountRecord>,
    pub(super) groups: BTreeMap<AccountId, GroupRecord>,
    pub(super) credentials: BTreeMap<AccountId, (KeyHash, ScimCredentialRecord)>,
    /// The users by the ids of their tokens. A user that was not removed takes the place of a removed one.
    token_users: HashMap<KeyId, AccountId>,
    /// The users by issuer and subject, in all organisations, removed ones among them.
    logins: HashMap<UserLogin, HashSet<AccountId>>,
    /// The users by organisation and lower-case name, without removed ones.
    names: HashMap<(OrgId, String), AccountId>,
    /// The groups of each user.
    groups_of: HashMap<AccountId, HashSet<AccountId>>,
}

impl AccountRecords {
    /// Adds or replaces an account. Returns the ids of the users and service accounts whose keys it concerns.
    pub(super) fn put(&mut self, account: StoredAccount) -> Vec<AccountId> {
        let StoredAccount { hash, record } = account;
        let id = record.id().clone();
        match record {
            AccountRecord::User(user) => {
                self.index_user(&user);
                self.users.insert(id.clone(), user);
                vec![id]
            }
            AccountRecord::ServiceAccount(account) => {
                self.service_accounts.insert(id.clone(), account);
                vec![id]
            }
            AccountRecord::Group(group) => self.put_group(id, group),
            AccountRecord::ScimCredential(credential) => {
                if let Some(hash) = hash {
                    self.credentials.insert(id, (hash, credential));
                }
                Vec::new()
            }
        }
    }

    fn index_user(&mut self, user: &UserRecord) {
        let lower = |user: &UserRecord| (user.org.clone(), user.profile.name.to_lowercase());
        if let Some(before) = self.users.get(&user.id) {
            let name = lower(before);
            if self.names.get(&name) == Some(&user.id) {
                self.names.remove(&name);
            }
            if let Some(token) = token_id(before)
                && self.token_users.get(&token) == Some(&user.id)
            {
                self.token_users.remove(&token);
            }
            if let Some(login) = &before.profile.login
                && let Some(users) = self.logins.get_mut(login)
            {
                users.remove(&user.id);
            }
        }
        if let Some(login) = &user.profile.login {
            self.logins.entry(login.clone()).or_default().insert(user.id.clone());
        }
        if user.removed.is_none() {
            self.names.insert(lower(user), user.id.clone());
        }
        let Some(token) = token_id(user) else { return };
        let has_other = self.token_users.get(&token).and_then(|id| self.users.get(id));
        if user.removed.is_none() || has_other.is_none_or(|other| other.removed.is_some()) {
            self.token_users.insert(token, user.id.clone());
        }
    }

    fn put_group(&mut self, id: AccountId, group: GroupRecord) -> Vec<AccountId> {
        let before = self.groups.get(&id);
        let mut concerned: HashSet<AccountId> = HashSet::new();
        if let Some(before) = before {
            concerned.extend(before.profile.members.iter().cloned());
        }
        for member in &concerned {
            if let Some(groups) = self.groups_of.get_mut(member) {
                groups.remove(&id);
            }
        }
        if group.removed.is_none() {
            for member in &group.profile.members {
                self.groups_of.entry(member.clone()).or_default().insert(id.clone());
                concerned.insert(member.clone());
            }
        }
        let has_tier = |group: &GroupRecord| group.profile.tier.is_some();
        let restricts = has_tier(&group) || before.is_some_and(has_tier);
        self.groups.insert(id, group);
        if restricts { concerned.into_iter().collect() } else { Vec::new() }
    }

    /// Whether the owner of a key is an account that is not active. `false` for other owners.
    pub(super) fn is_inactive(&self, owner: Option<&str>) -> bool {
        let Some(owner) = owner.filter(|owner| owner.contains('_')) else { return false };
        match (self.users.get(owner), self.service_accounts.get(owner)) {
            (Some(user), _) => !user.is_active(),
            (None, Some(account)) => !account.is_active(),
            (None, None) => false,
        }
    }

    /// Whether the user of tokens with this id, or the service account with it, is not active.
    pub(super) fn is_inactive_holder(&self, id: &KeyId) -> bool {
        match (self.token_user(id), self.service_accounts.get(id.as_str())) {
            (Some(user), _) => !user.is_active(),
            (None, Some(account)) => !account.is_active(),
            (None, None) => false,
        }
    }

    /// The service account with this id (`svc_…`), or with this name in an organisation, unless it was removed.
    pub(super) fn service_account(&self, named: &str, org: Option<&OrgId>) -> Option<&ServiceAccountRecord> {
        let found = if named.starts_with(AccountKind::ServiceAccount.prefix()) {
            self.service_accounts.get(named)
        } else {
            // Names are unique within an organisation alone.
            let org = org?;
            self.service_accounts
                .values()
                .find(|account| account.name == named && account.org == *org && account.removed.is_none())
        };
        found.filter(|account| account.removed.is_none() && org.is_none_or(|org| account.org == *org))
    }

    /// The user whose tokens have this id.
    pub(super) fn token_user(&self, id: &KeyId) -> Option<&UserRecord> {
        self.token_users.get(id).and_then(|user| self.users.get(user))
    }

    /// Returns whether the organisations that `counts` accepts have users with this login, and none of them is active.
    pub(super) fn is_deprovisioned(&self, login: &UserLogin, counts: &dyn Fn(&OrgId) -> bool) -> bool {
        let users = self.logins.get(login).into_iter().flatten().filter_map(|id| self.users.get(id));
        let mut users = users.filter(|user| counts(&user.org)).peekable();
        users.peek().is_some() && !users.any(UserRecord::is_active)
    }

    /// The user of an organisation with this login.
    pub(super) fn user_with_login(&self, org: &OrgId, login: &UserLogin) -> Option<&UserRecord> {
        self.token_user(&token_user_id(org, &login.issuer, &login.subject)?)
    }

    /// The user with this name in an organisation, in any case, if it was not removed.
    pub(super) fn user_named(&self, org: &OrgId, name: &str) -> Option<&UserRecord> {
        let id = self.names.get(&(org.clone(), name.to_lowercase()))?;
        self.users.get(id)
    }

    /// The groups of a user, by id.
    pub(super) fn groups_of(&self, user: &str) -> Vec<&GroupRecord> {
        let ids = self.groups_of.get(user).into_iter().flatten();
        let mut groups: Vec<_> = ids.filter_map(|id| self.groups.get(id)).collect();
        groups.sort_by(|one, other| one.id.cmp(&other.id));
        groups
    }

    /// The tiers of the groups of a key's owner.
    pub(super) fn tiers_of(&self, owner: Option<&str>) -> Vec<&TierName> {
        let Some(owner) = owner.filter(|owner| owner.starts_with(AccountKind::User.prefix())) else {
            return Vec::new();
        };
        self.groups_of(owner).into_iter().filter_map(|group| group.profile.tier.as_ref()).collect()
    }

    /// The members of the groups with a tier.
    pub(super) fn under(&self, tier: &TierName) -> HashSet<AccountId> {
        let of_tier = self.groups_with(tier);
        of_tier.flat_map(|group| group.profile.members.iter().cloned()).collect()
    }

    /// The groups with a tier, without removed ones.
    pub(super) fn groups_with<'a>(&'a self, tier: &'a TierName) -> impl Iterator<Item = &'a GroupRecord> {
        let groups = self.groups.values().filter(|group| group.removed.is_none());
        groups.filter(move |group| group.profile.tier.as_ref() == Some(tier))
    }

    /// The role of an active user in its organisation: the most powerful of its own and those of its groups.
    pub(super) fn role_of(&self, user: &UserRecord) -> Option<Role> {
        if !user.is_active() {
            return None;
        }
        let of_groups = self.groups_of(user.id.as_str()).into_iter().filter_map(|group| group.profile.role);
        // The first role is the most powerful.
        user.profile.role.into_iter().chain(of_groups).min()
    }
}

/// The id of a user's tokens. `None` if the user has none.
fn token_id(user: &UserRecord) -> Option<KeyId> {
    let login = user.profile.login.as_ref()?;
    token_user_id(&user.org, &login.issuer, &login.subject)
}
