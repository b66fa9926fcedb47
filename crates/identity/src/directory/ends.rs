//! Directory queries beside authentication: when a key stops being valid, whether there is more than one organisation,
//! and the principals of users that an identity provider vouches for.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use headrace_domain::{KeyId, UnixNanos};

use super::Directory;
use crate::user_grant::token_user_id;
use crate::{AddressList, EndpointAccess, IdentityError, Principal, UserGrant};

/// When a key stops being valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEnd {
    /// Only when it is revoked.
    Open,
    /// At this time, or earlier if it is revoked.
    At(UnixNanos),
    /// The key was already revoked.
    Revoked,
}

impl Directory {
    /// When a key stops being valid: also [`KeyEnd::Revoked`] while its owner, or the user of a token with this id, is not
    /// active. `None` if no key has this id, as for a caller inside this process.
    pub fn key_end(&self, id: &KeyId) -> Option<KeyEnd> {
        let records = self.records.read();
        let accounts = &records.accounts;
        let Some(key) = records.keys.get(id) else {
            return accounts.token_user(id).filter(|user| !user.is_active()).map(|_| KeyEnd::Revoked);
        };
        let record = &key.record;
        if accounts.is_inactive(record.details.owner.as_deref()) {
            return Some(KeyEnd::Revoked);
        }
        Some(match (record.revoked, record.expires) {
            (Some(_), _) => KeyEnd::Revoked,
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
        let UserGrant { user, org, project, models, limits, expires } = grant;
        let records = self.records.read();
        let found = records.projects.get(project);
        let found = found.ok_or_else(|| IdentityError::UnknownProject(project.clone()))?;
        if let Some(org) = org.as_ref().filter(|org| **org != found.org) {
            return Err(IdentityError::ProjectOfAnotherOrg { project: project.clone(), org: org.clone() });
        }
        let org = records.orgs.get(&found.org);
        let org = org.ok_or_else(|| IdentityError::UnknownOrg(found.org.clone()))?;
        let key = token_user_id(&org.id, &user.issuer, &user.subject);
        let key = key.ok_or(IdentityError::Invalid { field: "subject", why: "gives no id" })?;
        let known = records.accounts.token_user(&key);
        if let Some(known) = known.filter(|known| !known.is_active()) {
            return Err(IdentityError::InactiveUser(known.id.to_string()));
        }
        let mut principal = Principal {
            org: org.id.clone(),
            project: found.id.clone(),
            key,
            name: user.subject.to_string(),
            user: Some(Arc::clone(user)),
            models: models.clone(),
            endpoints: EndpointAccess::All,
            regions: org.regions.clone(),
            org_regions: org.regions.clone(),
            secret_number: 0,
            limits: *limits,
            project_limits: found.limits,
            org_limits: org.limits,
            expires: Some(*expires),
            allowed_ips: AddressList::default(),
            tier: None,
        };
        let owner = known.map(|known| known.id.as_str());
        records.assigned_tiers(&principal, None, owner)?.narrow(&mut principal);
        Ok(principal)
    }

    /// A number that grows with each change of organisations, projects and keys that a principal depends on. Read it
    /// before a principal is built: the principal is current while the number is the same.
    pub fn principals_version(&self) -> u64 {
        self.entries.version()
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::{OrgId, ProjectId, Region, Residency, TokenUser};

    use super::*;
    use crate::{HashSecret, MemoryKeyStore, ModelAccess, RateLimits};

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
