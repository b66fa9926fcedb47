//! Extracts the presented key from a request's two credential headers. Knows the format of the header values, not which
//! keys exist.

use crate::AuthRefusal;
use crate::credential_kind::{API_KEY, is_token_bytes};
use crate::secret::MAX_PRESENTED_BYTES;

/// Maximum length of a token that is checked, in bytes.
pub const MAX_TOKEN_BYTES: usize = 8 << 10;

/// Returns the one credential in `Authorization: Bearer KEY` and `x-api-key: KEY`, given as the raw header values. A JWT
/// may be in place of the key, and longer than a key.
///
/// The scheme is matched case-insensitively (RFC 9110, 11.1). The key must be an RFC 6750 `b64token`. Both headers may
/// be present if they agree. Two different credentials are refused, so that a proxy and this server cannot each act on
/// a different one.
///
/// # Errors
/// [`AuthRefusal::Missing`], [`AuthRefusal::Malformed`], [`AuthRefusal::NoScheme`] or [`AuthRefusal::Conflicting`].
pub fn credential<'a>(
    authorization: Option<&'a [u8]>,
    x_api_key: Option<&'a [u8]>,
) -> Result<&'a str, AuthRefusal> {
    let bearer = match authorization.map(trim) {
        None | Some([]) => None,
        Some(value) => bearer_token(value)?,
    };
    let plain = match x_api_key.map(trim) {
        None | Some([]) => None,
        Some(value) => Some(token(value)?),
    };
    match (bearer, plain) {
        (None, None) => Err(AuthRefusal::Missing),
        (Some(a), Some(b)) if a != b => Err(AuthRefusal::Conflicting),
        (Some(key), _) | (None, Some(key)) => Ok(key),
    }
}

/// Returns the token after the scheme, or `None` if the scheme has no token after it.
fn bearer_token(value: &[u8]) -> Result<Option<&str>, AuthRefusal> {
    let end = value.iter().position(|&b| b == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at(end);
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        let looks_like_a_key =
            rest.is_empty() && scheme.starts_with(API_KEY.as_bytes()) && token(scheme).is_ok();
        return Err(if looks_like_a_key { AuthRefusal::NoScheme } else { AuthRefusal::Malformed });
    }
    match trim(rest) {
        [] => Ok(None),
        rest => token(rest).map(Some),
    }
}

/// The bytes that an RFC 6750 `b64token` may contain. A table, since every call's credential is checked against it.
const TOKEN_BYTES: [bool; 256] = {
    let mut fits = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        let sign = matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
        fits[byte as usize] = byte.is_ascii_alphanumeric() || sign;
        byte += 1;
    }
    fits
};

fn token(bytes: &[u8]) -> Result<&str, AuthRefusal> {
    let fits = |b: &u8| TOKEN_BYTES.get(usize::from(*b)) == Some(&true);
    let is_too_long =
        bytes.len() > MAX_PRESENTED_BYTES && (bytes.len() > MAX_TOKEN_BYTES || !is_token_bytes(bytes));
    if is_too_long || !bytes.iter().all(fits) {
        return Err(AuthRefusal::Malformed);
    }
    std::str::from_utf8(bytes).map_err(|_| AuthRefusal::Malformed)
}

