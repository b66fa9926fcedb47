//! Sixteen i32 lanes and the 64 bytes that feed them, the same on every instruction set. Products of quantized
//! weights are built from them. `Scalar` is the reference. The other instruction sets are in `simd_int_x86` and
//! `simd_int_neon`.
//! Must not know: block formats or products.

use crate::quantized_group::{self, QuantizedGroup};
use crate::shapes::{GROUP, LANES, LINE};
use crate::simd::{Scalar, Simd};

/// The integer operations of one instruction set. Integer sums are exact, so every instruction set gives the same
/// bits.
///
/// # Safety
/// As for [`Simd`]. Pointers are valid for the bytes that a method reads or writes.
pub(crate) trait Ints: Copy + 'static {
    /// The matching f32 lanes.
    type F: Simd;
    /// 16 i32 lanes.
    type I: Copy;
    /// 64 bytes, four in each lane.
    type B: Copy;
    /// Zero in every lane.
    unsafe fn zero() -> Self::I;
    /// One integer in every lane.
    unsafe fn splat(value: i32) -> Self::I;
    /// One integer from memory in every lane.
    unsafe fn splat_at(at: *const i32) -> Self::I;
    /// `value << SHIFT` in every lane.
    unsafe fn shift_left<const SHIFT: u32>(value: Self::I) -> Self::I;
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I;
    /// Each lane as f32.
    unsafe fn to_f32(value: Self::I) -> <Self::F as Simd>::V;
    /// 16 unsigned bytes as integers.
    unsafe fn widen_u8(at: *const u8) -> Self::I;
    /// 16 signed bytes as integers.
    unsafe fn widen_i8(at: *const u8) -> Self::I;
    /// 64 bytes from memory.
    unsafe fn load(at: *const u8) -> Self::B;
    /// 64 bytes to memory.
    unsafe fn store(at: *mut u8, bytes: Self::B);
    /// The low four bits of each byte.
    unsafe fn low_nibbles(bytes: Self::B) -> Self::B;
    /// The high four bits of each byte.
    unsafe fn high_nibbles(bytes: Self::B) -> Self::B;
    /// Each byte (below 16) replaced by its entry in `table`.
    unsafe fn look_up(bytes: Self::B, table: &[u8; 16]) -> Self::B;
    /// Adds 16 to every byte whose bit is set in the 64 bits at `plane`; the bytes are below 16.
    unsafe fn add_bit_plane(bytes: Self::B, plane: *const u8) -> Self::B;
    /// Adds `16 ·` (bits `2·PAIR`, `2·PAIR + 1` of the byte in `plane`) to every byte; the bytes are below 16.
    unsafe fn add_pair_plane<const PAIR: u32>(bytes: Self::B, plane: Self::B) -> Self::B;
    /// Byte `BYTE` (0–3) of each lane as an unsigned integer.
    unsafe fn byte<const BYTE: u32>(bytes: Self::B) -> Self::I;
    /// The values of 8-bit floats (e4m3), which are below 256. NaN becomes ±480: such codes are refused when weights are
    /// loaded.
    unsafe fn e4m3(codes: Self::I) -> <Self::F as Simd>::V;
    /// `sums + Σ codes · x` over the four unsigned bytes of each lane and the four signed bytes (−127..=127) at `x`.
    /// `WIDE` is set if a code may be above 63.
    unsafe fn dot<const WIDE: bool>(sums: Self::I, codes: Self::B, x: *const i32) -> Self::I;
    /// Quantizes a group of activations, with the same bits as `quantized_group::quantize_group`.
    #[inline(always)]
    unsafe fn quantize(x: &[f32; GROUP]) -> QuantizedGroup {
        quantized_group::quantize_group(x)
    }
}

/// The exponent field that e4m3's exponent is added to: the difference of the two biases.
pub(crate) const E4M3_BIAS: i32 = (127 - 7) << 23;
/// The smallest normal value of e4m3.
pub(crate) const E4M3_NORMAL: f32 = 1.0 / 64.0;

