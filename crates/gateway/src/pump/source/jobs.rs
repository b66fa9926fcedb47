//! The engine jobs of one call, one per prompt, read as one stream of events. Must not know what the events mean.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use headrace_domain::{CacheMiss, EngineRun, EngineTrace, Usage};
use headrace_engine_api::{Event, Events, JobReport, Ticket, TicketControl};
use headrace_fleet::{Failure, Outcome, Placement};

/// How long the receipts of cancelled jobs are waited for. The engine answers within a step.
const RECEIPT_WAIT: Duration = Duration::from_secs(10);

/// All jobs of a call.
#[derive(Default)]
pub(super) struct Jobs {
    jobs: Vec<OneJob>,
    /// Where the next look begins, so that no job starves another.
    next: usize,
}

/// A job that an engine has taken.
pub(crate) struct Handed {
    /// Of which prompt.
    pub(crate) part: usize,
    /// In whose place among the call's jobs.
    pub(crate) at: usize,
    /// The choice of another worker's that it goes on with, and nothing else.
    pub(crate) goes_on: Option<u32>,
    pub(crate) ticket: Ticket,
    pub(crate) placement: Placement,
    /// How many of the last ids of its prompt are that choice's.
    pub(crate) generated: u32,
    /// When the engine was given it, in nanoseconds from the call's first byte.
    pub(crate) submitted_ns: u64,
}

/// Who has a prompt now, and how far it came.
struct OneJob {
    /// Of which prompt.
    part: usize,
    events: Events,
    control: TicketControl,
    report: Option<Arc<JobReport>>,
    /// When the engine was given it, in nanoseconds from the call's first byte.
    submitted_ns: u64,
    /// When all of it was answered.
    answered_ns: Option<u64>,
    /// It counts as dispatched for as long as this is here, and hears how it goes.
    placement: Option<Placement>,
    /// It has begun, with this worker or an earlier one.
    begun: bool,
    /// The choice of another worker's that it goes on with, and nothing else.
    goes_on: Option<u32>,
    /// Something came that a client may see.
    shown: bool,
    /// It is at work on its prompt, of which so many tokens were in the engine's cache.
    cached: Option<u64>,
    /// Ids of its prompt that are an answer's, and those that came.
    generated: (u64, u64),
}

