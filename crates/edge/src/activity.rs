//! The state of one connection, as far as its time limits depend on it. Shared between its socket, its requests and the
//! task that enforces the limits. Must not know HTTP.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headrace_call_api::{AbortReason, ClientCertificate, TransportOutlet};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::peer::RefusalAllowance;

/// The value for "not now" in fields that hold milliseconds.
const NEVER: u64 = u64::MAX;
/// Maximum number of refusals on one connection whose peer has shown no valid key. The last one ends the connection.
const MOST_REFUSALS: u32 = 16;
/// Idle time after which the buffers of a connection are freed.
const RESTS_AFTER: Duration = Duration::from_millis(500);
/// Time that a new connection has for its first request before it may be displaced like an idle one.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Time that a peer with nothing but refusals has to read the last one.
const PARTING: Duration = Duration::from_secs(1);

/// The time limits that are enforced here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTimeouts {
    pub(crate) header: Duration,
    pub(crate) write: Duration,
    pub(crate) idle: Duration,
}

/// The result of checking a connection against its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeoutVerdict {
    /// No limit is exceeded. Check again at this time at the latest.
    Fine(Instant),
    /// The headers took too long.
    SlowHeaders,
    /// The peer does not read.
    SlowReader,
    /// The connection had no request for too long.
    Idle,
}

/// What the server asks a connection to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerWish {
    /// Continue.
    Serve,
    /// Close after the next answer, because the server accepts calls only for a while. Requests that arrive in the
    /// meantime are not refused.
    Retire,
    /// Finish the requests in flight, then close.
    Finish,
    /// Close, because the connection's place was given to another one. Requests that arrived in the meantime are
    /// finished first.
    Yield,
    /// Close at once.
    Close,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    start: Instant,
    /// Number of requests that are being processed or streamed.
    in_flight: AtomicUsize,
    requests: AtomicU64,
    last_event_ms: AtomicU64,
    head_since_ms: AtomicU64,
    write_blocked_since_ms: AtomicU64,
    ambiguous_from: AtomicU64,
    body_left_unread: AtomicU8,
    abort_reason: AtomicU8,
    wish: AtomicU8,
    wished: Notify,
    refusals: AtomicU32,
    is_trusted: AtomicBool,
    /// The connection continues with another protocol.
    has_switched: AtomicBool,
    allowance: Arc<RefusalAllowance>,
    /// The certificate that the client showed in the handshake.
    certificate: OnceLock<Arc<ClientCertificate>>,
}

impl TransportOutlet for ConnectionActivity {
    fn blocked_for(&self) -> Duration {
        match self.write_blocked_since_ms.load(Ordering::Acquire) {
            NEVER => Duration::ZERO,
            since => Duration::from_millis(self.now_ms().saturating_sub(since)),
        }
    }
}

