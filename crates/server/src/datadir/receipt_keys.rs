//! The keys that sign receipts, as secrets of a data directory or of the database that gateways share. The newest one signs,
//! and the public parts of all of them are published. Must not know receipts.

use std::path::Path;

use headrace_store::{MAX_SERIES_SECRETS, RECEIPT_KEYS, SecretBytes, SecretSealer, Storage, series_name};
use secrecy::zeroize::Zeroizing;

use super::secrets::{self, SecretFiles};
use super::{DataDir, DataDirError, make_private, random, recorded, secrets_folder};

/// What to do beside reading the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptKeyAct {
    /// Nothing.
    Read,
    /// Make the first key if there is none.
    First,
    /// Make another key, which signs from now on.
    Next,
}

/// Returns the keys that sign receipts, oldest first, for the stores of a directory.
///
/// # Errors
/// Returns an error if the stores cannot be reached, or a key cannot be decrypted or made.
pub fn receipt_keys(
    dir: &Path,
    files: &SecretFiles<'_>,
    act: ReceiptKeyAct,
) -> Result<Vec<SecretBytes>, DataDirError> {
    let storage = Storage::open(recorded(dir)?, None);
    let folder = secrets_folder(dir);
    make_private(&folder)?;
    keys_of(&storage, &folder, files.sealer()?.as_ref(), act)
}

fn keys_of(
    storage: &Storage,
    folder: &Path,
    sealer: Option<&SecretSealer>,
    act: ReceiptKeyAct,
) -> Result<Vec<SecretBytes>, DataDirError> {
    let shared = storage.secret_series(RECEIPT_KEYS, sealer, |known| -> Result<_, DataDirError> {
        // A database without keys gets those of the directory that joins it first.
        let mut fresh = if known.is_empty() { own(folder, sealer)? } else { Vec::new() };
        if is_due(act, known.len().saturating_add(fresh.len())) {
            fresh.push(Zeroizing::new(random()?));
        }
        Ok(fresh)
    })?;
    if let Some(shared) = shared {
        return Ok(shared);
    }
    let mut keys = own(folder, sealer)?;
    if is_due(act, keys.len()) {
        let number = u32::try_from(keys.len()).unwrap_or(u32::MAX).saturating_add(1);
        keys.push(secrets::make(folder, &series_name(RECEIPT_KEYS, number), sealer)?);
    }
    Ok(keys)
}

fn is_due(act: ReceiptKeyAct, known: usize) -> bool {
    match act {
        ReceiptKeyAct::Read => false,
        ReceiptKeyAct::First => known == 0,
        ReceiptKeyAct::Next => known < MAX_SERIES_SECRETS as usize,
    }
}

/// The keys in the files of a folder.
fn own(folder: &Path, sealer: Option<&SecretSealer>) -> Result<Vec<SecretBytes>, DataDirError> {
    let mut keys = Vec::new();
    for number in 1..=MAX_SERIES_SECRETS {
        let name = series_name(RECEIPT_KEYS, number);
        if !folder.join(&name).exists() {
            break;
        }
        keys.push(secrets::made(folder, &name, sealer)?);
    }
    Ok(keys)
}

/// Writes the keys of a database to the files of a directory, in place of others. Changes nothing if the database has none.
pub(super) fn copy_to(from: &Storage, dir: &Path, sealer: Option<&SecretSealer>) -> Result<(), DataDirError> {
    let nothing = |_: &[SecretBytes]| -> Result<_, DataDirError> { Ok(Vec::new()) };
    let Some(keys) = from.secret_series(RECEIPT_KEYS, sealer, nothing)? else { return Ok(()) };
    let folder = secrets_folder(dir);
    make_private(&folder)?;
    if keys.is_empty() { Ok(()) } else { replace(&folder, &keys, sealer) }
}

/// Replaces the keys in the files of a folder.
fn replace(folder: &Path, keys: &[SecretBytes], sealer: Option<&SecretSealer>) -> Result<(), DataDirError> {
    let named: Vec<(String, &SecretBytes)> =
        (1..=MAX_SERIES_SECRETS).map(|number| series_name(RECEIPT_KEYS, number)).zip(keys).collect();
    // An older key with a higher number would sign.
    for old in secrets::receipt_key_names(folder) {
        if !named.iter().any(|(name, _)| *name == old) {
            let path = folder.join(old);
            std::fs::remove_file(&path).map_err(|source| DataDirError::Io {
                doing: "remove",
                path: path.clone(),
                source,
            })?;
        }
    }
    named.iter().try_for_each(|(name, key)| secrets::write(&folder.join(name), name, key, sealer))
}

impl DataDir {
    /// Copies the keys to the stores `to`. Older receipts then verify there.
    pub(super) fn move_receipt_keys(
        &self,
        to: &Storage,
        sealer: Option<&SecretSealer>,
    ) -> Result<(), DataDirError> {
        if self.storage.is_shared() && !to.is_shared() {
            return copy_to(&self.storage, self.path(), sealer);
        }
        let folder = secrets_folder(self.path());
        let keys = keys_of(&self.storage, &folder, sealer, ReceiptKeyAct::Read)?;
        to.secret_series(RECEIPT_KEYS, sealer, |known| match keys.strip_prefix(known) {
            Some(more) => Ok(more.to_vec()),
            None => Err(DataDirError::OtherSecret(folder.join(series_name(RECEIPT_KEYS, 1)))),
        })
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_replace_others_leave_no_older_one_that_would_sign() {
        let secret = |byte: u8| Zeroizing::new([byte; 32]);
        for (before, after) in [(0, 2), (1, 1), (2, 1), (3, 2), (12, 1)] {
            let folder = tempfile::tempdir().unwrap();
            for number in 1..=before {
                secrets::make(folder.path(), &series_name(RECEIPT_KEYS, number), None).unwrap();
            }
            std::fs::write(folder.path().join("key-hash"), "another secret").unwrap();
            let keys: Vec<SecretBytes> = (1..=after).map(secret).collect();
            replace(folder.path(), &keys, None).unwrap();
            assert_eq!(own(folder.path(), None).unwrap(), keys, "{after} keys in place of {before}");
            assert_eq!(secrets::receipt_key_names(folder.path()).len(), keys.len());
            assert!(folder.path().join("key-hash").exists());
        }
    }
}
