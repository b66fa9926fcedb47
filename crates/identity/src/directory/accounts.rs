//! Users, service accounts and groups: reading and changing them. An account that is not active ends its keys, tokens and
//! sessions in all processes that share the store. Must not know SCIM.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Release;

use headrace_domain::{OrgId, ProjectId, UnixNanos};

use super::account_words::{group_words, user_words};
use super::records::{Entry, Records};
use super::{Directory, IdentityError, entry};
use crate::account::check_account_name;
use crate::record::check_text;
use crate::{
    AccountId, AccountKind, AccountRecord, AuditEntry, GroupProfile, GroupRecord, KeyDetails, Role,
    ServiceAccountRecord, StoreError, StoredAccount, UserLogin, UserProfile, UserRecord, UserRoles, secret,
};

/// Characters of an account's id after its prefix: 119 bits.
const ID_CHARS: usize = 20;
/// Maximum number of users of an organisation, removed ones among them.
const MAX_USERS_PER_ORG: usize = 100_000;
/// Maximum number of service accounts or groups of an organisation, removed ones among them.
const MAX_OTHERS_PER_ORG: usize = 10_000;
/// How often a change is tried again after another process changed the same account.
const MAX_CONFLICTS: usize = 32;

/// Reads.
impl Directory {
    /// The users of an organisation, or all of them, ordered by id, with the last use of their tokens. Removed ones are not
    /// among them.
    pub fn users(&self, org: Option<&OrgId>) -> Vec<UserRecord> {
        let records = self.records.read();
        let users = records.accounts.users.values().filter(|user| user.removed.is_none());
        let users = users.filter(|user| org.is_none_or(|org| user.org == *org));
        users.map(|user| records.seen(user)).collect()
    }

    /// The user with this id, with the last use of its tokens. `None` if there is none, or it was removed.
    pub fn user(&self, id: &AccountId) -> Option<UserRecord> {
        let records = self.records.read();
        let user = records.accounts.users.get(id).filter(|user| user.removed.is_none());
        user.map(|user| records.seen(user))
    }

    /// The user with this name in an organisation, without regard to case.
    pub fn user_named(&self, org: &OrgId, name: &str) -> Option<UserRecord> {
        self.records.read().accounts.user_named(org, name).cloned()
    }

    /// The role of an active user in its organisation: the most powerful of its own and those of its groups. `None` if
    /// it has none, is not active or does not exist.
    pub fn role_of_user(&self, id: &AccountId) -> Option<Role> {
        let records = self.records.read();
        records.accounts.role_of(records.accounts.users.get(id)?)
    }

    /// The groups of a user, ordered by id.
    pub fn groups_of_user(&self, id: &AccountId) -> Vec<GroupRecord> {
        self.records.read().accounts.groups_of(id.as_str()).into_iter().cloned().collect()
    }

    /// The service accounts of an organisation, or all of them, ordered by id. Removed ones are not among them.
    pub fn service_accounts(&self, org: Option<&OrgId>) -> Vec<ServiceAccountRecord> {
        let records = self.records.read();
        let all = records.accounts.service_accounts.values().filter(|account| account.removed.is_none());
        all.filter(|account| org.is_none_or(|org| account.org == *org)).cloned().collect()
    }

    /// The service account with this id. `None` if there is none, or it was removed.
    pub fn service_account(&self, id: &AccountId) -> Option<ServiceAccountRecord> {
        let records = self.records.read();
        records.accounts.service_accounts.get(id).filter(|account| account.removed.is_none()).cloned()
    }

    /// The groups of an organisation, or all of them, ordered by id. Removed ones are not among them.
    pub fn groups(&self, org: Option<&OrgId>) -> Vec<GroupRecord> {
        let records = self.records.read();
        let groups = records.accounts.groups.values().filter(|group| group.removed.is_none());
        groups.filter(|group| org.is_none_or(|org| group.org == *org)).cloned().collect()
    }

    /// The group with this id. `None` if there is none, or it was removed.
    pub fn group(&self, id: &AccountId) -> Option<GroupRecord> {
        let records = self.records.read();
        records.accounts.groups.get(id).filter(|group| group.removed.is_none()).cloned()
    }
}

