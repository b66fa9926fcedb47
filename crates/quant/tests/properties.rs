//! Properties that hold for any weights and any bytes: error bounds, stability, rejected input, and that the formats
//! follow the documented formulas. Must not know: ggml's numbers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use headrace_quant::layout::{self, mxfp4_scale};
use headrace_quant::{
    BlockScales, BlockType, E4M3_VALUES, IQ4_NL_VALUES, MXFP4_VALUES, QuantError, codes, dequantize_row,
    quantize_row, sub_scales,
};
use proptest::prelude::*;

fn quantized(kind: BlockType, weights: &[f32]) -> Result<Vec<u8>, QuantError> {
    let mut blocks = vec![0; kind.row_bytes(weights.len()).unwrap()];
    quantize_row(kind, weights, &mut blocks).map(|()| blocks)
}

fn dequantized(kind: BlockType, blocks: &[u8]) -> Vec<f32> {
    let mut weights = vec![0.0; blocks.len() / kind.block_bytes() * kind.block_weights()];
    dequantize_row(kind, blocks, &mut weights).unwrap();
    weights
}

/// Generates 256 weights around an offset, of different sizes and with a common scale.
fn weights() -> impl Strategy<Value = Vec<f32>> {
    let weight = prop_oneof![8 => -1.0_f32..1.0, 1 => Just(0.0_f32), 1 => -8.0_f32..8.0];
    (prop::collection::vec(weight, 256), -8_i32..8, -2.0_f32..2.0).prop_map(|(weights, power, offset)| {
        weights.into_iter().map(|w| (w + offset) * 2_f32.powi(power)).collect()
    })
}

/// Generates a format that the quantizer makes.
fn quantized_kind() -> impl Strategy<Value = BlockType> {
    prop::sample::select(BlockType::QUANTIZED.to_vec())
}

/// Generates any format.
fn kind() -> impl Strategy<Value = BlockType> {
    prop::sample::select(BlockType::ALL.to_vec())
}

fn peak(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |peak, v| peak.max(v.abs()))
}

