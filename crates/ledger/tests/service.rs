//! Tests of the service around the core: when changes are durable, the effects of a failing journal, and the results of
//! opening.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use headrace_ledger::verify::verify;
use headrace_ledger::{
    AppendFault, CommandResult, HoldResolution, HoldView, Journal, JournalError, JournalRow, Ledger,
    LedgerError, LedgerOperation, LedgerOptions, LedgerRefusal, LoadedJournal, MemoryJournal, Owner,
    ReleaseReason, StateSnapshot,
};

#[path = "support/world.rs"]
mod world;
use world::*;

fn options() -> LedgerOptions {
    LedgerOptions { retry: Duration::from_millis(1), ..LedgerOptions::default() }
}

fn open_over(journal: &MemoryJournal) -> Ledger {
    Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options()).unwrap().0
}

/// Runs one command and waits for the disk.
fn must(ledger: &Ledger, command: LedgerOperation) -> CommandResult {
    let done = ledger.transact(vec![command], at(0));
    done.durable.wait().unwrap();
    done.verdicts.into_iter().next().unwrap()
}

fn with_money(journal: &MemoryJournal, amount: i64) -> Ledger {
    let ledger = open_over(journal);
    assert!(must(&ledger, open("o", "p")).is_done());
    assert!(must(&ledger, grant("o", amount)).is_done());
    ledger
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens the content of the disk with the same owner, so that all holds stay open.
fn reopened(journal: &MemoryJournal) -> Ledger {
    open_over(&MemoryJournal::with(journal.contents()))
}

/// A journal whose appends wait for a permit each.
struct GatedJournal {
    inner: MemoryJournal,
    permits: mpsc::Receiver<()>,
    seen: Arc<Seen>,
}

/// What a [`GatedJournal`] was asked to do.
#[derive(Default)]
struct Seen {
    /// Appends, from their beginning.
    begun: AtomicU64,
    /// Appends that got their permit.
    appends: AtomicU64,
    /// How often an idle journal was looked at.
    checks: AtomicU64,
}

impl Seen {
    fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }
    fn appends(&self) -> u64 {
        self.appends.load(Ordering::SeqCst)
    }
    fn checks(&self) -> u64 {
        self.checks.load(Ordering::SeqCst)
    }
}

impl GatedJournal {
    fn new(inner: MemoryJournal) -> (Self, mpsc::Sender<()>, Arc<Seen>) {
        let (permit, permits) = mpsc::channel();
        let seen = Arc::<Seen>::default();
        (Self { inner, permits, seen: Arc::clone(&seen) }, permit, seen)
    }
}

impl Journal for GatedJournal {
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        self.inner.snapshot_before(sequence)
    }
    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        self.inner.rows_after(sequence, limit)
    }
    fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
        self.seen.begun.fetch_add(1, Ordering::SeqCst);
        self.permits.recv().map_err(|_| JournalError::Io("no more permits".into()))?;
        self.seen.appends.fetch_add(1, Ordering::SeqCst);
        self.inner.append(rows)
    }
    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError> {
        self.inner.write_snapshot(snapshot)
    }
    fn check(&mut self) -> Result<(), JournalError> {
        self.seen.checks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn batches_that_arrive_during_a_write_share_the_next_one() {
    let inner = MemoryJournal::new();
    drop(with_money(&inner, 1000));
    let (journal, permit, seen) = GatedJournal::new(inner.clone());
    let (ledger, _) = Ledger::open(Box::new(journal), OWNER, at(0)).unwrap();
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let done = ledger.transact(vec![hold(n, 1)], at(0));
            assert!(done.verdicts[0].is_done(), "the verdict does not wait for the disk");
            if n == 0 {
                // A caller waits for this batch, so it is being written while the others arrive.
                drop(done.durable.clone());
                until("the first is being written", || seen.begun() == 1);
            }
            done.durable
        })
        .collect();
    for mut durable in waiting.iter().cloned() {
        assert!(poll_once(&mut durable).is_pending());
    }
    permit.send(()).unwrap();
    permit.send(()).unwrap();
    for durable in waiting {
        durable.wait().unwrap();
    }
    assert_eq!(seen.appends(), 2, "one write for the first, one for all others");
    permit.send(()).unwrap();
    ledger.close().unwrap();
    let report = verify(&inner.contents());
    assert!(report.ok(), "{report}");
    assert_eq!(report.totals.open_holds, 50);
}

