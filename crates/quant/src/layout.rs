//! The layout of each block, and functions that return its codes and scales in plain order, for code that packs
//! blocks in another way.
//! Must not know: how codes were chosen, or any kernel's packing.
//!
//! Below, `q` is a weight's code as [`codes`] returns it. `d` and `m` are the f16 values of [`BlockScales::d`] and
//! [`BlockScales::dmin`]. `sc` and `mn` are the sub-block's entries in [`BlockScales::scales`] and
//! [`BlockScales::mins`]. "Low nibbles first" means that byte `j` of `qs` holds code `j` (bits 0–3) and code `j + 16`
//! (bits 4–7).
//!
//! | format | a weight | bytes of a block |
//! |---|---|---|
//! | Q8_0 | `d · (q − 128)` | `d` f16, 32 × i8 (`q − 128`) |
//! | Q4_0 | `d · (q − 8)` | `d` f16, `qs` 16 bytes, low nibbles first |
//! | Q4_1 | `d · q + m` | `d` f16, `m` f16, `qs` 16 bytes, low nibbles first |
//! | Q5_0 | `d · (q − 16)` | `d` f16, `qh` 4 bytes (bit `i`: bit 4 of code `i`), `qs` 16 bytes, low nibbles first |
//! | Q5_1 | `d · q + m` | `d` f16, `m` f16, `qh` 4 bytes, `qs` 16 bytes, as Q5_0 |
//! | Q2_K | `d · sc · q − m · mn` | 16 bytes of scales (bits 0–3 `sc`, 4–7 `mn`), `qs` 64 bytes, `d` f16, `m` f16 |
//! | Q3_K | `d · sc · (q − 4)` | `qh` 32 bytes, `qs` 64 bytes, 12 bytes of scales (below), `d` f16 |
//! | Q4_K | `d · sc · q − m · mn` | `d` f16, `m` f16, 12 bytes of scales (below), `qs` 128 bytes |
//! | Q5_K | `d · sc · q − m · mn` | `d` f16, `m` f16, 12 bytes of scales, `qh` 32 bytes, `qs` 128 bytes |
//! | Q6_K | `d · sc · (q − 32)` | `ql` 128 bytes, `qh` 64 bytes, 16 × i8 `sc`, `d` f16 |
//! | IQ4_NL | `d · IQ4_NL_VALUES[q]` | `d` f16, `qs` 16 bytes, low nibbles first |
//! | IQ4_XS | `d · sc · IQ4_NL_VALUES[q]` | `d` f16, `h` u16, `l` 4 bytes (scales, below), `qs` 128 bytes: every 16 hold 32 codes, low nibbles first |
//! | F8 | `s · E4M3_VALUES[q]` | `s` f32, one byte for each code |
//! | W4 | `(q − z) · s` | `s` f16 or bf16, `z` 1 byte, then two codes in each byte: code `2j` in bits 0–3 of byte `j` |
//! | MXFP4 | `mxfp4_scale(e) · MXFP4_VALUES[q]` | `e` 1 byte, `qs` 16 bytes, low nibbles first |
//!
//! All arithmetic is f32. `d · sc` and `m · mn` are exact, and so is the product of either with a code or a table's
//! value (11 + 6 + 5 bits, 11 + 7 + 5, or 11 + 5 + 7). A weight therefore rounds at most once, at the addition, and a fused multiply-add gives the
//! same bits. The exception would be results outside f32's normal range, which no f16 scale reaches.
//!
//! **Q4_K and Q5_K codes**: 64 weights share 32 bytes of `qs`. In group `g` of 4, byte `32g + l` holds code `64g + l`
//! (bits 0–3) and code `64g + 32 + l` (bits 4–7). Q5_K's bit 4 of these two codes is bit `2g` and bit `2g + 1` of
//! `qh[l]`.
//!
//! **Q4_K and Q5_K scales**: with bytes `b`, sub-blocks `j` < 4 have `sc = b[j] & 63`, `mn = b[j + 4] & 63`. The
//! others have `sc = (b[j + 4] & 15) | (b[j − 4] >> 6) << 4`, `mn = (b[j + 4] >> 4) | (b[j] >> 6) << 4`.
//!
//! **Q2_K and Q3_K codes**: half `h` of 2 covers weights `128h` to `128h + 127`. Code `128h + 32s + l`, with `s` < 4 and
//! `l` < 32, has its low 2 bits in bits `2s` and `2s + 1` of `qs[32h + l]`. Q3_K's bit 2 is bit `4h + s` of `qh[l]`.
//!
//! **Q3_K scales**: with bytes `b`, sub-block `j` of 16 has `sc = (low | high << 4) − 32`. `low` is bits 0–3 of `b[j]`
//! for `j` < 8, else bits 4–7 of `b[j − 8]`. `high` is bits `2(j / 4)` and `2(j / 4) + 1` of `b[8 + j % 4]`.
//!
//! **IQ4_XS scales**: sub-block `j` of 8 has `sc = (low | high << 4) − 32`. `low` is bits `4(j % 2)` to `4(j % 2) + 3` of
//! `l[j / 2]`. `high` is bits `2j` and `2j + 1` of `h`.
//!
//! **Q6_K codes**: half `h` of 2 covers weights `128h` to `128h + 127`. For `l` < 32, the codes of the half are `l`,
//! `l + 32`, `l + 64` and `l + 96`. The first two take their low 4 bits from bits 0–3 of `ql[64h + l]` and
//! `ql[64h + 32 + l]`. The last two take them from bits 4–7 of the same two bytes. In this order, the high 2 bits are
//! bits 0–1, 2–3, 4–5, 6–7 of `qh[32h + l]`. Scale `i` of 16 covers weights `16i` to `16i + 15`.

