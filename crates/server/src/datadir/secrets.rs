//! The secrets of a data directory, and those that it has in common with others: read, made once, and encrypted with the
//! key of `storage.secret_file`. Must not know what they are for.

use std::fs::{OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use headrace_config::ServerSettings;
use headrace_identity::StoreError;
use headrace_store::{
    PostgresAddresses, RECEIPT_KEYS, SHARED_SECRETS, SealError, SealKeyId, SecretBytes, SecretSealer,
    Storage, StoredSecret, is_of_series,
};
use secrecy::zeroize::Zeroizing;

use super::{DataDir, DataDirError, hexadecimal, make_private, random, recorded, secrets_folder, unhex};

/// The beginning of a file with an encrypted secret. Its bytes follow in hexadecimal.
const SEALED: &str = "sealed:";

/// The files that the settings name for secrets.
#[derive(Debug, Clone, Copy, Default)]
pub struct SecretFiles<'a> {
    /// The secret that hashes keys. `None` for the one in the data directory.
    pub key_hash: Option<&'a Path>,
    /// The salt that separates the prefix caches of tenants. `None` for the one in the data directory.
    pub cache_salt: Option<&'a Path>,
    /// The key that encrypts both. `None` to store them as they are.
    pub storage: Option<&'a Path>,
}

impl<'a> SecretFiles<'a> {
    /// Returns the files of a configuration.
    pub fn of(config: &'a ServerSettings) -> Self {
        Self {
            key_hash: config.key_hash_file.as_deref(),
            cache_salt: config.cache_salt_file.as_deref(),
            storage: config.storage.secret_file.as_deref(),
        }
    }

    /// Reads the key that encrypts secrets. `None` if the settings name no file for it.
    ///
    /// # Errors
    /// [`DataDirError::Seal`] if the file is no key.
    pub fn sealer(&self) -> Result<Option<SecretSealer>, DataDirError> {
        Ok(self.storage.map(SecretSealer::read).transpose()?)
    }

    fn of_name(&self, name: &str) -> Option<&'a Path> {
        let files = SHARED_SECRETS.into_iter().zip([self.key_hash, self.cache_salt]);
        files.filter(|(known, _)| *known == name).find_map(|(_, file)| file)
    }
}

/// A finished change of the key that encrypts secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResealReport {
    /// The id of the new key.
    pub key: SealKeyId,
    /// Secrets in the database that were encrypted with it.
    pub rows: usize,
    /// Files of the data directory that were encrypted with it.
    pub files: usize,
}

impl DataDir {
    /// Returns the secrets that hash keys and separate caches, in this order. Those of a directory that has the stores for
    /// itself are in its files, and others are in the database.
    pub(super) fn shared_secrets(
        storage: &Storage,
        folder: &Path,
        files: &SecretFiles<'_>,
    ) -> Result<[SecretBytes; 2], DataDirError> {
        let sealer = files.sealer()?;
        let own = |name: &'static str| match files.of_name(name) {
            Some(file) => read_secret(file),
            None => Self::own_secret(folder, name, sealer.as_ref()),
        };
        let secrets = storage.shared_secrets(sealer.as_ref(), own)?;
        for (name, shared) in SHARED_SECRETS.into_iter().zip(&secrets) {
            if let Some(file) = files.of_name(name)
                && read_secret(file)? != *shared
            {
                return Err(DataDirError::OtherSecret(file.to_owned()));
            }
            // The copy of a secret that is in the database by now.
            encrypt_plain(&folder.join(name), name, sealer.as_ref())?;
        }
        Ok(secrets)
    }

    /// Reads the secret with this name in a folder. It is made if it is missing, and encrypted if there is a key.
    pub(super) fn own_secret(
        folder: &Path,
        name: &str,
        sealer: Option<&SecretSealer>,
    ) -> Result<SecretBytes, DataDirError> {
        match made(folder, name, sealer) {
            Err(DataDirError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                make(folder, name, sealer)
            }
            read => read,
        }
    }
}

