//! What this machine can do at most: bytes read and multiply-adds done in a second, measured, so that every rate can be
//! printed as a fraction of its limit. Must not know: what is held against them.

pub(crate) mod loops;

use std::time::{Duration, Instant};

use crate::entry::dispatch;
use crate::entry_ints::{dispatch_ints, dispatch_pairs};
use crate::error::KernelError;
use crate::kernels::Kernels;
use crate::memory::{Region, Shared};
use crate::shapes::{LANES, LINE};
use loops::{REGISTERS, STREAMS};

/// Far above any last-level cache, so that memory is what is read.
const READ_BYTES: usize = 768 << 20;
/// Multiply-adds of one vector per register and thread in one measurement.
const ROUNDS: usize = 4_000_000;
/// The best of so many: other load on the machine can only slow one down.
const TRIES: usize = 5;

/// How fast the kernels' threads read from memory together: 8 interleaved streams each, at distances that are no power of two.
/// On a shared machine the limit moves from one second to the next, so what is held against it is measured in turn with it.
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
    Ok((2 * kernels.pool().threads() * registers * LINE * ROUNDS) as f64 / best)
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
