//! Directory queries beside authentication: when a key stops being valid, whether there is more than one organisation,
//! and the principals of users that an identity provider vouches for.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use headrace_domain::{KeyId, OrgId, ProjectId, TokenUser, UnixNanos};

use super::Directory;
use super::records::Records;
use crate::user_grant::token_user_id;
use crate::{
    AccountId, AccountKind, AddressList, EndpointAccess, IdentityError, ModelAccess, OrgRecord, Principal,
    ProjectRecord, RateLimits, ServiceAccountGrant, UserGrant,
};

/// When a key stops being valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEnd {
    /// Only when it is revoked.
    Open,
    /// At this time, or earlier if it is revoked.
    At(UnixNanos),
    /// The key was already revoked.
    Revoked,
    /// The user or service account that the key or the token belongs to is not active.
    Inactive,
}

impl Directory {
    /// When a key stops being valid: [`KeyEnd::Inactive`] while its owner, the user of a token with this id, or the service
    /// account with this id, is not active. `None` if no key has this id, as for a caller inside this process.
    pub fn key_end(&self, id: &KeyId) -> Option<KeyEnd> {
        let records = self.records.read();
        let accounts = &records.accounts;
        let Some(key) = records.keys.get(id) else {
            return accounts.is_inactive_holder(id).then_some(KeyEnd::Inactive);
        };
        let record = &key.record;
        let is_inactive = accounts.is_inactive(record.details.owner.as_deref());
        Some(match (record.revoked, record.expires) {
            (Some(_), _) => KeyEnd::Revoked,
            (None, _) if is_inactive => KeyEnd::Inactive,
            (None, Some(end)) => KeyEnd::At(end),
            (None, None) => KeyEnd::Open,
        })
    }

    /// Number of revocations in force that are not yet written to their keys.
    pub fn revocations_waiting(&self) -> usize {
        self.waiting_count.load(Relaxed)
    }

    /// Number of revocations in this process so far. While it does not change, the results of [`Directory::key_end`]
    /// for existing keys do not change either.
    pub fn revocations(&self) -> u64 {
        self.revocations.load(Acquire)
    }

    /// The organisation of a caller: of a key, a token's user with a record, or a service account. `None` if none of them
    /// has this id.
    pub fn org_of_caller(&self, id: &KeyId) -> Option<OrgId> {
        let records = self.records.read();
        let accounts = &records.accounts;
        let of_key = records.keys.get(id).map(|key| &key.record.org);
        let of_user = || accounts.token_user(id).map(|user| &user.org);
        let of_account = || accounts.service_accounts.get(id.as_str()).map(|account| &account.org);
        of_key.or_else(of_user).or_else(of_account).cloned()
    }

    /// The organisation of an account, also of a removed one. `None` if there is no such account.
    pub fn org_of_account(&self, id: &AccountId) -> Option<OrgId> {
        let records = self.records.read();
        let accounts = &records.accounts;
        match id.kind() {
            AccountKind::User => accounts.users.get(id).map(|user| user.org.clone()),
            AccountKind::ServiceAccount => {
                accounts.service_accounts.get(id).map(|account| account.org.clone())
            }
            AccountKind::Group => accounts.groups.get(id).map(|group| group.org.clone()),
            AccountKind::ScimCredential => {
                accounts.credentials.get(id).map(|(_, credential)| credential.org.clone())
            }
        }
    }

    /// Returns `true` if there is more than one organisation.
    pub fn has_several_orgs(&self) -> bool {
        self.records.read().orgs.len() > 1
    }

    /// Returns the principal of a user, with the limits and regions that its organisation and project have now.
    ///
    /// # Errors
    /// [`IdentityError::InactiveUser`] if the user has a record that is not active.
    /// [`IdentityError::UnknownProject`], [`IdentityError::UnknownOrg`] or [`IdentityError::ProjectOfAnotherOrg`].
    pub fn user_principal(&self, grant: &UserGrant) -> Result<Principal, IdentityError> {
        let records = self.records.read();
        let place = records.place_of(&grant.project, grant.org.as_ref())?;
        let UserGrant { user, models, limits, expires, .. } = grant;
        let key = token_user_id(&place.0.id, &user.issuer, &user.subject);
        let key = key.ok_or(IdentityError::Invalid { field: "subject", why: "gives no id" })?;
        let known = records.accounts.token_user(&key);
        if let Some(known) = known.filter(|known| !known.is_active()) {
            return Err(IdentityError::InactiveUser(known.id.to_string()));
        }
        let owner = known.map(|known| known.id.as_str());
        let holder = GrantHolder { key, name: &user.subject, user, owner };
        records.granted(place, holder, (models, *limits), *expires)
    }

    /// Returns the principal of a service account that a client certificate names, with the limits and regions that its
    /// organisation and project have now. Its key is the id of the service account.
    ///
    /// # Errors
    /// [`IdentityError::UnknownAccount`], also for a name without an organisation.
    /// [`IdentityError::InactiveUser`] if the service account is not active. [`IdentityError::UnknownProject`].
    pub fn service_account_principal(&self, grant: &ServiceAccountGrant) -> Result<Principal, IdentityError> {
        let ServiceAccountGrant { user, account, org, models, limits } = grant;
        let records = self.records.read();
        let found = records.accounts.service_account(account, org.as_ref());
        let found = found.ok_or_else(|| IdentityError::UnknownAccount(account.clone()))?;
        if !found.is_active() {
            return Err(IdentityError::InactiveUser(found.id.to_string()));
        }
        let place = records.place_of(&found.project, Some(&found.org))?;
        let key = KeyId::new(found.id.as_str());
        let key = key.map_err(|_| IdentityError::Invalid { field: "id", why: "is too long" })?;
        let holder = GrantHolder { key, name: &found.name, user, owner: Some(found.id.as_str()) };
        // The handshake has checked how long the certificate is valid.
        records.granted(place, holder, (models, *limits), UnixNanos::new(u64::MAX))
    }