/// Reads the secret with this name in a folder.
pub(super) fn made(
    folder: &Path,
    name: &str,
    sealer: Option<&SecretSealer>,
) -> Result<SecretBytes, DataDirError> {
    let path = folder.join(name);
    if path.exists() {
        let closed = std::fs::set_permissions(&path, Permissions::from_mode(0o600));
        closed.map_err(|source| DataDirError::Io {
            doing: "close to others (chmod 600)",
            path: path.clone(),
            source,
        })?;
    }
    let bytes = content(&path)?.into_bytes();
    let place = place(&path);
    let secret = StoredSecret::parse(&bytes, &place)?.open(name, &place, sealer)?;
    encrypt_plain(&path, name, sealer)?;
    Ok(secret)
}

/// Makes a secret with this name in a folder. It is encrypted if there is a key.
pub(super) fn make(
    folder: &Path,
    name: &str,
    sealer: Option<&SecretSealer>,
) -> Result<SecretBytes, DataDirError> {
    let fresh = Zeroizing::new(random()?);
    write(&folder.join(name), name, &fresh, sealer)?;
    Ok(fresh)
}

/// Encrypts the secret in a file if there is a key and the file has it in plain.
fn encrypt_plain(file: &Path, name: &str, sealer: Option<&SecretSealer>) -> Result<(), DataDirError> {
    match (sealer, content(file)) {
        (Some(sealer), Ok(SecretContent::Plain(own))) => write(file, name, &own, Some(sealer)),
        _ => Ok(()),
    }
}

/// Encrypts the secrets of a data directory, and those that it shares with others, with the key of the file `to`. `from`
/// names the file of the key that encrypted them. Gateways may run meanwhile; their next start needs the new file. An
/// interrupted change can be repeated.
///
/// # Errors
/// [`DataDirError::Seal`] if a file is no key, or a secret cannot be decrypted. The database has one key for both secrets
/// at any time.
pub fn reseal(dir: &Path, from: Option<&Path>, to: &Path) -> Result<ResealReport, DataDirError> {
    if !dir.is_dir() {
        return Err(DataDirError::Missing(dir.to_owned()));
    }
    let (from, to) = (from.map(SecretSealer::read).transpose()?, SecretSealer::read(to)?);
    let storage = Storage::open(recorded(dir)?, None);
    let rows = storage.reseal_shared_secrets(from.as_ref(), &to)?;
    let mut files = 0;
    let receipts = receipt_key_names(&secrets_folder(dir));
    for name in SHARED_SECRETS.into_iter().chain(receipts.iter().map(String::as_str)) {
        let file = secrets_folder(dir).join(name);
        let stored = match content(&file) {
            Err(DataDirError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
            stored => stored?.into_bytes(),
        };
        match to.reseal(&stored, name, &place(&file), from.as_ref()) {
            Ok(None) => {}
            Ok(Some(sealed)) => {
                write_text(&file, &format!("{SEALED}{}", hexadecimal(&sealed)))?;
                files += 1;
            }
            // The secret of the database counts, and this one is from an earlier key.
            Err(SealError::OtherFile { .. } | SealError::NoFile { .. }) if storage.is_shared() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ResealReport { key: to.key_id(), rows, files })
}

/// The names of the files of a folder with keys that sign receipts.
pub(super) fn receipt_key_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_of_series(name, RECEIPT_KEYS)).collect();
    names.sort_unstable();
    names
}

