//! Compares matrix products with this machine's limits, measured in the same run. Few rows are a fraction of the read
//! bandwidth, many rows a fraction of the peak of their arithmetic.
//! `cargo bench -p headrace-kernels --bench kernels [-- FILTER [ROWS…]]`. `HEADRACE_ISA` and `HEADRACE_THREADS`
//! select the instruction set and the number of threads. A filter is a part of a line's name, such as `q4_k` or
//! `fast`.

mod common;

use std::time::Instant;

use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::roofline::{self, ReadLimit};
use headrace_kernels::{ComputeMode, KernelError, Kernels, Write};
use headrace_quant::BlockType;

use crate::common::{machine, median};

type Failure = Box<dyn std::error::Error>;

/// The benchmark cycles through copies of a matrix that together exceed any last-level cache.
const WORKING_SET_BYTES: usize = 384 << 20;
const PASSES: usize = 5;
/// The numbers of rows to measure.
const ROWS: [usize; 11] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 512];
/// Outputs and inputs of each matrix.
const SHAPE: (usize, usize) = (8192, 2048);

/// The machine's limits: bytes read per second (measured again with every pass, because it varies) and operations per
/// second.
struct Limits {
    kernels: Kernels,
    read: ReadLimit,
    f32: f64,
    bf16: f64,
    int8: f64,
}

fn main() -> Result<(), Failure> {
    let (isa, threads) = machine()?;
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let filter = arguments.next().unwrap_or_default();
    let asked: Vec<usize> = arguments.map(|text| text.parse()).collect::<Result<_, _>>()?;
    let rows = if asked.is_empty() { ROWS.to_vec() } else { asked };
    let mut kernels = Kernels::new(isa, threads)?;
    let read = ReadLimit::new(&mut kernels)?;
    let mut limits = Limits {
        read,
        f32: roofline::flops_per_second(&mut kernels)?,
        bf16: roofline::bf16_flops_per_second(&mut kernels)?,
        int8: roofline::int8_ops_per_second(&mut kernels)?,
        kernels,
    };
    println!(
        "{isa}, {threads} threads: f32 {:.0} GFLOP/s, bf16 {:.0} GFLOP/s, int8 {:.0} GOP/s",
        limits.f32 / 1e9,
        limits.bf16 / 1e9,
        limits.int8 / 1e9
    );
    println!(
        "{:>14} {:>4} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "weights/mode", "rows", "GB/s", "of GB/s", "% of read", "Gop/s", "% of peak"
    );
    let dense = [WeightType::F32, WeightType::F16, WeightType::Bf16];
    let blocks = BlockType::ALL.into_iter().map(WeightType::Block);
    for weight_type in dense.into_iter().chain(blocks) {
        let mut matrices = None;
        for mode in ComputeMode::ALL {
            let name = format!("{}/{mode}", weight_type.name());
            if !name.contains(&filter) {
                continue;
            }
            let mut kernels = Kernels::with_mode(isa, threads, mode)?;
            if matrices.is_none() {
                matrices = Some(copies(&mut kernels, weight_type)?);
            }
            for &m in &rows {
                measure(&mut kernels, matrices.as_deref().unwrap_or_default(), &name, m, &mut limits)?;
            }
        }
    }
    Ok(())
}

fn copies(kernels: &mut Kernels, weight_type: WeightType) -> Result<Vec<Matrix>, Failure> {
    let (n, k) = SHAPE;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut row = || -> Vec<f32> {
        (0..k)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1_u64 << 29) as f32 - 1.0 / 64.0
            })
            .collect()
    };
    let mut bytes = Vec::new();
    for _ in 0..64 {
        let values = row();
        match weight_type {
            WeightType::F32 => bytes.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            WeightType::F16 => {
                bytes.extend(values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()))
            }
            WeightType::Bf16 => {
                bytes.extend(values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()))
            }
            WeightType::Block(kind) => {
                // Formats that are only read keep these bytes, with scales of 0.325.
                let mut blocks = vec![0x35; kind.row_bytes(k).ok_or("a row is whole blocks")?];
                if kind.is_quantized_here() {
                    headrace_quant::quantize_row(kind, &values, &mut blocks)?;
                }
                bytes.extend(blocks);
            }
        }
    }
    // Repeats the same 64 rows. Their values do not affect the read speed.
    let bytes = bytes.repeat(n / 64);
    let part = Part { weight_type, rows: n, bytes: &bytes, bias: None };
    let count = WORKING_SET_BYTES.div_ceil(bytes.len());
    Ok((0..count).map(|_| Matrix::pack(kernels.pool(), &[part], k)).collect::<Result<_, KernelError>>()?)
}

fn measure(
    kernels: &mut Kernels,
    matrices: &[Matrix],
    name: &str,
    m: usize,
    limits: &mut Limits,
) -> Result<(), Failure> {
    let Some(first) = matrices.first() else { return Ok(()) };
    let (n, k) = SHAPE;
    let x: Vec<f32> = (0..m * k).map(|i| (i % 31) as f32 * 0.1 - 1.5).collect();
    let mut out = vec![0.0; m * n];
    let matrices = if m > 32 { matrices.get(..2).unwrap_or(matrices) } else { matrices };
    let (mut times, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        let begin = Instant::now();
        for matrix in matrices {
            kernels.matmul(&x, m, matrix, &mut out, Write::Set)?;
        }
        times.push(begin.elapsed().as_secs_f64() / matrices.len() as f64);
        reads.push(limits.read.measure(&mut limits.kernels)?);
    }
    let (took, limit) = (median(&mut times), median(&mut reads));
    let peak = match first.weight_types().next() {
        Some((WeightType::Block(_), _)) if kernels.mode() == ComputeMode::Fast => limits.int8,
        Some((WeightType::Bf16, _)) if kernels.mode() == ComputeMode::Fast => limits.bf16,
        _ => limits.f32,
    };
    let read = first.read_bytes() as f64 / took;
    let done = (2 * m * n * k) as f64 / took;
    println!(
        "{name:>14} {m:>4} {:>9.1} {:>9.1} {:>9.1} {:>9.0} {:>9.1}",
        read / 1e9,
        limit / 1e9,
        100.0 * read / limit,
        done / 1e9,
        100.0 * done / peak
    );
    Ok(())
}
