//! The sixteen f32 lanes on 64-bit Arm: four NEON registers. Must not know: what a kernel computes.

use std::arch::aarch64::*;

use crate::simd::{EXP_HIGH, EXP_LOW, ROUND, Simd};

/// Four 128-bit registers.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// A quarter of a vector.
type Quarter = float32x4_t;

/// Evaluates `$body` for each quarter's index and collects the four results in an array.
macro_rules! quarters {
    (|$q:ident| $body:expr) => {{
        [
            {
                const $q: usize = 0;
                $body
            },
            {
                const $q: usize = 1;
                $body
            },
            {
                const $q: usize = 2;
                $body
            },
            {
                const $q: usize = 3;
                $body
            },
        ]
    }};
}
pub(crate) use quarters;

macro_rules! op {
    ($name:ident($($arg:ident),*) = $function:path) => {
        #[inline(always)]
        unsafe fn $name($($arg: [Quarter; 4]),*) -> [Quarter; 4] {
            // SAFETY: the trait's contract: the processor has NEON.
            unsafe { quarters!(|Q| $function($($arg[Q]),*)) }
        }
    };
}

/// `a·b + c`.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn fma(a: Quarter, b: Quarter, c: Quarter) -> Quarter {
    // SAFETY: the caller's contract.
    unsafe { vfmaq_f32(c, a, b) }
}

/// The larger value. `b` if either is NaN, unlike NEON's own instruction.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn max(a: Quarter, b: Quarter) -> Quarter {
    // SAFETY: the caller's contract.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// The smaller value. `b` if either is NaN.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn min(a: Quarter, b: Quarter) -> Quarter {
    // SAFETY: the caller's contract.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn exp_scale(p: Quarter, t: Quarter, x: Quarter) -> Quarter {
    // SAFETY: the caller's contract.
    unsafe {
        let n = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(ROUND.to_bits() as i32));
        let y = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32::<23>(n)));
        let y = vbslq_f32(vcltq_f32(x, vdupq_n_f32(EXP_LOW)), vdupq_n_f32(0.0), y);
        let y = vbslq_f32(vcgtq_f32(x, vdupq_n_f32(EXP_HIGH)), vdupq_n_f32(f32::INFINITY), y);
        vbslq_f32(vceqq_f32(x, x), y, x)
    }
}

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn times_power_of_two(p: Quarter, _n: Quarter, t: Quarter) -> Quarter {
    // SAFETY: the caller's contract.
    unsafe {
        // Multiplies instead of adding exponents, because the bits that a NaN leaves in `t` must not turn it into a
        // number.
        let n = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(ROUND.to_bits() as i32 - 127));
        vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32::<23>(n)))
    }
}

impl Simd for Neon {
    type V = [Quarter; 4];

    op!(add(a, b) = vaddq_f32);
    op!(sub(a, b) = vsubq_f32);
    op!(mul(a, b) = vmulq_f32);
    op!(div(a, b) = vdivq_f32);
    op!(fma(a, b, c) = fma);
    op!(max(a, b) = max);
    op!(min(a, b) = min);
    op!(exp_scale(p, t, x) = exp_scale);
    op!(times_power_of_two(p, n, t) = times_power_of_two);

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { [vdupq_n_f32(value); 4] }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { quarters!(|Q| vld1q_f32(at.add(4 * Q))) }
    }

    #[inline(always)]
    unsafe fn store(at: *mut f32, value: Self::V) {
        // SAFETY: the trait's contract: 16 writable elements.
        unsafe { quarters!(|Q| vst1q_f32(at.add(4 * Q), value[Q])) };
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { quarters!(|Q| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.add(4 * Q))))) }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u16) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { quarters!(|Q| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at.add(4 * Q))))) }
    }

    #[inline(always)]
    unsafe fn low_bf16(at: *const u16) -> Self::V {
        let at = at.cast::<u8>();
        // SAFETY: the trait's contract: 32 readable elements.
        unsafe {
            quarters!(|Q| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_u8(vld1q_u8(
                at.add(16 * Q)
            )))))
        }
    }

    #[inline(always)]
    unsafe fn high_bf16(at: *const u16) -> Self::V {
        let at = at.cast::<u8>();
        // SAFETY: the trait's contract: 32 readable elements.
        unsafe {
            let mask = vdupq_n_u32(0xffff_0000);
            quarters!(|Q| vreinterpretq_f32_u32(vandq_u32(
                vreinterpretq_u32_u8(vld1q_u8(at.add(16 * Q))),
                mask
            )))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const i8) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe {
            let bytes = vld1q_s8(at);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults and has no visible effect on the program.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
        }
    }
}
