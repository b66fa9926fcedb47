//! Same bits, on the demo model: ids, texts, log-probabilities and finish reasons are identical alone and in a batch of
//! 32, for every chunk size, with a cold and a warm cache, on one thread and two, and after preemption.

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
use headrace_kernels::isa::{ISA_VARIABLE, Isa};
use headrace_model::{LoadOptions, Model};
use headrace_scheduler::SchedulerConfig;
use headrace_tokenizer::Tokenizer;
use support::{Answer, Bench, job, salt};

const CONTEXT: usize = 512;
/// Enough for all at once.
const PLENTY: usize = 1024;
/// Enough for any one of them, and far from enough for all.
const SCARCE: usize = 40;

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
        let options = LoadOptions {
            isa: Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref()).unwrap(),
            threads: setup.threads,
            kv_blocks: setup.blocks,
            max_positions: Some(CONTEXT),
        };
        let model = Model::load(&self.checkpoint, options, &mut |_, _| {}).unwrap();
        let scheduler = SchedulerConfig {
            max_chunk: setup.max_chunk,
            context_window: CONTEXT,
            prefix_cache: setup.prefix_cache,
            ..SchedulerConfig::default()
        };
        let text = TokenizerText::new(Arc::clone(&self.tokenizer), true);
        Bench::new(Box::new(model), Arc::new(text), &self.checkpoint.config().eos, scheduler)
    }

    /// 32 jobs: eight prompts, most with a beginning in common, each asked in four ways.
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
                        priority: [Priority::Normal, Priority::Normal, Priority::High][at % 3],
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

/// All at once; every answer, and how often somebody lost its blocks.
fn together(bench: &mut Bench, jobs: &[Job]) -> (Vec<Answer>, u32, u64) {
    let mut readers: Vec<_> = jobs.iter().map(|job| bench.submit(job.clone())).collect();
    bench.run();
    readers.iter_mut().for_each(support::Reader::pump);
    let reports = || readers.iter().map(|reader| reader.report.as_ref().unwrap());
    let preemptions = reports().map(|report| report.engine.preemptions).sum();
    let cached = reports().map(|report| report.usage.cached_input).sum();
    (readers.into_iter().map(|reader| reader.answer).collect(), preemptions, cached)
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
    ];
    for setup in &setups {
        let mut bench = rig.bench(setup);
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
