//! The hold keeper: one ticker for all calls in flight. It prompts each call to check its own deadlines, and it keeps
//! holds from expiring. A timer per call would cost each call more than all its checks. Must not know what a call
//! checks.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use headrace_domain::{Clock, HoldId, KeyId, UnixNanos};
use headrace_identity::{AuthRefusal, Directory, KeyEnd};
use headrace_ledger::LedgerClient;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Calls are served in at most this many groups per period, one group after the other. Serving all at once would
/// delay other work on the event loop.
const MOST_PARTS: u32 = 16;
/// The shortest time between two groups.
const SHORTEST_STEP: Duration = Duration::from_millis(5);
/// How often calls are prompted once they are cut off, when they have little time left.
const CLOSING_STEP: Duration = Duration::from_millis(100);

/// The ticker: the calls that it serves, and what it needs to keep their holds.
pub struct HoldKeeper {
    calls: Mutex<KeptCalls>,
    parts: HoldKeeperParts,
    cut_off: CancellationToken,
}

/// What a hold keeper needs.
pub struct HoldKeeperParts {
    /// The time between two checks of a call.
    pub period: Duration,
    /// The lifetime of a hold that is not extended.
    pub hold_lifetime: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The ledger, which extends holds.
    pub ledger: Arc<dyn LedgerClient>,
    /// The keys, which may be revoked or expire.
    pub directory: Arc<Directory>,
}

#[derive(Default)]
struct KeptCalls {
    /// A call keeps its index, so that one period lies between two of its ticks.
    places: Vec<Option<Arc<KeptCall>>>,
    free: Vec<usize>,
    /// A ticker task is running.
    is_running: bool,
}

struct KeptCall {
    /// `None` for a call without a hold, such as a stream of stored events.
    hold: Option<HoldId>,
    key: Option<KeyWatch>,
    /// Time of the last extension of the hold, or of the first tick, in nanoseconds. Zero before the first tick.
    kept: AtomicU64,
    ticks: AtomicU32,
    waker: AtomicWaker,
}

/// The key that a call acts for.
struct KeyWatch {
    key: KeyId,
    /// One more than the directory's revocation count at the last look-up of the key. Zero before the first look-up.
    looked_up: AtomicU64,
    /// When the key expires, in nanoseconds.
    expires: AtomicU64,
    /// [`IN_FORCE`], or the first reason seen why the key is no longer valid.
    over: AtomicU8,
}

const IN_FORCE: u8 = 0;
const REVOKED: u8 = 1;
const EXPIRED: u8 = 2;
const INACTIVE: u8 = 3;

/// A call's registration with the ticker. Dropping it frees its place.
pub struct KeptCallHandle {
    all: Arc<HoldKeeper>,
    at: usize,
    call: Arc<KeptCall>,
    seen: u32,
}

impl HoldKeeper {
    /// A ticker without calls. Cancelling `cut_off` prompts all calls at once.
    pub fn new(parts: HoldKeeperParts, cut_off: CancellationToken) -> Arc<Self> {
        Arc::new(Self { calls: Mutex::default(), parts, cut_off })
    }

    /// Registers a call. Its hold does not expire while it is registered, even if the wall clock jumps. The call
    /// itself bounds that time by monotonic time.
    ///
    /// If the key is revoked or expires meanwhile, [`KeptCallHandle::key_refusal`] says so within a period.
    pub fn join(self: &Arc<Self>, hold: HoldId, key: Option<KeyId>) -> KeptCallHandle {
        self.look_after(Some(hold), key)
    }

    /// Registers a stream without a hold. Only its key is watched.
    pub fn join_stream(self: &Arc<Self>, key: KeyId) -> KeptCallHandle {
        self.look_after(None, Some(key))
    }

    fn look_after(self: &Arc<Self>, hold: Option<HoldId>, key: Option<KeyId>) -> KeptCallHandle {
        let (kept, ticks) = (AtomicU64::new(0), AtomicU32::new(0));
        let key = key.map(KeyWatch::new);
        let call = Arc::new(KeptCall { hold, key, kept, ticks, waker: AtomicWaker::new() });
        let mut calls = self.calls.lock();
        let at = calls.free.pop().unwrap_or(calls.places.len());
        match calls.places.get_mut(at) {
            Some(place) => *place = Some(Arc::clone(&call)),
            None => calls.places.push(Some(Arc::clone(&call))),
        }
        let begins = !std::mem::replace(&mut calls.is_running, true);
        drop(calls);
        if begins {
            let mut task = KeeperTask { keeper: Arc::clone(self), is_over: false };
            tokio::spawn(async move {
                run_ticker(&task.keeper).await;
                task.is_over = true;
                drop(task);
            });
        }
        KeptCallHandle { all: Arc::clone(self), at, call, seen: 0 }
    }

