//! Measures a model of eight billion random parameters on the device, and each of its products. The device's limits are
//! measured in the same run: copies of a gigabyte, and cuBLASLt's product of 8192³ in bf16.
//! Run with `cargo bench -p headrace-cuda --features cuda --bench roofline [-- bits products decode prefill]`. Without
//! a name, all parts run. `HEADRACE_LAYERS` sets the number of layers. Needs a device, and NVRTC and cuBLASLt in the
//! loader's path.

mod limits;
mod random;

use std::time::{Duration, Instant};

use headrace_checkpoint::ModelConfig;
use headrace_cuda::device::{Buffer, Device, Nvidia};
use headrace_cuda::ops::{self, Finish, GateActivation, Matrix, Workspace};
use headrace_cuda::{CudaModel, LoadOptions};
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables};

use crate::limits::Limits;
use crate::random::{Random, config};

type Failure = Box<dyn std::error::Error>;

/// Number of prompts in the prefill.
const PROMPTS: usize = 8;
const PROMPT_TOKENS: usize = 2048;
/// Positions before a decode step.
const CONTEXT: usize = 512;
const STEPS: usize = 30;

fn main() -> Result<(), Failure> {
    let named: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    let runs = |name: &str| named.is_empty() || named.iter().any(|other| other == name);
    let mut device = Nvidia::open(0)?;
    println!("{}, {} multiprocessors, {:?}", device.name(), device.multiprocessors(), device.memory()?);
    let limits = Limits::measure(&mut device)?;
    println!(
        "limits: copies {:.0} GB/s (read and written), cuBLASLt {}",
        limits.bytes / 1e9,
        limits.flops.map_or("not found".to_owned(), |flops| format!("{:.0} TFLOP/s", flops / 1e12))
    );
    if runs("products") {
        products(&mut device, &limits)?;
    }
    if ["bits", "decode", "prefill"].into_iter().any(runs) {
        let config = config()?;
        let mut model = load(Box::new(device), &config)?;
        if runs("bits") {
            same_bits(&mut model)?;
        }
        if runs("decode") {
            for batch in [1, 64] {
                decode(&mut model, &config, &limits, batch)?;
            }
        }
        if runs("prefill") {
            prefill(&mut model, &config, &limits)?;
        }
    }
    Ok(())
}

/// Measures every product of a layer and the head, for few and many rows, as shares of the bandwidth and of the
/// operation rate.
fn products(device: &mut Nvidia, limits: &Limits) -> Result<(), Failure> {
    let workspace = Workspace::new(device)?;
    println!(
        "{:<8} {:>6} {:>9} {:>8} {:>10} {:>8}",
        "product", "rows", "time", "GB/s", "TFLOP/s", "roofline"
    );
    let shapes = [
        ("qkv", 6144, 4096, Finish::Store),
        ("output", 4096, 4096, Finish::Add(1.0)),
        ("gate_up", 28_672, 4096, Finish::Gate(GateActivation::Silu)),
        ("down", 4096, 14_336, Finish::Add(1.0)),
        ("head", 128_256, 4096, Finish::Store),
    ];
    for (name, features, inputs, finish) in shapes {
        // Several copies, so that the cache holds none of them.
        let copies = (512 << 20) / (features * inputs * 2) + 1;
        let mut matrices = Vec::new();
        for copy in 0..copies {
            let weights = random::fill(device, features * inputs * 2, copy as u64)?;
            matrices.push(Matrix { weights, bias: None, features, inputs });
        }
        for count in [1, 8, 16, 32, 64, 128, 256, 2048, 8192] {
            if name == "head" && count > 256 {
                continue;
            }
            let rows = random::fill(device, count * inputs * 2, 99)?;
            let out = device.allocate(count * features * 4)?;
            device.clear(out)?;
            let stride = if finish.is_gate() { features / 2 } else { features };
            let times = 2 * copies.max(if count > 256 { 2 } else { 10 });
            let run = |device: &mut dyn Device, times: usize| -> Result<(), _> {
                (0..times).try_for_each(|at| {
                    let matrix = &matrices[at % copies];
                    ops::product(device, &workspace, matrix, (rows, count), (out, stride), finish)
                })
            };
            run(device, copies)?;
            let seconds = f64::from(device.timed(&mut |device| run(device, times))?) / 1e3 / times as f64;
            let (bytes, flops) = ((features * inputs * 2) as f64, 2.0 * (features * inputs * count) as f64);
            let part = limits.floor(bytes, flops).map_or(String::new(), |floor| percent(floor / seconds));
            println!(
                "{name:<8} {count:>6} {:>6.1} µs {:>8.0} {:>10.1} {part:>8}",
                seconds * 1e6,
                bytes / seconds / 1e9,
                flops / seconds / 1e12
            );
            for buffer in [rows, out] {
                device.free(buffer)?;
            }
        }
        free(device, matrices.iter().map(|matrix| matrix.weights))?;
    }
    Ok(())
}

