//! The secrets that all programs with the same stores have in common, in a database. Must not know what they are for, or
//! where a program keeps its own.

use headrace_identity::StoreError;
use headrace_postgres::PostgresSecrets;
use std::sync::Arc;
use zeroize::Zeroizing;

use crate::sealing::{SealError, SecretSealer, StoredSecret};
use crate::series_names::{RECEIPT_KEYS, is_of_series};
use crate::storage::Storage;

/// The names of the secrets: the one that hashes keys, and the one that separates the prefix caches of tenants.
pub const SHARED_SECRETS: [&str; 2] = ["key-hash", "cache-salt"];

/// A secret of 32 bytes, which are overwritten at the end of its use.
pub type SecretBytes = Zeroizing<[u8; 32]>;

impl Storage {
    /// Returns the shared secrets in the order of [`SHARED_SECRETS`]. `own` returns a secret of this program, for a
    /// database that does not have it yet, and for a program that has the stores for itself. With a `sealer`, the database
    /// has the secrets encrypted from now on; they are encrypted in one transaction.
    ///
    /// # Errors
    /// Returns an error of `own`. [`SealError`] if the stores cannot be reached, or their secrets cannot be decrypted.
    /// Nothing was written then, unless the answer of the database was lost.
    pub fn shared_secrets<E: From<SealError> + From<StoreError>>(
        &self,
        sealer: Option<&SecretSealer>,
        mut own: impl FnMut(&'static str) -> Result<SecretBytes, E>,
    ) -> Result<[SecretBytes; 2], E> {
        let mut secrets = [Zeroizing::new([0; 32]), Zeroizing::new([0; 32])];
        let Some(database) = self.url().database() else {
            for (secret, name) in secrets.iter_mut().zip(SHARED_SECRETS) {
                *secret = own(name)?;
            }
            return Ok(secrets);
        };
        PostgresSecrets::open(Arc::clone(database))?.change(|rows| -> Result<_, E> {
            let mut changed = Vec::new();
            for (secret, name) in secrets.iter_mut().zip(SHARED_SECRETS) {
                let place = self.secret_place(name);
                let row = rows.iter().find(|(known, _)| known == name);
                let stored = row.map(|(_, bytes)| StoredSecret::parse(bytes, &place)).transpose()?;
                *secret = match stored {
                    Some(stored) => stored.open(name, &place, sealer)?,
                    None => own(name)?,
                };
                match (stored, sealer) {
                    (None | Some(StoredSecret::Plain(_)), Some(sealer)) => {
                        changed.push((name.to_owned(), sealer.seal(name, secret)?));
                    }
                    (None, None) => changed.push((name.to_owned(), secret.to_vec())),
                    (Some(_), _) => {}
                }
            }
            Ok(changed)
        })?;
        Ok(secrets)
    }

    /// Encrypts the secrets of a database with the key of `to`. They are encrypted with the key of `from`, or of `to`
    /// already, or not at all. Those of series are among them. Returns the number of secrets that it encrypted. 0 for stores of
    /// this program alone.
    ///
    /// # Errors
    /// [`SealError`] if the database cannot be reached, or a secret cannot be decrypted. Nothing was written then, unless
    /// the answer of the database was lost.
    pub fn reseal_shared_secrets(
        &self,
        from: Option<&SecretSealer>,
        to: &SecretSealer,
    ) -> Result<usize, SealError> {
        let Some(database) = self.url().database() else { return Ok(0) };
        let mut count = 0;
        PostgresSecrets::open(Arc::clone(database))?.change(|rows| -> Result<_, SealError> {
            let mut changed = Vec::new();
            for (name, bytes) in rows {
                if SHARED_SECRETS.contains(&name.as_str()) || is_of_series(name, RECEIPT_KEYS) {
                    let sealed = to.reseal(bytes, name, &self.secret_place(name), from)?;
                    changed.extend(sealed.map(|sealed| (name.clone(), sealed)));
                }
            }
            count = changed.len();
            Ok(changed)
        })?;
        Ok(count)
    }

    /// Names a secret of the database, for errors.
    pub(crate) fn secret_place(&self, name: &str) -> String {
        let database = self.url().database().map(ToString::to_string).unwrap_or_default();
        format!("secret `{name}` of {database}")
    }
}

impl SecretSealer {
    /// Encrypts a stored secret with this key. It is encrypted with the key of `from`, or not at all. `None` if it is
    /// encrypted with this key already.
    ///
    /// # Errors
    /// [`SealError`] if the secret cannot be decrypted.
    pub fn reseal(
        &self,
        stored: &[u8],
        name: &str,
        place: &str,
        from: Option<&Self>,
    ) -> Result<Option<Vec<u8>>, SealError> {
        let stored = StoredSecret::parse(stored, place)?;
        if stored.key() == Some(self.key_id()) {
            // Changed bytes are an error here, too.
            stored.open(name, place, Some(self))?;
            return Ok(None);
        }
        let secret = stored.open(name, place, from)?;
        self.seal(name, &secret).map(Some)
    }
}
