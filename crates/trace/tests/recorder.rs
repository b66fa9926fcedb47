//! The recorder never blocks, counts what it drops, and returns a record from the moment it was recorded.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headrace_domain::{
    EndUser, ForgottenName, Region, RequestId, TraceRecord, TraceSink, UnixNanos, WorkerJob,
};
use headrace_trace::{
    Metrics, MetricsConfig, RecorderConfig, SharedRecord, TraceError, TraceRecorder, TraceStore, WritePace,
    decode_record, record_json,
};

const LONG: Duration = Duration::from_secs(60);

/// The id of record `n`.
fn id(n: u64) -> RequestId {
    RequestId::from_bits(n.into())
}

/// The completed request of the golden files, with its own id.
fn record(n: u64) -> TraceRecord {
    let mut record = decode_record(include_str!("data/completed.json")).unwrap();
    record.request_id = id(n);
    record
}

/// The batches that a store received.
type Batches = Arc<Mutex<Vec<Vec<RequestId>>>>;

/// A store that records its batches. It fails batches that contain a record for which `fails` returns `true`.
struct Noting {
    batches: Batches,
    fails: fn(&TraceRecord) -> bool,
}

impl TraceStore for Noting {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        if batch.iter().any(self.fails) {
            return Err(TraceError::Store { doing: "write".to_owned(), why: "disk full".to_owned() });
        }
        self.batches.lock().unwrap().push(batch.iter().map(|record| record.request_id).collect());
        Ok(())
    }
}

/// A store that waits in every write until the test releases it.
struct Stuck {
    entered: SyncSender<()>,
    go: Receiver<()>,
}

impl TraceStore for Stuck {
    fn append(&mut self, _batch: &[TraceRecord]) -> Result<(), TraceError> {
        let _ = self.entered.send(());
        let _ = self.go.recv();
        Ok(())
    }
}

/// Waits in each write for the gate, until the other end of the gate is dropped. Then the inner store gets the batch.
struct Gated {
    entered: SyncSender<()>,
    go: Receiver<()>,
    inner: Box<dyn TraceStore>,
}

impl TraceStore for Gated {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        let _ = self.entered.try_send(());
        let _ = self.go.recv();
        self.inner.append(batch)
    }
}

/// A store that records the size and pace of its batches, after the test releases it.
struct Paced {
    entered: SyncSender<()>,
    go: Receiver<()>,
    paces: Arc<Mutex<Vec<(usize, WritePace)>>>,
}

impl TraceStore for Paced {
    fn append(&mut self, _batch: &[TraceRecord]) -> Result<(), TraceError> {
        Ok(())
    }

    fn append_shared(&mut self, batch: &[SharedRecord], pace: WritePace) -> Result<(), TraceError> {
        let _ = self.entered.try_send(());
        let _ = self.go.recv();
        self.paces.lock().unwrap().push((batch.len(), pace));
        Ok(())
    }
}

/// A store that passes its records to the test.
struct Passing(SyncSender<TraceRecord>);

impl TraceStore for Passing {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        batch.iter().for_each(|record| self.0.send(record.clone()).unwrap());
        Ok(())
    }
}

fn start(store: Option<Box<dyn TraceStore>>, config: RecorderConfig) -> (Arc<TraceRecorder>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new(&MetricsConfig::default()));
    (TraceRecorder::start(store, Arc::clone(&metrics), config).unwrap(), metrics)
}

fn noting(fails: fn(&TraceRecord) -> bool) -> (Box<dyn TraceStore>, Batches) {
    let batches = Batches::default();
    (Box::new(Noting { batches: Arc::clone(&batches), fails }), batches)
}

/// Waits until it is so. Fails after [`LONG`].
fn until(so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < deadline, "it never came to be");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has(metrics: &Metrics, line: &str) -> bool {
    metrics.prometheus().lines().any(|l| l == line)
}

