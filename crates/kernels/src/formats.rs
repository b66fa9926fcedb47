//! The in-memory formats of quantized weights, one by one: where a span holds its scales, offsets and codes.
//! Must not know: products, threads, or ggml's own bit layouts (`headrace_quant` unpacks those once, at load).

use headrace_quant::{BlockType, IQ4_NL_VALUES, MXFP4_VALUES};

use crate::opened::{Opened, PLAIN, WIDE, WITH_HALVES, WITH_OFFSET};
use crate::packed::{Codes, Format, Packed};
use crate::shapes::{GROUP, LANES};
use crate::simd::Simd;
use crate::simd_int::Ints;

/// Bytes of 16 half-precision values (f16 or bf16).
const HALVES_BYTES: usize = 2 * LANES;

/// Formats with blocks of 32 weights. A span has two groups. Its head holds `[2][16]` f16 scales, then the offsets in
/// the same shape.
macro_rules! simple {
    ($(#[$doc:meta])* $name:ident: $kind:ident, $codes:ident, load $load:ident, $($rest:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Packed for $name {
            const KIND: BlockType = BlockType::$kind;
        }

        impl Format for $name {
            const SPAN: usize = 2 * GROUP;
            const CODES: Codes = Codes::$codes;
            const HEAD: usize = 2 * HALVES_BYTES * (1 + Self::OFFSET as usize);
            $($rest)*

            #[inline(always)]
            unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
                // SAFETY: the caller's contract: the head holds 2 × 16 scales.
                unsafe { N::F::$load(span.add(group * HALVES_BYTES).cast()) }
            }

            #[inline(always)]
            unsafe fn offset<N: Ints>(span: *const u8, group: usize) -> <N::F as Simd>::V {
                // SAFETY: the caller's contract: if the format has offsets, 2 × 16 of them follow the scales.
                unsafe {
                    if !Self::OFFSET {
                        return N::F::splat(0.0);
                    }
                    N::F::$load(span.add((2 + group) * HALVES_BYTES).cast())
                }
            }
        }
    };
}

simple!(
    /// Signed bytes with one scale.
    Q80: Q8_0, Bytes, load load_f16,
    type Opened = Opened<7, { WIDE }>;
    const ZERO: Option<u32> = Some(7);
    const WIDE: bool = true;
);
simple!(
    /// Four bits around 8 with one scale.
    Q40: Q4_0, Nibbles, load load_f16,
    type Opened = Opened<3, { PLAIN }>;
    const ZERO: Option<u32> = Some(3);
);
simple!(
    /// Four bits with a scale and an offset.
    Q41: Q4_1, Nibbles, load load_f16,
    type Opened = Opened<0, { WITH_OFFSET }>;
    const ZERO: Option<u32> = None;
    const OFFSET: bool = true;
);
simple!(
    /// Five bits around 16 with one scale.
    Q50: Q5_0, NibblesAndBit, load load_f16,
    type Opened = Opened<4, { PLAIN }>;
    const ZERO: Option<u32> = Some(4);
);
simple!(
    /// Five bits with a scale and an offset.
    Q51: Q5_1, NibblesAndBit, load load_f16,
    type Opened = Opened<0, { WITH_OFFSET }>;
    const ZERO: Option<u32> = None;
    const OFFSET: bool = true;
);
simple!(
    /// Four bits that index a table of unevenly spaced values.
    Iq4Nl: Iq4Nl, Nibbles, load load_f16,
    type Opened = Opened<7, { WIDE }>;
    const ZERO: Option<u32> = Some(7);
    const WIDE: bool = true;
    const TABLE: Option<[u8; 16]> = Some(shifted(&IQ4_NL_VALUES, 128));
);
simple!(
    /// FP4 (E2M1) as a table of doubled values. The shared exponent is halved to match and stored as a bf16.
    Mxfp4: Mxfp4, Nibbles, load load_bf16,
    type Opened = Opened<4, { PLAIN }>;
    const ZERO: Option<u32> = Some(4);
    const TABLE: Option<[u8; 16]> = Some(shifted(&MXFP4_VALUES, 16));
);

