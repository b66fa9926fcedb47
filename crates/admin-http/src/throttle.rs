//! How often a peer may show a wrong key or link. Time is an argument.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use headrace_domain::UnixNanos;
use parking_lot::Mutex;

/// Wrong attempts that a peer has at once, and how long one takes to come back.
const ATTEMPTS: u32 = 10;
const ONE_BACK_AFTER: Duration = Duration::from_secs(6);
/// Most peers that are told apart; beyond that, all others are one.
const MAX_PEERS: usize = 1_024;
/// Of an IPv6 address, the network is the peer: whoever has one has all of it.
const IPV6_PREFIX_BITS: u32 = 64;

/// Wrong attempts by peer.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// When each peer has all its attempts back.
    whole_again: Mutex<HashMap<IpAddr, UnixNanos>>,
}

impl Throttle {
    /// Whether a peer may try now; otherwise after how many seconds.
    ///
    /// # Errors
    /// The seconds to wait.
    pub(crate) fn may_try(&self, peer: IpAddr, now: UnixNanos) -> Result<(), u64> {
        let whole = self.whole_again.lock();
        let waits = whole.get(&slot(peer, &whole, now)).map_or(Duration::ZERO, |at| at.since(now));
        let bound = ONE_BACK_AFTER.saturating_mul(ATTEMPTS.saturating_sub(1));
        match waits.checked_sub(bound) {
            Some(over) if !over.is_zero() => Err(over.as_secs().saturating_add(1)),
            _ => Ok(()),
        }
    }

    /// Notes a wrong attempt.
    pub(crate) fn failed(&self, peer: IpAddr, now: UnixNanos) {
        let mut whole = self.whole_again.lock();
        whole.retain(|_, at| *at > now);
        let slot = slot(peer, &whole, now);
        let at = whole.entry(slot).or_insert(now);
        *at = at.after(ONE_BACK_AFTER);
    }
}

/// Whom a peer counts as.
fn slot(peer: IpAddr, whole: &HashMap<IpAddr, UnixNanos>, now: UnixNanos) -> IpAddr {
    let network = match peer {
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => {
                let kept = u128::MAX << (128 - IPV6_PREFIX_BITS);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & kept))
            }
        },
        address @ IpAddr::V4(_) => address,
    };
    let known = whole.get(&network).is_some_and(|at| *at > now);
    if known || whole.len() < MAX_PEERS { network } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixNanos = UnixNanos::new(1_000_000_000_000);

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_peer_that_guesses_waits_and_no_other_does() {
        let throttle = Throttle::default();
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
        let throttle = Throttle::default();
        for n in 0..ATTEMPTS {
            throttle.failed(peer(&format!("2001:db8::{n:x}")), NOW);
        }
        assert!(throttle.may_try(peer("2001:db8::ffff"), NOW).is_err());
        assert!(throttle.may_try(peer("2001:db8:0:1::1"), NOW).is_ok());
        for n in 0..3 * MAX_PEERS as u32 {
            throttle.failed(IpAddr::V4((0x0a00_0000 + n).into()), NOW);
        }
        assert!(throttle.whole_again.lock().len() <= MAX_PEERS + 1);
        assert!(throttle.may_try(peer("198.51.100.7"), NOW).is_err(), "strangers beyond the bound share one");
    }
}
