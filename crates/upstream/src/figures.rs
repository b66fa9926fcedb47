//! Counters of one server's calls. Must not know a connection or metric names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_engine_api::RelayError;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Kinds of failures, as figures name them.
pub const FAILURES: [&str; 8] =
    ["connect", "timeout", "status", "redirect", "not_the_dialect", "too_large", "cut", "unavailable"];

/// Statistics of one server's calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerFigures {
    /// Calls in progress.
    pub in_flight: u64,
    /// Calls that wait for a place.
    pub waiting: u64,
    /// Calls since the start, including those in progress.
    pub calls: u64,
    /// Calls whose answer was dropped before its end.
    pub given_up: u64,
    /// Failures by kind, in the order of [`FAILURES`].
    pub failures: [u64; FAILURES.len()],
    /// Answers with a status of 500 or more. Included in `status`.
    pub server_errors: u64,
    /// Answers with status 429. Included in `status`.
    pub rate_limited: u64,
    /// Bytes of bodies sent.
    pub bytes_sent: u64,
    /// Bytes of bodies received.
    pub bytes_received: u64,
    /// The last error.
    pub last_error: Option<String>,
    /// Time since the last error.
    pub last_error_age: Option<Duration>,
    /// Time since the last bytes from the server.
    pub last_contact_age: Option<Duration>,
    /// Why the last connection attempt failed. `None` if bytes from the server arrived since.
    pub down: Option<String>,
}

/// The counters behind [`ServerFigures`].
#[derive(Debug)]
pub(crate) struct ServerCounters {
    born: Instant,
    in_flight: AtomicU64,
    calls: AtomicU64,
    given_up: AtomicU64,
    failures: [AtomicU64; FAILURES.len()],
    server_errors: AtomicU64,
    rate_limited: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    /// Nanoseconds since `born`, plus one. 0 means never.
    last_contact: AtomicU64,
    last_error: Mutex<Option<(String, Instant)>>,
    /// Time of the last failed connection attempt: nanoseconds since `born`, plus one. 0 means never.
    last_unreached: AtomicU64,
    unreached: Mutex<Option<String>>,
    /// Notified after every failed connection attempt.
    unreached_now: Arc<Notify>,
}

impl ServerCounters {
    pub(crate) fn new() -> Self {
        Self {
            born: Instant::now(),
            in_flight: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            failures: Default::default(),
            server_errors: AtomicU64::new(0),
            rate_limited: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
            last_contact: AtomicU64::new(0),
            last_error: Mutex::new(None),
            last_unreached: AtomicU64::new(0),
            unreached: Mutex::new(None),
            unreached_now: Arc::default(),
        }
    }

    /// Nanoseconds since `born`, plus one.
    fn moment(&self) -> u64 {
        let now = u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX);
        now.saturating_add(1)
    }

    pub(crate) fn begin(&self, bytes: usize) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        add(&self.bytes_sent, bytes);
    }

    pub(crate) fn end(&self, given_up: bool) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        add(&self.given_up, usize::from(given_up));
    }

    /// Records that bytes arrived.
    pub(crate) fn received(&self, bytes: usize) {
        add(&self.bytes_received, bytes);
        self.last_contact.store(self.moment(), Ordering::Relaxed);
    }

    /// Records that a call or a question got no answer, and whether the server could be reached at all.
    pub(crate) fn unanswered(&self, error: &RelayError) {
        let is_unreached = match error {
            RelayError::Connect { .. } | RelayError::ConnectTimeout { .. } => true,
            RelayError::Timeout { .. }
            | RelayError::Status { .. }
            | RelayError::Redirect { .. }
            | RelayError::NotTheDialect { .. }
            | RelayError::TooLarge { .. }
            | RelayError::NoMemory
            | RelayError::Cut { .. }
            | RelayError::Unavailable { .. } => false,
        };
        if is_unreached {
            *self.unreached.lock() = Some(error.to_string());
            self.last_unreached.store(self.moment(), Ordering::Relaxed);
            self.unreached_now.notify_one();
        }
    }

    pub(crate) fn unreached_now(&self) -> Arc<Notify> {
        Arc::clone(&self.unreached_now)
    }

    pub(crate) fn failed(&self, error: &RelayError) {
        let kind = match error {
            RelayError::Connect { .. } => 0,
            RelayError::ConnectTimeout { .. } | RelayError::Timeout { .. } => 1,
            RelayError::Status { .. } => 2,
            RelayError::Redirect { .. } => 3,
            RelayError::NotTheDialect { .. } => 4,
            RelayError::TooLarge { .. } => 5,
            // This is no fault of the upstream.
            RelayError::NoMemory => return,
            RelayError::Cut { .. } => 6,
            RelayError::Unavailable { .. } => 7,
        };
        if let Some(counter) = self.failures.get(kind) {
            add(counter, 1);
        }
        if let RelayError::Status { status, .. } = error {
            add(&self.server_errors, usize::from(*status >= 500));
            add(&self.rate_limited, usize::from(*status == 429));
        }
        self.unanswered(error);
        *self.last_error.lock() = Some((error.to_string(), Instant::now()));
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self, waiting: usize) -> ServerFigures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let last_error = self.last_error.lock().clone();
        let contact = of(&self.last_contact).checked_sub(1).map(Duration::from_nanos);
        let is_down = of(&self.last_unreached) > of(&self.last_contact);
        let waiting = waiting as u64;
        ServerFigures {
            in_flight: self.in_flight().saturating_sub(waiting),
            waiting,
            calls: of(&self.calls),
            given_up: of(&self.given_up),
            failures: self.failures.each_ref().map(of),
            server_errors: of(&self.server_errors),
            rate_limited: of(&self.rate_limited),
            bytes_sent: of(&self.bytes_sent),
            bytes_received: of(&self.bytes_received),
            last_error_age: last_error.as_ref().map(|(_, at)| at.elapsed()),
            last_error: last_error.map(|(text, _)| text),
            down: is_down.then(|| self.unreached.lock().clone()).flatten(),
            last_contact_age: contact.map(|at| self.born.elapsed().saturating_sub(at)),
        }
    }
}

fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}
