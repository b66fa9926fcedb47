//! Measures what a form adds to the time of a token: 16 answers at once, on a model with random weights and a
//! vocabulary of 128,000, with and without a form. Run `cargo bench -p headrace-sim --bench forms`.
//!
//! Short blocks run in the order without, with, with, without, so that other load on the machine affects both sides.
//! The result is the median quotient of such pairs, with its 95 % interval. It is measured by the clock and by the CPU
//! time of all threads. The share of the mask thread in the CPU time is printed separately. Masks are computed on their
//! own thread beside the step, which takes CPU time from the step if all cores compute.
//!
//! The first argument is the number of compute threads (default all). The second is the number of rounds of four blocks
//! (default ten). The third is a substring of the names of the forms to run.

#[path = "../../model/benches/common/random.rs"]
mod random;
#[path = "../../grammar/benches/common/vocabulary.rs"]
mod vocabulary;

use std::sync::Arc;
use std::time::Instant;

use headrace_checkpoint::Checkpoint;
use headrace_domain::{CacheSalt, JsonForm, RequestId, ResponseFormat, Sampling, Seed, SystemClock};
use headrace_engine::{EngineConfig, Progress, Stepper, TokenizerText};
use headrace_engine_api::{Job, JobEvents, Priority, SharedGrammar, Tenant};
use headrace_grammar::{FormCompiler, FormLimits};
use headrace_kernels::ComputeMode;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::Forward;
use headrace_kernels::isa::{ISA_VARIABLE, Isa};
use headrace_model::{LoadOptions, Model};
use headrace_scheduler::SchedulerConfig;
use headrace_tokenizer::Tokenizer;
use serde_json::json;

use random::{Failure, Shape, files};
use vocabulary::{VOCAB, tokenizer_json};

const SHAPE: Shape = Shape { hidden: 896, layers: 24, heads: 14, kv_heads: 2, inner: 4864 };
const BATCH: u64 = 16;
const TOKENS: u32 = 24;
const CONTEXT: usize = 512;
const KV_BLOCKS: usize = 1024;

fn main() -> Result<(), Failure> {
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref())?;
    let all = std::thread::available_parallelism()?.get();
    let asked = |at| std::env::args().nth(at).and_then(|asked| asked.parse().ok());
    let threads = asked(1).unwrap_or(all);
    let rounds = asked(2).unwrap_or(10) as u64;
    let checkpoint = Checkpoint::from_files(files(SHAPE, VOCAB, tokenizer_json().into_bytes())?)?;
    let tokenizer = Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config())?;
    let tokenizer = Arc::new(tokenizer);
    let exact = LoadOptions::exact(isa, threads, KV_BLOCKS);
    let options =
        LoadOptions { max_positions: Some(CONTEXT), mode: ComputeMode::Fast, kv: KvType::F16, ..exact };
    let model = Model::load(&checkpoint, options, &mut |_, _| {})?;
    let bytes = model.shape().weight_bytes;
    let end = u32::try_from(VOCAB)? - 1;
    let config = EngineConfig {
        model: "m".to_owned(),
        compute_mode: "fast".to_owned(),
        eos: vec![end],
        skip_special: true,
        max_choices: 16,
        isa,
        scheduler: SchedulerConfig { context_window: CONTEXT, ..SchedulerConfig::default() },
        clock: Arc::new(SystemClock::new()),
    };
    let text = TokenizerText::new(Arc::clone(&tokenizer), true);
    let mut stepper = Stepper::new(Box::new(model), Arc::new(text), config)?;
    println!(
        "{BATCH} answers of {TOKENS} tokens, {:.2} GB of weights, {isa}, {threads} of {all} threads",
        bytes as f64 / 1e9
    );
    let compiler = FormCompiler::new(tokenizer, &[end], u32::try_from(VOCAB)?);
    let only = std::env::args().nth(3).filter(|name| !name.starts_with("--")).unwrap_or_default();
    for (name, form) in forms().into_iter().filter(|(name, _)| name.contains(&only)) {
        let grammar = compiler.compile(&Arc::new(form), &FormLimits::default())?;
        for temperature in [0.0, 1.0] {
            let mut round = |grammar, seed| round(&mut stepper, grammar, temperature, seed);
            // Warm-up: the first round touches its memory for the first time.
            round(Some(&grammar), rounds)?;
            let (mut without, mut with) = (Vec::new(), Vec::new());
            for seed in 0..rounds {
                without.push(round(None, 2 * seed)?);
                with.push(round(Some(&grammar), 2 * seed)?);
                with.push(round(Some(&grammar), 2 * seed + 1)?);
                without.push(round(None, 2 * seed + 1)?);
            }
            let of = |part: fn(&Took) -> f64| {
                let added = |(with, without)| 100.0 * (part(with) / part(without) - 1.0);
                sorted(with.iter().zip(&without).map(added).collect())
            };
            let (clock, processor) = (of(|took| took.seconds), of(|took| took.processor));
            let masks = sorted(with.iter().map(|took| took.masks / took.processor * 100.0).collect());
            println!(
                "{name}, temperature {temperature}: a token {:.2} ms without; with {}; processor's time {}, masks {:.1} % of it",
                median(&sorted(without.iter().map(|took| took.seconds * 1e3).collect())),
                median_and_interval(&clock),
                median_and_interval(&processor),
                median(&masks),
            );
        }
    }
    Ok(())
}

