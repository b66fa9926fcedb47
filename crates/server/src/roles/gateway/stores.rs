//! The gateway's stores: keys, operators, ledger, traces, and what clients store. Opens them in the data directory and
//! closes them in order. Must not know what is read or written.

use std::sync::Arc;
use std::time::Duration;

use headrace_config::ServerSettings;
use headrace_identity::{Directory, Operators};
use headrace_ledger::{HoldTaken, LedgerAdmin, LedgerClient, Owner};
use headrace_store::OpenedLedger;
use headrace_store::disk::{DiskBallast, DiskGuard, DiskSpace};
use headrace_terminal::output;
use headrace_trace::{RecorderConfig, TraceRecorder};

use super::shared_identities::DirectoryIdentities;
use crate::contents::RecordedContents;
use crate::datadir::DataDir;
use crate::health::StoreHealth;
use crate::objects::ObjectStores;
use crate::role_context::RoleContext;

/// Lead of the ledger's time over the clock above which the operator is warned.
const LEDGER_AHEAD: Duration = Duration::from_secs(60);
/// Time limit for storing the last traces.
const TRACE_CLOSE: Duration = Duration::from_secs(5);
/// Maximum number of open holds that the last message names.
const MOST_NAMED: usize = 5;

/// The stores of a gateway.
pub(crate) struct GatewayStores {
    pub(crate) directory: Arc<Directory>,
    pub(crate) operators: Arc<Operators>,
    pub(crate) ledger: Arc<dyn LedgerAdmin>,
    /// The same ledger, as calls use it.
    pub(super) ledger_client: Arc<dyn LedgerClient>,
    pub(super) owner: Owner,
    pub(crate) recorder: Arc<TraceRecorder>,
    pub(crate) contents: RecordedContents,
    pub(super) objects: ObjectStores,
    /// Whether other servers have the same keys and the same ledger.
    pub(super) is_shared: bool,
    ballast: Arc<DiskBallast>,
}

impl GatewayStores {
    /// Opens the stores of a data directory whose identities are open. Blocks.
    ///
    /// # Errors
    /// Returns why a store cannot be opened.
    pub(super) fn open(
        config: &ServerSettings,
        data_dir: &DataDir,
        (directory, operators): (Arc<Directory>, Arc<Operators>),
        context: &RoleContext,
    ) -> Result<Self, String> {
        let timed = Arc::clone(&context.metrics);
        let times = Box::new(move |took| timed.observe_journal(took));
        let opened = data_dir
            .ledger(&config.storage.gateway_name, &context.clock, times)
            .map_err(|error| error.to_string())?;
        let OpenedLedger { client: ledger_client, admin: ledger, owner, shared, report } = opened;
        if let Some(shared) = &shared {
            shared.check_callers(Arc::new(DirectoryIdentities(Arc::clone(&directory))));
        }
        if let Some(why) = &report.snapshot_refused {
            tracing::warn!(why, "the ledger's snapshot was passed over and everything replayed");
        }
        if report.ahead > LEDGER_AHEAD {
            output::note(&format!(
                "warning: the ledger's last row is {} s ahead of this machine's clock; until the clock has caught up, ledger \
                 time stands still and budgets do not turn over. If the clock is right: headrace ledger set-clock",
                report.ahead.as_secs()
            ));
        }
        if !report.orphans.is_empty() {
            output::note(&format!(
                "released {} holds of an earlier process; nothing was charged",
                report.orphans.len()
            ));
        }
        let named = Arc::clone(&ledger);
        let objects = ObjectStores::open(data_dir, config, Arc::new(move || named.owner()))?;
        let guard = DiskGuard::of(data_dir.path(), config.storage.min_free_bytes);
        let max_bytes = config.storage.traces_on(DiskSpace::of(data_dir.path()).ok());
        let traces = data_dir.storage().traces(config.traces.retention, max_bytes, guard);
        let traces = traces.map_err(|error| error.to_string())?;
        let recorder = RecorderConfig {
            queue_records: config.traces.queue_records,
            recent_records: config.traces.recent_records,
            strangers_per_second: config.traces.strangers_per_second,
            region: config.gateway.region.clone(),
            ..RecorderConfig::default()
        };
        let recorder = TraceRecorder::start(Some(traces), Arc::clone(&context.metrics), recorder);
        let recorder = recorder.map_err(|error| error.to_string())?;
        let guard = DiskGuard::of(data_dir.path(), config.storage.min_free_bytes);
        let shared = (&context.clock, &*context.metrics);
        let contents = RecordedContents::open(data_dir, config.contents, guard, shared)?;
        let ballast = Arc::clone(data_dir.ballast());
        let is_shared = data_dir.storage().is_shared();
        Ok(Self {
            directory,
            operators,
            ledger,
            ledger_client,
            owner,
            recorder,
            contents,
            objects,
            is_shared,
            ballast,
        })
    }

    /// The health of the stores. Clones share it.
    pub(crate) fn health(&self) -> StoreHealth {
        let [objects, files] = self.objects.watched.clone();
        StoreHealth {
            ledger: Arc::clone(&self.ledger),
            directory: Arc::clone(&self.directory),
            recorder: Arc::clone(&self.recorder),
            objects,
            files,
            ballast: Arc::clone(&self.ballast),
        }
    }

    /// Closes the ledger, then the recorder, whose last traces are of the last settlements. Blocks.
    ///
    /// # Errors
    /// Returns why not every call is settled on the disk.
    pub(super) fn close(&self) -> Result<(), String> {
        // Other servers of the same ledger keep theirs.
        let mut open = self.ledger.open_holds();
        open.retain(|held| held.owner == self.owner);
        if let Err(error) = self.directory.write_all_key_uses() {
            tracing::warn!(%error, "the last uses of keys could not be stored");
        }
        let closed = self.ledger.close();
        if !self.recorder.close(TRACE_CLOSE) {
            tracing::warn!("the last traces could not be stored in time");
        }
        if !self.contents.recorder.close(TRACE_CLOSE) {
            tracing::warn!("the last requests and answers could not be stored in time");
        }
        closed.map_err(|error| format!("the ledger could not be closed: {error}"))?;
        if open.is_empty() { Ok(()) } else { Err(left_open(&open)) }
    }
}

/// The last message if some calls could not be settled.
fn left_open(open: &[HoldTaken]) -> String {
    let names: Vec<String> = open.iter().take(MOST_NAMED).map(|held| held.hold.to_string()).collect();
    let more = if open.len() > MOST_NAMED { ", …" } else { "" };
    format!(
        "stopped, and {} calls are not settled: their holds ({}{more}) are released at the next start and not charged",
        open.len(),
        names.join(", ")
    )
}