/// Returns the addresses of the gateways that share the stores of a directory, and the secret from which they derive their
/// credential. `None` if the directory has its stores for itself, or the database has no secrets yet.
pub(crate) fn gateway_access(
    dir: &Path,
    files: &SecretFiles<'_>,
) -> Result<Option<(PostgresAddresses, SecretBytes)>, DataDirError> {
    let storage = Storage::open(recorded(dir)?, None);
    let Some(addresses) = storage.gateway_addresses() else { return Ok(None) };
    let mut is_new = false;
    let found = storage.shared_secrets(files.sealer()?.as_ref(), |name| {
        is_new = true;
        Err(DataDirError::Secret(secrets_folder(dir).join(name)))
    });
    match found {
        Ok([key_hash, _]) => Ok(Some((addresses, key_hash))),
        Err(_) if is_new => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the id of the key that encrypted the secrets of a directory. `None` if they are not encrypted.
pub fn sealed_with(dir: &Path) -> Option<SealKeyId> {
    let stored = SHARED_SECRETS.into_iter().filter_map(|name| {
        let file = secrets_folder(dir).join(name);
        let bytes = content(&file).ok()?.into_bytes();
        StoredSecret::parse(&bytes, &place(&file)).ok()?.key()
    });
    stored.into_iter().next()
}

/// Stores the secrets that hash keys and separate caches in a directory, in place of other ones.
pub(super) fn put(
    dir: &Path,
    secrets: &[SecretBytes; 2],
    sealer: Option<&SecretSealer>,
) -> Result<(), DataDirError> {
    let folder = secrets_folder(dir);
    make_private(&folder)?;
    for (name, secret) in SHARED_SECRETS.into_iter().zip(secrets) {
        write(&folder.join(name), name, secret, sealer)?;
    }
    Ok(())
}

/// Reads the secret of a file that an operator made.
pub(crate) fn read_secret(path: &Path) -> Result<SecretBytes, DataDirError> {
    match content(path)? {
        SecretContent::Plain(secret) => Ok(secret),
        SecretContent::Sealed(_) => Err(DataDirError::Secret(path.to_owned())),
    }
}

/// What a file of a secret holds.
enum SecretContent {
    Plain(SecretBytes),
    Sealed(Vec<u8>),
}

impl SecretContent {
    fn into_bytes(self) -> Zeroizing<Vec<u8>> {
        match self {
            Self::Plain(secret) => Zeroizing::new(secret.to_vec()),
            Self::Sealed(bytes) => Zeroizing::new(bytes),
        }
    }
}

fn content(path: &Path) -> Result<SecretContent, DataDirError> {
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    let text =
        text.map_err(|source| DataDirError::Io { doing: "read the secret", path: path.to_owned(), source })?;
    let no_secret = || DataDirError::Secret(path.to_owned());
    let Some(sealed) = text.trim().strip_prefix(SEALED) else {
        return unhex(text.trim()).map(SecretContent::Plain).ok_or_else(no_secret);
    };
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = sealed.as_bytes().chunks(2).map(pair).collect();
    bytes.map(SecretContent::Sealed).ok_or_else(no_secret)
}

/// Names a file, for errors.
fn place(file: &Path) -> String {
    format!("secret {}", file.display())
}

/// Replaces a secret's file.
pub(super) fn write(
    path: &Path,
    name: &str,
    secret: &SecretBytes,
    sealer: Option<&SecretSealer>,
) -> Result<(), DataDirError> {
    let text = match sealer {
        Some(sealer) => format!("{SEALED}{}", hexadecimal(&sealer.seal(name, secret)?)),
        None => hexadecimal(secret.as_slice()),
    };
    write_text(path, &Zeroizing::new(text))
}

/// Writes a file beside it first, so that no program reads half of a secret.
fn write_text(path: &Path, text: &str) -> Result<(), DataDirError> {
    let io = |source| DataDirError::Io { doing: "write the secret", path: path.to_owned(), source };
    let next: PathBuf = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&next).map_err(io)?;
    writeln!(file, "{text}").and_then(|()| file.sync_all()).map_err(io)?;
    std::fs::rename(&next, path).map_err(io)
}

impl From<SealError> for DataDirError {
    fn from(error: SealError) -> Self {
        Self::Seal(error)
    }
}

impl From<StoreError> for DataDirError {
    fn from(error: StoreError) -> Self {
        Self::Identity(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_file(root: &Path, name: &str, byte: u8) -> PathBuf {
        let path = root.join(name);
        std::fs::write(&path, format!("{byte:02x}").repeat(32)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn open(dir: &Path, file: Option<&Path>) -> Result<[SecretBytes; 2], DataDirError> {
        let files = SecretFiles { storage: file, ..SecretFiles::default() };
        let data = DataDir::create(dir, None, &files)?;
        Ok([data.key_hash.clone(), data.cache_salt.clone()])
    }

    fn stored(dir: &Path) -> [String; 2] {
        SHARED_SECRETS.map(|name| std::fs::read_to_string(secrets_folder(dir).join(name)).unwrap())
    }

    #[test]
    fn with_the_setting_the_files_of_both_secrets_are_encrypted_and_the_secrets_stay() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let (own, other) = (key_file(root.path(), "own", 1), key_file(root.path(), "other", 2));
        let plain = open(&dir, None).unwrap();
        assert_eq!(sealed_with(&dir), None);
        assert_eq!(open(&dir, Some(&own)).unwrap(), plain);
        let sealed = stored(&dir);
        assert!(sealed.iter().all(|text| text.starts_with("sealed:")), "{sealed:?}");
        assert!(plain.iter().all(|secret| !sealed.concat().contains(&hexadecimal(secret.as_slice()))));
        assert_eq!(open(&dir, Some(&own)).unwrap(), plain, "the next start reads them");
        assert_eq!(sealed_with(&dir), Some(SecretSealer::read(&own).unwrap().key_id()));
        for (file, part) in [(None, "storage.secret_file is not set"), (Some(other.as_path()), "has the key")]
        {
            let error = open(&dir, file).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("key-hash"), "{error}");
            assert_eq!(stored(&dir), sealed, "nothing is made anew");
        }
        let fresh = root.path().join("fresh");
        open(&fresh, Some(&own)).unwrap();
        assert!(stored(&fresh).iter().all(|text| text.starts_with("sealed:")));
    }

    #[test]
    fn another_file_replaces_the_key_even_after_an_interruption() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let [first, second, third] =
            [1, 2, 3].map(|byte| key_file(root.path(), &format!("file-{byte}"), byte));
        let secrets = open(&dir, Some(&first)).unwrap();
        let before = stored(&dir);
        assert!(matches!(reseal(&dir, None, &second), Err(DataDirError::Seal(SealError::NoFile { .. }))));
        let wrong = reseal(&dir, Some(&third), &second);
        assert!(matches!(wrong, Err(DataDirError::Seal(SealError::OtherFile { .. }))));
        assert_eq!(stored(&dir), before);
        let report = reseal(&dir, Some(&first), &second).unwrap();
        assert_eq!((report.rows, report.files), (0, 2));
        assert_eq!(open(&dir, Some(&second)).unwrap(), secrets);
        assert!(open(&dir, Some(&first)).is_err());
        // One file of the former key is left.
        std::fs::write(secrets_folder(&dir).join("cache-salt"), &before[1]).unwrap();
        assert!(open(&dir, Some(&second)).is_err());
        assert_eq!(reseal(&dir, Some(&first), &second).unwrap().files, 1);
        assert_eq!(reseal(&dir, Some(&first), &second).unwrap().files, 0);
        assert_eq!(open(&dir, Some(&second)).unwrap(), secrets);
    }

    #[test]
    fn a_damaged_file_is_named_and_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let own = key_file(root.path(), "own", 1);
        open(&dir, Some(&own)).unwrap();
        let file = secrets_folder(&dir).join("key-hash");
        let sealed = std::fs::read_to_string(&file).unwrap();
        for text in [&sealed[..60], "sealed:", "sealed:zz", "", "short"] {
            std::fs::write(&file, text).unwrap();
            let error = open(&dir, Some(&own)).unwrap_err().to_string();
            assert!(error.contains("key-hash"), "{text}: {error}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
