//! Helpers of the kernel and model benchmarks: the machine configuration and the median.

#![allow(dead_code, reason = "each benchmark takes what it needs")]

use headrace_kernels::Isa;
use headrace_kernels::isa::ISA_VARIABLE;

/// Returns the instruction set named by `HEADRACE_ISA` (else the best one) and the number of threads in
/// `HEADRACE_THREADS` (else one per processor).
pub(crate) fn machine() -> Result<(Isa, usize), Box<dyn std::error::Error>> {
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref())?;
    let threads = match std::env::var("HEADRACE_THREADS") {
        Ok(text) => text.parse()?,
        Err(_) => std::thread::available_parallelism()?.get(),
    };
    Ok((isa, threads))
}

/// Returns the median, or NaN if there are no values.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
