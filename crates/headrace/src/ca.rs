//! Reads the certificate authorities that a client command trusts. Must not know which server the client connects to.

use std::path::Path;

/// Reads the file of `--ca`.
pub(crate) fn read_ca(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("--ca: cannot read {}: {error}", path.display()))
}
