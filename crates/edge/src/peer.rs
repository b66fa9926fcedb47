//! Peers by address: which addresses count as one peer, and how fast each may be refused. Must not know a request.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The period that an allowance covers. The whole allowance may be used at once.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of peers that are remembered. Peers without a connection are remembered until their allowance is full
/// again.
const MOST_REMEMBERED: usize = 16 * 1024;

/// A peer: an IPv4 address, or the /64 of an IPv6 address, which one customer usually has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PeerKey {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl From<IpAddr> for PeerKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// The refusal allowances of all peers.
pub(crate) struct RefusalAllowances {
    start: Instant,
    per_minute: u32,
    peers: Mutex<HashMap<PeerKey, Arc<RefusalAllowance>>>,
}

/// How many more refusals a peer may receive. Stored as one number: the time at which the refusals so far are forgiven.
#[derive(Debug)]
pub(crate) struct RefusalAllowance {
    start: Instant,
    each: Duration,
    /// Nanoseconds since `start`. 0 if the peer was never refused.
    used_until_ns: AtomicU64,
}

impl RefusalAllowances {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { start: Instant::now(), per_minute, peers: Mutex::default() }
    }

    /// Returns the allowance of `peer`, which all its connections share.
    pub(crate) fn of(&self, peer: PeerKey) -> Arc<RefusalAllowance> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= MOST_REMEMBERED && !peers.contains_key(&peer) {
            peers.retain(|_, allowance| Arc::strong_count(allowance) > 1 || !allowance.is_whole());
            if peers.len() >= MOST_REMEMBERED {
                // There are more peers than can be remembered, so those without a connection are forgiven.
                peers.retain(|_, allowance| Arc::strong_count(allowance) > 1);
            }
        }
        let each = WINDOW / self.per_minute.max(1);
        let new = || Arc::new(RefusalAllowance { start: self.start, each, used_until_ns: AtomicU64::new(0) });
        Arc::clone(peers.entry(peer).or_insert_with(new))
    }
}

impl RefusalAllowance {
    /// Records one more refusal.
    pub(crate) fn refused(&self) {
        let now = self.now_ns();
        let each = u64::try_from(self.each.as_nanos()).unwrap_or(u64::MAX);
        let add = |until: u64| Some(until.max(now).saturating_add(each));
        // Never fails, because the closure always returns a next value.
        let _ = self.used_until_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }

    /// Returns whether the allowance is used up.
    pub(crate) fn is_used_up(&self) -> bool {
        let until = self.used_until_ns.load(Ordering::Acquire);
        // The clock is read only if there was a refusal.
        until > 0 && until > self.now_ns().saturating_add(WINDOW.as_nanos() as u64)
    }

    fn is_whole(&self) -> bool {
        self.used_until_ns.load(Ordering::Acquire) <= self.now_ns()
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> PeerKey {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn addresses_of_one_customer_are_one_peer() {
        for (one, other, same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
            ("2001:db8:1:2::1", "2001:db8:1:3::1", false),
        ] {
            assert_eq!(peer(one) == peer(other), same, "{one} {other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_allowance_is_a_minutes_worth_at_once_and_comes_back_with_time() {
        let allowances = RefusalAllowances::new(60);
        let allowance = allowances.of(peer("10.0.0.1"));
        for _ in 0..60 {
            assert!(!allowance.is_used_up());
            allowance.refused();
        }
        assert!(!allowance.is_used_up(), "the last of a minute's worth is still told");
        allowance.refused();
        assert!(allowance.is_used_up());
        assert!(allowances.of(peer("10.0.0.1")).is_used_up(), "a new connection changes nothing");
        assert!(!allowances.of(peer("10.0.0.2")).is_used_up());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!allowance.is_used_up());
        tokio::time::advance(WINDOW).await;
        assert!(allowance.is_whole());
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_fill_no_memory() {
        let allowances = RefusalAllowances::new(60);
        for n in 0..3 * MOST_REMEMBERED {
            let [.., b, c, d] = n.to_be_bytes();
            allowances.of(PeerKey::V4([10, b, c, d])).refused();
        }
        assert!(allowances.peers.lock().unwrap().len() <= MOST_REMEMBERED);
    }
}
