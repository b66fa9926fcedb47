//! Compares with ggml: the bits of every dequantizer and of the simple quantizers, and the error of the searching
//! quantizers.
//! Must not know: how either is implemented. `tests/data/make.py` and `make_mxfp4.py` created the files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use headrace_quant::{BlockType, dequantize_row, mxfp4_blocks, quantize_row};

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    data(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn quantized(kind: BlockType, weights: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; kind.row_bytes(weights.len()).unwrap()];
    quantize_row(kind, weights, &mut blocks).unwrap();
    blocks
}

fn dequantized(kind: BlockType, blocks: &[u8]) -> Vec<f32> {
    let mut weights = vec![0.0; blocks.len() / kind.block_bytes() * kind.block_weights()];
    dequantize_row(kind, blocks, &mut weights).unwrap();
    weights
}

#[test]
fn every_format_dequantizes_to_the_bits_of_ggml() {
    for kind in BlockType::GGML {
        let expected = floats(&format!("{kind}.f32"));
        let found = dequantized(kind, &data(&format!("{kind}.blocks")));
        assert_eq!(found.len(), expected.len(), "{kind}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{kind} weight {i}: {found}, not {expected}");
        }
    }
}

#[test]
fn mxfp4_as_safetensors_store_it_dequantizes_to_the_bits_of_transformers() {
    let (codes, scales) = (data("mxfp4_stored.blocks"), data("mxfp4_stored.scales"));
    let blocks = mxfp4_blocks(&codes, &scales).unwrap();
    let found = dequantized(BlockType::Mxfp4, &blocks);
    let expected = floats("mxfp4_stored.f32");
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "weight {i}");
    }
}

#[test]
fn the_simple_formats_quantize_to_the_bits_of_ggml() {
    let weights = floats("weights.f32");
    let simple = [
        BlockType::Q8_0,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Mxfp4,
    ];
    for kind in simple {
        let expected = data(&format!("{kind}.quant"));
        let found = quantized(kind, &weights);
        assert_eq!(found.len(), expected.len(), "{kind}");
        let rows = found.chunks(kind.block_bytes()).zip(expected.chunks(kind.block_bytes()));
        for (i, (found, expected)) in rows.enumerate() {
            assert_eq!(found, expected, "{kind} block {i} of {:?}", &weights[32 * i..32 * i + 32]);
        }
    }
}

/// If a block's smallest weight is zero, the minimum takes the sign of the first zero, as in ggml's C source. ggml's
/// Python package differs here.
#[test]
fn the_minimum_keeps_the_sign_of_the_first_zero() {
    for (first, second, byte) in [(0.0_f32, -0.0, 0x00), (-0.0, 0.0, 0x80)] {
        let mut weights = [1.0; 32];
        (weights[3], weights[20]) = (first, second);
        for kind in [BlockType::Q4_1, BlockType::Q5_1] {
            assert_eq!(quantized(kind, &weights)[3], byte, "{kind} {first} {second}");
        }
    }
}

/// Returns bell-shaped weights with a heavy tail, from splitmix64 of the index, as in `make.py`.
fn made_weights(count: u64) -> Vec<f32> {
    let weight = |i: u64| {
        let mut z = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let total = (0..4).map(|part| (z >> (15 * part) & 0x7FFF) as i64).sum::<i64>() - 2 * 0x7FFF;
        let scale = if z >> 60 == 0 { 4 } else { 1 };
        (total * scale) as f32 / (1 << 20) as f32
    };
    (0..count).map(weight).collect()
}

/// Compares the root mean square error with that of ggml's own quantizers, which `rmse.tsv` holds.
#[test]
fn no_format_errs_two_percent_more_than_ggml() {
    let weights = made_weights(65_536);
    let table = String::from_utf8(data("rmse.tsv")).unwrap();
    assert_eq!(table.lines().count(), BlockType::QUANTIZED.len());
    for line in table.lines() {
        let (name, expected) = line.split_once('\t').unwrap();
        let (kind, expected) = (BlockType::from_name(name).unwrap(), expected.parse::<f64>().unwrap());
        let back = dequantized(kind, &quantized(kind, &weights));
        let squares = weights.iter().zip(&back).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
        let ratio = (squares.sum::<f64>() / weights.len() as f64).sqrt() / expected;
        println!("{name}: {ratio:.4} of ggml's error");
        let bound = match kind {
            BlockType::Q4K | BlockType::Q5K | BlockType::Q6K | BlockType::Iq4Nl => 0.9..1.005,
            _ => 0.999_999..1.000_001,
        };
        assert!(bound.contains(&ratio), "{name}: {ratio} of ggml's error");
    }
}
