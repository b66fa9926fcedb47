//! The line to a worker: requests with tickets over a few connections, what it says of itself, and how busy it said it is. Knows
//! no job.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::UnixNanos;
use headrace_engine_api::{LoadReport, RelayError, RelayWait, Reported};
use headrace_worker::{
    ABOUT_PATH, About, CONTENT_TYPE, MAX_ABOUT_BYTES, MAX_REFUSAL_BYTES, MAX_WORDS_BYTES, Refusal, Secret,
    WORDS_PATH, Words,
};
use http::header::{AUTHORIZATION, CONTENT_TYPE as CONTENT_TYPE_HEADER, DATE};
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;
use reqwest::{Body, Client, Request};
use tokio::time::Instant;

use crate::body::read_some;
use crate::client::client;
use crate::fault;
use crate::probe::ProbeError;
use crate::server::Server;
use crate::spec::{UpstreamSpec, UseHttp2};

/// Connections over HTTP/2. Each carries many jobs; a worker takes a hundred of them on one.
const CONNECTIONS: usize = 8;
/// Jobs on a connection before the next one is opened.
const JOBS_EACH: usize = 64;
/// How long a worker may take to say what it is.
const ABOUT_WAIT: Duration = Duration::from_secs(3);
/// How long the words of a model may take.
const WORDS_WAIT: Duration = Duration::from_secs(60);
/// How long a refusal may take.
const REFUSAL_WAIT: Duration = Duration::from_secs(5);
/// The oldest report that says anything.
const OLDEST_REPORT: Duration = Duration::from_secs(60);
/// How far clocks may be apart before that is told.
const CLOCKS_APART_S: u64 = 25;

/// The line to one worker.
pub(crate) struct Line {
    secret: Secret,
    connections: Vec<Connection>,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
}

/// One connection, once it is needed.
struct Connection {
    client: OnceLock<Client>,
    jobs: Arc<AtomicUsize>,
}

/// A job's part of a connection.
pub(crate) struct OnConnection(Arc<AtomicUsize>);

/// How busy a model's engine said it is.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<(LoadReport, Instant)>>);

/// What a worker answered.
pub(crate) struct Answered {
    pub(crate) body: Body,
    /// Held for as long as the body is read.
    pub(crate) on: OnConnection,
}

/// Why a worker did not answer as it should.
pub(crate) enum Unanswered {
    /// Something between us and it.
    Relay(RelayError),
    /// It refuses, with a status.
    Refused(u16, Refusal),
}

impl Drop for OnConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Slot {
    pub(crate) fn heard(&self, load: LoadReport) {
        *self.0.lock() = Some((load, Instant::now()));
    }

    /// With its age; `None`: nothing was said lately.
    pub(crate) fn report(&self) -> Option<LoadReport> {
        let (load, at) = (*self.0.lock())?;
        let age = at.elapsed();
        let nanos = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        (age <= OLDEST_REPORT).then_some(LoadReport { reported: Reported::Ago { nanos }, ..load })
    }
}

impl Line {
    /// For a checked spec that has a secret.
    ///
    /// # Errors
    /// What keeps a client from being built.
    pub(crate) fn new(spec: &UpstreamSpec, secret: Secret, tls: bool) -> Result<Self, String> {
        let connection = || Connection { client: OnceLock::new(), jobs: Arc::default() };
        let line = Self {
            secret,
            connections: std::iter::repeat_with(connection).take(CONNECTIONS).collect(),
            slots: Mutex::default(),
        };
        // What is wrong shows now, not with the first job.
        if let Some(first) = line.connections.first() {
            let _ = first.client.set(client(&over_http2(spec, tls), tls)?);
        }
        Ok(line)
    }

    /// Where the load of a model there is noted.
    pub(crate) fn slot(&self, model: &str) -> Arc<Slot> {
        Arc::clone(self.slots.lock().entry(model.to_owned()).or_default())
    }

    /// The first connection with room, or the one with the most.
    fn connection(&self, spec: &UpstreamSpec, tls: bool) -> Result<(&Client, OnConnection), RelayError> {
        let jobs = |connection: &&Connection| connection.jobs.load(Ordering::Relaxed);
        let with_room = self.connections.iter().find(|connection| jobs(connection) < JOBS_EACH);
        let unbuilt = |why: String| RelayError::Connect { why };
        let chosen = with_room.or_else(|| self.connections.iter().min_by_key(jobs));
        let chosen = chosen.ok_or_else(|| unbuilt("no connection".to_owned()))?;
        chosen.jobs.fetch_add(1, Ordering::Relaxed);
        let on = OnConnection(Arc::clone(&chosen.jobs));
        if chosen.client.get().is_none() {
            // Of two that build it at once one is used.
            let _ = chosen.client.set(client(&over_http2(spec, tls), tls).map_err(unbuilt)?);
        }
        let client = chosen.client.get().ok_or_else(|| unbuilt("no client".to_owned()))?;
        Ok((client, on))
    }

