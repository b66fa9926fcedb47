//! From a call to the head of its answer: place, connection, request, and a check of the head. Must not know events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Dialect, RequestId};
use headrace_engine_api::{AnswerBounds, RelayError, RelayHead, RelayWait};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::Body as _;
use reqwest::{Body, Request, Url};
use tokio::time::Instant;

use crate::address::shown;
use crate::body::read_some;
use crate::fault;
use crate::gate::{ConcurrencySlot, GateTenant};
use crate::kind::UpstreamKind;
use crate::load;
use crate::load_gauge::LoadGauge;
use crate::retry_after::retry_after;
use crate::server::UpstreamServer;

/// Maximum time to read the body of an error.
const ERROR_WAIT: Duration = Duration::from_secs(10);
/// Bytes of an unusable answer that are shown to operators.
const BEGINNING_BYTES: usize = 512;
/// Longest request id that is accepted, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 200;
/// The id that an upstream gives a request: OpenAI's header, then Anthropic's.
static REQUEST_ID_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-request-id"), HeaderName::from_static("request-id")];

/// The request to send, for any purpose.
pub(crate) struct PostRequest {
    pub(crate) url: Url,
    pub(crate) dialect: Dialect,
    pub(crate) request: RequestId,
    pub(crate) body: Bytes,
    pub(crate) stream: bool,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) head_within: Option<Duration>,
    /// The tenant that the call is for.
    pub(crate) asker: GateTenant,
    /// The gauge of the model that is called.
    pub(crate) gauge: Arc<LoadGauge>,
    /// Limits on the size of the answer.
    pub(crate) bounds: AnswerBounds,
}

/// An answer whose head has arrived.
pub(crate) struct AnswerHead {
    pub(crate) head: RelayHead,
    pub(crate) body: Body,
    pub(crate) form: BodyForm,
    /// Length of the body in bytes, if the head states it.
    pub(crate) length: Option<u64>,
    /// Deadline for a whole answer.
    pub(crate) deadline: Instant,
    pub(crate) place: ConcurrencySlot,
}

/// The form of the body, as far as the head reveals it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyForm {
    /// One JSON object.
    Whole,
    /// Events, or one JSON object instead. The first byte decides.
    EventsOrWhole,
}

/// Sends a call and waits for the head of its answer.
///
/// # Errors
/// Every head that does not begin an answer.
pub(crate) async fn ask(
    server: Arc<UpstreamServer>,
    post: PostRequest,
    started: Instant,
) -> Result<AnswerHead, RelayError> {
    server.takes_calls()?;
    let own = if post.stream { server.spec.timeouts.head } else { server.spec.timeouts.whole };
    let bound = post.head_within.map_or(own, |within| within.min(own));
    let deadline = started + bound;
    let place = server.gate.enter(post.asker, deadline).await?;
    let (stream, gauge) = (post.stream, Arc::clone(&post.gauge));
    let headers = headers(&server, &post)?;
    let late = |_| RelayError::Timeout { what: RelayWait::Head, after: bound };
    let response = tokio::time::timeout_at(deadline, sent(&server, post, headers)).await.map_err(late)??;
    server.counters.received(0);
    let (head, mut body) = response.into_parts();
    let length = body.size_hint().exact();
    within_bounds(&head.headers, server.spec.bounds.head_bytes)?;
    refused(&server, head.status, &head.headers, &mut body).await?;
    load::record_headers(&gauge, &server, &head.headers);
    let form = match form(stream, &head.headers) {
        Ok(form) => form,
        Err(what) => {
            let beginning = read_some(&mut body, BEGINNING_BYTES, ERROR_WAIT).await;
            let beginning = server.redactor.text(&String::from_utf8_lossy(&beginning));
            return Err(RelayError::NotTheDialect { what, beginning });
        }
    };
    let head = RelayHead { request_id: request_id(&head.headers) };
    Ok(AnswerHead { head, body, form, length, deadline: started + server.spec.timeouts.whole, place })
}

/// Sends the request over a pooled plaintext connection if the server uses them, otherwise with the HTTP library.
async fn sent(
    server: &UpstreamServer,
    post: PostRequest,
    headers: HeaderMap,
) -> Result<http::Response<Body>, RelayError> {
    if let Some(clear) = &server.clear {
        let response = clear.post(post.url.path(), headers, post.body).await;
        return response
            .map(|response| response.map(Body::wrap))
            .map_err(|error| fault::before_the_head(&error, &server.address.authority(), &server.spec));
    }
    let mut request = Request::new(Method::POST, post.url);
    *request.headers_mut() = headers;
    *request.body_mut() = Some(Body::from(post.body));
    let response = server.client().execute(request).await;
    response
        .map(http::Response::<Body>::from)
        .map_err(|error| fault::before_the_head(&error, &server.address.authority(), &server.spec))
}

