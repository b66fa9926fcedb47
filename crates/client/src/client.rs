//! The connection to one server: addresses, the key, requests, and everything before the first byte of an answer. Knows
//! nothing of conversations.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chat_bodies::{ChatMessage, ChatRequest};
use bytes::Bytes;
use headrace_domain::is_blank;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;

use crate::connect::{TimedConnections, TimedNames, Watch};
use crate::error::causes;
use crate::plain::plain;
use crate::sent::{NotedBody, Taken};
use crate::stream::Sent;
use crate::tls;
use crate::traced::TraceContext;
use crate::{ApiError, ChatStream, ClientError, RetryPolicy};

/// Maximum bytes of an error body that are read.
const MAX_ERROR_BYTES: usize = 1 << 20;
/// Maximum bytes of a list or a trace that are read.
const MAX_BODY_BYTES: usize = 32 << 20;

/// How to reach a server.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The server's address, such as `http://127.0.0.1:8080`, with or without a final `/v1`.
    pub url: String,
    /// The API key, if the server needs one.
    pub key: Option<SecretString>,
    /// PEM certificates of the authorities to trust instead of the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// Maximum time to connect.
    pub connect_timeout: Duration,
    /// Maximum silence of a server that is answering a request. While it streams, Headrace sends a keep-alive every 15
    /// s.
    pub idle_timeout: Duration,
    /// When to retry a call.
    pub retry: RetryPolicy,
}

impl ClientConfig {
    /// The defaults for a server: connect within 10 s, at most 120 s of silence.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            key: None,
            ca_pem: None,
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            retry: RetryPolicy::default(),
        }
    }
}

/// A client of one server. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    retry: RetryPolicy,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base.as_str()).field("retry", &self.retry).finish()
    }
}

/// A model in the list of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The model name to use in requests.
    pub id: String,
    /// Maximum tokens of prompt and answer together, if the server reports it.
    pub context_window: Option<u64>,
    /// The endpoints that serve the model, as paths after `/v1/`, if the server reports them. Headrace does.
    pub endpoints: Option<Vec<String>>,
}

