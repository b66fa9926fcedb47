//! Questions to a server that are not calls: its models and its health. Errors are text that names what may be wrong in
//! the configuration. Must not know calls.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::Dialect;
use headrace_engine_api::{RelayError, RelayWait};
use http::header::ACCEPT;
use http::{HeaderValue, Method};
use reqwest::{Body, Request, Url};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::address::shown;
use crate::body::read_some;
use crate::fault;
use crate::kind::UpstreamKind;
use crate::listing::{ListBody, ListingPage, MAX_MODELS, ModelListing};
use crate::server::UpstreamServer;

/// Maximum duration of one question.
const PROBE_WAIT: Duration = Duration::from_secs(10);
/// Maximum size of a model list, in bytes.
const MAX_LIST_BYTES: usize = 8 << 20;
/// Maximum number of pages of a list that are read.
const MAX_PAGES: usize = 20;
/// Maximum number of bytes read from a health check's answer. The rest is left unread.
const MAX_HEALTH_BYTES: usize = 64 << 10;
/// Maximum number of characters of a server's answer that operators see.
const SAID_CHARS: usize = 300;

/// Why a question got no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeError {
    /// The server could not be reached, or did not answer.
    Unreachable(RelayError),
    /// The server answered with an error status.
    Status {
        /// The status.
        status: u16,
        /// The text of the answer, without markup.
        said: String,
        /// What may be wrong in the configuration.
        hint: Option<String>,
    },
    /// The server answered something other than what was asked for.
    NotUnderstood {
        /// What the answer is.
        what: String,
        /// What may be wrong in the configuration.
        hint: Option<String>,
    },
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = match self {
            Self::Unreachable(error) => return error.fmt(f),
            Self::Status { status, said, hint } if said.is_empty() => {
                write!(f, "{status}, and nothing else")?;
                hint
            }
            Self::Status { status, said, hint } => {
                write!(f, "{status}: {said}")?;
                hint
            }
            Self::NotUnderstood { what, hint } => {
                f.write_str(what)?;
                hint
            }
        };
        hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl std::error::Error for ProbeError {}

/// Returns the models that a server lists.
pub(crate) async fn models(server: &UpstreamServer) -> Result<ModelListing, ProbeError> {
    let mut listing = ModelListing::default();
    let mut after: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let mut url = server.address.api("models");
        if server.spec.kind == UpstreamKind::Anthropic {
            url.query_pairs_mut().append_pair("limit", "1000");
        }
        if let Some(after) = &after {
            url.query_pairs_mut().append_pair("after_id", after);
        }
        let asked = url.path().to_owned();
        let body = list(server, url).await?;
        let read = match json::<ListBody<'_>>(server, &asked, &body) {
            Err(_) if serde_json::from_slice::<IgnoredAny>(&body).is_ok() => ListBody::default(),
            read => read?,
        };
        let page = ListingPage::read(&read, server.spec.kind)
            .map_err(|(what, hint)| ProbeError::NotUnderstood { what, hint })?;
        listing.add(page.listing);
        match page.next {
            // Also stops if a server's pages form a loop.
            Some(next) if after.as_ref() != Some(&next) && listing.len() < MAX_MODELS => after = Some(next),
            _ => break,
        }
    }
    if let (UpstreamKind::LlamaCpp, [only]) = (server.spec.kind, listing.models.as_mut_slice()) {
        only.context_window = slot_window(server).await.or(only.context_window);
    }
    Ok(listing)
}

/// Checks whether a server is healthy, at the endpoint that its kind has for that.
pub(crate) async fn health(server: &UpstreamServer) -> Result<(), ProbeError> {
    let place = match server.spec.kind {
        UpstreamKind::Vllm | UpstreamKind::Sglang | UpstreamKind::LlamaCpp => server.address.server("health"),
        UpstreamKind::Headrace => server.address.server("readyz"),
        UpstreamKind::OpenAi | UpstreamKind::Anthropic => server.address.api("models"),
    };
    get(server, place, ProbeBound { bytes: MAX_HEALTH_BYTES, ..ProbeBound::of(server) }).await.map(drop)
}

/// Returns the context that a call may use at llama.cpp. Its model list states only the context of the training.
async fn slot_window(server: &UpstreamServer) -> Option<u32> {
    #[derive(Deserialize)]
    struct LlamaProps {
        default_generation_settings: LlamaSettings,
    }
    #[derive(Deserialize)]
    struct LlamaSettings {
        n_ctx: u64,
    }
    let url = server.address.server("props");
    let asked = url.path().to_owned();
    let body = list(server, url).await.ok()?;
    let props: LlamaProps = json(server, &asked, &body).ok()?;
    u32::try_from(props.default_generation_settings.n_ctx).ok()
}

/// Sends a GET request for a body that is small enough to be kept whole.
async fn list(server: &UpstreamServer, url: Url) -> Result<Bytes, ProbeError> {
    let body = get(server, url, ProbeBound::of(server)).await?;
    if body.len() >= MAX_LIST_BYTES {
        let error = RelayError::TooLarge { what: "body", limit: MAX_LIST_BYTES };
        return Err(ProbeError::Unreachable(error));
    }
    Ok(body)
}

