//! Quantizes weights to Q4_K, Q5_K and Q6_K blocks. Must not know: the other formats.

use half::f16;

use crate::layout;
use crate::search::{self, Affine, Grid, nearest, symmetric, within};

/// A larger weight exceeds every scale of these formats. Up to this bound no sum in the search overflows.
const HOPELESS: f32 = 1e9;

/// Quantizes a Q4_K block. Returns `false` if the weights overflow its scales.
pub(crate) fn q4_k(x: &[f32; 256], out: &mut [u8; 144]) -> bool {
    let grid = Grid { top: 15.0, start: -1.0, step: 0.14, rounds: 2 };
    let mut codes = [0; 256];
    let Some(head) = affine_block(x, &grid, &mut codes) else { return false };
    out[..16].copy_from_slice(&head);
    layout::store_nibble_groups(&codes, &mut out[16..]);
    true
}

/// Quantizes a Q5_K block. Returns `false` if the weights overflow its scales.
pub(crate) fn q5_k(x: &[f32; 256], out: &mut [u8; 176]) -> bool {
    let grid = Grid { top: 31.0, start: -0.5, step: 0.1, rounds: 2 };
    let mut codes = [0; 256];
    let Some(head) = affine_block(x, &grid, &mut codes) else { return false };
    out[..16].copy_from_slice(&head);
    let mut high = [0_u8; 32];
    for (sub, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
        for (bits, code) in high.iter_mut().zip(codes) {
            *bits |= (code >> 4) << sub;
        }
    }
    out[16..48].copy_from_slice(&high);
    layout::store_nibble_groups(&codes, &mut out[48..]);
    true
}

/// Computes the codes of a Q4_K or Q5_K block and returns its first 16 bytes: two f16 and 12 bytes of scales.
fn affine_block(x: &[f32; 256], grid: &Grid, codes: &mut [u8; 256]) -> Option<[u8; 16]> {
    if search::magnitude(x) > HOPELESS {
        return None;
    }
    let subs = x.as_chunks::<32>().0;
    let affine: [Affine; 8] = std::array::from_fn(|i| Affine::new(&subs[i]));
    let fits: [(f32, f32); 8] = std::array::from_fn(|i| affine[i].fit(grid));
    let (d, mut scales) = six_bit(fits.map(|fit| fit.0))?;
    let (m, mut mins) = six_bit(fits.map(|fit| fit.1))?;
    for (affine, (scale, min)) in affine.iter().zip(scales.iter_mut().zip(&mut mins)) {
        (*scale, *min) = affine.settle((d.to_f32(), m.to_f32()), *scale, *min, grid.top);
    }
    for (i, (x, codes)) in subs.iter().zip(codes.as_chunks_mut::<32>().0).enumerate() {
        let step = d.to_f32() * f32::from(scales[i]);
        let offset = m.to_f32() * f32::from(mins[i]);
        let multiplier = if step > 0.0 { 1.0 / step } else { 0.0 };
        for (code, x) in codes.iter_mut().zip(x) {
            *code = nearest(within((x + offset) * multiplier, 0.0, grid.top)) as u8;
        }
    }
    let mut head = [0; 16];
    head[..2].copy_from_slice(&d.to_le_bytes());
    head[2..4].copy_from_slice(&m.to_le_bytes());
    head[4..].copy_from_slice(&layout::pack_scales(&scales, &mins));
    Some(head)
}

/// Returns values ≥ 0 as 6-bit multiples of one f16. `None` if the f16 overflows.
fn six_bit(values: [f32; 8]) -> Option<(f16, [u8; 8])> {
    let unit = f16::from_f32(values.into_iter().fold(0.0, f32::max) / 63.0);
    if !unit.is_finite() {
        return None;
    }
    let multiplier = if unit.to_f32() > 0.0 { 1.0 / unit.to_f32() } else { 0.0 };
    Some((unit, values.map(|value| nearest(within(value * multiplier, 0.0, 63.0)) as u8)))
}

/// Quantizes a Q6_K block. Returns `false` if the weights overflow its scales.
pub(crate) fn q6_k(x: &[f32; 256], out: &mut [u8; 210]) -> bool {
    if search::magnitude(x) > HOPELESS {
        return false;
    }
    let subs = x.as_chunks::<16>().0;
    let mut fits = [0.0; 16];
    for (fit, x) in fits.iter_mut().zip(subs) {
        *fit = symmetric(x);
    }
    // The scale of largest magnitude becomes −128, because the negative range of an i8 is longer.
    let d = f16::from_f32(search::signed_peak(&fits) / -128.0);
    if !d.is_finite() {
        return false;
    }
    let multiplier = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
    let scales = fits.map(|fit| nearest(within(fit * multiplier, -128.0, 127.0)) as i8);
    let mut codes = [0; 256];
    for (i, (x, codes)) in subs.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
        let step = d.to_f32() * f32::from(scales[i]);
        let multiplier = if step == 0.0 { 0.0 } else { 1.0 / step };
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (nearest(within(x * multiplier, -32.0, 31.0)) + 32.0) as u8;
        }
    }
    layout::store_six_bits(&codes, out);
    for (byte, scale) in out[192..208].iter_mut().zip(scales) {
        *byte = scale.cast_unsigned();
    }
    out[208..].copy_from_slice(&d.to_le_bytes());
    true
}
