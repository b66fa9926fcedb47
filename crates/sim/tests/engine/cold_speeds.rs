//! What a cold engine knows about its own speed, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::ManualClock;
use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, SequenceChunk};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{ScriptedForward, ToyVocabulary};

use crate::support::{Bench, roomy};

/// A model whose steps take virtual time.
struct Slow {
    inner: ScriptedForward,
    clock: Arc<ManualClock>,
    fixed: Duration,
    prompt_token: Duration,
    sequence: Duration,
}

impl Forward for Slow {
    fn shape(&self) -> &ForwardShape {
        self.inner.shape()
    }

    fn numerics(&self) -> &str {
        self.inner.numerics()
    }

    fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError> {
        let of = |chunk: &SequenceChunk<'_>| match chunk.tokens.len() {
            1 => self.sequence,
            tokens => self.prompt_token * tokens as u32,
        };
        self.clock.advance(self.fixed + batch.iter().map(of).sum::<Duration>());
        self.inner.step(batch, out)
    }
}

/// An engine that has computed only its warm-up. `costs` are milliseconds per step, prompt token and sequence.
fn cold(costs: [u64; 3]) -> Bench {
    slow(costs, roomy())
}

/// The same engine, with other limits.
pub(crate) fn slow([fixed, prompt_token, sequence]: [u64; 3], limits: SchedulerConfig) -> Bench {
    let clock = Arc::new(ManualClock::default());
    let slow = Slow {
        inner: ScriptedForward::new(64, 512, 256),
        clock: Arc::clone(&clock),
        fixed: Duration::from_millis(fixed),
        prompt_token: Duration::from_millis(prompt_token),
        sequence: Duration::from_millis(sequence),
    };
    let mut bench = Bench::timed(Box::new(slow), Arc::new(ToyVocabulary), &[], limits, clock);
    bench.stepper.warm_up().unwrap();
    bench
}

#[test]
fn a_cold_engine_knows_what_its_steps_cost() {
    // Memory-bound, compute-bound, and in between.
    for costs in [[200, 1, 2], [5, 40, 60], [60, 5, 30]] {
        let load = cold(costs).stepper.load();
        let [fixed, prompt_token, sequence] = costs.map(|millis| millis as f64 / 1e3);
        let chunk = roomy().max_chunk.min(roomy().step_tokens) as f64;
        let truth = [chunk / (fixed + chunk * prompt_token), 1.0 / (fixed + sequence)];
        let reported = [load.prefill_tokens_per_second, load.decode_tokens_per_second].map(f64::from);
        let near = |(reported, truth): (f64, f64)| (0.6..1.5).contains(&((reported + 0.5) / truth));
        assert!(reported.into_iter().zip(truth).all(near), "{costs:?}: reported {reported:?} for {truth:?}");
    }
}
