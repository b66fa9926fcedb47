//! Packed weights unpacked once for many rows: a byte for each code, scales and offsets as f32. Otherwise each group
//! of rows that passes over the same weights would unpack them again. Must not know: ggml's formats, threads.

use crate::packed::{Codes, Format};
use crate::shapes::{GROUP, LANES, LINE};
use crate::simd::Simd;
use crate::simd_int::Ints;

/// Bytes of 16 f32 values.
const VECTOR: usize = 4 * LANES;
/// Most bytes of a group.
pub(crate) const MOST_GROUP_BYTES: usize = 4 * VECTOR + 8 * LINE;

/// What a format has besides one scale per group and codes below 64.
pub(crate) type Kind = u8;
/// Nothing more.
pub(crate) const PLAIN: Kind = 0;
/// Offsets.
pub(crate) const WITH_OFFSET: Kind = 1;
/// A scale of its own for each half of a group.
pub(crate) const WITH_HALVES: Kind = 2;
/// Codes of 64 and above.
pub(crate) const WIDE: Kind = 3;
/// A scale and an offset of its own for each half of a group.
pub(crate) const WITH_HALVES_AND_OFFSETS: Kind = 4;

/// An unpacked format with spans of one group. A span holds its scales and then its offsets, of the first half of the
/// group before those of the second if each half has its own, and then its codes. `ZERO` is the log₂ of the code that
/// means zero, or 0 if code 0 means zero.
#[derive(Clone, Copy)]
pub(crate) struct Opened<const ZERO: u32, const KIND: Kind>;

impl<const ZERO: u32, const KIND: Kind> Format for Opened<ZERO, KIND> {
    type Opened = Self;
    const SPAN: usize = GROUP;
    const CODES: Codes = Codes::Bytes;
    const HEAD: usize = VECTOR * (1 + Self::OFFSET as usize) * (1 + Self::HALVES as usize);
    const ZERO: Option<u32> = if ZERO == 0 { None } else { Some(ZERO) };
    const OFFSET: bool = matches!(KIND, WITH_OFFSET | WITH_HALVES_AND_OFFSETS);
    const HALVES: bool = matches!(KIND, WITH_HALVES | WITH_HALVES_AND_OFFSETS);
    const WIDE: bool = KIND == WIDE;

    #[inline(always)]
    unsafe fn scale<N: Ints, const HALF: usize>(span: *const u8, _group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract: the head holds the scales.
        unsafe { N::F::load(span.add(HALF * VECTOR).cast()) }
    }

    #[inline(always)]
    unsafe fn offset<N: Ints, const HALF: usize>(span: *const u8, _group: usize) -> <N::F as Simd>::V {
        // SAFETY: the caller's contract: if the format has offsets, they follow the scales.
        unsafe {
            if !Self::OFFSET {
                return N::F::splat(0.0);
            }
            N::F::load(span.add((1 + Self::HALVES as usize + HALF) * VECTOR).cast())
        }
    }
}

/// Unpacks `spans` spans of `F`.
///
/// # Safety
/// As for [`Ints`]. The spans are at `panel`, and `out` has room for one span of [`Format::Opened`] per group.
#[inline(always)]
pub(crate) unsafe fn open<N: Ints, F: Format>(panel: *const u8, spans: usize, out: *mut u8) {
    macro_rules! lines {
        ($span:ident, $group:ident, $to:ident, $(($half:literal, $step:literal))*) => {$(
            let line = F::Opened::HEAD + (4 * $half + $step) * LINE;
            N::store($to.add(line), F::line::<N, $half, $step>($span, $group));
        )*};
    }
    const { assert!(F::Opened::SPAN == GROUP && F::Opened::BYTES <= MOST_GROUP_BYTES) };
    let mut to = out;
    // SAFETY: the caller's contract; each group writes its own head and lines.
    unsafe {
        for index in 0..spans {
            let span = panel.add(index * F::BYTES);
            for group in 0..F::SPAN / GROUP {
                N::F::store(to.cast(), F::scale::<N, 0>(span, group));
                if F::HALVES {
                    N::F::store(to.add(VECTOR).cast(), F::scale::<N, 1>(span, group));
                }
                let offsets = to.add((1 + F::HALVES as usize) * VECTOR);
                if F::OFFSET {
                    N::F::store(offsets.cast(), F::offset::<N, 0>(span, group));
                }
                if F::OFFSET && F::HALVES {
                    N::F::store(offsets.add(VECTOR).cast(), F::offset::<N, 1>(span, group));
                }
                lines!(span, group, to, (0, 0)(0, 1)(0, 2)(0, 3)(1, 0)(1, 1)(1, 2)(1, 3));
                to = to.add(F::Opened::BYTES);
            }
        }
    }
}
