//! Rotation: gives a key another secret, and lets the one before it work for a while. The key keeps its id, limits and
//! usage.

use std::time::Duration;

use headrace_domain::{KeyId, UnixNanos};
use secrecy::{ExposeSecret, SecretString};

use super::{Directory, IdentityError, entry};
use crate::record::check_text;
use crate::{KeyRecord, Principal, RotatedSecret, StoredKey, secret};

/// How long the secret before a rotation may be valid.
const MAX_OVERLAP: Duration = Duration::from_secs(365 * 24 * 3600);

impl Directory {
    /// Gives a key another secret, which is returned and stored nowhere else. The secret before it is valid for
    /// `overlap`; after 0, no request authenticates with it any more.
    ///
    /// # Errors
    /// [`IdentityError::UnknownKey`]. [`IdentityError::Invalid`] if the key was revoked or has expired, or `overlap` is
    /// longer than a year. [`IdentityError::Rotated`] if the secret before an earlier rotation is still valid and would
    /// end by this one, which only an `overlap` of 0 allows. [`IdentityError::Store`] if the store fails.
    pub fn rotate_key(
        &self,
        id: &KeyId,
        overlap: Duration,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(KeyRecord, SecretString), IdentityError> {
        check_text("actor", actor)?;
        if overlap > MAX_OVERLAP {
            return Err(IdentityError::Invalid { field: "overlap", why: "must be at most 365 days" });
        }
        let _one_change = self.waiting.lock();
        let before = self.records.read().keys.get(id).cloned();
        let StoredKey { hash: former, record, .. } =
            before.ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        if record.revoked.is_some() || record.expires.is_some_and(|end| now >= end) {
            let why = "was revoked or has expired, so that it takes no other secret: create another key";
            return Err(IdentityError::Invalid { field: "id", why });
        }
        if let Some(until) = record.former_until.filter(|until| *until > now)
            && !overlap.is_zero()
        {
            return Err(IdentityError::Rotated { seconds: until.since(now).as_secs() });
        }
        let secret = secret::fresh_secret()?;
        let former_until = now.after(overlap);
        let rotated = RotatedSecret {
            hash: self.hasher.hash(secret.expose_secret().as_bytes()),
            hint: secret::hint(&secret),
            number: record.secret_number.saturating_add(1),
            former,
            former_until,
        };
        let seconds = overlap.as_secs();
        let detail = format!("ends in {:?}, the former secret works for {seconds} s", rotated.hint);
        self.store.rotate_key(id, &rotated, &entry(now, actor, "key.rotate", id.as_str(), detail))?;
        let mut records = self.records.write();
        let key = records.keys.get(id).ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        let mut key = key.clone();
        rotated.apply(&mut key);
        let gone = records.hashes_before(&key);
        self.entries.put(records.entries_of_key(&key)?);
        self.entries.remove(&gone);
        records.put_key(key.clone());
        Ok((key.record, secret))
    }

    /// Whether the secret that `principal` presented is valid, its key was not revoked, and the key's owner or the token's
    /// user is active. `true` if no key and no user has this id, as for a caller inside this process.
    pub fn is_current(&self, principal: &Principal, now: UnixNanos) -> bool {
        let records = self.records.read();
        let Some(StoredKey { record, .. }) = records.keys.get(&principal.key) else {
            return !records.accounts.is_inactive_holder(&principal.key);
        };
        if records.accounts.is_inactive(record.details.owner.as_deref()) {
            return false;
        }
        let is_former = principal.secret_number != 0 && principal.secret_number != record.secret_number;
        let has_former = principal.secret_number.saturating_add(1) == record.secret_number
            && record.former_until.is_some_and(|until| now < until);
        record.revoked.is_none() && (!is_former || has_former)
    }
}

impl RotatedSecret {
    /// Changes a stored key as a store does.
    pub(crate) fn apply(&self, key: &mut StoredKey) {
        key.former = Some(self.former);
        key.hash = self.hash;
        key.record.hint.clone_from(&self.hint);
        key.record.secret_number = self.number;
        key.record.former_until = Some(self.former_until);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headrace_domain::{OrgId, ProjectId};

    use super::*;
    use crate::{AuthRefusal, HashSecret, MemoryKeyStore, NewKey, RateLimits};

    fn at(seconds: u64) -> UnixNanos {
        UnixNanos::new(1_000_000_000 * (100 + seconds))
    }

    fn number(directory: &Directory, secret: &SecretString, now: UnixNanos) -> Result<u32, AuthRefusal> {
        directory.authenticate(secret.expose_secret(), now).map(|principal| principal.secret_number)
    }

    #[test]
    fn a_rotated_key_keeps_its_id_and_its_former_secret_ends_after_the_overlap() {
        let store = Arc::new(MemoryKeyStore::new());
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        let open = || Directory::open(Arc::clone(&store) as _, HashSecret::new([7; 32])).unwrap();
        let directory = open();
        directory.create_org(org.clone(), RateLimits::default(), "test", at(0)).unwrap();
        directory.create_project(project.clone(), org.clone(), RateLimits::default(), "test", at(0)).unwrap();
        let (key, first) = directory.create_key(NewKey::new(org, project, "k"), "test", at(0)).unwrap();
        let hour = Duration::from_secs(3_600);
        let (rotated, second) = directory.rotate_key(&key.id, hour, "test", at(1)).unwrap();
        assert_eq!((&rotated.id, rotated.secret_number, rotated.hint.len()), (&key.id, 2, 4));
        for directory in [&directory, &open()] {
            assert_eq!(number(directory, &first, at(3_600)), Ok(1));
            assert_eq!(number(directory, &first, at(3_601)), Err(AuthRefusal::Expired));
            assert_eq!(number(directory, &second, at(9_999)), Ok(2));
        }
        let presented = directory.authenticate(first.expose_secret(), at(2)).unwrap();
        assert!(directory.is_current(&presented, at(3_600)));
        assert!(!directory.is_current(&presented, at(3_601)));

        // An earlier secret must not end by surprise.
        let refused = directory.rotate_key(&key.id, hour, "test", at(2)).unwrap_err();
        assert_eq!(refused, IdentityError::Rotated { seconds: 3_599 });
        let (_, third) = directory.rotate_key(&key.id, Duration::ZERO, "test", at(2)).unwrap();
        for directory in [&directory, &open()] {
            assert_eq!(number(directory, &second, at(2)), Err(AuthRefusal::Expired));
            assert_eq!(number(directory, &third, at(2)), Ok(3));
            assert!(!directory.is_current(&presented, at(2)), "no hold is taken with an older secret");
        }
        assert_eq!(number(&directory, &first, at(2)), Err(AuthRefusal::Unknown));
        assert_eq!(directory.audit_of("key.rotate", Some(key.id.as_str()), 9).unwrap().len(), 2);

        let refused = directory.rotate_key(&key.id, Duration::from_secs(366 * 86_400), "test", at(9_000));
        assert!(matches!(refused, Err(IdentityError::Invalid { field: "overlap", .. })));
        directory.revoke(&key.id, "test", at(3)).unwrap();
        let refused = directory.rotate_key(&key.id, hour, "test", at(9_000));
        assert!(matches!(refused, Err(IdentityError::Invalid { field: "id", .. })));
        for secret in [&first, &second, &third] {
            assert!(number(&directory, secret, at(3)).is_err());
        }
    }
}
