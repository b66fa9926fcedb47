//! Converts rows of activations into the forms that the register tiles read: f32 rows side by side, int8 codes with
//! their scales, or bf16 pairs.
//! Must not know: weights or threads. The result for a row depends on that row alone.

use crate::quantized_group::QuantizedGroup;
use crate::shapes::{FACTS, GROUP, WORDS};
use crate::simd_int::Ints;

/// Quantizes `rows` rows of `k` inputs. `codes` becomes `[padded k / 4][rows]` words of four codes. `facts` becomes
/// `[padded k / 32][FACTS][rows]`. Everything past `k` is zero.
///
/// # Safety
/// As for [`Ints`].
#[inline(always)]
pub(crate) unsafe fn quantize<N: Ints>(
    x: &[f32],
    k: usize,
    rows: usize,
    codes: &mut [i32],
    facts: &mut [f32],
) {
    for (r, row) in x.chunks_exact(k).take(rows).enumerate() {
        let (groups, _) = row.as_chunks::<GROUP>();
        let mut words = codes.chunks_exact_mut(WORDS * rows);
        let mut notes = facts.chunks_exact_mut(FACTS * rows);
        for ((group, words), notes) in groups.iter().zip(&mut words).zip(&mut notes) {
            // SAFETY: the caller's contract.
            let QuantizedGroup { codes, scale, sums } = unsafe { N::quantize(group) };
            for (word, four) in words.iter_mut().skip(r).step_by(rows).zip(codes.as_chunks::<4>().0) {
                *word = i32::from_le_bytes(four.map(i8::cast_unsigned));
            }
            let sum = sums[0] + sums[1];
            let negated = |sum: i32| f32::from_bits((-sum).cast_unsigned());
            let all = [scale, negated(sum), negated(sums[0])];
            for (note, value) in notes.iter_mut().skip(r).step_by(rows).zip(all) {
                *note = value;
            }
        }
        for word in words.flatten().skip(r).step_by(rows) {
            *word = 0;
        }
        for note in notes.flatten().skip(r).step_by(rows) {
            *note = 0.0;
        }
    }
}

/// Rounds an f32 to bf16, to nearest with ties to even. NaN stays NaN.
#[inline(always)]
pub(crate) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = ((bits >> 16) | 0x40) as u16;
    if value.is_nan() { quiet } else { rounded }
}

/// Packs `rows` rows of `k` inputs as `[k / 2 rounded up][rows]` words of two bf16 values. The first value is in the
/// low half.
#[inline(always)]
pub(crate) fn pair_bf16(x: &[f32], k: usize, rows: usize, pairs: &mut [u32]) {
    for (r, row) in x.chunks_exact(k).take(rows).enumerate() {
        for (word, two) in pairs.iter_mut().skip(r).step_by(rows).zip(row.chunks(2)) {
            let [low, high] =
                [two.first(), two.get(1)].map(|value| u32::from(to_bf16(*value.unwrap_or(&0.0))));
            *word = low | (high << 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry_ints::dispatch_ints;
    use crate::isa::Isa;

    /// Returns a row's codes, its scale and both negated sums, computed on `isa`.
    fn quantized(isa: Isa, row: &[f32; GROUP]) -> (Vec<i8>, f32, [i32; 2]) {
        let (mut codes, mut facts) = ([0_i32; WORDS], [0.0_f32; FACTS]);
        dispatch_ints!(isa, quantize(row, GROUP, 1, &mut codes, &mut facts));
        let codes = codes.iter().flat_map(|word| word.to_le_bytes()).map(u8::cast_signed).collect();
        (codes, facts[0], [facts[1], facts[2]].map(|sum| sum.to_bits().cast_signed()))
    }

    #[test]
    fn codes_are_rounded_to_the_nearest_ties_to_even_on_every_instruction_set() {
        let mut ties = [0.0_f32; GROUP];
        ties[..9].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 3.499, -3.501]);
        let codes = [127, 0, 2, 2, 0, -2, -126, 3, -4];
        let sum = codes.iter().map(|&code| i32::from(code)).sum::<i32>();
        let mut wild = ties;
        wild[31] = f32::INFINITY;
        let faint = [1e-31_f32; GROUP];
        for isa in Isa::supported() {
            let (found, scale, sums) = quantized(isa, &ties);
            assert_eq!((&found[..9], scale, sums), (&codes[..], 1.0, [-sum, -sum]), "{isa}");
            assert!(found[9..].iter().all(|&code| code == 0), "{isa}");
            let (found, scale, sums) = quantized(isa, &wild);
            assert!(scale.is_nan() && sums == [0, 0] && found.iter().all(|&code| code == 0), "{isa}");
            assert_eq!(quantized(isa, &faint), (vec![0; GROUP], 0.0, [0, 0]), "{isa}");
            // A value in the second half appears in the first sum only.
            let mut second = [0.0_f32; GROUP];
            second[20] = -5.0;
            assert_eq!(quantized(isa, &second).2, [127, 0], "{isa}");
        }
    }
}
