//! All stores of a program, opened by the URL of their place. Callers get the traits of other crates and need not know
//! which database is behind them. Must not know calls, limits or who uses a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_domain::Clock;
use headrace_identity::{KeyStore, OperatorStore, StoreError};
use headrace_ledger::{
    EventOutbox, JournalHistory, Ledger, LedgerAdmin, LedgerClient, LedgerError, LocalLedgerAdmin,
    OpenReport, Owner, SharedLedger, SharedLedgerOptions,
};
use headrace_limits::ShareStore;
use headrace_objects::{AnswerStore, BatchStore, FileLimits, ObjectError, ObjectLimits, ObjectStore};
use headrace_postgres::{
    OwnerSource, PostgresAddresses, PostgresAnswers, PostgresFiles, PostgresJournal, PostgresJournalHistory,
    PostgresKeyStore, PostgresObjects, PostgresOutbox, PostgresPresence, PostgresShares, PostgresUrl,
    SetupLock,
};
use headrace_trace::{ContentArchive, TraceError, TraceReader, TraceStore, UsageReader};

use crate::answers::SqliteAnswers;
use crate::backup::{CopyError, copy_database};
use crate::contents::SqliteContents;
use crate::disk::{DiskBallast, DiskGuard};
use crate::files::SqliteFiles;
use crate::identity::SqliteKeyStore;
use crate::journal::{CommitTimes, SqliteJournal, SqliteJournalHistory};
use crate::late::LateTraceStore;
use crate::objects::SqliteObjects;
use crate::outbox::SqliteOutbox;
use crate::trace::{SqliteTraceReader, TraceRetention, index};
use crate::url::StorageUrl;
use crate::usage::SqliteUsage;

/// The stores of a program, for its only writer. Each store opens when it is asked for, so that a program touches only
/// the stores that it needs.
#[derive(Debug, Clone)]
pub struct Storage {
    url: StorageUrl,
    /// Releases space for the ledger, the identities and removals if the disk is full.
    ballast: Option<Arc<DiskBallast>>,
}

/// The stores of a program, read beside its writer or without one.
#[derive(Debug, Clone)]
pub struct StorageReader {
    url: StorageUrl,
}

/// A store of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreName {
    /// Keys, projects, organisations, operators and the audit log.
    Identities,
    /// The ledger's journal.
    Ledger,
    /// Stored responses and conversations.
    Objects,
    /// Clients' files and batches.
    Files,
    /// Answers that repeated requests get again.
    Answers,
    /// Events that wait for delivery to webhooks.
    Outbox,
    /// Usage by the hour, derived from the ledger and the traces.
    Usage,
    /// Traces of ended calls.
    Traces,
    /// Recorded requests and answers.
    Contents,
}

/// The place of one store, as texts show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorePlace {
    path: PathBuf,
    /// The URL of the database, for a store that several programs share.
    database: Option<String>,
}

/// The stores of identities.
pub struct IdentityStores {
    /// Keys, projects, organisations and the audit log.
    pub keys: Arc<dyn KeyStore>,
    /// Operators.
    pub operators: Arc<dyn OperatorStore>,
}

/// An opened ledger.
pub struct OpenedLedger {
    /// The ledger as calls use it.
    pub client: Arc<dyn LedgerClient>,
    /// The same ledger as operators use it.
    pub admin: Arc<dyn LedgerAdmin>,
    /// The name under which this process takes holds. A shared ledger may choose another one later.
    pub owner: Owner,
    /// The same ledger if several gateways share it.
    pub shared: Option<SharedLedger>,
    /// The results of opening it.
    pub report: OpenReport,
}

impl fmt::Debug for IdentityStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityStores").finish_non_exhaustive()
    }
}

impl fmt::Debug for OpenedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedLedger").field("report", &self.report).finish_non_exhaustive()
    }
}

impl StoreName {
    /// All stores, in the order in which a copy must be made. Identities come before the ledger. A project that is
    /// created meanwhile is then at most in the ledger's copy, so no copied key lacks an account. The outbox comes before
    /// the ledger. Its position is then at most the end of the copied journal, so a server on the copy misses no alert.
    /// Some may be sent again, with the same id.
    const ALL: [Self; 9] = [
        Self::Identities,
        Self::Outbox,
        Self::Ledger,
        Self::Objects,
        Self::Files,
        Self::Answers,
        Self::Usage,
        Self::Traces,
        Self::Contents,
    ];

