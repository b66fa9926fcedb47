//! Stateless TLS session tickets (RFC 8446 §4.6.1). A ticket is the session, sealed with a key that is derived from one
//! secret and the time. Every server with the secret can resume a session that another one began, even after a restart.
//!
//! A resumed session skips the check of the client's certificate. A listener that requires one must not issue tickets.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use aws_lc_rs::rand;
use headrace_domain::Clock;
use rustls::server::ProducesTickets;

/// Seconds after which tickets are sealed with another key. A ticket is valid in the epoch in which it was sealed and
/// in the next one.
const EPOCH_S: u64 = 6 * 60 * 60;
/// Seconds for which a client may use a ticket. Every ticket is valid for at least that long.
const LIFETIME_S: u32 = 6 * 60 * 60;
/// The purpose of the derived keys (RFC 5869 §3.2).
const CONTEXT: &[u8] = b"headrace 2026-11 tls session tickets v1";

/// The secret from which the keys of session tickets are derived. Servers with the same secret resume each other's
/// sessions.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret([u8; 32]);

impl SessionSecret {
    /// Creates a secret from these bytes, which must be random.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Creates a fresh secret. Returns `None` if the operating system provides no randomness.
    pub(crate) fn fresh() -> Option<Self> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(…)")
    }
}

/// Seals and opens tickets. A ticket consists of the lowest byte of its epoch, a nonce, and the sealed session with its
/// tag.
pub(crate) struct SessionTickets {
    root: Prk,
    clock: Arc<dyn Clock>,
}

impl SessionTickets {
    pub(crate) fn new(secret: &SessionSecret, clock: Arc<dyn Clock>) -> Self {
        Self { root: Salt::new(HKDF_SHA256, &[]).extract(&secret.0), clock }
    }

    fn epoch(&self) -> u64 {
        self.clock.now().seconds() / EPOCH_S
    }

    fn key(&self, epoch: u64) -> Option<LessSafeKey> {
        let info: [&[u8]; 2] = [CONTEXT, &epoch.to_be_bytes()];
        let derived = self.root.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

impl fmt::Debug for SessionTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionTickets(…)")
    }
}

/// Returns the byte that identifies a ticket's epoch.
const fn label(epoch: u64) -> u8 {
    epoch.to_le_bytes()[0]
}

impl ProducesTickets for SessionTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_S
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let epoch = self.epoch();
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let head = [&[label(epoch)], &nonce[..]].concat();
        let mut sealed = plain.to_vec();
        let key = self.key(epoch)?;
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed).ok()?;
        Some([head, sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (named, rest) = ticket.split_first()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let now = self.epoch();
        let epoch = [now, now.saturating_sub(1)].into_iter().find(|&epoch| label(epoch) == *named)?;
        let mut sealed = sealed.to_vec();
        let key = self.key(epoch)?;
        let opened =
            key.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::empty(), &mut sealed).ok()?;
        Some(opened.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::{ManualClock, UnixNanos};

    use super::*;

    const SECRET: SessionSecret = SessionSecret::new([7; 32]);

    fn at(seconds: u64) -> Arc<dyn Clock> {
        Arc::new(ManualClock::at(UnixNanos::new(seconds * 1_000_000_000)))
    }

    #[test]
    fn a_ticket_is_good_for_its_epoch_and_the_next_one_at_each_server_with_the_secret() {
        let start = 1_000 * EPOCH_S;
        let ticket = SessionTickets::new(&SECRET, at(start)).encrypt(b"a session").unwrap();
        for (later, is_good) in [
            (0, true),
            (EPOCH_S - 1, true),
            (EPOCH_S, true),
            (2 * EPOCH_S - 1, true),
            (2 * EPOCH_S, false),
            // The epoch's label repeats, but its key does not.
            (256 * EPOCH_S, false),
        ] {
            let opened = SessionTickets::new(&SECRET, at(start + later)).decrypt(&ticket);
            assert_eq!(opened.as_deref() == Some(b"a session"), is_good, "after {later} s");
        }
        let ahead = SessionTickets::new(&SECRET, at(start - 1)).decrypt(&ticket);
        assert_eq!(ahead, None, "an epoch that has not begun");
        let other = SessionTickets::new(&SessionSecret::new([8; 32]), at(start)).decrypt(&ticket);
        assert_eq!(other, None, "another secret");
    }

    #[test]
    fn a_ticket_with_any_byte_changed_or_cut_off_is_refused_and_shows_no_session() {
        let tickets = SessionTickets::new(&SECRET, at(5));
        let ticket = tickets.encrypt(b"a session").unwrap();
        assert!(!ticket.windows(9).any(|part| part == b"a session"));
        assert_ne!(tickets.encrypt(b"a session").unwrap(), ticket, "each has a nonce of its own");
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            *changed.get_mut(at).unwrap() ^= 1;
            assert_eq!(tickets.decrypt(&changed), None, "byte {at}");
            assert_eq!(tickets.decrypt(ticket.get(..at).unwrap()), None, "{at} bytes");
        }
        assert_eq!(format!("{tickets:?} {SECRET:?}"), "SessionTickets(…) SessionSecret(…)");
    }
}
