//! Measures what the engine adds to a step: sampling, log-probabilities, text and events. The batch has 32 sequences
//! over a vocabulary of 128,000, and the model only copies logits. Also measures the scheduling part.
//! `cargo bench -p headrace-engine`.

use std::error::Error;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use headrace_domain::{CacheSalt, RequestId, Sampling, SystemClock};
use headrace_engine::{Decode, EngineConfig, Stepper, TextOf};
use headrace_engine_api::{Job, Priority, Tenant};
use headrace_kernels::Isa;
use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, SequenceChunk};
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_scheduler::SchedulerConfig;

const VOCAB: usize = 128_000;
const BATCH: usize = 32;
const STEPS: u32 = 40;

/// Copies one row of logits to every row.
struct Copies {
    shape: ForwardShape,
    row: Vec<f32>,
}

impl Forward for Copies {
    fn shape(&self) -> &ForwardShape {
        &self.shape
    }

    fn numerics(&self) -> &str {
        "copies"
    }

    fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError> {
        let rows = batch.iter().map(|chunk| chunk.logits.rows(chunk.tokens.len())).sum();
        out.reset(rows, VOCAB);
        for row in out.values_mut().chunks_mut(VOCAB) {
            row.copy_from_slice(&self.row);
        }
        Ok(())
    }
}

struct NoText;

impl TextOf for NoText {
    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Self)
    }

    fn bytes(&self, _id: u32) -> &[u8] {
        b"x"
    }
}

impl Decode for NoText {
    fn push(&mut self, _id: u32) -> String {
        "x".to_owned()
    }

    fn flush(&mut self) -> String {
        String::new()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let greedy = Sampling { max_tokens: STEPS + 5, ..Sampling::default() };
    let hot = Sampling { temperature: 1.0, ..greedy.clone() };
    let rows = [
        ("greedy", greedy.clone()),
        ("greedy, 20 logprobs", Sampling { logprobs: Some(20), ..greedy }),
        ("temperature 1", hot.clone()),
        ("top_p 0.9", Sampling { top_p: 0.9, ..hot.clone() }),
        ("top_k 40, top_p 0.9", Sampling { top_k: NonZeroU32::new(40), top_p: 0.9, ..hot.clone() }),
        ("penalties", Sampling { top_k: NonZeroU32::new(40), repetition_penalty: 1.1, ..hot }),
    ];
    for (name, sampling) in rows {
        let mut stepper = stepper()?;
        let job = Job {
            request: RequestId::from_bits(0),
            first_choice: 0,
            prompt: (0..8).collect(),
            sampling,
            salt: CacheSalt::derive(&[0; 32], "t", "m", None),
            keys: None,
            pins: Arc::default(),
            held: None,
            grammar: None,
            thought: None,
            tenant: Tenant(0),
            weight: 1,
            priority: Priority::Normal,
            start_deadline_ns: None,
            trace: None,
            generated: 0,
            unread_bytes: usize::MAX,
        };
        let mut tickets = Vec::new();
        for _ in 0..BATCH {
            tickets.push(stepper.submit(job.clone())?);
        }
        stepper.step();
        let before = stepper.load();
        let begun = Instant::now();
        for _ in 0..STEPS {
            stepper.step();
        }
        let each = begun.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS) / BATCH as f64;
        let after = stepper.load();
        let micros = |ns: u64| ns as f64 / 1e3 / f64::from(STEPS);
        let sampling = micros(after.sample_ns - before.sample_ns);
        let computing = micros(after.forward_ns - before.forward_ns);
        let scheduling = micros(after.step_ns - before.step_ns) - sampling - computing;
        println!(
            "{name}: {each:.0} µs a token; of a step of {BATCH} {sampling:.0} µs choosing tokens, {scheduling:.0} µs scheduling"
        );
        drop(tickets);
    }
    Ok(())
}

fn stepper() -> Result<Stepper, Box<dyn Error>> {
    let mut state = 1u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 40) as f32 + 1.0) / (1u64 << 24) as f32
    };
    // Similar to a real model: a bell curve with a few outliers.
    let row = (0..VOCAB).map(|_| (unit() + unit() + unit() - 1.5) * 4.0 - 2.0 * unit().ln()).collect();
    let shape = ForwardShape {
        vocab: VOCAB,
        max_positions: 4096,
        kv: KvLayout::single(KvGroup::full(1024, 0)),
        weight_bytes: 0,
        short_positions: None,
    };
    let config = EngineConfig {
        model: "m".to_owned(),
        compute_mode: "exact".to_owned(),
        eos: Vec::new(),
        skip_special: true,
        max_choices: 1,
        isa: Isa::best(),
        scheduler: SchedulerConfig::default(),
        clock: Arc::new(SystemClock::new()),
    };
    Ok(Stepper::new(Box::new(Copies { shape, row }), Arc::new(NoText), config)?)
}