    /// The name of the file in a folder of stores.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Identities => "identity.sqlite",
            Self::Ledger => "ledger.sqlite",
            Self::Objects => "objects.sqlite",
            Self::Files => "files.sqlite",
            Self::Answers => "answers.sqlite",
            Self::Outbox => "webhooks.sqlite",
            Self::Usage => "usage.sqlite",
            Self::Traces => "traces.sqlite",
            Self::Contents => "contents.sqlite",
        }
    }

    fn path(self, url: &StorageUrl) -> PathBuf {
        url.folder().join(self.file())
    }
}

impl StorePlace {
    /// Returns whether the store exists. That of a database does, as far as can be said without asking it.
    pub fn exists(&self) -> bool {
        self.database.is_some() || self.path.exists()
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.database {
            Some(database) => f.write_str(database),
            None => self.path.display().fmt(f),
        }
    }
}

impl Storage {
    /// Opens the stores at a place. With a ballast, the ledger, the identities and removals use its space if the disk
    /// is full.
    pub fn open(url: StorageUrl, ballast: Option<Arc<DiskBallast>>) -> Self {
        Self { url, ballast }
    }

    /// Opens the stores at a place to read them.
    pub fn open_read_only(url: StorageUrl) -> StorageReader {
        StorageReader { url }
    }

    /// Returns a reader of the same stores.
    pub fn reader(&self) -> StorageReader {
        Self::open_read_only(self.url.clone())
    }

    /// Opens the stores of identities, and creates them if they are missing.
    ///
    /// # Errors
    /// [`StoreError::Newer`] if a newer program wrote the store. Other errors if it cannot be opened.
    pub fn identities(&self) -> Result<IdentityStores, StoreError> {
        if let Some(database) = self.url.database() {
            let store = Arc::new(PostgresKeyStore::open(Arc::clone(database))?);
            return Ok(IdentityStores { keys: Arc::clone(&store) as _, operators: store });
        }
        let mut store = SqliteKeyStore::open(&self.path(StoreName::Identities))?;
        if let Some(ballast) = &self.ballast {
            store = store.backed_by(Arc::clone(ballast));
        }
        let store = Arc::new(store);
        Ok(IdentityStores { keys: Arc::clone(&store) as _, operators: store })
    }

    /// Returns whether several programs share the stores.
    pub const fn is_shared(&self) -> bool {
        self.url.is_shared()
    }

    /// Waits until no other program with these stores makes the first keys, and keeps others from it until the lock is
    /// dropped. `None` if this program has the stores for itself.
    ///
    /// # Errors
    /// Returns an error if the stores cannot be reached.
    pub fn setup_lock(&self) -> Result<Option<SetupLock>, StoreError> {
        self.url.database().map(|database| SetupLock::acquire(Arc::clone(database))).transpose()
    }

    /// Opens the ledger, and creates it if it is missing. Releases the holds of owners that have ended. `owners` makes
    /// the name under which this process takes holds. It is called again if other processes declared this one dead.
    /// Operators see it as `gateway` if others share the ledger.
    /// `times` receives the duration of each commit.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read or written, is corrupt, or has a newer format.
    pub fn ledger(
        &self,
        gateway: &str,
        mut owners: Box<dyn FnMut() -> Owner + Send>,
        clock: &Arc<dyn Clock>,
        times: CommitTimes,
    ) -> Result<OpenedLedger, LedgerError> {
        let owner = owners();
        if let Some(database) = self.url.database() {
            let journal = PostgresJournal::new(Arc::clone(database)).timed(times);
            let journal = journal.named(gateway, env!("CARGO_PKG_VERSION"));
            return shared_ledger(database, journal, (owner, owners), clock);
        }
        let now = clock.now();
        let mut journal = SqliteJournal::open(&self.path(StoreName::Ledger))?.timed(times);
        if let Some(ballast) = &self.ballast {
            journal = journal.backed_by(Arc::clone(ballast));
        }
        let (ledger, report) = Ledger::open(Box::new(journal), owner, now)?;
        let admin = LocalLedgerAdmin::new(ledger.clone(), self.reader().ledger());
        Ok(OpenedLedger { client: Arc::new(ledger), admin: Arc::new(admin), owner, shared: None, report })
    }

    /// Returns the shares that gateways with these stores have in rate limits. `None` if this program has the stores for
    /// itself. Connects when it is used.
    pub fn limit_shares(&self) -> Option<Box<dyn ShareStore + Send>> {
        let database = self.url.database()?;
        Some(Box::new(PostgresShares::new(Arc::clone(database))))
    }

    /// Returns the addresses at which gateways with these stores ask each other. `None` if this program has the stores
    /// for itself. Connects when it is used.
    pub fn gateway_addresses(&self) -> Option<PostgresAddresses> {
        self.url.database().map(|database| PostgresAddresses::new(Arc::clone(database)))
    }

