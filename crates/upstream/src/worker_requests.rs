//! Requests to a worker: each carries a ticket, and failures become errors. Must not know a job or the choice of a
//! connection.

use std::time::Duration;

use bytes::Bytes;
use headrace_domain::UnixNanos;
use headrace_engine_api::{RelayError, RelayWait};
use headrace_worker::{
    ABOUT_PATH, CONTENT_TYPE, JobRefusal, MAX_ABOUT_BYTES, MAX_REFUSAL_BYTES, MAX_WORDS_BYTES, PackedAssets,
    ProcessId, WORDS_PATH, WorkerInfo,
};
use http::header::{AUTHORIZATION, CONTENT_TYPE as CONTENT_TYPE_HEADER, DATE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use reqwest::{Body, Request};
use tokio::time::Instant;

use crate::body::read_some;
use crate::fault;
use crate::probe::ProbeError;
use crate::server::UpstreamServer;
use crate::worker_link::{OnConnection, WorkerLink};

/// The header with the parent span of the worker's spans.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Maximum time for a worker to describe itself.
const ABOUT_WAIT: Duration = Duration::from_secs(3);
/// Maximum time to download the tokenizer assets of a model.
const WORDS_WAIT: Duration = Duration::from_secs(60);
/// Maximum time to read a refusal.
const REFUSAL_WAIT: Duration = Duration::from_secs(5);
/// Clock difference in seconds above which an error mentions it.
const CLOCKS_APART_S: u64 = 25;

/// A worker's answer.
pub(crate) struct WorkerAnswer {
    pub(crate) body: Body,
    /// Keeps the job counted on its connection while the body is read.
    pub(crate) on: OnConnection,
}

/// Why a worker gave no usable answer.
pub(crate) enum WorkerRefusal {
    /// An error between this process and the worker.
    Relay(RelayError),
    /// The worker refused, with an HTTP status.
    Refused(u16, JobRefusal),
}

/// Sends a request and waits for a successful head. If the ticket names another process than the worker's, the worker
/// does nothing and returns its own process id. The request is then repeated once.
pub(crate) async fn ask(
    server: &UpstreamServer,
    asked: (Method, &str),
    body: Vec<u8>,
    trace: Option<&str>,
    now: UnixNanos,
    within: Duration,
) -> Result<WorkerAnswer, WorkerRefusal> {
    let broken = |why: &str| WorkerRefusal::Relay(RelayError::Connect { why: why.to_owned() });
    let line = server.line.as_ref().ok_or_else(|| broken("there is no secret for it"))?;
    let (body, until) = (Bytes::from(body), Instant::now() + within);
    let process = line.process();
    let once = WorkerAttempt { server, line, trace, now, within };
    let first = once.ask(process, asked.clone(), body.clone(), until).await;
    let Err(NotTaken { unanswered, process: Some(reported) }) = first else {
        return first.map_err(|not_taken| not_taken.unanswered);
    };
    line.set_process(reported);
    if reported == process {
        return Err(unanswered);
    }
    once.ask(reported, asked, body, until).await.map_err(|not_taken| not_taken.unanswered)
}

/// The parts of a request that stay the same when it is repeated.
struct WorkerAttempt<'a> {
    server: &'a UpstreamServer,
    line: &'a WorkerLink,
    trace: Option<&'a str>,
    now: UnixNanos,
    within: Duration,
}

/// A request without an answer. `process` is set if the worker refused the ticket. It then holds the worker's process
/// id, or `Some(None)` if the worker sent none, as older ones do.
struct NotTaken {
    unanswered: WorkerRefusal,
    process: Option<Option<ProcessId>>,
}

impl From<WorkerRefusal> for NotTaken {
    fn from(unanswered: WorkerRefusal) -> Self {
        Self { unanswered, process: None }
    }
}

