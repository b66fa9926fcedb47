//! Computes some steps before the first job. No caller then pays for the first touch of memory, and waits can be
//! forecast from the first call on. Must not know: jobs.

use headrace_engine_api::JobError;
use headrace_kernels::forward::{LogitsWanted, SequenceChunk};
use headrace_kv_layout::{BlockTables, KvGroup, StateSlots};

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
        let (kv, max_positions) = (shape.kv, shape.max_positions);
        let config = &self.intake.config.scheduler;
        let room = max_positions.min(kv.positions(config.chunk()));
        let len = PROMPT_TOKENS.min(config.max_chunk).min(config.step_tokens).min(room);
        let has_states = kv.groups().state().is_used();
        let sequences =
            kv.used().map(|group| group.block_count).fold(SEQUENCES.min(config.max_running), usize::min);
        let blocks_of =
            |group: &KvGroup| (0..group.blocks_for(len.saturating_add(1)) as u32).collect::<Vec<u32>>();
        let blocks = kv.groups().map(blocks_of);
        let long_context = shape.is_long(len.saturating_add(1));
        let tokens = vec![0; len];
        let (first, second) = tokens.split_at(len / 2);
        // A chunk that completes a block leaves its state in another slot than the one that it reads.
        let slot = |position: usize| u32::from(kv.full_blocks(position) % 2 == 1);
        let tables = |start: usize, tokens: &[u32]| BlockTables {
            full: blocks.full(),
            window: blocks.window(),
            states: has_states.then(|| StateSlots {
                from: slot(start),
                own: slot(start + tokens.len()),
                copy: None,
            }),
        };
        let chunk = |tokens, start| SequenceChunk {
            tokens,
            start,
            tables: tables(start, tokens),
            logits: LogitsWanted::Last,
            long_context,
        };
        if !first.is_empty() {
            self.timed(&[chunk(first, 0)])?;
        }
        let prefill_ns = self.timed(&[chunk(second, first.len())])?;
        let one = if len < room { Some(self.timed(&[chunk(&[0], len)])?) } else { None };
        let own: Vec<u32> = (0..sequences as u32).collect();
        let each = |block| SequenceChunk {
            tokens: &[0],
            start: 0,
            tables: BlockTables {
                full: std::slice::from_ref(block),
                window: std::slice::from_ref(block),
                states: has_states.then_some(StateSlots { from: *block, own: *block, copy: None }),
            },
            logits: LogitsWanted::Last,
            long_context,
        };
        let several_ns = self.timed(&own.iter().map(each).collect::<Vec<_>>())?;
        let scheduler = &mut self.intake.shared.lock().scheduler;
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