    /// Opens the store of responses and conversations, and creates it if it is missing. With a guard, the disk's
    /// reserve stays free.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the place holds another kind of store.
    pub fn objects(
        &self,
        limits: ObjectLimits,
        guard: Option<DiskGuard>,
    ) -> Result<Arc<dyn ObjectStore>, ObjectError> {
        let store = SqliteObjects::open_guarded(&self.path(StoreName::Objects), limits, guard)?;
        Ok(Arc::new(store))
    }

    /// Opens the store of responses and conversations that several gateways share. `owner` names this one, whose
    /// responses in progress others leave alone. `None` if this program has its stores for itself.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the database cannot be reached, or a newer program made its tables.
    pub fn shared_objects(
        &self,
        limits: ObjectLimits,
        owner: OwnerSource,
    ) -> Result<Option<Arc<dyn ObjectStore>>, ObjectError> {
        let Some(database) = self.url.database() else { return Ok(None) };
        Ok(Some(Arc::new(PostgresObjects::open(Arc::clone(database), limits, owner)?)))
    }

    /// Opens the store of files and batches that several gateways share. `owner` names this one, which runs its own
    /// batches and those of gateways that have ended. `None` if this program has its stores for itself.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the database cannot be reached, or a newer program made its tables.
    pub fn shared_batches(
        &self,
        limits: FileLimits,
        owner: OwnerSource,
    ) -> Result<Option<Arc<dyn BatchStore>>, ObjectError> {
        let Some(database) = self.url.database() else { return Ok(None) };
        Ok(Some(Arc::new(PostgresFiles::open(Arc::clone(database), limits, owner)?)))
    }

    /// Opens the store of files and batches, and creates it if it is missing. With a guard, the disk's reserve stays
    /// free.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the place holds another kind of store.
    pub fn batches(
        &self,
        limits: FileLimits,
        guard: Option<DiskGuard>,
    ) -> Result<Arc<dyn BatchStore>, ObjectError> {
        let mut store = SqliteFiles::open(&self.path(StoreName::Files), limits)?;
        if let Some(guard) = guard {
            store = store.guarded(guard, self.ballast.clone());
        }
        Ok(Arc::new(store))
    }

    /// Describes the store of answers that repeated requests get again. It opens, and is created, with the first answer.
    /// With a guard, the disk's reserve stays free.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if several gateways share the stores, and the database cannot be reached or a newer
    /// program made its tables.
    pub fn answers(
        &self,
        max_total_bytes: u64,
        guard: Option<DiskGuard>,
    ) -> Result<Arc<dyn AnswerStore>, ObjectError> {
        if let Some(database) = self.url.database() {
            return Ok(Arc::new(PostgresAnswers::open(Arc::clone(database), max_total_bytes)?));
        }
        Ok(Arc::new(SqliteAnswers::new(&self.path(StoreName::Answers), max_total_bytes, guard)))
    }

    /// Describes the store of events that wait for delivery to webhooks. It opens, and is created, when it is first used.
    pub fn outbox(&self) -> Arc<dyn EventOutbox> {
        match self.url.database() {
            Some(database) => Arc::new(PostgresOutbox::new(Arc::clone(database))),
            None => Arc::new(SqliteOutbox::new(&self.path(StoreName::Outbox))),
        }
    }

    /// Opens the store of traces now, or in a later write if the disk prevents it. The oldest records are removed if the
    /// store reaches `max_bytes`.
    ///
    /// # Errors
    /// `Config` for a retention that keeps nothing, and `NewerFormat` for a store of a newer program.
    pub fn traces(
        &self,
        retention: TraceRetention,
        max_bytes: u64,
        guard: DiskGuard,
    ) -> Result<Box<dyn TraceStore>, TraceError> {
        let path = self.path(StoreName::Traces);
        Ok(Box::new(LateTraceStore::open(&path, retention, max_bytes, guard)?))
    }

    /// Returns the store of recorded requests and answers. It opens, and is created, with the first content. The oldest
    /// contents are removed if the store reaches `max_bytes`. With a guard, the disk's reserve stays free.
    pub fn contents(&self, max_bytes: u64, guard: Option<DiskGuard>) -> Arc<dyn ContentArchive> {
        Arc::new(SqliteContents::new(&self.path(StoreName::Contents), max_bytes, guard))
    }

    pub(crate) fn path(&self, store: StoreName) -> PathBuf {
        store.path(&self.url)
    }

