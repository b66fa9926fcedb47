//! The server: sends one call and receives it to its end, with a time for every event. Judges nothing, and retries only
//! a call that found its connection closed. The receiving path parses each event once, without an allocation per event.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headrace_client::{Client, ClientConfig, ModelInfo, SseReader, causes, trusted};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use secrecy::ExposeSecret;

use crate::chunk::{AnswerChunk, ServerUsage, error_facts};
use crate::live::RunCounters;
use crate::{Api, BenchConfig, BenchError};

/// Maximum wait for the end of the body after the end of the stream. Reading it lets the connection be reused.
const BODY_END_WAIT: Duration = Duration::from_millis(50);
/// How long an idle connection is kept: less than the five seconds after which uvicorn, Node and llama-server close it.
/// So no call is lost on a connection that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum bytes of an error body, and of a whole answer.
const MAX_ERROR_BYTES: usize = 64 << 10;
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Maximum initial capacity for a call's event times.
const FIRST_EVENTS: u32 = 8_192;

/// A server that is ready to be called.
#[derive(Debug)]
pub(crate) struct BenchTarget {
    http: reqwest::Client,
    base: String,
    path: &'static str,
    stream: bool,
    timeout: Duration,
    /// See [`crate::Generator::sent_again`].
    sent_again: AtomicU64,
}