/// Returns the value of an 8-bit float without its sign. Read as an f32, a normal code is its value `t`. Below
/// [`E4M3_NORMAL`] the mantissa has no leading one, and `2t − E4M3_NORMAL` removes it. From there on `t` is the smaller
/// of the two. No step has a denormal operand, which would be flushed.
#[inline(always)]
fn e4m3_magnitude(code: u32) -> f32 {
    let t = f32::from_bits((code << 20).wrapping_add(E4M3_BIAS.cast_unsigned()));
    t.min(2.0 * t - E4M3_NORMAL)
}

impl Ints for Scalar {
    type F = Scalar;
    type I = [i32; LANES];
    type B = [u8; LINE];

    #[inline(always)]
    unsafe fn zero() -> Self::I {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn splat(value: i32) -> Self::I {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn splat_at(at: *const i32) -> Self::I {
        // SAFETY: the caller provides a readable integer.
        [unsafe { at.read_unaligned() }; LANES]
    }

    #[inline(always)]
    unsafe fn shift_left<const SHIFT: u32>(value: Self::I) -> Self::I {
        value.map(|lane| lane << SHIFT)
    }

    #[inline(always)]
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
    }

    #[inline(always)]
    unsafe fn to_f32(value: Self::I) -> [f32; LANES] {
        value.map(|lane| lane as f32)
    }

    #[inline(always)]
    unsafe fn widen_u8(at: *const u8) -> Self::I {
        // SAFETY: the caller provides 16 readable bytes.
        unsafe { at.cast::<[u8; LANES]>().read_unaligned() }.map(i32::from)
    }

    #[inline(always)]
    unsafe fn widen_i8(at: *const u8) -> Self::I {
        // SAFETY: the caller provides 16 readable bytes.
        unsafe { at.cast::<[i8; LANES]>().read_unaligned() }.map(i32::from)
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self::B {
        // SAFETY: the caller provides 64 readable bytes.
        unsafe { at.cast::<Self::B>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(at: *mut u8, bytes: Self::B) {
        // SAFETY: the caller provides room for 64 bytes.
        unsafe { at.cast::<Self::B>().write_unaligned(bytes) }
    }

    #[inline(never)]
    unsafe fn low_nibbles(bytes: Self::B) -> Self::B {
        bytes.map(|byte| byte & 15)
    }

    #[inline(never)]
    unsafe fn high_nibbles(bytes: Self::B) -> Self::B {
        bytes.map(|byte| byte >> 4)
    }

    #[inline(never)]
    unsafe fn look_up(bytes: Self::B, table: &[u8; 16]) -> Self::B {
        bytes.map(|byte| table[usize::from(byte & 15)])
    }

    #[inline(never)]
    unsafe fn add_bit_plane(bytes: Self::B, plane: *const u8) -> Self::B {
        // SAFETY: the caller provides 8 readable bytes.
        let bits = u64::from_le_bytes(unsafe { plane.cast::<[u8; 8]>().read_unaligned() });
        std::array::from_fn(|i| bytes[i] + 16 * ((bits >> i) & 1) as u8)
    }

    #[inline(never)]
    unsafe fn add_pair_plane<const PAIR: u32>(bytes: Self::B, plane: Self::B) -> Self::B {
        std::array::from_fn(|i| bytes[i] + 16 * ((plane[i] >> (2 * PAIR)) & 3))
    }

    #[inline(always)]
    unsafe fn byte<const BYTE: u32>(bytes: Self::B) -> Self::I {
        std::array::from_fn(|lane| i32::from(bytes[4 * lane + BYTE as usize]))
    }

    #[inline(always)]
    unsafe fn e4m3(codes: Self::I) -> [f32; LANES] {
        codes.map(|code| {
            let magnitude = e4m3_magnitude(code.cast_unsigned() & 0x7F);
            if code & 0x80 == 0 { magnitude } else { -magnitude }
        })
    }

    #[inline(never)]
    unsafe fn dot<const WIDE: bool>(sums: Self::I, codes: Self::B, x: *const i32) -> Self::I {
        // SAFETY: the caller provides a readable word.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        std::array::from_fn(|lane| {
            let products = x.iter().enumerate().map(|(i, &x)| i32::from(codes[4 * lane + i]) * i32::from(x));
            products.fold(sums[lane], i32::wrapping_add)
        })
    }
}
