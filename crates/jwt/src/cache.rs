//! Verified tokens, found again by hash, so that a repeated token costs no signature check. Keeps hashes, never tokens.
//! Bounded in number. Must not know what makes a token valid.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use headrace_domain::UnixNanos;
use headrace_identity::{Principal, TokenUse, UserGrant};
use parking_lot::RwLock;
use subtle::ConstantTimeEq;

use crate::config::UnknownUsers;

/// Number of parts, each with its own lock.
const PARTS: usize = 16;

/// A verified token's grant and principal.
#[derive(Debug, Clone)]
pub(crate) struct CachedToken {
    /// When the token must be verified again.
    pub(crate) until: UnixNanos,
    /// SHA-256 of the certificate to which the token is bound.
    pub(crate) bound_to: Option<[u8; 32]>,
    /// What the token grants, and what follows for its user's record.
    pub(crate) user: Arc<VerifiedUser>,
    /// The principal, and the version of the directory that it was built from.
    pub(crate) principal: Arc<Principal>,
    pub(crate) version: u64,
}

/// The user of a verified token.
#[derive(Debug)]
pub(crate) struct VerifiedUser {
    /// What the token grants.
    pub(crate) grant: UserGrant,
    /// The name for display that the token claims.
    pub(crate) display_name: Option<String>,
    /// What happens if the user has no record.
    pub(crate) unknown_users: UnknownUsers,
    /// Records the use of the token. `None` if the user has no record.
    pub(crate) used: Option<TokenUse>,
}

/// Hash of a whole token. Two tokens with the same hash cannot be made.
type TokenHash = [u8; 32];

type CachePart = HashMap<u64, (TokenHash, CachedToken), RandomState>;

/// The verified tokens.
pub(crate) struct TokenCache {
    /// Finds the place of a token. Random, so that a caller cannot choose places.
    places: RandomState,
    parts: [RwLock<CachePart>; PARTS],
    most_of_part: usize,
}

impl TokenCache {
    /// Creates a cache for at most `most` tokens.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            places: RandomState::default(),
            parts: Default::default(),
            most_of_part: most.div_ceil(PARTS).max(1),
        }
    }

    /// Returns `true` if a token is likely to be found. Costs less than [`TokenCache::get`].
    pub(crate) fn may_have(&self, token: &str, now: UnixNanos) -> bool {
        let place = self.places.hash_one(token);
        let found =
            self.part(place).map(|part| part.read().get(&place).is_some_and(|(_, found)| now < found.until));
        found.unwrap_or(false)
    }

    /// The verified token, if it need not be verified again.
    pub(crate) fn get(&self, token: &str, now: UnixNanos) -> Option<CachedToken> {
        let place = self.places.hash_one(token);
        let part = self.part(place)?.read();
        let (hash, found) = part.get(&place)?;
        if now >= found.until || !bool::from(hash.ct_eq(blake3::hash(token.as_bytes()).as_bytes())) {
            return None;
        }
        if let Some(used) = &found.user.used {
            used.record(now);
        }
        Some(found.clone())
    }

    /// Keeps a verified token. If there is no room, tokens that have ended are dropped, or else any one.
    pub(crate) fn put(&self, token: &str, verified: CachedToken, now: UnixNanos) {
        let place = self.places.hash_one(token);
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        let Some(part) = self.part(place) else { return };
        let mut part = part.write();
        if part.len() >= self.most_of_part && !part.contains_key(&place) {
            part.retain(|_, (_, kept)| now < kept.until);
            if part.len() >= self.most_of_part
                && let Some(any) = part.keys().next().copied()
            {
                part.remove(&any);
            }
        }
        part.insert(place, (hash, verified));
    }

    /// The number of tokens.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.read().len()).sum()
    }

    fn part(&self, place: u64) -> Option<&RwLock<CachePart>> {
        // The highest bits: the lowest ones choose the place within a part.
        self.parts.get(usize::try_from(place >> 60).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::RecordRules;
    use headrace_domain::{KeyId, OrgId, ProjectId, Residency, TokenUser};
    use headrace_identity::{AddressList, EndpointAccess, ModelAccess, RateLimits};

    use super::*;

    const NOW: UnixNanos = UnixNanos::new(1_000);

    fn verified(until: u64) -> CachedToken {
        let user = Arc::new(TokenUser { issuer: "i".into(), subject: "s".into(), role: None });
        let (key, project) = (KeyId::new("user_1").unwrap(), ProjectId::new("p").unwrap());
        let principal = Principal {
            org: OrgId::new("o").unwrap(),
            project: project.clone(),
            key: key.clone(),
            name: "s".to_owned(),
            user: Some(Arc::clone(&user)),
            models: ModelAccess::All,
            endpoints: EndpointAccess::All,
            regions: Residency::Anywhere,
            org_regions: Residency::Anywhere,
            secret_number: 0,
            limits: RateLimits::default(),
            project_limits: RateLimits::default(),
            org_limits: RateLimits::default(),
            expires: None,
            allowed_ips: AddressList::default(),
            tier: None,
            records: RecordRules::default(),
        };
        let (models, limits) = (ModelAccess::All, RateLimits::default());
        let grant = UserGrant { user, org: None, project, models, limits, expires: NOW };
        let (until, principal) = (UnixNanos::new(until), Arc::new(principal));
        let user =
            VerifiedUser { grant, display_name: None, unknown_users: UnknownUsers::Accept, used: None };
        CachedToken { until, bound_to: None, user: Arc::new(user), principal, version: 0 }
    }

    #[test]
    fn tokens_are_found_until_they_end() {
        let cache = TokenCache::new(64);
        cache.put("a.b.c", verified(2_000), NOW);
        for (token, now, is_there) in
            [("a.b.c", 1_999, true), ("a.b.c", 2_000, false), ("a.b.d", 1_000, false), ("", 1_000, false)]
        {
            let now = UnixNanos::new(now);
            assert_eq!(cache.get(token, now).is_some(), is_there, "{token}");
            assert_eq!(cache.may_have(token, now), is_there, "{token}");
        }
    }

    #[test]
    fn a_place_is_not_enough() {
        let cache = TokenCache::new(64);
        cache.put("a.b.c", verified(2_000), NOW);
        // Another token in the same place, as a collision of the fast hash would have it.
        let place = cache.places.hash_one("a.b.c");
        cache.part(place).unwrap().write().get_mut(&place).unwrap().0 = *blake3::hash(b"x.y.z").as_bytes();
        assert!(cache.get("a.b.c", NOW).is_none());
    }

    #[test]
    fn the_number_of_tokens_is_bounded() {
        let cache = TokenCache::new(160);
        for token in 0..10_000 {
            cache.put(&format!("{token}"), verified(2_000), NOW);
        }
        assert!((100..=160).contains(&cache.len()), "{}", cache.len());
        // Tokens that have ended make room first.
        let later = UnixNanos::new(3_000);
        for token in 10_000..10_050 {
            cache.put(&format!("{token}"), verified(4_000), later);
        }
        assert!(
            (10_000..10_050).filter(|token| cache.get(&format!("{token}"), later).is_some()).count() >= 45
        );
    }
}
