//! Whether the stores take what they are given: for `status`, for Prometheus and for the log, and the tries by which a
//! store that failed comes back. Decides nothing; the ledger alone says whether the server is ready.

use std::sync::Arc;
use std::time::Duration;

use headrace_admin::{ServerStatus, StoreView};
use headrace_identity::Directory;
use headrace_ledger::Ledger;
use headrace_objects::{BatchStore, ObjectStore};
use headrace_store::disk::Ballast;
use headrace_trace::{Metrics, Recorder};
use parking_lot::Mutex;

/// How often the stores are looked after.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// What keeps things on the disk.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) ledger: Ledger,
    pub(crate) directory: Arc<Directory>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) objects: Watched,
    pub(crate) files: Watched,
    pub(crate) ballast: Arc<Ballast>,
}

/// Looks whether a store of customers' data can be written, and keeps what it found: to look may wait for the disk.
#[derive(Clone)]
pub(crate) struct Watched {
    look: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    found: Arc<Mutex<Option<String>>>,
}

impl Watched {
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

/// Reads why a store cannot be written now, if it cannot.
type Failing = fn(&Stores) -> Option<String>;

const TRACES: &str = "traces";

/// Every store by name.
const STORES: [(&str, Failing); 5] = [
    ("ledger", |of| of.ledger.health().down.map(|why| why.to_string())),
    ("identity", |of| of.directory.failing()),
    (TRACES, |of| of.recorder.failing()),
    ("objects", |of| of.objects.found.lock().clone()),
    ("files", |of| of.files.found.lock().clone()),
];

impl Stores {
    /// Their part of the server's status.
    pub(crate) fn status(&self) -> ServerStatus {
        let view =
            |(store, failing): (&str, Failing)| StoreView { store: store.to_owned(), failing: failing(self) };
        ServerStatus {
            stores: STORES.map(view).into(),
            revocations_waiting: u64::try_from(self.directory.revocations_waiting()).unwrap_or(u64::MAX),
            ..ServerStatus::default()
        }
    }

    /// A gauge for each.
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

    /// Looks after the stores for as long as the server runs, and says of each when it fails and when it is back. The recorder says it of traces.
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
            // It blocks on the disk. What it cannot do, the stores' own words say below.
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
