//! The data directory: private to its owner and locked to one process. Holds the secrets, which never leave it, and the
//! stores. Knows the layout; knows nothing of calls.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_admin::{DataDirLock, LockError, SecretText};
use headrace_domain::Clock;
use headrace_edge::SessionSecret;
use headrace_identity::{Directory, HashSecret, IdentityError, Operators};
use headrace_ledger::{LedgerError, Owner};
use headrace_limits::ShareHolder;
use headrace_store::disk::DiskBallast;
use headrace_store::journal::CommitTimes;
use headrace_store::{
    OpenedLedger, SealError, SetupLock, Storage, StorageReader, StorageUrl, StorageUrlError, StoreName,
    TransferError,
};
use secrecy::zeroize::Zeroizing;

mod receipt_keys;
mod secrets;
mod transfer;

pub use receipt_keys::{ReceiptKeyAct, receipt_keys};
pub use secrets::{ResealReport, SecretFiles, reseal, sealed_with};
pub(crate) use secrets::{gateway_access, read_secret};
pub use transfer::copy_shared;

/// File with the API's address, for programs that start a server on a free port.
const ADDRESS_FILE: &str = "address";

/// File with the URL of the stores, if they are not in the directory. It may have a password.
const STORAGE_FILE: &str = "storage-url";
/// The name under which the last process of the directory shared rate limits.
const SHARE_HOLDER_FILE: &str = "share-holder";

/// The stores of a directory, to read them.
pub fn stored(dir: &Path) -> StorageReader {
    // A server with this directory refuses a URL that cannot be read.
    Storage::open_read_only(recorded(dir).unwrap_or_else(|_| StorageUrl::of_folder(dir)))
}

/// The place of the stores that a directory remembers.
fn recorded(dir: &Path) -> Result<StorageUrl, DataDirError> {
    let path = dir.join(STORAGE_FILE);
    match std::fs::read_to_string(&path) {
        Ok(url) => StorageUrl::parse_in(url.trim(), dir).map_err(DataDirError::Storage),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(StorageUrl::of_folder(dir)),
        Err(source) => Err(DataDirError::Io { doing: "read", path, source }),
    }
}

/// The folder of the secrets that hash keys and separate caches.
pub fn secrets_folder(dir: &Path) -> PathBuf {
    dir.join("secrets")
}

/// The file in which `serve` leaves the first key.
pub fn first_key_file(dir: &Path) -> PathBuf {
    dir.join("first-key")
}

/// Whether a directory has an identity store. It has one from its first start on.
pub fn has_keys(dir: &Path) -> bool {
    stored(dir).place(StoreName::Identities).exists()
}

/// Why a data directory cannot be used.
#[derive(Debug)]
pub enum DataDirError {
    /// The directory does not exist.
    Missing(PathBuf),
    /// A file or directory cannot be created, read or protected.
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Another process has the directory.
    Lock(LockError),
    /// A secret file does not hold a secret.
    Secret(PathBuf),
    /// The URL of the stores cannot be read.
    Storage(StorageUrlError),
    /// A secret cannot be decrypted, or the file of `storage.secret_file` is no key.
    Seal(SealError),
    /// The secret that all servers of a database have in common is not the one in this file.
    OtherSecret(PathBuf),
    /// The operating system gave no random numbers.
    Randomness(getrandom::Error),
    /// The keys cannot be read.
    Identity(IdentityError),
    /// The ledger cannot be opened or closed.
    Ledger(LedgerError),
    /// Keys and ledger cannot be copied to another place.
    Transfer(TransferError),
    /// Other gateways work with the stores that are to be moved.
    InUse {
        /// The names of the gateways.
        gateways: Vec<String>,
    },
    /// The stores are at the requested place already.
    SamePlace(StorageUrl),
}

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(dir) => write!(
                f,
                "there is no data directory {}: start a server with `headrace up`, or name the right one with --data-dir",
                dir.display()
            ),
            Self::Io { doing, path, source } => write!(f, "cannot {doing} {}: {source}", path.display()),
            Self::Lock(error) => error.fmt(f),
            Self::Secret(path) => write!(
                f,
                "{} does not hold 64 hexadecimal digits: restore the file that belongs to this data directory",
                path.display()
            ),
            Self::Storage(error) => error.fmt(f),
            Self::Seal(error) => error.fmt(f),
            Self::OtherSecret(path) => write!(
                f,
                "{} holds another secret than the servers that share this database: give all of them the same file, or none",
                path.display()
            ),
            Self::Randomness(error) => write!(f, "the operating system gave no randomness: {error}"),
            Self::Identity(error) => error.fmt(f),
            Self::Ledger(error) => error.fmt(f),
            Self::Transfer(error) => error.fmt(f),
            Self::InUse { gateways } => write!(
                f,
                "gateways work with this ledger ({}): stop them first; one that was killed is free after 15 seconds",
                gateways.join(", ")
            ),
            Self::SamePlace(url) => write!(f, "keys and ledger are in {url} already"),
        }
    }
}