fn poll_once(future: &mut (impl Future + Unpin)) -> Poll<()> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).map(|_| ())
}

/// Counts its wake-ups.
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn who_waits_lets_others_have_a_turn_before_the_writer_is_woken() {
    let inner = MemoryJournal::new();
    drop(with_money(&inner, 1000));
    let (journal, permit, seen) = GatedJournal::new(inner);
    let (ledger, _) = Ledger::open(Box::new(journal), OWNER, at(0)).unwrap();
    (0..200).for_each(|_| permit.send(()).unwrap());
    // A writer that has just started checks once by itself, and a sleeping one every second. So the test tries again.
    let shown = (0..50).map(|n| 2 * n).any(|n| {
        std::thread::sleep(Duration::from_millis(100));
        let before = seen.appends();
        let told = Arc::new(Count(0.into()));
        let waker = Waker::from(Arc::clone(&told));
        let mut first = ledger.transact(vec![hold(n, 1)], at(0)).durable;
        let mut ask = || std::pin::Pin::new(&mut first).poll(&mut Context::from_waker(&waker));
        let comes_back = ask().is_pending() && told.0.load(Ordering::SeqCst) == 1;
        let second = ledger.transact(vec![hold(n + 1, 1)], at(0)).durable;
        std::thread::sleep(Duration::from_millis(50));
        let nobody_woke_it = seen.appends() == before;
        assert!(ask().is_pending() || seen.appends() > before);
        until("both are written", || ask().is_ready());
        second.wait().unwrap();
        comes_back && nobody_woke_it && seen.appends() == before + 1
    });
    assert!(shown, "none of 50 came back by itself and shared a write");
    let before = seen.appends();
    drop(ledger.transact(vec![hold(1_000, 1)], at(0)).durable);
    until("what nobody waits for is written, too", || seen.appends() > before);
}

#[test]
fn what_is_only_watched_costs_no_write_of_its_own_while_somebody_waits() {
    let inner = MemoryJournal::new();
    drop(with_money(&inner, 1000));
    let (journal, permit, seen) = GatedJournal::new(inner);
    let (ledger, _) = Ledger::open(Box::new(journal), OWNER, at(0)).unwrap();
    (0..500).for_each(|_| permit.send(()).unwrap());
    let watched = |n| {
        let mut durable = ledger.transact(vec![hold(n, 1)], at(0)).durable;
        durable.at_leisure();
        // In most cases it is not written yet.
        let _ = poll_once(&mut durable);
        durable
    };
    let shared = (0..50).map(|n| 2 * n).any(|n| {
        let before = ledger.health().commits;
        let mut first = watched(n);
        ledger.transact(vec![hold(n + 1, 1)], at(0)).durable.wait().unwrap();
        poll_once(&mut first).is_ready() && ledger.health().commits == before + 1
    });
    assert!(shared, "each of 50 had a write of its own");
    // A writer in deep sleep must be woken for it. Without that, it checks the journal after a second, and then looks for
    // work.
    let told = (100..120).any(|n| {
        std::thread::sleep(Duration::from_millis(50));
        let (checks, mut alone) = (seen.checks(), watched(n));
        until("it is written without anybody who waits", || poll_once(&mut alone).is_ready());
        seen.checks() == checks
    });
    assert!(told, "the writer was not told");
}