use crate::{BlockType, QuantError};

/// The scales of one block, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockScales {
    /// Bits of the f16 `d`, or of `s` in the `W4` formats. The low half of the bits of `s` in the `F8` formats. 0 for
    /// MXFP4.
    pub d: u16,
    /// Bits of the f16 `m`. Q4_1 and Q5_1 add `m`. Q2_K, Q4_K and Q5_K subtract `m` times `mins`. The high half
    /// of the bits of `s` in the `F8` formats. 0 for the other formats.
    pub dmin: u16,
    /// MXFP4's scale byte. 0 for the other formats.
    pub e8m0: u8,
    /// Number of sub-blocks: 8 for Q4_K, Q5_K and IQ4_XS, 16 for Q2_K, Q3_K and Q6_K, 1 for the others.
    pub count: usize,
    /// Integer scale of each sub-block: 0 to 63 for Q4_K and Q5_K, 0 to 15 for Q2_K, −32 to 31 for Q3_K and IQ4_XS, any
    /// i8 for Q6_K. 1 if the format has none. 0 beyond `count`.
    pub scales: [i8; 16],
    /// Integer minimum of each sub-block of Q4_K and Q5_K (0 to 63) and of Q2_K (0 to 15). The first is `z` in the `W4`
    /// formats. 0 for the other formats.
    pub mins: [u8; 16],
}

/// Returns the f32 scale of an `F8` block.
pub fn f8_scale(scales: &BlockScales) -> f32 {
    f32::from_bits(u32::from(scales.d) | u32::from(scales.dmin) << 16)
}

/// Returns the f32 value of MXFP4's scale byte, halved to match [`crate::MXFP4_VALUES`]: `2^(e − 128)`, subnormal for
/// 0 and 1. As in ggml, 255 (NaN in OCP's specification) is `2^127`.
pub const fn mxfp4_scale(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((e as u32 - 1) << 23),
    }
}

/// Writes the unsigned codes of one block to `out`, in the order of the weights. Q8_0 has 0 to 255 (0 means −128),
/// `F8` formats too, the others have 0 to 3, 7, 15, 31 or 63.
///
/// # Errors
/// Fails if `block` is not one block long, or if `out` does not have [`BlockType::block_weights`] elements.
pub fn codes(kind: BlockType, block: &[u8], out: &mut [u8]) -> Result<(), QuantError> {
    let expected = kind.block_weights();
    if out.len() != expected {
        return Err(QuantError::Codes { kind, expected, found: out.len() });
    }
    whole_block(kind, block)?;
    match kind {
        BlockType::Q8_0 => {
            for (code, &byte) in out.iter_mut().zip(block.iter().skip(2)) {
                *code = byte ^ 0x80;
            }
        }
        BlockType::Q4_0 | BlockType::Iq4Nl => nibbles(block.get(2..).unwrap_or_default(), out),
        BlockType::Q4_1 => nibbles(block.get(4..).unwrap_or_default(), out),
        BlockType::Mxfp4 => nibbles(block.get(1..).unwrap_or_default(), out),
        BlockType::Q5_0 => five_bits(block.get(2..).unwrap_or_default(), out),
        BlockType::Q5_1 => five_bits(block.get(4..).unwrap_or_default(), out),
        BlockType::Q4K => nibble_groups(block.get(16..).unwrap_or_default(), out),
        BlockType::Q5K => {
            nibble_groups(block.get(48..).unwrap_or_default(), out);
            let high = block.get(16..48).unwrap_or_default();
            for (sub, group) in out.chunks_exact_mut(32).enumerate() {
                for (code, &bits) in group.iter_mut().zip(high) {
                    *code |= (bits >> sub & 1) << 4;
                }
            }
        }
        BlockType::Q6K => six_bits(block, out),
        BlockType::Q2K => bit_pairs(block.get(16..80).unwrap_or_default(), out),
        BlockType::Q3K => {
            bit_pairs(block.get(32..96).unwrap_or_default(), out);
            let high = block.get(..32).unwrap_or_default();
            for (sub, group) in out.chunks_exact_mut(32).enumerate() {
                for (code, &bits) in group.iter_mut().zip(high) {
                    *code |= (bits >> sub & 1) << 2;
                }
            }
        }
        BlockType::F8G32 | BlockType::F8G128 => {
            for (code, &byte) in out.iter_mut().zip(block.iter().skip(4)) {
                *code = byte;
            }
        }
        BlockType::W4F16G32 | BlockType::W4F16G128 | BlockType::W4Bf16G32 | BlockType::W4Bf16G128 => {
            let pairs = out.as_chunks_mut::<2>().0.iter_mut();
            for (pair, &byte) in pairs.zip(block.get(3..).unwrap_or_default()) {
                *pair = [byte & 15, byte >> 4];
            }
        }
        BlockType::Iq4Xs => {
            let qs = block.get(8..).unwrap_or_default();
            for (group, qs) in out.chunks_exact_mut(32).zip(qs.chunks_exact(16)) {
                nibbles(qs, group);
            }
        }
    }
    Ok(())
}

