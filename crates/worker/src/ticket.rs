//! Job tickets: short-lived, valid once, bound to a worker's process, a method, a path and a body. Signed with keyed
//! BLAKE3 over a secret that both sides share. A ticket contains its body's digest, so that an unknown client is
//! detected before a body is read.
//!
//! A worker remembers the tickets that it has seen only while it runs. Each process of a worker therefore has a random
//! id, which its tickets must name. A used ticket is thus worthless at another worker with the same secret, and after a
//! restart.

use std::collections::BTreeSet;
use std::fmt;

use headrace_domain::UnixNanos;
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

use crate::limits::{CLOCK_SKEW_S, LEAST_SECRET_BYTES, MAX_TICKETS, TICKET_LIFE_S};

/// The scheme before a ticket in the `authorization` header.
pub const TICKET_SCHEME: &str = "Headrace-Ticket";
const VERSION: &str = "v2";
/// The version of tickets without a process id. Only older workers accept them.
const WITHOUT_PROCESS: &str = "v1";
const CONTEXT: &str = "headrace 2026-11 worker ticket v1";
const NONCE_BYTES: usize = 16;

/// The random id of a worker's process, drawn at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId([u8; NONCE_BYTES]);

/// The secret that both sides share.
#[derive(Clone)]
pub struct WorkerSecret([u8; 32]);

/// Why a secret is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretFault {
    bytes: usize,
}

/// Why a ticket is refused. For the log of the worker. The client does not learn the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TicketFault {
    /// The request has no ticket.
    Missing,
    /// The ticket cannot be parsed.
    Malformed,
    /// The ticket has another version.
    Version(String),
    /// The ticket expired this many seconds ago.
    Expired(u64),
    /// The ticket is from this many seconds in the future.
    TooEarly(u64),
    /// The ticket was signed with another secret, or for another request.
    Signature,
    /// The ticket names no process, as those of older gateways. The secret was right.
    WithoutProcess,
    /// The ticket is for another worker, or for an earlier process of this one.
    OtherProcess,
    /// The ticket was used before.
    Replayed,
    /// The ticket is for another body.
    Body,
    /// Too many tickets would have to be remembered.
    TooMany,
}

/// Checks tickets and remembers the used ones.
pub struct TicketVerifier {
    secret: WorkerSecret,
    process: ProcessId,
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
            Self::WithoutProcess => write!(
                f,
                "a ticket of version `{WITHOUT_PROCESS}`, which could be used at several workers; `{VERSION}` is known here: update \
                 the gateway"
            ),
            Self::OtherProcess => f.write_str("a ticket for another worker, or from before this one started"),
            Self::Replayed => f.write_str("a ticket that was used before"),
            Self::Body => f.write_str("a ticket for another body"),
            Self::TooMany => f.write_str("more tickets within a minute than are remembered"),
        }
    }
}

impl ProcessId {
    /// The id in a ticket before the worker's process is known. No process has it.
    pub const UNKNOWN: Self = Self([0; NONCE_BYTES]);

    /// Draws a random id.
    ///
    /// # Errors
    /// This machine's random number generator failed.
    pub fn fresh() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; NONCE_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Returns the value of the `www-authenticate` header in which a worker reports its process id.
    pub fn challenge(&self) -> String {
        format!("{TICKET_SCHEME} {VERSION}.{self}")
    }

    /// Parses a [`ProcessId::challenge`]. Returns `None` if it is invalid.
    pub fn of_challenge(value: &str) -> Option<Self> {
        let (version, process) = value.strip_prefix(TICKET_SCHEME)?.strip_prefix(' ')?.split_once('.')?;
        if version == VERSION { nonce(process).map(Self) } else { None }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl WorkerSecret {
    /// Derives the secret from the text of a file or variable.
    ///
    /// # Errors
    /// The text is too short.
    pub fn new(text: &SecretString) -> Result<Self, SecretFault> {
        let text = text.expose_secret().trim();
        if text.len() < LEAST_SECRET_BYTES {
            return Err(SecretFault { bytes: text.len() });
        }
        Ok(Self(blake3::derive_key(CONTEXT, text.as_bytes())))
    }

    /// Returns the value of the `authorization` header for one request to a worker's process. Without a process id, the
    /// ticket is for older workers. Newer workers refuse it and report their own id, as they do for
    /// [`ProcessId::UNKNOWN`].
    ///
    /// # Errors
    /// This machine's random number generator failed.
    pub fn ticket(
        &self,
        process: Option<ProcessId>,
        (method, path): (&str, &str),
        body: &[u8],
        now: UnixNanos,
    ) -> Result<String, getrandom::Error> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce)?;
        let expires_s = now.seconds().saturating_add(TICKET_LIFE_S);
        Ok(self.signed(process, (method, path), body, (expires_s, nonce)))
    }