fn free(device: &mut Nvidia, buffers: impl Iterator<Item = Buffer>) -> Result<(), Failure> {
    for buffer in buffers {
        device.free(buffer)?;
    }
    Ok(())
}

fn load(device: Box<dyn Device>, config: &ModelConfig) -> Result<CudaModel, Failure> {
    let options = LoadOptions {
        most_kv_blocks: 64 * (CONTEXT + 128) / BLOCK_TOKENS + PROMPTS * PROMPT_TOKENS / BLOCK_TOKENS,
        max_positions: Some(8192),
        pass_rows: PROMPTS * PROMPT_TOKENS,
        threads: 8,
        ..LoadOptions::default()
    };
    let tensors = Random::new(config);
    let started = Instant::now();
    let model = CudaModel::load_from(device, config, &tensors, &options, &mut |_, _| ())?;
    let shape = model.shape();
    println!(
        "loaded {:.1} GB in {:.1} s, {} KV blocks",
        shape.weight_bytes as f64 / 1e9,
        started.elapsed().as_secs_f64(),
        shape.kv.first().block_count
    );
    Ok(model)
}

/// Checks that a sequence's last logits are the same alone in one piece, in small chunks beside four others, and
/// decoded in a batch of 64. The sizes are such that every kernel of the model is used.
fn same_bits(model: &mut CudaModel) -> Result<(), Failure> {
    let each = 40_u32;
    let table = |sequence: u32| -> Vec<u32> { (sequence * each..(sequence + 1) * each).rev().collect() };
    let words = |sequence: u32, count: u32| -> Vec<u32> {
        (0..count).map(|at| (at * 131 + sequence * 7919) % 100_000).collect()
    };
    let (mine, mut out) = (words(0, 601), Logits::default());
    let bits =
        |row: Option<&[f32]>| -> Vec<u32> { row.unwrap_or_default().iter().map(|x| x.to_bits()).collect() };
    let blocks = table(0);
    let alone = SequenceChunk {
        tokens: &mine,
        start: 0,
        tables: BlockTables::single(&blocks),
        logits: LogitsWanted::Last,
        long_context: false,
    };
    model.step(&[alone], &mut out)?;
    let expected = bits(out.row(0));
    for (what, chunk, beside) in
        [("in chunks of 7 beside 4 prompts", 7, 4), ("in chunks of 300 beside 63", 300, 63)]
    {
        let tables: Vec<Vec<u32>> = (0..=beside).map(|s| table(beside - s)).collect();
        let others: Vec<Vec<u32>> = (0..=beside).map(|s| words(s, 601)).collect();
        for at in (0..600).step_by(chunk) {
            let end = 600.min(at + chunk);
            let batch: Vec<_> = tables
                .iter()
                .zip(&others)
                .map(|(blocks, words)| SequenceChunk {
                    tokens: &words[at..end],
                    start: at,
                    tables: BlockTables::single(blocks),
                    logits: LogitsWanted::None,
                    long_context: false,
                })
                .collect();
            model.step(&batch, &mut out)?;
        }
        // The last token is decoded three times: launched, then recorded, then replayed.
        for _ in 0..3 {
            let batch: Vec<_> = tables
                .iter()
                .zip(&others)
                .map(|(blocks, words)| SequenceChunk {
                    tokens: &words[600..],
                    start: 600,
                    tables: BlockTables::single(blocks),
                    logits: LogitsWanted::Last,
                    long_context: false,
                })
                .collect();
            model.step(&batch, &mut out)?;
            let alike = bits(out.row(0)) == expected && !expected.is_empty();
            println!("same bits {what}, the last token decoded: {}", if alike { "yes" } else { "NO" });
        }
    }
    Ok(())
}

/// Bytes of the weights that a step reads: all weights except the embeddings, since it reads only a few of their rows.
fn read_bytes(model: &CudaModel, config: &ModelConfig) -> f64 {
    (model.shape().weight_bytes - config.vocab_size * config.hidden_size * 2) as f64
}