/// Writes the scales of one block to `out`.
///
/// # Errors
/// Fails if `block` is not one block long.
pub fn sub_scales(kind: BlockType, block: &[u8], out: &mut BlockScales) -> Result<(), QuantError> {
    whole_block(kind, block)?;
    let word = |at: usize| u16::from_le_bytes([byte(block, at), byte(block, at + 1)]);
    *out = BlockScales { count: 1, ..BlockScales::default() };
    match kind {
        BlockType::Mxfp4 => {
            out.e8m0 = byte(block, 0);
            out.scales[0] = 1;
        }
        BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Iq4Nl => {
            out.d = word(0);
            out.scales[0] = 1;
        }
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::F8G32 | BlockType::F8G128 => {
            (out.d, out.dmin) = (word(0), word(2));
            out.scales[0] = 1;
        }
        BlockType::Q4K | BlockType::Q5K => {
            (out.d, out.dmin) = (word(0), word(2));
            out.count = 8;
            let packed = std::array::from_fn(|i| byte(block, 4 + i));
            let (scales, mins) = unpack_scales(&packed);
            for (i, (scale, min)) in scales.into_iter().zip(mins).enumerate() {
                (out.scales[i], out.mins[i]) = (scale.cast_signed(), min);
            }
        }
        BlockType::Q6K => {
            out.d = word(208);
            out.count = 16;
            out.scales = std::array::from_fn(|i| byte(block, 192 + i).cast_signed());
        }
        BlockType::Q2K => {
            (out.d, out.dmin) = (word(80), word(82));
            out.count = 16;
            out.scales = std::array::from_fn(|i| (byte(block, i) & 15).cast_signed());
            out.mins = std::array::from_fn(|i| byte(block, i) >> 4);
        }
        BlockType::Q3K => {
            out.d = word(108);
            out.count = 16;
            out.scales = std::array::from_fn(|i| {
                let low = byte(block, 96 + i % 8) >> (4 * (i / 8)) & 15;
                let high = byte(block, 104 + i % 4) >> (2 * (i / 4)) & 3;
                (low | high << 4).cast_signed() - 32
            });
        }
        BlockType::W4F16G32 | BlockType::W4F16G128 | BlockType::W4Bf16G32 | BlockType::W4Bf16G128 => {
            out.d = word(0);
            out.scales[0] = 1;
            out.mins[0] = byte(block, 2);
        }
        BlockType::Iq4Xs => {
            out.d = word(0);
            out.count = 8;
            let high = word(2);
            for (i, scale) in out.scales.iter_mut().enumerate().take(8) {
                let low = byte(block, 4 + i / 2) >> (4 * (i % 2)) & 15;
                let high = (high >> (2 * i) & 3) as u8;
                *scale = (low | high << 4).cast_signed() - 32;
            }
        }
    }
    Ok(())
}

/// Returns the 8 scales and 8 minimums of 6 bits from the 12 bytes of Q4_K and Q5_K.
pub fn unpack_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let mut scales = [0; 8];
    let mut mins = [0; 8];
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        mins[j] = packed[j + 4] & 63;
        scales[j + 4] = packed[j + 8] & 15 | packed[j] >> 6 << 4;
        mins[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of [`unpack_scales`]. Drops bits above the sixth.
pub fn pack_scales(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] & 63 | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] & 63 | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
    packed
}