/// A received call.
#[derive(Debug, Clone)]
pub(crate) struct HeardCall {
    /// When the call was sent.
    pub(crate) sent: Instant,
    /// When each event with content arrived, in microseconds after sending.
    pub(crate) events: Vec<u32>,
    /// When the call ended, after sending.
    pub(crate) end: Duration,
    pub(crate) usage: Option<ServerUsage>,
    /// The text of the answer, if the caller needs it.
    pub(crate) answer: String,
    pub(crate) ending: CallEnd,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallEnd {
    Ok,
    Failed(CallFailure),
    /// The run ended first.
    CutOff,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallFailure {
    /// The class that failures are counted by.
    pub(crate) class: String,
    pub(crate) message: String,
    /// The status, if there was an answer.
    pub(crate) status: Option<u16>,
}

impl CallFailure {
    fn new(class: &str, message: impl Into<String>) -> Self {
        Self { class: class.to_owned(), message: message.into(), status: None }
    }
}

impl HeardCall {
    /// Starts a call that is sent now.
    pub(crate) fn begin(output: Option<u32>) -> Self {
        let room = usize::try_from(output.unwrap_or(0).min(FIRST_EVENTS)).unwrap_or(0);
        Self {
            sent: Instant::now(),
            events: Vec::with_capacity(room),
            end: Duration::ZERO,
            usage: None,
            answer: String::new(),
            ending: CallEnd::CutOff,
        }
    }
}

impl BenchTarget {
    /// Opens the server and selects the model. Connects only if the configuration names no model.
    pub(crate) async fn open(config: &BenchConfig) -> Result<(Self, ModelInfo), BenchError> {
        let mut known = ClientConfig::new(&config.url);
        known.key.clone_from(&config.key);
        known.ca_pem.clone_from(&config.ca_pem);
        let client = Client::new(known).map_err(BenchError::Server)?;
        let path = match config.api {
            Api::Chat => "v1/chat/completions",
            Api::Completions => "v1/completions",
        };
        let model = match &config.model {
            Some(name) => ModelInfo { id: name.clone(), context_window: None, endpoints: None },
            None => {
                let models = client.models().await.map_err(BenchError::Server)?;
                let short = path.trim_start_matches("v1/");
                models.into_iter().find(|model| model.answers_at(short)).ok_or(BenchError::NoModel)?
            }
        };
        let http = http(config, client.base())?;
        let (stream, timeout) = (config.stream, config.timeout);
        let sent_again = AtomicU64::new(0);
        Ok((Self { http, base: client.base().to_owned(), path, stream, timeout, sent_again }, model))
    }

    /// The server's address without `/v1`.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Number of requests that were resent so far.
    pub(crate) fn sent_again(&self) -> u64 {
        self.sent_again.load(Ordering::Relaxed)
    }

    /// The endpoint's path.
    pub(crate) fn endpoint(&self) -> String {
        format!("/{}", self.path)
    }

    /// Sends a call and receives it to its end. If the future is dropped, `heard` has what arrived so far.
    pub(crate) async fn call(&self, body: Vec<u8>, keep: bool, live: &RunCounters, heard: &mut HeardCall) {
        let sent = heard.sent;
        let exchange = async {
            let response = self.post(self.path, body).await?;
            let mut hearing = AnswerListener { heard: &mut *heard, keep, live, done: false, failure: None };
            if self.stream { hearing.stream(response).await } else { hearing.whole(response).await }
        };
        let ending = match tokio::time::timeout(self.timeout, exchange).await {
            Ok(Ok(())) => CallEnd::Ok,
            Ok(Err(failure)) => CallEnd::Failed(failure),
            Err(_) => CallEnd::Failed(CallFailure::new("timeout", "it took longer than --timeout")),
        };
        if heard.end.is_zero() {
            heard.end = sent.elapsed();
        }
        heard.ending = ending;
    }

    /// Sends one body and reads the whole answer.
    pub(crate) async fn ask(&self, path: &str, body: Vec<u8>) -> Result<Vec<u8>, CallFailure> {
        let exchange = async { read(self.post(path, body).await?, MAX_ANSWER_BYTES).await };
        let late = |_| CallFailure::new("timeout", "it took longer than --timeout");
        tokio::time::timeout(self.timeout, exchange).await.map_err(late)?
    }

    /// Like [`BenchTarget::ask`], for the endpoint under load.
    pub(crate) async fn ask_endpoint(&self, body: Vec<u8>) -> Result<Vec<u8>, CallFailure> {
        self.ask(self.path, body).await
    }

    /// Sends a request. If the server closes the connection without an answer, resends the request on another
    /// connection. Some servers close a kept-alive connection just when the next call arrives, and client libraries
    /// retry as well.
    async fn post(&self, path: &str, body: Vec<u8>) -> Result<Response, CallFailure> {
        let url = format!("{}/{path}", self.base);
        let request = self.http.post(url).header(CONTENT_TYPE, "application/json").body(body);
        let request = request.build().map_err(|error| broken(&error))?;
        // The body is shared, not copied.
        let again = request.try_clone();
        let response = match (self.http.execute(request).await, again) {
            (Err(error), Some(again)) if closed_unanswered(&error) => {
                self.sent_again.fetch_add(1, Ordering::Relaxed);
                self.http.execute(again).await
            }
            (response, _) => response,
        };
        let response = response.map_err(|error| broken(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        // If the body breaks off, the part that arrived is still the best explanation.
        let body = read(response, MAX_ERROR_BYTES).await.unwrap_or_default();
        Err(refused(status, &body))
    }
}

/// A separate HTTP client that retries nothing by itself and uses no proxy.
fn http(config: &BenchConfig, base: &str) -> Result<reqwest::Client, BenchError> {
    let wrong = |why: String| BenchError::Server(headrace_client::ClientError::Config(why));
    let mut headers = HeaderMap::new();
    if let Some(key) = &config.key {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
            .map_err(|_| wrong("the API key has characters that no key has".to_owned()))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let mut builder = reqwest::Client::builder()
        .default_headers(headers)
        .user_agent(concat!("headrace-bench/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        // One connection per call in flight, even if TLS could negotiate HTTP/2.
        .http1_only()
        .connect_timeout(config.timeout)
        .pool_max_idle_per_host(usize::MAX)
        .pool_idle_timeout(IDLE_TIMEOUT)
        // A proxy would be measured together with the server.
        .no_proxy()
        .tcp_nodelay(true);
    builder =
        trusted(builder, base.starts_with("https:"), config.ca_pem.as_deref()).map_err(BenchError::Server)?;
    builder.build().map_err(|error| wrong(causes(&error)))
}

/// Parses an answer while it arrives.
struct AnswerListener<'h> {
    heard: &'h mut HeardCall,
    keep: bool,
    live: &'h RunCounters,
    /// The stream has sent its end mark.
    done: bool,
    failure: Option<CallFailure>,
}

impl AnswerListener<'_> {
    async fn stream(&mut self, mut response: Response) -> Result<(), CallFailure> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        if !kind.starts_with("text/event-stream") {
            let what = format!("a stream was asked for and `{kind}` came");
            return Err(CallFailure::new("no stream", what));
        }
        let mut reader = SseReader::new();
        let mut finished = false;
        while let Some(bytes) = response.chunk().await.map_err(|error| cut_off(&error))? {
            let now = self.heard.sent.elapsed();
            let at = u32::try_from(now.as_micros()).unwrap_or(u32::MAX);
            let read = reader.read(&bytes, |_, data| finished |= self.event(data.as_bytes(), at));
            read.map_err(|error| CallFailure::new("protocol", error.to_string()))?;
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.done {
                self.heard.end = now;
                let _ = tokio::time::timeout(BODY_END_WAIT, response.chunk()).await;
                return Ok(());
            }
        }
        // Some servers omit the end mark. A finish reason and a clean end are enough.
        match finished {
            true => Ok(()),
            false => Err(CallFailure::new("cut off", "the stream ended before the answer did")),
        }
    }

    /// Processes one event. Returns whether it has a finish reason.
    fn event(&mut self, data: &[u8], at: u32) -> bool {
        if self.done || self.failure.is_some() {
            return false;
        }
        if data == b"[DONE]" {
            self.done = true;
            return false;
        }
        let chunk = match AnswerChunk::read(data) {
            Ok(chunk) => chunk,
            Err(error) => {
                self.failure = Some(CallFailure::new("protocol", format!("an event is no chunk: {error}")));
                return false;
            }
        };
        if chunk.error.is_some() {
            let (code, message) = error_facts(data);
            let class = format!("in stream: {}", code.as_deref().unwrap_or("error"));
            self.failure = Some(CallFailure { class, message, status: None });
            return false;
        }
        if chunk.has_content() {
            self.heard.events.push(at);
            self.live.events.fetch_add(1, Ordering::Relaxed);
        }
        self.take(&chunk);
        chunk.is_finish()
    }

    async fn whole(&mut self, response: Response) -> Result<(), CallFailure> {
        let body = read(response, MAX_ANSWER_BYTES).await?;
        self.heard.end = self.heard.sent.elapsed();
        let at = u32::try_from(self.heard.end.as_micros()).unwrap_or(u32::MAX);
        let chunk = AnswerChunk::read(&body)
            .map_err(|error| CallFailure::new("protocol", format!("the answer is no completion: {error}")))?;
        self.heard.events.push(at);
        self.live.events.fetch_add(1, Ordering::Relaxed);
        self.take(&chunk);
        Ok(())
    }

    fn take(&mut self, chunk: &AnswerChunk<'_>) {
        if let Some(usage) = chunk.usage() {
            self.heard.usage = Some(usage);
        }
        if self.keep && self.heard.answer.len() < MAX_ANSWER_BYTES {
            self.heard.answer.push_str(chunk.text());
        }
    }
}

async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, CallFailure> {
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(|error| cut_off(&error))? {
        if body.len().saturating_add(bytes.len()) > most {
            return Err(CallFailure::new("protocol", format!("the body is longer than {most} bytes")));
        }
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}

fn refused(status: StatusCode, body: &[u8]) -> CallFailure {
    let (code, message) = error_facts(body);
    let status = status.as_u16();
    let class = code.map_or_else(|| status.to_string(), |code| format!("{status} {code}"));
    CallFailure { class, message, status: Some(status) }
}

/// Returns `true` if the server closed the connection before the first byte of an answer.
fn closed_unanswered(error: &reqwest::Error) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(hyper::Error::is_incomplete_message)
}

fn broken(error: &reqwest::Error) -> CallFailure {
    CallFailure::new(if error.is_connect() { "connect" } else { "connection" }, causes(error))
}

fn cut_off(error: &reqwest::Error) -> CallFailure {
    CallFailure::new("cut off", causes(error))
}
