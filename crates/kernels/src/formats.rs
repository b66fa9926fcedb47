//! The in-memory formats of quantized weights, one by one: where a span holds its scales, offsets and codes.
//! Must not know: products, threads, or ggml's own bit layouts (`headrace_quant` unpacks those once, at load).

use headrace_quant::{BlockType, IQ4_NL_VALUES, MXFP4_VALUES};

use crate::opened::{Opened, PLAIN, WIDE, WITH_HALVES, WITH_HALVES_AND_OFFSETS, WITH_OFFSET};
use crate::packed::{Codes, Format, Packed};
use crate::shapes::{GROUP, LANES, LINE};
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
            unsafe fn offset<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
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

/// Bytes of the head of a K format: `[16]` f16 scales of the scales, `[16]` f16 scales of the offsets (zero in Q3_K and
/// Q6_K), then sixteen vectors of 16 bytes.
const K_HEAD: usize = 2 * HALVES_BYTES + 16 * LANES;
/// Bytes of the head of IQ4_XS: as for a K format, with eight vectors.
const IQ4_XS_HEAD: usize = 2 * HALVES_BYTES + 8 * LANES;
/// Inputs in a span of a K format and of IQ4_XS.
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
            unsafe fn offset<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
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

/// Formats with blocks of 256 weights and a signed 8-bit scale for every 16, without offsets.
macro_rules! k_with_halves {
    ($(#[$doc:meta])* $name:ident: $kind:ident, $codes:ident, zero $zero:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Packed for $name {
            const KIND: BlockType = BlockType::$kind;
        }

        impl Format for $name {
            type Opened = Opened<$zero, { WITH_HALVES }>;
            const SPAN: usize = K_SPAN;
            const CODES: Codes = Codes::$codes;
            const HEAD: usize = K_HEAD;
            const ZERO: Option<u32> = Some($zero);
            const HALVES: bool = true;
            const OPENS_ALWAYS: bool = true;

            #[inline(always)]
            unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
                // SAFETY: the caller's contract: group < 8, so 2·group + HALF < 16.
                unsafe {
                    let small = N::to_f32(N::widen_i8(span.add(2 * HALVES_BYTES + (2 * group + HALF) * LANES)));
                    N::F::mul(N::F::load_f16(span.cast()), small)
                }
            }
        }
    };
}

k_with_halves!(
    /// Six bits around 32 with signed 8-bit scales for every 16 inputs.
    Q6K: Q6K, NibblesAndPair, zero 5
);
k_with_halves!(
    /// Three bits around 4, held in four bits around 8, with signed 6-bit scales for every 16 inputs.
    Q3K: Q3K, Nibbles, zero 3
);

/// Two bits with a two-level scale and offset for every 16 inputs. The head's sixteen vectors are four lines: a byte of
/// lane `c` in line `j` holds the 4-bit scale (low) and offset (high) of one of the inputs' pieces `4j` to `4j + 3` of
/// column `c`.
#[derive(Clone, Copy)]
pub(crate) struct Q2K;

impl Packed for Q2K {
    const KIND: BlockType = BlockType::Q2K;
}

impl Q2K {
    /// Returns the bytes of the line that has the scales and offsets of `group`.
    ///
    /// # Safety
    /// As for [`Format::scale`].
    #[inline(always)]
    unsafe fn small<N: Ints>(span: *const u8, group: usize) -> N::B {
        // SAFETY: the caller's contract: group < 8, so the line lies inside the head.
        unsafe { N::load(span.add(2 * HALVES_BYTES + group / 2 * LINE)) }
    }

    /// Returns the byte of each lane that belongs to half HALF of `group`.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn half<N: Ints, const HALF: usize>(line: N::B, group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract.
        unsafe {
            N::to_f32(match (group % 2, HALF) {
                (0, 0) => N::byte::<0>(line),
                (0, _) => N::byte::<1>(line),
                (_, 0) => N::byte::<2>(line),
                _ => N::byte::<3>(line),
            })
        }
    }
}

impl Format for Q2K {
    type Opened = Opened<0, { WITH_HALVES_AND_OFFSETS }>;
    const SPAN: usize = K_SPAN;
    const CODES: Codes = Codes::Pairs;
    const HEAD: usize = K_HEAD;
    const ZERO: Option<u32> = None;
    const OFFSET: bool = true;
    const HALVES: bool = true;

    #[inline(always)]
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract.
        unsafe {
            let small = Self::half::<N, HALF>(N::low_nibbles(Self::small::<N>(span, group)), group);
            N::F::mul(N::F::load_f16(span.cast()), small)
        }
    }

    #[inline(always)]
    unsafe fn offset<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract.
        unsafe {
            let small = Self::half::<N, HALF>(N::high_nibbles(Self::small::<N>(span, group)), group);
            let scale = N::F::load_f16(span.add(HALVES_BYTES).cast());
            N::F::sub(N::F::splat(0.0), N::F::mul(scale, small))
        }
    }
}

/// Four bits that index a table of unevenly spaced values, with a signed 6-bit scale for every 32 inputs.
#[derive(Clone, Copy)]
pub(crate) struct Iq4Xs;

impl Packed for Iq4Xs {
    const KIND: BlockType = BlockType::Iq4Xs;
}

