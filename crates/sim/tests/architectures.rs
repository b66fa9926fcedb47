//! Same bits, for every architecture. A seed chooses a checkpoint, its weights, keys and values, threads, chunks, room and
//! company. Some checkpoints are made here, wide enough for blocks of 256 weights. Ids, log-probabilities and prompt scores
//! of each job are those of the job alone, also after a restart: another engine, whose cache is empty, continues answers
//! that were cut anywhere. `HEADRACE_SEEDS=n` runs the seeds `0..n`. A failure prints its seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "engine/directories.rs"]
mod directories;
#[allow(dead_code, reason = "shared with the other test binary, which uses more of it")]
#[path = "engine/support.rs"]
mod support;
#[path = "engine/wide.rs"]
mod wide;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_checkpoint::Checkpoint;
use headrace_domain::{Sampling, Seed};
use headrace_engine_api::{Job, Tenant};
use headrace_kernels::ComputeMode;
use headrace_kernels::attention::KvType;
use headrace_kernels::isa::{ISA_VARIABLE, Isa};
use headrace_model::{KvBlocks, KvGroups, LoadOptions, Model};
use headrace_quant::BlockType;
use headrace_scheduler::SchedulerConfig;
use headrace_sim::ToyVocabulary;
use support::{Answer, Bench, job, salt};

/// Number of seeds if `HEADRACE_SEEDS` is not set. Fewer in an unoptimized build.
const SEEDS: u64 = if cfg!(debug_assertions) { 120 } else { 300 };
/// Longest sequence.
const CONTEXT: usize = 144;
const CHUNKS: [usize; 5] = [1, 3, 16, 17, 64];

/// Random numbers from a seed (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Where a checkpoint comes from.
#[derive(Debug)]
enum Source {
    /// A directory that the model's tests have.
    Directory(PathBuf),
    /// It is made, from the configuration in that directory.
    Wide(PathBuf),
}

impl Source {
    fn dir(&self) -> &Path {
        match self {
            Self::Directory(dir) | Self::Wide(dir) => dir,
        }
    }

    fn open(&self, seed: u64) -> Option<Checkpoint> {
        match self {
            Self::Directory(dir) => directories::open(dir),
            Self::Wide(dir) => Some(wide::checkpoint(dir, seed)),
        }
    }
}

/// All directories, and the configurations that are made wide.
fn sources() -> Vec<Source> {
    let all = directories::all();
    let wide = all.iter().filter(|dir| wide::NAMES.iter().any(|name| dir.ends_with(name)));
    let wide: Vec<Source> = wide.cloned().map(Source::Wide).collect();
    assert_eq!(wide.len(), wide::NAMES.len());
    all.into_iter().map(Source::Directory).chain(wide).collect()
}

fn is_quantized(dir: &Path) -> bool {
    ["fp8", "awq", "gptq", "w4a16", "mxfp4"].iter().any(|part| dir.to_string_lossy().contains(part))
}

/// What a seed chooses.
#[derive(Debug)]
struct Case {
    mode: ComputeMode,
    kv: KvType,
    quantize: Option<BlockType>,
    threads: usize,
    chunk: usize,
    is_scarce: bool,
    prefix_cache: bool,
}

impl Case {
    fn of(rng: &mut Rng, source: &Source) -> Self {
        let quantize = match source {
            Source::Directory(dir) if is_quantized(dir) => None,
            Source::Directory(_) => rng.pick(&[None, None, Some(BlockType::Q8_0), Some(BlockType::Q4_0)]),
            Source::Wide(_) => {
                rng.pick(&[Some(BlockType::Q4K), Some(BlockType::Q4K), Some(BlockType::Q6K), None])
            }
        };
        Self {
            mode: rng.pick(&[ComputeMode::Exact, ComputeMode::Fast]),
            kv: rng.pick(&KvType::ALL),
            quantize,
            threads: 1 + rng.below(2),
            chunk: rng.pick(&CHUNKS),
            is_scarce: rng.below(2) == 0,
            prefix_cache: rng.below(4) > 0,
        }
    }
}

