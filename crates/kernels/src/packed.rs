//! How quantized weights lie in memory for the kernels, and how a vector of them is read.
//! Must not know: which formats there are, products or threads.
//!
//! Sixteen output columns stand side by side in a *panel*. Along its inputs a panel is a row of *spans* of 64 or 256
//! inputs; a span begins with its scales (`[group][16]`), then come the codes of its groups of 32 inputs. A line of 64
//! bytes holds 16 columns × 4 inputs, which is what an integer dot product takes: input `16·HALF + 4·STEP + i` of a
//! group stands in byte `i` of its column's lane of line (HALF, STEP). Four-bit lines hold HALF 0 in the low and HALF 1 in
//! the high nibbles; a fifth bit stands in a plane of 64 bits per line, a fifth and sixth in a plane of bit pairs.

use headrace_quant::BlockType;

use crate::shapes::{GROUP, LINE};
use crate::simd::Simd;
use crate::simd_int::Ints;

/// Where the codes of a group stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Codes {
    /// A byte each.
    Bytes,
    /// Four bits each.
    Nibbles,
    /// Four bits each, behind a plane of fifth bits.
    NibblesAndBit,
    /// Four bits each, behind a plane of bit pairs.
    NibblesAndPair,
}

impl Codes {
    /// Bytes of a group of 32 inputs × 16 columns.
    pub(crate) const fn group_bytes(self) -> usize {
        self.plane_bytes()
            + match self {
                Codes::Bytes => 8 * LINE,
                _ => 4 * LINE,
            }
    }

    /// Bytes of the plane before the nibbles.
    pub(crate) const fn plane_bytes(self) -> usize {
        match self {
            Codes::Bytes | Codes::Nibbles => 0,
            Codes::NibblesAndBit => LINE,
            Codes::NibblesAndPair => 2 * LINE,
        }
    }
}

/// A packed format of ggml's.
pub(crate) trait Packed: Format {
    /// What it packs.
    const KIND: BlockType;
}

/// How weights lie in spans. A weight is `scale · (code − zero) + offset`.
pub(crate) trait Format: Copy + 'static {
    /// The same weights with a byte for each code: what several groups of rows read.
    type Opened: Format;
    /// Inputs of a span.
    const SPAN: usize;
    /// Where the codes stand.
    const CODES: Codes;
    /// Bytes of a span's scales.
    const HEAD: usize;
    /// log₂ of the code that means zero; `None`: code 0.
    const ZERO: Option<u32>;
    /// Whether weights have an offset.
    const OFFSET: bool = false;
    /// Whether each half of a group has a scale of its own.
    const HALVES: bool = false;
    /// Whether a code can be above 63.
    const WIDE: bool = false;
    /// What a code stands for, plus zero, where that is not the code itself.
    const TABLE: Option<[u8; 16]> = None;
    /// Whether a byte stands for each code already.
    const IS_OPEN: bool = matches!(Self::CODES, Codes::Bytes);
    /// Whether it pays for any several groups of rows to take the weights apart once: their codes stand in two places.
    const OPENS_ALWAYS: bool = matches!(Self::CODES, Codes::NibblesAndBit | Codes::NibblesAndPair);
    /// Bytes of a span.
    const BYTES: usize = Self::HEAD + Self::SPAN / GROUP * Self::CODES.group_bytes();

    /// The scales of 16 columns for one group (one half of it where [`Format::HALVES`]).
    ///
    /// # Safety
    /// As for [`Simd`]; `span` is the start of one.
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, group: usize) -> <N::F as Simd>::V;

    /// The offsets of 16 columns for one group.
    ///
    /// # Safety
    /// As for [`Format::scale`].
    unsafe fn offset<N: Ints>(_span: *const u8, _group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract.
        unsafe { N::F::splat(0.0) }
    }

    /// Line (HALF, STEP) of a group, as unsigned codes.
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
            let both = N::load(base.add(Self::CODES.plane_bytes() + STEP * LINE));
            let codes = if HALF == 0 { N::low_nibbles(both) } else { N::high_nibbles(both) };
            match Self::CODES {
                Codes::NibblesAndBit => N::add_bit_plane(codes, base.add((4 * HALF + STEP) * 8)),
                Codes::NibblesAndPair => {
                    let plane = N::load(base.add(HALF * LINE));
                    match STEP {
                        0 => N::add_pair_plane::<0>(codes, plane),
                        1 => N::add_pair_plane::<1>(codes, plane),
                        2 => N::add_pair_plane::<2>(codes, plane),
                        _ => N::add_pair_plane::<3>(codes, plane),
                    }
                }
                _ => match &Self::TABLE {
                    Some(table) => N::look_up(codes, table),
                    None => codes,
                },
            }
        }
    }
}
