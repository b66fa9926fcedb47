//! Limits wrong keys and links per peer. Time is an argument.
//!
//! A credential is checked only while attempts are left. Once they are used up, a right guess is as useless as a wrong
//! one. Operators whose key was accepted before, or whose link is unused, have attempts of their own. They are
//! recognized by the first characters of their credential. So a guesser at the same address does not lock them out, and
//! could use up their attempts only by knowing these characters.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use headrace_domain::UnixNanos;
use parking_lot::Mutex;

/// Wrong attempts that a peer may make in a row, and the time after which one attempt comes back.
const ATTEMPTS: u32 = 10;
const ONE_BACK_AFTER: Duration = Duration::from_secs(6);
/// Maximum number of peers that are counted separately. All further peers share one entry.
const MAX_PEERS: usize = 1_024;
/// Maximum number of known keys.
const MAX_MARKS: usize = 1_024;
/// Length of an IPv6 network prefix. The network counts as one peer, because its owner has all of its addresses.
const IPV6_PREFIX_BITS: u32 = 64;
/// Length of the beginning that identifies a key or a link: `hrop-` and 8 characters of 62, or 13 of 16. More than 200
/// bits follow.
const MARK_BYTES: usize = 13;

/// The hash of the first characters of a key or a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CredentialMark([u8; 32]);

/// The entry in which an attempt is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CountedAs {
    /// All unknown credentials from this peer.
    Peer(IpAddr),
    /// All credentials that begin like this known key or link.
    Known(CredentialMark),
}

/// Counts of wrong attempts.
#[derive(Debug, Default)]
pub(crate) struct AttemptThrottle {
    /// The time at which each entry has all its attempts back.
    whole_again: Mutex<HashMap<CountedAs, UnixNanos>>,
    /// Marks of keys that were accepted.
    known: Mutex<HashSet<CredentialMark>>,
}

impl CredentialMark {
    /// The mark of a credential. `None` if it is too short to be a key or a link.
    pub(crate) fn of(shown: &str) -> Option<Self> {
        let first = shown.as_bytes().get(..MARK_BYTES).filter(|first| shown.len() > 2 * first.len())?;
        Some(Self(blake3::derive_key("headrace 2026 admin attempts v1", first)))
    }
}

impl AttemptThrottle {
    /// Returns the entry for an attempt of a peer. `is_known` is true if the credential begins like an unused link.
    pub(crate) fn counted_as(&self, peer: IpAddr, mark: Option<CredentialMark>, is_known: bool) -> CountedAs {
        match mark.filter(|mark| is_known || self.known.lock().contains(mark)) {
            Some(mark) => CountedAs::Known(mark),
            None => CountedAs::Peer(network(peer)),
        }
    }

    /// Checks that this entry has an attempt left.
    ///
    /// # Errors
    /// The seconds to wait if no attempt is left.
    pub(crate) fn may_try(&self, who: CountedAs, now: UnixNanos) -> Result<(), u64> {
        let whole = self.whole_again.lock();
        let waits = whole.get(&slot(who, &whole, now)).map_or(Duration::ZERO, |at| at.since(now));
        let bound = ONE_BACK_AFTER.saturating_mul(ATTEMPTS.saturating_sub(1));
        match waits.checked_sub(bound) {
            Some(over) if !over.is_zero() => Err(over.as_secs().saturating_add(1)),
            _ => Ok(()),
        }
    }

    /// Records a wrong attempt.
    pub(crate) fn failed(&self, who: CountedAs, now: UnixNanos) {
        let mut whole = self.whole_again.lock();
        whole.retain(|_, at| *at > now);
        let slot = slot(who, &whole, now);
        let at = whole.entry(slot).or_insert(now);
        *at = at.after(ONE_BACK_AFTER);
    }

    /// Records an accepted key.
    pub(crate) fn passed(&self, mark: Option<CredentialMark>) {
        let mut known = self.known.lock();
        if known.len() < MAX_MARKS {
            known.extend(mark);
        }
    }
}