#[test]
fn records_are_shown_at_once_and_stored_in_order_and_in_batches() {
    let (entered, inside) = sync_channel(1);
    let (go, gate) = sync_channel(1);
    let (inner, batches) = noting(|_| false);
    let config = RecorderConfig { batch_records: 16, ..RecorderConfig::default() };
    let (recorder, metrics) = start(Some(Box::new(Gated { entered, go: gate, inner })), config);
    for n in 0..100 {
        recorder.record(Box::new(record(n)));
        assert_eq!(recorder.recent(id(n)).as_deref(), Some(&record(n)), "before it is stored");
        if n == 0 {
            // While the first one is written, the others gather.
            inside.recv().unwrap();
        }
    }
    assert!(batches.lock().unwrap().is_empty());
    drop(go);
    assert!(recorder.flush(LONG));
    let stored = batches.lock().unwrap().clone();
    assert_eq!(stored.concat(), (0..100).map(id).collect::<Vec<_>>());
    let sizes: Vec<usize> = stored.iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 16, 16, 16, 16, 16, 16, 3]);
    assert_eq!(recorder.dropped(), 0);
    assert!(has(&metrics, "headrace_traces_stored_total 100"));
    assert!(recorder.close(LONG));
}

#[test]
fn a_stuck_store_costs_traces_and_never_time() {
    let (entered, inside) = sync_channel(1);
    let (go, gate) = sync_channel(1);
    let config = RecorderConfig { queue_records: 4, linger: Duration::ZERO, ..RecorderConfig::default() };
    let (recorder, metrics) = start(Some(Box::new(Stuck { entered, go: gate })), config);
    recorder.record(Box::new(record(0)));
    inside.recv().unwrap();
    let (all, recorded) = sync_channel(1);
    let sink = Arc::clone(&recorder);
    std::thread::spawn(move || {
        (1..=1_000).for_each(|n| sink.record(Box::new(record(n))));
        all.send(()).unwrap();
    });
    recorded.recv_timeout(LONG).expect("a record waits for the store");
    assert_eq!(recorder.dropped(), 996);
    assert!(recorder.recent(id(1_000)).is_some(), "dropped from the store, not from memory");
    assert!(has(&metrics, "headrace_traces_dropped_total{reason=\"queue_full\"} 996"));
    assert!(has(&metrics, "headrace_request_duration_seconds_count 1001"), "metrics count what was dropped");
    assert!(!recorder.flush(Duration::from_millis(20)), "the store is stuck");
    assert!(!recorder.close(Duration::from_millis(20)), "and closing does not hang on it");
    drop((go, inside));
}

/// A store that fails while the disk is full.
struct Full {
    full: Arc<AtomicBool>,
    /// Of the largest batch that it did not take, how many records.
    refused: Arc<AtomicUsize>,
    inner: Box<dyn TraceStore>,
}

impl TraceStore for Full {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        if self.full.load(Ordering::SeqCst) {
            self.refused.fetch_max(batch.len(), Ordering::SeqCst);
            return Err(TraceError::Store { doing: "write".to_owned(), why: "disk full".to_owned() });
        }
        self.inner.append(batch)
    }
}

#[test]
fn what_a_full_disk_does_not_take_waits_within_the_queues_bound() {
    let (inner, batches) = noting(|_| false);
    let full = Arc::new(AtomicBool::new(true));
    let refused = Arc::new(AtomicUsize::new(0));
    let store = Full { full: Arc::clone(&full), refused: Arc::clone(&refused), inner };
    let config = RecorderConfig { queue_records: 8, batch_records: 4, ..RecorderConfig::default() };
    let (recorder, metrics) = start(Some(Box::new(store)), config);
    for n in 0..100 {
        recorder.record(Box::new(record(n)));
        // The first four are the batch that is not taken.
        if n < 4 {
            until(|| refused.load(Ordering::SeqCst) as u64 == n + 1);
        }
    }
    assert!(!recorder.flush(Duration::from_millis(20)), "nothing is stored");
    assert!(recorder.failing().unwrap().contains("disk full"));
    assert_eq!(recorder.dropped(), 100 - 4 - 8);
    assert!(has(&metrics, "headrace_traces_dropped_total{reason=\"queue_full\"} 88"));

    full.store(false, Ordering::SeqCst);
    assert!(recorder.flush(LONG));
    assert_eq!(
        batches.lock().unwrap().concat(),
        (0..12).map(id).collect::<Vec<_>>(),
        "none is lost, in order"
    );
    assert_eq!(recorder.failing(), None);

    full.store(true, Ordering::SeqCst);
    recorder.record(Box::new(record(200)));
    assert!(recorder.close(LONG), "closing does not wait for a disk to have room");
    assert!(has(&metrics, "headrace_traces_dropped_total{reason=\"store_failed\"} 1"));
}