/// Changes. Each is durable, with its audit row, before it is in force here, and before it returns. They block.
impl Directory {
    /// Creates a user of an organisation. If a token has made a record of the same issuer and subject, that record becomes
    /// the user's.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], [`IdentityError::Exists`] if the name or the login is taken,
    /// [`IdentityError::Invalid`], or a store error.
    pub fn create_user(
        &self,
        org: OrgId,
        profile: UserProfile,
        actor: &str,
        now: UnixNanos,
    ) -> Result<UserRecord, IdentityError> {
        profile.check()?;
        let id = self.next_id(AccountKind::User, &org, actor)?;
        if let Some(taken) = self.take_over_token_user(&org, &profile, actor, now)? {
            return Ok(taken);
        }
        let user = UserRecord::new(id, org, profile, now);
        let record = AccountRecord::User(user.clone());
        let audit = entry(now, actor, "user.create", user.id.as_str(), user_words(&user));
        match self.put_account(StoredAccount { hash: None, record }, &audit) {
            Ok(()) => Ok(user),
            Err(exists @ IdentityError::Exists { .. }) => {
                // A token at another gateway may have made the record meanwhile.
                self.refresh()?;
                let UserRecord { org, profile, .. } = user;
                self.take_over_token_user(&org, &profile, actor, now)?.ok_or(exists)
            }
            Err(error) => Err(error),
        }
    }

    /// Changes a user. If the user is not active afterwards, no request authenticates with the user's keys, tokens and
    /// sessions from here on, and calls in flight end. `change` may run several times.
    ///
    /// # Errors
    /// [`IdentityError::UnknownAccount`], [`IdentityError::Exists`], [`IdentityError::Invalid`], an error of `change`, or
    /// a store error.
    pub fn change_user(
        &self,
        id: &AccountId,
        actor: &str,
        now: UnixNanos,
        change: impl Fn(&mut UserProfile) -> Result<(), IdentityError>,
    ) -> Result<UserRecord, IdentityError> {
        self.change_user_at(id, None, actor, now, change)
    }

    /// As [`Directory::change_user`], if the user has the version `expected`, or that is `None`.
    ///
    /// # Errors
    /// As for [`Directory::change_user`], and [`StoreError::Conflict`] for another version.
    pub fn change_user_at(
        &self,
        id: &AccountId,
        expected: Option<u64>,
        actor: &str,
        now: UnixNanos,
        change: impl Fn(&mut UserProfile) -> Result<(), IdentityError>,
    ) -> Result<UserRecord, IdentityError> {
        self.change(id, |records| {
            let before = records.accounts.users.get(id).filter(|user| user.removed.is_none());
            let before = before.ok_or_else(|| IdentityError::UnknownAccount(id.to_string()))?;
            check_version(expected, before.version, "user")?;
            let mut user = before.clone();
            change(&mut user.profile)?;
            user.profile.check()?;
            if user.profile == before.profile {
                return Ok((user, None));
            }
            let act = match (before.profile.active, user.profile.active) {
                (true, false) => "user.deactivate",
                (false, true) => "user.activate",
                _ => "user.change",
            };
            (user.version, user.changed) = (before.version.saturating_add(1), now);
            let audit = entry(now, actor, act, id.as_str(), user_words(&user));
            let record = AccountRecord::User(user.clone());
            Ok((user, Some((StoredAccount { hash: None, record }, audit))))
        })
    }

    /// Creates a service account of a project.
    ///
    /// # Errors
    /// [`IdentityError::UnknownProject`], [`IdentityError::Exists`] if the name is taken in the organisation,
    /// [`IdentityError::Invalid`], or a store error.
    pub fn create_service_account(
        &self,
        project: ProjectId,
        name: &str,
        actor: &str,
        now: UnixNanos,
    ) -> Result<ServiceAccountRecord, IdentityError> {
        check_account_name(name)?;
        let found = self.project(&project).ok_or_else(|| IdentityError::UnknownProject(project.clone()))?;
        let id = self.next_id(AccountKind::ServiceAccount, &found.org, actor)?;
        let account = ServiceAccountRecord {
            id,
            org: found.org,
            project,
            name: name.to_owned(),
            active: true,
            version: 1,
            created: now,
            changed: now,
            removed: None,
        };
        let detail = format!("org {}, project {}, name {name:?}", account.org, account.project);
        let audit = entry(now, actor, "service_account.create", account.id.as_str(), detail);
        let record = AccountRecord::ServiceAccount(account.clone());
        self.put_account(StoredAccount { hash: None, record }, &audit)?;
        Ok(account)
    }

