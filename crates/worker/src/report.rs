//! What a job took, as it travels. Whatever is said, times lie within those that passed here.

use headrace_domain::{CacheMiss, EngineTrace, MissReason, Usage};
use headrace_engine_api::JobReport;
use serde::{Deserialize, Serialize};

/// What a job took.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Prompt tokens computed.
    pub(crate) input: u64,
    /// Prompt tokens read from the prefix cache.
    pub(crate) cached_input: u64,
    /// Tokens generated.
    pub(crate) output: u64,
    pub(crate) engine: Engine,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Engine {
    queue_depth: u32,
    queue_ns: u64,
    prefill_ns: u64,
    decode_ns: u64,
    steps: u32,
    prefill_chunks: u32,
    batch_min: u32,
    batch_max: u32,
    batch_sum: u64,
    preemptions: u32,
    cached_blocks: u32,
    prompt_blocks: u32,
    miss: Option<Miss>,
    step_ns: u64,
    forward_ns: u64,
    sample_ns: u64,
    paused_ns: u64,
    thoughts_cut: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Miss {
    reason: MissReason,
    token: u32,
    elsewhere: bool,
    other: Option<u32>,
}

impl From<&JobReport> for Report {
    fn from(report: &JobReport) -> Self {
        let Usage { input, cached_input, cache_write: _, cache_write_1h: _, output, reasoning } =
            report.usage;
        let EngineTrace {
            queue_depth,
            queue_ns,
            prefill_ns,
            decode_ns,
            steps,
            prefill_chunks,
            batch_min,
            batch_max,
            batch_sum,
            preemptions,
            cached_blocks,
            prompt_blocks,
            miss,
            step_ns,
            forward_ns,
            sample_ns,
            paused_ns,
            thoughts_cut,
            // Jobs that came from elsewhere wish nothing to be kept.
            pinned_blocks: _,
            unpinned_blocks: _,
            // No room for them in the protocol: of such a job the wait is told as a whole.
            ahead: _,
            beside: _,
        } = report.engine;
        let miss = miss.map(|CacheMiss { reason, token, elsewhere, place: _, other }| Miss {
            reason,
            token,
            elsewhere,
            other,
        });
        let engine = Engine {
            queue_depth,
            queue_ns,
            prefill_ns,
            decode_ns,
            steps,
            prefill_chunks,
            batch_min,
            batch_max,
            batch_sum,
            preemptions,
            cached_blocks,
            prompt_blocks,
            miss,
            step_ns,
            forward_ns,
            sample_ns,
            paused_ns,
            thoughts_cut,
        };
        Self { input, cached_input, output: output.saturating_add(reasoning), engine }
    }
}

impl Report {
    /// What it says of a job of so many prompt tokens that took so long, as seen from here.
    pub fn within(self, prompt: u64, elapsed_ns: u64) -> JobReport {
        let Self { input, cached_input, output, engine } = self;
        let cached_input = cached_input.min(prompt);
        let input = input.min(prompt.saturating_sub(cached_input));
        let mut left = elapsed_ns;
        let mut part = |nanos: u64| {
            let part = nanos.min(left);
            left = left.saturating_sub(part);
            part
        };
        let (queue_ns, prefill_ns, decode_ns) =
            (part(engine.queue_ns), part(engine.prefill_ns), part(engine.decode_ns));
        let step_ns = engine.step_ns.min(elapsed_ns);
        let miss = engine.miss.filter(|miss| u64::from(miss.token) <= prompt);
        let engine = EngineTrace {
            queue_depth: engine.queue_depth,
            queue_ns,
            prefill_ns,
            decode_ns,
            steps: engine.steps,
            prefill_chunks: engine.prefill_chunks,
            batch_min: engine.batch_min,
            batch_max: engine.batch_max,
            batch_sum: engine.batch_sum.min(u64::from(u32::MAX)),
            preemptions: engine.preemptions,
            cached_blocks: engine.cached_blocks,
            prompt_blocks: engine.prompt_blocks,
            miss: miss.map(|Miss { reason, token, elsewhere, other }| CacheMiss {
                reason,
                token,
                elsewhere,
                place: None,
                other,
            }),
            step_ns,
            forward_ns: engine.forward_ns.min(step_ns),
            sample_ns: engine.sample_ns.min(step_ns),
            paused_ns: engine.paused_ns.min(elapsed_ns),
            thoughts_cut: engine.thoughts_cut,
            pinned_blocks: 0,
            unpinned_blocks: 0,
            ahead: None,
            beside: None,
        };
        JobReport { usage: Usage { input, cached_input, output, ..Usage::default() }, engine }
    }
}