/// The inverse of [`nibbles`]: 32 codes to 16 bytes.
#[inline(always)]
pub(crate) fn store_nibbles(codes: &[u8; 32], qs: &mut [u8]) {
    let (low, high) = codes.split_at(16);
    for ((byte, low), high) in qs.iter_mut().zip(low).zip(high) {
        *byte = low & 15 | high << 4;
    }
}

/// The inverse of [`five_bits`]: 32 codes to 20 bytes.
#[inline(always)]
pub(crate) fn store_five_bits(codes: &[u8; 32], block: &mut [u8]) {
    let high = codes.iter().rev().fold(0_u32, |bits, code| bits << 1 | u32::from(code >> 4));
    let (head, qs) = block.split_at_mut(4);
    head.copy_from_slice(&high.to_le_bytes());
    store_nibbles(codes, qs);
}

/// The inverse of [`nibble_groups`]: 256 codes to 128 bytes.
pub(crate) fn store_nibble_groups(codes: &[u8; 256], qs: &mut [u8]) {
    for (group, qs) in codes.as_chunks::<64>().0.iter().zip(qs.as_chunks_mut::<32>().0) {
        for (i, byte) in qs.iter_mut().enumerate() {
            *byte = group[i] & 15 | group[i + 32] << 4;
        }
    }
}

/// The inverse of [`six_bits`]: 256 codes to the first 192 bytes of a block.
pub(crate) fn store_six_bits(codes: &[u8; 256], block: &mut [u8; 210]) {
    let (low, rest) = block.split_at_mut(128);
    let halves = codes.as_chunks::<128>().0.iter().zip(low.as_chunks_mut::<64>().0);
    for ((codes, low), high) in halves.zip(rest.as_chunks_mut::<32>().0) {
        for i in 0..32 {
            let [a, b, c, d] = [codes[i], codes[i + 32], codes[i + 64], codes[i + 96]];
            low[i] = a & 15 | c << 4;
            low[i + 32] = b & 15 | d << 4;
            high[i] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
}

fn whole_block(kind: BlockType, block: &[u8]) -> Result<(), QuantError> {
    let expected = kind.block_bytes();
    if block.len() == expected {
        return Ok(());
    }
    Err(QuantError::Length { kind, expected, found: block.len() })
}

/// Returns a byte of a block. The caller has checked the length.
fn byte(block: &[u8], at: usize) -> u8 {
    block.get(at).copied().unwrap_or_default()
}

/// Unpacks 16 bytes to 32 codes: first all low nibbles, then all high ones.
fn nibbles(qs: &[u8], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(out.len() / 2);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Unpacks 4 bytes of high bits and 16 bytes of nibbles to 32 codes of 5 bits.
fn five_bits(block: &[u8], out: &mut [u8]) {
    nibbles(block.get(4..).unwrap_or_default(), out);
    let high = u32::from_le_bytes(std::array::from_fn(|i| byte(block, i)));
    for (i, code) in out.iter_mut().enumerate() {
        *code |= ((high >> i & 1) << 4) as u8;
    }
}

/// Unpacks 128 bytes to 256 codes. Every 32 bytes hold 64 codes.
fn nibble_groups(qs: &[u8], out: &mut [u8]) {
    for (group, qs) in out.chunks_exact_mut(64).zip(qs.chunks_exact(32)) {
        nibbles(qs, group);
    }
}

/// Unpacks 64 bytes to 256 codes of 2 bits. Every 32 bytes hold 128 codes.
fn bit_pairs(qs: &[u8], out: &mut [u8]) {
    for (half, qs) in out.chunks_exact_mut(128).zip(qs.chunks_exact(32)) {
        for (part, group) in half.chunks_exact_mut(32).enumerate() {
            for (code, &bits) in group.iter_mut().zip(qs) {
                *code = bits >> (2 * part) & 3;
            }
        }
    }
}

/// Unpacks the codes of a Q6_K block.
fn six_bits(block: &[u8], out: &mut [u8]) {
    let (low, rest) = block.split_at_checked(128).unwrap_or_default();
    for ((half, low), high) in out.chunks_exact_mut(128).zip(low.chunks_exact(64)).zip(rest.chunks_exact(32))
    {
        for (part, group) in half.chunks_exact_mut(32).enumerate() {
            let nibbles = if part % 2 == 0 { low.get(..32) } else { low.get(32..) };
            for ((code, &nibble), &bits) in group.iter_mut().zip(nibbles.unwrap_or_default()).zip(high) {
                *code = (nibble >> (part / 2 * 4) & 15) | (bits >> (2 * part) & 3) << 4;
            }
        }
    }
}
