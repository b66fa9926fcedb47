//! One job at a worker: sends it, checks its frames against the job, and passes its events on. Must not know a
//! connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_engine_api::{
    EventSender, Job, JobError, JobEvent, JobReport, RelayError, RelayWait, SubmitRefusal,
};
use headrace_worker::{
    ExpectedModel, FrameMeaning, FrameReader, JOBS_PATH, JobAudit, JobRequest, SILENCE, WorkerReport,
};
use http::Method;
use reqwest::Body;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::body::{BoundedWait, poll_bytes};
use crate::fault;
use crate::gate::GateTenant;
use crate::server::UpstreamServer;
use crate::worker_requests::{WorkerAnswer, WorkerRefusal, ask};
use crate::workers::model::TheirModel;

/// One job.
pub(super) struct WorkerRun {
    server: Arc<UpstreamServer>,
    model: Arc<TheirModel>,
    job: Job,
    /// Whether the worker takes fuller jobs.
    fuller: bool,
    /// Notified when the reader has caught up or has cancelled the job.
    woken: Arc<Notify>,
    audit: JobAudit,
    submitted: Instant,
}

/// Why a job ended before the worker's last frame.
enum RunFault {
    /// The job's reader cancelled it.
    Cancelled,
    /// The job could not be submitted.
    Unanswered(WorkerRefusal),
    /// The transfer failed or was not valid.
    Relay(RelayError),
    /// A frame does not match the job.
    Fault(String),
}

impl WorkerRun {
    pub(super) fn new(
        server: Arc<UpstreamServer>,
        model: Arc<TheirModel>,
        mut job: Job,
        woken: Arc<Notify>,
    ) -> Self {
        let fuller = model.slot.takes_fuller_jobs();
        if !fuller {
            // A worker cannot keep prefixes that it does not learn about.
            job.pins = Arc::default();
        }
        let capabilities = &model.capabilities;
        let audit = JobAudit::new(&job, capabilities.vocab, capabilities.context_window);
        Self { server, model, job, fuller, woken, audit, submitted: Instant::now() }
    }

    /// Runs until the worker's last frame, a failure, or a cancellation by the reader.
    pub(super) async fn run_to_end(mut self, sender: EventSender) {
        let ask = JobRequest::new(
            &self.job,
            ExpectedModel { name: &self.model.capabilities.model, bits: &self.model.bits },
            self.model.clock.monotonic_nanos(),
        );
        let body = if self.fuller { ask.fuller(&self.job) } else { ask }.to_bytes();
        self.server.counters.begin(body.len());
        let ended = self.run(body, &sender).await;
        self.server.counters.end(matches!(ended, Err(RunFault::Cancelled)));
        sender.finish(match ended {
            Ok((Ok(()), report)) => JobEvent::Done(self.report(report)),
            Ok((Err(error), report)) => JobEvent::Failed { error, report: self.report(report) },
            Err(broken) => {
                JobEvent::Failed { error: self.broken(broken), report: Arc::new(self.audit.seen()) }
            }
        });
    }

