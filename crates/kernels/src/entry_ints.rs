//! Compiles the kernels for quantized and bf16 weights for each instruction set and selects one of the compiled
//! functions.
//! Must not know: what the kernels compute.

use headrace_quant::BlockType;

use crate::activations;
use crate::expand;
use crate::formats::with_format;
use crate::gemm::Product;
use crate::gemm_bf16::{self, PairProduct};
use crate::gemm_int::{self, IntProduct};
use crate::limit_loops;
use crate::section::Section;
use crate::simd_bf16::Pairs;
use crate::tiles::{IntTiles, Tiles};

macro_rules! int_entries {
    ($module:ident, $ints:ty, $sums:literal, $(#[$features:meta])*) => {
        /// The integer kernels compiled for one instruction set. Each needs a processor that supports the instruction
        /// set, valid pointers in its arguments, and a section that holds the block type.
        pub(crate) mod $module {
            use super::*;

            $(#[$features])*
            pub(crate) unsafe fn expand_row(section: &Section, kind: BlockType, row: usize, out: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { with_format!(kind, F => expand::row::<$ints, F>(section, row, out)) }
            }

            $(#[$features])*
            pub(crate) unsafe fn expand_columns(
                product: &Product<'_>,
                kind: BlockType,
                first: usize,
                count: usize,
            ) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { with_format!(kind, F => expand::columns::<$ints, F>(product, first, count)) }
            }

            $(#[$features])*
            pub(crate) unsafe fn int_columns(
                product: &IntProduct<'_>,
                kind: BlockType,
                first: usize,
                count: usize,
            ) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { with_format!(kind, F => gemm_int::columns::<$ints, F>(product, first, count)) }
            }

            $(#[$features])*
            pub(crate) unsafe fn quantize(
                x: &[f32],
                k: usize,
                rows: usize,
                codes: &mut [i32],
                facts: &mut [f32],
            ) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { activations::quantize::<$ints>(x, k, rows, codes, facts) }
            }

            $(#[$features])*
            pub(crate) unsafe fn multiply_ints(rounds: usize) -> f32 {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { limit_loops::multiply_ints::<$ints, $sums>(rounds) }
            }

            /// Returns the number of sums that `multiply_ints` keeps: enough to hide their latency, but no more than
            /// there are registers.
            pub(crate) unsafe fn sum_registers() -> usize {
                $sums
            }

            /// Returns the most rows in a register tile of a product of `m` rows.
            pub(crate) unsafe fn row_limit(m: usize) -> usize {
                <$ints as IntTiles>::rows(m)
            }
        }
    };
}

int_entries!(scalar, crate::simd::Scalar, 2,);
#[cfg(target_arch = "aarch64")]
int_entries!(neon, crate::simd_neon::Neon, 6, #[target_feature(enable = "neon")]);
#[cfg(target_arch = "aarch64")]
int_entries!(neon_dot, crate::simd_int_neon::NeonDot, 6, #[target_feature(enable = "neon,dotprod")]);
#[cfg(target_arch = "x86_64")]
int_entries!(avx2, crate::simd_x86::Avx2, 6, #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
int_entries!(vnni256, crate::simd_int_x86::Vnni256, 6, #[target_feature(enable = "avx2,avxvnni,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
int_entries!(
    vnni512,
    crate::simd_int_x86::Vnni512,
    12,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
);

/// Calls an integer kernel on an instruction set. AVX2 has one path with AVX-VNNI and one without. NEON has one path
/// with dot products and one without. Integer sums are exact, so both paths give the same bits.
macro_rules! dispatch_ints {
    ($isa:expr, $name:ident($($arg:expr),* $(,)?)) => {
        match $isa {
            // SAFETY: the guard checks that the processor supports it. The call site justifies the arguments.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx512 if $crate::isa::Isa::Avx512.is_supported() => unsafe {
                $crate::entry_ints::vnni512::$name($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx2
                if $crate::isa::Isa::Avx2.is_supported() && std::arch::is_x86_feature_detected!("avxvnni") =>
            {
                // SAFETY: as above.
                unsafe { $crate::entry_ints::vnni256::$name($($arg),*) }
            }
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx2 if $crate::isa::Isa::Avx2.is_supported() => unsafe {
                $crate::entry_ints::avx2::$name($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::isa::Isa::Neon
                if $crate::isa::Isa::Neon.is_supported() && std::arch::is_aarch64_feature_detected!("dotprod") =>
            {
                // SAFETY: as above.
                unsafe { $crate::entry_ints::neon_dot::$name($($arg),*) }
            }
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::isa::Isa::Neon if $crate::isa::Isa::Neon.is_supported() => unsafe {
                $crate::entry_ints::neon::$name($($arg),*)
            },
            // SAFETY: plain Rust. The call site justifies the arguments.
            _ => unsafe { $crate::entry_ints::scalar::$name($($arg),*) },
        }
    };
}
pub(crate) use dispatch_ints;

macro_rules! pair_entries {
    ($module:ident, $pairs:ty, $(#[$features:meta])*) => {
        /// The kernels for bf16 weights and activations, compiled for one instruction set.
        pub(crate) mod $module {
            use super::*;

            $(#[$features])*
            pub(crate) unsafe fn pair_columns(product: &PairProduct<'_>, first: usize, count: usize) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { gemm_bf16::columns::<$pairs>(product, first, count) }
            }

            $(#[$features])*
            pub(crate) unsafe fn pair_rows(x: &[f32], k: usize, rows: usize, pairs: &mut [u32]) {
                activations::pair_bf16(x, k, rows, pairs);
            }

            $(#[$features])*
            pub(crate) unsafe fn multiply_pairs(rounds: usize) -> f32 {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { limit_loops::multiply_pairs::<$pairs>(rounds) }
            }

            /// Returns the most rows that one register tile holds.
            pub(crate) unsafe fn row_limit() -> usize {
                <<$pairs as Pairs>::F as Tiles>::ROWS
            }
        }
    };
}

pair_entries!(pairs_scalar, crate::simd::Scalar,);
#[cfg(target_arch = "aarch64")]
pair_entries!(pairs_neon, crate::simd_neon::Neon, #[target_feature(enable = "neon")]);
#[cfg(target_arch = "x86_64")]
pair_entries!(pairs_avx2, crate::simd_x86::Avx2, #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
pair_entries!(
    pairs_avx512,
    crate::simd_x86::Avx512,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
);
#[cfg(target_arch = "x86_64")]
pair_entries!(
    pairs_bf16,
    crate::simd_bf16::Bf16Dot,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
);

/// Calls a kernel for bf16 pairs. With AVX-512, result bits depend on whether the processor has an instruction for
/// bf16 pairs. The numerics fingerprint therefore includes this (`Isa::multiplies_bf16_pairs`).
macro_rules! dispatch_pairs {
    ($isa:expr, $name:ident($($arg:expr),* $(,)?)) => {
        match $isa {
            // SAFETY: the guard checks that the processor supports it. The call site justifies the arguments.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx512 if $crate::isa::Isa::Avx512.multiplies_bf16_pairs() => unsafe {
                $crate::entry_ints::pairs_bf16::$name($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx512 if $crate::isa::Isa::Avx512.is_supported() => unsafe {
                $crate::entry_ints::pairs_avx512::$name($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx2 if $crate::isa::Isa::Avx2.is_supported() => unsafe {
                $crate::entry_ints::pairs_avx2::$name($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::isa::Isa::Neon if $crate::isa::Isa::Neon.is_supported() => unsafe {
                $crate::entry_ints::pairs_neon::$name($($arg),*)
            },
            // SAFETY: plain Rust. The call site justifies the arguments.
            _ => unsafe { $crate::entry_ints::pairs_scalar::$name($($arg),*) },
        }
    };
}
pub(crate) use dispatch_pairs;
