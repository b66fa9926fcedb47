//! Restarts after the loop itself broke, which is not the fault of a single sequence. Every job ends, all state is
//! new, and the model stays. Must not know: threads, or how often this may happen.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use headrace_engine_api::JobError;
use headrace_kernels::forward::Logits;
use headrace_scheduler::Work;

use crate::config::EngineError;
use crate::sampler::Sampler;
use crate::stepper::{Batch, Stepper};

impl Stepper {
    /// Ends every job with `error` and discards the state of all sequences and blocks. The model stays usable,
    /// because panics inside it are caught at the call. Its KV blocks now hold stale data. No prefix lookup finds
    /// them, and a sequence writes a block before anything reads it.
    ///
    /// # Errors
    /// [`EngineError::Config`] if the limits no longer fit the model.
    pub(crate) fn restart(&mut self, error: &JobError) -> Result<(), EngineError> {
        let intake = Arc::clone(&self.intake);
        let scheduler = intake.config.scheduler_for(self.forward.shape())?;
        {
            let mut shared = intake.shared.lock();
            shared.scheduler = scheduler;
            shared.attention = false;
            self.jobs.extend(shared.inbox.drain(..).map(Some));
        }
        let jobs = std::mem::take(&mut self.jobs);
        let (times, now_ns, work) = (self.all_times, self.seen_ns, self.all_work);
        let mut ended = 0;
        for mut job in jobs.into_iter().flatten() {
            ended += 1;
            let end = AssertUnwindSafe(move || {
                job.fail(error.clone());
                job.close(times, now_ns, work);
            });
            // A job may itself contain what broke the loop and panic here. Its reader sees that the sender is gone.
            let _ = catch_unwind(end);
        }
        self.vacant.clear();
        self.owners.clear();
        self.over.clear();
        self.to_change.clear();
        self.outcomes.clear();
        self.further.clear();
        self.followed.clear();
        self.pending.clear();
        self.late.clear();
        self.waiting_for_grammar.clear();
        self.form_work.clear();
        self.batch = Batch::default();
        // The new scheduler counts from zero.
        self.all_work = Work::default();
        self.logits = Logits::default();
        self.sampler = Sampler::new(intake.config.isa);
        let mut shared = intake.shared.lock();
        shared.alive = shared.alive.saturating_sub(ended);
        if shared.alive == 0 {
            intake.quiet.notify_all();
        }
        Ok(())
    }
}
