//! Sends one body and says what came of it; tries again what may go well another time, at growing intervals. Must not know what
//! is in a body.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, StatusCode, Url};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Target, TelemetryConfig, TelemetryError};
use crate::proto::not_taken;

/// The wait before the first try again; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The most that is read of an answer.
const MOST_ANSWER_BYTES: usize = 64 << 10;
/// The most of an answer that is told.
const MOST_TOLD_CHARS: usize = 200;

/// One place that things are sent to.
pub(crate) struct Sender {
    client: Client,
    url: Url,
    headers: HeaderMap,
    retry_for: Duration,
}

/// What came of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Taken, but for so many of its parts.
    Taken { rejected: u64, why: String },
    /// Not taken, and never will be.
    Rejected(String),
    /// Not taken as long as it was tried.
    Failed(String),
}

/// Why one try came to nothing.
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

    /// Sends a body until it is taken, refused for good, or has been tried for long enough; and only once more when `closing`
    /// says that there is no time left.
    pub(crate) async fn send(&self, body: Bytes, closing: &mut watch::Receiver<bool>) -> Sent {
        let (began, mut wait) = (Instant::now(), FIRST_WAIT);
        loop {
            // Whoever would say so may be gone.
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
        // What shows a page is a proxy's or a portal's, and no receiver, whatever its status says.
        let is_page = kind.is_some_and(|kind| kind.to_ascii_lowercase().contains("html"));
        let mut bytes = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MOST_ANSWER_BYTES {
                break;
            }
        }
        if status.is_success() && !is_page {
            // An empty answer is a whole one.
            return Ok(bytes);
        }
        let why = format!("{} answered {status}: {}", shown(&self.url), told(&bytes));
        // <https://opentelemetry.io/docs/specs/otlp/#failures-1>: no other status may be tried again.
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

/// Where a target is, and what goes there with each body.
pub(crate) fn headers(target: &Target) -> Result<(Url, HeaderMap), TelemetryError> {
    let address = |why: String| TelemetryError::Address { url: target.url.clone(), why };
    let url = Url::parse(&target.url).map_err(|error| address(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(address("it must begin with http:// or https://".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // An address is shown; a header never is.
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
        Some((rejected, why)) => Sent::Taken { rejected, why: told(why.as_bytes()) },
        None => Sent::Taken { rejected: 0, why: String::new() },
    }
}

/// Between half of a wait and all of it, so that many who were turned away do not come back at once.
fn jittered(wait: Duration, passed: Duration) -> Duration {
    let half = wait / 2;
    let share = passed.subsec_nanos() % 1000;
    half.saturating_add(half.saturating_mul(share) / 1000)
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// An address without what may be secret in it.
fn shown(url: &Url) -> String {
    format!("{}://{}{}", url.scheme(), url.authority().rsplit('@').next().unwrap_or_default(), url.path())
}

/// The beginning of what was answered, fit for a line of a log.
fn told(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|c| !c.is_control()).take(MOST_TOLD_CHARS).collect()
}

fn client(config: &TelemetryConfig, tls: bool) -> Result<Client, TelemetryError> {
    let failed = |why: String| TelemetryError::Client { why };
    let mut builder = Client::builder()
        // A secret header must not follow to another host.
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

/// What is at the bottom of an error: that nobody listens, and not that sending failed.
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