impl Format for Iq4Xs {
    type Opened = Opened<7, { WIDE }>;
    const SPAN: usize = K_SPAN;
    const CODES: Codes = Codes::Nibbles;
    const HEAD: usize = IQ4_XS_HEAD;
    const ZERO: Option<u32> = Some(7);
    const WIDE: bool = true;
    const TABLE: Option<[u8; 16]> = Some(shifted(&IQ4_NL_VALUES, 128));
    const OPENS_ALWAYS: bool = true;

    #[inline(always)]
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract: group < 8, so its scales lie inside the head.
        unsafe {
            let small = N::to_f32(N::widen_i8(span.add(2 * HALVES_BYTES + group * LANES)));
            N::F::mul(N::F::load_f16(span.cast()), small)
        }
    }
}

/// Inputs in a span of an F8 or a W4 format.
const LONG_SPAN: usize = 4 * GROUP;

/// 8-bit floats with an f32 scale for every 32 inputs (`GROUPS` is 4) or 128 (1). A span's head holds `[GROUPS][16]`
/// scales.
#[derive(Clone, Copy)]
pub(crate) struct FloatFormat<const GROUPS: usize>;

pub(crate) type F8G32 = FloatFormat<4>;
pub(crate) type F8G128 = FloatFormat<1>;

impl<const GROUPS: usize> Packed for FloatFormat<GROUPS> {
    const KIND: BlockType = if GROUPS == 1 { BlockType::F8G128 } else { BlockType::F8G32 };
}

impl<const GROUPS: usize> Format for FloatFormat<GROUPS> {
    type Opened = Opened<0, { WIDE }>;
    const SPAN: usize = LONG_SPAN;
    const CODES: Codes = Codes::Bytes;
    const HEAD: usize = GROUPS * 4 * LANES;
    const ZERO: Option<u32> = None;
    const WIDE: bool = true;
    const FLOATS: bool = true;

    #[inline(always)]
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
        let index = if GROUPS == 1 { 0 } else { group };
        // SAFETY: the caller's contract: index < GROUPS, so its scales lie inside the head.
        unsafe { N::F::load(span.cast::<f32>().add(index * LANES)) }
    }
}

/// Four bits with a scale and a zero for every 32 inputs (`GROUPS` is 4) or 128 (1). The scale is a bf16 or an f16. A
/// span's head holds `[GROUPS][16]` scales and `[GROUPS][16]` zeros of one byte, up to a whole line. `s · q` and `s · z`
/// are exact, so their difference rounds like `s · (q − z)`.
#[derive(Clone, Copy)]
pub(crate) struct Int4Format<const BF16: bool, const GROUPS: usize>;

pub(crate) type W4F16G32 = Int4Format<false, 4>;
pub(crate) type W4F16G128 = Int4Format<false, 1>;
pub(crate) type W4Bf16G32 = Int4Format<true, 4>;
pub(crate) type W4Bf16G128 = Int4Format<true, 1>;

impl<const BF16: bool, const GROUPS: usize> Packed for Int4Format<BF16, GROUPS> {
    const KIND: BlockType = match (BF16, GROUPS) {
        (false, 1) => BlockType::W4F16G128,
        (false, _) => BlockType::W4F16G32,
        (true, 1) => BlockType::W4Bf16G128,
        (true, _) => BlockType::W4Bf16G32,
    };
}

impl<const BF16: bool, const GROUPS: usize> Format for Int4Format<BF16, GROUPS> {
    type Opened = Opened<0, { WITH_OFFSET }>;
    const SPAN: usize = LONG_SPAN;
    const CODES: Codes = Codes::Nibbles;
    const HEAD: usize = (GROUPS * (HALVES_BYTES + LANES)).next_multiple_of(LINE);
    const ZERO: Option<u32> = None;
    const OFFSET: bool = true;
    const OPENS_ALWAYS: bool = true;

    #[inline(always)]
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
        let index = if GROUPS == 1 { 0 } else { group };
        // SAFETY: the caller's contract: index < GROUPS, so its scales lie inside the head.
        unsafe {
            let at = span.add(index * HALVES_BYTES).cast();
            if BF16 { N::F::load_bf16(at) } else { N::F::load_f16(at) }
        }
    }

    #[inline(always)]
    unsafe fn offset<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V {
        let index = if GROUPS == 1 { 0 } else { group };
        // SAFETY: the caller's contract: index < GROUPS, so its zeros lie inside the head.
        unsafe {
            let zero = N::to_f32(N::widen_u8(span.add(GROUPS * HALVES_BYTES + index * LANES)));
            N::F::sub(N::F::splat(0.0), N::F::mul(Self::scale::<N, 0>(span, group), zero))
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
                Q2K is Q2K, Q3K is Q3K, Q4K is Q4K, Q5K is Q5K, Q6K is Q6K,
                Iq4Nl is Iq4Nl, Iq4Xs is Iq4Xs, Mxfp4 is Mxfp4, F8G32 is F8G32, F8G128 is F8G128,
                W4F16G32 is W4F16G32, W4F16G128 is W4F16G128, W4Bf16G32 is W4Bf16G32, W4Bf16G128 is W4Bf16G128
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