impl OneJob {
    /// Notes what an event means for the job and for its worker; `None`: the engine is gone.
    fn take(&mut self, event: Option<&Event>) {
        let outcome = match event {
            Some(Event::Started { cached_tokens }) => {
                self.cached = Some(u64::from(*cached_tokens));
                return;
            }
            Some(Event::Done(report)) => {
                self.report = Some(Arc::clone(report));
                Outcome::Answered
            }
            Some(Event::Failed { error, report }) => {
                self.report = Some(Arc::clone(report));
                Outcome::from(error)
            }
            None => {
                self.report = Some(Arc::default());
                Outcome::Failed { failure: Failure::Broke, why: "it stopped without a word".to_owned() }
            }
            Some(said) => {
                if let Event::Tokens { ids, .. } = said {
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

impl Jobs {
    /// Takes a job of prompt `part`, in the place `at` of one that came to nothing, or behind all others.
    pub(super) fn put(&mut self, handed: Handed) {
        let Handed { part, at, goes_on, generated, ticket, placement, submitted_ns } = handed;
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
            begun: goes_on.is_some(),
            goes_on,
            shown: false,
            cached: None,
            generated: (u64::from(generated), 0),
        };
        match self.jobs.get_mut(at) {
            None => self.jobs.push(job),
            Some(former) => {
                job.begun |= former.begun;
                *former = job;
            }
        }
    }

    /// The worker that had the job does not count as having it any longer.
    pub(super) fn take_back(&mut self, job: usize) -> Option<Placement> {
        self.jobs.get_mut(job)?.placement.take()
    }

    /// Of which prompt a job is.
    pub(super) fn part(&self, job: usize) -> usize {
        self.jobs.get(job).map_or(job, |job| job.part)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Its first step begins; false: its prompt was begun before, elsewhere.
    pub(super) fn begin(&mut self, job: usize) -> bool {
        let part = self.part(job);
        let before = self.jobs.iter().any(|other| other.part == part && other.begun);
        self.jobs.get_mut(job).is_some_and(|job| !std::mem::replace(&mut job.begun, true) && !before)
    }

    /// Who has the only job, as long as nothing came of it that a client may see.
    pub(super) fn only_one(&self) -> Option<&Placement> {
        match self.jobs.as_slice() {
            [only] if !only.shown && only.goes_on.is_none() && only.report.is_none() => {
                only.placement.as_ref()
            }
            _ => None,
        }
    }

    /// Of two jobs for one prompt this one is left, which cancels it; the other one stands in the first place.
    pub(super) fn leave(&mut self, job: usize) -> Option<Placement> {
        let left = self.jobs.swap_remove(job);
        self.next = 0;
        left.placement
    }

    /// It was answered to its end.
    pub(super) fn answered(&mut self, job: usize, at_ns: u64) {
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

    /// Whether something came of it, or of the answer that it goes on with, that a client may see.
    pub(super) fn has_shown(&self, job: usize) -> bool {
        self.jobs.get(job).is_some_and(|job| job.shown || job.goes_on.is_some())
    }

    /// The choice of another worker's that it goes on with.
    pub(super) fn choice(&self, job: usize) -> Option<u32> {
        self.jobs.get(job)?.goes_on
    }

    /// Whether no engine has taken any.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// How the engines timed those that have ended.
    pub(super) fn runs(&self) -> impl Iterator<Item = EngineRun> + Clone {
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

    /// The next event of any job and which job it is of; `None` once all have ended. An engine that died shows as a
    /// job that ends without a report.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Option<Event>)>> {
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

    /// Cancels what still runs and waits until the engine has let go of all of it, at most [`RECEIPT_WAIT`] in all.
    pub(super) async fn cancel(&mut self) {
        let running = self.jobs.iter_mut().filter(|job| job.report.is_none());
        let receipts: Vec<_> = running.map(|job| (job.control.cancel(), &mut job.report)).collect();
        let until = tokio::time::Instant::now() + RECEIPT_WAIT;
        for (receipt, report) in receipts {
            *report = Some(tokio::time::timeout_at(until, receipt.report()).await.unwrap_or_default());
        }
    }

    /// The first prompt whose blocks were not all in the cache, and why.
    pub(super) fn first_miss(&self) -> Option<(usize, CacheMiss)> {
        let mut own = self.jobs.iter().filter(|job| job.goes_on.is_none());
        own.find_map(|job| Some((job.part, job.report.as_ref()?.engine.miss?)))
    }

    /// What all jobs took together.
    pub(super) fn usage(&self) -> Usage {
        self.reports().fold(Usage::default(), |sum, report| sum.plus(&report.usage))
    }

    /// What one of them took, its prompt of so many tokens included, whatever was computed of it elsewhere before: what it reports,
    /// and no less than what came.
    pub(super) fn usage_of(&self, job: usize, prompt_tokens: u64) -> Usage {
        let Some(job) = self.jobs.get(job) else { return Usage::default() };
        let reported = job.report.as_ref().map(|report| report.usage).unwrap_or_default();
        let (before, came) = job.generated;
        let output = reported.output.max(came.saturating_sub(reported.reasoning));
        let prompt = prompt_tokens + before;
        match job.cached {
            Some(cached) if reported.prompt_tokens() < prompt => {
                let cached_input = cached.min(prompt);
                Usage { input: prompt - cached_input, cached_input, output, ..Usage::default() }
            }
            _ => Usage { output, ..reported },
        }
    }

    /// Those that were not taken back: of which prompt, and the place among all.
    pub(super) fn running(&self) -> Vec<(usize, usize)> {
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| job.placement.is_some());
        jobs.map(|(at, job)| (job.part, at)).collect()
    }

    /// What engines saw of them: the first job's times, everyone's sums.
    pub(super) fn engine(&self) -> Option<EngineTrace> {
        let mut engines = self.reports().map(|report| &report.engine);
        let first = engines.next()?.clone();
        Some(engines.fold(first, |sum, engine| sum.with(engine)))
    }

    /// Of those that have ended.
    fn reports(&self) -> impl Iterator<Item = &JobReport> {
        self.jobs.iter().filter_map(|job| job.report.as_deref())
    }
}
