//! Allows one process at a time in a data directory, by a lock on the file `lock` in it. The operating system releases
//! the lock when the process ends, even after a crash. Must not know the other files of the directory.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The lock file's name.
const LOCK_FILE: &str = "lock";

/// An exclusive lock on a data directory. Dropping it releases the lock.
#[derive(Debug)]
pub struct DataDirLock {
    /// Closing this file releases the lock.
    _file: File,
    dir: PathBuf,
}

/// Why a data directory cannot be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds the lock.
    Held {
        /// The directory.
        dir: PathBuf,
        /// The id of that process, if the lock file contains it.
        pid: Option<u32>,
    },
    /// The lock file cannot be opened, locked or written.
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl DataDirLock {
    /// Locks the directory, which must exist.
    ///
    /// # Errors
    /// [`LockError::Held`] with the process that holds it, or [`LockError::Io`].
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        let io = |source| LockError::Io { path: path.clone(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path).map_err(io)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // May be refused if another user owns the file. The file contains no secret.
            let _ = file.set_permissions(std::fs::Permissions::from_mode(0o600));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut said = String::new();
                // The process id is only for the message. An unreadable file names no process.
                let _ = Read::by_ref(&mut file).take(32).read_to_string(&mut said);
                return Err(LockError::Held { dir: dir.to_owned(), pid: said.trim().parse().ok() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self { _file: file, dir: dir.to_owned() })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { dir, pid } => {
                write!(f, "the data directory {} is in use", dir.display())?;
                if let Some(pid) = pid {
                    write!(f, " by process {pid}")?;
                }
                f.write_str(": stop that server first, or choose another directory with --data-dir")
            }
            Self::Io { path, source } => write!(f, "cannot lock {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Held { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_belongs_to_one_at_a_time_who_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDirLock::acquire(dir.path()).unwrap();
        assert_eq!(first.dir(), dir.path());
        let refused = DataDirLock::acquire(dir.path()).unwrap_err();
        let LockError::Held { pid, .. } = &refused else { panic!("{refused}") };
        assert_eq!(*pid, Some(std::process::id()));
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        drop(first);
        assert!(DataDirLock::acquire(dir.path()).is_ok());
        assert!(matches!(DataDirLock::acquire(&dir.path().join("none")), Err(LockError::Io { .. })));
    }
}
