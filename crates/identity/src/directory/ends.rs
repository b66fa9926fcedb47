//! Directory queries beside authentication: when a key stops being valid, whether there is more than one organisation,
//! and the principals of users that an identity provider vouches for. The directory keeps no record of such users.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use headrace_domain::{KeyId, UnixNanos};

use super::Directory;
use crate::{EndpointAccess, IdentityError, Principal, UserGrant};

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
    /// When a key stops being valid. `None` if no key has this id, as for a caller inside this process.
    pub fn key_end(&self, id: &KeyId) -> Option<KeyEnd> {
        let records = self.records.read();
        let record = &records.keys.get(id)?.record;
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
    /// [`IdentityError::UnknownProject`], [`IdentityError::UnknownOrg`] or [`IdentityError::ProjectOfAnotherOrg`].
    pub fn user_principal(&self, grant: &UserGrant) -> Result<Principal, IdentityError> {
        let UserGrant { key, user, org, project, models, limits, expires } = grant;
        let records = self.records.read();
        let found = records.projects.get(project);
        let found = found.ok_or_else(|| IdentityError::UnknownProject(project.clone()))?;
        if let Some(org) = org.as_ref().filter(|org| **org != found.org) {
            return Err(IdentityError::ProjectOfAnotherOrg { project: project.clone(), org: org.clone() });
        }
        let org = records.orgs.get(&found.org);
        let org = org.ok_or_else(|| IdentityError::UnknownOrg(found.org.clone()))?;
        Ok(Principal {
            org: org.id.clone(),
            project: found.id.clone(),
            key: key.clone(),
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
        })
    }

    /// A number that grows with each change of organisations, projects and keys that a principal depends on. Read it
    /// before a principal is built: the principal is current while the number is the same.
    pub fn principals_version(&self) -> u64 {
        self.entries.version()
    }
}