#[test]
fn a_record_that_can_never_be_stored_holds_nothing_up() {
    struct Choosy(Box<dyn TraceStore>);
    impl TraceStore for Choosy {
        fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
            if batch.iter().any(|record| record.request_id == id(1)) {
                return Err(TraceError::Corrupt { what: "record 1".to_owned(), why: "odd".to_owned() });
            }
            self.0.append(batch)
        }
    }
    let (inner, batches) = noting(|_| false);
    let config = RecorderConfig { batch_records: 1, ..RecorderConfig::default() };
    let (recorder, metrics) = start(Some(Box::new(Choosy(inner))), config);
    (0..3).for_each(|n| recorder.record(Box::new(record(n))));
    assert!(recorder.flush(LONG));
    assert_eq!(batches.lock().unwrap().concat(), [id(0), id(2)]);
    assert!(has(&metrics, "headrace_traces_dropped_total{reason=\"store_failed\"} 1"));
}

/// A refusal with its own id, of a known or an unknown caller.
fn refusal(n: u64, known: bool, second: u64) -> TraceRecord {
    let data =
        if known { include_str!("data/refused.json") } else { include_str!("data/refused-early.json") };
    let mut record = decode_record(data).unwrap();
    record.request_id = id(n);
    record.started = UnixNanos::new(second * 1_000_000_000);
    record
}