fn bench(checkpoint: &Checkpoint, case: &Case, alone: bool) -> Bench {
    let scheduler = SchedulerConfig {
        step_tokens: 64,
        max_running: 16,
        max_chunk: if alone { 64 } else { case.chunk },
        context_window: CONTEXT,
        prefix_cache: case.prefix_cache && !alone,
        ..SchedulerConfig::default()
    };
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref()).unwrap();
    let groups = KvGroups::of(checkpoint.config(), case.kv);
    let blocks = if case.is_scarce && !alone {
        // Room for one or two sequences.
        let held = |window: bool| {
            let group = groups.groups().find(|group| group.blocks_outside(1 << 20) > 0 || !window);
            group.map_or(0, |group| group.most_held(CONTEXT, scheduler.chunk()))
        };
        KvBlocks { full: CONTEXT.div_ceil(16) + 4, window: held(true) + 4, states: 3 }
    } else {
        KvBlocks { full: 200, window: 200, states: 24 }
    };
    let threads = if alone { 1 } else { case.threads };
    let options = LoadOptions {
        kv_blocks: blocks,
        chunk: scheduler.chunk(),
        max_positions: Some(CONTEXT),
        mode: case.mode,
        kv: case.kv,
        quantize: case.quantize,
        ..LoadOptions::exact(isa, threads, 1)
    };
    let model = Model::load(checkpoint, options, &mut |_, _| {}).unwrap();
    Bench::new(Box::new(model), Arc::new(ToyVocabulary), &[], scheduler)
}

/// Jobs whose prompts share beginnings.
fn jobs(rng: &mut Rng, vocab: usize) -> Vec<Job> {
    let text =
        |rng: &mut Rng, len: usize| -> Vec<u32> { (0..len).map(|_| rng.below(vocab) as u32).collect() };
    let length = 33 + rng.below(30);
    let shared = text(rng, length);
    (0..5)
        .map(|at| {
            let length = 1 + rng.below(40);
            let own = text(rng, length);
            let prompt = if at == 3 { own } else { [&shared[..], &own].concat() };
            let sampling = Sampling {
                max_tokens: 4 + rng.below(24) as u32,
                seed: Seed(at),
                ignore_eos: true,
                temperature: if at % 2 == 0 { 0.0 } else { 0.9 },
                logprobs: Some(3),
                prompt_logprobs: (at == 2).then_some(2),
                ..Sampling::default()
            };
            let tenant = u64::from(at == 4);
            Job { salt: salt(tenant), tenant: Tenant(tenant), ..job(&prompt, sampling) }
        })
        .collect()
}

/// Continues answers in an engine that begins with an empty cache, cut after a number of tokens that `rng` chooses.
/// Returns how many.
fn continue_after_restart(rng: &mut Rng, restarted: &mut Bench, whole: &[(Job, Answer)], what: &str) -> u64 {
    // Prompt scores are sent once, and only an answer of one choice is continued.
    let cut: Vec<_> = whole
        .iter()
        .filter(|(job, _)| job.sampling.prompt_logprobs.is_none())
        .map(|(job, answer)| {
            let answer = &answer.choices[&0];
            let kept = 1 + rng.below(answer.ids.len() - 1);
            let prompt: Vec<u32> = job.prompt.iter().chain(&answer.ids[..kept]).copied().collect();
            let rest = Job { prompt: prompt.into(), generated: kept as u32, keys: None, ..job.clone() };
            (kept, answer, restarted.submit(rest))
        })
        .collect();
    let (kept, mut readers): (Vec<_>, Vec<_>) =
        cut.into_iter().map(|(kept, answer, reader)| ((kept, answer), reader)).unzip();
    restarted.run_unread(&mut readers);
    for (reader, (kept, whole)) in readers.iter().zip(&kept) {
        assert_eq!(reader.answer.error, None, "{what}, restarted after {kept} tokens");
        let rest = &reader.answer.choices[&0];
        assert_eq!(rest.ids, whole.ids[*kept..], "{what}, restarted after {kept} tokens");
        assert_eq!(rest.logprobs, whole.logprobs[*kept..], "{what}, restarted after {kept} tokens");
        assert_eq!(rest.reason, whole.reason, "{what}, restarted after {kept} tokens");
    }
    readers.len() as u64
}

