//! Measures the limits of this machine: bytes read and multiply-adds per second. Every rate can then be printed as a
//! fraction of its limit.
//! Must not know: which rates are compared with the limits.

use std::time::{Duration, Instant};

use crate::entry::dispatch;
use crate::entry_ints::{dispatch_ints, dispatch_pairs};
use crate::error::KernelError;
use crate::kernels::Kernels;
use crate::limit_loops::{REGISTERS, STREAMS};
use crate::memory::{Region, Shared};
use crate::shapes::{LANES, LINE};

/// Far larger than any last-level cache, so that reads come from memory.
const READ_BYTES: usize = 768 << 20;
/// Vector multiply-adds per register and thread in one measurement.
const ROUNDS: usize = 4_000_000;
/// Number of measurements. The best one counts, because other load on the machine can only slow one down.
const TRIES: usize = 5;

/// How fast the kernels' threads together read from memory: 8 interleaved streams each, at distances that are no
/// power of two. On a shared machine the limit varies from one second to the next. Take turns between measuring it
/// and measuring the rate to compare.
pub struct ReadLimit {
    region: Region,
    threads: usize,
    /// Cache lines of a stream.
    lines: usize,
}

impl ReadLimit {
    /// Allocates and touches 768 MiB. Fails if there is no memory.
    pub fn new(kernels: &mut Kernels) -> Result<ReadLimit, KernelError> {
        let threads = kernels.pool().threads();
        let region = Region::zeroed(READ_BYTES)?;
        // An odd number of lines per stream, so that no two streams are a power of two apart.
        let lines = (READ_BYTES / LINE / threads / STREAMS - 1) | 1;
        let start = Shared(region.start());
        kernels.pool().run(threads * STREAMS, |stream, _| {
            // SAFETY: streams are disjoint and lie inside the region.
            unsafe { std::ptr::write_bytes(start.get().add(stream * lines * LINE), 1, lines * LINE) };
        })?;
        Ok(ReadLimit { region, threads, lines })
    }

    /// Returns the bytes per second of one pass, on the kernels that [`ReadLimit::new`] got.
    pub fn measure(&mut self, kernels: &mut Kernels) -> Result<f64, KernelError> {
        let (isa, lines, bytes) = (kernels.isa(), self.lines, self.lines * LINE);
        let start = Shared(self.region.start());
        let begin = Instant::now();
        kernels.pool().run(self.threads, |thread, _| {
            // The streams were written above and lie inside the region.
            let first = start.get().wrapping_add(thread * STREAMS * bytes);
            std::hint::black_box(dispatch!(isa, read_streams(first.cast_const(), lines)));
        })?;
        Ok((self.threads * STREAMS * bytes) as f64 / begin.elapsed().as_secs_f64())
    }
}

/// Returns the best rate of a few passes of a [`ReadLimit`], in bytes per second. Takes a few seconds and 768 MiB.
pub fn read_bytes_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let mut limit = ReadLimit::new(kernels)?;
    let mut best = 0.0_f64;
    for _ in 0..TRIES {
        best = best.max(limit.measure(kernels)?);
    }
    Ok(best)
}

/// Returns the f32 operations per second of all threads together, in registers. A multiply-add counts as two
/// operations.
pub fn flops_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let threads = kernels.pool().threads();
    let registers = dispatch!(isa, row_limit());
    let best = fastest(kernels, || {
        std::hint::black_box(dispatch!(isa, multiply_add(ROUNDS)));
    })?;
    Ok((2 * threads * registers * LANES * ROUNDS) as f64 / best)
}

/// Returns the int8 operations per second of all threads together, in registers. A multiply-add counts as two
/// operations.
pub fn int8_ops_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let registers = dispatch_ints!(isa, sum_registers());
    let best = fastest(kernels, || {
        std::hint::black_box(dispatch_ints!(isa, multiply_ints(ROUNDS)));
    })?;
    Ok((2 * kernels.pool().threads() * registers * LINE * ROUNDS) as f64 / best)
}

/// Returns the bf16 operations per second of all threads together, in registers. A multiply-add counts as two
/// operations.
pub fn bf16_flops_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let best = fastest(kernels, || {
        std::hint::black_box(dispatch_pairs!(isa, multiply_pairs(ROUNDS)));
    })?;
    Ok((4 * kernels.pool().threads() * REGISTERS * LANES * ROUNDS) as f64 / best)
}

/// Returns the best time in seconds for `work` when every thread runs it at once.
fn fastest(kernels: &mut Kernels, work: impl Fn() + Sync) -> Result<f64, KernelError> {
    let threads = kernels.pool().threads();
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let begin = Instant::now();
        kernels.pool().run(threads, |_, _| work())?;
        best = best.min(begin.elapsed());
    }
    Ok(best.as_secs_f64())
}
