//! Copies of a store's file. Each is consistent as of one moment, even while a server writes to the file. Knows nothing
//! of the file's content.

use std::fmt;
use std::path::{Path, PathBuf};

use sqlx::Connection;

use crate::sqlite::{CommitDurability, block_on, create_private, open};

/// Why a file could not be copied.
#[derive(Debug)]
pub struct CopyError {
    from: PathBuf,
    why: String,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot copy {}: {}", self.from.display(), self.why)
    }
}

impl std::error::Error for CopyError {}

/// Copies the content of a store's file, as of one moment, to a new file that only its owner can read. Blocks until the
/// copy is finished. Writers do not wait for it.
///
/// Source: <https://www.sqlite.org/lang_vacuum.html>, `VACUUM INTO`.
///
/// # Errors
/// Fails if the file cannot be read or the new file cannot be written. A part of the new file may exist then.
pub fn copy_database(from: &Path, to: &Path) -> Result<(), CopyError> {
    let failed = |why: String| CopyError { from: from.to_owned(), why };
    let target = to.to_str().ok_or_else(|| failed(format!("{} is not UTF-8", to.display())))?;
    create_private(to).map_err(|error| failed(error.to_string()))?;
    let copied = block_on(async {
        let mut connection = open(from, CommitDurability::Normal, true).await?;
        let copied = sqlx::query("VACUUM INTO ?").bind(target).execute(&mut connection).await;
        // The connection wrote nothing, so a failed close loses nothing.
        let _ = connection.close().await;
        copied.map(drop)
    });
    copied.map_err(|error| failed(error.to_string()))
}
