//! The request headers that the call service receives, collected in one pass. Must not know their meaning.

use headrace_call_api::{Credentials, DIALECT_HEADERS};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// The header by which a repeated request is recognized (draft-ietf-httpapi-idempotency-key-header-07).
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The request headers that the call service receives.
pub(crate) struct CallerHeaders {
    pub(crate) credentials: Credentials,
    /// The `traceparent` header, if there is exactly one and it is text.
    pub(crate) traceparent: Option<String>,
    /// The headers in [`DIALECT_HEADERS`] that the request has, as text.
    pub(crate) dialect_headers: Vec<(&'static str, String)>,
    /// The value of `idempotency-key`, and whether there are several, which are joined.
    pub(crate) idempotency_key: Option<(Vec<u8>, bool)>,
}

impl CallerHeaders {
    /// Collects the headers.
    pub(crate) fn by(headers: &HeaderMap) -> Self {
        let (mut authorization, mut x_api_key, mut traceparent) = (None, None, None);
        let mut idempotency_key: Option<&HeaderValue> = None;
        let mut dialect: [Option<&HeaderValue>; DIALECT_HEADERS.len()] = [None; _];
        for (name, value) in headers {
            let slot = match name.as_str() {
                "authorization" => &mut authorization,
                "x-api-key" => &mut x_api_key,
                "traceparent" => &mut traceparent,
                "idempotency-key" => &mut idempotency_key,
                name => {
                    let slots = DIALECT_HEADERS.iter().zip(&mut dialect);
                    let Some((_, slot)) = slots.into_iter().find(|(own, _)| **own == name) else { continue };
                    slot
                }
            };
            if slot.replace(value).is_some() {
                return Self::of_lists(headers);
            }
        }
        let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
        let bytes = |value: &HeaderValue| value.as_bytes().to_vec();
        let dialect = DIALECT_HEADERS.into_iter().zip(dialect);
        Self {
            credentials: Credentials {
                authorization: authorization.map(bytes),
                x_api_key: x_api_key.map(bytes),
                certificate: None,
            },
            traceparent: traceparent.and_then(text),
            dialect_headers: dialect.filter_map(|(name, value)| Some((name, text(value?)?))).collect(),
            idempotency_key: idempotency_key.map(|value| (bytes(value), false)),
        }
    }

    /// Collects the headers if one of them occurs several times.
    fn of_lists(headers: &HeaderMap) -> Self {
        Self {
            credentials: Credentials {
                authorization: joined(headers, &header::AUTHORIZATION),
                x_api_key: joined(headers, &HeaderName::from_static("x-api-key")),
                certificate: None,
            },
            traceparent: single(headers, "traceparent").map(str::to_owned),
            dialect_headers: dialect_headers(headers),
            idempotency_key: joined(headers, &IDEMPOTENCY_KEY)
                .map(|value| (value, headers.get_all(&IDEMPOTENCY_KEY).iter().count() > 1)),
        }
    }
}

/// Joins all values of a header with commas, as HTTP allows. Two credentials joined like this are no valid credential,
/// so the call service notices that there were two.
pub(crate) fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let mut values = headers.get_all(name).iter();
    let mut out = values.next()?.as_bytes().to_vec();
    for value in values {
        out.extend_from_slice(b", ");
        out.extend_from_slice(value.as_bytes());
    }
    Some(out)
}

/// Returns the value of a header that occurs once and is text.
pub(crate) fn single<'h>(headers: &'h HeaderMap, name: &'static str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

/// Returns the dialect headers. Several values of one header become one list.
fn dialect_headers(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let text = |name: &'static str| {
        let values: Option<Vec<&str>> =
            headers.get_all(name).iter().map(|value| value.to_str().ok()).collect();
        Some((name, values.filter(|values| !values.is_empty())?.join(",")))
    };
    DIALECT_HEADERS.into_iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_occur_twice_are_left_out_or_joined() {
        let mut headers = HeaderMap::new();
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        headers.append("traceparent", HeaderValue::from_static("x"));
        let caller = CallerHeaders::by(&headers);
        assert_eq!(caller.credentials.authorization.as_deref(), Some(&b"Bearer a"[..]));
        assert_eq!(caller.traceparent.as_deref(), Some("x"));
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        headers.append("traceparent", HeaderValue::from_static("x"));
        let caller = CallerHeaders::by(&headers);
        assert_eq!(caller.credentials.authorization.as_deref(), Some(&b"Bearer a, Bearer b"[..]));
        assert_eq!(caller.traceparent, None);
    }

    #[test]
    fn one_pass_collects_the_same_as_a_search_for_each() {
        let text = HeaderValue::from_static("a");
        let (empty, bytes) = (HeaderValue::from_static(""), HeaderValue::from_bytes(b"\xff").unwrap());
        let names: Vec<&str> =
            ["authorization", "x-api-key", "traceparent", "idempotency-key", "host", "x-other"]
                .into_iter()
                .chain(DIALECT_HEADERS)
                .collect();
        // Each name occurs not at all, once with each value, or twice.
        for seed in 0..6_u32.pow(5) {
            let mut headers = HeaderMap::new();
            for (at, name) in names.iter().enumerate() {
                let digit =
                    (seed / 6_u32.pow(u32::try_from(at % 5).unwrap()) + u32::try_from(at / 5).unwrap()) % 6;
                let values: &[&HeaderValue] = match digit {
                    0 | 1 => &[],
                    2 => &[&text],
                    3 => &[&bytes],
                    4 => &[&empty],
                    _ if seed % 3 == 0 => &[&text, &empty],
                    _ => &[&text],
                };
                for value in values {
                    headers.append(*name, (*value).clone());
                }
            }
            let (caller, lists) = (CallerHeaders::by(&headers), CallerHeaders::of_lists(&headers));
            let shown = |caller: CallerHeaders| {
                let Credentials { authorization, x_api_key, .. } = caller.credentials;
                (authorization, x_api_key, caller.traceparent, caller.dialect_headers, caller.idempotency_key)
            };
            assert_eq!(shown(caller), shown(lists), "{headers:?}");
        }
    }
}
