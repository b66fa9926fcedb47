//! Keys as operators write them down: in a file, or in a variable. Must not know what a key is for.

use std::path::Path;

use secrecy::SecretString;
use secrecy::zeroize::Zeroize;

/// The key that a file holds: the text of it without the white space around.
///
/// # Errors
/// In words.
pub(crate) fn read_key(path: &Path) -> Result<SecretString, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read a key from {}: {error}", path.display()))?;
    Ok(trimmed(text))
}

/// A secret without the white space around it; what it was cut out of is wiped.
pub(crate) fn trimmed(mut text: String) -> SecretString {
    let secret = SecretString::from(text.trim());
    text.zeroize();
    secret
}
