//! Helpers that the tests of the kernels share.

#![allow(dead_code, reason = "each test takes what it needs")]

use headrace_kernels::Isa;
use headrace_kernels::isa::ISA_VARIABLE;

/// Returns the instruction sets of this machine, or only the one in `HEADRACE_ISA` if it is set.
pub(crate) fn isas() -> Vec<Isa> {
    let forced = std::env::var(ISA_VARIABLE).unwrap_or_default();
    if !forced.is_empty() {
        return vec![Isa::choose(Some(&forced)).unwrap()];
    }
    for isa in Isa::ALL {
        if !isa.is_supported() {
            println!("skipped: this machine lacks {isa}");
        }
    }
    Isa::supported()
}

/// Returns random numbers in −1..1 from a seed (xorshift64).
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}