    fn signed(
        &self,
        process: Option<ProcessId>,
        asked: (&str, &str),
        body: &[u8],
        (expires_s, nonce): (u64, [u8; NONCE_BYTES]),
    ) -> String {
        let digest = blake3::hash(body);
        let mac = self.mac(process, asked, (expires_s, &nonce), &digest).to_hex();
        let nonce: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = digest.to_hex();
        match process {
            Some(process) => {
                format!("{TICKET_SCHEME} {VERSION}.{expires_s}.{nonce}.{process}.{digest}.{mac}")
            }
            None => format!("{TICKET_SCHEME} {WITHOUT_PROCESS}.{expires_s}.{nonce}.{digest}.{mac}"),
        }
    }

    /// Computes the MAC over everything that the ticket covers, each part with its length. Tickets with and without a
    /// process id therefore never have the same message.
    fn mac(
        &self,
        process: Option<ProcessId>,
        (method, path): (&str, &str),
        (expires_s, nonce): (u64, &[u8; NONCE_BYTES]),
        digest: &blake3::Hash,
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        let expires = expires_s.to_le_bytes();
        let process = process.as_ref().map(|process| process.0.as_slice());
        let parts = [method.as_bytes(), path.as_bytes(), &expires, nonce].into_iter();
        for part in parts.chain(process).chain([digest.as_bytes().as_slice()]) {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        hasher.finalize()
    }
}

impl fmt::Debug for WorkerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl TicketVerifier {
    /// Creates the checker for a process that has seen no tickets.
    pub fn new(secret: WorkerSecret, process: ProcessId) -> Self {
        Self { secret, process, shown: Mutex::default() }
    }

    /// Returns the process id that tickets must name.
    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }

