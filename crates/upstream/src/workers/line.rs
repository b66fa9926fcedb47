//! The line to a worker: its secret, a few connections, and what it said of its models lately. Knows no request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use headrace_domain::UnixNanos;
use headrace_engine_api::{LoadReport, RelayError, Reported};
use headrace_worker::{ProcessId, Secret};
use parking_lot::Mutex;
use reqwest::Client;
use tokio::time::Instant;

use crate::client::client;
use crate::spec::{UpstreamSpec, UseHttp2};

/// Connections over HTTP/2. Each carries many jobs; a worker takes a hundred of them on one.
const CONNECTIONS: usize = 8;
/// Jobs on a connection before the next one is opened.
const JOBS_EACH: usize = 64;
/// The oldest report that says anything.
const OLDEST_REPORT: Duration = Duration::from_secs(60);

/// The line to one worker.
pub(crate) struct Line {
    secret: Secret,
    /// The worker's process, as it told it. `None` if it is older than that.
    process: Mutex<Option<ProcessId>>,
    connections: Vec<Connection>,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
}

/// One connection, once it is needed.
struct Connection {
    client: ArcSwapOption<Client>,
    jobs: Arc<AtomicUsize>,
}

/// A job's part of a connection.
pub(crate) struct OnConnection(Arc<AtomicUsize>);

/// What a worker said of a model lately.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// How busy its engine is.
    load: Mutex<Option<(LoadReport, Instant)>>,
    /// Whether it takes fuller jobs. Asked anew with each report: a worker may be replaced by one of before.
    fuller_jobs: AtomicBool,
}

impl Drop for OnConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Slot {
    pub(crate) fn heard(&self, load: LoadReport) {
        *self.load.lock() = Some((load, Instant::now()));
    }

    pub(crate) fn heard_of_jobs(&self, fuller: bool) {
        self.fuller_jobs.store(fuller, Ordering::Relaxed);
    }

    pub(crate) fn takes_fuller_jobs(&self) -> bool {
        self.fuller_jobs.load(Ordering::Relaxed)
    }

    /// With its age; `None`: nothing was said lately.
    pub(crate) fn report(&self) -> Option<LoadReport> {
        let (load, at) = (*self.load.lock())?;
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
        let connection = || Connection { client: ArcSwapOption::empty(), jobs: Arc::default() };
        let line = Self {
            secret,
            process: Mutex::new(Some(ProcessId::UNKNOWN)),
            connections: std::iter::repeat_with(connection).take(CONNECTIONS).collect(),
            slots: Mutex::default(),
        };
        // What is wrong shows now, not with the first job.
        if let Some(first) = line.connections.first() {
            first.client.store(Some(Arc::new(client(&over_http2(spec, tls), tls)?)));
        }
        Ok(line)
    }

    /// Where what is said of a model there is noted.
    pub(crate) fn slot(&self, model: &str) -> Arc<Slot> {
        Arc::clone(self.slots.lock().entry(model.to_owned()).or_default())
    }

    /// A ticket for one request.
    ///
    /// # Errors
    /// This machine gives no random numbers.
    pub(crate) fn ticket(
        &self,
        process: Option<ProcessId>,
        asked: (&str, &str),
        body: &[u8],
        now: UnixNanos,
    ) -> Result<String, String> {
        self.secret.ticket(process, asked, body, now).map_err(|error| error.to_string())
    }

    /// The process that tickets name now.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        *self.process.lock()
    }

    /// The worker told this process, or refused a ticket without telling one (`None`).
    pub(crate) fn told_process(&self, process: Option<ProcessId>) {
        *self.process.lock() = process;
    }

    /// The first connection with room, or the one with the most.
    pub(crate) fn connection(
        &self,
        spec: &UpstreamSpec,
        tls: bool,
    ) -> Result<(Arc<Client>, OnConnection), RelayError> {
        let jobs = |connection: &&Connection| connection.jobs.load(Ordering::Relaxed);
        let with_room = self.connections.iter().find(|connection| jobs(connection) < JOBS_EACH);
        let unbuilt = |why: String| RelayError::Connect { why };
        let chosen = with_room.or_else(|| self.connections.iter().min_by_key(jobs));
        let chosen = chosen.ok_or_else(|| unbuilt("no connection".to_owned()))?;
        chosen.jobs.fetch_add(1, Ordering::Relaxed);
        let on = OnConnection(Arc::clone(&chosen.jobs));
        if let Some(client) = chosen.client.load_full() {
            return Ok((client, on));
        }
        // Of two that build it at once each has its own, and the next ones have the last.
        let client = Arc::new(client(&over_http2(spec, tls), tls).map_err(unbuilt)?);
        chosen.client.store(Some(Arc::clone(&client)));
        Ok((client, on))
    }

    /// Has new jobs sent over new connections. Those that are open end with their jobs.
    pub(crate) fn renew(&self) {
        self.connections.iter().for_each(|connection| connection.client.store(None));
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
