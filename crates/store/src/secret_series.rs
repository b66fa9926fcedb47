//! Secrets of a series, numbered from 1. The newest one is in use, and older ones stay known. All programs with the same
//! database have the same series. Must not know what the secrets are for, or where a program keeps its own.

use std::sync::Arc;

use headrace_identity::StoreError;
use headrace_postgres::PostgresSecrets;

use crate::sealing::{SealError, SecretSealer, StoredSecret};
use crate::secrets::SecretBytes;
use crate::series_names::{MAX_SERIES_SECRETS, series_name};
use crate::storage::Storage;

impl Storage {
    /// Returns the secrets of a series in a database, oldest first. `next` gets those that it has, and returns secrets to
    /// append. With a `sealer`, the database has the secrets encrypted from now on. `None` if this program has the stores
    /// for itself.
    ///
    /// # Errors
    /// Returns an error of `next`. [`SealError`] if the database cannot be reached, or a secret cannot be decrypted. Nothing
    /// was written then, unless the answer of the database was lost.
    pub fn secret_series<E: From<SealError> + From<StoreError>>(
        &self,
        series: &str,
        sealer: Option<&SecretSealer>,
        next: impl FnOnce(&[SecretBytes]) -> Result<Vec<SecretBytes>, E>,
    ) -> Result<Option<Vec<SecretBytes>>, E> {
        let Some(database) = self.url().database() else { return Ok(None) };
        let mut secrets = Vec::new();
        PostgresSecrets::open(Arc::clone(database))?.change(|rows| -> Result<_, E> {
            let mut changed = Vec::new();
            for number in 1..=MAX_SERIES_SECRETS {
                let name = series_name(series, number);
                let Some((_, bytes)) = rows.iter().find(|(known, _)| *known == name) else { break };
                let place = self.secret_place(&name);
                let stored = StoredSecret::parse(bytes, &place)?;
                let secret = stored.open(&name, &place, sealer)?;
                if let (StoredSecret::Plain(_), Some(sealer)) = (stored, sealer) {
                    changed.push((name.clone(), sealer.seal(&name, &secret)?));
                }
                secrets.push(secret);
            }
            let fresh = next(&secrets)?;
            for (number, secret) in (1..=MAX_SERIES_SECRETS).skip(secrets.len()).zip(fresh) {
                let name = series_name(series, number);
                let stored = match sealer {
                    Some(sealer) => sealer.seal(&name, &secret)?,
                    None => secret.to_vec(),
                };
                changed.push((name, stored));
                secrets.push(secret);
            }
            Ok(changed)
        })?;
        Ok(Some(secrets))
    }
}