/// Events of one case.
#[derive(Default)]
struct Seen {
    preempted: u64,
    cached: u64,
    continued: u64,
    /// Whether weights were in Q4_K.
    wide_blocks: u64,
}

fn run(seed: u64, sources: &[Source]) -> Option<Seen> {
    let mut rng = Rng(seed);
    // Every checkpoint comes in turn.
    let source = &sources[(seed % sources.len() as u64) as usize];
    let checkpoint = source.open(seed)?;
    let case = Case::of(&mut rng, source);
    let is_wide = matches!(source, Source::Wide(_));
    let name = source.dir().file_name().unwrap().to_string_lossy();
    let what = format!("seed {seed}: {name}, wide {is_wide}, {case:?}");
    let jobs = jobs(&mut rng, checkpoint.config().vocab_size.min(180));
    let mut alone = bench(&checkpoint, &case, true);
    let expected: Vec<Answer> = jobs.iter().map(|job| alone.ask(job.clone()).0).collect();
    let mut crowded = bench(&checkpoint, &case, false);
    let mut seen = Seen { wide_blocks: u64::from(case.quantize == Some(BlockType::Q4K)), ..Seen::default() };
    for pass in ["cold", "warm"] {
        let mut readers: Vec<_> = jobs.iter().map(|job| crowded.submit(job.clone())).collect();
        crowded.run_unread(&mut readers);
        for (at, (reader, expected)) in readers.iter().zip(&expected).enumerate() {
            assert_eq!(reader.answer.error, None, "{what}, {pass}, job {at}");
            assert!(!reader.answer.choices[&0].ids.is_empty());
            assert_eq!(reader.answer, *expected, "{what}, {pass}, job {at}");
            let report = reader.report.as_ref().unwrap();
            seen.preempted += u64::from(report.engine.preemptions);
            seen.cached += report.usage.cached_input;
        }
    }
    // Loading again takes time, so half of the cases have a restart.
    if rng.below(2) == 0 {
        let mut restarted = bench(&checkpoint, &case, false);
        let whole: Vec<_> = jobs.into_iter().zip(expected).collect();
        seen.continued = continue_after_restart(&mut rng, &mut restarted, &whole, &what);
    }
    Some(seen)
}

#[test]
fn every_architecture_has_the_same_bits_in_any_company() {
    let seeds = std::env::var("HEADRACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let sources = sources();
    let next = AtomicU64::new(0);
    let [preempted, cached, continued, wide, cases] = [const { AtomicU64::new(0) }; 5];
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            if let Some(seen) = run(seed, &sources) {
                preempted.fetch_add(seen.preempted, Ordering::Relaxed);
                cached.fetch_add(seen.cached, Ordering::Relaxed);
                continued.fetch_add(seen.continued, Ordering::Relaxed);
                wide.fetch_add(seen.wide_blocks, Ordering::Relaxed);
                cases.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    let [preempted, cached, continued, wide, cases] =
        [preempted, cached, continued, wide, cases].map(AtomicU64::into_inner);
    println!(
        "{cases} cases over {} checkpoints, {wide} in Q4_K: {preempted} preemptions, {cached} cached tokens, \
         {continued} answers continued after a restart",
        sources.len()
    );
    assert!(cases > seeds / 2 && preempted > 0 && cached > 0 && continued > cases);
    // Wide checkpoints are the last in turn.
    assert!(wide > 0 || seeds < sources.len() as u64);
}
