//! The registered claims of a token (RFC 7519, 4.1): audience, times, subject. Must not know keys or rules.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_domain::UnixNanos;
use serde_json::{Map, Value};

use crate::TokenRefusal;
use crate::config::IssuerConfig;

/// Tolerated difference between the clocks of a provider and this server, in seconds.
pub(crate) const LEEWAY_SECONDS: u64 = 60;
/// Longest `sub` in bytes (OpenID Connect Core 1.0, 2).
const MAX_SUBJECT_BYTES: usize = 255;

/// The checked claims of a token.
pub(crate) struct CheckedClaims<'a> {
    /// `sub`
    pub(crate) subject: &'a str,
    /// SHA-256 of the certificate to which the token is bound. `None` for a bearer token.
    pub(crate) bound_to: Option<[u8; 32]>,
    /// `exp`
    pub(crate) expires: UnixNanos,
}

/// Checks the claims of a token of this issuer.
///
/// # Errors
/// The first claim that does not hold.
pub(crate) fn check_claims<'a>(
    claims: &'a Map<String, Value>,
    issuer: &IssuerConfig,
    now: UnixNanos,
) -> Result<CheckedClaims<'a>, TokenRefusal> {
    let bound_to = claims.get("cnf").map(certificate_of).transpose()?;
    let now_seconds = now.get() / NANOS;
    let expires = date(claims, "exp")?.ok_or(TokenRefusal::Claim { claim: "exp", must_be: "present" })?;
    if now_seconds >= expires.saturating_add(LEEWAY_SECONDS) {
        return Err(TokenRefusal::Expired);
    }
    for claim in ["nbf", "iat"] {
        if date(claims, claim)?.is_some_and(|from| from > now_seconds.saturating_add(LEEWAY_SECONDS)) {
            return Err(TokenRefusal::NotYetValid { claim });
        }
    }
    let names_audience = |claim: &String| match claims.get(claim) {
        Some(Value::String(audience)) => issuer.audiences.contains(audience),
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(Value::as_str)
            .any(|audience| issuer.audiences.iter().any(|own| own == audience)),
        _ => false,
    };
    if !issuer.audience_claims.iter().any(names_audience) {
        return Err(TokenRefusal::Audience);
    }
    let is_subject =
        |text: &&str| (1..=MAX_SUBJECT_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    let must_be = "a text of 1 to 255 bytes without control characters";
    let subject = claims.get("sub").and_then(Value::as_str).filter(is_subject);
    let subject = subject.ok_or(TokenRefusal::Claim { claim: "sub", must_be })?;
    Ok(CheckedClaims { subject, bound_to, expires: UnixNanos::new(expires.saturating_mul(NANOS)) })
}

/// The certificate of a confirmation (RFC 8705, 3.1).
fn certificate_of(confirmation: &Value) -> Result<[u8; 32], TokenRefusal> {
    let members = confirmation.as_object().filter(|members| members.len() == 1);
    let hash = members.and_then(|members| members.get("x5t#S256")).and_then(Value::as_str);
    let hash = hash.and_then(|hash| URL_SAFE_NO_PAD.decode(hash).ok());
    hash.and_then(|hash| hash.try_into().ok()).ok_or(TokenRefusal::Bound)
}

const NANOS: u64 = 1_000_000_000;

/// A date in seconds since 1970, rounded down. Dates may have fractions. `None` if the claim is absent.
fn date(claims: &Map<String, Value>, claim: &'static str) -> Result<Option<u64>, TokenRefusal> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    // 2^53: every integer below it is exact as a float.
    const MOST_SECONDS: f64 = 9_007_199_254_740_992.0;
    let seconds = value.as_f64().filter(|seconds| (0.0..MOST_SECONDS).contains(seconds));
    let must_be = "a number of seconds since 1970";
    seconds.map(|seconds| Some(seconds as u64)).ok_or(TokenRefusal::Claim { claim, must_be })
}
