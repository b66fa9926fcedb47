//! What one connection is doing, as far as its time limits need to know. Shared between its socket, its requests and
//! the task that watches over it. Knows no HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use headrace_call_api::{GiveUp, Outlet};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::peer::Allowance;

/// "Not now" among times in milliseconds.
const NEVER: u64 = u64::MAX;
/// Refusals that are told on one connection whose peer has shown no good key; with the last of them it ends.
const MOST_REFUSALS: u32 = 16;
/// For how long a connection has had nothing to do whose buffers are let go.
const RESTS_AFTER: Duration = Duration::from_millis(500);
/// How long a new connection has to send its first request before it gives way like an idle one.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// How long a peer that was only refused may take to read the last of it.
const PARTING: Duration = Duration::from_secs(1);

/// The limits that are watched here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) header: Duration,
    pub(crate) write: Duration,
    pub(crate) idle: Duration,
}

/// What the limits say about a connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing; look again no later than this.
    Fine(Instant),
    /// The headers took too long.
    SlowHeaders,
    /// The peer does not read.
    SlowReader,
    /// No request for too long.
    Idle,
}

/// What the server wants of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// To go on.
    Serve,
    /// To close after its next answer: the server takes calls for a while only. Nothing that comes meanwhile is refused.
    Retire,
    /// To finish what is in flight and close.
    Finish,
    /// To close, for its place is another's now; what has come in flight meanwhile finishes first.
    Yield,
    /// To close at once.
    Close,
}

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    /// Requests being worked on or streamed.
    in_flight: AtomicUsize,
    requests: AtomicU64,
    last_event_ms: AtomicU64,
    head_since_ms: AtomicU64,
    write_blocked_since_ms: AtomicU64,
    ambiguous_from: AtomicU64,
    body_left_unread: AtomicU8,
    let_go: AtomicU8,
    wish: AtomicU8,
    wished: Notify,
    refusals: AtomicU32,
    is_trusted: AtomicBool,
    /// It goes on in another protocol.
    has_switched: AtomicBool,
    allowance: Arc<Allowance>,
}

impl Outlet for Activity {
    fn blocked_for(&self) -> Duration {
        match self.write_blocked_since_ms.load(Ordering::Acquire) {
            NEVER => Duration::ZERO,
            since => Duration::from_millis(self.now_ms().saturating_sub(since)),
        }
    }
}

