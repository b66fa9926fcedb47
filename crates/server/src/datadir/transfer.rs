//! Moves the stores of a data directory to another place, and copies shared ones into a directory of their own. Must not
//! know how a store is copied.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Clock;
use headrace_identity::HashSecret;
use headrace_ledger::GatewayState;
use headrace_store::{SHARED_SECRETS, Storage, StorageUrl, StoreName, TransferReport};
use secrecy::zeroize::Zeroizing;

use super::{
    DataDir, DataDirError, STORAGE_FILE, SecretFiles, lock_objects, random, receipt_keys, recorded, secrets,
    secrets_folder, write_private,
};

/// A gateway that was silent for longer has ended.
const LEASE: Duration = Duration::from_secs(15);

impl DataDir {
    /// Moves keys, operators, audit log, ledger and the outbox of webhooks to `to`, where there must be none, and remembers
    /// the place. Responses, conversations, files, batches and stored answers go along if gateways share either place.
    /// Otherwise they stay in `objects_dir`, or in the directory without one. Files that were moved to a database are kept,
    /// with `.moved` at the end of their names. `files` names the key that encrypts the secrets there. `progress` receives
    /// the number of copied rows of the ledger.
    ///
    /// # Errors
    /// [`DataDirError::Lock`] if a server uses `objects_dir`, [`DataDirError::InUse`] if gateways are running,
    /// [`DataDirError::SamePlace`], or an error of a store. Nothing has changed then.
    pub fn move_stores(
        &self,
        to: &StorageUrl,
        objects_dir: Option<&Path>,
        files: &SecretFiles<'_>,
        clock: &Arc<dyn Clock>,
        progress: impl FnMut(u64),
    ) -> Result<TransferReport, DataDirError> {
        if recorded(self.path())? == *to {
            return Err(DataDirError::SamePlace(to.clone()));
        }
        let objects_lock = objects_dir.map(lock_objects).transpose()?;
        let objects_dir = objects_lock.as_ref().map_or(self.path(), |lock| lock.dir());
        if self.storage.is_shared() {
            self.refuse_running_gateways()?;
        } else {
            // Releases the holds of the process that had the ledger.
            let opened = self.ledger("headrace move", clock, Box::new(|_| ()))?;
            opened.admin.close().map_err(DataDirError::Ledger)?;
        }
        let target = Storage::open(to.clone(), None);
        let sealer = files.sealer()?;
        let own = [self.key_hash.clone(), self.cache_salt.clone()];
        let mut next = SHARED_SECRETS.into_iter().zip(own.clone());
        let stored = target.shared_secrets(sealer.as_ref(), |name| {
            let own = next.find_map(|(known, own)| (known == name).then_some(own));
            own.ok_or_else(|| DataDirError::Secret(secrets_folder(self.path()).join(name)))
        })?;
        for ((name, own), stored) in SHARED_SECRETS.into_iter().zip(&own).zip(&stored) {
            if own != stored {
                return Err(DataDirError::OtherSecret(secrets_folder(self.path()).join(name)));
            }
        }
        if self.storage.is_shared() {
            // The directory has none, or other ones from before it joined a database.
            secrets::put(self.path(), &own, sealer.as_ref())?;
        }
        self.move_receipt_keys(&target, sealer.as_ref())?;
        let secret = HashSecret::new(*self.key_hash);
        let report = self.storage.transfer_to(&target, &secret, progress).map_err(DataDirError::Transfer)?;
        let outbox = self.storage.transfer_outbox_to(&target);
        outbox.map_err(|error| DataDirError::Transfer(error.into()))?;
        let own = Storage::open(StorageUrl::of_folder(objects_dir), None);
        let [from, target] =
            [&self.storage, &target].map(|stores| if stores.is_shared() { stores } else { &own });
        if from.is_shared() || target.is_shared() {
            let copied = from.transfer_objects_to(target);
            copied.map_err(|error| DataDirError::Transfer(error.into()))?;
        }
        self.remember(to, objects_dir)?;
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

    fn remember(&self, to: &StorageUrl, objects_dir: &Path) -> Result<(), DataDirError> {
        let record = self.path().join(STORAGE_FILE);
        if to.is_shared() {
            write_private(&record, &to.expose())?;
            // No server may start on the old files by mistake.
            [StoreName::Identities, StoreName::Ledger, StoreName::Outbox]
                .iter()
                .try_for_each(|store| mark_moved(&self.path().join(store.file())))?;
            let segments = Path::new(StoreName::Files.file()).with_extension("segments");
            let stores = [StoreName::Objects, StoreName::Files, StoreName::Answers];
            stores.iter().try_for_each(|store| mark_moved(&objects_dir.join(store.file())))?;
            return mark_moved(&objects_dir.join(segments));
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

/// Appends `.moved` to the name of a file or directory, if it exists.
fn mark_moved(old: &Path) -> Result<(), DataDirError> {
    if !old.exists() {
        return Ok(());
    }
    let io = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| DataDirError::Io { doing, path, source }
    };
    let extension = old.extension().unwrap_or_default().to_string_lossy().into_owned();
    let moved = old.with_extension(format!("{extension}.moved"));
    if moved.is_dir() {
        // Of an earlier move. A directory cannot be renamed to one with contents.
        std::fs::remove_dir_all(&moved).map_err(io("remove", &moved))?;
    }
    std::fs::rename(old, moved).map_err(io("rename", old))
}

/// Copies keys, operators, audit log, ledger, the outbox of webhooks, responses, conversations, files, batches and stored
/// answers that a directory's server shares with others to files in the empty folder `to`, with their secrets. The gateways
/// may run meanwhile. With the key of `files`, the secrets of the copy are encrypted.
///
/// # Errors
/// Returns an error if a store cannot be read, or the copy cannot be written or has faults. [`DataDirError::Seal`] if the
/// secrets cannot be decrypted.
pub fn copy_shared(
    dir: &Path,
    to: &Path,
    files: &SecretFiles<'_>,
    progress: impl FnMut(u64),
) -> Result<TransferReport, DataDirError> {
    let source = Storage::open(recorded(dir)?, None);
    let sealer = files.sealer()?;
    // A database that had no gateway yet gets secrets now.
    let shared = source
        .shared_secrets(sealer.as_ref(), |_| -> Result<_, DataDirError> { Ok(Zeroizing::new(random()?)) })?;
    secrets::put(to, &shared, sealer.as_ref())?;
    receipt_keys::copy_to(&source, to, sealer.as_ref())?;
    let [key_hash, _] = shared;
    let target = Storage::open(StorageUrl::of_folder(to), None);
    let secret = HashSecret::new(*key_hash);
    // Before the ledger, so that the copied journal has all rows up to the position of the outbox.
    source.transfer_outbox_to(&target).map_err(|error| DataDirError::Transfer(error.into()))?;
    let report = source.transfer_to(&target, &secret, progress).map_err(DataDirError::Transfer)?;
    source.transfer_objects_to(&target).map_err(|error| DataDirError::Transfer(error.into()))?;
    Ok(report)
}
