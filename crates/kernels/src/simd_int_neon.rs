//! The integer lanes on 64-bit Arm: four NEON registers, with and without dot-product instructions.
//! Must not know: block formats or products.

use std::arch::aarch64::*;

use crate::simd_int::{E4M3_BIAS, E4M3_NORMAL, Ints};
use crate::simd_neon::{Neon, quarters};

/// NEON with the dot-product instructions of Armv8.2.
#[derive(Clone, Copy)]
pub(crate) struct NeonDot;

/// A quarter of a vector of sums.
type Sums = int32x4_t;

/// `sums + Σ codes · x` over the four signed bytes of each lane.
///
/// # Safety
/// Needs the dot-product instructions of Armv8.2.
#[inline(always)]
unsafe fn dot_instruction(sums: Sums, codes: int8x16_t, x: int8x16_t) -> Sums {
    let mut sums = sums;
    // SAFETY: the caller's contract. Uses registers only. The intrinsic is not stable yet.
    unsafe {
        std::arch::asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) codes, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Computes the same sums from 16-bit products. The sum of two products fits: codes are −128..=127 and x is
/// −127..=127.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn dot_products(sums: Sums, codes: int8x16_t, x: int8x16_t) -> Sums {
    // SAFETY: the caller's contract.
    unsafe {
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(x)));
        let high = vpaddlq_s16(vmull_high_s8(codes, x));
        vaddq_s32(sums, vpaddq_s32(low, high))
    }
}

/// Widens 16 unsigned bytes to integers.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn widen(bytes: uint8x16_t) -> [Sums; 4] {
    // SAFETY: the caller's contract.
    unsafe {
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
        [
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
            vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
            vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))),
        ]
    }
}

/// Adds 16 to each byte whose bit is set in the 16 bits at `plane`.
///
/// # Safety
/// Needs NEON and two readable bytes.
#[inline(always)]
unsafe fn add_bits(bytes: uint8x16_t, plane: *const u8) -> uint8x16_t {
    const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: the caller's contract. The table has 16 bytes.
    unsafe {
        let bits = vcombine_u8(vdup_n_u8(plane.read()), vdup_n_u8(plane.add(1).read()));
        let set = vtstq_u8(bits, vld1q_u8(BIT.as_ptr()));
        vorrq_u8(bytes, vandq_u8(set, vdupq_n_u8(16)))
    }
}

/// Returns the values of four 8-bit floats (e4m3).
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn e4m3_of(codes: Sums) -> float32x4_t {
    // SAFETY: the caller's contract.
    unsafe {
        let magnitude = vshlq_n_s32::<20>(vandq_s32(codes, vdupq_n_s32(0x7F)));
        let t = vreinterpretq_f32_s32(vaddq_s32(magnitude, vdupq_n_s32(E4M3_BIAS)));
        let other = vsubq_f32(vaddq_f32(t, t), vdupq_n_f32(E4M3_NORMAL));
        let sign = vshlq_n_s32::<24>(vandq_s32(codes, vdupq_n_s32(0x80)));
        let value = vreinterpretq_s32_f32(vminq_f32(t, other));
        vreinterpretq_f32_s32(vorrq_s32(value, sign))
    }
}