    /// Checks and uses up the ticket of a request. It cannot be used again.
    ///
    /// # Errors
    /// Why the ticket is refused.
    pub(crate) fn take(
        &self,
        authorization: Option<&[u8]>,
        asked: (&str, &str),
        now: UnixNanos,
    ) -> Result<BodyDigest, TicketFault> {
        let TicketParts { expires_s, nonce, process, digest, mac } =
            parse(authorization.ok_or(TicketFault::Missing)?)?;
        // Hashes are compared in constant time.
        if self.secret.mac(process, asked, (expires_s, &nonce), &digest) != mac {
            return Err(TicketFault::Signature);
        }
        match process {
            None => return Err(TicketFault::WithoutProcess),
            Some(process) if process != self.process => return Err(TicketFault::OtherProcess),
            Some(_) => {}
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
        // Expired tickets are refused anyway, so they need not be remembered.
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
    /// Returns whether the ticket is for this body.
    pub(crate) fn is_of(&self, body: &[u8]) -> bool {
        blake3::hash(body) == self.0
    }
}

struct TicketParts {
    expires_s: u64,
    nonce: [u8; NONCE_BYTES],
    process: Option<ProcessId>,
    digest: blake3::Hash,
    mac: blake3::Hash,
}

fn parse(authorization: &[u8]) -> Result<TicketParts, TicketFault> {
    let text = std::str::from_utf8(authorization).map_err(|_| TicketFault::Malformed)?;
    let (scheme, ticket) = text.split_once(' ').ok_or(TicketFault::Malformed)?;
    if !scheme.eq_ignore_ascii_case(TICKET_SCHEME) {
        return Err(TicketFault::Missing);
    }
    let mut parts = ticket.split('.');
    let mut next = || parts.next().ok_or(TicketFault::Malformed);
    let version = next()?;
    if version != VERSION && version != WITHOUT_PROCESS {
        let shown: String = version.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        return Err(TicketFault::Version(shown));
    }
    let expires = next()?;
    let plain = !expires.is_empty() && expires.bytes().all(|byte| byte.is_ascii_digit());
    let expires_s = expires.parse().ok().filter(|_| plain).ok_or(TicketFault::Malformed)?;
    let mut number = || nonce(next()?).ok_or(TicketFault::Malformed);
    let shown = number()?;
    let process = if version == VERSION { Some(ProcessId(number()?)) } else { None };
    let mut hash = || blake3::Hash::from_hex(next()?).map_err(|_| TicketFault::Malformed);
    let (digest, mac) = (hash()?, hash()?);
    if parts.next().is_some() {
        return Err(TicketFault::Malformed);
    }
    Ok(TicketParts { expires_s, nonce: shown, process, digest, mac })
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

    fn secret(text: &str) -> WorkerSecret {
        WorkerSecret::new(&SecretString::from(text.repeat(4))).unwrap()
    }

    fn check(
        tickets: &TicketVerifier,
        ticket: &str,
        asked: (&str, &str),
        now_s: u64,
    ) -> Result<(), TicketFault> {
        tickets.take(Some(ticket.as_bytes()), asked, at(now_s)).map(drop)
    }

    const ASKED: (&str, &str) = ("POST", "/a");
    const HERE: ProcessId = ProcessId([7; NONCE_BYTES]);

    #[test]
    fn a_ticket_is_good_once_for_its_request_and_its_time() {
        let mine = secret("0123456789");
        let tickets = TicketVerifier::new(mine.clone(), HERE);
        let fresh = || mine.ticket(Some(HERE), ASKED, b"body", at(NOW_S)).unwrap();
        let ticket = fresh();
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S), Ok(()));
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S), Err(TicketFault::Replayed));
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + 60), Err(TicketFault::Replayed));
        assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + 61), Err(TicketFault::Expired(31)));
        assert_eq!(check(&tickets, &fresh(), ASKED, NOW_S - 30), Ok(()));
        assert_eq!(check(&tickets, &fresh(), ASKED, NOW_S - 31), Err(TicketFault::TooEarly(31)));
        assert_eq!(check(&tickets, &fresh(), ("GET", "/a"), NOW_S), Err(TicketFault::Signature));
        assert_eq!(check(&tickets, &fresh(), ("POST", "/b"), NOW_S), Err(TicketFault::Signature));
        let theirs = TicketVerifier::new(secret("abcdefghij"), HERE);
        assert_eq!(check(&theirs, &fresh(), ASKED, NOW_S), Err(TicketFault::Signature));
        let digest = tickets.take(Some(fresh().as_bytes()), ASKED, at(NOW_S)).unwrap();
        assert!(digest.is_of(b"body") && !digest.is_of(b"bodY") && !digest.is_of(b""));
    }

    #[test]
    fn a_ticket_is_good_at_one_process_of_one_worker() {
        let mine = secret("0123456789");
        let process = || ProcessId::fresh().unwrap();
        let (here, there) = (process(), process());
        let used = mine.ticket(Some(here), ASKED, b"body", at(NOW_S)).unwrap();
        let tickets = TicketVerifier::new(mine.clone(), here);
        assert_eq!(check(&tickets, &used, ASKED, NOW_S), Ok(()));
        // Another worker with the same secret, and the same one after a restart. Neither has seen the ticket.
        for other in [there, process()] {
            let tickets = TicketVerifier::new(mine.clone(), other);
            assert_eq!(check(&tickets, &used, ASKED, NOW_S), Err(TicketFault::OtherProcess));
            // Replacing the process id in the ticket does not help.
            let renamed = used.replace(&here.to_string(), &other.to_string());
            assert_eq!(check(&tickets, &renamed, ASKED, NOW_S), Err(TicketFault::Signature));
        }
        // A ticket of an older gateway is recognized and refused.
        let old = mine.ticket(None, ASKED, b"body", at(NOW_S)).unwrap();
        assert!(old.starts_with("Headrace-Ticket v1."), "{old}");
        assert_eq!(check(&tickets, &old, ASKED, NOW_S), Err(TicketFault::WithoutProcess));
        let theirs = secret("abcdefghij").ticket(None, ASKED, b"body", at(NOW_S)).unwrap();
        assert_eq!(check(&tickets, &theirs, ASKED, NOW_S), Err(TicketFault::Signature));
        let without = used.replace("v2", "v1").replace(&format!("{here}."), "");
        assert_eq!(check(&tickets, &without, ASKED, NOW_S), Err(TicketFault::Signature));
    }

    #[test]
    fn a_process_is_read_as_it_is_told() {
        let process = ProcessId::fresh().unwrap();
        assert_eq!(ProcessId::of_challenge(&process.challenge()), Some(process));
        for bad in
            ["", "Basic realm=x", "Headrace-Ticket v2.", "Headrace-Ticket v2.00", "Headrace-Ticket v1.0"]
        {
            assert_eq!(ProcessId::of_challenge(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_has_expired_is_forgotten_and_stays_refused() {
        let mine = secret("0123456789");
        let tickets = TicketVerifier::new(mine.clone(), HERE);
        for second in 0..200 {
            let ticket = mine.ticket(Some(HERE), ASKED, b"", at(NOW_S + second)).unwrap();
            assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + second), Ok(()));
            assert_eq!(check(&tickets, &ticket, ASKED, NOW_S + second), Err(TicketFault::Replayed));
            assert!(tickets.shown.lock().len() <= 62);
        }
    }

    /// Changing any character makes the ticket invalid.
    #[test]
    fn a_ticket_that_was_touched_is_refused() {
        let mine = secret("0123456789");
        let tickets = TicketVerifier::new(mine.clone(), HERE);
        let ticket = mine.ticket(Some(HERE), ASKED, b"body", at(NOW_S)).unwrap();
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
            ("Headrace-Ticket v3.1.2.3", TicketFault::Version("v3".to_owned())),
            ("Headrace-Ticket v2.1.2.3", TicketFault::Malformed),
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
        let error = WorkerSecret::new(&short).unwrap_err().to_string();
        assert!(error.contains("32 or more") && !error.contains("thirty"), "{error}");
        let shown = format!("{:?}", secret("0123456789"));
        assert_eq!(shown, "Secret(..)");
    }
}