impl Activity {
    pub(crate) fn new(allowance: Arc<Allowance>, wish: Wish) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            in_flight: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            last_event_ms: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(NEVER),
            write_blocked_since_ms: AtomicU64::new(NEVER),
            ambiguous_from: AtomicU64::new(NEVER),
            body_left_unread: AtomicU8::new(0),
            let_go: AtomicU8::new(0),
            wish: AtomicU8::new(wish as u8),
            wished: Notify::new(),
            refusals: AtomicU32::new(0),
            is_trusted: AtomicBool::new(false),
            has_switched: AtomicBool::new(false),
            allowance,
        })
    }

    /// A request's headers are whole. Returns its number on the connection and a guard to be kept while it is in
    /// flight.
    pub(crate) fn request(self: &Arc<Self>) -> (u64, InFlight) {
        // When it ends is noted then: until then nobody asks when something happened last.
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        (self.requests.fetch_add(1, Ordering::AcqRel), InFlight(Arc::clone(self)))
    }

    /// Nanoseconds since the connection was taken.
    pub(crate) fn age_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How many requests' headers were whole.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Acquire)
    }

    /// Something happened that shows a living peer.
    pub(crate) fn touch(&self) {
        self.last_event_ms.store(self.now_ms(), Ordering::Release);
    }

    /// A head began.
    pub(crate) fn head_began(&self) {
        self.head_since_ms.store(self.now_ms(), Ordering::Release);
    }

    /// No head is being read.
    pub(crate) fn head_ended(&self) {
        self.head_since_ms.store(NEVER, Ordering::Release);
    }

    /// The socket takes no more bytes now.
    pub(crate) fn write_blocked(&self) {
        if self.write_blocked_since_ms.load(Ordering::Acquire) == NEVER {
            self.write_blocked_since_ms.store(self.now_ms(), Ordering::Release);
        }
    }

    /// It took some.
    pub(crate) fn write_went_on(&self) {
        self.write_blocked_since_ms.store(NEVER, Ordering::Release);
    }

    /// The head of this number, and so all after it, cannot be trusted to say where its body ends.
    pub(crate) fn ambiguous_from(&self, head: u64) {
        self.ambiguous_from.fetch_min(head, Ordering::AcqRel);
    }

    /// Whether the head of this number is such a one.
    pub(crate) fn is_ambiguous(&self, head: u64) -> bool {
        head >= self.ambiguous_from.load(Ordering::Acquire)
    }

    /// A request was answered before its body was read: the peer may still be sending.
    pub(crate) fn leave_body_unread(&self) {
        self.body_left_unread.store(1, Ordering::Release);
    }

    pub(crate) fn left_body_unread(&self) -> bool {
        self.body_left_unread.load(Ordering::Acquire) != 0
    }

    /// The connection is about to be closed under its peer, for this reason.
    pub(crate) fn let_go_for(&self, why: GiveUp) {
        let why = if why == GiveUp::ReaderStalled { 1 } else { 2 };
        let _ = self.let_go.compare_exchange(0, why, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Why the connection was closed under its peer, if it was.
    pub(crate) fn let_go(&self) -> Option<GiveUp> {
        match self.let_go.load(Ordering::Acquire) {
            0 => None,
            1 => Some(GiveUp::ReaderStalled),
            _ => Some(GiveUp::ShuttingDown),
        }
    }

    /// Whether bytes of an answer wait or a request is in flight, so that nothing may be written in between.
    pub(crate) fn is_answering(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
            || self.write_blocked_since_ms.load(Ordering::Acquire) != NEVER
    }

    /// Since when it has had nothing to do; `None` while a request is in flight or an answer is written.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        // In this order: whoever ends the last request notes when before it counts as ended.
        (!self.is_answering())
            .then(|| self.start + Duration::from_millis(self.last_event_ms.load(Ordering::Acquire)))
    }

    /// Since when it may give way to another connection. `None` while it is at work. A peer without a good key is not at work
    /// while it takes nothing of its answer.
    pub(crate) fn gives_way_since(&self) -> Option<Instant> {
        let is_blocked = self.write_blocked_since_ms.load(Ordering::Acquire) != NEVER;
        let is_at_work = match self.is_trusted() {
            true => self.is_answering(),
            false => self.in_flight.load(Ordering::Acquire) > 0 && !is_blocked,
        };
        (!is_at_work).then(|| self.start + Duration::from_millis(self.last_event_ms.load(Ordering::Acquire)))
    }

    /// Whether its first request may still be on its way: on a busy machine the server may see it later than newer connections.
    pub(crate) fn is_new(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0 && self.start.elapsed() < FIRST_REQUEST
    }

    /// Whether it has had nothing to do for a while, and nothing of a next request is here.
    pub(crate) fn may_rest(&self) -> bool {
        let quiet = self.idle_since().is_some_and(|since| since.elapsed() >= RESTS_AFTER);
        quiet && !self.is_in_head() && !self.left_body_unread() && self.wished() < Wish::Finish
    }

    /// Whether the peer was told all the refusals that it may be told for now.
    pub(crate) fn is_refused_too_often(&self) -> bool {
        self.allowance.is_used_up()
    }

    /// The peer was told a refusal that needs no key.
    pub(crate) fn refused(&self) {
        self.allowance.refused();
        let told = self.refusals.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        if told >= MOST_REFUSALS && !self.is_trusted() {
            self.wish(Wish::Finish);
        }
    }

    /// Whether nothing was told on it but refusals.
    fn is_only_refused(&self) -> bool {
        !self.is_trusted() && self.refusals.load(Ordering::Acquire) > 0
    }

    /// Whether nothing more is to be heard of a peer that was only refused.
    pub(crate) fn has_been_refused_enough(&self) -> bool {
        self.is_only_refused() && self.wished() >= Wish::Finish
    }

    /// How long a peer may take to go that was asked to.
    pub(crate) fn parting(&self, patience: &Patience) -> Duration {
        if self.is_only_refused() { patience.header.min(PARTING) } else { patience.header }
    }

    /// A request on it showed a good key.
    pub(crate) fn trust(&self) {
        if !self.is_trusted() {
            self.is_trusted.store(true, Ordering::Release);
            // The connection may hold back what the peer sent.
            self.wished.notify_one();
        }
    }

    /// Whether a request on it has shown a good key.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Acquire)
    }

    /// Behind the answer that is under way it goes on in another protocol.
    pub(crate) fn switch(&self) {
        self.has_switched.store(true, Ordering::Release);
    }

    /// Whether it goes on in another protocol.
    pub(crate) fn has_switched(&self) -> bool {
        self.has_switched.load(Ordering::Acquire)
    }

    /// Whether part of a head has arrived.
    pub(crate) fn is_in_head(&self) -> bool {
        self.head_since_ms.load(Ordering::Acquire) != NEVER
    }

    /// Asks the connection to finish or close.
    pub(crate) fn wish(&self, wish: Wish) {
        self.wish.fetch_max(wish as u8, Ordering::AcqRel);
        self.wished.notify_one();
    }

    /// Has the connection look at its wish once more.
    pub(crate) fn remind(&self) {
        self.wished.notify_one();
    }

    /// What is wished now.
    pub(crate) fn wished(&self) -> Wish {
        match self.wish.load(Ordering::Acquire) {
            0 => Wish::Serve,
            1 => Wish::Retire,
            2 => Wish::Finish,
            3 => Wish::Yield,
            _ => Wish::Close,
        }
    }

    /// Resolves when a wish is made, or the connection is to be looked after for another reason.
    pub(crate) async fn next_wish(&self) {
        self.wished.notified().await;
    }

    /// Holds the clock against the limits.
    pub(crate) fn judge(&self, patience: &Patience) -> Verdict {
        let now = self.now_ms();
        // Looking at least as often as the shorter limits last keeps each of them exact: whatever begins after a look
        // is seen by the next one, before it can be overdue.
        let mut look = now.saturating_add(ms(patience.header.min(patience.write)));
        let blocked = self.write_blocked_since_ms.load(Ordering::Acquire);
        if blocked != NEVER {
            let due = blocked.saturating_add(ms(patience.write));
            if due <= now {
                return Verdict::SlowReader;
            }
            look = look.min(due);
        }
        if self.in_flight.load(Ordering::Acquire) == 0 {
            let head = self.head_since_ms.load(Ordering::Acquire);
            let (due, verdict) = if head != NEVER {
                (head.saturating_add(ms(patience.header)), Verdict::SlowHeaders)
            } else if self.requests.load(Ordering::Acquire) == 0 {
                // A connection opened for nothing is not worth a keep-alive.
                (ms(patience.header), Verdict::Idle)
            } else {
                let last = self.last_event_ms.load(Ordering::Acquire);
                // Neither is one on which nothing was told but refusals.
                let idle = match self.is_only_refused() {
                    true if self.wished() >= Wish::Finish => self.parting(patience),
                    true => patience.idle.min(patience.header),
                    false => patience.idle,
                };
                (last.saturating_add(ms(idle)), Verdict::Idle)
            };
            if due <= now {
                return verdict;
            }
            look = look.min(due);
        }
        Verdict::Fine(self.start + Duration::from_millis(look))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }
}

