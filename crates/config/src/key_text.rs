//! Reads keys as operators write them down, in a file or a variable. Must not know what a key is for.

use std::path::Path;

use secrecy::SecretString;
use secrecy::zeroize::Zeroize;

/// Reads the key of a file. Surrounding white space is removed.
///
/// # Errors
/// Returns a message.
pub fn read_key(path: &Path) -> Result<SecretString, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read a key from {}: {error}", path.display()))?;
    Ok(trimmed(text))
}

/// Removes the white space around a secret and wipes the original text.
pub fn trimmed(mut text: String) -> SecretString {
    let secret = SecretString::from(text.trim());
    text.zeroize();
    secret
}