#[test]
fn a_durable_future_wakes_its_last_waker() {
    let inner = MemoryJournal::new();
    drop(with_money(&inner, 1000));
    let (journal, permit, _) = GatedJournal::new(inner);
    let (ledger, _) = Ledger::open(Box::new(journal), OWNER, at(0)).unwrap();
    let mut durable = ledger.transact(vec![hold(1, 1)], at(0)).durable;
    let (old, new) = (Arc::new(Count(0.into())), Arc::new(Count(0.into())));
    assert!(poll_once(&mut durable).is_pending(), "others have their turn first");
    for waker in [&old, &new] {
        let waker = Waker::from(Arc::clone(waker));
        assert!(std::pin::Pin::new(&mut durable).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    permit.send(()).unwrap();
    until("the waker is woken", || new.0.load(Ordering::SeqCst) == 1);
    assert_eq!(old.0.load(Ordering::SeqCst), 0);
    assert!(poll_once(&mut durable).is_ready());
}

#[test]
fn a_refusal_waits_for_what_it_rests_on() {
    let inner = MemoryJournal::new();
    drop(with_money(&inner, 1000));
    let (journal, permit, _) = GatedJournal::new(inner);
    let (ledger, _) = Ledger::open(Box::new(journal), OWNER, at(0)).unwrap();
    let done = ledger.transact(vec![hold_of("o", "p", 1, 10, Some(("k", 1))), settle(1, 5)], at(0));
    let mut replay = ledger.transact(vec![hold_of("o", "p", 2, 10, Some(("k", 1)))], at(0));
    assert!(matches!(replay.verdicts[0], CommandResult::Refused(LedgerRefusal::IdempotencyReplay { .. })));
    assert!(poll_once(&mut replay.durable).is_pending(), "the first call's settlement is not on the disk");
    permit.send(()).unwrap();
    done.durable.wait().unwrap();
    replay.durable.wait().unwrap();
    let mut idle = ledger.transact(vec![settle(9, 1)], at(0));
    assert!(poll_once(&mut idle.durable).is_ready(), "nothing to wait for");
}

#[test]
fn a_failed_append_takes_everything_back_and_recovers() {
    for fault in [AppendFault::NotWritten, AppendFault::Written] {
        let journal = MemoryJournal::new();
        let ledger = with_money(&journal, 1000);
        assert!(must(&ledger, hold(1, 100)).is_done());
        journal.fail_append(1, fault);
        let lost = ledger.transact(vec![settle(1, 60), hold(2, 30)], at(0));
        assert!(lost.verdicts.iter().all(CommandResult::is_done), "decided in memory");
        let failed = lost.durable.wait().unwrap_err();
        assert!(failed.to_string().contains("injected"), "{failed}");
        until("it recovers", || ledger.health().down.is_none());
        match fault {
            AppendFault::NotWritten => {
                assert!(matches!(ledger.hold(&hold_id(1)), Some(HoldView::Open(_))));
                assert_eq!(ledger.hold(&hold_id(2)), None);
                assert!(must(&ledger, settle(1, 60)).is_done(), "sent again, it is done");
            }
            AppendFault::Written => {
                let how = HoldResolution::Settled { charged: nano(60) };
                assert_eq!(ledger.hold(&hold_id(1)), Some(HoldView::Resolved(how)));
                let again = must(&ledger, settle(1, 60));
                let hold = hold_id(1);
                assert_eq!(again, CommandResult::Refused(LedgerRefusal::AlreadyResolved { hold, how }));
                assert!(must(&ledger, release(2)).is_done());
            }
        }
        assert_eq!(ledger.standing(&org("o"), &project("p")).unwrap().balance, nano(940));
        ledger.close().unwrap();
        let report = verify(&journal.contents());
        assert!(report.ok(), "{report}");
        assert_eq!(report.totals.revenue, nano(60));
    }
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let journal = MemoryJournal::new();
    let ledger = with_money(&journal, 1000);
    journal.set_down(true);
    ledger.transact(vec![hold(1, 100)], at(0)).durable.wait().unwrap_err();
    let refused = ledger.transact(vec![hold(2, 100), settle(1, 1)], at(0));
    for verdict in &refused.verdicts {
        assert!(matches!(verdict, CommandResult::Refused(LedgerRefusal::Unavailable { .. })), "{verdict:?}");
    }
    refused.durable.wait().unwrap();
    assert!(ledger.health().down.is_some());
    assert_eq!(ledger.standing(&org("o"), &project("p")).unwrap().available, nano(1000));
    journal.set_down(false);
    until("it recovers", || ledger.health().down.is_none());
    assert!(must(&ledger, hold(1, 100)).is_done());
    assert!(verify(&journal.contents()).ok());
}

#[test]
fn closing_on_a_full_disk_says_so() {
    let journal = MemoryJournal::new();
    let ledger = with_money(&journal, 1000);
    journal.set_down(true);
    ledger.transact(vec![hold(1, 100)], at(0)).durable.wait().unwrap_err();
    let closed = ledger.clone().close();
    assert!(matches!(closed, Err(LedgerError::Journal(JournalError::Full(_)))), "{closed:?}");
    let late = ledger.transact(vec![hold(2, 1)], at(0));
    assert!(matches!(late.verdicts[0], CommandResult::Refused(LedgerRefusal::Unavailable { .. })));
    assert!(reopened(&journal).hold(&hold_id(1)).is_none());
}

#[test]
fn a_failure_at_every_append_of_a_script_loses_nothing_durable() {
    let script: Vec<Vec<LedgerOperation>> = (0..12u128)
        .map(|n| match n % 3 {
            0 => vec![hold_of("o", "p", n, 50, Some((&format!("k{n}"), 1)))],
            1 => vec![settle(n - 1, 20), hold(n, 10)],
            _ => vec![release(n - 1), grant("o", 5)],
        })
        .collect();
    for fault in [AppendFault::NotWritten, AppendFault::Written] {
        for at_append in 1..=12 {
            let journal = MemoryJournal::new();
            let ledger = with_money(&journal, 1000);
            journal.fail_append(at_append, fault);
            for batch in &script {
                let mut tries = 0;
                while ledger.transact(batch.clone(), at(0)).durable.wait().is_err() {
                    until("it recovers", || ledger.health().down.is_none());
                    tries += 1;
                    assert!(tries < 3);
                }
            }
            let live = ledger.totals();
            ledger.close().unwrap();
            let report = verify(&journal.contents());
            assert!(report.ok(), "append {at_append}, {fault:?}: {report}");
            assert_eq!(report.totals, live, "append {at_append}, {fault:?}");
            // A repeated batch grants twice only if the first grant was reported as lost but was not.
            assert_eq!(report.totals.revenue, nano(80), "append {at_append}, {fault:?}");
            assert_eq!(report.totals.settled, 4);
        }
    }
}

#[test]
fn opening_releases_the_holds_of_the_dead() {
    let journal = MemoryJournal::new();
    let ledger = with_money(&journal, 1000);
    must(&ledger, hold(1, 100));
    must(&ledger, hold_of("o", "p", 2, 100, Some(("key", 1))));
    // The process dies without closing anything.
    let copy = MemoryJournal::with(journal.contents());
    let (ledger, report) = Ledger::open(Box::new(copy.clone()), Owner::new(99), at(SECOND)).unwrap();
    assert_eq!(report.orphans, [hold_id(1), hold_id(2)]);
    assert_eq!((report.totals.held, report.totals.available), (nano(0), nano(1000)));
    let how = HoldResolution::Released { why: ReleaseReason::Orphaned };
    assert_eq!(ledger.hold(&hold_id(1)), Some(HoldView::Resolved(how)));
    assert!(must(&ledger, hold_of("o", "p", 3, 100, Some(("key", 1)))).is_done(), "the key is free");
    assert!(verify(&copy.contents()).ok());
    // The same owner keeps its own holds.
    let (_, report) = Ledger::open(Box::new(MemoryJournal::with(journal.contents())), OWNER, at(0)).unwrap();
    assert_eq!((report.orphans.len(), report.totals.open_holds), (0, 2));
}

#[test]
fn opening_tells_how_far_the_ledger_is_ahead_of_the_clock() {
    let journal = MemoryJournal::new();
    let ledger = with_money(&journal, 10);
    ledger.transact(vec![open("o", "late")], at(90 * SECOND)).durable.wait().unwrap();
    drop(ledger);
    for (now, ahead_s) in [(0, 90), (30, 60), (90, 0), (500, 0)] {
        let journal = Box::new(MemoryJournal::with(journal.contents()));
        let (_, report) = Ledger::open_with(journal, OWNER, at(now * SECOND), options()).unwrap();
        assert_eq!(report.ahead, Duration::from_secs(ahead_s), "opened at {now} s");
    }
}

#[test]
fn a_snapshot_follows_many_transactions_in_few_rows() {
    for (snapshot_transactions, is_written) in [(10, true), (u64::MAX, false)] {
        let journal = MemoryJournal::new();
        let options = LedgerOptions { snapshot_rows: u64::MAX, snapshot_transactions, ..options() };
        let (ledger, _) = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options).unwrap();
        must(&ledger, open("o", "p"));
        must(&ledger, grant("o", 5000));
        let holds = (0..12).map(|n| hold_of("o", "p", n, 10, None)).collect();
        ledger.transact(holds, at(0)).durable.wait().unwrap();
        must(&ledger, release(0));
        assert_eq!(!journal.contents().snapshots.is_empty(), is_written, "{snapshot_transactions}");
    }
}

#[test]
fn a_snapshot_shortens_the_start_and_a_bad_one_is_passed_over() {
    let journal = MemoryJournal::new();
    let small = LedgerOptions { snapshot_rows: 4, ..options() };
    let (ledger, _) = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), small).unwrap();
    for command in [open("o", "p"), grant("o", 5000)] {
        must(&ledger, command);
    }
    for n in 0..40 {
        must(&ledger, hold_of("o", "p", n, 10, Some((&format!("k{n}"), 1))));
        if n % 2 == 0 {
            must(&ledger, settle_as(n, 3, 1, headrace_ledger::SettleOutcome::Completed, Some(b"answer")));
        }
    }
    let totals = ledger.totals();
    ledger.close().unwrap();
    let contents = journal.contents();
    assert!(contents.snapshots.len() > 2);
    let report = verify(&contents);
    assert!(report.ok() && report.snapshots > 2, "{report}");

    let start =
        |loaded: LoadedJournal| Ledger::open(Box::new(MemoryJournal::with(loaded)), OWNER, at(0)).unwrap();
    let (ledger, report) = start(contents.clone());
    assert_eq!((report.rows_replayed, report.totals), (0, totals));
    let replay = must(&ledger, hold_of("o", "p", 99, 10, Some(("k0", 1))));
    match replay {
        CommandResult::Refused(LedgerRefusal::IdempotencyReplay { answer: Some(answer), .. }) => {
            assert_eq!(&*answer.body, b"answer");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        must(&ledger, hold_of("o", "p", 99, 10, Some(("k1", 1)))),
        CommandResult::Refused(LedgerRefusal::IdempotencyInFlight { hold: hold_id(1) })
    );

    // The newest snapshot is damaged. The one before it is used, and only the rows after that are replayed.
    let mut damaged = contents;
    let rows = damaged.rows.len() as u64;
    damaged.snapshots.last_mut().unwrap().payload[0] ^= 1;
    let (_, report) = start(damaged.clone());
    assert!(report.snapshot_refused.is_some() && (1..rows).contains(&report.rows_replayed), "{report:?}");
    assert_eq!(report.totals, totals);

    // All snapshots are damaged. All rows are replayed, a page at a time.
    let last = damaged.snapshots.len() - 1;
    damaged.snapshots[..last].iter_mut().for_each(|snapshot| snapshot.payload[0] ^= 1);
    let (_, report) = start(damaged);
    assert_eq!((report.rows_replayed, report.totals), (rows, totals));
}