macro_rules! four_registers {
    ($name:ty, $dot:ident) => {
        impl Ints for $name {
            type F = Neon;
            type I = [Sums; 4];
            type B = [uint8x16_t; 4];

            #[inline(always)]
            unsafe fn zero() -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { [vdupq_n_s32(0); 4] }
            }

            #[inline(always)]
            unsafe fn splat(value: i32) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { [vdupq_n_s32(value); 4] }
            }

            #[inline(always)]
            unsafe fn splat_at(at: *const i32) -> Self::I {
                // SAFETY: the trait's contract: one readable integer.
                unsafe { [vdupq_n_s32(at.read_unaligned()); 4] }
            }

            #[inline(always)]
            unsafe fn shift_left<const SHIFT: u32>(value: Self::I) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe {
                    let by = vdupq_n_s32(SHIFT as i32);
                    quarters!(|Q| vshlq_s32(value[Q], by))
                }
            }

            #[inline(always)]
            unsafe fn add(a: Self::I, b: Self::I) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { quarters!(|Q| vaddq_s32(a[Q], b[Q])) }
            }

            #[inline(always)]
            unsafe fn sub(a: Self::I, b: Self::I) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { quarters!(|Q| vsubq_s32(a[Q], b[Q])) }
            }

            #[inline(always)]
            unsafe fn to_f32(value: Self::I) -> [float32x4_t; 4] {
                // SAFETY: the trait's contract.
                unsafe { quarters!(|Q| vcvtq_f32_s32(value[Q])) }
            }

            #[inline(always)]
            unsafe fn widen_u8(at: *const u8) -> Self::I {
                // SAFETY: the trait's contract: 16 readable bytes.
                unsafe { widen(vld1q_u8(at)) }
            }

            #[inline(always)]
            unsafe fn widen_i8(at: *const u8) -> Self::I {
                // SAFETY: the trait's contract: 16 readable bytes.
                unsafe {
                    let flipped = widen(veorq_u8(vld1q_u8(at), vdupq_n_u8(128)));
                    quarters!(|Q| vsubq_s32(flipped[Q], vdupq_n_s32(128)))
                }
            }

            #[inline(always)]
            unsafe fn load(at: *const u8) -> Self::B {
                // SAFETY: the trait's contract: 64 readable bytes.
                unsafe { quarters!(|Q| vld1q_u8(at.add(16 * Q))) }
            }

            #[inline(always)]
            unsafe fn store(at: *mut u8, bytes: Self::B) {
                // SAFETY: the trait's contract: room for 64 bytes.
                unsafe {
                    for (quarter, bytes) in bytes.into_iter().enumerate() {
                        vst1q_u8(at.add(16 * quarter), bytes);
                    }
                }
            }

            #[inline(always)]
            unsafe fn low_nibbles(bytes: Self::B) -> Self::B {
                // SAFETY: the trait's contract.
                unsafe { quarters!(|Q| vandq_u8(bytes[Q], vdupq_n_u8(15))) }
            }

            #[inline(always)]
            unsafe fn high_nibbles(bytes: Self::B) -> Self::B {
                // SAFETY: the trait's contract.
                unsafe { quarters!(|Q| vshrq_n_u8::<4>(bytes[Q])) }
            }

            #[inline(always)]
            unsafe fn look_up(bytes: Self::B, table: &[u8; 16]) -> Self::B {
                // SAFETY: the trait's contract. The table has 16 bytes.
                unsafe {
                    let table = vld1q_u8(table.as_ptr());
                    quarters!(|Q| vqtbl1q_u8(table, bytes[Q]))
                }
            }

            #[inline(always)]
            unsafe fn add_bit_plane(bytes: Self::B, plane: *const u8) -> Self::B {
                // SAFETY: the trait's contract: 8 readable bytes.
                unsafe { quarters!(|Q| add_bits(bytes[Q], plane.add(2 * Q))) }
            }

            #[inline(always)]
            unsafe fn add_pair_plane<const PAIR: u32>(bytes: Self::B, plane: Self::B) -> Self::B {
                // SAFETY: the trait's contract.
                unsafe {
                    // Moves the pair's two bits to bits 4 and 5: left by 4, 2 or 0, or right by 2.
                    let by = vdupq_n_s8(4 - 2 * PAIR as i8);
                    let mask = vdupq_n_u8(0x30);
                    quarters!(|Q| vorrq_u8(bytes[Q], vandq_u8(vshlq_u8(plane[Q], by), mask)))
                }
            }

            #[inline(always)]
            unsafe fn byte<const BYTE: u32>(bytes: Self::B) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe {
                    let by = vdupq_n_s32(-8 * BYTE as i32);
                    let mask = vdupq_n_u32(255);
                    quarters!(|Q| {
                        let moved = vshlq_u32(vreinterpretq_u32_u8(bytes[Q]), by);
                        vreinterpretq_s32_u32(vandq_u32(moved, mask))
                    })
                }
            }

            #[inline(always)]
            unsafe fn e4m3(codes: Self::I) -> [float32x4_t; 4] {
                // SAFETY: the trait's contract.
                unsafe { quarters!(|Q| e4m3_of(codes[Q])) }
            }

            #[inline(always)]
            unsafe fn dot<const WIDE: bool>(sums: Self::I, codes: Self::B, x: *const i32) -> Self::I {
                // SAFETY: the trait's contract: one readable word.
                unsafe {
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(x.read_unaligned()));
                    if !WIDE {
                        return quarters!(|Q| $dot(sums[Q], vreinterpretq_s8_u8(codes[Q]), x));
                    }
                    // Codes above 127 do not fit signed bytes. The contribution of bit 7 is computed separately,
                    // negated.
                    let (top, minus) = (vdupq_n_u8(128), vnegq_s8(x));
                    quarters!(|Q| {
                        let low = $dot(sums[Q], vreinterpretq_s8_u8(vbicq_u8(codes[Q], top)), x);
                        $dot(low, vreinterpretq_s8_u8(vandq_u8(codes[Q], top)), minus)
                    })
                }
            }
        }
    };
}

four_registers!(NeonDot, dot_instruction);
four_registers!(Neon, dot_products);
