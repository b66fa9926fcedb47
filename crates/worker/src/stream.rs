//! One job in progress at a worker: sends its engine's events as frames, as fast as they are read. Dropping the stream
//! cancels the job at once. When the job ends, its trace record is handed over. Must not know the reader.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use headrace_call_api::{AbortReason, AnswerFrames, BrokenBody as BrokenOff, TransportOutlet};
use headrace_domain::{Clock, Stage, TokenLogprob};
use headrace_engine_api::{JobError, JobEvent, JobEvents, JobReport, JobTicket, TicketControl};
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep};

use crate::frame::WorkerFrame;
use crate::framing::put_frame;
use crate::job_record::{CANCELLED_BY_GATEWAY, JobRecord, UNREAD_TOO_LONG};
use crate::limits::{ALIVE_PERIOD, CHUNK_BYTES, SCORES_FRAME_BYTES, UNREAD};
use crate::offer::OfferedModel;
use crate::report::{ReportExtras, WorkerReport};

/// The frames of one job.
pub(crate) struct JobStream {
    events: JobEvents,
    held: Arc<HeldJob>,
    offer: OfferedModel,
    clock: Arc<dyn Clock>,
    /// Whether the additional report is sent at the end.
    in_full: bool,
    /// The trace record. `None` after it was handed over.
    record: Option<JobRecord>,
    /// Frames that are not written yet.
    ready: VecDeque<WorkerFrame>,
    ticker: Pin<Box<Sleep>>,
    /// The last frame was written.
    over: bool,
}

/// The handle by which a job can be cancelled.
struct HeldJob {
    control: TicketControl,
    /// Time of the last read.
    asked_ns: AtomicU64,
    over: AtomicBool,
    /// Whether the job was cancelled because its events were not read.
    unread: AtomicBool,
}

impl HeldJob {
    fn why_cancelled(&self) -> &'static str {
        if self.unread.load(Ordering::Relaxed) { UNREAD_TOO_LONG } else { CANCELLED_BY_GATEWAY }
    }
}

impl JobStream {
    /// Creates the stream of a submitted job. Must be called within a runtime.
    pub(crate) fn new(
        ticket: JobTicket,
        offer: OfferedModel,
        clock: Arc<dyn Clock>,
        in_full: bool,
        record: JobRecord,
    ) -> Self {
        let (events, control) = ticket.split();
        let asked_ns = AtomicU64::new(clock.monotonic_nanos());
        let held = Arc::new(HeldJob {
            control,
            asked_ns,
            over: AtomicBool::new(false),
            unread: AtomicBool::new(false),
        });
        tokio::spawn(cancel_unread(Arc::downgrade(&held), Arc::clone(&clock)));
        let ready = VecDeque::from([WorkerFrame::Alive(offer.engine.load())]);
        let (record, ticker) = (Some(record), Box::pin(sleep(ALIVE_PERIOD)));
        Self { events, held, offer, clock, in_full, record, ready, ticker, over: false }
    }

    /// Queues the frames of an event.
    fn say(&mut self, event: Option<JobEvent>) {
        self.note(event.as_ref());
        let frame = match event {
            Some(JobEvent::Started { cached_tokens }) => WorkerFrame::Started { cached_tokens },
            Some(JobEvent::Scored(scores)) => return self.ready.extend(split(scores.tokens)),
            Some(JobEvent::Tokens { choice, ids, text, logprobs }) => {
                WorkerFrame::Tokens { choice, ids, text, logprobs }
            }
            // Encoders are not offered to gateways, so their vectors have no frame.
            Some(JobEvent::Encoded(_)) => return,
            Some(JobEvent::Finished { choice, reason }) => {
                WorkerFrame::Finished { choice, end: reason.into() }
            }
            Some(JobEvent::Done(report)) => {
                self.over = true;
                // Reports the engine's current load, so that the gateway can place its next call.
                self.ready.push_back(WorkerFrame::Alive(self.offer.engine.load()));
                WorkerFrame::Done(self.report(&report))
            }
            Some(JobEvent::Failed { error, report }) => {
                self.over = true;
                let report = self.report(&report);
                WorkerFrame::Failed { error: error.into(), report }
            }
            // The engine is gone. No end frame is sent, so that the gateway does not take this for the end.
            None => {
                self.over = true;
                return;
            }
        };
        self.ready.push_back(frame);
    }

    /// Updates the trace record with an event, and hands it over with the last one.
    fn note(&mut self, event: Option<&JobEvent>) {
        let is_last = matches!(event, None | Some(JobEvent::Done(_) | JobEvent::Failed { .. }));
        if !is_last {
            if let (Some(record), Some(event)) = (&mut self.record, event) {
                record.note(event);
            }
            return;
        }
        let Some(record) = self.record.take() else { return };
        match event {
            Some(JobEvent::Done(report)) => record.completed(report),
            Some(JobEvent::Failed { error: JobError::Cancelled, report }) => {
                record.cancelled(self.held.why_cancelled(), report);
            }
            Some(JobEvent::Failed { error, report }) => record.failed(error, report),
            _ => record.deserted(),
        }
    }

