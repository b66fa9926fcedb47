//! The engine jobs of one call, read as one stream of events. A prompt has one job, or several if workers race or
//! continue its answers. Must not know what the events mean.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use headrace_domain::{CacheMiss, EngineRun, EngineTrace, Usage};
use headrace_engine_api::{JobEvent, JobEvents, JobReport, JobTicket, TicketControl};
use headrace_fleet::{FailureKind, Placement, WorkerOutcome};

/// How long the source waits for the receipts of cancelled jobs. The engine answers within a step.
const RECEIPT_WAIT: Duration = Duration::from_secs(10);

/// All jobs of a call.
#[derive(Default)]
pub(crate) struct CallJobs {
    jobs: Vec<OneJob>,
    /// Where the next poll begins, so that no job starves another.
    next: usize,
}

/// A job that an engine has taken.
pub(crate) struct SubmittedJob {
    /// Index of the prompt.
    pub(crate) part: usize,
    /// Index of the job slot that this job fills.
    pub(crate) at: usize,
    /// The choice that it continues for another worker. If set, it generates nothing else.
    pub(crate) continued_choice: Option<u32>,
    pub(crate) ticket: JobTicket,
    pub(crate) placement: Placement,
    /// How many of the last ids of its prompt belong to that choice.
    pub(crate) generated: u32,
    /// When the engine got it, in nanoseconds from the call's first byte.
    pub(crate) submitted_ns: u64,
}

/// A job at its present worker, and its progress.
struct OneJob {
    /// Index of the prompt.
    part: usize,
    events: JobEvents,
    control: TicketControl,
    report: Option<Arc<JobReport>>,
    /// When the engine got it, in nanoseconds from the call's first byte.
    submitted_ns: u64,
    /// When it was answered to its end.
    answered_ns: Option<u64>,
    /// The worker. While this is set, the job counts as dispatched and the worker's figures are updated.
    placement: Option<Placement>,
    /// The job has started, at this worker or an earlier one.
    started: bool,
    /// The choice that it continues for another worker. If set, it generates nothing else.
    continued_choice: Option<u32>,
    /// Output that a client may see has come.
    shown: bool,
    /// Prompt tokens found in the engine's cache. `None` until the engine starts on the prompt.
    cached: Option<u64>,
    /// Ids of its prompt that belong to an answer, and ids that came from this job.
    generated: (u64, u64),
}

impl OneJob {
    /// Updates the job and its worker's figures for an event. `None` means that the engine is gone.
    fn take(&mut self, event: Option<&JobEvent>) {
        let outcome = match event {
            Some(JobEvent::Started { cached_tokens }) => {
                self.cached = Some(u64::from(*cached_tokens));
                return;
            }
            Some(JobEvent::Done(report)) => {
                self.report = Some(Arc::clone(report));
                WorkerOutcome::Answered
            }
            Some(JobEvent::Failed { error, report }) => {
                self.report = Some(Arc::clone(report));
                WorkerOutcome::from(error)
            }
            None => {
                self.report = Some(Arc::default());
                WorkerOutcome::Failed {
                    failure: FailureKind::Broke,
                    why: "it stopped without a word".to_owned(),
                }
            }
            Some(event) => {
                if let JobEvent::Tokens { ids, .. } = event {
                    self.generated.1 += ids.len() as u64;
                }
                if !std::mem::replace(&mut self.shown, true)
                    && let Some(placement) = &mut self.placement
                {
                    placement.began();
                }
                return;
            }
        };
        if let Some(placement) = &mut self.placement {
            placement.ended(&outcome);
        }
    }
}

impl CallJobs {
    /// Adds a job in slot `at`, in place of one that failed, or at the end.
    pub(super) fn add(&mut self, submitted: SubmittedJob) {
        let SubmittedJob { part, at, continued_choice, generated, ticket, placement, submitted_ns } =
            submitted;
        let (events, control) = ticket.split();
        let placement = Some(placement);
        let mut job = OneJob {
            part,
            events,
            control,
            report: None,
            submitted_ns,
            answered_ns: None,
            placement,
            started: continued_choice.is_some(),
            continued_choice,
            shown: false,
            cached: None,
            generated: (u64::from(generated), 0),
        };
        match self.jobs.get_mut(at) {
            None => self.jobs.push(job),
            Some(former) => {
                job.started |= former.started;
                *former = job;
            }
        }
    }

    /// Takes the placement of a job, so that its worker no longer counts as having it.
    pub(super) fn take_back(&mut self, job: usize) -> Option<Placement> {
        self.jobs.get_mut(job)?.placement.take()
    }

    /// The prompt index of a job.
    pub(super) fn part(&self, job: usize) -> usize {
        self.jobs.get(job).map_or(job, |job| job.part)
    }

    /// The number of jobs.
    pub(crate) const fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Notes that the job's first step begins. Returns `false` if its prompt was started before, by this slot or another.
    pub(super) fn begin(&mut self, job: usize) -> bool {
        let part = self.part(job);
        let before = self.jobs.iter().any(|other| other.part == part && other.started);
        self.jobs.get_mut(job).is_some_and(|job| !std::mem::replace(&mut job.started, true) && !before)
    }

    /// The worker of the only job, as long as no output has come that a client may see.
    pub(super) fn only_worker(&self) -> Option<&Placement> {
        match self.jobs.as_slice() {
            [only] if !only.shown && only.continued_choice.is_none() && only.report.is_none() => {
                only.placement.as_ref()
            }
            _ => None,
        }
    }

