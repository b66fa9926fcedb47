//! An engine that answers, delays, fails, hangs, dies or panics, determined by a seed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::{EngineTrace, FinishReason, PrefixKeys, Usage};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, EventSender, Job, JobError, JobEvent, JobReport, JobTicket,
    LoadReport, SubmitRefusal, channel,
};

use crate::world::{Faults, Random};

/// Occurs once in the text of every token and nowhere else in an answer.
pub(crate) const MARK: char = 'Q';

pub(crate) struct SimEngine {
    pub(crate) capabilities: Capabilities,
    pub(crate) random: Mutex<Random>,
    pub(crate) faults: Arc<Faults>,
}

/// How a job ends.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Done,
    Fails,
    /// Sends nothing more until it is cancelled.
    Hangs,
    /// Its thread is gone: no terminal event.
    Dies,
    /// It is cut off by its engine's shutdown.
    Stops,
}

impl Engine for SimEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        let mut random = self.random.lock().unwrap_or_else(std::sync::PoisonError::into_inner).fork();
        if !self.faults.are_over() && random.one_in(25) {
            let retry_after = Duration::from_secs(1);
            return Err(SubmitRefusal::QueueFull { what: "sequences", limit: 7, retry_after });
        }
        assert!(self.faults.are_over() || !random.one_in(40), "the seed says so");
        let fate = match random.below(20) {
            _ if self.faults.are_over() => Fate::Done,
            0 => Fate::Hangs,
            1 | 2 => Fate::Fails,
            3 => Fate::Dies,
            4 => Fate::Stops,
            _ => Fate::Done,
        };
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(|| {}));
        tokio::spawn(work(sender, job, fate, random));
        Ok(ticket)
    }

    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        LoadReport::default()
    }

    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}

async fn work(sender: EventSender, job: Job, fate: Fate, mut random: Random) {
    let (pace, bytes) = (random.below(400), 1 << random.below(13));
    let stop_at = match fate {
        Fate::Done => u64::MAX,
        _ => random.below(u64::from(job.sampling.max_tokens * job.sampling.n)),
    };
    let mut output = 0;
    let report = |output| {
        let usage = Usage { input: job.prompt.len() as u64, output, ..Usage::default() };
        Arc::new(JobReport { usage, engine: EngineTrace { steps: 1, ..EngineTrace::default() } })
    };
    let cancelled = |output| JobEvent::Failed { error: JobError::Cancelled, report: report(output) };
    tokio::time::sleep(Duration::from_millis(random.below(300))).await;
    sender.send(JobEvent::Started { cached_tokens: 0 });
    for choice in job.first_choice..job.first_choice + job.sampling.n {
        for _ in 0..job.sampling.max_tokens {
            tokio::time::sleep(Duration::from_millis(random.below(pace + 1))).await;
            if sender.is_cancelled() {
                return sender.finish(cancelled(output));
            }
            if output >= stop_at {
                return end(sender, fate, report(output), &mut random).await;
            }
            output += 1;
            let text = format!("{MARK}{}", "x".repeat(bytes));
            sender.send(JobEvent::Tokens { choice, ids: vec![65], text, logprobs: Vec::new() });
        }
        sender.send(JobEvent::Finished { choice, reason: FinishReason::Length });
    }
    sender.finish(JobEvent::Done(report(output)));
}

async fn end(sender: EventSender, fate: Fate, report: Arc<JobReport>, random: &mut Random) {
    match fate {
        Fate::Dies => drop(sender),
        Fate::Stops => sender.finish(JobEvent::Failed { error: JobError::ShuttingDown, report }),
        Fate::Fails => sender.finish(JobEvent::Failed { error: JobError::NotFinite { position: 1 }, report }),
        Fate::Done | Fate::Hangs => {
            while !sender.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            // Some engines take longer to stop than the gateway waits.
            tokio::time::sleep(Duration::from_millis(if random.one_in(4) { 15_000 } else { 5 })).await;
            sender.finish(JobEvent::Failed { error: JobError::Cancelled, report });
        }
    }
}