impl ModelInfo {
    /// Reads an entry. `None` if it has another shape and so names no model.
    fn from_value(entry: &Value) -> Option<Self> {
        // `max_model_len` is vLLM's name; Headrace sends both.
        let context = entry.get("context_window").or_else(|| entry.get("max_model_len"));
        let id = entry.get("id")?.as_str()?.to_owned();
        let paths = entry.get("endpoints").and_then(Value::as_array);
        let endpoints =
            paths.map(|paths| paths.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        Some(Self { id, context_window: context.and_then(Value::as_u64), endpoints })
    }

    /// Returns `true` if the model takes chat requests, or if the server does not report endpoints.
    pub fn takes_conversations(&self) -> bool {
        self.answers_at("chat/completions")
    }

    /// Returns `true` if the endpoint `path` (after `/v1/`) serves the model, or if the server does not report
    /// endpoints.
    pub fn answers_at(&self, path: &str) -> bool {
        self.endpoints.as_ref().is_none_or(|paths| paths.iter().any(|known| known == path))
    }
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<Value>,
}

impl Client {
    /// Creates a client. Does not connect yet.
    ///
    /// # Errors
    /// [`ClientError::Config`] if the address is invalid, the key has characters not allowed in a header, or the TLS
    /// roots are missing.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let base = base_url(&config.url)?;
        let mut headers = HeaderMap::new();
        if let Some(key) = &config.key {
            let value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()));
            let mut value = value
                .map_err(|_| ClientError::Config("the API key has characters that no key has".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("headrace/", env!("CARGO_PKG_VERSION")))
            // A key must not follow a redirect to another host.
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .http1_only()
            .connect_timeout(config.connect_timeout)
            .read_timeout(config.idle_timeout)
            .tcp_nodelay(true);
        builder = builder.dns_resolver(TimedNames).connector_layer(TimedConnections);
        builder = match base.scheme() {
            "https" => builder.tls_backend_preconfigured(tls::config(config.ca_pem.as_deref())?),
            _ => trusted(builder, false, config.ca_pem.as_deref())?,
        };
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| ClientError::Config(causes(&error)))?;
        Ok(Self { http, base, retry: config.retry })
    }

    /// The server's address, without `/v1`.
    pub fn base(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Sends a chat request with `stream` set and waits until the answer starts. Earlier failures are retried as the
    /// policy says. Dropping this future cancels the call.
    ///
    /// # Errors
    /// The last attempt's failure. A request with a blank user message is not sent.
    pub async fn chat(&self, request: &ChatRequest) -> Result<ChatStream, ClientError> {
        check_blank(request)?;
        let body = match request.stream {
            true => serde_json::to_vec(request),
            false => serde_json::to_vec(&ChatRequest { stream: true, ..request.clone() }),
        };
        let body =
            body.map_err(|error| ClientError::Config(format!("the request cannot be written: {error}")))?;
        let trace = TraceContext::new();
        let answered =
            self.send(Method::POST, "v1/chat/completions", Some(body.into()), trace.as_ref()).await?;
        let content_type = header(&answered.response, CONTENT_TYPE.as_str()).unwrap_or_default();
        if !content_type.starts_with("text/event-stream") {
            let what = format!("a stream was asked for and `{content_type}` came; is this an API server?");
            return Err(ClientError::Protocol(what));
        }
        let request_id = header(&answered.response, "x-request-id");
        let trace_id = trace.map(|trace| trace.trace_id().to_owned());
        Ok(ChatStream::new(answered.response, answered.sent, request_id, trace_id))
    }

    /// The models that the key may use.
    ///
    /// # Errors
    /// The last attempt's failure, or a response that is not a list of models.
    pub async fn models(&self) -> Result<Vec<ModelInfo>, ClientError> {
        let body = self.get("v1/models").await?;
        let list: ModelList = read_json(&body, "the list of models")?;
        Ok(list.data.iter().filter_map(ModelInfo::from_value).collect())
    }

    /// One model by its name, which may be an unlisted one such as an alias. `None` if the key may use no such model.
    ///
    /// # Errors
    /// The last attempt's failure, or a response that is not a model.
    pub async fn model(&self, name: &str) -> Result<Option<ModelInfo>, ClientError> {
        // Reject names that could be read as more of a path.
        let plain =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '@' | '/' | '+');
        if !name.chars().all(plain) || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Ok(None);
        }
        let body = match self.get(&format!("v1/models/{name}")).await {
            Err(ClientError::Api(error)) if error.status == Some(404) => return Ok(None),
            body => body?,
        };
        let entry: Value = read_json(&body, "the model")?;
        Ok(ModelInfo::from_value(&entry))
    }

    /// The trace of a request that the key's owner made (`GET /v1/requests/ID`).
    ///
    /// # Errors
    /// The last attempt's failure. Status 404 if the id is unknown, belongs to another owner, or is not recorded yet.
    pub async fn request_trace(&self, request_id: &str) -> Result<Value, ClientError> {
        let body = self.get(&format!("v1/requests/{}", plain_id(request_id, "req")?)).await?;
        read_json(&body, "the trace")
    }

    /// A public document at a path that begins with `/`, such as the keys that sign receipts.
    ///
    /// # Errors
    /// The last attempt's failure.
    pub async fn document(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        self.get(path.trim_start_matches('/')).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        let mut answered = self.send(Method::GET, path, None, None).await?;
        let (body, whole) = read_body(&mut answered.response, MAX_BODY_BYTES).await?;
        if whole { Ok(body) } else { Err(ClientError::Protocol(format!("more than {MAX_BODY_BYTES} bytes"))) }
    }

    /// Sends the request until a successful answer starts or the policy gives up.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        trace: Option<&TraceContext>,
    ) -> Result<Answered, ClientError> {
        let mut tried = 0_u32;
        loop {
            let at = Instant::now();
            let (watch, taken) = (Watch::default(), Taken::default());
            let mut request = self.request(method.clone(), path)?;
            if let Some(body) = &body {
                let noted = NotedBody::new(body.clone(), Arc::clone(&taken));
                request = request.header(CONTENT_TYPE, "application/json").body(reqwest::Body::wrap(noted));
            }
            if let Some(header) = trace.and_then(TraceContext::header) {
                request = request.header("traceparent", header);
            }
            let error = match watch.over(self.send_once(request)).await {
                Ok(response) => {
                    let sent =
                        Sent { at, connect: watch.times(), taken: taken.get().copied(), retries: tried };
                    return Ok(Answered { response, sent });
                }
                Err(error) => error,
            };
            tried = tried.saturating_add(1);
            // Without randomness all clients wait equally long, which is worse but not wrong.
            let random = getrandom::u32().unwrap_or(u32::MAX);
            match self.retry.wait(&error, tried, random) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(error),
            }
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, ClientError> {
        let url = self.base.join(path).map_err(|error| ClientError::Config(error.to_string()))?;
        Ok(self.http.request(method, url))
    }

    /// Reads the JSON of a response.
    pub(crate) async fn read_value(&self, mut response: Response, what: &str) -> Result<Value, ClientError> {
        let (body, _) = read_body(&mut response, MAX_BODY_BYTES).await?;
        read_json(&body, what)
    }

    pub(crate) async fn send_once(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let mut response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let request_id = header(&response, "x-request-id");
        let retry_after = retry_after(&response);
        // If the body breaks off, the part that arrived is still the best explanation.
        let body = read_body(&mut response, MAX_ERROR_BYTES).await.map(|(body, _)| body).unwrap_or_default();
        Err(ClientError::Api(Box::new(ApiError::from_body(status, &body, request_id, retry_after))))
    }

    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        let (base, causes) = (self.base(), causes(error));
        if error.is_builder() {
            ClientError::Config(causes)
        } else if let Some(what) = plain(base, &causes) {
            ClientError::Tls(what)
        } else if error.is_connect() {
            ClientError::Connection(format!("cannot connect to {base}: {causes}"))
        } else if error.is_timeout() {
            ClientError::Timeout(format!("no answer in time from {base}: {causes}"))
        } else {
            ClientError::Broken(format!("the connection broke before an answer from {base}: {causes}"))
        }
    }
}

