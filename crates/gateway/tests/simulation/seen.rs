//! What happened in the worlds, so that a simulation that no longer tries something is noticed.

use headrace_domain::{AttemptOutcome, CallOutcome, TraceRecord};

/// How often each thing happened.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    calls: u64,
    completed: u64,
    stalled: u64,
    left: u64,
    failed: u64,
    refused: u64,
    panicked: u64,
    journal_failures: u64,
    /// Completed by a worker that was not the first one asked.
    moved: u64,
}

impl Seen {
    pub(crate) fn new(journal_failures: u64) -> Self {
        Self { journal_failures, ..Self::default() }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.completed += other.completed;
        self.stalled += other.stalled;
        self.left += other.left;
        self.failed += other.failed;
        self.refused += other.refused;
        self.panicked += other.panicked;
        self.journal_failures += other.journal_failures;
        self.moved += other.moved;
    }

    pub(crate) fn check(&self) {
        let ended = [self.completed, self.stalled, self.left, self.failed, self.refused, self.panicked];
        let all = ended.iter().chain([&self.journal_failures, &self.moved]);
        assert!(all.into_iter().all(|count| *count > 0), "{self:?}");
    }

    pub(crate) fn count(&mut self, trace: &TraceRecord) {
        self.calls += 1;
        match &trace.outcome {
            CallOutcome::Completed { .. } => {
                self.completed += 1;
                let moved = trace.attempts.iter().any(|one| one.outcome != AttemptOutcome::Answered);
                self.moved += u64::from(moved);
            }
            CallOutcome::Cancelled { why } if why.contains("read nothing") => self.stalled += 1,
            CallOutcome::Cancelled { .. } => self.left += 1,
            CallOutcome::Failed { message, .. } if message.contains("inside") => self.panicked += 1,
            CallOutcome::Failed { .. } => self.failed += 1,
            CallOutcome::Refused(_) => self.refused += 1,
        }
    }
}