/// Returns the largest error of a weight, relative to the largest magnitude in its block. It is half a step, plus the
/// errors from rounded scales and from a format's clipped end.
fn worst_share(kind: BlockType) -> f32 {
    match kind {
        BlockType::Q8_0 => 0.5 / 127.0 + 0.001,
        BlockType::Q4_0 => 1.0 / 8.0 + 0.001,
        BlockType::Q4_1 => 1.0 / 15.0 + 0.001,
        BlockType::Q5_0 => 1.0 / 16.0 + 0.001,
        BlockType::Q5_1 => 1.0 / 31.0 + 0.001,
        BlockType::Mxfp4 => 0.25 + 1e-6,
        // The searching formats may sacrifice a single weight for the sake of the others.
        BlockType::Iq4Nl => 0.17,
        BlockType::Q4K => 0.15,
        BlockType::Q5K => 0.08,
        BlockType::Q6K => 0.05,
        other => panic!("{other} is not quantized here"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_round_trip_errs_within_the_bound_of_the_format(kind in quantized_kind(), weights in weights()) {
        let back = dequantized(kind, &quantized(kind, &weights).unwrap());
        for (x, y) in weights.chunks(kind.block_weights()).zip(back.chunks(kind.block_weights())) {
            let bound = peak(x) * worst_share(kind) + 1e-5;
            for (x, y) in x.iter().zip(y) {
                prop_assert!((x - y).abs() <= bound, "{kind}: {x} became {y}; bound {bound}");
            }
        }
    }

    /// Weights that a format represents exactly come back exactly (Q8_0, Q4_0, Q5_0, MXFP4). In the other formats the
    /// second rounding changes them less than the first one did.
    #[test]
    fn quantizing_again_changes_nothing(kind in quantized_kind(), weights in weights()) {
        let once = dequantized(kind, &quantized(kind, &weights).unwrap());
        let twice = dequantized(kind, &quantized(kind, &once).unwrap());
        match kind {
            BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Mxfp4 => prop_assert_eq!(once, twice),
            _ => {
                let distance = |a: &[f32], b: &[f32]| {
                    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
                };
                let (first, second) = (distance(&weights, &once), distance(&once, &twice));
                prop_assert!(second <= first, "{}: first {}, then {}", kind, first, second);
            }
        }
    }

    /// Scaling by a power of two scales the result, within the precision of f16 scales, because the search uses only
    /// ratios of weights.
    #[test]
    fn the_search_does_not_see_the_scale(kind in quantized_kind(), weights in weights(), power in -3_i32..4) {
        // Keeps the peak away from a power of two, where MXFP4 follows the reference in rounding the peak's
        // logarithm.
        let size = 12.0 / peak(&weights).max(1e-3);
        let (plain, factor) = (weights.into_iter().map(|w| w * size).collect::<Vec<_>>(), 2_f32.powi(power));
        let scaled: Vec<f32> = plain.iter().map(|w| w * factor).collect();
        let expected = dequantized(kind, &quantized(kind, &plain).unwrap());
        for (found, expected) in dequantized(kind, &quantized(kind, &scaled).unwrap()).iter().zip(expected) {
            prop_assert!((found - expected * factor).abs() <= 1e-4 * factor, "{kind}: {found} {expected}");
        }
    }

    #[test]
    fn the_same_weights_give_the_same_bytes_wherever_they_stand(kind in quantized_kind(), weights in weights()) {
        let alone = quantized(kind, &weights).unwrap();
        let twice = quantized(kind, &[weights.clone(), weights].concat()).unwrap();
        prop_assert_eq!([alone.clone(), alone].concat(), twice);
    }

    /// Any bytes are valid weights, and the table in `layout` gives their values.
    #[test]
    fn any_bytes_dequantize_by_the_documented_formula(
        kind in kind(), bytes in prop::collection::vec(any::<u8>(), 210),
    ) {
        let block = &bytes[..kind.block_bytes()];
        let mut q = vec![0; kind.block_weights()];
        let mut scales = BlockScales::default();
        codes(kind, block, &mut q).unwrap();
        sub_scales(kind, block, &mut scales).unwrap();
        prop_assert!(q.iter().all(|q| u32::from(*q) < 1 << kind.code_bits()));
        prop_assert_eq!(scales.count * kind.sub_block_weights(), kind.block_weights());
        let (d, m) = (half::f16::from_bits(scales.d).to_f32(), half::f16::from_bits(scales.dmin).to_f32());
        for (i, found) in dequantized(kind, block).into_iter().enumerate() {
            let (q, sub) = (q[i], i / kind.sub_block_weights());
            let (sc, mn) = (f32::from(scales.scales[sub]), f32::from(scales.mins[sub]));
            let centred = (i32::from(q) - i32::from(kind.zero_code())) as f32;
            let expected = match kind {
                BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 => d * centred,
                BlockType::Q4_1 | BlockType::Q5_1 => d * centred + m,
                BlockType::Q2K | BlockType::Q4K | BlockType::Q5K => d * sc * centred - m * mn,
                BlockType::Q3K | BlockType::Q6K => d * sc * centred,
                BlockType::Iq4Xs => d * sc * f32::from(IQ4_NL_VALUES[usize::from(q)]),
                BlockType::Iq4Nl => d * f32::from(IQ4_NL_VALUES[usize::from(q)]),
                BlockType::Mxfp4 => mxfp4_scale(scales.e8m0) * f32::from(MXFP4_VALUES[usize::from(q)]),
                BlockType::F8G32 | BlockType::F8G128 => layout::f8_scale(&scales) * E4M3_VALUES[usize::from(q)],
                BlockType::W4F16G32 | BlockType::W4F16G128 => d * (f32::from(q) - mn),
                BlockType::W4Bf16G32 | BlockType::W4Bf16G128 => {
                    half::bf16::from_bits(scales.d).to_f32() * (f32::from(q) - mn)
                }
            };
            prop_assert!(found == expected || found.is_nan() && expected.is_nan(), "{kind} {i}: {found} {expected}");
        }
    }

    /// Any float bits give either blocks or an error. Accepted blocks hold finite weights.
    #[test]
    fn any_floats_are_quantized_or_refused(
        kind in quantized_kind(),
        bits in prop::collection::vec(any::<u32>(), 256),
        mask in prop::sample::select(vec![u32::MAX, 0xBFFF_FFFF, 0x8FFF_FFFF, 0xCFFF_FFFF, 0x807F_FFFF]),
    ) {
        let weights: Vec<f32> = bits.into_iter().map(|bits| f32::from_bits(bits & mask)).collect();
        let first = weights.iter().position(|w| !w.is_finite());
        match quantized(kind, &weights) {
            Ok(blocks) => {
                prop_assert_eq!(first, None);
                prop_assert!(dequantized(kind, &blocks).iter().all(|w| w.is_finite()));
            }
            Err(QuantError::NotFinite { position, .. }) => {
                prop_assert_eq!(Some(position), first);
            }
            Err(QuantError::TooLarge { position, value, .. }) => {
                prop_assert!(value > 65_504.0 && first.is_none_or(|first| first >= position));
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn packed_scales_unpack(scales in any::<[u8; 8]>(), mins in any::<[u8; 8]>()) {
        let (scales, mins) = (scales.map(|v| v & 63), mins.map(|v| v & 63));
        prop_assert_eq!(layout::unpack_scales(&layout::pack_scales(&scales, &mins)), (scales, mins));
    }
}

#[test]
fn a_nan_or_infinite_scale_passes_through() {
    for kind in BlockType::GGML.into_iter().filter(|kind| *kind != BlockType::Mxfp4) {
        let mut block = vec![0xFF; kind.block_bytes()];
        let at = match kind {
            BlockType::Q2K => 80,
            BlockType::Q3K => 108,
            BlockType::Q6K => 208,
            _ => 0,
        };
        for (scale, nan) in [(0x7E00_u16, true), (0x7C00, false)] {
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            if matches!(
                kind,
                BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q2K | BlockType::Q4K | BlockType::Q5K
            ) {
                block[at + 2..at + 4].fill(0);
            }
            let weights = dequantized(kind, &block);
            assert!(
                weights.iter().all(|w| if nan { w.is_nan() } else { w.is_infinite() }),
                "{kind}: {weights:?}"
            );
        }
    }
}

#[test]
fn a_weight_that_is_not_finite_is_named_by_its_place() {
    for kind in BlockType::QUANTIZED {
        for (position, value) in
            [(0, f32::NAN), (31, f32::INFINITY), (300, f32::NEG_INFINITY), (511, -f32::NAN)]
        {
            let mut weights = vec![0.5; 512];
            weights[position] = value;
            let error = quantized(kind, &weights).unwrap_err();
            assert!(
                matches!(error, QuantError::NotFinite { position: at, .. } if at == position),
                "{kind}: {error}"
            );
        }
    }
}

#[test]
fn a_scale_beyond_f16_is_refused() {
    for kind in BlockType::QUANTIZED {
        for value in [1e9_f32, 3e38, -3e38] {
            let mut weights = vec![0.5; 512];
            weights[300] = value;
            match quantized(kind, &weights) {
                Err(QuantError::TooLarge { position, value: found, .. }) => {
                    assert_eq!(
                        (position, found),
                        (300 / kind.block_weights() * kind.block_weights(), value.abs())
                    );
                }
                other => assert!(kind == BlockType::Mxfp4 && other.is_ok(), "{kind}: {other:?}"),
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for kind in BlockType::ALL {
        let (weights, bytes) = (kind.block_weights(), kind.block_bytes());
        let rows = [
            (weights, bytes - 1, false),
            (weights, bytes + 1, false),
            (weights, 2 * bytes, false),
            (2 * weights, bytes, false),
            (weights - 1, bytes, false),
            (weights + 1, bytes, false),
            (0, bytes, false),
            (0, 0, true),
            (2 * weights, 2 * bytes, true),
        ];
        for (weights, bytes, accepted) in rows {
            let mut floats = vec![0.5; weights];
            let mut blocks = vec![0; bytes];
            let row = format!("{kind}: {weights} weights, {bytes} bytes");
            let quantized = quantize_row(kind, &floats, &mut blocks);
            assert_eq!(quantized.is_ok(), accepted && kind.is_quantized_here(), "{row}: {quantized:?}");
            assert_eq!(dequantize_row(kind, &blocks, &mut floats).is_ok(), accepted, "{row}");
        }
        let (mut block, mut room) = (vec![0; bytes], vec![0; weights]);
        assert!(codes(kind, &block[1..], &mut room).is_err());
        assert!(codes(kind, &block, &mut room[1..]).is_err());
        assert!(sub_scales(kind, &block[1..], &mut BlockScales::default()).is_err());
        block.push(0);
        assert!(codes(kind, &block, &mut room).is_err());
        assert!(sub_scales(kind, &block, &mut BlockScales::default()).is_err());
    }
}

#[test]
fn names_ids_and_sizes() {
    let formats_of_gguf = [
        (BlockType::Q8_0, "q8_0", 8, 32, 34),
        (BlockType::Q4_0, "q4_0", 2, 32, 18),
        (BlockType::Q4_1, "q4_1", 3, 32, 20),
        (BlockType::Q5_0, "q5_0", 6, 32, 22),
        (BlockType::Q5_1, "q5_1", 7, 32, 24),
        (BlockType::Q2K, "q2_k", 10, 256, 84),
        (BlockType::Q3K, "q3_k", 11, 256, 110),
        (BlockType::Q4K, "q4_k", 12, 256, 144),
        (BlockType::Q5K, "q5_k", 13, 256, 176),
        (BlockType::Q6K, "q6_k", 14, 256, 210),
        (BlockType::Iq4Nl, "iq4_nl", 20, 32, 18),
        (BlockType::Iq4Xs, "iq4_xs", 23, 256, 136),
        (BlockType::Mxfp4, "mxfp4", 39, 32, 17),
    ];
    assert_eq!(formats_of_gguf.map(|row| row.0), BlockType::GGML);
    let others = [
        (BlockType::F8G32, "f8_g32", 32, 36),
        (BlockType::F8G128, "f8_g128", 128, 132),
        (BlockType::W4F16G32, "w4_f16_g32", 32, 19),
        (BlockType::W4F16G128, "w4_f16_g128", 128, 67),
        (BlockType::W4Bf16G32, "w4_bf16_g32", 32, 19),
        (BlockType::W4Bf16G128, "w4_bf16_g128", 128, 67),
    ];
    let rows = formats_of_gguf.map(|(kind, name, id, weights, bytes)| (kind, name, Some(id), weights, bytes));
    let others = others.map(|(kind, name, weights, bytes)| (kind, name, None, weights, bytes));
    let rows: Vec<_> = rows.into_iter().chain(others).collect();
    assert!(rows.iter().map(|row| row.0).eq(BlockType::ALL));
    for (kind, name, id, weights, bytes) in rows {
        assert_eq!((kind.name(), kind.ggml_id()), (name, id));
        assert_eq!((kind.block_weights(), kind.block_bytes()), (weights, bytes));
        assert_eq!(BlockType::from_name(&name.to_uppercase()), Some(kind));
        assert_eq!(id.and_then(BlockType::from_ggml_id), id.map(|_| kind));
        assert_eq!(kind.row_bytes(weights * 3), Some(bytes * 3));
        assert_eq!(kind.row_bytes(weights * 3 + 1), None);
    }
    assert_eq!(BlockType::from_name("iq3_s"), None);
    assert_eq!(BlockType::from_ggml_id(0), None);
    let most = usize::MAX / 32 * 32;
    assert_eq!(BlockType::Q8_0.row_bytes(most), None);
    assert_eq!(BlockType::Q4_0.row_bytes(most), (most / 32).checked_mul(18));
}

#[test]
fn formats_that_are_only_read_are_refused_by_the_quantizer_with_those_that_it_makes() {
    let (weights, mut counted) = ([0.5; 256], 0);
    for kind in BlockType::ALL.into_iter().filter(|kind| !kind.is_quantized_here()) {
        counted += 1;
        let error = quantized(kind, &weights).unwrap_err();
        assert_eq!(error, QuantError::ReadOnly { kind });
        let said = error.to_string();
        assert!(said.starts_with(kind.name()) && said.contains("q4_k, q5_k"), "{said}");
    }
    assert_eq!(counted, BlockType::ALL.len() - BlockType::QUANTIZED.len());
}