#[test]
fn a_long_journal_is_replayed_a_page_at_a_time() {
    let journal = MemoryJournal::new();
    let ledger = with_money(&journal, 1000);
    for n in 0..600 {
        must(&ledger, hold(n, 1));
        must(&ledger, release(n));
    }
    let totals = ledger.totals();
    drop(ledger);
    struct Measured(MemoryJournal, Arc<AtomicU64>);
    impl Journal for Measured {
        fn snapshot_before(&mut self, _: u64) -> Result<Option<StateSnapshot>, JournalError> {
            Ok(None)
        }
        fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
            let rows = self.0.rows_after(sequence, limit)?;
            self.1.fetch_max(rows.len() as u64, Ordering::SeqCst);
            Ok(rows)
        }
        fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
            self.0.append(rows)
        }
        fn write_snapshot(&mut self, _: &StateSnapshot) -> Result<(), JournalError> {
            Ok(())
        }
    }
    let longest = Arc::new(AtomicU64::new(0));
    let measured = Measured(MemoryJournal::with(journal.contents()), Arc::clone(&longest));
    let (_, report) = Ledger::open(Box::new(measured), OWNER, at(0)).unwrap();
    assert_eq!((report.rows_replayed, report.totals), (1_202, totals));
    let longest = longest.load(Ordering::SeqCst);
    assert!((1..=512).contains(&longest), "{longest} rows were read at once");
}

