//! Decode and prefill rates of models with random weights, each beside the machine limit measured in the same run.
//! Times are medians of steps. Run with `cargo bench -p headrace-model --bench decode [-- MODEL…]`. `HEADRACE_ISA` and
//! `HEADRACE_THREADS` select instruction set and threads.
//!
//! A MODEL is `SHAPE:TYPE:MODE[:KV]`, such as `1.04b:q8_0:fast`, or `PATH:MODE[:KV]` for a directory or GGUF file.
//! Shapes are `1.04b` and `0.39b`. Types are `bf16` and all quantization types, modes are `exact` and `fast`, and KV
//! types are `f32`, `f16`, `bf16` and `q8`. The argument `context=16384` adds decoding after a prompt of that length.

#[path = "../../kernels/benches/common/mod.rs"]
mod common;
#[path = "common/random.rs"]
mod random;

use std::path::Path;
use std::time::Instant;

use headrace_checkpoint::Checkpoint;
use headrace_checkpoint::decoder::LayerConfig;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kernels::roofline::{self, ReadLimit};
use headrace_kernels::{ComputeMode, Isa, Kernels};
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables};
use headrace_model::{LoadOptions, Model};
use headrace_quant::BlockType;

use crate::common::{machine, median};
use crate::random::{Failure, Shape, files};

const SHAPES: [(&str, Shape); 2] = [
    ("1.04b", Shape { hidden: 2048, layers: 16, heads: 32, kv_heads: 8, inner: 8192 }),
    ("0.39b", Shape { hidden: 896, layers: 24, heads: 14, kv_heads: 2, inner: 4864 }),
];
const DEFAULT: [&str; 4] = ["1.04b:bf16:exact", "1.04b:bf16:fast", "1.04b:q8_0:fast", "1.04b:q4_k:fast"];
const VOCAB: usize = 32_000;
const PROMPT: usize = 512;
const DECODE_STEPS: usize = 24;
const KV_BLOCKS: usize = 4096;

/// The machine's limits per second: bytes read, and operations. The read limit is measured again beside every step,
/// because it varies.
struct Limits {
    kernels: Kernels,
    read: ReadLimit,
    f32: f64,
    bf16: f64,
    int8: f64,
}

impl Limits {
    fn measured(isa: Isa, threads: usize) -> Result<Limits, Failure> {
        let mut kernels = Kernels::new(isa, threads)?;
        Ok(Limits {
            read: ReadLimit::new(&mut kernels)?,
            f32: roofline::flops_per_second(&mut kernels)?,
            bf16: roofline::bf16_flops_per_second(&mut kernels)?,
            int8: roofline::int8_ops_per_second(&mut kernels)?,
            kernels,
        })
    }
}

fn main() -> Result<(), Failure> {
    let (isa, threads) = machine()?;
    let mut models: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with('-')).collect();
    let mut context = None;
    models.retain(|text| match text.strip_prefix("context=") {
        Some(length) => {
            context = length.parse::<usize>().ok();
            false
        }
        None => true,
    });
    if models.is_empty() {
        models = DEFAULT.map(str::to_owned).to_vec();
    }
    for model in &models {
        let mut limits = Limits::measured(isa, threads)?;
        println!(
            "\n{model} on {isa}, {threads} threads: f32 {:.0}, bf16 {:.0} GFLOP/s, int8 {:.0} GOP/s",
            limits.f32 / 1e9,
            limits.bf16 / 1e9,
            limits.int8 / 1e9
        );
        Bench::load(model, isa, threads)?.measure(&mut limits, context)?;
    }
    Ok(())
}

struct Bench {
    model: Model,
    mode: ComputeMode,
    /// Multiply-adds per token, without the output projection (`body`) and of the output projection (`head`).
    body: usize,
    head: usize,
    bf16: bool,
}