fn headers(server: &UpstreamServer, post: &PostRequest) -> Result<HeaderMap, RelayError> {
    // A request id has only letters, digits and `_`, which are valid in a header.
    let id = HeaderValue::try_from(post.request.to_string()).unwrap_or(HeaderValue::from_static(""));
    let mut headers = server.call_headers(post.dialect, post.stream, id);
    if server.spec.kind == UpstreamKind::Vllm && server.spec.load_every.is_zero() {
        // If load polling is off, the answer's head can report the load.
        headers.insert(load::FORMAT_HEADER, HeaderValue::from_static("JSON"));
    }
    for (name, value) in &post.headers {
        let unfit =
            |_| RelayError::Connect { why: format!("the header `{name}` of the call cannot be sent") };
        let value = HeaderValue::try_from(value).map_err(|_| unfit(()))?;
        let header = HeaderName::try_from(*name).map_err(|_| unfit(()))?;
        // For a header that the upstream's configuration also sets, both values are sent. A value from the call alone
        // replaces ours.
        match server.has_own(name) {
            true => drop(headers.append(header, value)),
            false => drop(headers.insert(header, value)),
        }
    }
    Ok(headers)
}

/// Checks the size of the headers. The library has a limit of its own, which is larger than any that can be configured.
fn within_bounds(headers: &HeaderMap, limit: usize) -> Result<(), RelayError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > limit { Err(RelayError::TooLarge { what: "headers", limit }) } else { Ok(()) }
}

/// Returns an error for every status that is not an answer.
async fn refused(
    server: &UpstreamServer,
    status: StatusCode,
    headers: &HeaderMap,
    body: &mut Body,
) -> Result<(), RelayError> {
    let code = status.as_u16();
    match code {
        200..=203 => Ok(()),
        300..=399 => {
            let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).map_or("nowhere", str::trim);
            Err(RelayError::Redirect { status: code, to: server.redactor.text(&shown(to)) })
        }
        400..=599 => {
            let body = read_some(body, server.spec.bounds.error_bytes, ERROR_WAIT).await;
            server.counters.received(body.len());
            let body = server.redactor.bytes(body);
            Err(RelayError::Status { status: code, body, retry_after: retry_after(code, headers) })
        }
        _ => {
            let what = format!("the status {code}");
            Err(RelayError::NotTheDialect { what, beginning: String::new() })
        }
    }
}

/// Returns the form of the body, or why it is not an answer.
fn form(stream: bool, headers: &HeaderMap) -> Result<BodyForm, String> {
    let value = |name: HeaderName| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    if let Some(coding) =
        value(CONTENT_ENCODING).filter(|coding| !coding.trim().eq_ignore_ascii_case("identity"))
    {
        return Err(format!("it is compressed (`{}`), though we asked for it plain", shown(&coding)));
    }
    let said = value(CONTENT_TYPE).unwrap_or_default();
    if !stream && said == "application/json" {
        return Ok(BodyForm::Whole);
    }
    let kind = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "text/event-stream" if stream => Ok(BodyForm::EventsOrWhole),
        "text/event-stream" => Err("a stream of events, though a whole answer was asked for".to_owned()),
        // Some servers name no content type, or a generic one.
        "" | "application/json" | "text/plain" | "application/octet-stream" if stream => {
            Ok(BodyForm::EventsOrWhole)
        }
        "" | "application/json" | "text/plain" | "application/octet-stream" => Ok(BodyForm::Whole),
        "text/html" => Err("a page of HTML".to_owned()),
        other => Err(format!("content of the type `{}`", shown(other))),
    }
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = REQUEST_ID_HEADERS.iter().find_map(|name| headers.get(name))?.to_str().ok()?;
    let plain = id.len() <= MAX_REQUEST_ID_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic());
    (plain && !id.is_empty()).then(|| id.to_owned())
}

/// Returns the first bytes of an unusable answer as text.
pub(crate) fn beginning(server: &UpstreamServer, bytes: &Bytes) -> String {
    let first = bytes.get(..BEGINNING_BYTES.min(bytes.len())).unwrap_or_default();
    server.redactor.text(&String::from_utf8_lossy(first))
}