#[test]
fn a_full_queue_refuses_new_work_but_never_a_settlement() {
    let inner = MemoryJournal::new();
    let ledger = with_money(&inner, 1000);
    must(&ledger, hold(1, 100));
    drop(ledger);
    let (journal, permit, seen) = GatedJournal::new(inner);
    let tight = LedgerOptions { max_queued_transactions: 3, ..options() };
    let (ledger, _) = Ledger::open_with(Box::new(journal), OWNER, at(0), tight).unwrap();
    let first = ledger.transact(vec![hold(9, 1)], at(0));
    // The thread sleeps until a caller waits. Then it takes the first batch and blocks at the gate.
    let waiting = first.durable.clone();
    let waiting = std::thread::spawn(move || waiting.wait());
    until("the first is being written", || seen.begun() == 1);
    let batch: Vec<_> = (10..20).map(|n| hold(n, 1)).collect();
    let done = ledger.transact(batch, at(0));
    assert_eq!(done.verdicts.iter().filter(|verdict| verdict.is_done()).count(), 3);
    let busy = LedgerRefusal::Busy { queued: 3, limit: 3 };
    assert_eq!(done.verdicts[9], CommandResult::Refused(busy));
    let settled = ledger.transact(vec![settle(1, 10), release(10)], at(0));
    assert!(settled.verdicts.iter().all(CommandResult::is_done));
    permit.send(()).unwrap();
    permit.send(()).unwrap();
    for durable in [first.durable, done.durable, settled.durable] {
        durable.wait().unwrap();
    }
    waiting.join().unwrap().unwrap();
}