fn decode(model: &mut CudaModel, config: &ModelConfig, limits: &Limits, batch: usize) -> Result<(), Failure> {
    let each = (CONTEXT + 128).div_ceil(BLOCK_TOKENS) as u32;
    let tables: Vec<Vec<u32>> =
        (0..batch as u32).map(|sequence| (sequence * each..(sequence + 1) * each).collect()).collect();
    let mut out = Logits::default();
    let prompt: Vec<u32> = (0..CONTEXT as u32).map(|at| at * 131 % 100_000).collect();
    for blocks in &tables {
        model.step(
            &[SequenceChunk {
                tokens: &prompt,
                start: 0,
                tables: BlockTables::single(blocks),
                logits: LogitsWanted::None,
                long_context: false,
            }],
            &mut out,
        )?;
    }
    let mut times = Vec::new();
    for step in 0..STEPS {
        let token = [step as u32 * 17];
        let chunks: Vec<_> = tables
            .iter()
            .map(|blocks| SequenceChunk {
                tokens: &token,
                start: CONTEXT + step,
                tables: BlockTables::single(blocks),
                logits: LogitsWanted::Last,
                long_context: false,
            })
            .collect();
        let started = Instant::now();
        model.step(&chunks, &mut out)?;
        times.push(started.elapsed());
    }
    // The first steps launch and record.
    let step = median(&mut times[4..]).as_secs_f64();
    let started = Instant::now();
    let replayed = model.replay(STEPS)?;
    let kernels = if replayed { started.elapsed().as_secs_f64() / STEPS as f64 } else { step };
    let kv =
        batch as f64 * CONTEXT as f64 / BLOCK_TOKENS as f64 * model.shape().kv.first().bytes_per_block as f64;
    let (bytes, flops) = (read_bytes(model, config) + kv, read_bytes(model, config) * batch as f64);
    let share =
        |seconds: f64| limits.floor(bytes, flops).map_or("?".to_owned(), |floor| percent(floor / seconds));
    println!(
        "decode, batch {batch}: step {:.2} ms ({} of the roofline), kernels alone {:.2} ms ({}), beside them {}; {:.0} tokens/s",
        step * 1e3,
        share(step),
        kernels * 1e3,
        share(kernels),
        percent(1.0 - kernels / step),
        batch as f64 / step
    );
    Ok(())
}

fn prefill(model: &mut CudaModel, config: &ModelConfig, limits: &Limits) -> Result<(), Failure> {
    let each = (PROMPT_TOKENS / BLOCK_TOKENS) as u32;
    let tables: Vec<Vec<u32>> =
        (0..PROMPTS as u32).map(|sequence| (sequence * each..(sequence + 1) * each).collect()).collect();
    let prompt: Vec<u32> = (0..PROMPT_TOKENS as u32).map(|at| at * 131 % 100_000).collect();
    let chunks: Vec<_> = tables
        .iter()
        .map(|blocks| SequenceChunk {
            tokens: &prompt,
            start: 0,
            tables: BlockTables::single(blocks),
            logits: LogitsWanted::Last,
            long_context: false,
        })
        .collect();
    let (mut out, mut times) = (Logits::default(), Vec::new());
    for _ in 0..5 {
        let started = Instant::now();
        model.step(&chunks, &mut out)?;
        times.push(started.elapsed());
    }
    let seconds = median(&mut times[1..]).as_secs_f64();
    let tokens = (PROMPTS * PROMPT_TOKENS) as f64;
    let head = (config.vocab_size * config.hidden_size * 2) as f64;
    // The head computes one row per prompt. Attention sees half of all pairs.
    let dense = (read_bytes(model, config) - head) * tokens + head * PROMPTS as f64;
    let pairs = PROMPTS as f64 * (PROMPT_TOKENS * PROMPT_TOKENS) as f64 / 2.0;
    let attention = config.layers.iter().filter_map(|layer| layer.mixer.attention());
    let queries: usize = attention.map(|of| of.heads * of.head_dim).sum();
    let attention = 4.0 * pairs * queries as f64;
    let rate = (dense + attention) / seconds;
    println!(
        "prefill of {PROMPTS} × {PROMPT_TOKENS}: {:.1} ms, {:.0} TFLOP/s{}, {:.0} tokens/s",
        seconds * 1e3,
        rate / 1e12,
        limits
            .flops
            .map_or(String::new(), |flops| format!(" ({} of cuBLASLt's rate)", percent(rate / flops))),
        tokens / seconds
    );
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}
