//! What it adds to a token that answers are held to a form: 16 answers at once, by a model with random weights and a vocabulary of
//! 128,000, with and without, in turns in one run. `cargo bench -p headrace-sim --bench forms`. Masks are found on a thread of their
//! own beside the step, which takes the processor's time from it where all cores compute.

#[path = "../../model/benches/common/random.rs"]
mod random;
#[path = "../../grammar/benches/common/vocabulary.rs"]
mod vocabulary;

use std::sync::Arc;
use std::time::Instant;

use headrace_checkpoint::Checkpoint;
use headrace_domain::{CacheSalt, Form, JsonForm, RequestId, Sampling, Seed, SystemClock};
use headrace_engine::{EngineConfig, Progress, Stepper, TokenizerText};
use headrace_engine_api::{Events, Job, Priority, SharedGrammar, Tenant};
use headrace_grammar::{Bounds, Compiler};
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
const TOKENS: u32 = 48;
const ROUNDS: u64 = 3;
const CONTEXT: usize = 512;
const KV_BLOCKS: usize = 1024;

fn main() -> Result<(), Failure> {
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref())?;
    let threads = std::thread::available_parallelism()?.get();
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
        "{BATCH} answers of {TOKENS} tokens, {:.2} GB of weights, {isa}, {threads} threads",
        bytes as f64 / 1e9
    );
    let compiler = Compiler::new(tokenizer, &[end], u32::try_from(VOCAB)?);
    for (name, form) in forms() {
        let grammar = compiler.compile(&Arc::new(form), &Bounds::default())?;
        for temperature in [0.0, 1.0] {
            let mut round = |grammar, seed| round(&mut stepper, grammar, temperature, seed);
            // The first touches its memory for the first time.
            round(Some(&grammar), ROUNDS)?;
            let (mut without, mut with) = (Vec::new(), Vec::new());
            for seed in 0..ROUNDS {
                without.push(round(None, seed)?);
                with.push(round(Some(&grammar), seed)?);
            }
            let (without, with) = (median(without), median(with));
            println!(
                "{name}, temperature {temperature}: a token {:.2} ms without, {:.2} ms with: {:+.1} %",
                without * 1e3,
                with * 1e3,
                100.0 * (with / without - 1.0)
            );
        }
    }
    Ok(())
}

/// Forms that no answer comes to the end of, and that leave much open at every token.
fn forms() -> [(&'static str, Form); 3] {
    let schema = |schema| {
        Form::JsonSchema(JsonForm { name: None, schema, strict: false, compact: false, white_space: None })
    };
    let row = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "note"], "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "note": {"type": "string"}}});
    [
        ("rows of an object", schema(json!({"type": "array", "items": row, "minItems": 50}))),
        ("strings", schema(json!({"type": "array", "items": {"type": "string"}, "minItems": 200}))),
        ("a long sentence", Form::Regex("[A-Z][a-z]+( [a-z]+){100,200}\\.".to_owned())),
    ]
}

/// Seconds of a token, the mean over the steps in which all answers had one more.
fn round(
    stepper: &mut Stepper,
    grammar: Option<&SharedGrammar>,
    temperature: f32,
    seed: u64,
) -> Result<f64, Failure> {
    let readers: Result<Vec<Events>, Failure> = (0..BATCH)
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
    // The prompts.
    stepper.step();
    while stepper.load().waiting > 0 {
        stepper.step();
    }
    let (began, mut steps) = (Instant::now(), 0);
    while stepper.step() != Progress::Idle {
        steps += 1;
    }
    // What must come costs no step of its own: by tokens both are alike.
    assert!(steps > 0);
    Ok(began.elapsed().as_secs_f64() / f64::from(TOKENS - 1))
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