#[test]
fn abuse_11_from_64_threads() {
    let journal = MemoryJournal::new();
    let ledger = with_money(&journal, 100);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|n| {
                let ledger = ledger.clone();
                scope.spawn(move || must(&ledger, hold(n, 100)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|verdict| verdict.is_done()).count(), 1);
    let held = |v: &&CommandResult| matches!(v, CommandResult::Refused(LedgerRefusal::HeldInFlight { .. }));
    assert_eq!(results.iter().filter(held).count(), 63);
    ledger.close().unwrap();
    let report = verify(&journal.contents());
    assert!(report.ok(), "{report}");
}

#[test]
fn an_idle_journal_that_is_gone_is_noticed_and_its_return_too() {
    struct Gone(MemoryJournal, Arc<AtomicBool>);
    impl Gone {
        fn there(&self) -> Result<(), JournalError> {
            if self.1.load(Ordering::SeqCst) { Err(JournalError::Io("it is gone".into())) } else { Ok(()) }
        }
    }
    impl Journal for Gone {
        fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
            self.0.snapshot_before(sequence)
        }
        fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
            self.0.rows_after(sequence, limit)
        }
        fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
            self.0.append(rows)
        }
        fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError> {
            self.0.write_snapshot(snapshot)
        }
        fn check(&mut self) -> Result<(), JournalError> {
            self.there()
        }
        fn recover(&mut self) -> Result<(), JournalError> {
            self.there()
        }
    }
    let (journal, gone) = (MemoryJournal::new(), Arc::new(AtomicBool::new(false)));
    drop(with_money(&journal, 100));
    let (ledger, _) = Ledger::open(Box::new(Gone(journal, Arc::clone(&gone))), OWNER, at(0)).unwrap();
    assert!(must(&ledger, hold(1, 60)).is_done());
    gone.store(true, Ordering::SeqCst);
    until("it is noticed without a call", || ledger.health().down.is_some());
    gone.store(false, Ordering::SeqCst);
    until("it is back", || ledger.health().down.is_none());
    assert_eq!(ledger.totals().held.get(), 60, "nothing durable is lost");
    assert!(must(&ledger, hold(2, 40)).is_done());
}

#[test]
fn a_journal_that_panics_leaves_nobody_waiting() {
    struct Panics(MemoryJournal);
    impl Journal for Panics {
        fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
            self.0.snapshot_before(sequence)
        }
        fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
            self.0.rows_after(sequence, limit)
        }
        fn append(&mut self, _: &[JournalRow]) -> Result<(), JournalError> {
            panic!("as this test wants")
        }
        fn write_snapshot(&mut self, _: &StateSnapshot) -> Result<(), JournalError> {
            Ok(())
        }
    }
    let (ledger, _) = Ledger::open(Box::new(Panics(MemoryJournal::new())), OWNER, at(0)).unwrap();
    ledger.transact(vec![open("o", "p")], at(0)).durable.wait().unwrap_err();
    until("it is closed", || ledger.health().down.is_some());
    assert!(matches!(ledger.close(), Err(LedgerError::Thread(_))));
}
