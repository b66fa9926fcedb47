//! Same bits, on the demo model. Ids, texts, log-probabilities and finish reasons of a job alone equal those in a batch
//! of 32. They are the same for every chunk size, with a cold and a warm cache, on one thread and on two. Preemption
//! and readers that read only when everything is paused do not change them either.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared with the other test binary, which uses more of it")]
#[path = "engine/support.rs"]
mod support;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use headrace_checkpoint::Checkpoint;
use headrace_domain::{Sampling, Seed};
use headrace_engine::TokenizerText;
use headrace_engine_api::{Job, Priority, Tenant};
use headrace_kernels::ComputeMode;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, SequenceChunk};
use headrace_kernels::isa::{ISA_VARIABLE, Isa};
use headrace_model::{LoadOptions, Model};
use headrace_quant::BlockType;
use headrace_scheduler::SchedulerConfig;
use headrace_tokenizer::Tokenizer;
use support::{Answer, Bench, job, salt};

const CONTEXT: usize = 512;
/// Enough blocks for all jobs at once.
const PLENTY: usize = 1024;
/// Enough blocks for any one job, and far too few for all.
const SCARCE: usize = 40;
/// The setup with a small bound on unread bytes.
const READERS_BEHIND: &str = "too few blocks, and readers far behind";

struct Setup {
    name: &'static str,
    threads: usize,
    max_chunk: usize,
    blocks: usize,
    prefix_cache: bool,
}

struct Rig {
    checkpoint: Checkpoint,
    tokenizer: Arc<Tokenizer>,
}

impl Rig {
    fn new() -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let tokenizer = Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config()).unwrap();
        Self { checkpoint, tokenizer: Arc::new(tokenizer) }
    }

    fn bench(&self, setup: &Setup) -> Bench {
        self.bench_in(setup, ComputeMode::Exact, KvType::F32, None, None)
    }

    /// [`Self::bench`] in any compute mode and format, with an optional fault in the kernels.
    fn bench_in(
        &self,
        setup: &Setup,
        mode: ComputeMode,
        kv: KvType,
        quantize: Option<BlockType>,
        fault: Option<Fault>,
    ) -> Bench {
        let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref()).unwrap();
        let options = LoadOptions {
            max_positions: Some(CONTEXT),
            mode,
            kv,
            quantize,
            ..LoadOptions::exact(isa, setup.threads, setup.blocks)
        };
        let model = Model::load(&self.checkpoint, options, &mut |_, _| {}).unwrap();
        let model: Box<dyn Forward> = match fault {
            None => Box::new(model),
            Some(fault) => Box::new(Broken { inner: model, fault, threads: setup.threads }),
        };
        let scheduler = SchedulerConfig {
            max_chunk: setup.max_chunk,
            context_window: CONTEXT,
            prefix_cache: setup.prefix_cache,
            ..SchedulerConfig::default()
        };
        let text = TokenizerText::new(Arc::clone(&self.tokenizer), true);
        Bench::new(model, Arc::new(text), &self.checkpoint.config().eos, scheduler)
    }

    /// 32 jobs: eight prompts, most of them with a common beginning, each with four sampling settings.
    fn jobs(&self) -> Vec<Job> {
        let rules = "You answer questions about an LLM API in one short sentence. ".repeat(4);
        let questions = [
            "What happens when I call an LLM API?",
            "What is a token?",
            "Why was this call refused?",
            "How long does the cache live? Say it in seconds, then in minutes.",
        ];
        let mut jobs = Vec::new();
        for (i, question) in questions.iter().enumerate() {
            for system in ["", &rules] {
                let text = format!("<|im_start|>user\n{system}{question}<|im_end|>\n<|im_start|>assistant\n");
                let prompt = self.tokenizer.encode(&text, false).unwrap();
                for sampling in ways(i as u64) {
                    let at = jobs.len();
                    let tenant = (at / 16) as u64;
                    jobs.push(Job {
                        salt: salt(tenant),
                        tenant: Tenant(tenant),
                        priority: [Priority::Normal, Priority::Normal, Priority::Idle][at % 3],
                        ..job(&prompt, sampling)
                    });
                }
            }
        }
        jobs
    }
}

fn ways(seed: u64) -> [Sampling; 4] {
    let base = Sampling { max_tokens: 24, seed: Seed(seed), ignore_eos: true, ..Sampling::default() };
    [
        Sampling { ignore_eos: false, ..base.clone() },
        Sampling { temperature: 0.8, top_p: 0.9, logprobs: Some(20), ..base.clone() },
        Sampling {
            temperature: 1.3,
            top_k: NonZeroU32::new(40),
            repetition_penalty: 1.2,
            presence_penalty: 0.5,
            n: 2,
            stop: vec![". ".into()],
            ..base.clone()
        },
        Sampling { logprobs: Some(3), prompt_logprobs: Some(5), ..base },
    ]
}

/// Runs all jobs at once. Returns the answers, the number of preemptions, and the number of cached input tokens.
fn together(bench: &mut Bench, jobs: &[Job]) -> (Vec<Answer>, u32, u64) {
    let mut readers: Vec<_> = jobs.iter().map(|job| bench.submit(job.clone())).collect();
    bench.run_unread(&mut readers);
    let reports = || readers.iter().map(|reader| reader.report.as_ref().unwrap());
    let preemptions = reports().map(|report| report.engine.preemptions).sum();
    let cached = reports().map(|report| report.usage.cached_input).sum();
    (readers.into_iter().map(|reader| reader.answer).collect(), preemptions, cached)
}

/// A defect that breaks same bits in kernels. Each one has been a real bug in some engine.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Sums are split by the number of rows, so that another sequence in the batch changes the last bit.
    Batch,
    /// Attention is split at the beginning of the chunk.
    Chunk,
    /// Each thread sums its own share.
    Threads,
}

