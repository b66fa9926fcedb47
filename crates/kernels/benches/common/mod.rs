//! What the benchmarks of kernels and models share: what they run on, and the middle of what they measured.

#![allow(dead_code, reason = "each benchmark takes what it needs")]

use headrace_kernels::Isa;
use headrace_kernels::isa::ISA_VARIABLE;

/// The instruction set that `HEADRACE_ISA` names (else the best) and as many threads as `HEADRACE_THREADS` says (else one
/// for each processor).
pub(crate) fn machine() -> Result<(Isa, usize), Box<dyn std::error::Error>> {
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref())?;
    let threads = match std::env::var("HEADRACE_THREADS") {
        Ok(text) => text.parse()?,
        Err(_) => std::thread::available_parallelism()?.get(),
    };
    Ok((isa, threads))
}

/// The middle one, NaN of none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