/// A limit in milliseconds, at least one: less would be looked at without a pause.
fn ms(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(NEVER - 1).max(1)
}

/// A request in flight; dropping it is the end of it.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Activity>);

impl InFlight {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
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
    use crate::peer::{Allowances, Peer};

    const PATIENCE: Patience = Patience {
        header: Duration::from_secs(10),
        write: Duration::from_secs(30),
        idle: Duration::from_secs(90),
    };

    fn fresh() -> Arc<Activity> {
        Activity::new(Allowances::new(60).of(Peer::V4([127, 0, 0, 1])), Wish::Serve)
    }

    fn after(seconds: u64) -> impl Future<Output = ()> {
        tokio::time::advance(Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn each_limit_acts_when_due_and_not_before() {
        let activity = fresh();
        assert!(matches!(activity.judge(&PATIENCE), Verdict::Fine(_)));
        after(10).await;
        assert_eq!(activity.judge(&PATIENCE), Verdict::Idle, "never sent anything");

        let activity = fresh();
        after(5).await;
        activity.head_began();
        after(9).await;
        assert!(matches!(activity.judge(&PATIENCE), Verdict::Fine(_)));
        after(1).await;
        assert_eq!(activity.judge(&PATIENCE), Verdict::SlowHeaders);

        activity.head_ended();
        let (number, guard) = activity.request();
        assert_eq!(number, 0);
        after(1_000).await;
        assert!(
            matches!(activity.judge(&PATIENCE), Verdict::Fine(_)),
            "a slow answer is not the peer's fault"
        );
        activity.write_blocked();
        after(20).await;
        activity.write_blocked();
        assert!(matches!(activity.judge(&PATIENCE), Verdict::Fine(_)));
        after(10).await;
        assert_eq!(activity.judge(&PATIENCE), Verdict::SlowReader);

        activity.write_went_on();
        drop(guard);
        after(89).await;
        assert!(matches!(activity.judge(&PATIENCE), Verdict::Fine(_)));
        after(1).await;
        assert_eq!(activity.judge(&PATIENCE), Verdict::Idle);
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
        activity.wish(Wish::Finish);
        assert!(!activity.may_rest(), "it is to end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_is_never_further_away_than_the_shortest_limit() {
        let activity = fresh();
        let (_, guard) = activity.request();
        drop(guard);
        let Verdict::Fine(look) = activity.judge(&PATIENCE) else { panic!() };
        assert!(look - Instant::now() <= PATIENCE.header);
    }
}