/// Removes optional whitespace (RFC 9110, 5.6.3) from both ends.
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::credential_kind::is_token;

    #[test]
    fn one_credential_or_a_refusal() {
        use AuthRefusal::{Conflicting, Malformed, Missing, NoScheme};
        type Row<'a> = (Option<&'a str>, Option<&'a str>, Result<&'a str, AuthRefusal>);
        let long = format!("Bearer sk-{}", "a".repeat(300));
        let longest_token = format!("Bearer a.b.{}", "c".repeat(MAX_TOKEN_BYTES - 4));
        let too_long_token = format!("{longest_token}c");
        let long_with_a_dot = format!("Bearer a.{}", "c".repeat(300));
        let long_key_with_dots = format!("Bearer sk-a.b.{}", "c".repeat(300));
        let rows: &[Row<'_>] = &[
            (None, None, Err(Missing)),
            (Some(""), Some(""), Err(Missing)),
            (Some("Bearer"), None, Err(Missing)),
            (Some("Bearer   "), Some(" "), Err(Missing)),
            (Some("Bearer sk-abc"), None, Ok("sk-abc")),
            (Some("bearer sk-abc"), None, Ok("sk-abc")),
            (Some("BEARER   sk-abc "), None, Ok("sk-abc")),
            (None, Some("sk-abc"), Ok("sk-abc")),
            (Some("Bearer"), Some("sk-abc"), Ok("sk-abc")),
            (Some("Bearer sk-abc"), Some("sk-abc"), Ok("sk-abc")),
            (Some("Bearer sk-abc"), Some("sk-abd"), Err(Conflicting)),
            (Some("Bearer sk-abc"), Some("SK-ABC"), Err(Conflicting)),
            (Some("Bearer x' OR pg_sleep(8)--"), None, Err(Malformed)),
            (Some("x' OR pg_sleep(8)--"), None, Err(Malformed)),
            (None, Some("x' OR pg_sleep(8)--"), Err(Malformed)),
            (Some("Bearer sk-abc"), Some("x' OR 1"), Err(Malformed)),
            (Some("Basic c2stYWJj"), None, Err(Malformed)),
            (Some("Basic c2stYWJj"), Some("sk-abc"), Err(Malformed)),
            (Some("sk-abc"), None, Err(NoScheme)),
            (Some(" sk-abc "), Some("sk-abc"), Err(NoScheme)),
            (Some("sk-abc def"), None, Err(Malformed)),
            (Some("sk-x' OR 1"), None, Err(Malformed)),
            (Some("Bearersk-abc"), None, Err(Malformed)),
            (Some("Bearer sk-abc sk-def"), None, Err(Malformed)),
            (Some("Bearer sk-a\tc"), None, Err(Malformed)),
            (Some("Bearer sk-é"), None, Err(Malformed)),
            (Some(&long), None, Err(Malformed)),
            (Some("Bearer a.b.c"), None, Ok("a.b.c")),
            (None, Some("a.b.c"), Ok("a.b.c")),
            (Some("Bearer a.b.c"), Some("sk-abc"), Err(Conflicting)),
            (Some(&longest_token), None, Ok(&longest_token["Bearer ".len()..])),
            (Some(&too_long_token), None, Err(Malformed)),
            (Some(&long_with_a_dot), None, Err(Malformed)),
            (Some(&long_key_with_dots), None, Err(Malformed)),
        ];
        for (authorization, x_api_key, expected) in rows {
            let got = credential(authorization.map(str::as_bytes), x_api_key.map(str::as_bytes));
            assert_eq!(&got, expected, "{authorization:?} {x_api_key:?}");
        }
    }

    #[test]
    fn a_token_has_two_dots_and_is_no_key() {
        for (text, expected) in [
            ("a.b.c", true),
            ("..", true),
            ("a.b", false),
            ("a.b.c.d.e", false),
            ("sk-a.b.c", false),
            ("sk-abcd", false),
            ("", false),
        ] {
            assert_eq!(is_token(text), expected, "{text}");
        }
    }

    #[test]
    fn each_byte_is_judged_as_the_rfc_says() {
        for byte in 0..=u8::MAX {
            let expected = byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
            assert_eq!(token(&[b'a', byte]).is_ok(), expected, "{byte}");
            let key = [b"sk-aaaa".as_slice(), &[byte]].concat();
            let expected = byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            let well_formed = std::str::from_utf8(&key).is_ok_and(crate::secret::is_well_formed);
            assert_eq!(well_formed, expected, "{byte}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(a in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
                                  b in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80))) {
            if let Ok(key) = credential(a.as_deref(), b.as_deref()) {
                prop_assert!(key.bytes().all(|b| b.is_ascii_graphic() && b != b'\'' && b != b'"'));
            }
        }
    }
}
