//! Health of the stores, for `status`, Prometheus and the log, and the retries by which a failed store recovers.
//! Decides nothing; the ledger alone decides whether the server is ready.

use std::sync::Arc;
use std::time::Duration;

use headrace_admin::{ServerStatus, StoreView};
use headrace_identity::Directory;
use headrace_ledger::LedgerAdmin;
use headrace_objects::{BatchStore, ObjectStore};
use headrace_store::disk::DiskBallast;
use headrace_trace::{Metrics, TraceRecorder};
use parking_lot::Mutex;

/// Interval of the checks.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Everything that writes to the disk.
#[derive(Clone)]
pub(crate) struct StoreHealth {
    pub(crate) ledger: Arc<dyn LedgerAdmin>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) recorder: Arc<TraceRecorder>,
    pub(crate) objects: WatchedStore,
    pub(crate) files: WatchedStore,
    pub(crate) ballast: Arc<DiskBallast>,
}

/// Checks whether a store of customer data can be written, and caches the result, because a check may wait for the
/// disk.
#[derive(Clone)]
pub(crate) struct WatchedStore {
    look: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    found: Arc<Mutex<Option<String>>>,
}

impl WatchedStore {
    pub(crate) fn objects(store: &Arc<dyn ObjectStore>) -> Self {
        let store = Arc::clone(store);
        Self::by(move || store.failing())
    }

    pub(crate) fn files(store: &Arc<dyn BatchStore>) -> Self {
        let store = Arc::clone(store);
        Self::by(move || store.failing())
    }

    fn by(look: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        let watched = Self { look: Arc::new(look), found: Arc::default() };
        watched.look();
        watched
    }

    fn look(&self) {
        let found = (self.look)();
        *self.found.lock() = found;
    }
}

/// Returns why a store cannot be written now, or `None` if it can.
type Failing = fn(&StoreHealth) -> Option<String>;

const TRACES: &str = "traces";

/// All stores with their names.
const STORES: [(&str, Failing); 5] = [
    ("ledger", |of| of.ledger.health().down.map(|why| why.to_string())),
    ("identity", |of| of.directory.failing()),
    (TRACES, |of| of.recorder.failing()),
    ("objects", |of| of.objects.found.lock().clone()),
    ("files", |of| of.files.found.lock().clone()),
];

impl StoreHealth {
    /// The stores' part of the server status.
    pub(crate) fn status(&self) -> ServerStatus {
        let view =
            |(store, failing): (&str, Failing)| StoreView { store: store.to_owned(), failing: failing(self) };
        ServerStatus {
            stores: STORES.map(view).into(),
            revocations_waiting: u64::try_from(self.directory.revocations_waiting()).unwrap_or(u64::MAX),
            ..ServerStatus::default()
        }
    }

    /// Registers one gauge per store, and one for waiting revocations.
    pub(crate) fn register(&self, metrics: &Metrics) {
        for (store, failing) in STORES {
            let stores = self.clone();
            let read = move || if failing(&stores).is_none() { 1.0 } else { 0.0 };
            let help = "Whether what was last given to a store could be written.";
            metrics.register_gauge("headrace_store_up", help, &[("store", store)], Box::new(read));
        }
        let directory = Arc::clone(&self.directory);
        let read = move || directory.revocations_waiting() as f64;
        let help = "Revocations in force that wait for the disk.";
        metrics.register_gauge("headrace_revocations_waiting", help, &[], Box::new(read));
    }

    /// Checks the stores while the server runs, and logs each failure and each recovery. The recorder logs those of the
    /// trace store.
    pub(crate) async fn tend(self) {
        let mut failed: [Option<String>; STORES.len()] = Default::default();
        loop {
            tokio::time::sleep(TEND_EVERY).await;
            let stores = self.clone();
            let look = move || {
                stores.ballast.refill();
                stores.objects.look();
                stores.files.look();
                stores.directory.tend()
            };
            // Blocks on the disk. Failures appear in the stores' own state, which is read below.
            let _ = tokio::task::spawn_blocking(look).await;
            for ((store, failing), before) in
                STORES.iter().zip(&mut failed).filter(|((store, _), _)| *store != TRACES)
            {
                let now = failing(&self);
                let waiting = self.directory.revocations_waiting();
                match (&before, &now) {
                    (None, Some(why)) => {
                        tracing::error!(
                            store,
                            why,
                            revocations_waiting = waiting,
                            "a store cannot be written; trying again"
                        );
                    }
                    (Some(_), None) => tracing::info!(store, "a store can be written again"),
                    _ => {}
                }
                *before = now;
            }
        }
    }
}
