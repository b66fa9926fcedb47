//! Removes our secrets from text of other servers, which may repeat the key that they refuse. Must not know why the
//! text is shown.

use bytes::Bytes;
use secrecy::{ExposeSecret, SecretString};

/// Shorter values are common words rather than keys.
const LEAST_SECRET_BYTES: usize = 8;
const INSTEAD: &str = "[secret]";

/// The secrets in one server's calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecretRedactor(Vec<SecretString>);

impl SecretRedactor {
    pub(crate) fn new(secrets: impl IntoIterator<Item = SecretString>) -> Self {
        let long = |secret: &SecretString| secret.expose_secret().len() >= LEAST_SECRET_BYTES;
        Self(secrets.into_iter().filter(long).collect())
    }

    /// Returns the text without the secrets.
    pub(crate) fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), INSTEAD))
    }

    /// Returns the bytes without the secrets. Does not copy if there are none.
    pub(crate) fn bytes(&self, bytes: Bytes) -> Bytes {
        self.0.iter().fold(bytes, |bytes, secret| without(bytes, secret.expose_secret().as_bytes()))
    }
}

fn without(bytes: Bytes, secret: &[u8]) -> Bytes {
    let mut clean: Option<Vec<u8>> = None;
    let mut rest: &[u8] = &bytes;
    while let Some(at) = rest.windows(secret.len()).position(|window| window == secret) {
        let (before, after) = rest.split_at(at);
        let clean = clean.get_or_insert_with(Vec::new);
        clean.extend_from_slice(before);
        clean.extend_from_slice(INSTEAD.as_bytes());
        rest = after.get(secret.len()..).unwrap_or_default();
    }
    match clean {
        Some(mut clean) => {
            clean.extend_from_slice(rest);
            clean.into()
        }
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_and_the_rest_stays() {
        let redactor = SecretRedactor::new(["sk-12345678".into(), "short".into()]);
        for (written, clean) in [
            ("", ""),
            ("nothing short here", "nothing short here"),
            ("bad key sk-12345678", "bad key [secret]"),
            ("sk-12345678sk-12345678 and sk-1234567", "[secret][secret] and sk-1234567"),
        ] {
            assert_eq!(redactor.text(written), clean);
            assert_eq!(redactor.bytes(Bytes::from(written.to_owned())), clean);
        }
    }
}