    /// Returns the final report. Queues the additional report before it, if the gateway asked for that.
    fn report(&mut self, report: &JobReport) -> WorkerReport {
        if self.in_full {
            self.ready.push_back(WorkerFrame::Also(ReportExtras::from(report)));
        }
        WorkerReport::from(report)
    }

    fn chunk(&mut self, cx: &mut Context<'_>) -> Result<Vec<u8>, BrokenOff> {
        let mut out = Vec::new();
        while out.len() < CHUNK_BYTES {
            if let Some(frame) = self.ready.pop_front() {
                put_frame(&mut out, &frame).map_err(|error| {
                    tracing::error!(%error, "an event of a job cannot be sent on");
                    BrokenOff
                })?;
                continue;
            }
            if self.over {
                break;
            }
            match self.events.poll_next(cx) {
                Poll::Ready(event) => self.say(event),
                Poll::Pending => break,
            }
        }
        Ok(out)
    }
}

impl AnswerFrames for JobStream {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        self.held.asked_ns.store(self.clock.monotonic_nanos(), Ordering::Relaxed);
        let mut out = match self.chunk(cx) {
            Ok(out) => out,
            Err(broken) => {
                if let Some(record) = self.record.take() {
                    let message = "an event of the job could not be sent on".to_owned();
                    record.broke(Stage::Deliver, message, &JobReport::default());
                }
                return Poll::Ready(Some(Err(broken)));
            }
        };
        if out.is_empty() {
            if self.over {
                self.held.over.store(true, Ordering::Relaxed);
                return Poll::Ready(None);
            }
            let mut is_due = false;
            while self.ticker.as_mut().poll(cx).is_ready() {
                is_due = true;
                self.ticker.as_mut().reset(Instant::now() + ALIVE_PERIOD);
            }
            if !is_due {
                return Poll::Pending;
            }
            if put_frame(&mut out, &WorkerFrame::Alive(self.offer.engine.load())).is_err() {
                return Poll::Ready(Some(Err(BrokenOff)));
            }
        } else {
            self.ticker.as_mut().reset(Instant::now() + ALIVE_PERIOD);
        }
        Poll::Ready(Some(Ok(Bytes::from(out))))
    }

    fn set_outlet(&mut self, _outlet: Arc<dyn TransportOutlet>) {}

    fn abort(&mut self, _why: AbortReason) {}
}

impl Drop for JobStream {
    fn drop(&mut self) {
        if self.held.over.swap(true, Ordering::Relaxed) {
            return;
        }
        let why = self.held.why_cancelled();
        let cancelled = self.held.control.cancel();
        let Some(record) = self.record.take() else { return };
        // The report is complete once the engine has dropped the job.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                let report = cancelled.report().await;
                record.cancelled(why, &report);
            })),
            Err(_) => record.cancelled(why, &JobReport::default()),
        }
    }
}

/// Splits the scores of a prompt into frames of a limited size.
fn split(tokens: Vec<TokenLogprob>) -> impl Iterator<Item = WorkerFrame> {
    let mut rest = tokens.into_iter().peekable();
    std::iter::from_fn(move || {
        rest.peek()?;
        let (mut frame, mut bytes) = (Vec::new(), 0_usize);
        while bytes < SCORES_FRAME_BYTES {
            let Some(token) = rest.next() else { break };
            let top: usize = token.top.iter().map(|other| other.bytes.len().saturating_add(16)).sum();
            bytes = bytes.saturating_add(token.bytes.len()).saturating_add(top).saturating_add(16);
            frame.push(token);
        }
        Some(WorkerFrame::Scored(frame))
    })
}

/// Cancels a job whose stream has not been read for a long time, because its events are stuck in the transport.
async fn cancel_unread(held: std::sync::Weak<HeldJob>, clock: Arc<dyn Clock>) {
    loop {
        sleep(UNREAD / 4).await;
        let Some(held) = held.upgrade() else { return };
        let now_ns = clock.monotonic_nanos();
        let unread_ns = now_ns.saturating_sub(held.asked_ns.load(Ordering::Relaxed));
        if held.over.load(Ordering::Relaxed) {
            return;
        }
        if u128::from(unread_ns) >= UNREAD.as_nanos() {
            tracing::warn!("a job was released because its gateway did not read its events");
            held.unread.store(true, Ordering::Relaxed);
            drop(held.control.cancel());
            return;
        }
    }
}
