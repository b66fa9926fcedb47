//! Stores operators' sessions in a small file of the data directory, so that a restart signs no operator out. The file
//! holds hashes of tokens, which cannot be used to sign in. Must not know when a session ends.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_admin_http::{SessionStore, StoredSession};
use headrace_domain::UnixNanos;
use headrace_identity::{OperatorId, Role};
use headrace_jwt::ProviderUser;
use serde::{Deserialize, Serialize};

/// Name of the file in the data directory.
const FILE: &str = "sessions.json";
/// Maximum size of the file that is read, in bytes. The maximum number of stored sessions takes a quarter of it.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The file of operators' sessions.
pub(crate) struct SessionFile {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct SessionRow {
    /// In hexadecimal.
    token_hash: String,
    operator: OperatorId,
    expires_unix_ns: u64,
    used_unix_ns: u64,
    /// The user whom an identity provider signed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<UserRow>,
}

#[derive(Serialize, Deserialize)]
struct UserRow {
    provider: String,
    issuer: String,
    subject: String,
    name: String,
    role: Role,
    /// In hexadecimal.
    rules_hash: String,
}

impl UserRow {
    fn of(user: &ProviderUser) -> Self {
        let ProviderUser { provider, issuer, subject, name, role, rules } = user.clone();
        Self {
            provider,
            issuer,
            subject,
            name,
            role,
            rules_hash: blake3::Hash::from_bytes(rules).to_hex().to_string(),
        }
    }

    fn user(self) -> Result<ProviderUser, String> {
        let Self { provider, issuer, subject, name, role, rules_hash } = self;
        let rules = hash(&rules_hash).map_err(|error| format!("`rules_hash`: {error}"))?;
        Ok(ProviderUser { provider, issuer, subject, name, role, rules })
    }
}

fn hash(text: &str) -> Result<[u8; 32], blake3::HexError> {
    blake3::Hash::from_hex(text).map(|hash| *hash.as_bytes())
}

impl SessionFile {
    /// Opens the file and reads its sessions. An unreadable file must not prevent a start: operators sign in again, and
    /// the file is rewritten.
    pub(crate) fn open(dir: &Path) -> (Self, Result<Vec<StoredSession>, String>) {
        let file = Self { path: dir.join(FILE) };
        let stored = file.read().map_err(|why| format!("{}: {why}", file.path.display()));
        (file, stored)
    }

    /// Removes the sessions of a provider's user from the file of a server that does not run. Returns their number.
    ///
    /// # Errors
    /// Why the file could not be read or written.
    pub(crate) fn forget(dir: &Path, user: &str) -> Result<u64, String> {
        let (file, stored) = Self::open(dir);
        let mut sessions = stored?;
        let before = sessions.len();
        sessions.retain(|session| !session.is_of(user));
        let removed = before.saturating_sub(sessions.len());
        if removed > 0 {
            file.replace(&sessions)?;
        }
        Ok(removed as u64)
    }

    fn read(&self) -> Result<Vec<StoredSession>, String> {
        let told = |error: std::io::Error| error.to_string();
        let length = match std::fs::metadata(&self.path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(told(error)),
        };
        if length > MAX_BYTES {
            return Err(format!("it has {length} bytes, more than {MAX_BYTES}"));
        }
        let bytes = std::fs::read(&self.path).map_err(told)?;
        let rows: Vec<SessionRow> = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let stored = rows.into_iter().map(|row| {
            let SessionRow { token_hash, operator, expires_unix_ns, used_unix_ns, user } = row;
            let token = hash(&token_hash).map_err(|error| format!("`token_hash`: {error}"))?;
            let (expires, used) = (UnixNanos::new(expires_unix_ns), UnixNanos::new(used_unix_ns));
            let user = user.map(UserRow::user).transpose()?.map(Arc::new);
            Ok(StoredSession { token, operator, expires, used, user })
        });
        stored.collect()
    }

    /// Writes the file completely or not at all, even across a power cut.
    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        let part = self.path.with_extension("part");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&part, &self.path)?;
        match self.path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl SessionStore for SessionFile {
    fn replace(&self, sessions: &[StoredSession]) -> Result<(), String> {
        let row = |session: &StoredSession| SessionRow {
            token_hash: blake3::Hash::from_bytes(session.token).to_hex().to_string(),
            operator: session.operator.clone(),
            expires_unix_ns: session.expires.get(),
            used_unix_ns: session.used.get(),
            user: session.user.as_deref().map(UserRow::of),
        };
        let rows: Vec<SessionRow> = sessions.iter().map(row).collect();
        let bytes = serde_json::to_vec(&rows).map_err(|error| error.to_string())?;
        self.write(&bytes).map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn sessions_of_a_user_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(SessionFile::forget(dir.path(), "ann"), Ok(0), "no file");
        let session = |n: u8, subject: &str| StoredSession {
            token: [n; 32],
            operator: OperatorId::new("op_a1").unwrap(),
            expires: UnixNanos::new(u64::MAX),
            used: UnixNanos::new(7),
            user: Some(Arc::new(ProviderUser {
                provider: "acme".to_owned(),
                issuer: "https://i".to_owned(),
                subject: subject.to_owned(),
                name: format!("{subject} smith"),
                role: Role::Viewer,
                rules: [4; 32],
            })),
        };
        let (file, _) = SessionFile::open(dir.path());
        file.replace(&[session(1, "ann"), session(2, "bob"), session(3, "ann")]).unwrap();
        assert_eq!(SessionFile::forget(dir.path(), "carol"), Ok(0));
        assert_eq!(SessionFile::forget(dir.path(), "ann"), Ok(2));
        assert_eq!(SessionFile::forget(dir.path(), "bob smith"), Ok(1));
        assert_eq!(SessionFile::open(dir.path()).1, Ok(Vec::new()));
    }

    #[test]
    fn sessions_are_read_as_they_were_written_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (file, stored) = SessionFile::open(dir.path());
        assert_eq!(stored, Ok(Vec::new()));
        let session = |n: u8| StoredSession {
            token: [n; 32],
            operator: OperatorId::new("op_a1").unwrap(),
            expires: UnixNanos::new(u64::MAX),
            used: UnixNanos::new(7),
            user: (n == 2).then(|| {
                let [provider, issuer, subject, name] =
                    ["acme", "https://i", "ann", "Ann"].map(str::to_owned);
                Arc::new(ProviderUser { provider, issuer, subject, name, role: Role::Admin, rules: [9; 32] })
            }),
        };
        file.replace(&[session(1), session(255)]).unwrap();
        file.replace(&[session(1), session(2)]).unwrap();
        assert_eq!(SessionFile::open(dir.path()).1, Ok(vec![session(1), session(2)]));
        let path = dir.path().join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for (damage, says) in [
            (
                "[{\"token_hash\":\"zz\",\"operator\":\"op_a\",\"expires_unix_ns\":1,\"used_unix_ns\":1}]",
                "token_hash",
            ),
            ("[{\"token_hash\":\"00\",\"operator\":\"nobody\"}]", "operator"),
            ("[", "EOF"),
        ] {
            std::fs::write(&path, damage).unwrap();
            assert!(SessionFile::open(dir.path()).1.unwrap_err().contains(says), "{damage}");
        }
        std::fs::write(&path, vec![b' '; 5 << 20]).unwrap();
        assert!(SessionFile::open(dir.path()).1.unwrap_err().contains("more than"));
    }
}
