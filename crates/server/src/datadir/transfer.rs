//! Moves keys and ledger of a data directory to another place, and copies shared ones into a directory of their own. Must
//! not know how a store is copied.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Clock;
use headrace_identity::HashSecret;
use headrace_ledger::GatewayState;
use headrace_store::{Storage, StorageUrl, StoreName, TransferReport};

use super::{
    DataDir, DataDirError, STORAGE_FILE, make_private, random, read_secret, recorded, secrets_folder,
    write_private,
};

/// The secrets that all programs with the same stores have in common.
const SHARED_SECRETS: [&str; 2] = ["key-hash", "cache-salt"];
/// A gateway that was silent for longer has ended.
const LEASE: Duration = Duration::from_secs(15);

impl DataDir {
    /// Moves keys, operators, audit log and ledger to `to`, where there must be none, and remembers the place. Files that
    /// the directory had for them are kept, with `.moved` at the end of their names. `progress` receives the number of
    /// copied rows of the ledger.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] if gateways are running, [`DataDirError::SamePlace`], or an error of a store. Nothing has
    /// changed then.
    pub fn move_stores(
        &self,
        to: &StorageUrl,
        clock: &Arc<dyn Clock>,
        progress: impl FnMut(u64),
    ) -> Result<TransferReport, DataDirError> {
        if recorded(self.path())? == *to {
            return Err(DataDirError::SamePlace(to.clone()));
        }
        if self.storage.is_shared() {
            self.refuse_running_gateways()?;
        } else {
            // Releases the holds of the process that had the ledger.
            let opened = self.ledger("headrace move", clock, Box::new(|_| ()))?;
            opened.admin.close().map_err(DataDirError::Ledger)?;
        }
        let target = Storage::open(to.clone(), None);
        for (name, own) in SHARED_SECRETS.into_iter().zip([&self.key_hash, &self.cache_salt]) {
            let stored =
                target.shared_secret(name, own).map_err(|error| DataDirError::Identity(error.into()))?;
            if stored != **own {
                return Err(DataDirError::OtherSecret(secrets_folder(self.path()).join(name)));
            }
            let file = secrets_folder(self.path()).join(name);
            // The directory may have another secret of its own from before it joined a database.
            if read_secret(&file).is_ok_and(|kept| *kept != **own) {
                write_private(&file, &hexadecimal(own))?;
            }
        }
        let secret = HashSecret::new(*self.key_hash);
        let report = self.storage.transfer_to(&target, &secret, progress).map_err(DataDirError::Transfer)?;
        self.remember(to)?;
        Ok(report)
    }

    fn refuse_running_gateways(&self) -> Result<(), DataDirError> {
        let gateways = self.storage.reader().ledger().gateways();
        let gateways = gateways.map_err(|error| DataDirError::Ledger(error.into()))?;
        let running = gateways.into_iter().filter(|gateway| gateway.state == GatewayState::Live);
        let running: Vec<String> =
            running.filter(|gateway| gateway.unseen < LEASE).map(|gateway| gateway.name).collect();
        if running.is_empty() { Ok(()) } else { Err(DataDirError::InUse { gateways: running }) }
    }

    fn remember(&self, to: &StorageUrl) -> Result<(), DataDirError> {
        let record = self.path().join(STORAGE_FILE);
        if to.is_shared() {
            write_private(&record, &to.expose())?;
            // No server may start on the old files by mistake.
            for store in [StoreName::Identities, StoreName::Ledger] {
                let old = self.path().join(store.file());
                if old.exists() {
                    let moved = old.with_extension("sqlite.moved");
                    std::fs::rename(&old, moved).map_err(|source| DataDirError::Io {
                        doing: "rename",
                        path: old,
                        source,
                    })?;
                }
            }
            return Ok(());
        }
        if *to != StorageUrl::of_folder(self.path()) {
            return write_private(&record, &to.expose());
        }
        match std::fs::remove_file(&record) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(DataDirError::Io { doing: "remove", path: record, source })
            }
            _ => Ok(()),
        }
    }
}

/// Copies keys, operators, audit log and ledger that a directory's server shares with others to files in the empty folder
/// `to`, with their secrets. The gateways may run meanwhile.
///
/// # Errors
/// Returns an error if a store cannot be read, or the copy cannot be written or has faults.
pub fn copy_shared(dir: &Path, to: &Path, progress: impl FnMut(u64)) -> Result<TransferReport, DataDirError> {
    let source = Storage::open(recorded(dir)?, None);
    make_private(&secrets_folder(to))?;
    let mut key_hash = None;
    for name in SHARED_SECRETS {
        // A database that had no gateway yet gets a secret now.
        let stored = source.shared_secret(name, &random()?);
        let stored = stored.map_err(|error| DataDirError::Identity(error.into()))?;
        write_private(&secrets_folder(to).join(name), &hexadecimal(&stored))?;
        key_hash.get_or_insert(stored);
    }
    let secret = HashSecret::new(key_hash.unwrap_or_default());
    let target = Storage::open(StorageUrl::of_folder(to), None);
    source.transfer_to(&target, &secret, progress).map_err(DataDirError::Transfer)
}

fn hexadecimal(secret: &[u8; 32]) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
}