impl Bench {
    fn load(text: &str, isa: Isa, threads: usize) -> Result<Bench, Failure> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let shape = SHAPES.iter().find(|(shape, _)| *shape == name);
        let (checkpoint, quantize, bf16) = match shape {
            Some(&(_, shape)) => {
                let kind = parts.next().ok_or("a shape needs a type, as in 1.04b:q8_0:fast")?;
                (Checkpoint::from_files(random(shape)?)?, BlockType::from_name(kind), kind == "bf16")
            }
            None => {
                let checkpoint = Checkpoint::open(Path::new(name))?;
                let largest = checkpoint.stored_tensors().max_by_key(|&(.., bytes)| bytes);
                let bf16 = largest.is_some_and(|(_, kind, ..)| kind.eq_ignore_ascii_case("bf16"));
                (checkpoint, None, bf16)
            }
        };
        let mode =
            ComputeMode::from_name(parts.next().unwrap_or("fast")).ok_or("modes are exact and fast")?;
        let kv = match parts.next() {
            Some(kv) => KvType::from_name(kv).ok_or("KV types are f32, f16, bf16 and q8")?,
            None if mode == ComputeMode::Exact => KvType::F32,
            None => KvType::F16,
        };
        let options = LoadOptions { mode, kv, quantize, ..LoadOptions::exact(isa, threads, KV_BLOCKS) };
        let begin = Instant::now();
        let model = Model::load(&checkpoint, options, &mut |_, _| ())?;
        let config = checkpoint.config();
        let matrices = config.layers.iter().flat_map(LayerConfig::matrices).flatten();
        let body: usize = matrices.map(|linear| linear.outputs * linear.inputs).sum();
        let head = config.hidden_size * config.vocab_size;
        println!(
            "{:.2} B parameters, {:.2} GB in memory, loaded in {:.1} s, {}",
            (body + head) as f64 / 1e9,
            model.shape().weight_bytes as f64 / 1e9,
            begin.elapsed().as_secs_f64(),
            model.numerics()
        );
        Ok(Bench { model, mode, body, head, bf16 })
    }

    fn measure(&mut self, limits: &mut Limits, context: Option<usize>) -> Result<(), Failure> {
        let (peak, unit) = match (self.mode, self.bf16) {
            (ComputeMode::Fast, true) => (limits.bf16, "bf16"),
            (ComputeMode::Fast, false) => (limits.int8, "int8"),
            (ComputeMode::Exact, _) => (limits.f32, "f32"),
        };
        // Warm-up: the first prefill touches its memory for the first time.
        self.prefill(PROMPT)?;
        let mut times = [self.prefill(PROMPT)?, self.prefill(PROMPT)?, self.prefill(PROMPT)?];
        times.sort_by(f64::total_cmp);
        let done = 2.0 * self.body as f64 * PROMPT as f64 / times[1];
        println!(
            "prefill {PROMPT}: {:7.1} tokens/s, {:5.0} Gop/s, {:4.1} % of the {unit} peak",
            PROMPT as f64 / times[1],
            done / 1e9,
            100.0 * done / peak
        );
        for batch in [1, 2, 3, 4, 6, 8, 16, 32] {
            let took = self.decode(batch, 0, limits)?;
            self.show(&format!("decode, batch {batch:2}"), batch, took, (peak, unit));
        }
        if let Some(length) = context {
            for start in (0..length).step_by(PROMPT) {
                self.chunk(start, PROMPT.min(length - start))?;
            }
            let took = self.decode(1, length, limits)?;
            self.show(&format!("decode behind {length}"), 1, took, (peak, unit));
        }
        Ok(())
    }

    fn show(&self, what: &str, batch: usize, (seconds, limit): (f64, f64), (peak, unit): (f64, &str)) {
        let read = self.model.shape().weight_bytes as f64 / seconds;
        let done = 2.0 * (self.body + self.head) as f64 * batch as f64 / seconds;
        println!(
            "{what}: {:7.1} tokens/s, {:5.1} GB/s of weights, {:4.1} % of the {:.1} that memory gave, {:4.1} % of the {unit} peak",
            batch as f64 / seconds,
            read / 1e9,
            100.0 * read / limit,
            limit / 1e9,
            100.0 * done / peak
        );
    }

    fn prefill(&mut self, length: usize) -> Result<f64, Failure> {
        let begin = Instant::now();
        self.chunk(0, length)?;
        Ok(begin.elapsed().as_secs_f64())
    }

    fn chunk(&mut self, start: usize, length: usize) -> Result<(), Failure> {
        let tokens: Vec<u32> = (0..length as u32).map(|i| (i * 37 + 11) % VOCAB as u32).collect();
        let blocks: Vec<u32> = (0..KV_BLOCKS as u32).collect();
        let chunk = SequenceChunk {
            tokens: &tokens,
            start,
            tables: BlockTables::same(&blocks),
            logits: LogitsWanted::Last,
            long_context: false,
        };
        Ok(self.model.step(&[chunk], &mut Logits::default())?)
    }

    /// Returns the median seconds of a step of `batch` sequences with one token each, from position `start` on. Also
    /// returns the median read rate of memory between the steps, in bytes per second.
    fn decode(&mut self, batch: usize, start: usize, limits: &mut Limits) -> Result<(f64, f64), Failure> {
        let each = (start + DECODE_STEPS).div_ceil(BLOCK_TOKENS) as u32 + 1;
        let tables: Vec<Vec<u32>> = (0..batch as u32).map(|s| (s * each..(s + 1) * each).collect()).collect();
        let mut out = Logits::default();
        let (mut times, mut reads) = (Vec::new(), Vec::new());
        for position in start..=start + DECODE_STEPS {
            let token = [(position * 97 % VOCAB) as u32];
            let chunk = |blocks| SequenceChunk {
                tokens: &token,
                start: position,
                tables: BlockTables::same(blocks),
                logits: LogitsWanted::Last,
                long_context: false,
            };
            let chunks: Vec<_> = tables.iter().map(|table| chunk(table.as_slice())).collect();
            let begin = Instant::now();
            self.model.step(&chunks, &mut out)?;
            times.push(begin.elapsed().as_secs_f64());
            reads.push(limits.read.measure(&mut limits.kernels)?);
        }
        Ok((median(&mut times), median(&mut reads)))
    }
}

/// A random model. Its tokenizer file is not read by the model.
fn random(shape: Shape) -> Result<random::Files, Failure> {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama-gqa-untied/tokenizer.json");
    files(shape, VOCAB, std::fs::read(tokenizer)?)
}
