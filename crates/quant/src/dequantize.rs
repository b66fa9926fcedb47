//! Dequantizes blocks to f32 weights, with the same bits as ggml's reference. Must not know: how codes were chosen.

use half::{bf16, f16};

use crate::layout::{self, BlockScales, mxfp4_scale};
use crate::{BlockType, E4M3_VALUES, IQ4_NL_VALUES, MXFP4_VALUES, QuantError};

/// Dequantizes a row of blocks to f32 weights, with the same bits as ggml's reference if the format is ggml's. Accepts any bytes: a NaN or
/// infinite scale makes its weights NaN or infinite.
///
/// # Errors
/// Fails if `out` is not a whole number of blocks, or if `bytes` does not have the length that `out` needs
/// ([`BlockType::row_bytes`]).
pub fn dequantize_row(kind: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let expected = kind.row_bytes(out.len()).ok_or(QuantError::RaggedRow { kind, weights: out.len() })?;
    if bytes.len() != expected {
        return Err(QuantError::Length { kind, expected, found: bytes.len() });
    }
    let mut codes = [0; 256];
    let Some(codes) = codes.get_mut(..kind.block_weights()) else { return Ok(()) };
    let mut scales = BlockScales::default();
    for (block, weights) in
        bytes.chunks_exact(kind.block_bytes()).zip(out.chunks_exact_mut(kind.block_weights()))
    {
        layout::codes(kind, block, codes)?;
        layout::sub_scales(kind, block, &mut scales)?;
        dequantize_block(kind, &scales, codes, weights);
    }
    Ok(())
}

/// Dequantizes one block from its codes and scales.
fn dequantize_block(kind: BlockType, scales: &BlockScales, codes: &[u8], weights: &mut [f32]) {
    let d = f16::from_bits(scales.d).to_f32();
    let min = f16::from_bits(scales.dmin).to_f32();
    let zero = i32::from(kind.zero_code());
    let pairs = weights.iter_mut().zip(codes);
    match kind {
        BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 => {
            pairs.for_each(|(weight, &code)| *weight = (i32::from(code) - zero) as f32 * d);
        }
        BlockType::Q4_1 | BlockType::Q5_1 => {
            pairs.for_each(|(weight, &code)| *weight = f32::from(code) * d + min);
        }
        BlockType::Iq4Nl => {
            pairs.for_each(|(weight, &code)| *weight = d * f32::from(IQ4_NL_VALUES[usize::from(code & 15)]));
        }
        BlockType::Mxfp4 => {
            let d = mxfp4_scale(scales.e8m0);
            pairs.for_each(|(weight, &code)| *weight = f32::from(MXFP4_VALUES[usize::from(code & 15)]) * d);
        }
        BlockType::Q4K | BlockType::Q5K => {
            let subs = weights.chunks_exact_mut(32).zip(codes.chunks_exact(32));
            for ((weights, codes), (&scale, &m)) in subs.zip(scales.scales.iter().zip(&scales.mins)) {
                let (d, m) = (d * f32::from(scale), min * f32::from(m));
                weights.iter_mut().zip(codes).for_each(|(weight, &code)| *weight = d * f32::from(code) - m);
            }
        }
        BlockType::Q2K => {
            let subs = weights.chunks_exact_mut(16).zip(codes.chunks_exact(16));
            for ((weights, codes), (&scale, &m)) in subs.zip(scales.scales.iter().zip(&scales.mins)) {
                let (d, m) = (d * f32::from(scale), min * f32::from(m));
                weights.iter_mut().zip(codes).for_each(|(weight, &code)| *weight = d * f32::from(code) - m);
            }
        }
        BlockType::F8G32 | BlockType::F8G128 => {
            let scale = layout::f8_scale(scales);
            pairs.for_each(|(weight, &code)| *weight = E4M3_VALUES[usize::from(code)] * scale);
        }
        BlockType::W4F16G32 | BlockType::W4F16G128 | BlockType::W4Bf16G32 | BlockType::W4Bf16G128 => {
            let scale = match kind {
                BlockType::W4F16G32 | BlockType::W4F16G128 => d,
                _ => bf16::from_bits(scales.d).to_f32(),
            };
            let zero = i32::from(scales.mins[0]);
            pairs.for_each(|(weight, &code)| *weight = (i32::from(code) - zero) as f32 * scale);
        }
        BlockType::Iq4Xs => {
            let subs = weights.chunks_exact_mut(32).zip(codes.chunks_exact(32));
            for ((weights, codes), &scale) in subs.zip(&scales.scales) {
                let d = d * f32::from(scale);
                let weight_of = |code: u8| d * f32::from(IQ4_NL_VALUES[usize::from(code & 15)]);
                weights.iter_mut().zip(codes).for_each(|(weight, &code)| *weight = weight_of(code));
            }
        }
        BlockType::Q3K | BlockType::Q6K => {
            let subs = weights.chunks_exact_mut(16).zip(codes.chunks_exact(16));
            for ((weights, codes), &scale) in subs.zip(&scales.scales) {
                let d = d * f32::from(scale);
                let weight_of = |code: u8| d * (i32::from(code) - zero) as f32;
                weights.iter_mut().zip(codes).for_each(|(weight, &code)| *weight = weight_of(code));
            }
        }
    }
}