    /// Creates a group of an organisation.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], [`IdentityError::UnknownTier`], [`IdentityError::UnknownAccount`] for a member that
    /// is no user of the organisation, [`IdentityError::Exists`], [`IdentityError::Invalid`], or a store error.
    pub fn create_group(
        &self,
        org: OrgId,
        profile: GroupProfile,
        actor: &str,
        now: UnixNanos,
    ) -> Result<GroupRecord, IdentityError> {
        profile.check()?;
        let id = self.next_id(AccountKind::Group, &org, actor)?;
        let group = GroupRecord { id, org, profile, version: 1, created: now, changed: now, removed: None };
        self.records.read().check_group(&group)?;
        let audit = entry(now, actor, "group.create", group.id.as_str(), group_words(&group));
        let record = AccountRecord::Group(group.clone());
        self.put_account(StoredAccount { hash: None, record }, &audit)?;
        Ok(group)
    }

    /// Changes a group, with effect on its members' roles and tiers. `change` may run several times.
    ///
    /// # Errors
    /// As for [`Directory::create_group`], and an error of `change`.
    pub fn change_group(
        &self,
        id: &AccountId,
        actor: &str,
        now: UnixNanos,
        change: impl Fn(&mut GroupProfile) -> Result<(), IdentityError>,
    ) -> Result<GroupRecord, IdentityError> {
        self.change_group_at(id, None, actor, now, change)
    }

    /// As [`Directory::change_group`], if the group has the version `expected`, or that is `None`.
    ///
    /// # Errors
    /// As for [`Directory::change_group`], and [`StoreError::Conflict`] for another version.
    pub fn change_group_at(
        &self,
        id: &AccountId,
        expected: Option<u64>,
        actor: &str,
        now: UnixNanos,
        change: impl Fn(&mut GroupProfile) -> Result<(), IdentityError>,
    ) -> Result<GroupRecord, IdentityError> {
        self.change(id, |records| {
            let before = records.accounts.groups.get(id).filter(|group| group.removed.is_none());
            let before = before.ok_or_else(|| IdentityError::UnknownAccount(id.to_string()))?;
            check_version(expected, before.version, "group")?;
            let mut group = before.clone();
            change(&mut group.profile)?;
            group.profile.check()?;
            if group.profile == before.profile {
                return Ok((group, None));
            }
            (group.version, group.changed) = (before.version.saturating_add(1), now);
            records.check_group(&group)?;
            let audit = entry(now, actor, "group.change", id.as_str(), group_words(&group));
            let record = AccountRecord::Group(group.clone());
            Ok((group, Some((StoredAccount { hash: None, record }, audit))))
        })
    }

    /// Activates or deactivates a user or a service account. From a deactivation on, no request authenticates with its
    /// keys, tokens and sessions, and calls in flight end. An activation lets its keys work again.
    ///
    /// # Errors
    /// [`IdentityError::UnknownAccount`], or a store error.
    pub fn set_account_active(
        &self,
        id: &AccountId,
        active: bool,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        if id.kind() == AccountKind::User {
            let set = |profile: &mut UserProfile| {
                profile.active = active;
                Ok(())
            };
            return self.change_user(id, actor, now, set).map(drop);
        }
        let act = if active { "service_account.activate" } else { "service_account.deactivate" };
        self.change_service_account(id, act, actor, now, |account| account.active = active)
    }