    /// The calls of one group. `None` if no call is registered.
    fn part(&self, part: u32, parts: u32) -> Option<Vec<Arc<KeptCall>>> {
        let mut calls = self.calls.lock();
        if calls.free.len() == calls.places.len() {
            *calls = KeptCalls::default();
            return None;
        }
        let of_part = calls.places.iter().skip(part as usize).step_by(parts as usize);
        Some(of_part.flatten().map(Arc::clone).collect())
    }
}

impl KeptCallHandle {
    /// Returns when the next check is due: once a period, and at once when calls are cut off. May be polled any
    /// number of times between two checks, by one task.
    pub async fn next(&mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Why the call's key is no longer valid. `None` while it is valid.
    pub fn key_refusal(&self) -> Option<AuthRefusal> {
        match self.call.key.as_ref()?.over.load(Ordering::Acquire) {
            REVOKED => Some(AuthRefusal::Revoked),
            EXPIRED => Some(AuthRefusal::Expired),
            INACTIVE => Some(AuthRefusal::OwnerInactive),
            _ => None,
        }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_due() {
            return Poll::Ready(());
        }
        self.call.waker.register(cx.waker());
        // A tick between the check and the registration woke no task, so check again.
        if self.is_due() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn is_due(&mut self) -> bool {
        let ticks = self.call.ticks.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, ticks) != ticks
    }
}

impl Drop for KeptCallHandle {
    fn drop(&mut self) {
        let mut calls = self.all.calls.lock();
        // The list is cleared only when all places are free, so this index is still valid.
        if let Some(place) = calls.places.get_mut(self.at) {
            *place = None;
            calls.free.push(self.at);
        }
    }
}

impl KeptCall {
    /// Checks the call's key, and extends its hold in the ledger if that is due.
    fn keep(&self, keeper: &HoldKeeper) {
        let HoldKeeperParts { clock, ledger, directory, hold_lifetime, .. } = &keeper.parts;
        let (now, lifetime) = (clock.now(), *hold_lifetime);
        if let Some(key) = &self.key {
            key.look(directory, now);
        }
        let Some(hold) = self.hold else { return };
        let kept = self.kept.load(Ordering::Relaxed);
        if kept == 0 {
            self.kept.store(now.get(), Ordering::Relaxed);
        } else if now.since(UnixNanos::new(kept)) >= lifetime / 4 {
            self.kept.store(now.get(), Ordering::Relaxed);
            ledger.keep(hold, now, lifetime);
        }
    }
}

impl KeyWatch {
    fn new(key: KeyId) -> Self {
        let (looked_up, expires) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Self { key, looked_up, expires, over: AtomicU8::new(IN_FORCE) }
    }

