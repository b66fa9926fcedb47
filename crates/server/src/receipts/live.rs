//! The receipts of a running server, whose keys follow rotations. Must not know what a receipt says.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_admin::{AdminError, ReceiptKeySource};
use headrace_config::ServerSettings;
use headrace_domain::{AdminCode, TraceRecord};
use headrace_ledger::JournalHistory;
use headrace_store::StorageReader;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::{CallReceipt, ReceiptError, ReceiptSigner};
use crate::datadir::{ReceiptKeyAct, SecretFiles, receipt_keys};

/// How long keys are used before they are read again. Another process may have made a new one.
const REREAD_EVERY: Duration = Duration::from_secs(60);

/// Makes receipts in a running server.
pub(crate) struct LiveReceipts {
    journal: Arc<dyn JournalHistory>,
    dir: PathBuf,
    storage_secret: Option<PathBuf>,
    kept: Mutex<Option<(Instant, Arc<ReceiptSigner>)>>,
    /// Notified when this process made a key.
    rotated: Notify,
}

impl LiveReceipts {
    /// Describes the keys and the journal of a server's stores.
    pub(crate) fn new(config: &ServerSettings, stored: &StorageReader) -> Self {
        Self {
            journal: stored.ledger(),
            dir: config.data_dir.clone(),
            storage_secret: config.storage.secret_file.clone(),
            kept: Mutex::default(),
            rotated: Notify::new(),
        }
    }

    /// Makes the receipt of a call. `None` if the call was refused, or the ledger has not settled it. Blocks.
    ///
    /// # Errors
    /// Returns an error if the journal or the keys cannot be read.
    pub(crate) fn receipt(&self, record: &TraceRecord) -> Result<Option<CallReceipt>, ReceiptError> {
        self.signer()?.receipt(record, self.journal.as_ref())
    }

    /// Returns the signer. Reads the keys again if they were read long ago. Blocks.
    ///
    /// # Errors
    /// Returns an error if the keys cannot be read and never were.
    pub(crate) fn signer(&self) -> Result<Arc<ReceiptSigner>, ReceiptError> {
        let mut kept = self.kept.lock();
        if let Some((read, signer)) = &*kept
            && read.elapsed() < REREAD_EVERY
        {
            return Ok(Arc::clone(signer));
        }
        match (self.read(ReceiptKeyAct::First), &mut *kept) {
            (Ok(signer), kept) => Ok(Arc::clone(&kept.insert((Instant::now(), signer)).1)),
            (Err(error), Some((read, signer))) => {
                tracing::warn!(%error, "the keys that sign receipts cannot be read again; the known ones are used");
                *read = Instant::now();
                Ok(Arc::clone(signer))
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Makes another key, which signs from now on. Returns its id. Blocks.
    ///
    /// # Errors
    /// Returns an error if the key cannot be stored.
    fn rotate(&self) -> Result<String, ReceiptError> {
        let mut kept = self.kept.lock();
        let signer = self.read(ReceiptKeyAct::Next)?;
        let id = signer.public().keys().first().map(|key| key.id.clone()).unwrap_or_default();
        *kept = Some((Instant::now(), signer));
        self.rotated.notify_one();
        Ok(id)
    }

    /// Returns a function that makes another key, for operators' commands.
    pub(crate) fn rotation(self: &Arc<Self>) -> ReceiptKeySource {
        let receipts = Arc::clone(self);
        Box::new(move || {
            receipts.rotate().map_err(|error| {
                AdminError::new(AdminCode::StoreFailed, error.to_string(), "headrace status")
            })
        })
    }

    /// Passes the published set of keys to `publish`, now and after each change, until the future is dropped.
    pub(crate) async fn publish(self: Arc<Self>, publish: impl Fn(String)) {
        loop {
            let receipts = Arc::clone(&self);
            if let Ok(Ok(signer)) = spawn_blocking(move || receipts.signer()).await {
                publish(signer.public().json().to_string());
            }
            tokio::select! {
                () = tokio::time::sleep(REREAD_EVERY) => {}
                () = self.rotated.notified() => {}
            }
        }
    }

    fn read(&self, act: ReceiptKeyAct) -> Result<Arc<ReceiptSigner>, ReceiptError> {
        let files = SecretFiles { storage: self.storage_secret.as_deref(), ..SecretFiles::default() };
        let secrets = receipt_keys(&self.dir, &files, act)?;
        Ok(Arc::new(ReceiptSigner::of_secrets(&secrets)?))
    }
}