    fn report(&self, report: WorkerReport) -> Arc<JobReport> {
        let elapsed_ns = u64::try_from(self.submitted.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Arc::new(report.within(self.audit.prompt(), elapsed_ns))
    }

    fn broken(&self, broken: RunFault) -> JobError {
        let name = &self.server.spec.name;
        let unavailable = |why: String| JobError::Refused(SubmitRefusal::Unavailable { why });
        let error = match broken {
            RunFault::Cancelled => return JobError::Cancelled,
            RunFault::Unanswered(WorkerRefusal::Refused(_, refusal)) => {
                return match SubmitRefusal::from(refusal) {
                    SubmitRefusal::Unavailable { why } => unavailable(format!("`{name}`: {why}")),
                    other => JobError::Refused(other),
                };
            }
            RunFault::Fault(what) => {
                let what = format!("`{name}` sent {what}");
                let error = RelayError::NotTheDialect { what: what.clone(), beginning: String::new() };
                self.server.counters.failed(&error);
                return JobError::Internal { detail: what };
            }
            RunFault::Unanswered(WorkerRefusal::Relay(error)) => {
                self.server.counters.failed(&error);
                return unavailable(format!("`{name}`: {error}"));
            }
            RunFault::Relay(error) => error,
        };
        self.server.counters.failed(&error);
        JobError::Internal { detail: format!("`{name}`: {error}") }
    }

    async fn run(
        &mut self,
        body: Vec<u8>,
        sender: &EventSender,
    ) -> Result<(Result<(), JobError>, WorkerReport), RunFault> {
        let (server, woken) = (Arc::clone(&self.server), Arc::clone(&self.woken));
        let head = server.spec.timeouts.head;
        let deadline = Instant::now() + head;
        let asker = GateTenant { tenant: self.job.tenant, weight: self.job.weight };
        let place = cancellable(&woken, sender, server.gate.enter(asker, deadline)).await?;
        let _place = place.map_err(|error| RunFault::Unanswered(WorkerRefusal::Relay(error)))?;
        let within = deadline.saturating_duration_since(Instant::now());
        let (trace, now) = (self.job.trace.clone(), self.model.clock.now());
        let asking = ask(&server, (Method::POST, JOBS_PATH), body, trace.as_deref(), now, within);
        let WorkerAnswer { mut body, on: _on } =
            cancellable(&woken, sender, asking).await?.map_err(RunFault::Unanswered)?;
        let mut unframer = FrameReader::default();
        let mut silence = BoundedWait::new(SILENCE.min(server.spec.timeouts.idle));
        loop {
            while let Some(frame) =
                unframer.next_frame().map_err(|fault| RunFault::Fault(fault.to_string()))?
            {
                match self.audit.take(frame).map_err(|fault| RunFault::Fault(fault.to_string()))? {
                    FrameMeaning::Event(event) => drop(sender.send(event)),
                    FrameMeaning::Load(load) => self.model.slot.heard(load),
                    FrameMeaning::Nothing => {}
                    FrameMeaning::Over(ended, report) => return Ok((ended, report)),
                }
            }
            let bytes = self.next(&mut body, &mut silence, sender).await?;
            let cut = || RunFault::Relay(RelayError::Cut { why: "it ended before the job did".to_owned() });
            let bytes = bytes.ok_or_else(cut)?;
            server.counters.received(bytes.len());
            unframer.push(&bytes);
        }
    }

    /// Returns the next bytes, once the reader wants them. `None` at the end.
    async fn next(
        &self,
        body: &mut Body,
        silence: &mut BoundedWait,
        sender: &EventSender,
    ) -> Result<Option<Bytes>, RunFault> {
        loop {
            if sender.is_cancelled() {
                return Err(RunFault::Cancelled);
            }
            if sender.is_paused() || sender.is_full() && sender.pause() {
                self.woken.notified().await;
                continue;
            }
            let read = poll_fn(|cx| match poll_bytes(body, cx) {
                std::task::Poll::Ready(bytes) => std::task::Poll::Ready(Ok(bytes)),
                std::task::Poll::Pending => silence.poll(cx).map(Err::<_, Duration>),
            });
            tokio::select! {
                biased;
                () = self.woken.notified() => {}
                read = read => {
                    let late = |after| RunFault::Relay(RelayError::Timeout { what: RelayWait::Idle, after });
                    let bytes = read.map_err(late)?.transpose();
                    silence.over();
                    return bytes.map_err(|error| RunFault::Relay(fault::within_the_body(&error)));
                }
            }
        }
    }
}

/// Awaits a future, unless the job is cancelled.
async fn cancellable<T>(
    woken: &Notify,
    sender: &EventSender,
    future: impl Future<Output = T>,
) -> Result<T, RunFault> {
    let mut future = std::pin::pin!(future);
    loop {
        if sender.is_cancelled() {
            return Err(RunFault::Cancelled);
        }
        tokio::select! {
            biased;
            () = woken.notified() => {}
            done = &mut future => return Ok(done),
        }
    }
}
