//! Compares the kernels that pass over rows once with the memory read rate, measured between their passes. Covers
//! norm, rotation, SwiGLU, embedding lookup, and the reductions over logits (on one thread, as the engine calls
//! them). Written bytes count like read bytes, although they cost memory more.
//! `cargo bench -p headrace-kernels --bench rows [-- FILTER]`. `HEADRACE_ISA` and `HEADRACE_THREADS` select the
//! instruction set and the number of threads.

mod common;

use std::hint::black_box;
use std::time::Instant;

use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::roofline::ReadLimit;
use headrace_kernels::vocab::{argmax, logsumexp};
use headrace_kernels::{HeadRows, Isa, KernelError, Kernels, RopeTable};

use crate::common::{machine, median};

type Failure = Box<dyn std::error::Error>;

/// Width of a hidden state, and the number of rows: far larger than any last-level cache, so that memory is the
/// bottleneck.
const WIDTH: usize = 2048;
const ROWS: usize = 48 << 10;
/// Logits per sequence.
const VOCAB: usize = 32_000;
const HEAD_DIM: usize = 64;
const PASSES: usize = 5;

/// The kernels to measure, the read limit, and the filter on names.
struct Bench {
    kernels: Kernels,
    limit: ReadLimit,
    filter: String,
}

fn main() -> Result<(), Failure> {
    let (isa, threads) = machine()?;
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    println!("{isa}\n{:>24} {:>7} {:>9} {:>9} {:>9}", "kernel", "threads", "GB/s", "of GB/s", "%");
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i % 61) as f32 * 0.1 - 3.0).collect();
    let mut out = vec![0.0; ROWS * WIDTH];
    let bytes = size_of_val(x.as_slice());

    let mut bench = Bench::new(isa, threads, &filter)?;
    let weight = vec![1.0; WIDTH];
    bench.measure("rms norm", 2 * bytes, |kernels| kernels.rms_norm(&x, &weight, 1e-6, &mut out))?;
    let half = out.len() / 2;
    bench.measure("swiglu", bytes + bytes / 2, |kernels| {
        kernels.silu_mul(&x, WIDTH, out.get_mut(..half).unwrap_or_default())
    })?;
    let half_dim = HEAD_DIM / 2;
    let table =
        RopeTable { half: half_dim, cos: vec![0.6; 4096 * half_dim], sin: vec![0.8; 4096 * half_dim] };
    let positions: Vec<usize> = (0..ROWS).map(|row| row % 4096).collect();
    let (heads, kv_heads) = (WIDTH / HEAD_DIM - 8, 8);
    let heads = HeadRows {
        heads,
        kv_heads,
        head_dim: HEAD_DIM,
        stride: WIDTH,
        query_norm: None,
        key_norm: None,
        eps: 1e-6,
    };
    out.copy_from_slice(&x);
    bench.measure("rotation", 2 * bytes, |kernels| kernels.rope(&mut out, heads, &positions, &table))?;
    for kind in [WeightType::F32, WeightType::Bf16] {
        let stored: Vec<u8> = match kind {
            WeightType::Bf16 => {
                x.iter().take(VOCAB * WIDTH).flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect()
            }
            _ => x.iter().take(VOCAB * WIDTH).flat_map(|v| v.to_le_bytes()).collect(),
        };
        let part = Part { weight_type: kind, rows: VOCAB, bytes: &stored, bias: None };
        let matrix = Matrix::pack(bench.kernels.pool(), &[part], WIDTH)?;
        // Every row once, in shuffled order.
        let ids: Vec<u32> = (0..VOCAB).map(|i| (i * 7919 % VOCAB) as u32).collect();
        let written = VOCAB * WIDTH * size_of::<f32>();
        let name = format!("lookup {}", kind.name());
        bench.measure(&name, stored.len() + written, |kernels| {
            kernels.rows(&matrix, &ids, out.get_mut(..VOCAB * WIDTH).unwrap_or_default())
        })?;
    }

    let mut bench = Bench::new(isa, 1, &filter)?;
    let read = x.len() / VOCAB * VOCAB * size_of::<f32>();
    bench.measure("logsumexp", read, |_| {
        black_box(x.chunks_exact(VOCAB).map(|logits| logsumexp(isa, logits)).sum::<f32>());
        Ok(())
    })?;
    bench.measure("argmax", read, |_| {
        black_box(x.chunks_exact(VOCAB).filter_map(|logits| argmax(isa, logits)).sum::<usize>());
        Ok(())
    })
}

impl Bench {
    fn new(isa: Isa, threads: usize, filter: &str) -> Result<Bench, Failure> {
        let mut kernels = Kernels::new(isa, threads)?;
        let limit = ReadLimit::new(&mut kernels)?;
        Ok(Bench { kernels, limit, filter: filter.to_owned() })
    }

    /// Prints the median rate of passes that access `bytes` bytes, and the median memory read rate between them.
    fn measure(
        &mut self,
        name: &str,
        bytes: usize,
        mut pass: impl FnMut(&mut Kernels) -> Result<(), KernelError>,
    ) -> Result<(), Failure> {
        if !name.contains(&self.filter) {
            return Ok(());
        }
        let (mut rates, mut limits) = (Vec::new(), Vec::new());
        for _ in 0..PASSES {
            let begin = Instant::now();
            pass(&mut self.kernels)?;
            rates.push(bytes as f64 / begin.elapsed().as_secs_f64());
            limits.push(self.limit.measure(&mut self.kernels)?);
        }
        let (rate, limit) = (median(&mut rates), median(&mut limits));
        println!(
            "{name:>24} {:>7} {:>9.1} {:>9.1} {:>9.1}",
            self.kernels.pool().threads(),
            rate / 1e9,
            limit / 1e9,
            100.0 * rate / limit
        );
        Ok(())
    }
}
