//! Sequences whose grammars are late. They are paused, keep their blocks, and resume when their grammars have an
//! answer. A step waits for grammars only for a fraction of its forward time. Must not know: logits or any grammar.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use headrace_engine_api::JobError;
use headrace_scheduler::{Outcome, SeqId};

use crate::choice_grammar::ChoiceGrammar;
use crate::intake::SharedState;
use crate::stepper::{Stepper, panic_message};

/// The least and the most time that a step waits for masks. In between, it waits for half of its forward time.
const MIN_MASK_WAIT: Duration = Duration::from_micros(100);
const MAX_MASK_WAIT: Duration = Duration::from_millis(5);
/// Units of grammar work that are charged as one token.
const UNITS_PER_CHARGED_TOKEN: u64 = 16_000;

/// Returns the deadline of a step's wait for masks, given its forward time. `known` holds the deadline if the step
/// has waited before.
pub(super) fn mask_until(known: &mut Option<Instant>, forward_ns: u64) -> Instant {
    *known.get_or_insert_with(|| Instant::now() + wait_after(forward_ns))
}

fn wait_after(forward_ns: u64) -> Duration {
    (Duration::from_nanos(forward_ns) / 2).clamp(MIN_MASK_WAIT, MAX_MASK_WAIT)
}

impl Stepper {
    /// Accepts the chosen ids that were waiting for their grammars. A sequence whose grammar needs longer is paused.
    pub(super) fn accept_pending(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let until = Instant::now() + wait_after(self.times.forward_ns) / 2;
        for at in std::mem::take(&mut self.pending) {
            let Some(seq) = self.batch.chunks.get(at).map(|chunk| chunk.seq) else { continue };
            let Some((job_at, choice)) = self.owner(seq) else { continue };
            let taken = self.jobs.get_mut(job_at).and_then(Option::as_mut);
            let taken = taken.filter(|job| job.failure.is_none());
            let Some(taken) = taken.and_then(|job| job.choices.get_mut(choice)) else { continue };
            let masks = &mut *self.masks;
            let in_time = taken
                .grammar
                .as_mut()
                .is_none_or(|grammar| grammar.wait(until, masks, ChoiceGrammar::has_accepted));
            if !in_time {
                self.late.push(seq);
                continue;
            }
            let Some(chosen) = taken.pending.take() else { continue };
            let accepted = catch_unwind(AssertUnwindSafe(|| self.accept(seq, (job_at, choice), chosen)));
            let outcome = match accepted {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => self.blame(at, error),
                Err(panic) => self.blame(at, JobError::Panicked { detail: panic_message(&*panic) }),
            };
            if let Some(known) = self.outcomes.get_mut(at) {
                *known = outcome;
            }
        }
    }

    /// Called after the commit. Charges tenants for grammar work, and pauses late sequences.
    pub(super) fn pause_late_choices(&mut self, shared: &mut SharedState) {
        for (seq, units) in self.form_work.drain(..) {
            shared.scheduler.charge(seq, units / UNITS_PER_CHARGED_TOKEN);
        }
        for seq in std::mem::take(&mut self.late) {
            let Some((job_at, choice)) = self.owner(seq) else { continue };
            let Some(job) = self.jobs.get_mut(job_at).and_then(Option::as_mut) else { continue };
            let Some(taken) = job.choices.get_mut(choice).filter(|choice| choice.seq == Some(seq)) else {
                continue;
            };
            taken.waits_for_grammar = true;
            shared.scheduler.pause(seq);
            if let Some(grammar) = &mut taken.grammar {
                grammar.wakes(true);
            }
            self.waiting_for_grammar.push(seq);
            // A reply may have come before `wakes(true)`, so the next step checks for it.
            shared.masks_ready = true;
        }
    }

    /// Called before the plan. Resumes sequences whose grammars have an answer.
    pub(super) fn join_again(&mut self, shared: &mut SharedState) {
        shared.masks_ready = false;
        for seq in std::mem::take(&mut self.waiting_for_grammar) {
            let Some((job_at, choice)) = self.owner(seq) else { continue };
            let joins = match catch_unwind(AssertUnwindSafe(|| self.joins(seq, (job_at, choice), shared))) {
                Ok(Ok(joins)) => joins,
                Ok(Err(error)) => self.fail_waiting(job_at, error),
                Err(panic) => {
                    self.fail_waiting(job_at, JobError::Panicked { detail: panic_message(&*panic) })
                }
            };
            if !joins {
                self.waiting_for_grammar.push(seq);
            }
        }
    }

    fn fail_waiting(&mut self, job_at: usize, error: JobError) -> bool {
        if let Some(job) = self.jobs.get_mut(job_at).and_then(Option::as_mut) {
            job.fail(error);
            self.over.push(job_at);
        }
        true
    }

    /// Whether a paused sequence may resume, or has ended.
    fn joins(
        &mut self,
        seq: SeqId,
        (job_at, choice): (usize, usize),
        shared: &mut SharedState,
    ) -> Result<bool, JobError> {
        let Some(job) = self.jobs.get_mut(job_at).and_then(Option::as_mut) else { return Ok(true) };
        let Some(taken) = job.choices.get_mut(choice).filter(|choice| choice.seq == Some(seq)) else {
            return Ok(true);
        };
        let Some(grammar) = &mut taken.grammar else { return Ok(true) };
        grammar.poll();
        if grammar.has_accepted()
            && let Some(chosen) = taken.pending.take()
        {
            let from = self.further.len();
            let outcome = self.accept(seq, (job_at, choice), chosen)?;
            self.followed.clear();
            let ids = self.further.split_off(from);
            match outcome {
                Outcome::Token(_) => {
                    shared.scheduler.append(seq, &ids);
                }
                _ => {
                    shared.scheduler.end(seq);
                    return Ok(true);
                }
            }
        }
        let Some(job) = self.jobs.get_mut(job_at).and_then(Option::as_mut) else { return Ok(true) };
        let Some(taken) = job.choices.get_mut(choice) else { return Ok(true) };
        let Some(grammar) = &mut taken.grammar else { return Ok(true) };
        grammar.poll_and_send(&mut *self.masks);
        if taken.pending.is_some() || !grammar.is_ready() {
            return Ok(false);
        }
        if let Some(failed) = grammar.failure() {
            return Err(failed.clone().into());
        }
        grammar.wakes(false);
        taken.waits_for_grammar = false;
        if !job.is_paused(choice) {
            shared.scheduler.resume(seq);
        }
        Ok(true)
    }
}