impl std::error::Error for DataDirError {}

/// The locked directory with its secrets.
pub struct DataDir {
    lock: DataDirLock,
    key_hash: Zeroizing<[u8; 32]>,
    cache_salt: Zeroizing<[u8; 32]>,
    session_secret: Zeroizing<[u8; 32]>,
    /// Disk space reserved for the ledger and the keys, for when the disk is full.
    ballast: Arc<DiskBallast>,
    storage: Storage,
}

impl DataDir {
    /// Opens an existing directory.
    pub fn open(dir: &Path, files: &SecretFiles<'_>) -> Result<Self, DataDirError> {
        if !dir.is_dir() {
            return Err(DataDirError::Missing(dir.to_owned()));
        }
        make_private(dir)?;
        let lock = DataDirLock::acquire(dir).map_err(DataDirError::Lock)?;
        // A killed process leaves its address file behind. The lock proves that the address is stale.
        let _ = std::fs::remove_file(dir.join(ADDRESS_FILE));
        let ballast = Arc::new(DiskBallast::open(dir));
        let secrets = secrets_folder(dir);
        make_private(&secrets)?;
        let session_secret = Self::own_secret(&secrets, "tls-sessions", None)?;
        let storage = Storage::open(recorded(lock.dir())?, Some(Arc::clone(&ballast)));
        let [key_hash, cache_salt] = Self::shared_secrets(&storage, &secrets, files)?;
        Ok(Self { lock, key_hash, cache_salt, session_secret, ballast, storage })
    }