impl ConnectionActivity {
    pub(crate) fn new(allowance: Arc<RefusalAllowance>, wish: ServerWish) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            in_flight: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            last_event_ms: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(NEVER),
            write_blocked_since_ms: AtomicU64::new(NEVER),
            ambiguous_from: AtomicU64::new(NEVER),
            body_left_unread: AtomicU8::new(0),
            abort_reason: AtomicU8::new(0),
            wish: AtomicU8::new(wish as u8),
            wished: Notify::new(),
            refusals: AtomicU32::new(0),
            is_trusted: AtomicBool::new(false),
            has_switched: AtomicBool::new(false),
            allowance,
            certificate: OnceLock::new(),
        })
    }

    /// Records the certificate of the client. Only the first one counts.
    pub(crate) fn show_certificate(&self, certificate: ClientCertificate) {
        // A connection has one handshake.
        let _ = self.certificate.set(Arc::new(certificate));
    }

    /// The certificate of the client, if it showed one.
    pub(crate) fn certificate(&self) -> Option<&Arc<ClientCertificate>> {
        self.certificate.get()
    }

    /// Records that a request's headers are complete. Returns the request's number on the connection, and a guard to
    /// keep while the request is in flight.
    pub(crate) fn request(self: &Arc<Self>) -> (u64, InFlight) {
        // The end of the request updates the time of the last event. Until then that time is not used.
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        (self.requests.fetch_add(1, Ordering::AcqRel), InFlight(Arc::clone(self)))
    }

    /// Returns nanoseconds since the connection was accepted.
    pub(crate) fn age_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the number of requests with complete headers.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Acquire)
    }

    /// Records an event that shows a living peer.
    pub(crate) fn touch(&self) {
        self.last_event_ms.store(self.now_ms(), Ordering::Release);
    }

    /// Records that a head began.
    pub(crate) fn head_began(&self) {
        self.head_since_ms.store(self.now_ms(), Ordering::Release);
    }

    /// Records that no head is being read.
    pub(crate) fn head_ended(&self) {
        self.head_since_ms.store(NEVER, Ordering::Release);
    }

    /// Records that the socket currently accepts no bytes.
    pub(crate) fn write_blocked(&self) {
        if self.write_blocked_since_ms.load(Ordering::Acquire) == NEVER {
            self.write_blocked_since_ms.store(self.now_ms(), Ordering::Release);
        }
    }

    /// Records that the socket accepted bytes.
    pub(crate) fn write_went_on(&self) {
        self.write_blocked_since_ms.store(NEVER, Ordering::Release);
    }

    /// Records that the body length of this head, and of all later ones, cannot be trusted.
    pub(crate) fn ambiguous_from(&self, head: u64) {
        self.ambiguous_from.fetch_min(head, Ordering::AcqRel);
    }

    /// Returns whether this head is ambiguous.
    pub(crate) fn is_ambiguous(&self, head: u64) -> bool {
        head >= self.ambiguous_from.load(Ordering::Acquire)
    }

    /// Records that a request was answered before its body was read, so the peer may still be sending.
    pub(crate) fn leave_body_unread(&self) {
        self.body_left_unread.store(1, Ordering::Release);
    }

    pub(crate) fn left_body_unread(&self) -> bool {
        self.body_left_unread.load(Ordering::Acquire) != 0
    }

    /// Records why the server is about to close the connection under its peer.
    pub(crate) fn set_abort_reason(&self, reason: AbortReason) {
        let reason = if reason == AbortReason::ReaderStalled { 1 } else { 2 };
        let _ = self.abort_reason.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns why the server closed the connection under its peer, if it did.
    pub(crate) fn abort_reason(&self) -> Option<AbortReason> {
        match self.abort_reason.load(Ordering::Acquire) {
            0 => None,
            1 => Some(AbortReason::ReaderStalled),
            _ => Some(AbortReason::ShuttingDown),
        }
    }

    /// Returns whether bytes of an answer wait or a request is in flight. Nothing may be written in between then.
    pub(crate) fn is_answering(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
            || self.write_blocked_since_ms.load(Ordering::Acquire) != NEVER
    }

    /// Returns since when the connection is idle. `None` while a request is in flight or an answer is being written.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        // The order matters: the end of the last request stores the time before it decrements the count.
        (!self.is_answering())
            .then(|| self.start + Duration::from_millis(self.last_event_ms.load(Ordering::Acquire)))
    }

    /// Returns since when the connection may be displaced by another one, or `None` while it is busy. A connection
    /// without a valid key does not count as busy while its peer does not read the answer.
    pub(crate) fn gives_way_since(&self) -> Option<Instant> {
        let is_blocked = self.write_blocked_since_ms.load(Ordering::Acquire) != NEVER;
        let is_at_work = match self.is_trusted() {
            true => self.is_answering(),
            false => self.in_flight.load(Ordering::Acquire) > 0 && !is_blocked,
        };
        (!is_at_work).then(|| self.start + Duration::from_millis(self.last_event_ms.load(Ordering::Acquire)))
    }

    /// Returns whether the first request may still be on its way. On a busy machine the server may see it later than
    /// newer connections.
    pub(crate) fn is_new(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0 && self.start.elapsed() < FIRST_REQUEST
    }

    /// Returns whether the connection has been idle for a while, and nothing of a next request has arrived.
    pub(crate) fn may_rest(&self) -> bool {
        let quiet = self.idle_since().is_some_and(|since| since.elapsed() >= RESTS_AFTER);
        quiet && !self.is_in_head() && !self.left_body_unread() && self.wished() < ServerWish::Finish
    }

    /// Returns whether the peer has used up its allowance of refusals.
    pub(crate) fn is_refused_too_often(&self) -> bool {
        self.allowance.is_used_up()
    }

    /// Records a refusal that was sent to a peer without a valid key.
    pub(crate) fn refused(&self) {
        self.allowance.refused();
        let refusals = self.refusals.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        if refusals >= MOST_REFUSALS && !self.is_trusted() {
            self.wish(ServerWish::Finish);
        }
    }

    /// Returns whether the connection has had nothing but refusals.
    fn is_only_refused(&self) -> bool {
        !self.is_trusted() && self.refusals.load(Ordering::Acquire) > 0
    }

    /// Returns whether the connection has had nothing but refusals and is to end.
    pub(crate) fn has_been_refused_enough(&self) -> bool {
        self.is_only_refused() && self.wished() >= ServerWish::Finish
    }

    /// Returns how long a peer may take to leave after it was asked to.
    pub(crate) fn parting(&self, patience: &ConnectionTimeouts) -> Duration {
        if self.is_only_refused() { patience.header.min(PARTING) } else { patience.header }
    }

    /// Records that a request on the connection has shown a valid key.
    pub(crate) fn trust(&self) {
        if !self.is_trusted() {
            self.is_trusted.store(true, Ordering::Release);
            // Wakes the connection, which may be holding back what the peer sent.
            self.wished.notify_one();
        }
    }

    /// Returns whether a request on the connection has shown a valid key.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Acquire)
    }

    /// Records that the connection continues with another protocol after the current answer.
    pub(crate) fn switch(&self) {
        self.has_switched.store(true, Ordering::Release);
    }

    /// Returns whether the connection continues with another protocol.
    pub(crate) fn has_switched(&self) -> bool {
        self.has_switched.load(Ordering::Acquire)
    }

    /// Returns whether part of a head has arrived.
    pub(crate) fn is_in_head(&self) -> bool {
        self.head_since_ms.load(Ordering::Acquire) != NEVER
    }

    /// Asks the connection to finish or close.
    pub(crate) fn wish(&self, wish: ServerWish) {
        self.wish.fetch_max(wish as u8, Ordering::AcqRel);
        self.wished.notify_one();
    }

    /// Makes the connection check its wish once more.
    pub(crate) fn remind(&self) {
        self.wished.notify_one();
    }

    /// Returns the strongest wish so far.
    pub(crate) fn wished(&self) -> ServerWish {
        match self.wish.load(Ordering::Acquire) {
            0 => ServerWish::Serve,
            1 => ServerWish::Retire,
            2 => ServerWish::Finish,
            3 => ServerWish::Yield,
            _ => ServerWish::Close,
        }
    }

    /// Resolves when a wish is made, or when the connection must be checked for another reason.
    pub(crate) async fn next_wish(&self) {
        self.wished.notified().await;
    }

    /// Checks the connection against its time limits.
    pub(crate) fn judge(&self, patience: &ConnectionTimeouts) -> TimeoutVerdict {
        let now = self.now_ms();
        // Checks happen at least as often as the shortest limit lasts. Every wait that begins after one check is
        // therefore seen by the next check before it can be overdue.
        let mut look = now.saturating_add(ms(patience.header.min(patience.write)));
        let blocked = self.write_blocked_since_ms.load(Ordering::Acquire);
        if blocked != NEVER {
            let due = blocked.saturating_add(ms(patience.write));
            if due <= now {
                return TimeoutVerdict::SlowReader;
            }
            look = look.min(due);
        }
        if self.in_flight.load(Ordering::Acquire) == 0 {
            let head = self.head_since_ms.load(Ordering::Acquire);
            let (due, verdict) = if head != NEVER {
                (head.saturating_add(ms(patience.header)), TimeoutVerdict::SlowHeaders)
            } else if self.requests.load(Ordering::Acquire) == 0 {
                // A connection without any request does not get the keep-alive time.
                (ms(patience.header), TimeoutVerdict::Idle)
            } else {
                let last = self.last_event_ms.load(Ordering::Acquire);
                // A connection with nothing but refusals does not get it either.
                let idle = match self.is_only_refused() {
                    true if self.wished() >= ServerWish::Finish => self.parting(patience),
                    true => patience.idle.min(patience.header),
                    false => patience.idle,
                };
                (last.saturating_add(ms(idle)), TimeoutVerdict::Idle)
            };
            if due <= now {
                return verdict;
            }
            look = look.min(due);
        }
        TimeoutVerdict::Fine(self.start + Duration::from_millis(look))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }
}

