//! Documents over HTTPS, with the HTTP client of the program. Must not know what the documents mean.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{ACCEPT, AGE, CACHE_CONTROL, CONTENT_TYPE, DATE, EXPIRES, HeaderMap, HeaderName};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, StatusCode};
use secrecy::{ExposeSecret, SecretString};

use crate::code_exchange::{CodeRequest, ProviderClient};
use crate::documents::{DocumentError, DocumentFuture, DocumentSource, FetchedDocument};

/// Longest time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The media type of a form.
const FORM: &str = "application/x-www-form-urlencoded";
/// Longest time for a whole document.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Fetches documents over HTTPS, or over HTTP on this machine.
#[derive(Debug, Clone)]
pub struct HttpDocuments {
    client: Client,
}

impl HttpDocuments {
    /// Creates a client that also trusts the authorities in `extra_roots_pem`.
    ///
    /// # Errors
    /// The PEM text holds no certificate, or no client can be built.
    pub fn new(extra_roots_pem: Option<&[u8]>) -> Result<Self, DocumentError> {
        let mut builder = Client::builder()
            // Keys are trusted because of the address that they come from.
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TOTAL_TIMEOUT)
            .pool_max_idle_per_host(0);
        if let Some(pem) = extra_roots_pem {
            let found = Certificate::from_pem_bundle(pem).ok().filter(|found| !found.is_empty());
            let why = || DocumentError { why: "`ca_file` holds no certificate in PEM".to_owned() };
            builder = builder.tls_certs_merge(found.ok_or_else(why)?);
        }
        builder.build().map(|client| Self { client }).map_err(|error| DocumentError { why: cause(&error) })
    }

    async fn get(&self, url: &str) -> Result<FetchedDocument, DocumentError> {
        Self::send(self.client.get(url), |status| status.is_success()).await
    }

    async fn post(&self, request: &CodeRequest) -> Result<FetchedDocument, DocumentError> {
        let mut post = self.client.post(&request.url).header(CONTENT_TYPE, FORM);
        if let Some((id, secret)) = &request.basic {
            post = post.basic_auth(id, Some(secret.expose_secret()));
        }
        let post = post.body(request.form.expose_secret().to_owned());
        let is_answer = |status| matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED);
        Self::send(post, |status| status.is_success() || is_answer(status)).await
    }

    /// Sends a request, and reads the answer if its status is accepted.
    async fn send(
        request: RequestBuilder,
        accepts: impl Fn(StatusCode) -> bool,
    ) -> Result<FetchedDocument, DocumentError> {
        let failed = |error: reqwest::Error| DocumentError { why: cause(&error) };
        let request = request.header(ACCEPT, "application/json");
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        if !accepts(status) {
            return Err(DocumentError { why: format!("the provider answered {status}") });
        }
        let fresh_for = fresh_for(response.headers());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len().saturating_add(chunk.len()) > FetchedDocument::MAX_BYTES {
                let why = format!("the document has more than {} bytes", FetchedDocument::MAX_BYTES);
                return Err(DocumentError { why });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(FetchedDocument { body, fresh_for })
    }
}

impl DocumentSource for HttpDocuments {
    fn fetch<'a>(&'a self, url: &'a str) -> DocumentFuture<'a> {
        Box::pin(self.get(url))
    }
}

impl ProviderClient for HttpDocuments {
    fn exchange<'a>(&'a self, request: &'a CodeRequest) -> DocumentFuture<'a> {
        Box::pin(self.post(request))
    }

    fn user_info<'a>(&'a self, url: &'a str, access_token: &'a SecretString) -> DocumentFuture<'a> {
        let get = self.client.get(url).bearer_auth(access_token.expose_secret());
        Box::pin(Self::send(get, |status| status.is_success()))
    }
}

/// How long an answer stays fresh (RFC 9111, 4.2.1): `max-age` less `age`, or else `expires` less `date`.
fn fresh_for(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let directives: Vec<String> = headers
        .get_all(CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|directive| directive.trim().to_ascii_lowercase())
        .collect();
    if directives.iter().any(|directive| directive == "no-store" || directive == "no-cache") {
        return Some(Duration::ZERO);
    }
    let seconds = |text: &str| text.trim_matches('"').parse().ok().map(Duration::from_secs);
    if let Some(age) = directives.iter().find_map(|directive| seconds(directive.strip_prefix("max-age=")?)) {
        let passed = text(AGE).and_then(seconds).unwrap_or_default();
        return Some(age.saturating_sub(passed));
    }
    let expires = httpdate::parse_http_date(text(EXPIRES)?).ok()?;
    let date = httpdate::parse_http_date(text(DATE)?).ok()?;
    Some(expires.duration_since(date).unwrap_or_default())
}

/// The root cause of an error, such as "connection refused" instead of "error sending request".
fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", TOTAL_TIMEOUT.as_secs());
    }
    let mut last: &dyn Error = error;
    while let Some(below) = last.source() {
        last = below;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_follows_the_cache_headers() {
        let date = ("date", "Mon, 02 Nov 2026 10:00:00 GMT");
        type Row<'a> = (&'a [(&'static str, &'static str)], Option<u64>);
        let rows: [Row<'_>; 9] = [
            (&[], None),
            (&[("cache-control", "public, max-age=3600")], Some(3600)),
            (&[("cache-control", "Max-Age=\"60\"")], Some(60)),
            (&[("cache-control", "max-age=3600"), ("age", "600")], Some(3000)),
            (&[("cache-control", "max-age=60"), ("age", "600")], Some(0)),
            (&[("cache-control", "no-store, max-age=60")], Some(0)),
            (&[date, ("expires", "Mon, 02 Nov 2026 10:05:00 GMT")], Some(300)),
            (&[date, ("expires", "Mon, 02 Nov 2026 09:00:00 GMT")], Some(0)),
            (&[date, ("expires", "soon")], None),
        ];
        for (headers, expected) in rows {
            let pairs =
                headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            assert_eq!(fresh_for(&pairs.collect()), expected.map(Duration::from_secs), "{headers:?}");
        }
    }
}
