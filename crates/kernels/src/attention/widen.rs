//! Widens keys whose first elements are also the value: to f32, in both layouts that the register tile reads. Must not
//! know: which queries read them, or how many.

use headrace_kv_layout::BLOCK_TOKENS;

use crate::attention::store::Layout;
use crate::shapes::LANES;
use crate::simd::Simd;
use crate::tile_attention::Element;

/// Widens the keys of one block to f32, with their scales, and transposes the elements that are also the value.
///
/// # Safety
/// As for [`Simd`]. The block exists, holds `E`s, and is not written meanwhile. `to` has room for a block in the layout `wide`.
#[inline(always)]
pub(crate) unsafe fn widen_shared<S: Simd, E: Element>(
    block: *const u8,
    stored: Layout,
    to: *mut f32,
    wide: Layout,
) {
    let scales = [stored.key_scales, stored.value_scales].map(|at| block.wrapping_add(at).cast::<f32>());
    // SAFETY: the caller's contract. Keys have `key_dim` rows of 16 elements, values `value_dim / 16` panels of 16 rows.
    unsafe {
        for pair in 0..stored.key_dim / 2 {
            let (even, odd) = E::pair::<S>(block, pair);
            for (row, mut x) in [(2 * pair, even), (2 * pair + 1, odd)] {
                if E::SCALED {
                    x = S::mul(x, S::load(scales[usize::from(row >= stored.value_width)]));
                }
                S::store(to.add(row * LANES), x);
            }
        }
        let values = to.add(wide.values / 4);
        for panel in 0..wide.value_dim / LANES {
            let (from, out) = (to.add(panel * LANES * LANES), values.add(panel * LANES * LANES));
            let columns = (wide.value_width - panel * LANES).min(LANES);
            for token in 0..BLOCK_TOKENS {
                for column in 0..columns {
                    *out.add(token * LANES + column) = *from.add(column * LANES + token);
                }
                for column in columns..LANES {
                    *out.add(token * LANES + column) = 0.0;
                }
            }
        }
    }
}
