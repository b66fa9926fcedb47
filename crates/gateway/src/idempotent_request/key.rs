//! Reads the idempotency key of a request.

use headrace_call_api::IdempotencyHeader;
use headrace_call_state::Rejection;

/// The most bytes of a key.
const MOST_BYTES: usize = 255;

/// The name under which the ledger knows the key of a request. It is a digest: the ledger then keeps nothing that the
/// client wrote, and no key can be that of a batch's line.
///
/// # Errors
/// The header is no key.
pub(super) fn ledger_key(header: &IdempotencyHeader) -> Result<String, Rejection> {
    if header.is_repeated {
        return Err(Rejection::invalid_idempotency_key("was sent more than once"));
    }
    let key = parse(&header.value)?;
    Ok(format!("key/{}", blake3::hash(&key).to_hex()))
}

/// Reads a value: a string of RFC 8941 in double quotes, or the same characters without quotes.
fn parse(value: &[u8]) -> Result<Vec<u8>, Rejection> {
    let bad = |why: &str| Err(Rejection::invalid_idempotency_key(why));
    let value = value.trim_ascii();
    let key = match value {
        [b'"', quoted @ .., b'"'] => match unescaped(quoted) {
            Some(key) => key,
            None => return bad("has a `\"` or `\\` within its quotes that no `\\` precedes"),
        },
        [b'"', ..] => return bad("begins with a quote and does not end with one"),
        bare => bare.to_vec(),
    };
    match key.len() {
        0 => bad("is empty"),
        1..=MOST_BYTES if key.iter().all(|byte| matches!(byte, b' '..=b'~')) => Ok(key),
        1..=MOST_BYTES => bad("has another character"),
        bytes => bad(&format!("has {bytes} bytes")),
    }
}

/// The text between quotes, without its escapes. `None` if it is not escaped correctly.
fn unescaped(quoted: &[u8]) -> Option<Vec<u8>> {
    let (mut key, mut bytes) = (Vec::with_capacity(quoted.len()), quoted.iter());
    while let Some(byte) = bytes.next() {
        key.push(match byte {
            b'\\' => *bytes.next().filter(|byte| matches!(byte, b'"' | b'\\'))?,
            b'"' => return None,
            byte => *byte,
        });
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &[u8], is_repeated: bool) -> IdempotencyHeader {
        IdempotencyHeader { value: value.to_vec(), is_repeated, target: "POST /v1/messages".to_owned() }
    }

    #[test]
    fn keys_are_bare_or_quoted_and_of_a_bounded_length() {
        let long = "k".repeat(255);
        let too_long = "k".repeat(256);
        let escaped = format!("\"{}\"", "\\\\".repeat(255));
        for (value, expected) in [
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", Some("8e03978e-40d5-43dd-bc93-6894a57f9324")),
            ("\"8e03978e\"", Some("8e03978e")),
            ("  a b,c;d=1  ", Some("a b,c;d=1")),
            ("\"a \\\"b\\\" \\\\\"", Some("a \"b\" \\")),
            ("\"\"\"", None),
            ("\"a\\\"", None),
            ("\"a\\b\"", None),
            ("\"a\"b\"", None),
            ("\"a", None),
            ("\"", None),
            ("\"\"", None),
            ("", None),
            ("   ", None),
            ("é", None),
            ("a\tb", None),
            (&long, Some(&long)),
            (&too_long, None),
            (&escaped, Some(&"\\".repeat(255))),
        ] {
            let key = parse(value.as_bytes());
            assert_eq!(key.as_deref().ok(), expected.map(str::as_bytes), "{value}");
            if let Err(rejection) = key {
                assert_eq!(rejection.status, 400);
                assert!(rejection.message.starts_with("`Idempotency-Key`: it must have 1 to 255 "));
            }
        }
    }

    #[test]
    fn a_quoted_key_is_the_same_as_the_bare_one_and_two_headers_are_none() {
        let key = |value: &[u8]| ledger_key(&header(value, false)).ok();
        assert_eq!(key(b"\"a-1\""), key(b"a-1"));
        assert_ne!(key(b"a-1"), key(b"a-2"));
        assert!(key(b"a-1").unwrap().len() < 100);
        assert!(ledger_key(&header(b"a, a", true)).unwrap_err().message.contains("more than once"));
    }
}