    pub(crate) const fn url(&self) -> &StorageUrl {
        &self.url
    }
}

/// Opens the ledger of a database.
fn shared_ledger(
    database: &Arc<PostgresUrl>,
    journal: PostgresJournal,
    (owner, owners): (Owner, Box<dyn FnMut() -> Owner + Send>),
    clock: &Arc<dyn Clock>,
) -> Result<OpenedLedger, LedgerError> {
    let presence = PostgresPresence::new(Arc::clone(database));
    let (ledger, report) = SharedLedger::open(
        Box::new(journal),
        Box::new(presence),
        owner,
        owners,
        Arc::clone(clock),
        SharedLedgerOptions::default(),
    )?;
    let (client, admin) = (Arc::new(ledger.clone()), Arc::new(ledger.clone()));
    Ok(OpenedLedger { client, admin, owner, shared: Some(ledger), report })
}

impl StorageReader {
    /// Returns whether several programs share the stores.
    pub const fn is_shared(&self) -> bool {
        self.url.is_shared()
    }

    /// Returns the place of a store, which need not exist.
    pub fn place(&self, store: StoreName) -> StorePlace {
        let is_shared = !matches!(store, StoreName::Usage | StoreName::Traces | StoreName::Contents);
        let database = self.url.database().filter(|_| is_shared).map(ToString::to_string);
        StorePlace { path: store.path(&self.url), database }
    }

    /// Returns a reader of the ledger's journal. The journal is opened anew for each question.
    pub fn ledger(&self) -> Arc<dyn JournalHistory> {
        if let Some(database) = self.url.database() {
            return Arc::new(PostgresJournalHistory::new(Arc::clone(database)));
        }
        Arc::new(SqliteJournalHistory::new(&self.path(StoreName::Ledger)))
    }

    /// Opens the traces.
    ///
    /// # Errors
    /// Returns an error if there are none, or they cannot be read.
    pub fn traces(&self) -> Result<Arc<dyn TraceReader>, TraceError> {
        Ok(Arc::new(SqliteTraceReader::open(&self.path(StoreName::Traces))?))
    }

    /// Returns a reader that opens the traces on its first read, and tries again while that fails.
    pub fn traces_when_read(&self) -> Arc<dyn TraceReader> {
        Arc::new(SqliteTraceReader::late(&self.path(StoreName::Traces)))
    }

    /// Indexes the traces that an older program wrote, so that searches find them. Only for traces that no server has
    /// open. A server that opens them does this itself.
    ///
    /// # Errors
    /// Returns an error if the traces cannot be read or written.
    pub fn index_traces(&self) -> Result<(), TraceError> {
        index(&self.path(StoreName::Traces))
    }

    /// Returns the recorded requests and answers, with scores and datasets.
    pub fn contents(&self) -> Arc<dyn ContentArchive> {
        Arc::new(SqliteContents::new(&self.path(StoreName::Contents), u64::MAX, None))
    }

    /// Opens usage, which is derived from the ledger and the traces. Several processes may have it open.
    ///
    /// # Errors
    /// Returns an error if the place holds another kind of store, or that of a newer program.
    pub fn usage(&self) -> Result<Arc<dyn UsageReader>, TraceError> {
        let [usage, traces] = [StoreName::Usage, StoreName::Traces].map(|store| self.path(store));
        Ok(Arc::new(SqliteUsage::open(&usage, self.ledger(), &traces)?))
    }

    /// Copies all stores of this program alone that exist to an empty folder, and returns their number. Each copy is consistent, even while a
    /// server writes.
    ///
    /// # Errors
    /// Returns an error if a store cannot be read or its copy cannot be written.
    pub fn copy_to(&self, folder: &Path, with_traces: bool) -> Result<u64, CopyError> {
        let to = StorageUrl::of_folder(folder);
        let mut copied = 0;
        for store in StoreName::ALL {
            let source = self.path(store);
            if self.place(store).database.is_none()
                && source.exists()
                && (with_traces || !matches!(store, StoreName::Traces | StoreName::Contents))
            {
                copy_database(&source, &store.path(&to))?;
                copied += 1;
            }
        }
        Ok(copied)
    }

    fn path(&self, store: StoreName) -> PathBuf {
        store.path(&self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::StoreName;

    #[test]
    fn identities_and_the_outbox_are_copied_before_the_ledger() {
        let place = |name| StoreName::ALL.iter().position(|store| *store == name).unwrap();
        for first in [StoreName::Identities, StoreName::Outbox] {
            assert!(place(first) < place(StoreName::Ledger), "{first:?}");
        }
    }
}