/// A model that moves its logits by one unit in the last place if the fault applies.
struct Broken {
    inner: Model,
    fault: Fault,
    threads: usize,
}

impl Forward for Broken {
    fn shape(&self) -> &ForwardShape {
        self.inner.shape()
    }

    fn numerics(&self) -> &str {
        self.inner.numerics()
    }

    fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError> {
        self.inner.step(batch, out)?;
        let mut row = 0;
        for chunk in batch {
            for _ in 0..chunk.logits.rows(chunk.tokens.len()) {
                let moved = match self.fault {
                    Fault::Batch => batch.len() > 1,
                    Fault::Chunk => chunk.tokens.len() > 1 && chunk.start > 0,
                    Fault::Threads => self.threads > 1,
                };
                if let Some(values) = out.row_mut(row).filter(|_| moved) {
                    values.iter_mut().for_each(|value| *value = value.next_up());
                }
                row += 1;
            }
        }
        Ok(())
    }
}

fn compare(name: &str, got: &[Answer], expected: &[Answer]) {
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.error, None, "{name}, job {at}");
        assert_eq!(got, expected, "{name}, job {at}");
    }
}

#[test]
fn output_does_not_depend_on_batch_chunks_cache_threads_or_preemption() {
    let rig = Rig::new();
    let jobs = rig.jobs();
    assert_eq!(jobs.len(), 32);
    let alone = Setup { name: "alone", threads: 1, max_chunk: 512, blocks: PLENTY, prefix_cache: false };
    let mut bench = rig.bench(&alone);
    let expected: Vec<_> = jobs.iter().map(|job| bench.ask(job.clone()).0).collect();
    assert!(expected.iter().all(|answer| !answer.choices[&0].ids.is_empty()));

    let setups = [
        Setup {
            name: "chunks of 7, 2 threads",
            threads: 2,
            max_chunk: 7,
            blocks: PLENTY,
            prefix_cache: true,
        },
        Setup {
            name: "chunks of 64, 1 thread",
            threads: 1,
            max_chunk: 64,
            blocks: PLENTY,
            prefix_cache: true,
        },
        Setup {
            name: "chunks of 512, 2 threads",
            threads: 2,
            max_chunk: 512,
            blocks: PLENTY,
            prefix_cache: false,
        },
        Setup { name: "too few blocks", threads: 2, max_chunk: 64, blocks: SCARCE, prefix_cache: true },
        Setup { name: READERS_BEHIND, threads: 2, max_chunk: 64, blocks: SCARCE, prefix_cache: true },
    ];
    for setup in &setups {
        let mut bench = rig.bench(setup);
        let unread_bytes = if setup.name == READERS_BEHIND { 2000 } else { usize::MAX };
        let jobs: Vec<_> = jobs.iter().map(|job| Job { unread_bytes, ..job.clone() }).collect();
        let (cold, preemptions, _) = together(&mut bench, &jobs);
        compare(setup.name, &cold, &expected);
        assert_eq!(preemptions > 0, setup.blocks == SCARCE, "{}: {preemptions} preemptions", setup.name);
        if setup.prefix_cache {
            let (warm, _, cached) = together(&mut bench, &jobs);
            assert!(cached > 0, "{}: nothing was cached", setup.name);
            compare(&format!("{}, warm", setup.name), &warm, &expected);
        }
    }
}

/// Two threads, small chunks, a warm cache and other jobs. Compared with [`ALONE`] on one thread.
const CROWDED: Setup =
    Setup { name: "crowded", threads: 2, max_chunk: 24, blocks: PLENTY, prefix_cache: true };
const ALONE: Setup = Setup { name: "alone", threads: 1, max_chunk: 512, blocks: PLENTY, prefix_cache: false };

#[test]
fn output_does_not_depend_on_company_in_any_compute_mode_format_or_kv_type() {
    let rig = Rig::new();
    let jobs: Vec<Job> = rig.jobs().into_iter().step_by(3).collect();
    for (mode, kv, quantize) in [
        (ComputeMode::Fast, KvType::F16, Some(BlockType::Q8_0)),
        (ComputeMode::Fast, KvType::Q8, Some(BlockType::Q4_0)),
        (ComputeMode::Fast, KvType::Bf16, None),
        (ComputeMode::Exact, KvType::F16, Some(BlockType::Q5_1)),
    ] {
        let mut alone = rig.bench_in(&ALONE, mode, kv, quantize, None);
        let expected: Vec<_> = jobs.iter().map(|job| alone.ask(job.clone()).0).collect();
        let mut crowded = rig.bench_in(&CROWDED, mode, kv, quantize, None);
        for pass in ["cold", "warm"] {
            let (got, _, _) = together(&mut crowded, &jobs);
            compare(&format!("{mode}, kv {}, {quantize:?}, {pass}", kv.name()), &got, &expected);
        }
    }
}

#[test]
fn kernels_broken_on_purpose_are_caught() {
    let rig = Rig::new();
    let jobs: Vec<Job> = rig.jobs().into_iter().step_by(5).collect();
    for fault in [Fault::Batch, Fault::Chunk, Fault::Threads] {
        let mut alone = rig.bench_in(&ALONE, ComputeMode::Exact, KvType::F32, None, Some(fault));
        let expected: Vec<_> = jobs.iter().map(|job| alone.ask(job.clone()).0).collect();
        let mut crowded = rig.bench_in(&CROWDED, ComputeMode::Exact, KvType::F32, None, Some(fault));
        let (got, _, _) = together(&mut crowded, &jobs);
        assert!(got != expected, "{fault:?} went unnoticed");
    }
}
