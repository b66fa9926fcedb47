//! Job tickets: short-lived, good once, bound to a method, a path and a body. Signed and checked with keyed BLAKE3 over a secret
//! that both ends have. A ticket names its body's digest, so that a stranger is known before a body is read.

use std::collections::BTreeSet;
use std::fmt;

use headrace_domain::UnixNanos;
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

use crate::limits::{CLOCK_SKEW_S, LEAST_SECRET_BYTES, MAX_TICKETS, TICKET_LIFE_S};

/// What stands before a ticket in the `authorization` header.
pub const TICKET_SCHEME: &str = "Headrace-Ticket";
const VERSION: &str = "v1";
const CONTEXT: &str = "headrace 2026-11 worker ticket v1";
const NONCE_BYTES: usize = 16;

/// What both ends have.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// Why a secret is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretFault {
    bytes: usize,
}

/// Why a ticket is not taken. For the log of the end that checks: whoever showed it learns nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketFault {
    /// There is none.
    Missing,
    /// It is none.
    Malformed,
    /// It is of another version.
    Version(String),
    /// Its time is over, by so many seconds.
    Expired(u64),
    /// Its time ends so many seconds later than any that is issued now.
    TooEarly(u64),
    /// It was signed with another secret, or for something else.
    Signature,
    /// It was shown before.
    Replayed,
    /// It is for another body.
    Body,
    /// More tickets are to be remembered than there is room for.
    TooMany,
}

/// The tickets that were shown to this end.
pub struct Tickets {
    secret: Secret,
    shown: Mutex<BTreeSet<(u64, [u8; NONCE_BYTES])>>,
}

/// The digest that a body must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyDigest(blake3::Hash);

impl fmt::Display for SecretFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes } = self;
        write!(f, "the secret has {bytes} characters; it needs {LEAST_SECRET_BYTES} or more")
    }
}

impl fmt::Display for TicketFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no ticket"),
            Self::Malformed => f.write_str("what was shown is no ticket"),
            Self::Version(version) => write!(f, "a ticket of version `{version}`; `{VERSION}` is known here"),
            Self::Expired(by) => write!(f, "a ticket that expired {by} s ago: is its clock behind?"),
            Self::TooEarly(by) => write!(f, "a ticket from {by} s in the future: is its clock ahead?"),
            Self::Signature => f.write_str("a ticket signed with another secret, or for another request"),
            Self::Replayed => f.write_str("a ticket that was used before"),
            Self::Body => f.write_str("a ticket for another body"),
            Self::TooMany => f.write_str("more tickets within a minute than are remembered"),
        }
    }
}

impl Secret {
    /// Out of what stands in a file or variable.
    ///
    /// # Errors
    /// It is too short to be one.
    pub fn new(text: &SecretString) -> Result<Self, SecretFault> {
        let text = text.expose_secret().trim();
        if text.len() < LEAST_SECRET_BYTES {
            return Err(SecretFault { bytes: text.len() });
        }
        Ok(Self(blake3::derive_key(CONTEXT, text.as_bytes())))
    }

