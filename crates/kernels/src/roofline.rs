//! What this machine can do at most: bytes read and multiply-adds done in a second, measured, so that every rate can be
//! printed as a fraction of its limit. Must not know: what is held against them.

use std::time::{Duration, Instant};

use crate::entry::dispatch;
use crate::entry_ints::{dispatch_ints, dispatch_pairs};
use crate::error::KernelError;
use crate::gemm_bf16::Pairs;
use crate::kernels::Kernels;
use crate::memory::{Region, Shared};
use crate::simd::{self, LANES, Simd};
use crate::simd_int::{self, Ints};

/// Streams that each thread reads side by side.
pub(crate) const STREAMS: usize = 8;
/// Bytes of one load.
pub(crate) const LINE: usize = LANES * 4;
/// Far above any last-level cache, so that memory is what is read.
const READ_BYTES: usize = 768 << 20;
/// Multiply-adds of one vector per register and thread in one measurement.
const ROUNDS: usize = 4_000_000;
/// Registers that bf16 products run in: enough to hide their latency.
pub(crate) const REGISTERS: usize = 12;
/// The best of so many: other load on the machine can only slow one down.
const TRIES: usize = 5;

/// How fast the kernels' threads read from memory together: 8 interleaved streams each, at distances that are no power of two.
/// On a machine that others share the limit moves from one second to the next: what is held against it is measured in turn with it.
pub struct ReadLimit {
    region: Region,
    threads: usize,
    /// Cache lines of a stream.
    lines: usize,
}

impl ReadLimit {
    /// Takes 768 MiB and touches them. Errors when there is no memory.
    pub fn new(kernels: &mut Kernels) -> Result<ReadLimit, KernelError> {
        let threads = kernels.pool().threads();
        let region = Region::zeroed(READ_BYTES)?;
        // An odd number of lines in a stream: no two streams stand at a power of two from each other.
        let lines = (READ_BYTES / LINE / threads / STREAMS - 1) | 1;
        let start = Shared(region.start());
        kernels.pool().run(threads * STREAMS, |stream, _| {
            // SAFETY: streams are disjoint and lie inside the region.
            unsafe { std::ptr::write_bytes(start.get().add(stream * lines * LINE), 1, lines * LINE) };
        })?;
        Ok(ReadLimit { region, threads, lines })
    }

    /// Bytes per second of one pass, by the kernels it was made for.
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

/// The most bytes per second of a few passes of a [`ReadLimit`]. Takes a few seconds and 768 MiB.
pub fn read_bytes_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let mut limit = ReadLimit::new(kernels)?;
    let mut best = 0.0_f64;
    for _ in 0..TRIES {
        best = best.max(limit.measure(kernels)?);
    }
    Ok(best)
}

/// f32 operations per second (a multiply-add is two) that the kernels' threads do together, in registers.
pub fn flops_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let threads = kernels.pool().threads();
    let registers = dispatch!(isa, row_limit());
    let best = fastest(kernels, || {
        std::hint::black_box(dispatch!(isa, multiply_add(ROUNDS)));
    })?;
    Ok((2 * threads * registers * LANES * ROUNDS) as f64 / best)
}

/// int8 operations per second (a multiply-add is two) that the kernels' threads do together, in registers.
pub fn int8_ops_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let registers = dispatch_ints!(isa, sum_registers());
    let best = fastest(kernels, || {
        std::hint::black_box(dispatch_ints!(isa, multiply_ints(ROUNDS)));
    })?;
    Ok((2 * kernels.pool().threads() * registers * simd_int::LINE * ROUNDS) as f64 / best)
}

/// bf16 operations per second (a multiply-add is two) that the kernels' threads do together, in registers.
pub fn bf16_flops_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let best = fastest(kernels, || {
        std::hint::black_box(dispatch_pairs!(isa, multiply_pairs(ROUNDS)));
    })?;
    Ok((4 * kernels.pool().threads() * REGISTERS * LANES * ROUNDS) as f64 / best)
}

/// Seconds that `work` takes at best when every thread does it at once.
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

/// Sums `STREAMS` streams of `lines` cache lines, one behind the other in memory, read side by side.
///
/// # Safety
/// As for [`Simd`]; the streams are readable.
#[inline(always)]
pub(crate) unsafe fn read_streams<S: Simd>(first: *const u8, lines: usize) -> f32 {
    // SAFETY: the caller's contract: line < lines in each stream.
    unsafe {
        let mut sums = [S::splat(0.0); STREAMS];
        for line in 0..lines {
            for (stream, sum) in sums.iter_mut().enumerate() {
                let at = first.add((stream * lines + line) * LINE);
                S::prefetch(at.wrapping_add(2048));
                *sum = S::add(*sum, S::load(at.cast()));
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += simd::sum::<S>(sum);
        }
        total
    }
}

/// `rounds` multiply-adds in each of `R` independent registers.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn multiply_add<S: Simd, const R: usize>(rounds: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let (factor, term) = (S::splat(std::hint::black_box(0.999)), S::splat(std::hint::black_box(0.5)));
        let mut sums = [S::splat(std::hint::black_box(1.0)); R];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::fma(*sum, factor, term);
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += simd::sum::<S>(sum);
        }
        total
    }
}

/// `rounds` integer products in each of `R` independent sums.
///
/// # Safety
/// As for [`Ints`].
#[inline(always)]
pub(crate) unsafe fn multiply_ints<N: Ints, const R: usize>(rounds: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let codes = N::load(std::hint::black_box([3_u8; simd_int::LINE]).as_ptr());
        let word = std::hint::black_box(0x0102_0304);
        let mut sums = [N::zero(); R];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = N::dot::<false>(*sum, codes, &raw const word);
            }
        }
        sums.into_iter().map(|sum| simd::sum::<N::F>(N::to_f32(sum))).sum()
    }
}

/// `rounds` products of bf16 pairs in each of [`REGISTERS`] independent registers.
///
/// # Safety
/// As for [`Pairs`].
#[inline(always)]
pub(crate) unsafe fn multiply_pairs<D: Pairs>(rounds: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let weights = D::load(std::hint::black_box([0_u8; 4 * LANES]).as_ptr());
        let word = std::hint::black_box(0x3f80_3f80);
        let mut sums = [D::F::splat(0.0); REGISTERS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = D::dot(*sum, weights, &raw const word);
            }
        }
        sums.into_iter().map(|sum| simd::sum::<D::F>(sum)).sum()
    }
}
