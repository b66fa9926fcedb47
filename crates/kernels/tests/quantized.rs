//! Tests products with quantized and bf16 weights in both compute modes on every instruction set, against an f64
//! reference. Also tests that the bits are the same for any number of rows and threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::{ComputeMode, Isa, Kernels, Write};
use headrace_quant::BlockType;

mod common;

use common::{isas, numbers};

fn types() -> Vec<WeightType> {
    BlockType::ALL.into_iter().map(WeightType::Block).chain([WeightType::Bf16, WeightType::F16]).collect()
}

/// Returns `values` stored as `weight_type`.
fn store(weight_type: WeightType, values: &[f32]) -> Vec<u8> {
    match weight_type {
        WeightType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        WeightType::F16 => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
        WeightType::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        WeightType::Block(kind) if kind.is_quantized_here() => {
            let mut bytes = vec![0; kind.row_bytes(values.len()).unwrap()];
            headrace_quant::quantize_row(kind, values, &mut bytes).unwrap();
            bytes
        }
        WeightType::Block(kind) => {
            values.chunks(kind.block_weights()).flat_map(|values| block_of(kind, values)).collect()
        }
    }
}

/// Returns a block of a format that is only read: bytes from `values`, and scales that keep weights within −1..1.
fn block_of(kind: BlockType, values: &[f32]) -> Vec<u8> {
    let mut block: Vec<u8> =
        values.iter().cycle().map(|value| (value.to_bits() >> 8) as u8).take(kind.block_bytes()).collect();
    if matches!(kind, BlockType::F8G32 | BlockType::F8G128) {
        // Without one bit of the exponent, no code is NaN, and values are below two.
        block.iter_mut().for_each(|code| *code &= 0xBF);
        block[..4].copy_from_slice(&(0.25 + values[0].abs() / 4.0).to_le_bytes());
        return block;
    }
    if let Some(zero) = block.get_mut(2).filter(|_| kind.ggml_id().is_none()) {
        *zero &= 15;
        let scale = (0.5 + values[0].abs() / 2.0) / 16.0;
        let bits = match kind {
            BlockType::W4F16G32 | BlockType::W4F16G128 => half::f16::from_f32(scale).to_bits(),
            _ => half::bf16::from_f32(scale).to_bits(),
        };
        block[..2].copy_from_slice(&bits.to_le_bytes());
        return block;
    }
    let scales: &[(usize, f32)] = match kind {
        BlockType::Q2K => &[(80, 1.0 / 64.0), (82, 1.0 / 64.0)],
        BlockType::Q3K => &[(108, 1.0 / 128.0)],
        BlockType::Iq4Xs => &[(0, 1.0 / 4096.0)],
        other => panic!("{other} is made by the quantizer"),
    };
    for &(at, most) in scales {
        let scale = half::f16::from_f32(most * (0.5 + values[at].abs() / 2.0));
        block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
    block
}

/// Returns an activation row as mode `fast` rounds it, in f64: int8 with a scale per 32 for quantized weights, bf16
/// for bf16 weights. Before floats it is not rounded.
fn rounded(weight_type: WeightType, row: &[f32]) -> Vec<f64> {
    match weight_type {
        WeightType::Bf16 => row.iter().map(|&x| half::bf16::from_f32(x).to_f64()).collect(),
        WeightType::F32 | WeightType::F16 | WeightType::Block(BlockType::F8G32 | BlockType::F8G128) => {
            row.iter().map(|&x| f64::from(x)).collect()
        }
        WeightType::Block(_) => row
            .chunks(32)
            .flat_map(|group| {
                let greatest = group.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
                let (scale, inverse) = (greatest / 127.0, 127.0 / greatest);
                group.iter().map(move |&x| f64::from((x * inverse).round_ties_even()) * f64::from(scale))
            })
            .collect(),
    }
}

fn matrix(
    kernels: &mut Kernels,
    weight_type: WeightType,
    n: usize,
    k: usize,
    bias: Option<&[f32]>,
) -> (Matrix, Vec<f32>) {
    let bytes = store(weight_type, &numbers(7, n * k));
    let part = Part { weight_type, rows: n, bytes: &bytes, bias };
    (Matrix::pack(kernels.pool(), &[part], k).unwrap(), weight_type.widen(&bytes))
}

#[test]
fn products_agree_with_f64_in_both_modes() {
    for isa in isas() {
        for mode in ComputeMode::ALL {
            let mut kernels = Kernels::with_mode(isa, 2, mode).unwrap();
            for weight_type in types() {
                for (m, n, k) in [(1, 70, 256), (2, 16, 512), (5, 33, 768), (7, 65, 1280), (13, 100, 2304)] {
                    let bias = numbers(5, n);
                    let (matrix, weights) = matrix(&mut kernels, weight_type, n, k, Some(&bias));
                    let (x, before) = (numbers(3, m * k), numbers(9, m * n));
                    let mut out = before.clone();
                    kernels.matmul(&x, m, &matrix, &mut out, Write::Add).unwrap();
                    let mut set = vec![f32::NAN; m * n];
                    kernels.matmul(&x, m, &matrix, &mut set, Write::Set).unwrap();
                    for row in 0..m {
                        let x = &x[row * k..(row + 1) * k];
                        let seen = match mode {
                            ComputeMode::Exact => x.iter().map(|&x| f64::from(x)).collect(),
                            ComputeMode::Fast => rounded(weight_type, x),
                        };
                        for column in 0..n {
                            let weights = &weights[column * k..(column + 1) * k];
                            let sum: f64 = seen.iter().zip(weights).map(|(x, &w)| x * f64::from(w)).sum();
                            let want = sum + f64::from(bias[column]);
                            let tolerance = 2e-6 + 1e-7 * k as f64;
                            let at = row * n + column;
                            let what =
                                format!("{m}×{k}→{n} {} {mode} on {isa}, output {at}", weight_type.name());
                            assert!(
                                (f64::from(set[at]) - want).abs() < tolerance,
                                "{what}: {} for {want}",
                                set[at]
                            );
                            let want = want + f64::from(before[at]);
                            assert!(
                                (f64::from(out[at]) - want).abs() < tolerance,
                                "{what}: {} for {want}",
                                out[at]
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Blocks of 32 need not fill a span of 64, and rows need not fill a panel.
#[test]
fn inputs_of_any_number_of_blocks_and_rows_of_any_number_look_up_and_multiply() {
    for isa in isas() {
        for mode in ComputeMode::ALL {
            let mut kernels = Kernels::with_mode(isa, 1, mode).unwrap();
            for weight_type in types() {
                let block = if let WeightType::Block(kind) = weight_type { kind.block_weights() } else { 1 };
                for (n, k) in [(1, block), (17, 3 * block), (15, 5 * block), (20, 19 * block)] {
                    let (matrix, weights) = matrix(&mut kernels, weight_type, n, k, None);
                    for row in 0..n {
                        let mut looked_up = vec![0.0; k];
                        matrix.row(isa, row, &mut looked_up).unwrap();
                        assert_eq!(
                            looked_up,
                            weights[row * k..(row + 1) * k],
                            "{} on {isa}",
                            weight_type.name()
                        );
                    }
                    let x = numbers(1, 3 * k);
                    let mut out = vec![0.0; 3 * n];
                    kernels.matmul(&x, 3, &matrix, &mut out, Write::Set).unwrap();
                    for (at, &got) in out.iter().enumerate() {
                        let (row, column) = (at / n, at % n);
                        let seen = rounded(weight_type, &x[row * k..(row + 1) * k]);
                        let exact = x[row * k..(row + 1) * k].iter().map(|&x| f64::from(x));
                        let seen: Vec<f64> = if mode == ComputeMode::Fast { seen } else { exact.collect() };
                        let weights = &weights[column * k..(column + 1) * k];
                        let want: f64 = seen.iter().zip(weights).map(|(x, &w)| x * f64::from(w)).sum();
                        let what = format!("{n}×{k} {} {mode} on {isa}", weight_type.name());
                        assert!((f64::from(got) - want).abs() < 1e-4, "{what}: {got} for {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads() {
    const MOST: usize = 37;
    let (n, k) = (83, 1280);
    for isa in isas() {
        for mode in ComputeMode::ALL {
            for weight_type in types() {
                let x = numbers(11, MOST * k);
                let mut alone = vec![0.0; MOST * n];
                let mut one = Kernels::with_mode(isa, 1, mode).unwrap();
                let (weights, _) = matrix(&mut one, weight_type, n, k, None);
                for (x, out) in x.chunks(k).zip(alone.chunks_mut(n)) {
                    one.matmul(x, 1, &weights, out, Write::Set).unwrap();
                }
                for threads in [1, 2, 3] {
                    let mut kernels = Kernels::with_mode(isa, threads, mode).unwrap();
                    for m in (1..=13).chain([16, 24, 32, 33, MOST]) {
                        let mut out = vec![0.0; m * n];
                        kernels.matmul(&x[..m * k], m, &weights, &mut out, Write::Set).unwrap();
                        let same = out.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(
                            same,
                            "{m} rows of {} {mode} on {isa}, {threads} threads",
                            weight_type.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn activations_that_are_not_finite_poison_their_own_row_only() {
    let k = 256;
    for isa in isas() {
        for mode in ComputeMode::ALL {
            let mut kernels = Kernels::with_mode(isa, 2, mode).unwrap();
            for weight_type in types() {
                let (weights, _) = matrix(&mut kernels, weight_type, 40, k, None);
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = numbers(1, 3 * k);
                    x[k + 77] = bad;
                    let mut out = vec![0.0; 3 * 40];
                    kernels.matmul(&x, 3, &weights, &mut out, Write::Set).unwrap();
                    for (at, value) in out.iter().enumerate() {
                        let what = format!("{bad} before {} {mode} on {isa}", weight_type.name());
                        assert_eq!(value.is_finite(), at / 40 != 1, "{what}: output {at} is {value}");
                    }
                }
            }
        }
    }
}

#[test]
fn blocks_that_do_not_divide_a_row_are_refused() {
    let mut kernels = Kernels::new(Isa::Scalar, 1).unwrap();
    let part = Part { weight_type: WeightType::Block(BlockType::Q4K), rows: 1, bytes: &[0; 144], bias: None };
    let error = Matrix::pack(kernels.pool(), &[part], 128).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("q4_k"), "{error}");
}

/// A product with floats must not depend on how their smallest values are widened while denormals are flushed.
#[test]
fn every_8_bit_float_is_widened_to_its_value() {
    let codes: Vec<u8> = (0..=255_u8).filter(|code| code & 0x7F != 0x7F).chain([0, 0]).collect();
    for kind in [BlockType::F8G32, BlockType::F8G128] {
        let scale = 3.0_f32;
        let blocks = codes.chunks(kind.block_weights());
        let bytes: Vec<u8> = blocks.flat_map(|codes| [&scale.to_le_bytes()[..], codes].concat()).collect();
        for isa in isas() {
            let mut kernels = Kernels::with_mode(isa, 1, ComputeMode::Fast).unwrap();
            let part = Part { weight_type: WeightType::Block(kind), rows: 1, bytes: &bytes, bias: None };
            let matrix = Matrix::pack(kernels.pool(), &[part], 256).unwrap();
            // An input that is one picks a weight.
            for (at, &code) in codes.iter().enumerate() {
                let mut x = vec![0.0; 256];
                x[at] = 1.0;
                let mut out = [0.0];
                kernels.matmul(&x, 1, &matrix, &mut out, Write::Set).unwrap();
                let expected = headrace_quant::E4M3_VALUES[usize::from(code)] * scale;
                assert_eq!(out[0], expected, "{code:#x} of {kind} on {isa}");
            }
        }
    }
}