impl WorkerAttempt<'_> {
    async fn ask(
        &self,
        process: Option<ProcessId>,
        (method, path): (Method, &str),
        body: Bytes,
        until: Instant,
    ) -> Result<WorkerAnswer, NotTaken> {
        let Self { server, line, trace, now, within } = *self;
        let broken = |why: String| WorkerRefusal::Relay(RelayError::Connect { why });
        let spec = &server.spec;
        let (client, on) = line.connection(spec, server.address.is_tls()).map_err(WorkerRefusal::Relay)?;
        let ticket = line.ticket(process, (method.as_str(), path), &body, now).map_err(broken)?;
        let mut ticket = HeaderValue::try_from(ticket).map_err(|error| broken(error.to_string()))?;
        ticket.set_sensitive(true);
        let mut request = Request::new(method, server.address.server(path));
        let headers = request.headers_mut();
        *headers = server.own_headers();
        headers.insert(AUTHORIZATION, ticket);
        headers.insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(CONTENT_TYPE));
        // An invalid value is left out: only traces use it.
        headers.extend(trace.and_then(|trace| Some((TRACEPARENT, HeaderValue::from_str(trace).ok()?))));
        *request.body_mut() = Some(Body::from(body));
        let late = |_| WorkerRefusal::Relay(RelayError::Timeout { what: RelayWait::Head, after: within });
        let answer = tokio::time::timeout_at(until, client.execute(request)).await.map_err(late)?;
        let answer = answer.map_err(|error| {
            let at = server.address.authority();
            let error = fault::before_the_head(&error, &at, spec);
            server.counters.unanswered(&error);
            WorkerRefusal::Relay(error)
        })?;
        server.counters.received(0);
        let (head, mut body) = http::Response::<Body>::from(answer).into_parts();
        let status = head.status.as_u16();
        if status == 200 {
            return Ok(WorkerAnswer { body, on });
        }
        let said = read_some(&mut body, MAX_REFUSAL_BYTES, REFUSAL_WAIT).await;
        server.counters.received(said.len());
        if let 300..=399 = status {
            let to = "elsewhere".to_owned();
            return Err(WorkerRefusal::Relay(RelayError::Redirect { status, to }).into());
        }
        let refusal = serde_json::from_slice(&said).unwrap_or_else(|_| not_a_worker(status));
        let challenge = head.headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let process = match (challenge.and_then(ProcessId::of_challenge), &refusal) {
            (Some(process), _) => Some(Some(process)),
            (None, JobRefusal::Ticket) => Some(None),
            (None, _) => None,
        };
        let refusal = match refusal {
            JobRefusal::Ticket => JobRefusal::Unavailable { why: no_ticket(&head.headers, now) },
            other => other,
        };
        Err(NotTaken { unanswered: WorkerRefusal::Refused(status, refusal), process })
    }
}

fn not_a_worker(status: u16) -> JobRefusal {
    let why = match status {
        404 => "it takes no jobs: it needs a `[worker]` secret of its own, or is no Headrace of this version"
            .to_owned(),
        429 => "it hears nothing more from our address for a minute, after too many wrong tickets".to_owned(),
        _ => format!("it answers {status} with what is no refusal of a worker"),
    };
    JobRefusal::Unavailable { why }
}

/// Explains why a ticket may have been refused.
fn no_ticket(headers: &HeaderMap, now: UnixNanos) -> String {
    let theirs = headers
        .get(DATE)
        .and_then(|date| date.to_str().ok())
        .and_then(|date| httpdate::parse_http_date(date).ok());
    let theirs = theirs.and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
    let apart =
        theirs.map(|theirs| theirs.as_secs().abs_diff(now.seconds())).filter(|apart| *apart > CLOCKS_APART_S);
    match apart {
        Some(apart) => {
            format!("it takes no ticket of ours: its clock and ours are {apart} s apart; set them")
        }
        None => "it takes no ticket of ours: the secret there is another one".to_owned(),
    }
}

impl WorkerRefusal {
    /// Converts the error for operators who check the server.
    fn into_probe_error(self) -> ProbeError {
        match self {
            Self::Relay(error) => ProbeError::Unreachable(error),
            Self::Refused(status, refusal) => {
                let said = match refusal {
                    JobRefusal::Unavailable { why } => why,
                    other => headrace_engine_api::SubmitRefusal::from(other).to_string(),
                };
                ProbeError::Status { status, said, hint: None }
            }
        }
    }
}

async fn get(
    server: &UpstreamServer,
    path: &str,
    now: UnixNanos,
    bounds: (usize, Duration),
) -> Result<Bytes, ProbeError> {
    let (most, within) = bounds;
    let begun = Instant::now();
    let answered = ask(server, (Method::GET, path), Vec::new(), None, now, within).await;
    let WorkerAnswer { mut body, on } = answered.map_err(WorkerRefusal::into_probe_error)?;
    let bytes = read_some(&mut body, most, within.saturating_sub(begun.elapsed())).await;
    server.counters.received(bytes.len());
    drop(on);
    if bytes.len() >= most {
        return Err(ProbeError::Unreachable(RelayError::TooLarge { what: "body", limit: most }));
    }
    Ok(bytes)
}

/// Asks a worker for its models.
pub(crate) async fn about(server: &UpstreamServer, now: UnixNanos) -> Result<WorkerInfo, ProbeError> {
    let json = get(server, ABOUT_PATH, now, (MAX_ABOUT_BYTES, ABOUT_WAIT)).await?;
    let about = WorkerInfo::read(&json).map_err(|what| ProbeError::NotUnderstood { what, hint: None })?;
    if let Some(line) = &server.line {
        for model in &about.models {
            let slot = line.slot(&model.capabilities.model);
            slot.heard(model.load);
            slot.heard_of_jobs(model.fuller_jobs);
        }
    }
    Ok(about)
}

/// Downloads the tokenizer assets of a model, by their digest.
pub(crate) async fn words(
    server: &UpstreamServer,
    digest: &str,
    now: UnixNanos,
) -> Result<PackedAssets, ProbeError> {
    let bytes = get(server, &format!("{WORDS_PATH}{digest}"), now, (MAX_WORDS_BYTES, WORDS_WAIT)).await?;
    PackedAssets::taken(bytes, digest)
        .map_err(|fault| ProbeError::NotUnderstood { what: fault.to_string(), hint: None })
}
