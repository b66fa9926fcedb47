//! The credential between gateways: a keyed hash over the time, the path and the body of a request. The secret itself is
//! never sent. Must not know HTTP.

use blake3::Hash;
use headrace_domain::UnixNanos;

/// The header with the credential: milliseconds since 1970, a dot, and a keyed hash in hexadecimal.
pub(crate) const HEADER: &str = "x-headrace-gateway";
/// How long a credential is valid, and how far two clocks may differ.
const VALID_MS: u64 = 60_000;
/// The context of the key (BLAKE3, `derive_key`).
const CONTEXT: &str = "headrace 2026-11 requests between gateways";

/// Signs and verifies requests between gateways with the same secret.
#[derive(Clone)]
pub(crate) struct GatewayCredential([u8; 32]);

impl GatewayCredential {
    /// Derives the credential from a secret that the gateways have in common.
    pub(crate) fn derive(secret: &[u8; 32]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }

    /// Returns the header of a request.
    pub(crate) fn sign(&self, now: UnixNanos, path: &str, body: &[u8]) -> String {
        let at = now.get() / 1_000_000;
        format!("{at}.{}", self.hash(at, path, body))
    }

    /// Returns whether a header belongs to a request of the last minute.
    pub(crate) fn verify(&self, header: &str, now: UnixNanos, path: &str, body: &[u8]) -> bool {
        let parts = header.split_once('.');
        let parts = parts.and_then(|(at, hash)| Some((at.parse().ok()?, Hash::from_hex(hash).ok()?)));
        let Some((at, hash)): Option<(u64, Hash)> = parts else { return false };
        // The comparison of hashes takes the same time for all values.
        (now.get() / 1_000_000).abs_diff(at) <= VALID_MS && self.hash(at, path, body) == hash
    }

    fn hash(&self, at: u64, path: &str, body: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&at.to_le_bytes()).update(&(path.len() as u64).to_le_bytes());
        hasher.update(path.as_bytes()).update(body);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_good_for_one_request_and_a_minute() {
        let [own, other] = [1, 2].map(|byte| GatewayCredential::derive(&[byte; 32]));
        let at = |seconds: u64| UnixNanos::new((1_790_000_000 + seconds) * 1_000_000_000);
        let signed = own.sign(at(100), "/a", b"body");
        for seconds in [40, 100, 160] {
            assert!(own.verify(&signed, at(seconds), "/a", b"body"), "{seconds}");
        }
        for (credential, seconds, path, body) in [
            (&own, 39, "/a", "body"),
            (&own, 161, "/a", "body"),
            (&own, 100, "/b", "body"),
            (&own, 100, "/a", "bodY"),
            (&own, 100, "/ab", "ody"),
            (&other, 100, "/a", "body"),
        ] {
            assert!(
                !credential.verify(&signed, at(seconds), path, body.as_bytes()),
                "{seconds} {path} {body}"
            );
        }
        for header in ["", ".", "1", &signed[1..], &signed[..signed.len() - 1], &format!("{signed}0")] {
            assert!(!own.verify(header, at(100), "/a", b"body"), "{header}");
        }
    }
}