    /// Opens a directory, and creates it first if necessary. With a `storage` URL, the stores are there from now on.
    pub(crate) fn create(
        dir: &Path,
        storage: Option<&StorageUrl>,
        files: &SecretFiles<'_>,
    ) -> Result<Self, DataDirError> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|source| DataDirError::Io {
            doing: "create the directory",
            path: dir.to_owned(),
            source,
        })?;
        if let Some(url) = storage {
            let record = dir.join(STORAGE_FILE);
            if *url == StorageUrl::of_folder(dir) {
                // A directory with its own stores needs no record, and may then be moved.
                let removed = std::fs::remove_file(&record);
                match removed {
                    Err(source) if source.kind() != ErrorKind::NotFound => {
                        return Err(DataDirError::Io { doing: "remove", path: record, source });
                    }
                    _ => {}
                }
            } else {
                write_private(&record, &url.expose())?;
            }
        }
        Self::open(dir, files)
    }

    /// Keeps other servers with the same stores from making the first keys, until the lock is dropped. `None` if no
    /// other server has them.
    pub(crate) fn setup_lock(&self) -> Result<Option<SetupLock>, DataDirError> {
        self.storage.setup_lock().map_err(|error| DataDirError::Identity(error.into()))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.lock.dir()
    }

    /// The disk space reserved for the ledger and the keys.
    pub(crate) const fn ballast(&self) -> &Arc<DiskBallast> {
        &self.ballast
    }

    /// The stores in the directory.
    pub const fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The salt that separates the prefix caches of tenants.
    pub(crate) fn cache_salt(&self) -> [u8; 32] {
        *self.cache_salt
    }

    /// The secret from which gateways with the same stores derive their credential. All of them have it.
    pub fn gateway_secret(&self) -> Zeroizing<[u8; 32]> {
        self.key_hash.clone()
    }

    /// The secret with which clients resume TLS sessions after a restart.
    pub(crate) fn session_secret(&self) -> SessionSecret {
        SessionSecret::new(*self.session_secret)
    }

    /// Opens the identity store: the keys of callers, and the operators.
    pub fn identities(&self) -> Result<(Arc<Directory>, Arc<Operators>), DataDirError> {
        let stores = self.storage.identities().map_err(|error| DataDirError::Identity(error.into()))?;
        let secret = || HashSecret::new(*self.key_hash);
        let directory = Directory::open(stores.keys, secret()).map_err(DataDirError::Identity)?;
        let directory = Arc::new(directory);
        let operators = Operators::open(stores.operators, &secret()).map_err(DataDirError::Identity)?;
        Ok((Arc::clone(&directory), Arc::new(operators.with_users(directory))))
    }

    /// Opens the ledger under a fresh owner id, as `gateway` for operators. `times` receives the duration of each commit.
    pub fn ledger(
        &self,
        gateway: &str,
        clock: &Arc<dyn Clock>,
        times: CommitTimes,
    ) -> Result<OpenedLedger, DataDirError> {
        let mut instance = u128::from_le_bytes(random()?);
        let owners = Box::new(move || {
            instance = instance.wrapping_add(1);
            Owner::new(instance)
        });
        self.storage.ledger(gateway, owners, clock, times).map_err(DataDirError::Ledger)
    }

    /// Makes the name under which this process shares rate limits, and keeps it in the directory. Also returns the name
    /// of an earlier process of this directory, which has ended, because this one has the lock. `None` if there was none.
    pub(crate) fn share_holder(&self) -> Result<(ShareHolder, Option<ShareHolder>), DataDirError> {
        let path = self.path().join(SHARE_HOLDER_FILE);
        // A file that does not hold a name only costs the time of a lease.
        let former = std::fs::read_to_string(&path).ok().and_then(|name| name.trim().parse().ok());
        let holder = ShareHolder::new(u128::from_le_bytes(random()?));
        write_private(&path, &holder.to_string())?;
        Ok((holder, former))
    }

    /// Writes the first key to a file that only its owner can read, for an operator to fetch and remove.
    pub(crate) fn keep_first_key(&self, secret: &SecretText) -> Result<(), DataDirError> {
        write_private(&first_key_file(self.path()), secret.expose())
    }

    /// Publishes the API's address in a file, which is removed when the guard is dropped.
    pub(crate) fn publish_address(&self, address: &str) -> Result<AddressFile, DataDirError> {
        let path = self.path().join(ADDRESS_FILE);
        let next = self.path().join("address.new");
        // Renamed into place, so that no reader sees half an address.
        let mut options = OpenOptions::new();
        let written = options.write(true).create(true).truncate(true).mode(0o600).open(&next);
        let written = written.and_then(|mut file| writeln!(file, "{address}"));
        let written = written.and_then(|()| std::fs::rename(&next, &path));
        written.map_err(|source| DataDirError::Io { doing: "write", path: path.clone(), source })?;
        Ok(AddressFile { path })
    }
}

/// Writes a line to a file that only its owner can read.
fn write_private(path: &Path, line: &str) -> Result<(), DataDirError> {
    let io = |source| DataDirError::Io { doing: "write", path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).map_err(io)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(io)?;
    writeln!(file, "{line}").and_then(|()| file.sync_all()).map_err(io)
}

