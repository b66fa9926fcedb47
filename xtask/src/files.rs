//! Copies, creates and writes files, with failures that name the path. Knows no step.

use std::path::Path;

use crate::shell::Failure;

/// Copies a file to a path and creates the path's folder.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    if let Some(folder) = to.parent() {
        create(folder)?;
    }
    std::fs::copy(from, to).map(|_bytes| ()).map_err(|error| fault(from, &error))
}

/// Creates a folder and its parents.
pub(crate) fn create(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| fault(folder, &error))
}

/// Creates an empty folder. Removes its previous content.
pub(crate) fn empty(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(|error| fault(folder, &error))?;
    }
    create(folder)
}

/// Writes a text file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| fault(path, &error))
}

/// A failure that names the path.
pub(crate) fn fault(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()), "check that the path exists and can be written")
}
