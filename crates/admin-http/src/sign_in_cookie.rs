//! The cookie that ties a sign-in at an identity provider to the browser that began it. All secrets of the sign-in are
//! derived from the cookie, so the server keeps nothing until the browser comes back. Must not know the provider.

use std::time::Duration;

use axum::http::HeaderValue;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_domain::UnixNanos;
use headrace_jwt::SignInSecrets;
use subtle::ConstantTimeEq;

use crate::problem::ApiProblem;

/// Longest time between the beginning of a sign-in and its end.
const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Prefix of the cookie's name. The port follows it.
const NAME: &str = "headrace_sign_in_";
/// The path of the cookie.
const PATH: &str = "/admin/v1/sign-in";
/// Random bytes of a cookie.
const RANDOM_BYTES: usize = 32;

/// The value of a cookie: the time of its beginning in seconds since 1970, a dot, and 256 random bits in hexadecimal.
pub(crate) struct SignInCookie(String);

impl SignInCookie {
    /// Creates a cookie.
    ///
    /// # Errors
    /// The operating system gave no randomness.
    pub(crate) fn create(now: UnixNanos) -> Result<Self, ApiProblem> {
        let mut bytes = [0_u8; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(|_| ApiProblem::internal("there is no randomness"))?;
        let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(format!("{}.{random}", now.get() / 1_000_000_000)))
    }

    /// Reads a cookie's value. `None` if it is malformed or too old.
    pub(crate) fn read(value: &str, now: UnixNanos) -> Option<Self> {
        let (begun, random) = value.split_once('.')?;
        let begun = UnixNanos::new(begun.parse::<u64>().ok()?.checked_mul(1_000_000_000)?);
        let is_random = random.len() == 2 * RANDOM_BYTES && random.bytes().all(|b| b.is_ascii_hexdigit());
        let is_recent = now < begun.after(LIFETIME) && begun <= now;
        (is_random && is_recent).then(|| Self(value.to_owned()))
    }

    /// The secrets of a sign-in at this provider.
    pub(crate) fn secrets(&self, provider: &str) -> SignInSecrets {
        let derive = |context: &str| {
            let mut hasher = blake3::Hasher::new_derive_key(context);
            hasher.update(self.0.as_bytes()).update(&[0]).update(provider.as_bytes());
            URL_SAFE_NO_PAD.encode(hasher.finalize().as_bytes())
        };
        SignInSecrets {
            state: derive("headrace 2026 sign-in state v1"),
            nonce: derive("headrace 2026 sign-in nonce v1"),
            verifier: derive("headrace 2026 sign-in pkce verifier v1"),
        }
    }

    /// The header that sets the cookie. Other sites' pages can make a browser send it only by leading to this server.
    pub(crate) fn header(&self, port: u16, url: &str) -> Result<HeaderValue, ApiProblem> {
        header(port, &self.0, LIFETIME.as_secs(), url)
    }
}

/// The name of the cookie of a listener at `port`.
pub(crate) fn name(port: u16) -> String {
    format!("{NAME}{port}")
}

/// The header that deletes the cookie.
pub(crate) fn deleted(port: u16, url: &str) -> Result<HeaderValue, ApiProblem> {
    header(port, "", 0, url)
}

/// Compares a shown `state` in constant time.
pub(crate) fn is_state(secrets: &SignInSecrets, shown: &str) -> bool {
    bool::from(secrets.state.as_bytes().ct_eq(shown.as_bytes()))
}

fn header(port: u16, value: &str, seconds: u64, url: &str) -> Result<HeaderValue, ApiProblem> {
    let secure = if url.starts_with("https://") { "; Secure" } else { "" };
    // `Lax`, because the provider's page leads the browser back.
    let text =
        format!("{}={value}; HttpOnly; SameSite=Lax; Path={PATH}; Max-Age={seconds}{secure}", name(port));
    HeaderValue::from_str(&text).map_err(|_| ApiProblem::internal("a cookie that is no header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixNanos = UnixNanos::new(1_790_000_000_000_000_000);

    #[test]
    fn a_cookie_is_read_for_ten_minutes_and_gives_each_provider_its_own_secrets() {
        let cookie = SignInCookie::create(NOW).unwrap();
        let read = |now| SignInCookie::read(&cookie.0, now);
        assert!(read(NOW).is_some() && read(NOW.after(Duration::from_secs(599))).is_some());
        assert!(read(NOW.after(Duration::from_secs(600))).is_none());
        assert!(read(UnixNanos::new(0)).is_none(), "it begins in the future");
        let (a, again, b) = (cookie.secrets("a"), read(NOW).unwrap().secrets("a"), cookie.secrets("b"));
        assert_eq!((&a.state, &a.nonce, &a.verifier), (&again.state, &again.nonce, &again.verifier));
        let all = [&a.state, &a.nonce, &a.verifier, &b.state, &b.nonce, &b.verifier];
        let unique: std::collections::HashSet<_> = all.into_iter().collect();
        assert_eq!(unique.len(), 6);
        assert!(a.verifier.len() >= 43, "RFC 7636, 4.1");
        assert!(is_state(&a, &a.state) && !is_state(&a, &b.state) && !is_state(&a, ""));
        for bad in ["", "1790000000", "1790000000.", "x.00", "1790000000.zz", "99999999999999999999.00"] {
            assert!(SignInCookie::read(bad, NOW).is_none(), "{bad}");
        }
    }
}
