//! Matrix products beside this machine's limits, measured in the same run: GEMV as a fraction of the read bandwidth, GEMM as a
//! fraction of the f32 multiply-add peak. `cargo bench -p headrace-kernels`; `HEADRACE_ISA` and `HEADRACE_THREADS` choose.

use std::time::Instant;

use headrace_kernels::isa::ISA_VARIABLE;
use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::{Isa, KernelError, Kernels, Write, roofline};

type Failure = Box<dyn std::error::Error>;

/// Copies of a matrix are cycled through until they exceed any last-level cache.
const WORKING_SET_BYTES: usize = 512 << 20;
const PASSES: usize = 5;

fn main() -> Result<(), Failure> {
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref())?;
    let threads = match std::env::var("HEADRACE_THREADS") {
        Ok(text) => text.parse()?,
        Err(_) => std::thread::available_parallelism()?.get(),
    };
    let mut kernels = Kernels::new(isa, threads)?;
    let bandwidth = roofline::read_bytes_per_second(&mut kernels)?;
    let flops = roofline::flops_per_second(&mut kernels)?;
    println!("{isa}, {threads} threads: reads {:.1} GB/s, f32 {:.0} GFLOP/s", bandwidth / 1e9, flops / 1e9);
    println!(
        "{:>5} {:>6} {:>6} {:>4} {:>9} {:>6} {:>9} {:>6}",
        "type", "n", "k", "m", "GB/s", "%", "GFLOP/s", "%"
    );
    for (weight_type, n, k, rows) in [
        (WeightType::Bf16, 3072, 2048, &[1][..]),
        (WeightType::Bf16, 2048, 2048, &[1]),
        (WeightType::Bf16, 2048, 8192, &[1]),
        (WeightType::Bf16, 16_384, 2048, &[1, 2, 4, 6, 8, 12, 16, 32, 128, 512]),
        (WeightType::F16, 16_384, 2048, &[1, 512]),
        (WeightType::F32, 16_384, 2048, &[1, 512]),
    ] {
        let matrices = copies(&mut kernels, weight_type, n, k)?;
        for &m in rows {
            measure(&mut kernels, &matrices, m, bandwidth, flops)?;
        }
    }
    Ok(())
}

fn copies(
    kernels: &mut Kernels,
    weight_type: WeightType,
    n: usize,
    k: usize,
) -> Result<Vec<Matrix>, KernelError> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = n * k * weight_type.bytes() / 8;
    let bytes: Vec<u8> = (0..words)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Magnitudes near 2⁻⁷ in each of the three types.
            ((state & 0x80ff_80ff_80ff_80ff) | 0x3c00_3c00_3c00_3c00).to_le_bytes()
        })
        .collect();
    let part = Part { weight_type, rows: n, bytes: &bytes, bias: None };
    (0..WORKING_SET_BYTES.div_ceil(bytes.len())).map(|_| Matrix::pack(kernels.pool(), &[part], k)).collect()
}

fn measure(
    kernels: &mut Kernels,
    matrices: &[Matrix],
    m: usize,
    bandwidth: f64,
    flops: f64,
) -> Result<(), Failure> {
    let Some(first) = matrices.first() else { return Ok(()) };
    let (n, k, weight_type) = (first.n(), first.k(), first.weight_type());
    let x: Vec<f32> = (0..m * k).map(|i| (i % 31) as f32 * 0.1 - 1.5).collect();
    let mut out = vec![0.0; m * n];
    let matrices = if m > 32 { matrices.get(..2).unwrap_or(matrices) } else { matrices };
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let begin = Instant::now();
        for matrix in matrices {
            kernels.matmul(&x, m, matrix, &mut out, Write::Set)?;
        }
        best = best.min(begin.elapsed().as_secs_f64() / matrices.len() as f64);
    }
    let read = (n * k * weight_type.bytes()) as f64 / best;
    let done = (2 * m * n * k) as f64 / best;
    println!(
        "{:>5} {n:>6} {k:>6} {m:>4} {:>9.1} {:>6.1} {:>9.0} {:>6.1}",
        format!("{weight_type:?}").to_lowercase(),
        read / 1e9,
        100.0 * read / bandwidth,
        done / 1e9,
        100.0 * done / flops
    );
    Ok(())
}
