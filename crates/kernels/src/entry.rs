//! Compiles the generic kernels for each instruction set and selects one of the compiled functions.
//! Must not know: what the kernels compute.

use crate::activation::{self, Activation};
use crate::attention::attend::{self, Job};
use crate::attention::plan::Item;
use crate::gemm::{self, Product};
use crate::limit_loops;
use crate::logits;
use crate::rows::{self, HeadRow, RowNorm};
use crate::states::convolution::{self, ConvolutionJob};
use crate::states::plan::PlannedSpan;
use crate::states::recurrence::{self, RecurrenceJob};
use crate::tiles::Tiles;

macro_rules! entries {
    ($module:ident, $simd:ty, $rows:literal, $(#[$features:meta])*) => {
        /// The kernels compiled for one instruction set. Each needs a processor that supports the instruction set,
        /// and valid pointers in its arguments.
        pub(crate) mod $module {
            use super::*;

            $(#[$features])*
            pub(crate) unsafe fn logsumexp(x: &[f32]) -> f32 {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { logits::log_sum_exp::<$simd>(x) }
            }

            $(#[$features])*
            pub(crate) unsafe fn largest(x: &[f32]) -> f32 {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { logits::largest::<$simd>(x) }
            }

            $(#[$features])*
            pub(crate) unsafe fn largest_allowed(x: &[f32], allowed: &[u32]) -> Option<usize> {
                logits::largest_allowed(x, allowed)
            }

            $(#[$features])*
            pub(crate) unsafe fn columns(product: &Product<'_>, first: usize, count: usize) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { gemm::columns::<$simd>(product, first, count) }
            }

            $(#[$features])*
            pub(crate) unsafe fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { rows::rms_norm::<$simd>(x, weight, eps, out) }
            }

            $(#[$features])*
            pub(crate) unsafe fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { rows::layer_norm::<$simd>(x, weight, bias, eps, out) }
            }

            $(#[$features])*
            pub(crate) unsafe fn activate(kind: Activation, x: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { activation::activate::<$simd>(kind, x) }
            }

            $(#[$features])*
            pub(crate) unsafe fn activate_gated(kind: Activation, x: &[f32], gates: &[f32], out: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { activation::gated::<$simd>(kind, x, gates, out) }
            }

            $(#[$features])*
            pub(crate) unsafe fn scale_and_cap(x: &mut [f32], factor: f32, cap: Option<f32>) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { activation::scale_and_cap::<$simd>(x, factor, cap) }
            }

            $(#[$features])*
            pub(crate) unsafe fn norm_in_place(kind: RowNorm, x: &mut [f32], weight: &[f32], eps: f32) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { rows::norm_in_place::<$simd>(kind, x, weight, eps) }
            }

            $(#[$features])*
            pub(crate) unsafe fn clamped_gated(gates: &[f32], ups: &[f32], bounds: (f32, f32), out: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { activation::clamped_gated::<$simd>(gates, ups, bounds, out) }
            }

            $(#[$features])*
            pub(crate) unsafe fn rope_head(head: &mut [f32], row: &HeadRow<'_>) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { rows::rope_head::<$simd>(head, row) }
            }

            $(#[$features])*
            pub(crate) unsafe fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { rows::silu_mul::<$simd>(gate, up, out) }
            }

            $(#[$features])*
            pub(crate) unsafe fn attend(job: &Job<'_>, item: &Item, next: Option<&Item>, scratch: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { attend::attend::<$simd>(job, item, next, scratch) }
            }

            $(#[$features])*
            pub(crate) unsafe fn merge_parts(job: &Job<'_>, item: &Item, scratch: &mut [f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { attend::merge_parts::<$simd>(job, item, scratch) }
            }

            $(#[$features])*
            pub(crate) unsafe fn sigmoid_gated(x: &mut [f32], gates: &[f32]) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { activation::sigmoid_gated::<$simd>(x, gates) }
            }

            $(#[$features])*
            pub(crate) unsafe fn convolve(job: &ConvolutionJob<'_>, span: &PlannedSpan, first: usize, count: usize) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { convolution::convolve::<$simd>(job, span, first, count) }
            }

            $(#[$features])*
            pub(crate) unsafe fn advance(
                job: &RecurrenceJob<'_>,
                span: &PlannedSpan,
                head: usize,
                scratch: &mut [f32],
            ) {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { recurrence::advance::<$simd>(job, span, head, scratch) }
            }

            $(#[$features])*
            pub(crate) unsafe fn read_streams(first: *const u8, lines: usize) -> f32 {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { limit_loops::read_streams::<$simd>(first, lines) }
            }

            $(#[$features])*
            pub(crate) unsafe fn multiply_add(rounds: usize) -> f32 {
                // SAFETY: the caller's contract; compiled for the instruction set.
                unsafe { limit_loops::multiply_add::<$simd, $rows>(rounds) }
            }

            /// Returns the most rows that one register tile holds.
            pub(crate) unsafe fn row_limit() -> usize {
                const { assert!($rows == <$simd as Tiles>::ROWS) };
                $rows
            }
        }
    };
}

entries!(scalar, crate::simd::Scalar, 2,);
#[cfg(target_arch = "aarch64")]
entries!(neon, crate::simd_neon::Neon, 6, #[target_feature(enable = "neon")]);
#[cfg(target_arch = "x86_64")]
entries!(avx2, crate::simd_x86::Avx2, 6, #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
entries!(
    avx512,
    crate::simd_x86::Avx512,
    12,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
);

/// Calls a kernel on an instruction set. If the machine lacks the instruction set, calls the scalar kernel instead.
/// No value of `Isa` can therefore reach an instruction that the processor does not know.
macro_rules! dispatch {
    ($isa:expr, $name:ident($($arg:expr),* $(,)?)) => {
        match $isa {
            // SAFETY: the guard checks that the processor supports it. The call site justifies the arguments.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx512 if $crate::isa::Isa::Avx512.is_supported() => unsafe {
                $crate::entry::avx512::$name($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Isa::Avx2 if $crate::isa::Isa::Avx2.is_supported() => unsafe {
                $crate::entry::avx2::$name($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::isa::Isa::Neon if $crate::isa::Isa::Neon.is_supported() => unsafe {
                $crate::entry::neon::$name($($arg),*)
            },
            // SAFETY: plain Rust. The call site justifies the arguments.
            _ => unsafe { $crate::entry::scalar::$name($($arg),*) },
        }
    };
}
pub(crate) use dispatch;