    /// A number that grows with each change of organisations, projects and keys that a principal depends on. Read it
    /// before a principal is built: the principal is current while the number is the same.
    pub fn principals_version(&self) -> u64 {
        self.entries.version()
    }
}

/// The caller that a grant is for.
struct GrantHolder<'a> {
    key: KeyId,
    name: &'a str,
    user: &'a Arc<TokenUser>,
    /// The account whose groups restrict the caller.
    owner: Option<&'a str>,
}

impl Records {
    /// The organisation and the project of a grant.
    fn place_of(
        &self,
        project: &ProjectId,
        org: Option<&OrgId>,
    ) -> Result<(&OrgRecord, &ProjectRecord), IdentityError> {
        let found = self.projects.get(project);
        let found = found.ok_or_else(|| IdentityError::UnknownProject(project.clone()))?;
        if let Some(org) = org.filter(|org| **org != found.org) {
            return Err(IdentityError::ProjectOfAnotherOrg { project: project.clone(), org: org.clone() });
        }
        let org = self.orgs.get(&found.org);
        Ok((org.ok_or_else(|| IdentityError::UnknownOrg(found.org.clone()))?, found))
    }

    /// The principal of a caller without a key.
    fn granted(
        &self,
        (org, project): (&OrgRecord, &ProjectRecord),
        GrantHolder { key, name, user, owner }: GrantHolder<'_>,
        (models, limits): (&ModelAccess, RateLimits),
        expires: UnixNanos,
    ) -> Result<Principal, IdentityError> {
        let mut principal = Principal {
            org: org.id.clone(),
            project: project.id.clone(),
            key,
            name: name.to_owned(),
            user: Some(Arc::clone(user)),
            models: models.clone(),
            endpoints: EndpointAccess::All,
            regions: org.regions.clone(),
            org_regions: org.regions.clone(),
            secret_number: 0,
            limits,
            project_limits: project.limits,
            org_limits: org.limits,
            expires: Some(expires),
            allowed_ips: AddressList::default(),
            tier: None,
            records: project.records,
        };
        self.assigned_tiers(&principal, None, owner)?.narrow(&mut principal);
        Ok(principal)
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::{Region, Residency};

    use super::*;
    use crate::{HashSecret, MemoryKeyStore};

    const NOW: UnixNanos = UnixNanos::new(1_000);

    #[test]
    fn a_user_has_the_limits_and_regions_of_its_place_as_they_are_now() {
        let directory = Directory::open(Arc::new(MemoryKeyStore::new()), HashSecret::new([1; 32])).unwrap();
        let [acme, other] = ["acme", "other"].map(|name| OrgId::new(name).unwrap());
        let lab = ProjectId::new("lab").unwrap();
        let none = RateLimits::default();
        for org in [&acme, &other] {
            directory.create_org(org.clone(), none, "test", NOW).unwrap();
        }
        directory.create_project(lab.clone(), acme.clone(), none, "test", NOW).unwrap();
        let user = TokenUser { issuer: "https://login".into(), subject: "alice".into(), role: None };
        let grant = UserGrant {
            user: Arc::new(user),
            org: None,
            project: lab.clone(),
            models: ModelAccess::All,
            limits: RateLimits { concurrency: Some(2), ..none },
            expires: UnixNanos::new(9_000),
        };
        let before = directory.principals_version();
        let principal = directory.user_principal(&grant).unwrap();
        assert_eq!((&principal.org, &principal.project, principal.name.as_str()), (&acme, &lab, "alice"));
        assert_eq!((principal.limits.concurrency, principal.expires), (Some(2), Some(UnixNanos::new(9_000))));
        assert_eq!((principal.regions, principal.project_limits), (Residency::Anywhere, none));
        assert_eq!(directory.principals_version(), before, "reading changes nothing");
        let eu = Residency::only([Region::new("eu").unwrap()]);
        let few = RateLimits { requests_per_minute: Some(5), ..none };
        directory.set_org_regions(&acme, eu.clone(), "test", NOW).unwrap();
        let between = directory.principals_version();
        directory.set_project_limits(&lab, few, "test", NOW).unwrap();
        assert!(before < between && between < directory.principals_version());
        let principal = directory.user_principal(&grant).unwrap();
        assert_eq!((principal.regions, principal.project_limits), (eu, few));
        for (grant, expected) in [
            (UserGrant { org: Some(acme), ..grant.clone() }, None),
            (
                UserGrant { org: Some(other.clone()), ..grant.clone() },
                Some(IdentityError::ProjectOfAnotherOrg { project: lab, org: other }),
            ),
            (
                UserGrant { project: ProjectId::new("none").unwrap(), ..grant.clone() },
                Some(IdentityError::UnknownProject(ProjectId::new("none").unwrap())),
            ),
        ] {
            assert_eq!(directory.user_principal(&grant).err(), expected);
        }
    }
}
