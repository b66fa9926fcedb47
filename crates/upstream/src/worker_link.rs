//! The connections to a worker, its secret, and its latest reports about its models. Must not know a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use headrace_domain::UnixNanos;
use headrace_engine_api::{LoadReport, RelayError, ReportAge};
use headrace_worker::{ProcessId, WorkerSecret};
use parking_lot::Mutex;
use reqwest::Client;
use tokio::time::Instant;

use crate::client::client;
use crate::spec::{UpstreamSpec, UseHttp2};

/// Number of HTTP/2 connections. Each carries many jobs. A worker accepts a hundred jobs per connection.
const CONNECTIONS: usize = 8;
/// Number of jobs on a connection before the next one is opened.
const JOBS_EACH: usize = 64;
/// Maximum age of a report that is used.
const OLDEST_REPORT: Duration = Duration::from_secs(60);

/// The connections to one worker.
pub(crate) struct WorkerLink {
    secret: WorkerSecret,
    /// The worker's process id, as the worker reported it. `None` if the worker is too old to report one.
    process: Mutex<Option<ProcessId>>,
    connections: Vec<LinkConnection>,
    slots: Mutex<BTreeMap<String, Arc<WorkerModelState>>>,
}

/// One connection, opened when it is first needed.
struct LinkConnection {
    client: ArcSwapOption<Client>,
    jobs: Arc<AtomicUsize>,
}

/// Counts a job on its connection. Dropping it ends the job's use of the connection.
pub(crate) struct OnConnection(Arc<AtomicUsize>);

/// The latest reports about a model.
#[derive(Debug, Default)]
pub(crate) struct WorkerModelState {
    /// The load of the worker's engine, and when it was reported.
    load: Mutex<Option<(LoadReport, Instant)>>,
    /// Whether the worker takes fuller jobs. Updated with each report, because a worker may be replaced by an older
    /// version.
    fuller_jobs: AtomicBool,
}

impl Drop for OnConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WorkerModelState {
    pub(crate) fn heard(&self, load: LoadReport) {
        *self.load.lock() = Some((load, Instant::now()));
    }

    pub(crate) fn heard_of_jobs(&self, fuller: bool) {
        self.fuller_jobs.store(fuller, Ordering::Relaxed);
    }

    pub(crate) fn takes_fuller_jobs(&self) -> bool {
        self.fuller_jobs.load(Ordering::Relaxed)
    }

    /// Returns the last load report with its age. `None` if there is no recent report.
    pub(crate) fn report(&self) -> Option<LoadReport> {
        let (load, at) = (*self.load.lock())?;
        let age = at.elapsed();
        let nanos = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        (age <= OLDEST_REPORT).then_some(LoadReport { reported: ReportAge::Ago { nanos }, ..load })
    }
}

impl WorkerLink {
    /// Creates the connections for a checked spec with a secret.
    ///
    /// # Errors
    /// Why a client cannot be built.
    pub(crate) fn new(spec: &UpstreamSpec, secret: WorkerSecret, tls: bool) -> Result<Self, String> {
        let connection = || LinkConnection { client: ArcSwapOption::empty(), jobs: Arc::default() };
        let line = Self {
            secret,
            process: Mutex::new(Some(ProcessId::UNKNOWN)),
            connections: std::iter::repeat_with(connection).take(CONNECTIONS).collect(),
            slots: Mutex::default(),
        };
        // Builds the first client now, so that errors appear before the first job.
        if let Some(first) = line.connections.first() {
            first.client.store(Some(Arc::new(client(&over_http2(spec, tls), tls)?)));
        }
        Ok(line)
    }

    /// Returns the slot for reports about a model.
    pub(crate) fn slot(&self, model: &str) -> Arc<WorkerModelState> {
        Arc::clone(self.slots.lock().entry(model.to_owned()).or_default())
    }

    /// Creates a ticket for one request.
    ///
    /// # Errors
    /// This machine's random number generator failed.
    pub(crate) fn ticket(
        &self,
        process: Option<ProcessId>,
        asked: (&str, &str),
        body: &[u8],
        now: UnixNanos,
    ) -> Result<String, String> {
        self.secret.ticket(process, asked, body, now).map_err(|error| error.to_string())
    }

    /// Returns the process id that tickets currently name.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        *self.process.lock()
    }

    /// Records the process id that the worker reported, or `None` if it refused a ticket without one.
    pub(crate) fn set_process(&self, process: Option<ProcessId>) {
        *self.process.lock() = process;
    }

    /// Returns the first connection with capacity, or the one with the fewest jobs.
    pub(crate) fn connection(
        &self,
        spec: &UpstreamSpec,
        tls: bool,
    ) -> Result<(Arc<Client>, OnConnection), RelayError> {
        let jobs = |connection: &&LinkConnection| connection.jobs.load(Ordering::Relaxed);
        let with_room = self.connections.iter().find(|connection| jobs(connection) < JOBS_EACH);
        let unbuilt = |why: String| RelayError::Connect { why };
        let chosen = with_room.or_else(|| self.connections.iter().min_by_key(jobs));
        let chosen = chosen.ok_or_else(|| unbuilt("no connection".to_owned()))?;
        chosen.jobs.fetch_add(1, Ordering::Relaxed);
        let on = OnConnection(Arc::clone(&chosen.jobs));
        if let Some(client) = chosen.client.load_full() {
            return Ok((client, on));
        }
        // If two tasks build a client at the same time, each uses its own, and later jobs use the last one.
        let client = Arc::new(client(&over_http2(spec, tls), tls).map_err(unbuilt)?);
        chosen.client.store(Some(Arc::clone(&client)));
        Ok((client, on))
    }

    /// Makes new jobs use new connections. Open ones close after their jobs.
    pub(crate) fn renew(&self) {
        self.connections.iter().for_each(|connection| connection.client.store(None));
    }
}

/// Plain HTTP cannot negotiate a version. Between two Headrace servers it is HTTP/2, unless that is switched off.
fn over_http2(spec: &UpstreamSpec, tls: bool) -> UpstreamSpec {
    let mut spec = spec.clone();
    if spec.http2.when == UseHttp2::Auto && !tls {
        spec.http2.when = UseHttp2::Always;
    }
    spec
}