/// A response with a success status.
pub(crate) struct Answered {
    pub(crate) response: Response,
    sent: Sent,
}

/// Refuses a request with a blank user message, so that it is neither sent nor charged.
fn check_blank(request: &ChatRequest) -> Result<(), ClientError> {
    let blank = |message: &ChatMessage| message.role == "user" && is_blank(&message.content);
    let place = match request.messages.iter().position(blank) {
        Some(at) => {
            format!("`messages[{at}].content` is empty, or holds only characters that are not visible")
        }
        None if request.messages.is_empty() => "`messages` has no message".to_owned(),
        None => return Ok(()),
    };
    Err(ClientError::Request(format!("{place}: nothing was sent. Write what the model is to read.")))
}

/// Makes a client trust the authorities of a PEM text instead of the system's. Without TLS no authorities are loaded,
/// so a machine that has none can still connect to itself.
///
/// # Errors
/// [`ClientError::Config`] if the text has no certificate.
pub fn trusted(
    builder: reqwest::ClientBuilder,
    tls: bool,
    ca_pem: Option<&[u8]>,
) -> Result<reqwest::ClientBuilder, ClientError> {
    let Some(pem) = ca_pem else {
        return Ok(if tls { builder } else { builder.tls_certs_only([]) });
    };
    let certificates = reqwest::Certificate::from_pem_bundle(pem).ok().filter(|found| !found.is_empty());
    let certificates = certificates.ok_or_else(|| {
        ClientError::Config("the file of the authority holds no certificate in PEM".to_owned())
    })?;
    Ok(builder.tls_certs_only(certificates))
}