    /// Asks, and waits for a head that is a success.
    pub(crate) async fn ask(
        &self,
        server: &Server,
        (method, path): (Method, &str),
        body: Vec<u8>,
        now: UnixNanos,
        within: Duration,
    ) -> Result<Answered, Unanswered> {
        let spec = &server.spec;
        let broken = |why: String| Unanswered::Relay(RelayError::Connect { why });
        let (client, on) = self.connection(spec, server.address.is_tls()).map_err(Unanswered::Relay)?;
        let ticket = self.secret.ticket((method.as_str(), path), &body, now);
        let ticket = ticket.map_err(|error| broken(error.to_string()))?;
        let mut ticket = HeaderValue::try_from(ticket).map_err(|error| broken(error.to_string()))?;
        ticket.set_sensitive(true);
        let mut request = Request::new(method, server.address.server(path));
        let headers = request.headers_mut();
        *headers = server.own_headers();
        headers.insert(AUTHORIZATION, ticket);
        headers.insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(CONTENT_TYPE));
        *request.body_mut() = Some(Body::from(body));
        let late = |_| Unanswered::Relay(RelayError::Timeout { what: RelayWait::Head, after: within });
        let answer = tokio::time::timeout(within, client.execute(request)).await.map_err(late)?;
        let answer = answer.map_err(|error| {
            let at = server.address.authority();
            let head_bytes = spec.bounds.head_bytes;
            Unanswered::Relay(fault::before_the_head(&error, &at, spec.timeouts.connect, head_bytes))
        })?;
        server.counters.received(0);
        let (head, mut body) = http::Response::<Body>::from(answer).into_parts();
        let status = head.status.as_u16();
        if status == 200 {
            return Ok(Answered { body, on });
        }
        let said = read_some(&mut body, MAX_REFUSAL_BYTES, REFUSAL_WAIT).await;
        server.counters.received(said.len());
        if let 300..=399 = status {
            return Err(Unanswered::Relay(RelayError::Redirect { status, to: "elsewhere".to_owned() }));
        }
        let refusal = serde_json::from_slice(&said).unwrap_or_else(|_| not_a_worker(status));
        let refusal = match refusal {
            Refusal::Ticket => Refusal::Unavailable { why: no_ticket(&head.headers, now) },
            other => other,
        };
        Err(Unanswered::Refused(status, refusal))
    }
}

/// Plain HTTP has no way to agree on a version: between two of ours it is HTTP/2, unless it is switched off.
fn over_http2(spec: &UpstreamSpec, tls: bool) -> UpstreamSpec {
    let mut spec = spec.clone();
    if spec.http2.when == UseHttp2::Auto && !tls {
        spec.http2.when = UseHttp2::Always;
    }
    spec
}

fn not_a_worker(status: u16) -> Refusal {
    let why = match status {
        404 => "it takes no jobs: it needs a `[worker]` secret of its own, or is no Headrace of this version"
            .to_owned(),
        429 => "it hears nothing more from our address for a minute, after too many wrong tickets".to_owned(),
        _ => format!("it answers {status} with what is no refusal of a worker"),
    };
    Refusal::Unavailable { why }
}

/// What may be wrong with a ticket that is not taken.
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

impl Unanswered {
    /// For operators who ask whether all is well.
    fn told(self) -> ProbeError {
        match self {
            Self::Relay(error) => ProbeError::Unreachable(error),
            Self::Refused(status, refusal) => {
                let said = match refusal {
                    Refusal::Unavailable { why } => why,
                    other => headrace_engine_api::SubmitRefusal::from(other).to_string(),
                };
                ProbeError::Status { status, said, hint: None }
            }
        }
    }
}

async fn get(
    server: &Server,
    path: &str,
    now: UnixNanos,
    bounds: (usize, Duration),
) -> Result<Bytes, ProbeError> {
    let (most, within) = bounds;
    let unasked = || ProbeError::NotUnderstood { what: "there is no secret for it".to_owned(), hint: None };
    let line = server.line.as_ref().ok_or_else(unasked)?;
    let begun = Instant::now();
    let answered = line.ask(server, (Method::GET, path), Vec::new(), now, within).await;
    let Answered { mut body, on } = answered.map_err(Unanswered::told)?;
    let bytes = read_some(&mut body, most, within.saturating_sub(begun.elapsed())).await;
    server.counters.received(bytes.len());
    drop(on);
    if bytes.len() >= most {
        return Err(ProbeError::Unreachable(RelayError::TooLarge { what: "body", limit: most }));
    }
    Ok(bytes)
}

/// What a worker is, asked now.
pub(crate) async fn about(server: &Server, now: UnixNanos) -> Result<About, ProbeError> {
    let json = get(server, ABOUT_PATH, now, (MAX_ABOUT_BYTES, ABOUT_WAIT)).await?;
    let about = About::read(&json).map_err(|what| ProbeError::NotUnderstood { what, hint: None })?;
    if let Some(line) = &server.line {
        for model in &about.models {
            line.slot(&model.capabilities.model).heard(model.load);
        }
    }
    Ok(about)
}

/// The words of a model there, by their digest.
pub(crate) async fn words(server: &Server, digest: &str, now: UnixNanos) -> Result<Words, ProbeError> {
    let bytes = get(server, &format!("{WORDS_PATH}{digest}"), now, (MAX_WORDS_BYTES, WORDS_WAIT)).await?;
    Words::taken(bytes, digest)
        .map_err(|fault| ProbeError::NotUnderstood { what: fault.to_string(), hint: None })
}