const fn shifted(values: &[i8; 16], zero: i16) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (values[i] as i16 + zero) as u8;
        i += 1;
    }
    table
}

/// Bytes of the head of a K format: `[16]` f16 scales of the scales, `[16]` f16 scales of the offsets (zero in Q6_K),
/// then sixteen vectors of 16 bytes.
const K_HEAD: usize = 2 * HALVES_BYTES + 16 * LANES;
/// Inputs in a span of a K format.
const K_SPAN: usize = 256;

/// Formats with blocks of 256 weights and a 6-bit scale and offset for every 32.
macro_rules! k_with_offset {
    ($(#[$doc:meta])* $name:ident: $kind:ident, $codes:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Packed for $name {
            const KIND: BlockType = BlockType::$kind;
        }

        impl Format for $name {
            type Opened = Opened<0, { WITH_OFFSET }>;
            const SPAN: usize = K_SPAN;
            const CODES: Codes = Codes::$codes;
            const HEAD: usize = K_HEAD;
            const ZERO: Option<u32> = None;
            const OFFSET: bool = true;

            #[inline(always)]
            unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
                // SAFETY: the caller's contract: group < 8, so its scales lie inside the head.
                unsafe {
                    let small = N::to_f32(N::widen_u8(span.add(2 * HALVES_BYTES + group * LANES)));
                    N::F::mul(N::F::load_f16(span.cast()), small)
                }
            }

            #[inline(always)]
            unsafe fn offset<N: Ints>(span: *const u8, group: usize) -> <N::F as Simd>::V {
                // SAFETY: the caller's contract: group < 8, so its offsets lie inside the head.
                unsafe {
                    let small = N::to_f32(N::widen_u8(span.add(2 * HALVES_BYTES + (8 + group) * LANES)));
                    let scale = N::F::load_f16(span.add(HALVES_BYTES).cast());
                    N::F::sub(N::F::splat(0.0), N::F::mul(scale, small))
                }
            }
        }
    };
}

k_with_offset!(
    /// Four bits with a two-level scale and offset.
    Q4K: Q4K, Nibbles
);
k_with_offset!(
    /// Five bits with a two-level scale and offset.
    Q5K: Q5K, NibblesAndBit
);

/// Six bits around 32 with signed 8-bit scales for every 16 inputs.
#[derive(Clone, Copy)]
pub(crate) struct Q6K;

impl Packed for Q6K {
    const KIND: BlockType = BlockType::Q6K;
}

impl Format for Q6K {
    type Opened = Opened<5, { WITH_HALVES }>;
    const SPAN: usize = K_SPAN;
    const CODES: Codes = Codes::NibblesAndPair;
    const HEAD: usize = K_HEAD;
    const ZERO: Option<u32> = Some(5);
    const HALVES: bool = true;

    #[inline(always)]
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract: group < 8, so 2·group + HALF < 16.
        unsafe {
            let small = N::to_f32(N::widen_i8(span.add(2 * HALVES_BYTES + (2 * group + HALF) * LANES)));
            N::F::mul(N::F::load_f16(span.cast()), small)
        }
    }
}

/// Evaluates an expression with `F` bound to the packed format of a block type.
macro_rules! with_format {
    ($kind:expr, $F:ident => $body:expr) => {
        $crate::formats::with_format!(
            $kind, $F => $body,
            [
                Q8_0 is Q80, Q4_0 is Q40, Q4_1 is Q41, Q5_0 is Q50, Q5_1 is Q51,
                Q4K is Q4K, Q5K is Q5K, Q6K is Q6K, Iq4Nl is Iq4Nl, Mxfp4 is Mxfp4
            ]
        )
    };
    ($kind:expr, $F:ident => $body:expr, [$($Block:ident is $Format:ident),*]) => {
        match $kind {
            $(headrace_quant::BlockType::$Block => {
                type $F = $crate::formats::$Format;
                $body
            })*
        }
    };
}
pub(crate) use with_format;