/// The network of a peer. An IPv6 client has all addresses of a network.
fn network(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => {
                let kept = u128::MAX << (128 - IPV6_PREFIX_BITS);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & kept))
            }
        },
        address @ IpAddr::V4(_) => address,
    }
}

/// Returns the entry to count in: `who`, or the entry that all peers beyond [`MAX_PEERS`] share.
fn slot(who: CountedAs, whole: &HashMap<CountedAs, UnixNanos>, now: UnixNanos) -> CountedAs {
    let is_counted = whole.get(&who).is_some_and(|at| *at > now);
    let is_known = matches!(who, CountedAs::Known(_));
    if is_known || is_counted || whole.len() < MAX_PEERS {
        who
    } else {
        CountedAs::Peer(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixNanos = UnixNanos::new(1_000_000_000_000);

    fn peer(text: &str) -> CountedAs {
        AttemptThrottle::default().counted_as(text.parse().unwrap(), None, false)
    }

    #[test]
    fn a_peer_that_guesses_waits_and_no_other_does() {
        let throttle = AttemptThrottle::default();
        let (guesser, other) = (peer("192.0.2.1"), peer("192.0.2.2"));
        for _ in 0..ATTEMPTS {
            assert_eq!(throttle.may_try(guesser, NOW), Ok(()));
            throttle.failed(guesser, NOW);
        }
        let wait = throttle.may_try(guesser, NOW).unwrap_err();
        assert!(wait <= ONE_BACK_AFTER.as_secs() + 1, "{wait}");
        assert_eq!(throttle.may_try(other, NOW), Ok(()));
        let later = NOW.after(Duration::from_secs(wait));
        assert_eq!(throttle.may_try(guesser, later), Ok(()), "as it was told");
        throttle.failed(guesser, later);
        assert!(throttle.may_try(guesser, later).is_err(), "one came back, not all");
    }

    #[test]
    fn a_network_is_one_peer_and_peers_are_bounded() {
        let throttle = AttemptThrottle::default();
        for n in 0..ATTEMPTS {
            throttle.failed(peer(&format!("2001:db8::{n:x}")), NOW);
        }
        assert!(throttle.may_try(peer("2001:db8::ffff"), NOW).is_err());
        assert!(throttle.may_try(peer("2001:db8:0:1::1"), NOW).is_ok());
        for n in 0..3 * MAX_PEERS as u32 {
            throttle.failed(CountedAs::Peer(IpAddr::V4((0x0a00_0000 + n).into())), NOW);
        }
        assert!(throttle.whole_again.lock().len() <= MAX_PEERS + 1);
        assert!(throttle.may_try(peer("198.51.100.7"), NOW).is_err(), "strangers beyond the bound share one");
    }

    #[test]
    fn a_key_that_was_good_has_attempts_of_its_own() {
        let throttle = AttemptThrottle::default();
        let guesser: IpAddr = "192.0.2.1".parse().unwrap();
        let counted = |shown: &str| throttle.counted_as(guesser, CredentialMark::of(shown), false);
        let good = format!("hrop-12345678{}", "x".repeat(35));
        let guess = format!("hrop-87654321{}", "x".repeat(35));
        assert_eq!(counted(&good), counted(&guess), "nothing is known of either");
        throttle.passed(CredentialMark::of(&good));
        for _ in 0..ATTEMPTS {
            throttle.failed(counted(&guess), NOW);
        }
        assert!(throttle.may_try(counted(&guess), NOW).is_err());
        assert!(throttle.may_try(counted(&good), NOW).is_ok());
        // A credential with the same beginning uses the same attempts, and no others.
        let alike = format!("hrop-12345678{}", "y".repeat(35));
        for _ in 0..ATTEMPTS {
            assert!(throttle.may_try(counted(&alike), NOW).is_ok());
            throttle.failed(counted(&alike), NOW);
        }
        assert!(throttle.may_try(counted(&good), NOW).is_err());
        assert_eq!(CredentialMark::of("hrop-"), None);
        for n in 0..3 * MAX_MARKS {
            throttle.passed(CredentialMark::of(&format!("hrop-{n:08}{}", "x".repeat(35))));
        }
        assert_eq!(throttle.known.lock().len(), MAX_MARKS);
    }
}
