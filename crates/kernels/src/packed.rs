//! How quantized weights are laid out in memory for the kernels, and how a vector of them is read.
//! Must not know: which formats there are, products or threads.
//!
//! Sixteen output columns side by side form a *panel*. Along its inputs a panel is a row of *spans* of 64 or 256
//! inputs. A span begins with its scales (`[group][16]`). The codes of its groups of 32 inputs follow. A line of 64
//! bytes holds 16 columns × 4 inputs, which is the operand of an integer dot product. Input `16·HALF + 4·STEP + i` of
//! a group is byte `i` of its column's lane in line (HALF, STEP). Four-bit lines hold HALF 0 in the low nibbles and
//! HALF 1 in the high ones. A fifth bit is in a plane of 64 bits per line. A fifth and a sixth bit are in a plane of
//! bit pairs, and so are codes of two bits.

use headrace_quant::BlockType;

use crate::shapes::{GROUP, LINE};
use crate::simd::Simd;
use crate::simd_int::Ints;

/// How the codes of a group are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Codes {
    /// A byte each.
    Bytes,
    /// Two bits each, in a plane of bit pairs.
    Pairs,
    /// Four bits each.
    Nibbles,
    /// Four bits each, after a plane of fifth bits.
    NibblesAndBit,
    /// Four bits each, after a plane of bit pairs.
    NibblesAndPair,
}

impl Codes {
    /// Returns the bytes of a group of 32 inputs × 16 columns.
    pub(crate) const fn group_bytes(self) -> usize {
        self.plane_bytes()
            + match self {
                Codes::Bytes => 8 * LINE,
                Codes::Pairs => 0,
                _ => 4 * LINE,
            }
    }

    /// Returns the bytes of the plane before the nibbles.
    pub(crate) const fn plane_bytes(self) -> usize {
        match self {
            Codes::Bytes | Codes::Nibbles => 0,
            Codes::NibblesAndBit => LINE,
            Codes::Pairs | Codes::NibblesAndPair => 2 * LINE,
        }
    }
}

/// A packed form of a ggml format.
pub(crate) trait Packed: Format {
    /// The ggml block type that it packs.
    const KIND: BlockType;
}

/// The layout of weights in spans. A weight is `scale · (code − zero) + offset`, or the scale times a float.
pub(crate) trait Format: Copy + 'static {
    /// The unpacked form of the same weights, with a byte for each code. Several groups of rows read this form.
    type Opened: Format;
    /// Inputs of a span.
    const SPAN: usize;
    /// How the codes are stored.
    const CODES: Codes;
    /// Bytes of a span's scales.
    const HEAD: usize;
    /// The log₂ of the code that means zero. `None` if code 0 means zero.
    const ZERO: Option<u32>;
    /// Whether weights have an offset.
    const OFFSET: bool = false;
    /// Whether each half of a group has its own scale.
    const HALVES: bool = false;
    /// Whether a code can be above 63.
    const WIDE: bool = false;
    /// Maps a code to its value plus zero. `None` if the code is the value itself.
    const TABLE: Option<[u8; 16]> = None;
    /// Whether codes are 8-bit floats (e4m3). They are widened in both compute modes: no integer product takes them.
    const FLOATS: bool = false;
    /// Whether every code is a byte already.
    const IS_OPEN: bool = matches!(Self::CODES, Codes::Bytes);
    /// Whether several groups of rows should always share unpacked weights: their codes are spread over two places, or
    /// their scales take more than a load.
    const OPENS_ALWAYS: bool =
        matches!(Self::CODES, Codes::Pairs | Codes::NibblesAndBit | Codes::NibblesAndPair);
    /// Bytes of a span.
    const BYTES: usize = Self::HEAD + Self::SPAN / GROUP * Self::CODES.group_bytes();

    /// Returns the scales of 16 columns for one group, or for half a group if [`Format::HALVES`].
    ///
    /// # Safety
    /// As for [`Simd`]. `span` is the start of a span.
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V;

    /// Returns the offsets of 16 columns for one group, or for half a group if [`Format::HALVES`].
    ///
    /// # Safety
    /// As for [`Format::scale`].
    unsafe fn offset<N: Ints, const HALF: usize>(_span: *const u8, _group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract.
        unsafe { N::F::splat(0.0) }
    }

    /// Returns line (HALF, STEP) of a group as unsigned codes.
    ///
    /// # Safety
    /// As for [`Format::scale`].
    #[inline(always)]
    unsafe fn line<N: Ints, const HALF: usize, const STEP: usize>(span: *const u8, group: usize) -> N::B {
        // SAFETY: the caller's contract; every line and plane lies inside the span.
        unsafe {
            let base = span.add(Self::HEAD + group * Self::CODES.group_bytes());
            if matches!(Self::CODES, Codes::Bytes) {
                return N::load(base.add((4 * HALF + STEP) * LINE));
            }
            if matches!(Self::CODES, Codes::Pairs) {
                let plane = N::load(base.add(HALF * LINE));
                return N::high_nibbles(pair_above::<N, STEP>(N::low_nibbles(plane), plane));
            }
            let both = N::load(base.add(Self::CODES.plane_bytes() + STEP * LINE));
            let codes = if HALF == 0 { N::low_nibbles(both) } else { N::high_nibbles(both) };
            match Self::CODES {
                Codes::NibblesAndBit => N::add_bit_plane(codes, base.add((4 * HALF + STEP) * 8)),
                Codes::NibblesAndPair => pair_above::<N, STEP>(codes, N::load(base.add(HALF * LINE))),
                _ => match &Self::TABLE {
                    Some(table) => N::look_up(codes, table),
                    None => codes,
                },
            }
        }
    }
}

/// Adds 16 times bit pair STEP of each byte in `plane` to the bytes, which are below 16.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn pair_above<N: Ints, const STEP: usize>(bytes: N::B, plane: N::B) -> N::B {
    // SAFETY: the caller's contract.
    unsafe {
        match STEP {
            0 => N::add_pair_plane::<0>(bytes, plane),
            1 => N::add_pair_plane::<1>(bytes, plane),
            2 => N::add_pair_plane::<2>(bytes, plane),
            _ => N::add_pair_plane::<3>(bytes, plane),
        }
    }
}
