//! What this machine can do at most: bytes read and multiply-adds done in a second, measured, so that every rate can be
//! printed as a fraction of its limit. Must not know: what is held against them.

use std::time::{Duration, Instant};

use crate::entry::dispatch;
use crate::error::KernelError;
use crate::kernels::Kernels;
use crate::memory::{Region, Shared};
use crate::simd::{self, LANES, Simd};

/// Streams that each thread reads side by side.
pub(crate) const STREAMS: usize = 8;
/// Bytes of one load.
pub(crate) const LINE: usize = LANES * 4;
/// Far above any last-level cache, so that memory is what is read.
const READ_BYTES: usize = 768 << 20;
/// Multiply-adds of 16 lanes per register and thread in one measurement.
const FMA_ROUNDS: usize = 4_000_000;
/// The best of so many: other load on the machine can only slow one down.
const TRIES: usize = 5;

/// Bytes per second that the kernels' threads read from memory together, 8 interleaved streams each at distances that are no
/// power of two. Takes a few seconds and 768 MiB. Errors when there is no memory.
pub fn read_bytes_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let threads = kernels.pool().threads();
    let region = Region::zeroed(READ_BYTES)?;
    let start = Shared(region.start());
    // An odd number of lines in a stream: no two streams stand at a power of two from each other.
    let lines = (READ_BYTES / LINE / threads / STREAMS - 1) | 1;
    let bytes = lines * LINE;
    kernels.pool().run(threads * STREAMS, |stream, _| {
        // SAFETY: streams are disjoint and lie inside the region.
        unsafe { std::ptr::write_bytes(start.get().add(stream * bytes), 1, bytes) };
    })?;
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let begin = Instant::now();
        kernels.pool().run(threads, |thread, _| {
            // The streams were written above and lie inside the region.
            let first = start.get().wrapping_add(thread * STREAMS * bytes);
            std::hint::black_box(dispatch!(isa, read_streams(first.cast_const(), lines)));
        })?;
        best = best.min(begin.elapsed());
    }
    Ok((threads * STREAMS * bytes) as f64 / best.as_secs_f64())
}

/// f32 operations per second (a multiply-add is two) that the kernels' threads do together, in registers.
pub fn flops_per_second(kernels: &mut Kernels) -> Result<f64, KernelError> {
    let isa = kernels.isa();
    let threads = kernels.pool().threads();
    let registers = dispatch!(isa, row_limit());
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let begin = Instant::now();
        kernels.pool().run(threads, |_, _| {
            std::hint::black_box(dispatch!(isa, multiply_add(FMA_ROUNDS)));
        })?;
        best = best.min(begin.elapsed());
    }
    Ok((2 * threads * registers * LANES * FMA_ROUNDS) as f64 / best.as_secs_f64())
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