/// Converts a limit to milliseconds, at least one. Zero would make the checks a busy loop.
fn ms(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(NEVER - 1).max(1)
}

/// A request in flight. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<ConnectionActivity>);

impl InFlight {
    pub(crate) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.touch();
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{PeerKey, RefusalAllowances};

    const PATIENCE: ConnectionTimeouts = ConnectionTimeouts {
        header: Duration::from_secs(10),
        write: Duration::from_secs(30),
        idle: Duration::from_secs(90),
    };

    fn fresh() -> Arc<ConnectionActivity> {
        ConnectionActivity::new(RefusalAllowances::new(60).of(PeerKey::V4([127, 0, 0, 1])), ServerWish::Serve)
    }

    fn after(seconds: u64) -> impl Future<Output = ()> {
        tokio::time::advance(Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn each_limit_acts_when_due_and_not_before() {
        let activity = fresh();
        assert!(matches!(activity.judge(&PATIENCE), TimeoutVerdict::Fine(_)));
        after(10).await;
        assert_eq!(activity.judge(&PATIENCE), TimeoutVerdict::Idle, "never sent anything");

        let activity = fresh();
        after(5).await;
        activity.head_began();
        after(9).await;
        assert!(matches!(activity.judge(&PATIENCE), TimeoutVerdict::Fine(_)));
        after(1).await;
        assert_eq!(activity.judge(&PATIENCE), TimeoutVerdict::SlowHeaders);

        activity.head_ended();
        let (number, guard) = activity.request();
        assert_eq!(number, 0);
        after(1_000).await;
        assert!(
            matches!(activity.judge(&PATIENCE), TimeoutVerdict::Fine(_)),
            "a slow answer is not the peer's fault"
        );
        activity.write_blocked();
        after(20).await;
        activity.write_blocked();
        assert!(matches!(activity.judge(&PATIENCE), TimeoutVerdict::Fine(_)));
        after(10).await;
        assert_eq!(activity.judge(&PATIENCE), TimeoutVerdict::SlowReader);

        activity.write_went_on();
        drop(guard);
        after(89).await;
        assert!(matches!(activity.judge(&PATIENCE), TimeoutVerdict::Fine(_)));
        after(1).await;
        assert_eq!(activity.judge(&PATIENCE), TimeoutVerdict::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn only_who_has_nothing_to_do_and_nothing_begun_may_rest() {
        let activity = fresh();
        assert!(!activity.may_rest());
        after(1).await;
        assert!(activity.may_rest());
        let (_, guard) = activity.request();
        after(1).await;
        assert!(!activity.may_rest(), "it is being answered");
        drop(guard);
        assert!(!activity.may_rest(), "it may have more to ask at once");
        after(1).await;
        assert!(activity.may_rest());
        activity.write_blocked();
        assert!(!activity.may_rest(), "the peer has not taken all of its answer");
        activity.write_went_on();
        activity.head_began();
        assert!(!activity.may_rest(), "a part of its next head is here");
        activity.head_ended();
        assert!(activity.may_rest());
        activity.wish(ServerWish::Finish);
        assert!(!activity.may_rest(), "it is to end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_is_never_further_away_than_the_shortest_limit() {
        let activity = fresh();
        let (_, guard) = activity.request();
        drop(guard);
        let TimeoutVerdict::Fine(look) = activity.judge(&PATIENCE) else { panic!() };
        assert!(look - Instant::now() <= PATIENCE.header);
    }
}