/// Normalises an address: exactly one slash at its end, and no `v1`. Loopback addresses need no scheme. Other addresses
/// need one, so that a key is never sent in clear text by default.
fn base_url(text: &str) -> Result<Url, ClientError> {
    let bad = |why: &str| ClientError::Config(format!("`{text}` is no server address: {why}"));
    let trimmed = text.trim().trim_end_matches('/');
    let trimmed = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
    if !trimmed.contains("://") {
        let here = Url::parse(&format!("http://{trimmed}/")).ok().filter(is_loopback);
        return here.ok_or_else(|| bad("write http:// or https:// before it"));
    }
    let base = Url::parse(&format!("{trimmed}/")).map_err(|error| bad(&error.to_string()))?;
    if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
        return Err(bad("it must begin with http:// or https://"));
    }
    if base.query().is_some() || base.fragment().is_some() {
        return Err(bad("it must not have a query or a fragment"));
    }
    Ok(base)
}

fn is_loopback(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn header(response: &Response, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// The wait from `retry-after-ms` (OpenAI's, more precise) or from `Retry-After` in seconds. A date is not supported
/// and ignored.
fn retry_after(response: &Response) -> Option<Duration> {
    let millis = header(response, "retry-after-ms").and_then(|text| text.trim().parse().ok());
    let seconds = || header(response, RETRY_AFTER.as_str())?.trim().parse().ok().map(Duration::from_secs);
    millis.map(Duration::from_millis).or_else(seconds)
}

/// The body up to `max` bytes, and whether that was all of it.
async fn read_body(response: &mut Response, max: usize) -> Result<(Vec<u8>, bool), ClientError> {
    let mut body = Vec::new();
    let broken = |error: reqwest::Error| ClientError::Protocol(causes(&error));
    while let Some(bytes) = response.chunk().await.map_err(broken)? {
        let room = max.saturating_sub(body.len());
        body.extend(bytes.iter().take(room));
        if bytes.len() > room {
            return Ok((body, false));
        }
    }
    Ok((body, true))
}

/// Checks that an id is a single, safe segment of a path.
///
/// # Errors
/// [`ClientError::Config`] with an example of a valid id.
pub(crate) fn plain_id<'a>(id: &'a str, prefix: &str) -> Result<&'a str, ClientError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if id.is_empty() || !id.chars().all(plain) {
        let joint = if prefix == "file" { '-' } else { '_' };
        return Err(ClientError::Config(format!(
            "`{id}` is no id: they look like `{prefix}{joint}0123abcd`"
        )));
    }
    Ok(id)
}

pub(crate) fn read_json<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::Protocol(format!("{what}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let rows = [
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8080/")),
            ("http://127.0.0.1:8080/v1/", Some("http://127.0.0.1:8080/")),
            (" https://host/api/v1 ", Some("https://host/api/")),
            ("127.0.0.1:8080", Some("http://127.0.0.1:8080/")),
            ("localhost:8080/v1", Some("http://localhost:8080/")),
            ("[::1]:8080", Some("http://[::1]:8080/")),
            ("example.com:8080", None),
            ("example.com", None),
            ("ftp://host", None),
            ("http://host/?a=b", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(base_url(text).ok().as_ref().map(Url::as_str), expected, "{text}");
        }
        for (text, loopback) in [
            ("http://[::1]:1", true),
            ("http://127.9.9.9", true),
            ("http://localhost", true),
            ("http://a.b", false),
        ] {
            assert_eq!(is_loopback(&base_url(text).unwrap()), loopback, "{text}");
        }
    }

    #[test]
    fn an_authority_is_read_or_refused() {
        let of = |pem: &str| {
            let ca_pem = Some(pem.as_bytes().to_vec());
            Client::new(ClientConfig { ca_pem, ..ClientConfig::new("https://h") })
        };
        for bad in ["", "text", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"] {
            assert!(matches!(of(bad), Err(ClientError::Config(_))), "{bad}");
        }
    }

    #[test]
    fn keys_are_checked_and_not_shown() {
        let config =
            |key: &str| ClientConfig { key: Some(key.into()), ..ClientConfig::new("http://127.0.0.1:1") };
        assert!(matches!(Client::new(config("a\nb")), Err(ClientError::Config(_))));
        let shown =
            format!("{:?} {:?}", config("sk-very-secret"), Client::new(config("sk-very-secret")).unwrap());
        assert!(!shown.contains("very-secret"), "{shown}");
    }
}
