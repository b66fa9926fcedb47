//! The report of a finished job on the wire. Reported times are limited to the time that passed on this side.

use std::ops::Sub;

use headrace_domain::{
    BLOCK_TOKENS, CacheLife, CacheMiss, CachePin, ConcurrentWork, EngineTrace, MissReason, Usage, WorkAhead,
};
use headrace_engine_api::JobReport;
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_SEQUENCES, MAX_TOKENS};

/// The report of a finished job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Prompt tokens computed.
    pub(crate) input: u64,
    /// Prompt tokens read from the prefix cache.
    pub(crate) cached_input: u64,
    /// Tokens generated.
    pub(crate) output: u64,
    pub(crate) engine: EngineFigures,
    /// The additional report, which arrives earlier in its own frame.
    #[serde(skip)]
    pub(crate) also: Box<ReportExtras>,
}

/// The additional report of a job, for gateways that asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportExtras {
    cache_write: u64,
    cache_write_1h: u64,
    pinned_blocks: u32,
    unpinned_blocks: u32,
    ahead: Option<WorkAhead>,
    beside: Option<ConcurrentWork>,
}

/// How many prompt tokens the job's marks allow to keep. Reports beyond that are not believed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptPrompt {
    tokens: u64,
    for_an_hour: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct EngineFigures {
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
    miss: Option<ReportedMiss>,
    step_ns: u64,
    forward_ns: u64,
    sample_ns: u64,
    paused_ns: u64,
    thoughts_cut: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedMiss {
    reason: MissReason,
    token: u32,
    elsewhere: bool,
    other: Option<u32>,
}

impl From<&JobReport> for WorkerReport {
    fn from(report: &JobReport) -> Self {
        // The ignored fields are part of `ReportExtras`.
        let Usage { input, cached_input, cache_write: _, cache_write_1h: _, output, reasoning, .. } =
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
            pinned_blocks: _,
            unpinned_blocks: _,
            ahead: _,
            beside: _,
        } = report.engine;
        let miss = miss.map(|CacheMiss { reason, token, elsewhere, place: _, other }| ReportedMiss {
            reason,
            token,
            elsewhere,
            other,
        });
        let engine = EngineFigures {
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
        let output = output.saturating_add(reasoning);
        Self { input, cached_input, output, engine, also: Box::default() }
    }
}

impl From<&JobReport> for ReportExtras {
    fn from(report: &JobReport) -> Self {
        let Usage { cache_write, cache_write_1h, .. } = report.usage;
        let EngineTrace { pinned_blocks, unpinned_blocks, ahead, beside, .. } = report.engine;
        Self { cache_write, cache_write_1h, pinned_blocks, unpinned_blocks, ahead, beside }
    }
}

impl WorkerReport {
    /// Converts the report of a job with `prompt` prompt tokens. `elapsed_ns` is the job's duration as seen from this
    /// side, and limits all times.
    pub fn within(self, prompt: u64, elapsed_ns: u64) -> JobReport {
        let Self { input, cached_input, output, engine, also } = self;
        let [cached_input, input, cache_write, cache_write_1h] =
            parts_of(prompt, [cached_input, input, also.cache_write, also.cache_write_1h]);
        let [queue_ns, prefill_ns, decode_ns] =
            parts_of(elapsed_ns, [engine.queue_ns, engine.prefill_ns, engine.decode_ns]);
        let [pinned_blocks, unpinned_blocks] =
            parts_of(blocks_of(prompt), [also.pinned_blocks, also.unpinned_blocks]);
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
            miss: miss.map(|ReportedMiss { reason, token, elsewhere, other }| CacheMiss {
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
            pinned_blocks,
            unpinned_blocks,
            ahead: also.ahead.map(|ahead| bounded_ahead(ahead).within(queue_ns)),
            beside: also.beside.map(|beside| bounded_beside(beside, decode_ns)),
        };
        let usage = Usage { input, cached_input, cache_write, cache_write_1h, output, ..Usage::default() };
        JobReport { usage, engine }
    }
}

impl KeptPrompt {
    pub(crate) fn by(pins: &[CachePin]) -> Self {
        let longest = |life: CacheLife| {
            let marked = pins.iter().filter(|pin| pin.life >= life).map(|pin| u64::from(pin.tokens));
            marked.max().unwrap_or_default()
        };
        Self { tokens: longest(CacheLife::Minutes), for_an_hour: longest(CacheLife::Hour) }
    }
}

impl ReportExtras {
    /// Returns the number of tokens that were written to the cache to be kept. `None` if the marks do not allow that
    /// many.
    pub(crate) fn writes(&self, marked: KeptPrompt) -> Option<u64> {
        let writes = self.cache_write.checked_add(self.cache_write_1h)?;
        (writes <= marked.tokens && self.cache_write_1h <= marked.for_an_hour).then_some(writes)
    }

    /// Limits the report to what the marks allow to keep.
    pub(crate) fn within(self, marked: KeptPrompt) -> Self {
        let for_an_hour = self.cache_write_1h.min(marked.for_an_hour);
        let [cache_write_1h, cache_write] = parts_of(marked.tokens, [for_an_hour, self.cache_write]);
        let [pinned_blocks, unpinned_blocks] =
            parts_of(blocks_of(marked.tokens), [self.pinned_blocks, self.unpinned_blocks]);
        Self { cache_write, cache_write_1h, pinned_blocks, unpinned_blocks, ..self }
    }
}

/// Limits each part to what the parts before it leave of `whole`.
fn parts_of<T: Ord + Copy + Sub<Output = T>, const N: usize>(whole: T, parts: [T; N]) -> [T; N] {
    let mut left = whole;
    parts.map(|part| {
        let part = part.min(left);
        left = left - part;
        part
    })
}

/// Returns the number of whole blocks in `tokens` tokens.
fn blocks_of(tokens: u64) -> u32 {
    u32::try_from(tokens / BLOCK_TOKENS as u64).unwrap_or(u32::MAX)
}

fn bounded_ahead(ahead: WorkAhead) -> WorkAhead {
    WorkAhead {
        running: ahead.running.min(MAX_SEQUENCES),
        own: ahead.own.min(MAX_SEQUENCES),
        prefill_tokens: ahead.prefill_tokens.min(MAX_TOKENS),
        ..ahead
    }
}

fn bounded_beside(beside: ConcurrentWork, decode_ns: u64) -> ConcurrentWork {
    ConcurrentWork {
        prefill_tokens: beside.prefill_tokens.min(MAX_TOKENS),
        decode_prefill_tokens: beside.decode_prefill_tokens.min(MAX_TOKENS),
        decode_prefill_ns: beside.decode_prefill_ns.min(decode_ns),
    }
}

/// Serializes as JSON inside a frame. Postcard does not support optional fields, and later versions may add some.
pub(crate) mod as_json {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::ReportExtras;

    pub(crate) fn serialize<S: Serializer>(also: &ReportExtras, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&serde_json::to_vec(also).map_err(S::Error::custom)?)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReportExtras, D::Error> {
        serde_json::from_slice(<&[u8]>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