/// Parses JSON. Only the needed fields are kept.
fn json<'a, T: Deserialize<'a>>(
    server: &UpstreamServer,
    asked: &str,
    body: &'a Bytes,
) -> Result<T, ProbeError> {
    serde_json::from_slice(body).map_err(|_| ProbeError::NotUnderstood {
        what: not_json(server, body),
        hint: Some(format!("is `{asked}` the right path, and nothing else in between?")),
    })
}

fn not_json(server: &UpstreamServer, body: &Bytes) -> String {
    let text = server.redactor.text(&String::from_utf8_lossy(body));
    if text.trim().is_empty() {
        return "an empty body".to_owned();
    }
    match title(&text) {
        Some(title) => format!("not JSON: an HTML page titled \"{title}\""),
        None if text.trim_start().starts_with('<') => "not JSON: an HTML page".to_owned(),
        None => format!("not JSON: {}", shortened(&text)),
    }
}

/// Limits on the size of an answer and on the wait for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeBound {
    pub(crate) bytes: usize,
    pub(crate) wait: Duration,
}

impl ProbeBound {
    fn of(server: &UpstreamServer) -> Self {
        Self { bytes: MAX_LIST_BYTES, wait: PROBE_WAIT.min(server.spec.timeouts.head) }
    }
}

/// Sends a GET request and returns the body of a successful answer, cut at the limit.
pub(crate) async fn get(server: &UpstreamServer, url: Url, bound: ProbeBound) -> Result<Bytes, ProbeError> {
    let unreachable = ProbeError::Unreachable;
    let asked = url.path().to_owned();
    let mut request = Request::new(Method::GET, url);
    *request.headers_mut() = server.headers(server.spec.kind.dialect());
    request.headers_mut().entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
    let wait = bound.wait;
    let answer = tokio::time::timeout(wait, server.client().execute(request)).await;
    let answer = answer
        .map_err(|_| unreachable(RelayError::Timeout { what: RelayWait::Head, after: wait }))?
        .map_err(|error| {
            let at = server.address.authority();
            let error = fault::before_the_head(&error, &at, &server.spec);
            server.counters.unanswered(&error);
            unreachable(error)
        })?;
    server.counters.received(0);
    let (head, mut body) = http::Response::<Body>::from(answer).into_parts();
    let status = head.status.as_u16();
    if let 300..=399 = status {
        let to = head.headers.get("location").and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
        let to = server.redactor.text(&shown(to));
        return Err(unreachable(RelayError::Redirect { status, to }));
    }
    let is_success = head.status.is_success();
    let most = if is_success { bound.bytes } else { bound.bytes.min(server.spec.bounds.error_bytes) };
    let body = read_some(&mut body, most, wait).await;
    if is_success {
        return Ok(body);
    }
    let said = said(&server.redactor.text(&String::from_utf8_lossy(&body)));
    Err(ProbeError::Status { status, said, hint: hint(server, status, &asked, &body) })
}

/// Returns the message of an error body, without its envelope.
fn said(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let error = value.get("error").unwrap_or(&value);
    let message = [error.get("message"), error.get("detail"), Some(error)];
    let message = message.into_iter().flatten().find_map(Value::as_str);
    match message.map(str::to_owned).or_else(|| title(body)) {
        Some(message) => shortened(&message),
        None => shortened(body),
    }
}

/// Returns what may be wrong in the configuration, judged by the server's refusal.
fn hint(server: &UpstreamServer, status: u16, asked: &str, body: &[u8]) -> Option<String> {
    let kind = server.spec.kind;
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let anthropic = value.get("type").and_then(Value::as_str) == Some("error");
    if anthropic && kind.dialect() != Dialect::Anthropic && kind != UpstreamKind::Headrace {
        return Some(format!("it answers as Anthropic's servers do; it is configured as `{kind}`"));
    }
    match status {
        401 | 403 if server.spec.key.is_none() => Some("no key is configured for it".to_owned()),
        401 | 403 => Some("it refuses the key that is configured".to_owned()),
        404 | 405 => Some(format!(
            "there is no `{asked}` there: is the address's path right, and is it of kind `{kind}`?"
        )),
        400 if String::from_utf8_lossy(body).contains("HTTPS") => {
            Some("write https:// in its address".to_owned())
        }
        _ => None,
    }
}

/// Returns the title of an HTML page.
fn title(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let begin = lower.find("<title")?;
    let begin = begin + lower.get(begin..)?.find('>')? + 1;
    let end = begin + lower.get(begin..)?.find("</title")?;
    text.get(begin..end).map(shortened)
}

/// One line of bounded length.
fn shortened(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().filter(|c| !c.is_control()));
        if let Some((cut, _)) = line.char_indices().nth(SAID_CHARS) {
            line.truncate(cut);
            line.push('…');
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_said_is_told_in_one_line() {
        for (body, told) in [
            ("", ""),
            (r#"{"error":{"message":"no\n such  key","type":"x"}}"#, "no such key"),
            (r#"{"error":"flat"}"#, "flat"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (r#"{"message":"top"}"#, "top"),
            ("<html><head><TITLE lang=en> 502 Bad\nGateway</TITLE></head>", "502 Bad Gateway"),
            ("plain\ttext", "plain text"),
        ] {
            assert_eq!(said(body), told, "{body}");
        }
        assert_eq!(said(&"é".repeat(1000)).chars().count(), SAID_CHARS + 1);
    }
}
