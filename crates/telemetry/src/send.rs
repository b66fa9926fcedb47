//! Sends one body and reports the result. Retries transient failures at growing intervals. Must not know what a body
//! contains.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, StatusCode, Url};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Target, TelemetryConfig, TelemetryError};
use crate::proto::not_taken;

/// Initial wait before a retry. Doubles with each retry.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Maximum wait before a retry.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Maximum bytes of a response that are read.
const MOST_ANSWER_BYTES: usize = 64 << 10;
/// Maximum characters of a response that are logged.
const MAX_REPORTED_CHARS: usize = 200;

/// Sends to one target.
pub(crate) struct Sender {
    client: Client,
    url: Url,
    headers: HeaderMap,
    retry_for: Duration,
}

/// The result of sending a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Accepted, except for `rejected` items.
    Taken { rejected: u64, why: String },
    /// Rejected for good.
    Rejected(String),
    /// Not accepted within the retry time.
    Failed(String),
}

/// Why one attempt failed.
enum Try {
    Again { wait: Option<Duration>, why: String },
    Never(String),
}

impl Sender {
    pub(crate) fn new(target: &Target, config: &TelemetryConfig) -> Result<Self, TelemetryError> {
        let (url, headers) = headers(target)?;
        Ok(Self {
            client: client(config, url.scheme() == "https")?,
            url,
            headers,
            retry_for: config.retry_for,
        })
    }

    /// Sends a body until it is accepted, rejected for good, or the retry time is over. Once `closing` is set, makes
    /// only one more attempt.
    pub(crate) async fn send(&self, body: Bytes, closing: &mut watch::Receiver<bool>) -> Sent {
        let (began, mut wait) = (Instant::now(), FIRST_WAIT);
        loop {
            // The sender of `closing` may be gone.
            let last = *closing.borrow() || closing.has_changed().is_err();
            let why = match self.once(body.clone()).await {
                Ok(answer) => return taken(&answer),
                Err(Try::Never(why)) => return Sent::Rejected(why),
                Err(Try::Again { wait: asked, why }) => {
                    wait = asked.unwrap_or(wait).min(LONGEST_WAIT);
                    why
                }
            };
            if last || began.elapsed().saturating_add(wait) > self.retry_for {
                return Sent::Failed(why);
            }
            tokio::select! {
                () = tokio::time::sleep(jittered(wait, began.elapsed())) => {}
                _ = closing.changed() => {}
            }
            wait = wait.saturating_mul(2);
        }
    }

    async fn once(&self, body: Bytes) -> Result<Vec<u8>, Try> {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body);
        let again = |error: reqwest::Error| Try::Again {
            wait: None,
            why: format!("{}: {}", shown(&self.url), cause(&error)),
        };
        let mut response = request.send().await.map_err(again)?;
        let (status, asked) = (response.status(), retry_after(response.headers()));
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        // An HTML page comes from a proxy or a portal, not from a receiver, even with a success status.
        let is_page = kind.is_some_and(|kind| kind.to_ascii_lowercase().contains("html"));
        let mut bytes = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MOST_ANSWER_BYTES {
                break;
            }
        }
        if status.is_success() && !is_page {
            // An empty response is valid.
            return Ok(bytes);
        }
        let why = format!("{} answered {status}: {}", shown(&self.url), log_excerpt(&bytes));
        // <https://opentelemetry.io/docs/specs/otlp/#failures-1>: no other status may be retried.
        let retryable = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(if retryable { Try::Again { wait: asked, why } } else { Try::Never(why) })
    }
}

/// The URL and the headers of a target's requests.
pub(crate) fn headers(target: &Target) -> Result<(Url, HeaderMap), TelemetryError> {
    let address = |why: String| TelemetryError::Address { url: target.url.clone(), why };
    let url = Url::parse(&target.url).map_err(|error| address(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(address("it must begin with http:// or https://".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // URLs are shown to people; header values never are.
        let url = shown(&url);
        let why = "it holds a user or a password: give them as a header, `authorization`".to_owned();
        return Err(TelemetryError::Address { url, why });
    }
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    for (name, value) in &target.headers {
        let unfit = || TelemetryError::Header { name: name.clone() };
        let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| unfit())?;
        value.set_sensitive(true);
        headers.insert(HeaderName::try_from(name.as_str()).map_err(|_| unfit())?, value);
    }
    Ok((url, headers))
}

fn taken(answer: &[u8]) -> Sent {
    match not_taken(answer) {
        Some((rejected, why)) => Sent::Taken { rejected, why: log_excerpt(why.as_bytes()) },
        None => Sent::Taken { rejected: 0, why: String::new() },
    }
}

/// A random part of the wait, between half of it and all of it, so that rejected clients do not all return at once.
fn jittered(wait: Duration, passed: Duration) -> Duration {
    let half = wait / 2;
    let share = passed.subsec_nanos() % 1000;
    half.saturating_add(half.saturating_mul(share) / 1000)
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// A URL without its possibly secret parts.
fn shown(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), url.authority().rsplit('@').next().unwrap_or_default(), url.path())
}

/// The start of a response, made safe for a log line.
fn log_excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|c| !c.is_control()).take(MAX_REPORTED_CHARS).collect()
}

fn client(config: &TelemetryConfig, tls: bool) -> Result<Client, TelemetryError> {
    let failed = |why: String| TelemetryError::Client { why };
    let mut builder = Client::builder()
        // A secret header must not follow a redirect to another host.
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .timeout(config.timeout)
        .no_proxy();
    builder = match &config.extra_roots_pem {
        Some(pem) => {
            let found = reqwest::Certificate::from_pem_bundle(pem).ok().filter(|found| !found.is_empty());
            let found = found
                .ok_or_else(|| failed("the file of the authority holds no certificate in PEM".to_owned()))?;
            builder.tls_certs_merge(found)
        }
        None if !tls => builder.tls_certs_only([]),
        None => builder,
    };
    builder.build().map_err(|error| failed(cause(&error)))
}

/// The root cause of an error, such as "connection refused" instead of "error sending request".
fn cause(error: &reqwest::Error) -> String {
    let mut last: &dyn Error = error;
    while let Some(below) = last.source() {
        last = below;
    }
    explained(&last.to_string())
}

/// A cause with the way out, if a certificate was refused.
fn explained(cause: &str) -> String {
    let Some(fault) = cause.strip_prefix("invalid peer certificate: ") else { return cause.to_owned() };
    let fault = fault.trim_end_matches('.');
    format!(
        "its TLS certificate was refused ({fault}). It must be valid today, be for the host in the address, and be signed by an \
         authority of this machine or of the file in `telemetry.ca_file`. If the authority is yours, name the PEM file with its \
         certificate as `telemetry.ca_file`"
    )
}

#[cfg(test)]
mod tests {
    use super::explained;

    #[test]
    fn a_refused_certificate_is_explained_with_the_way_out() {
        let why = explained("invalid peer certificate: UnknownIssuer");
        for words in ["(UnknownIssuer)", "authority of this machine", "PEM file", "`telemetry.ca_file`"] {
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(explained("Connection refused (os error 111)"), "Connection refused (os error 111)");
    }
}