    /// Drops one of two jobs for the same prompt, which cancels it. The other one moves to index 0.
    pub(super) fn remove(&mut self, job: usize) -> Option<Placement> {
        let removed = self.jobs.swap_remove(job);
        self.next = 0;
        removed.placement
    }

    /// Notes that a job was answered to its end.
    pub(super) fn note_answered(&mut self, job: usize, at_ns: u64) {
        if let Some(job) = self.jobs.get_mut(job) {
            job.answered_ns = Some(at_ns);
        }
    }

    /// When a prompt was answered to its end, in nanoseconds from the call's first byte.
    pub(super) fn answered_ns(&self, part: usize) -> Option<u64> {
        let mut jobs = self.jobs.iter().filter(|job| job.part == part);
        let first = jobs.next()?.answered_ns?;
        jobs.try_fold(first, |last, job| Some(last.max(job.answered_ns?)))
    }

    /// Whether output has come that a client may see, from the job or from the answer that it continues.
    pub(super) fn has_shown(&self, job: usize) -> bool {
        self.jobs.get(job).is_some_and(|job| job.shown || job.continued_choice.is_some())
    }

    /// The choice that it continues for another worker.
    pub(super) fn choice(&self, job: usize) -> Option<u32> {
        self.jobs.get(job)?.continued_choice
    }

    /// Whether no engine has taken any job.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// How the engines timed the jobs that have ended.
    pub(crate) fn runs(&self) -> impl Iterator<Item = EngineRun> + Clone {
        let reports =
            self.jobs.iter().filter_map(|job| Some((job.submitted_ns, &job.report.as_ref()?.engine)));
        reports.map(|(submitted_ns, engine)| EngineRun {
            submitted_ns,
            queue_ns: engine.queue_ns,
            prefill_ns: engine.prefill_ns,
            decode_ns: engine.decode_ns,
            paused_ns: engine.paused_ns,
        })
    }

    /// The next event of any job, with the index of the job. `None` once all have ended. An engine that died shows as a
    /// job that ends without an event.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Option<JobEvent>)>> {
        let count = self.jobs.len();
        let mut open = false;
        for step in 0..count {
            let index = (self.next + step) % count;
            let Some(job) = self.jobs.get_mut(index) else { continue };
            if job.report.is_some() {
                continue;
            }
            open = true;
            if let Poll::Ready(event) = job.events.poll_next(cx) {
                self.next = index + 1;
                job.take(event.as_ref());
                return Poll::Ready(Some((index, event)));
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// Cancels what still runs and waits until the engines have stopped all of it, at most [`RECEIPT_WAIT`] altogether.
    pub(super) async fn cancel(&mut self) {
        let running = self.jobs.iter_mut().filter(|job| job.report.is_none());
        let receipts: Vec<_> = running.map(|job| (job.control.cancel(), &mut job.report)).collect();
        let until = tokio::time::Instant::now() + RECEIPT_WAIT;
        for (receipt, report) in receipts {
            *report = Some(tokio::time::timeout_at(until, receipt.report()).await.unwrap_or_default());
        }
    }

    /// The first prompt whose blocks were not all in the cache, and why.
    pub(crate) fn first_miss(&self) -> Option<(usize, CacheMiss)> {
        let mut own = self.jobs.iter().filter(|job| job.continued_choice.is_none());
        own.find_map(|job| Some((job.part, job.report.as_ref()?.engine.miss?)))
    }

    /// The usage of all jobs together.
    pub(super) fn usage(&self) -> Usage {
        self.reports().fold(Usage::default(), |sum, report| sum.plus(&report.usage))
    }

    /// The usage of one job, including its whole prompt of `prompt_tokens`, even if a part was computed elsewhere
    /// before. It is what the job reports, but at least what came.
    pub(super) fn usage_of(&self, job: usize, prompt_tokens: u64) -> Usage {
        let Some(job) = self.jobs.get(job) else { return Usage::default() };
        let reported = job.report.as_ref().map(|report| report.usage).unwrap_or_default();
        let (before, received) = job.generated;
        let output = reported.output.max(received.saturating_sub(reported.reasoning));
        let prompt = prompt_tokens + before;
        match job.cached {
            Some(cached) if reported.prompt_tokens() < prompt => {
                let cached_input = cached.min(prompt);
                Usage { input: prompt - cached_input, cached_input, output, ..Usage::default() }
            }
            _ => Usage { output, ..reported },
        }
    }

    /// The jobs that were not taken back, each as prompt index and job index.
    pub(super) fn running(&self) -> Vec<(usize, usize)> {
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| job.placement.is_some());
        jobs.map(|(at, job)| (job.part, at)).collect()
    }

    /// What engines report about the jobs: the times of the first one, the sums of all.
    pub(crate) fn engine(&self) -> Option<EngineTrace> {
        let mut engines = self.reports().map(|report| &report.engine);
        let first = engines.next()?.clone();
        Some(engines.fold(first, |sum, engine| sum.with(engine)))
    }

    /// The reports of the jobs that have ended.
    fn reports(&self) -> impl Iterator<Item = &JobReport> {
        self.jobs.iter().filter_map(|job| job.report.as_deref())
    }
}