    /// Removes a user, a service account or a group. Its record stays in the store, so that its keys and tokens stay
    /// refused; lists do not show it.
    ///
    /// # Errors
    /// [`IdentityError::UnknownAccount`], or a store error.
    pub fn remove_account(&self, id: &AccountId, actor: &str, now: UnixNanos) -> Result<(), IdentityError> {
        match id.kind() {
            AccountKind::User => self.change(id, |records| {
                let user = records.accounts.users.get(id).filter(|user| user.removed.is_none());
                let mut user = user.cloned().ok_or_else(|| IdentityError::UnknownAccount(id.to_string()))?;
                (user.version, user.changed) = (user.version.saturating_add(1), now);
                (user.removed, user.profile.active) = (Some(now), false);
                let audit = entry(now, actor, "user.remove", id.as_str(), user_words(&user));
                Ok(((), Some((StoredAccount { hash: None, record: AccountRecord::User(user) }, audit))))
            }),
            AccountKind::Group => self.change(id, |records| {
                let group = records.accounts.groups.get(id).filter(|group| group.removed.is_none());
                let mut group =
                    group.cloned().ok_or_else(|| IdentityError::UnknownAccount(id.to_string()))?;
                (group.version, group.changed) = (group.version.saturating_add(1), now);
                group.removed = Some(now);
                let audit = entry(now, actor, "group.remove", id.as_str(), group_words(&group));
                Ok(((), Some((StoredAccount { hash: None, record: AccountRecord::Group(group) }, audit))))
            }),
            AccountKind::ServiceAccount => {
                let remove = |account: &mut ServiceAccountRecord| {
                    (account.removed, account.active) = (Some(now), false);
                };
                self.change_service_account(id, "service_account.remove", actor, now, remove)
            }
            AccountKind::ScimCredential => Err(IdentityError::UnknownAccount(id.to_string())),
        }
    }

    fn change_service_account(
        &self,
        id: &AccountId,
        act: &str,
        actor: &str,
        now: UnixNanos,
        change: impl Fn(&mut ServiceAccountRecord),
    ) -> Result<(), IdentityError> {
        self.change(id, |records| {
            let before = records.accounts.service_accounts.get(id).filter(|found| found.removed.is_none());
            let before = before.ok_or_else(|| IdentityError::UnknownAccount(id.to_string()))?;
            let mut account = before.clone();
            change(&mut account);
            if account == *before {
                return Ok(((), None));
            }
            (account.version, account.changed) = (before.version.saturating_add(1), now);
            let detail = format!("name {:?}", account.name);
            let audit = entry(now, actor, act, id.as_str(), detail);
            let record = AccountRecord::ServiceAccount(account);
            Ok(((), Some((StoredAccount { hash: None, record }, audit))))
        })
    }

    /// Makes the id of a new account of an organisation, if there is room for one.
    pub(super) fn next_id(
        &self,
        kind: AccountKind,
        org: &OrgId,
        actor: &str,
    ) -> Result<AccountId, IdentityError> {
        check_text("actor", actor)?;
        let records = self.records.read();
        if !records.orgs.contains_key(org) {
            return Err(IdentityError::UnknownOrg(org.clone()));
        }
        let accounts = &records.accounts;
        let (count, most) = match kind {
            AccountKind::User => {
                (accounts.users.values().filter(|of| of.org == *org).count(), MAX_USERS_PER_ORG)
            }
            AccountKind::ServiceAccount => {
                let all = accounts.service_accounts.values();
                (all.filter(|of| of.org == *org).count(), MAX_OTHERS_PER_ORG)
            }
            AccountKind::Group => {
                (accounts.groups.values().filter(|of| of.org == *org).count(), MAX_OTHERS_PER_ORG)
            }
            AccountKind::ScimCredential => (accounts.credentials.len(), MAX_OTHERS_PER_ORG),
        };
        if count >= most {
            return Err(IdentityError::Invalid { field: "org", why: "has as many accounts as it may have" });
        }
        AccountId::new(&secret::random_base62(kind.prefix(), ID_CHARS)?)
    }