#[test]
fn a_flood_of_refusals_costs_no_trace_of_a_call_that_ran() {
    let (entered, inside) = sync_channel(1);
    let (go, gate) = sync_channel::<()>(1);
    let (inner, batches) = noting(|_| false);
    let config = RecorderConfig { queue_records: 64, recent_records: 64, ..RecorderConfig::default() };
    let (recorder, metrics) = start(Some(Box::new(Gated { entered, go: gate, inner })), config);
    // The store is busy with one record while all others arrive.
    recorder.record(Box::new(record(0)));
    inside.recv().unwrap();
    let mut paid = vec![id(0)];
    for n in 1..=20_000 {
        recorder.record(Box::new(refusal(1_000_000 + n, false, n / 5_000)));
        recorder.record(Box::new(refusal(2_000_000 + n, n % 100 == 0, n / 5_000)));
        if n % 400 == 0 {
            recorder.record(Box::new(record(n)));
            paid.push(id(n));
        }
    }
    drop(go);
    assert!(recorder.flush(LONG));
    let stored = batches.lock().unwrap().concat();
    let ran: Vec<_> = stored.iter().copied().filter(|id| id.bits() < 1_000_000).collect();
    assert_eq!(ran, paid, "every call that ran is stored");
    assert_eq!(stored[1..paid.len()], paid[1..], "and before the refusals that came first");
    let strangers = stored.iter().filter(|id| id.bits() / 1_000_000 >= 1).count();
    assert!((10..=100).contains(&strangers), "{strangers} refusals are stored");
    assert!(paid.iter().rev().take(2).all(|id| recorder.recent(*id).is_some()), "in memory too");
    assert!(recorder.recent(id(1_020_000)).is_some(), "the newest stranger is, in a ring of its own");
    let refused: u64 = metrics
        .prometheus()
        .lines()
        .filter(|line| line.starts_with("headrace_requests_total") && line.contains("refused"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(refused, 40_000, "all are counted");
}

/// Record `n` as a worker job of call 1.
fn worker_job(n: u64) -> TraceRecord {
    let worker_job = Some(Box::new(WorkerJob { call: id(1) }));
    TraceRecord { org: None, project: None, endpoint: None, worker_job, ..record(n) }
}

#[test]
fn worker_jobs_are_found_by_their_call_and_are_none_of_the_calls() {
    let (store, batches) = noting(|_| false);
    let (recorder, metrics) = start(Some(store), RecorderConfig::default());
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traced = |record: TraceRecord| TraceRecord { trace_id: Some(trace.to_owned()), ..record };
    let mut heard = recorder.live().subscribe();
    recorder.record(Box::new(traced(record(2))));
    recorder.record(Box::new(traced(worker_job(3))));
    recorder.record(Box::new(TraceRecord { trace_id: None, ..worker_job(4) }));
    let ids = |records: Vec<SharedRecord>| records.iter().map(|record| record.request_id).collect::<Vec<_>>();
    assert_eq!(ids(recorder.traced(trace)), [id(2), id(3)], "calls first");
    assert_eq!(ids(recorder.traced(&headrace_trace::trace_name(id(1)))), [id(4), id(3)]);
    assert!(recorder.recent(id(4)).is_some());
    assert_eq!(ids(recorder.newest(9)), [id(2)]);
    assert!(recorder.flush(LONG));
    let mut stored: Vec<_> = batches.lock().unwrap().concat();
    stored.sort_unstable();
    assert_eq!(stored, [id(2), id(3), id(4)]);
    // One call was counted and published.
    let requests: Vec<String> = metrics.prometheus().lines().map(str::to_owned).collect();
    let counted: f64 = requests
        .iter()
        .filter(|line| line.starts_with("headrace_requests_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert!((counted - 1.0).abs() < f64::EPSILON, "{counted}");
    assert_eq!(heard.try_recv().unwrap().id, id(2));
    assert!(heard.try_recv().is_err());
}

#[test]
fn a_flood_of_worker_jobs_costs_no_trace_of_a_call() {
    let (entered, enters) = sync_channel(8);
    let (goes, go) = sync_channel(8);
    let config = RecorderConfig {
        queue_records: 8,
        recent_records: 64,
        batch_records: 1,
        ..RecorderConfig::default()
    };
    let (recorder, _) = start(Some(Box::new(Stuck { entered, go })), config);
    recorder.record(Box::new(record(1)));
    enters.recv_timeout(LONG).unwrap();
    // The store takes nothing more for now.
    (1_000..2_000).for_each(|n| recorder.record(Box::new(worker_job(n))));
    (2..9).for_each(|n| recorder.record(Box::new(record(n))));
    assert_eq!(recorder.dropped(), 1_000 - 2, "a quarter of the queue is theirs");
    assert!((1..9).all(|n| recorder.recent(id(n)).is_some()), "nor is a call's record pushed out of memory");
    drop(goes);
}

#[test]
fn closing_stores_what_was_queued_and_what_comes_later_is_counted() {
    let (store, batches) = noting(|_| false);
    let config = RecorderConfig { linger: Duration::from_millis(300), ..RecorderConfig::default() };
    let (recorder, metrics) = start(Some(store), config);
    for n in 0..50 {
        recorder.record(Box::new(record(n)));
    }
    assert!(recorder.close(LONG));
    assert_eq!(batches.lock().unwrap().concat().len(), 50);
    recorder.record(Box::new(record(50)));
    assert_eq!(recorder.dropped(), 1);
    assert!(has(&metrics, "headrace_traces_dropped_total{reason=\"closed\"} 1"));
    assert!(recorder.flush(LONG) && recorder.close(LONG), "nothing is left to do");
}

#[test]
fn dropping_the_recorder_lets_the_thread_finish() {
    let (store, batches) = noting(|_| false);
    let (recorder, _) = start(Some(store), RecorderConfig::default());
    for n in 0..50 {
        recorder.record(Box::new(record(n)));
    }
    drop(recorder);
    until(|| batches.lock().unwrap().concat().len() >= 50);
    assert_eq!(batches.lock().unwrap().concat().len(), 50);
}

#[test]
fn memory_keeps_the_newest_and_no_more() {
    let (recorder, _) = start(None, RecorderConfig { recent_records: 32, ..RecorderConfig::default() });
    for n in 0..1_000 {
        recorder.record(Box::new(record(n)));
    }
    let kept: Vec<u64> = (0..1_000).filter(|n| recorder.recent(id(*n)).is_some()).collect();
    assert_eq!(kept, (968..1_000).collect::<Vec<_>>());
    let (none, _) = start(None, RecorderConfig { recent_records: 0, ..RecorderConfig::default() });
    none.record(Box::new(record(1)));
    assert!(none.recent(id(1)).is_none());
    assert!(none.flush(LONG), "without a store there is nothing to wait for");
}

#[test]
fn every_record_gets_the_region_of_its_server() {
    for name in [None, Some("eu-west-1")] {
        let region = name.map(|name| Region::new(name).unwrap());
        let (pass, received) = sync_channel(8);
        let config = RecorderConfig { region: region.clone(), ..RecorderConfig::default() };
        let (recorder, _) = start(Some(Box::new(Passing(pass))), config);
        recorder.record(Box::new(record(1)));
        let recent = recorder.recent(id(1)).unwrap();
        assert_eq!(recent.region, region);
        assert_eq!(record_json(&recent)["region"].as_str(), name);
        assert_eq!(received.recv_timeout(LONG).unwrap().region, region);
    }
}

#[test]
fn settings_that_cannot_work_are_refused_by_name() {
    let metrics = || Arc::new(Metrics::new(&MetricsConfig::default()));
    for (config, field) in [
        (RecorderConfig { queue_records: 0, ..RecorderConfig::default() }, "queue_records"),
        (RecorderConfig { batch_records: 0, ..RecorderConfig::default() }, "batch_records"),
        (RecorderConfig { linger: Duration::from_secs(60), ..RecorderConfig::default() }, "linger"),
    ] {
        let error = TraceRecorder::start(None, metrics(), config).err().unwrap();
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn calls_have_their_turn_until_more_waits_than_one_batch_takes() {
    let (entered, inside) = sync_channel(1);
    let (release, go) = sync_channel(0);
    let paces = Arc::<Mutex<Vec<_>>>::default();
    let store = Box::new(Paced { entered, go, paces: Arc::clone(&paces) });
    let config =
        RecorderConfig { batch_records: 4, linger: Duration::from_millis(1), ..RecorderConfig::default() };
    let (recorder, _) = start(Some(store), config);
    // While the first record is written, the others gather.
    recorder.record(Box::new(record(0)));
    inside.recv().unwrap();
    (1..10).for_each(|n| recorder.record(Box::new(record(n))));
    (0..4).for_each(|_| release.send(()).unwrap());
    assert!(recorder.flush(LONG));
    let wanted = [
        (1, WritePace::GivesWay),
        (4, WritePace::Hurries),
        (4, WritePace::Hurries),
        (1, WritePace::GivesWay),
    ];
    assert_eq!(*paces.lock().unwrap(), wanted);
}

#[test]
fn a_forgotten_user_takes_its_own_calls_from_memory_and_no_others() {
    let (recorder, _) = start(None, RecorderConfig::default());
    for (n, user) in [(1, "eva@example.com"), (2, "someone"), (3, "acme")] {
        let user = EndUser::named(user);
        recorder.record(Box::new(TraceRecord { user, org: Some("acme".parse().unwrap()), ..record(n) }));
    }
    let left = || [1, 2, 3].map(|n| recorder.recent(id(n)).is_some());
    recorder.forget(&ForgottenName::new("eva@example.com").unwrap(), None);
    assert_eq!(left(), [false, true, true]);
    recorder.forget(&ForgottenName::new("acme").unwrap(), None);
    assert_eq!(left(), [false, true, false], "a user who is named like an organisation");
}
