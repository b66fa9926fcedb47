//! The certificates that a client of ours trusts, from the file that it is given.
//! Must not know who connects where.

use std::path::Path;

/// The file of `--ca`.
pub(crate) fn read_ca(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("--ca: cannot read {}: {error}", path.display()))
}