/// Removes the address file when dropped.
pub(crate) struct AddressFile {
    path: PathBuf,
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // If the file stays, it names a port on which no server answers.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Creates an object directory that is not the data directory, and locks it to this process.
///
/// # Errors
/// Returns an error if another process has the directory, or it cannot be created.
pub(crate) fn lock_objects(dir: &Path) -> Result<DataDirLock, DataDirError> {
    make_private(dir)?;
    DataDirLock::acquire(dir).map_err(DataDirError::Lock)
}

/// Creates a directory that only its owner can enter. An existing one is closed to others.
fn make_private(dir: &Path) -> Result<(), DataDirError> {
    let io = |doing| move |source| DataDirError::Io { doing, path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io("create the directory"))?;
    let mode = std::fs::metadata(dir).map_err(io("look at"))?.permissions().mode();
    if mode & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(mode & 0o700);
        std::fs::set_permissions(dir, private).map_err(io("close to others (chmod 700)"))?;
    }
    Ok(())
}

fn random<const N: usize>() -> Result<[u8; N], DataDirError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(DataDirError::Randomness)?;
    Ok(bytes)
}

/// Returns bytes as lower-case hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = Zeroizing::new([0; 32]);
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_made_once_and_only_their_owner_reads_them() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let first = DataDir::create(&dir, None, &SecretFiles::default()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        for name in ["key-hash", "cache-salt", "tls-sessions"] {
            assert_eq!(mode(&dir.join("secrets").join(name)), 0o600);
            assert!(!dir.join("secrets").join(name).with_extension("new").exists(), "renamed into place");
        }
        assert_ne!(first.key_hash, first.cache_salt);
        assert!(first.session_secret != first.key_hash && first.session_secret != first.cache_salt);
        assert!(matches!(DataDir::open(&dir, &SecretFiles::default()), Err(DataDirError::Lock(_))));
        let kept = (*first.key_hash, *first.cache_salt, *first.session_secret);
        drop(first);
        let second = DataDir::open(&dir, &SecretFiles::default()).unwrap();
        assert_eq!((*second.key_hash, *second.cache_salt, *second.session_secret), kept);
        drop(second);
        std::fs::write(dir.join("secrets/key-hash"), "short").unwrap();
        assert!(matches!(DataDir::open(&dir, &SecretFiles::default()), Err(DataDirError::Secret(_))));
        let none = root.path().join("none");
        assert!(matches!(DataDir::open(&none, &SecretFiles::default()), Err(DataDirError::Missing(_))));
    }

    #[test]
    fn everything_in_the_directory_is_its_owners_alone_whatever_it_was_before() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let open = || {
            let data = DataDir::create(&dir, None, &SecretFiles::default()).unwrap();
            let directory = data.identities().unwrap();
            let clock: Arc<dyn Clock> = Arc::new(headrace_domain::SystemClock::new());
            let ledger = data.ledger("test", &clock, Box::new(|_| ())).unwrap();
            let guard = headrace_store::disk::DiskGuard::of(&dir, Some(0));
            let traces =
                data.storage().traces(headrace_store::trace::TraceRetention::default(), u64::MAX, guard);
            let address = data.publish_address("127.0.0.1:1").unwrap();
            (data, directory, ledger, traces.unwrap(), address)
        };
        fn walk(dir: &Path, see: &mut dyn FnMut(&Path)) {
            see(dir);
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { walk(&path, see) } else { see(&path) }
            }
        }
        drop(open());
        walk(&dir, &mut |path| {
            let everybody = if path.is_dir() { 0o777 } else { 0o666 };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(everybody)).unwrap();
        });
        let all = open();
        let mut seen = 0;
        walk(&dir, &mut |path| {
            let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
            seen += 1;
        });
        assert!(seen > 13, "{seen} files");
        drop(all);
    }

    #[test]
    fn a_configured_secret_is_never_made() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("mine");
        let files = SecretFiles { key_hash: Some(&file), ..SecretFiles::default() };
        assert!(DataDir::create(root.path(), None, &files).is_err());
        std::fs::write(&file, "ab".repeat(32)).unwrap();
        assert_eq!(*DataDir::create(root.path(), None, &files).unwrap().key_hash, [0xab; 32]);
    }
}