    /// The value of the `authorization` header of one request.
    ///
    /// # Errors
    /// This machine gives no random numbers.
    pub fn ticket(
        &self,
        (method, path): (&str, &str),
        body: &[u8],
        now: UnixNanos,
    ) -> Result<String, getrandom::Error> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce)?;
        Ok(self.signed((method, path), body, now.seconds().saturating_add(TICKET_LIFE_S), nonce))
    }

    fn signed(&self, asked: (&str, &str), body: &[u8], expires_s: u64, nonce: [u8; NONCE_BYTES]) -> String {
        let digest = blake3::hash(body);
        let mac = self.mac(asked, expires_s, &nonce, &digest).to_hex();
        let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{TICKET_SCHEME} {VERSION}.{expires_s}.{nonce}.{}.{mac}", digest.to_hex())
    }

    /// Over all that a ticket is for, each part with its length.
    fn mac(
        &self,
        (method, path): (&str, &str),
        expires_s: u64,
        nonce: &[u8; NONCE_BYTES],
        digest: &blake3::Hash,
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        let expires = expires_s.to_le_bytes();
        for part in [method.as_bytes(), path.as_bytes(), &expires, nonce, digest.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        hasher.finalize()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Tickets {
    /// None was shown yet.
    pub fn new(secret: Secret) -> Self {
        Self { secret, shown: Mutex::default() }
    }

    /// Takes the ticket of a request. It is good no second time.
    ///
    /// # Errors
    /// Why it is not taken.
    pub(crate) fn take(
        &self,
        authorization: Option<&[u8]>,
        asked: (&str, &str),
        now: UnixNanos,
    ) -> Result<BodyDigest, TicketFault> {
        let (expires_s, nonce, digest, mac) = parse(authorization.ok_or(TicketFault::Missing)?)?;
        // Hashes are compared in constant time.
        if self.secret.mac(asked, expires_s, &nonce, &digest) != mac {
            return Err(TicketFault::Signature);
        }
        let now_s = now.seconds();
        let good_until = expires_s.saturating_add(CLOCK_SKEW_S);
        if now_s > good_until {
            return Err(TicketFault::Expired(now_s.saturating_sub(expires_s)));
        }
        let latest = now_s.saturating_add(TICKET_LIFE_S + CLOCK_SKEW_S);
        if expires_s > latest {
            return Err(TicketFault::TooEarly(expires_s.saturating_sub(now_s.saturating_add(TICKET_LIFE_S))));
        }
        let mut shown = self.shown.lock();
        // What has expired is refused without being remembered.
        let oldest = (now_s.saturating_sub(CLOCK_SKEW_S), [0; NONCE_BYTES]);
        if shown.first().is_some_and(|first| *first < oldest) {
            *shown = shown.split_off(&oldest);
        }
        if shown.len() >= MAX_TICKETS {
            return Err(TicketFault::TooMany);
        }
        if shown.insert((expires_s, nonce)) { Ok(BodyDigest(digest)) } else { Err(TicketFault::Replayed) }
    }
}

impl BodyDigest {
    /// Whether a body is the one that the ticket is for.
    pub(crate) fn is_of(&self, body: &[u8]) -> bool {
        blake3::hash(body) == self.0
    }
}

type Parts = (u64, [u8; NONCE_BYTES], blake3::Hash, blake3::Hash);

fn parse(authorization: &[u8]) -> Result<Parts, TicketFault> {
    let text = std::str::from_utf8(authorization).map_err(|_| TicketFault::Malformed)?;
    let (scheme, ticket) = text.split_once(' ').ok_or(TicketFault::Malformed)?;
    if !scheme.eq_ignore_ascii_case(TICKET_SCHEME) {
        return Err(TicketFault::Missing);
    }
    let mut parts = ticket.split('.');
    let mut next = || parts.next().ok_or(TicketFault::Malformed);
    let version = next()?;
    if version != VERSION {
        let shown: String = version.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        return Err(TicketFault::Version(shown));
    }
    let expires = next()?;
    let plain = !expires.is_empty() && expires.bytes().all(|byte| byte.is_ascii_digit());
    let expires_s = expires.parse().ok().filter(|_| plain).ok_or(TicketFault::Malformed)?;
    let nonce = nonce(next()?).ok_or(TicketFault::Malformed)?;
    let mut hash = || blake3::Hash::from_hex(next()?).map_err(|_| TicketFault::Malformed);
    let (digest, mac) = (hash()?, hash()?);
    if parts.next().is_some() { Err(TicketFault::Malformed) } else { Ok((expires_s, nonce, digest, mac)) }
}

fn nonce(hex: &str) -> Option<[u8; NONCE_BYTES]> {
    let plain = hex.len() == 2 * NONCE_BYTES && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut nonce = [0; NONCE_BYTES];
    for (byte, at) in nonce.iter_mut().zip((0..hex.len()).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    plain.then_some(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn at(seconds: u64) -> UnixNanos {
        UnixNanos::new(seconds * 1_000_000_000)
    }

    fn secret(text: &str) -> Secret {
        Secret::new(&SecretString::from(text.repeat(4))).unwrap()
    }

    fn check(tickets: &Tickets, ticket: &str, asked: (&str, &str), now_s: u64) -> Result<(), TicketFault> {
        tickets.take(Some(ticket.as_bytes()), asked, at(now_s)).map(drop)
    }

    const ASKED: (&str, &str) = ("POST", "/a");

    #[test]
    fn a_ticket_is_good_once_for_its_request_and_its_time() {
        let mine = secret("0123456789");
        let tickets = Tickets::new(mine.clone());
        let fresh = || mine.ticket(ASKED, b"body", at(NOW_S)).unwrap();
        let ticket = fresh();
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S), Ok(()));
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S), Err(TicketFault::Replayed));
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + 60), Err(TicketFault::Replayed));
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + 61), Err(TicketFault::Expired(31)));
        assert_eq!(check(&tickets, &fresh(), ASKED, NOW_S - 30), Ok(()));
        assert_eq!(check(&tickets, &fresh(), ASKED, NOW_S - 31), Err(TicketFault::TooEarly(31)));
        assert_eq!(check(&tickets, &fresh(), ("GET", "/a"), NOW_S), Err(TicketFault::Signature));
        assert_eq!(check(&tickets, &fresh(), ("POST", "/b"), NOW_S), Err(TicketFault::Signature));
        let theirs = Tickets::new(secret("abcdefghij"));
        assert_eq!(check(&theirs, &fresh(), ASKED, NOW_S), Err(TicketFault::Signature));
        let digest = tickets.take(Some(fresh().as_bytes()), ASKED, at(NOW_S)).unwrap();
        assert!(digest.is_of(b"body") && !digest.is_of(b"bodY") && !digest.is_of(b""));
    }

    #[test]
    fn what_has_expired_is_forgotten_and_stays_refused() {
        let mine = secret("0123456789");
        let tickets = Tickets::new(mine.clone());
        for second in 0..200 {
            let ticket = mine.ticket(ASKED, b"", at(NOW_S + second)).unwrap();
            assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + second), Ok(()));
            assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + second), Err(TicketFault::Replayed));
            assert!(tickets.shown.lock().len() <= 62);
        }
    }

    /// Any change of any character makes it another one.
    #[test]
    fn a_ticket_that_was_touched_is_refused() {
        let mine = secret("0123456789");
        let tickets = Tickets::new(mine.clone());
        let ticket = mine.ticket(ASKED, b"body", at(NOW_S)).unwrap();
        for at in TICKET_SCHEME.len()..ticket.len() {
            for other in ['0', '1', 'f', '.', ' ', 'é', '\0'] {
                let mut touched: Vec<char> = ticket.chars().collect();
                if touched[at].eq_ignore_ascii_case(&other) {
                    continue;
                }
                touched[at] = other;
                let touched: String = touched.into_iter().collect();
                assert!(check(&tickets, &touched, ASKED, NOW_S).is_err(), "{touched}");
            }
        }
        for (text, fault) in [
            ("", TicketFault::Malformed),
            ("Bearer sk-1", TicketFault::Missing),
            ("Headrace-Ticket", TicketFault::Malformed),
            ("Headrace-Ticket v2.1.2.3", TicketFault::Version("v2".to_owned())),
            ("Headrace-Ticket v1.+1.2.3", TicketFault::Malformed),
            (&format!("{ticket}.x"), TicketFault::Malformed),
            (&format!("{ticket}, {ticket}"), TicketFault::Malformed),
        ] {
            assert_eq!(check(&tickets, text, ASKED, NOW_S), Err(fault), "{text}");
        }
        assert_eq!(tickets.take(None, ASKED, at(NOW_S)), Err(TicketFault::Missing));
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S), Ok(()), "it is whole");
    }

    #[test]
    fn a_short_secret_is_none_and_no_secret_is_shown() {
        let short = SecretString::from("  secret of thirty-one letters!  ");
        let told = Secret::new(&short).unwrap_err().to_string();
        assert!(told.contains("32 or more") && !told.contains("thirty"), "{told}");
        let shown = format!("{:?}", secret("0123456789"));
        assert_eq!(shown, "Secret(..)");
    }
}