/// Forms that no answer completes, and that allow many ids at every token.
fn forms() -> [(&'static str, ResponseFormat); 3] {
    let schema = |schema| {
        ResponseFormat::JsonSchema(JsonForm {
            name: None,
            schema,
            strict: false,
            compact: false,
            white_space: None,
        })
    };
    let row = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "note"], "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "note": {"type": "string"}}});
    [
        ("a long sentence", ResponseFormat::Regex("[A-Z][a-z]+( [a-z]+){100,200}\\.".to_owned())),
        ("strings", schema(json!({"type": "array", "items": {"type": "string"}, "minItems": 200}))),
        ("rows of an object", schema(json!({"type": "array", "items": row, "minItems": 50}))),
    ]
}

/// Mean seconds per token, over the steps in which every answer got one more token.
struct Took {
    seconds: f64,
    /// CPU time of all threads.
    processor: f64,
    /// CPU time of the thread that computes masks.
    masks: f64,
}

/// CPU time in nanoseconds of all threads, and of the mask thread. Zero if the system does not report it.
fn threads_took() -> (f64, f64) {
    let (mut all, mut masks) = (0.0, 0.0);
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let took = read("schedstat").split(' ').next().and_then(|took| took.parse().ok()).unwrap_or(0.0);
        all += took;
        if read("comm").trim() == "masks" {
            masks += took;
        }
    }
    (all, masks)
}

fn round(
    stepper: &mut Stepper,
    grammar: Option<&SharedGrammar>,
    temperature: f32,
    seed: u64,
) -> Result<Took, Failure> {
    let readers: Result<Vec<JobEvents>, Failure> = (0..BATCH)
        .map(|at| {
            let prompt: Vec<u32> = (0..24).map(|i| 1000 + (i * 977 + at as u32 * 131) % 100_000).collect();
            let sampling = Sampling {
                max_tokens: TOKENS,
                temperature,
                seed: Seed(seed * BATCH + at),
                ignore_eos: true,
                ..Sampling::default()
            };
            let ticket = stepper.submit(job(prompt, sampling, grammar.cloned()));
            Ok(ticket.map_err(|refusal| refusal.to_string())?.split().0)
        })
        .collect();
    let _readers = readers?;
    // Runs the prompts.
    stepper.step();
    while stepper.load().waiting > 0 {
        stepper.step();
    }
    let (began, before, mut steps) = (Instant::now(), threads_took(), 0);
    while stepper.step() != Progress::Idle {
        steps += 1;
    }
    // Forced ids cost no step of their own, so both sides are compared per token.
    assert!(steps > 0);
    let (seconds, after, tokens) = (began.elapsed().as_secs_f64(), threads_took(), f64::from(TOKENS - 1));
    let of = |after: f64, before: f64| (after - before) / 1e9 / tokens;
    Ok(Took { seconds: seconds / tokens, processor: of(after.0, before.0), masks: of(after.1, before.1) })
}

fn job(prompt: Vec<u32>, sampling: Sampling, grammar: Option<SharedGrammar>) -> Job {
    Job {
        request: RequestId::from_bits(1),
        first_choice: 0,
        prompt: prompt.into(),
        sampling,
        salt: CacheSalt::derive(&[5; 32], "t", "m", None),
        keys: None,
        pins: Arc::default(),
        held: None,
        grammar,
        thought: None,
        tenant: Tenant(0),
        weight: 1,
        priority: Priority::Normal,
        start_deadline_ns: None,
        trace: None,
        generated: 0,
        unread_bytes: usize::MAX,
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The median in percent, with a distribution-free 95 % interval: the values within two standard deviations of its
/// rank.
fn median_and_interval(sorted: &[f64]) -> String {
    let (middle, off) = (sorted.len() as f64 / 2.0, (sorted.len() as f64).sqrt());
    let at = |rank: f64| sorted.get((rank.max(0.0) as usize).min(sorted.len() - 1)).copied().unwrap_or(0.0);
    format!(
        "{:+.1} % ({:+.1} to {:+.1})",
        median(sorted),
        at((middle - off).floor()),
        at((middle + off).ceil() - 1.0)
    )
}