    /// Changes an account: `change` reads the records and returns the new account, or `None` to leave it. Tried again if
    /// another process changed the account meanwhile.
    pub(super) fn change<T>(
        &self,
        id: &AccountId,
        change: impl Fn(&Records) -> Result<(T, Option<(StoredAccount, AuditEntry)>), IdentityError>,
    ) -> Result<T, IdentityError> {
        for _ in 0..MAX_CONFLICTS {
            let one_change = self.waiting.lock();
            let (value, put) = change(&self.records.read())?;
            let Some((account, audit)) = put else { return Ok(value) };
            check_text("actor", &audit.actor)?;
            match self.store_account(&account, &audit) {
                Err(IdentityError::Store(StoreError::Conflict { .. })) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    self.apply_account(account)?;
                    return Ok(value);
                }
            }
            drop(one_change);
            self.refresh()?;
        }
        let why = format!("`{id}` is changed by other processes all the time: try again");
        Err(StoreError::Unavailable { doing: "changing an account", why }.into())
    }

    /// Writes an account and applies it here.
    pub(super) fn put_account(
        &self,
        account: StoredAccount,
        audit: &AuditEntry,
    ) -> Result<(), IdentityError> {
        let _one_change = self.waiting.lock();
        self.store_account(&account, audit)?;
        self.apply_account(account)
    }

    fn store_account(&self, account: &StoredAccount, audit: &AuditEntry) -> Result<(), IdentityError> {
        self.store.put_account(account, audit).map_err(|error| match error {
            StoreError::Duplicate { .. } => {
                let kind = account.record.id().kind().name();
                IdentityError::Exists { what: format!("a {kind} with this name or login") }
            }
            error => error.into(),
        })
    }

    fn apply_account(&self, account: StoredAccount) -> Result<(), IdentityError> {
        let mut records = self.records.write();
        let concerned = records.accounts.put(account).into_iter().collect();
        self.entries.put(records.entries_owned_by(&concerned)?);
        // A reader that sees the new count also sees the change. Calls in flight check their keys again.
        self.revocations.fetch_add(1, Release);
        Ok(())
    }
}

impl UserRoles for Directory {
    fn role_of(&self, user: &AccountId) -> Option<Role> {
        self.role_of_user(user)
    }

    fn org_of(&self, user: &AccountId) -> Option<OrgId> {
        self.user(user).map(|user| user.org)
    }

    fn is_deprovisioned(&self, login: &UserLogin, counts: &dyn Fn(&OrgId) -> bool) -> bool {
        self.records.read().accounts.is_deprovisioned(login, counts)
    }

    fn has_org(&self, org: &OrgId) -> bool {
        self.org(org).is_some()
    }
}

impl Records {
    /// The entries of all keys that these accounts own.
    pub(super) fn entries_owned_by(&self, owners: &HashSet<AccountId>) -> Result<Vec<Entry>, IdentityError> {
        if owners.is_empty() {
            return Ok(Vec::new());
        }
        let mut entries = Vec::new();
        for key in self.keys.values() {
            if key.record.details.owner.as_deref().is_some_and(|owner| owners.contains(owner)) {
                entries.extend(self.entries_of_key(key)?);
            }
        }
        Ok(entries)
    }

    /// Checks that the owner of a key, if it is an account, is an active one of the key's organisation, and a service
    /// account one of its project.
    pub(super) fn check_owner(
        &self,
        details: &KeyDetails,
        org: &OrgId,
        project: &ProjectId,
    ) -> Result<(), IdentityError> {
        let Some(id) = details.owner.as_deref().and_then(|owner| AccountId::new(owner).ok()) else {
            return Ok(());
        };
        let fits = match id.kind() {
            AccountKind::User => {
                self.accounts.users.get(&id).is_some_and(|user| user.org == *org && user.is_active())
            }
            AccountKind::ServiceAccount => {
                let account = self.accounts.service_accounts.get(&id);
                account.is_some_and(|account| account.project == *project && account.is_active())
            }
            AccountKind::Group | AccountKind::ScimCredential => false,
        };
        if fits {
            return Ok(());
        }
        let why =
            "must be an active user of the key's organisation, or an active service account of its project";
        Err(IdentityError::Invalid { field: "owner", why })
    }

    fn check_group(&self, group: &GroupRecord) -> Result<(), IdentityError> {
        let GroupProfile { members, tier, .. } = &group.profile;
        if let Some(tier) = tier.as_ref().filter(|tier| !self.tiers.contains_key(tier)) {
            return Err(IdentityError::UnknownTier(tier.clone()));
        }
        let is_user =
            |id: &&AccountId| self.accounts.users.get(*id).is_some_and(|user| user.org == group.org);
        match members.iter().find(|id| !is_user(id)) {
            Some(id) => Err(IdentityError::UnknownAccount(id.to_string())),
            None => Ok(()),
        }
    }
}

fn check_version(expected: Option<u64>, version: u64, what: &'static str) -> Result<(), IdentityError> {
    match expected {
        Some(expected) if expected != version => Err(StoreError::Conflict { what }.into()),
        _ => Ok(()),
    }
}
