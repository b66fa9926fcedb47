//! Owners, addresses and last uses of keys. Must not know how a caller's address was established.

use std::net::IpAddr;
use std::time::Duration;

use headrace_domain::{KeyId, UnixNanos};

use super::{Directory, IdentityError, entry};
use crate::key_use::WRITE_EVERY;
use crate::record::{check_details, check_text};
use crate::{AuthRefusal, KeyChange, KeyRecord, KeyUse, Principal};

/// Keys whose last use is written in one transaction.
const USES_AT_ONCE: usize = 5_000;

impl Directory {
    /// Like [`Directory::authenticate`], for a request from an address. Checks that the key may be used from there, and
    /// records the use.
    ///
    /// # Errors
    /// The reason for the refusal. [`AuthRefusal::Address`] if the key may not be used from this address.
    pub fn authenticate_from(
        &self,
        presented: &str,
        address: IpAddr,
        now: UnixNanos,
    ) -> Result<std::sync::Arc<Principal>, AuthRefusal> {
        self.find_valid(presented, now, |entry| {
            if !entry.principal.allowed_ips.allows(address) {
                return Err(AuthRefusal::Address);
            }
            entry.used.record(now);
            Ok(())
        })
    }

    /// Changes a key's owner or addresses. Calls in flight continue.
    ///
    /// # Errors
    /// [`IdentityError::UnknownKey`], [`IdentityError::Invalid`] for the owner, or a store error.
    pub fn change_key_details(
        &self,
        id: &KeyId,
        change: KeyChange,
        actor: &str,
        now: UnixNanos,
    ) -> Result<KeyRecord, IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        let key = self.key(id).ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        let details = change.apply(&key.details);
        check_details(&details)?;
        if details.owner != key.details.owner {
            self.records.read().check_owner(&details, &key.org, &key.project)?;
        }
        let audit = entry(now, actor, "key.change", id.as_str(), details.words());
        self.store.set_key_details(id, &details, &audit)?;
        self.change_key(id, |key| key.details = details)
    }

    /// Writes the uses of keys that the store does not have, at most once per key and minute, and reads those of other
    /// processes later than `since`. Returns the `since` for the next call. Call it several times a minute. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. The next call writes the same uses.
    pub fn sync_key_uses(&self, since: UnixNanos) -> Result<UnixNanos, IdentityError> {
        self.write_key_uses(WRITE_EVERY)?;
        let uses = self.store.key_uses(since)?;
        self.apply_uses(&uses);
        // Other processes write up to a minute late, and a transaction may end late.
        let newest = uses.iter().map(|used| used.at).max().unwrap_or(since);
        let back = u64::try_from((WRITE_EVERY * 3).as_nanos()).unwrap_or(u64::MAX);
        Ok(since.max(UnixNanos::new(newest.get().saturating_sub(back))))
    }

    /// Writes all uses of keys that the store does not have. Call it at the end. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn write_all_key_uses(&self) -> Result<(), IdentityError> {
        self.write_key_uses(Duration::ZERO)
    }

    fn write_key_uses(&self, older_than: Duration) -> Result<(), IdentityError> {
        let due: Vec<KeyUse> = {
            let records = self.records.read();
            let unwritten = |(key, used): (&KeyId, &std::sync::Arc<crate::key_use::KeyUseClock>)| {
                used.unwritten(older_than).map(|at| KeyUse { key: key.clone(), at })
            };
            records.uses.iter().filter_map(unwritten).collect()
        };
        for some in due.chunks(USES_AT_ONCE) {
            self.store.put_key_uses(some)?;
            let records = self.records.read();
            for KeyUse { key, at } in some {
                if let Some(used) = records.uses.get(key) {
                    used.record_written(*at);
                }
            }
        }
        Ok(())
    }
}
