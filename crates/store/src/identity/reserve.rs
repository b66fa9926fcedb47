//! A small preallocated file beside the identity store. Revocations are noted in it while the disk is full, by
//! overwriting bytes that already exist. Knows nothing of keys except their ids.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use headrace_domain::{KeyId, UnixNanos};
use headrace_identity::{AuditEntry, NotedRevocation};
use serde::{Deserialize, Serialize};

/// Size of the file in bytes. Enough for some hundreds of revocations.
const RESERVE_BYTES: usize = 64 << 10;

/// The reserve file: one line of JSON per revocation, then zeros.
pub(super) struct RevocationReserve {
    path: PathBuf,
    /// `None` while the disk has no room for the file.
    file: Option<File>,
}

/// A noted revocation in the file.
#[derive(Serialize, Deserialize)]
struct RevocationLine {
    key: String,
    at: u64,
    actor: String,
    act: String,
    subject: String,
    detail: String,
}

impl RevocationReserve {
    /// Opens the reserve of the identity store at `store`, and creates it if it is missing. If the disk has no room for
    /// it now, creation is retried when the reserve is needed.
    pub(super) fn open(store: &Path) -> Result<Self> {
        let path = store.with_extension("reserve");
        let file = match set_aside(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::StorageFull => None,
            Err(error) => return Err(error),
        };
        Ok(Self { path, file })
    }

    /// Returns the noted revocations. Ignores a line that a crash cut off, because its revocation was never
    /// acknowledged.
    pub(super) fn noted(&self) -> Result<Vec<NotedRevocation>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let mut bytes = vec![0; RESERVE_BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        let lines = bytes.split(|byte| *byte == b'\n').take_while(|line| line.first() != Some(&0));
        let lines = lines.filter_map(|line| serde_json::from_slice::<RevocationLine>(line).ok());
        Ok(lines
            .filter_map(|RevocationLine { key, at, actor, act, subject, detail }| {
                let audit = AuditEntry { at: UnixNanos::new(at), actor, act, subject, detail };
                Some(NotedRevocation { id: KeyId::new(&key).ok()?, audit })
            })
            .collect())
    }

    /// Replaces the noted revocations. They are on the disk when this returns.
    pub(super) fn keep(&mut self, noted: &[NotedRevocation]) -> Result<()> {
        let mut bytes = Vec::with_capacity(RESERVE_BYTES);
        for NotedRevocation { id, audit } in noted {
            let AuditEntry { at, actor, act, subject, detail } = audit.clone();
            let line = RevocationLine { key: id.to_string(), at: at.get(), actor, act, subject, detail };
            serde_json::to_writer(&mut bytes, &line)?;
            bytes.push(b'\n');
        }
        if bytes.len() > RESERVE_BYTES {
            let why = format!("{} revocations do not fit its {RESERVE_BYTES} bytes", noted.len());
            return Err(Error::new(ErrorKind::StorageFull, why));
        }
        bytes.resize(RESERVE_BYTES, 0);
        if self.file.is_none() {
            self.file = Some(set_aside(&self.path)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&bytes, 0)?;
        file.sync_data()
    }
}

/// Opens the file and writes all of its bytes to the disk.
fn set_aside(path: &Path) -> Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    let (there, whole) = (file.metadata()?.len(), RESERVE_BYTES as u64);
    if there < whole {
        let missing = usize::try_from(whole - there).unwrap_or(RESERVE_BYTES);
        file.write_all_at(&vec![0; missing], there)?;
        file.sync_all()?;
    }
    Ok(file)
}
