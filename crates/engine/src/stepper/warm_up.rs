//! Computes some steps before the first job. No caller then pays for the first touch of memory, and waits can be
//! forecast from the first call on. Must not know: jobs.

use headrace_domain::BLOCK_TOKENS;
use headrace_engine_api::JobError;
use headrace_kernels::forward::{LogitsWanted, SequenceChunk};

use crate::stepper::{Stepper, run};

/// Prompt tokens to compute, in two halves. The first half touches all memory, and the second is measured.
const PROMPT_TOKENS: usize = 32;
/// Sequences in the step that computes one token for each sequence.
const SEQUENCES: usize = 8;

impl Stepper {
    /// Computes a short prompt, one token after it, and a step with one token for each of several sequences. Uses
    /// unallocated blocks and discards the results. The measured times are the scheduler's first estimate of what
    /// steps cost. Must be called while the engine has no job.
    ///
    /// # Errors
    /// The model's failure.
    pub fn warm_up(&mut self) -> Result<(), JobError> {
        let shape = self.forward.shape();
        let room = shape.max_positions.min(shape.block_count.saturating_mul(BLOCK_TOKENS));
        let config = &self.intake.config.scheduler;
        let len = PROMPT_TOKENS.min(config.max_chunk).min(config.step_tokens).min(room);
        let sequences = SEQUENCES.min(config.max_running).min(shape.block_count);
        let blocks: Vec<u32> = (0..len.saturating_add(1).div_ceil(BLOCK_TOKENS) as u32).collect();
        let tokens = vec![0; len];
        let (first, second) = tokens.split_at(len / 2);
        let chunk =
            |tokens, start| SequenceChunk { tokens, start, blocks: &blocks, logits: LogitsWanted::Last };
        if !first.is_empty() {
            self.timed(&[chunk(first, 0)])?;
        }
        let prefill_ns = self.timed(&[chunk(second, first.len())])?;
        let one = if len < room { Some(self.timed(&[chunk(&[0], len)])?) } else { None };
        let own: Vec<u32> = (0..sequences as u32).collect();
        let each = |block| SequenceChunk {
            tokens: &[0],
            start: 0,
            blocks: std::slice::from_ref(block),
            logits: LogitsWanted::Last,
        };
        let several_ns = self.timed(&own.iter().map(each).collect::<Vec<_>>())?;
        let scheduler = &mut self.intake.desk.lock().scheduler;
        scheduler.calibrate(second.len(), 0, prefill_ns);
        if let Some(one_ns) = one {
            scheduler.calibrate(0, 1, one_ns);
        }
        scheduler.calibrate(0, sequences, several_ns);
        Ok(())
    }

    /// Computes a batch outside of any job. Returns its time in nanoseconds.
    fn timed(&mut self, batch: &[SequenceChunk<'_>]) -> Result<u64, JobError> {
        let from_ns = self.now_ns();
        run(&mut *self.forward, batch, &mut self.logits)?;
        Ok(self.now_ns().saturating_sub(from_ns))
    }
}
