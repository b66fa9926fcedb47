//! Turns the logits of a step into the next tokens: prompt scores, the choice of one token, and the forced ids after
//! it.
//! Must not know: the plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use headrace_domain::FinishReason;
use headrace_engine_api::{GrammarFailed, JobError};
use headrace_scheduler::{LogitsNeed, Outcome, PlannedChunk, SeqId};

use crate::choice_grammar::ChoiceGrammar;
use crate::intake::SharedState;
use crate::job::{Choice, ChosenId, JobState, Rules};
use crate::logprobs::{all_finite, score, unscored};
use crate::random::uniform;
use crate::sampler::{ForbiddenIds, Sampler, is_greedy};
use crate::stepper::grammars::mask_until;
use crate::stepper::{Stepper, panic_message, wanted};
use crate::text::TextOf;

impl Stepper {
    /// As [`Self::sample`]. A panic ends only this chunk's job.
    pub(super) fn sample_guarded(&mut self, at: usize, row: usize) -> Outcome {
        match catch_unwind(AssertUnwindSafe(|| self.sample(at, row))) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => self.blame(at, error),
            Err(panic) => self.blame(at, JobError::Panicked { detail: panic_message(&*panic) }),
        }
    }

    /// Samples from the logits of one chunk. Its rows start at `row`.
    fn sample(&mut self, at: usize, row: usize) -> Result<Outcome, JobError> {
        let missing = || JobError::Internal { detail: "a chunk without its job or its logits".to_owned() };
        let chunk = *self.batch.chunks.get(at).ok_or_else(missing)?;
        let (job_at, choice) = self.owner(chunk.seq).ok_or_else(missing)?;
        let job = self.jobs.get_mut(job_at).and_then(Option::as_mut).ok_or_else(missing)?;
        if job.failure.is_some() {
            // The reader is gone, or another choice of the job failed earlier in this step.
            self.over.push(job_at);
            return Ok(Outcome::Failed);
        }
        let end = chunk.start + chunk.len;
        let rows = wanted(chunk.logits).rows(chunk.len);
        for i in 0..rows {
            if !all_finite(self.logits.row(row + i).ok_or_else(missing)?) {
                return Err(JobError::NotFinite { position: end - rows + i });
            }
        }
        let (isa, text) = (self.intake.config.isa, &*self.intake.text);
        if choice == 0
            && let Some(top) = job.scoring()
        {
            score_prompt(job, &chunk, top, |i| self.logits.row(row + i), isa, text);
        }
        job.note_computed(end);
        if !chunk.reaches_end {
            return Ok(Outcome::Advanced);
        }
        if job.rules.limit == 0 {
            job.end(choice, FinishReason::Length);
            return Ok(self.ended(job_at));
        }
        let last = row + rows.saturating_sub(1);
        let logits = self.logits.row(last).filter(|_| rows > 0).ok_or_else(missing)?;
        let taken = job.choices.get_mut(choice).ok_or_else(missing)?;
        let until = || mask_until(&mut self.mask_until, self.times.forward_ns);
        if !taken.is_ready(&mut *self.masks, until) {
            self.late.push(chunk.seq);
            return Ok(Outcome::Repeat);
        }
        if taken.grammar.as_ref().is_some_and(ChoiceGrammar::is_complete_behind) {
            job.end_behind(choice);
            return Ok(self.ended(job_at));
        }
        let id = choose(&mut self.sampler, logits, &job.rules, taken, end as u64).map_err(JobError::from)?;
        let logprob = job.rules.sampling.logprobs.map(|top| score(logits, id, top, isa, text));
        taken.note_id(id, &job.rules).map_err(JobError::from)?;
        if let Some(grammar) = &mut taken.grammar {
            grammar.send(&mut *self.masks);
            grammar.poll();
            if !grammar.has_accepted() {
                taken.pending = Some(ChosenId { id, logprob });
                self.pending.push(at);
                return Ok(Outcome::Token(id));
            }
        }
        self.accept(chunk.seq, (job_at, choice), ChosenId { id, logprob })
    }

    /// Accepts an id that was chosen for a choice and that the grammar has accepted too.
    pub(super) fn accept(
        &mut self,
        seq: SeqId,
        (job_at, choice): (usize, usize),
        ChosenId { id, logprob }: ChosenId,
    ) -> Result<Outcome, JobError> {
        let now_ns = self.intake.config.clock.monotonic_nanos();
        let Some(job) = self.jobs.get_mut(job_at).and_then(Option::as_mut) else {
            return Ok(Outcome::Failed);
        };
        if let Some(failed) = job.form_failure(choice) {
            return Err(failed.into());
        }
        let from = self.further.len();
        if !job.accept(choice, id, logprob, &mut self.further, now_ns).map_err(JobError::from)? {
            return Ok(self.ended(job_at));
        }
        if let Some(grammar) = job.choices.get_mut(choice).and_then(|choice| choice.grammar.as_mut()) {
            grammar.send_behind(&mut *self.masks);
            let units = grammar.take_work();
            if units > 0 {
                self.form_work.push((seq, units));
            }
        }
        if self.further.len() > from {
            self.followed.push((seq, from..self.further.len()));
        }
        self.note(job_at);
        Ok(Outcome::Token(id))
    }

    /// Appends the forced ids to their sequences as known tokens.
    pub(super) fn append_further(&mut self, shared: &mut SharedState) {
        for (seq, ids) in self.followed.drain(..) {
            if let Some(ids) = self.further.get(ids) {
                shared.scheduler.append(seq, ids);
            }
        }
        self.further.clear();
    }
}

/// Returns the next id at `position`: the forced id, or one that the grammar allows.
fn choose(
    sampler: &mut Sampler,
    logits: &[f32],
    rules: &Rules,
    choice: &mut Choice,
    position: u64,
) -> Result<u32, GrammarFailed> {
    if let Some(id) = choice.forced() {
        return Ok(id);
    }
    let sampling = &rules.sampling;
    let random = if is_greedy(sampling) { 0.0 } else { uniform(sampling.seed.0, choice.number, position) };
    let suppressed = rules.suppressed(choice.generated);
    let allowed = choice.grammar.as_mut().map(ChoiceGrammar::mask).transpose()?;
    Ok(sampler.choose(logits, sampling, &choice.seen, ForbiddenIds { suppressed, allowed }, random))
}

/// Scores the prompt tokens that a chunk's logits predict.
fn score_prompt<'a>(
    job: &mut JobState,
    chunk: &PlannedChunk,
    top: u8,
    row: impl Fn(usize) -> Option<&'a [f32]>,
    isa: headrace_kernels::Isa,
    text: &dyn TextOf,
) {
    let prompt = Arc::clone(&job.prompt);
    if job.next_score() == 0
        && let Some(&first) = prompt.first()
    {
        job.push_score(unscored(first, text));
    }
    if chunk.logits == LogitsNeed::All {
        for i in 0..chunk.len {
            let predicts = chunk.start + i + 1;
            // A recomputation after preemption skips tokens that are scored already.
            if predicts == job.next_score()
                && let (Some(&id), Some(row)) = (prompt.get(predicts), row(i))
            {
                job.push_score(score(row, id, top, isa, text));
            }
        }
    }
    job.deliver_scores();
}