    /// Looks the key up if a key was revoked since the last look-up, and checks its expiry every time. The directory
    /// does not know the keys of internal callers, which never end.
    fn look(&self, directory: &Directory, now: UnixNanos) {
        if self.over.load(Ordering::Relaxed) != IN_FORCE {
            return;
        }
        // Read the count before the look-up: a later revocation is then seen at the next tick.
        let revocations = directory.revocations().saturating_add(1);
        if self.looked_up.swap(revocations, Ordering::Relaxed) != revocations {
            match directory.key_end(&self.key) {
                Some(KeyEnd::Revoked) => return self.over.store(REVOKED, Ordering::Release),
                Some(KeyEnd::Inactive) => return self.over.store(INACTIVE, Ordering::Release),
                Some(KeyEnd::At(end)) => self.expires.store(end.get(), Ordering::Relaxed),
                Some(KeyEnd::Open) | None => {}
            }
        }
        if now.get() >= self.expires.load(Ordering::Relaxed) {
            self.over.store(EXPIRED, Ordering::Release);
        }
    }
}

/// Owned by the ticker task. If the task ends early, dropping this lets the next call start another one.
struct KeeperTask {
    keeper: Arc<HoldKeeper>,
    /// The ticker ended because no call was left. By now another ticker may serve newer calls.
    is_over: bool,
}

impl Drop for KeeperTask {
    fn drop(&mut self) {
        if !self.is_over {
            self.keeper.calls.lock().is_running = false;
        }
    }
}

/// Serves the calls until none is left.
async fn run_ticker(keeper: &HoldKeeper) {
    let HoldKeeper { parts: HoldKeeperParts { period, .. }, cut_off, .. } = keeper;
    let parts = u32::try_from(period.as_millis() / SHORTEST_STEP.as_millis()).unwrap_or(MOST_PARTS);
    let (mut part, mut parts, mut is_cut_off) = (0, parts.clamp(1, MOST_PARTS), false);
    loop {
        let step = if is_cut_off { CLOSING_STEP.min(*period) } else { *period / parts };
        tokio::select! {
            biased;
            () = cut_off.cancelled(), if !is_cut_off => (is_cut_off, part, parts) = (true, 0, 1),
            () = tokio::time::sleep(step) => {}
        }
        let Some(calls) = keeper.part(part, parts) else { return };
        part = (part + 1) % parts;
        for call in calls {
            // A failure in one call does not affect the others. It is retried at the call's next tick.
            let _ = catch_unwind(AssertUnwindSafe(|| call.keep(keeper)));
            call.ticks.fetch_add(1, Ordering::Release);
            call.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::{ManualClock, OrgId, ProjectId, RequestId};
    use headrace_identity::{HashSecret, MemoryKeyStore};
    use headrace_ledger::{JournalHealth, LedgerOperation, PendingBatch, StandingHint};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(1);

    /// A ledger that decides nothing.
    struct NoLedger;

    impl LedgerClient for NoLedger {
        fn decide(&self, _: Vec<LedgerOperation>, _: UnixNanos) -> PendingBatch {
            panic!("no hold is decided here")
        }

        fn standing_hint(&self, _: &OrgId, _: &ProjectId) -> StandingHint {
            StandingHint::Unknown
        }

        fn knows_key(&self, _: &ProjectId, _: &str) -> bool {
            false
        }

        fn keep(&self, _: HoldId, _: UnixNanos, _: Duration) {}

        fn health(&self) -> JournalHealth {
            JournalHealth::default()
        }
    }

    fn keeper() -> Arc<HoldKeeper> {
        let directory = Directory::open(Arc::new(MemoryKeyStore::new()), HashSecret::new([7; 32])).unwrap();
        let parts = HoldKeeperParts {
            period: PERIOD,
            hold_lifetime: Duration::from_secs(3600),
            clock: Arc::new(ManualClock::at(UnixNanos::new(1))),
            ledger: Arc::new(NoLedger),
            directory: Arc::new(directory),
        };
        HoldKeeper::new(parts, CancellationToken::new())
    }

    fn hold() -> HoldId {
        RequestId::fresh(UnixNanos::new(1)).hold()
    }

    fn places(keeper: &HoldKeeper) -> (usize, usize) {
        let calls = keeper.calls.lock();
        (calls.places.iter().flatten().count(), calls.places.len())
    }

    #[tokio::test(start_paused = true)]
    async fn each_call_is_looked_after_once_a_period_and_nobody_when_nobody_is_left() {
        let (keeper, period) = (keeper(), PERIOD);
        let keeper = &keeper;
        let mut calls: Vec<KeptCallHandle> = (0..40).map(|_| keeper.join(hold(), None)).collect();
        assert_eq!(places(keeper), (40, 40));
        tokio::time::sleep(period * 10 + period / 2).await;
        for call in &mut calls {
            let ticks = call.call.ticks.load(Ordering::Acquire);
            assert!((10..=11).contains(&ticks), "{ticks}");
            call.next().await;
            assert!(poll_fn(|cx| Poll::Ready(call.poll(cx))).await.is_pending());
        }
        calls.truncate(3);
        assert_eq!(places(keeper), (3, 40));
        calls.push(keeper.join(hold(), None));
        assert_eq!(places(keeper), (4, 40), "a free place is taken first");
        calls.clear();
        tokio::time::sleep(period * 2).await;
        assert_eq!(places(keeper), (0, 0));
        assert!(!keeper.calls.lock().is_running);
        let mut late = keeper.join(hold(), None);
        tokio::time::timeout(period * 2, late.next()).await.expect("somebody looks after it again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_over_leaves_alone_who_came_after_it_and_one_that_breaks_off_is_followed() {
        let keeper = keeper();
        let keeper = &keeper;
        let _call = keeper.join(hold(), None);
        for (is_over, is_running) in [(true, true), (false, false)] {
            drop(KeeperTask { keeper: Arc::clone(keeper), is_over });
            assert_eq!(keeper.calls.lock().is_running, is_running);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_wakes_everybody_at_once_and_then_often() {
        let keeper = keeper();
        let keeper = &keeper;
        let mut calls: Vec<KeptCallHandle> = (0..20).map(|_| keeper.join(hold(), None)).collect();
        tokio::task::yield_now().await;
        keeper.cut_off.cancel();
        for call in &mut calls {
            tokio::time::timeout(Duration::from_millis(1), call.next()).await.expect("woken by the cut");
            tokio::time::timeout(CLOSING_STEP * 2, call.next()).await.expect("and again");
        }
    }
}
