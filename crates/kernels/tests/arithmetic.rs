//! Tests every operation on every instruction set against an f64 reference, and that the bits are the same for any
//! number of rows and threads. Attention is tested in `attention.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::{
    Activation, HeadColumns, HeadRows, Isa, KernelError, Kernels, RopeTable, RowNorm, Write,
};
use proptest::prelude::*;

mod common;

use common::{isas, numbers};

const TYPES: [WeightType; 3] = [WeightType::F32, WeightType::F16, WeightType::Bf16];

/// Returns the bytes of `values` stored as `weight_type`, and the values as rounded by that type.
fn store(weight_type: WeightType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let bytes: Vec<u8> = match weight_type {
        WeightType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        WeightType::F16 => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
        WeightType::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        WeightType::Block(kind) => panic!("{} is tested in quantized.rs", kind.name()),
    };
    let stored = weight_type.widen(&bytes);
    (bytes, stored)
}

fn pack(
    kernels: &mut Kernels,
    weight_type: WeightType,
    n: usize,
    k: usize,
    bias: Option<&[f32]>,
) -> (Matrix, Vec<f32>) {
    let (bytes, stored) = store(weight_type, &numbers(7, n * k));
    let part = Part { weight_type, rows: n, bytes: &bytes, bias };
    (Matrix::pack(kernels.pool(), &[part], k).unwrap(), stored)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let allowed = tolerance * want.abs().max(1.0);
        assert!((f64::from(got) - want).abs() <= allowed, "{what}: element {i} is {got}, expected {want}");
    }
}

#[test]
fn widening_is_exact_for_every_16_bit_pattern() {
    for pattern in 0..=u16::MAX {
        let bytes = pattern.to_le_bytes();
        let same = |got: f32, want: f32| got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(
            same(WeightType::F16.widen(&bytes)[0], half::f16::from_bits(pattern).to_f32()),
            "f16 {pattern:#x}"
        );
        assert!(
            same(WeightType::Bf16.widen(&bytes)[0], half::bf16::from_bits(pattern).to_f32()),
            "bf16 {pattern:#x}"
        );
    }
}

#[test]
fn products_agree_with_f64() {
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        for weight_type in TYPES {
            for (m, n, k) in
                [(1, 1, 1), (1, 70, 112), (3, 16, 513), (7, 33, 64), (13, 100, 1100), (40, 17, 30)]
            {
                let bias = numbers(5, n);
                let (matrix, weights) = pack(&mut kernels, weight_type, n, k, Some(&bias));
                let (x, before) = (numbers(3, m * k), numbers(9, m * n));
                let mut out = before.clone();
                kernels.matmul(&x, m, &matrix, &mut out, Write::Add).unwrap();
                let (mut want, mut without) = (Vec::new(), Vec::new());
                for i in 0..m * n {
                    let (row, column) = (i / n, i % n);
                    let products =
                        (0..k).map(|j| f64::from(x[row * k + j]) * f64::from(weights[column * k + j]));
                    without.push(f64::from(bias[column]) + products.sum::<f64>());
                    want.push(f64::from(before[i]) + without[i]);
                }
                // The magnitudes of the terms add up to about k/4, and each rounding error is at most 2⁻²⁴ of that.
                let tolerance = 1e-6 + 1e-7 * k as f64;
                close(&format!("{m}×{k}→{n} {weight_type:?} on {isa}"), &out, &want, tolerance);
                kernels.matmul(&x, m, &matrix, &mut out, Write::Set).unwrap();
                close("set", &out, &without, tolerance);
                let mut row = vec![0.0; k];
                matrix.row(isa, n - 1, &mut row).unwrap();
                assert_eq!(row, weights[(n - 1) * k..]);
            }
        }
    }
}

#[test]
fn parts_stand_below_each_other_in_whatever_type() {
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        let k = 37;
        let (a_bytes, a) = store(WeightType::Bf16, &numbers(1, 5 * k));
        let (b_bytes, b) = store(WeightType::F16, &numbers(2, 30 * k));
        let bias = numbers(3, 30);
        let parts = [
            Part { weight_type: WeightType::Bf16, rows: 5, bytes: &a_bytes, bias: None },
            Part { weight_type: WeightType::F16, rows: 30, bytes: &b_bytes, bias: Some(&bias) },
        ];
        let matrix = Matrix::pack(kernels.pool(), &parts, k).unwrap();
        assert_eq!(matrix.n(), 35);
        assert!(matrix.weight_types().eq([(WeightType::Bf16, 5), (WeightType::F16, 30)]));
        let (x, mut out) = (numbers(4, k), vec![0.0; 35]);
        kernels.matmul(&x, 1, &matrix, &mut out, Write::Set).unwrap();
        let rows = a.chunks(k).chain(b.chunks(k));
        let dots =
            rows.map(|row| row.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>());
        let want: Vec<f64> =
            dots.enumerate().map(|(i, dot)| dot + if i < 5 { 0.0 } else { f64::from(bias[i - 5]) }).collect();
        close("parts", &out, &want, 1e-5);
    }
}

#[test]
fn row_operations_agree_with_f64() {
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        for (rows, width) in [(1, 1), (2, 16), (3, 112), (70, 300)] {
            let (x, weight) = (numbers(1, rows * width), numbers(2, width));
            let mut out = vec![0.0; rows * width];
            kernels.rms_norm(&x, &weight, 1e-6, &mut out).unwrap();
            let mut want = Vec::new();
            for row in x.chunks(width) {
                let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / width as f64;
                want.extend(
                    row.iter()
                        .zip(&weight)
                        .map(|(&v, &w)| f64::from(v) / (mean + 1e-6).sqrt() * f64::from(w)),
                );
            }
            close("rms_norm", &out, &want, 1e-5);

            let gate_up: Vec<f32> = numbers(3, 2 * rows * width).iter().map(|v| v * 20.0).collect();
            kernels.silu_mul(&gate_up, width, &mut out).unwrap();
            let mut want = Vec::new();
            for row in gate_up.chunks(2 * width) {
                let (gate, up) = row.split_at(width);
                want.extend(
                    gate.iter()
                        .zip(up)
                        .map(|(&g, &u)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u)),
                );
            }
            close("silu_mul", &out, &want, 1e-5);
        }
        let mut saturated = [0.0; 2];
        kernels.silu_mul(&[-200.0, 200.0, 1.0, 1.0], 2, &mut saturated).unwrap();
        assert_eq!(saturated, [-0.0, 200.0]);
    }
}

#[test]
fn heads_are_normalized_and_rotated_by_their_position() {
    let (heads, kv_heads, head_dim, stride) = (3, 1, 10, 50);
    let half = head_dim / 2;
    let angles: Vec<f64> =
        (0..20 * half).map(|i| (i / half) as f64 * 0.3_f64.powi((i % half) as i32)).collect();
    let table = RopeTable {
        half,
        cos: angles.iter().map(|a| a.cos() as f32).collect(),
        sin: angles.iter().map(|a| a.sin() as f32).collect(),
    };
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        for norm in [None, Some(numbers(8, head_dim))] {
            let (before, positions) = (numbers(6, 2 * stride), [4, 17]);
            let mut rows = before.clone();
            let (query_norm, key_norm) = (norm.as_deref(), norm.as_deref());
            let shape = HeadRows { heads, kv_heads, head_dim, stride, query_norm, key_norm, eps: 1e-6 };
            kernels.rope(&mut rows, shape, &positions, &table).unwrap();
            let mut want: Vec<f64> = before.iter().map(|&v| f64::from(v)).collect();
            for (row, &position) in want.chunks_mut(stride).zip(&positions) {
                for head in row[..(heads + kv_heads) * head_dim].chunks_mut(head_dim) {
                    if let Some(norm) = &norm {
                        let mean = head.iter().map(|v| v * v).sum::<f64>() / head_dim as f64;
                        head.iter_mut()
                            .zip(norm)
                            .for_each(|(v, &w)| *v *= f64::from(w) / (mean + 1e-6).sqrt());
                    }
                    for i in 0..half {
                        let (sin, cos) = angles[position * half + i].sin_cos();
                        let (a, b) = (head[i], head[i + half]);
                        (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
                    }
                }
            }
            close("rope", &rows, &want, 1e-5);
            let error = kernels.rope(&mut rows, shape, &[4, 20], &table).unwrap_err();
            assert!(matches!(error, KernelError::Shape { .. }));
        }
    }
}

#[test]
fn nan_in_one_row_stays_in_that_row() {
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        let (matrix, _) = pack(&mut kernels, WeightType::Bf16, 40, 64, None);
        let mut x = numbers(1, 9 * 64);
        let mut clean = vec![0.0; 9 * 40];
        kernels.matmul(&x, 9, &matrix, &mut clean, Write::Set).unwrap();
        x[4 * 64 + 3] = f32::NAN;
        let mut out = vec![0.0; 9 * 40];
        kernels.matmul(&x, 9, &matrix, &mut out, Write::Set).unwrap();
        for row in 0..9 {
            let range = row * 40..(row + 1) * 40;
            match row {
                4 => assert!(out[range].iter().all(|value| value.is_nan())),
                _ => assert_eq!(bits(&out[range.clone()]), bits(&clean[range])),
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let mut kernels = Kernels::new(Isa::best(), 2).unwrap();
    let (matrix, _) = pack(&mut kernels, WeightType::F32, 4, 8, None);
    let mut out = vec![0.0; 8];
    assert!(kernels.matmul(&[0.0; 15], 2, &matrix, &mut out, Write::Set).is_err());
    assert!(kernels.matmul(&[0.0; 16], 2, &matrix, &mut out[..7], Write::Set).is_err());
    assert!(kernels.rms_norm(&[0.0; 7], &[1.0; 4], 1e-6, &mut out[..7]).is_err());
    assert!(kernels.silu_mul(&[0.0; 8], 3, &mut out[..4]).is_err());
    assert!(kernels.rows(&matrix, &[4], &mut out).is_err());
    assert!(matrix.row(Isa::Scalar, 4, &mut out).is_err());
    let short = Part { weight_type: WeightType::F32, rows: 2, bytes: &[0; 12], bias: None };
    assert!(Matrix::pack(kernels.pool(), &[short], 2).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_products_bits_do_not_depend_on_rows_or_threads(
        m in 1..40_usize, n in 1..150_usize, k in 1..1300_usize, which in 0..3_usize,
    ) {
        for isa in isas() {
            let x = numbers(3, m * k);
            let mut expected: Option<Vec<u32>> = None;
            for threads in [1, 2, 3] {
                let mut kernels = Kernels::new(isa, threads).unwrap();
                let (matrix, _) = pack(&mut kernels, TYPES[which], n, k, None);
                let mut together = vec![0.0; m * n];
                kernels.matmul(&x, m, &matrix, &mut together, Write::Set).unwrap();
                let mut alone = vec![0.0; m * n];
                for (row, out) in x.chunks(k).zip(alone.chunks_mut(n)) {
                    kernels.matmul(row, 1, &matrix, out, Write::Set).unwrap();
                }
                prop_assert_eq!(bits(&together), bits(&alone));
                let got = bits(&together);
                prop_assert_eq!(expected.get_or_insert_with(|| got.clone()), &got);
            }
        }
    }
}

#[test]
fn layer_norms_agree_with_f64() {
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        for (rows, width) in [(1, 1), (3, 7), (5, 16), (40, 384), (2, 1029)] {
            let x: Vec<f32> = numbers(3, rows * width).iter().map(|x| 3.0 + 2.0 * x).collect();
            let (weight, bias, eps) = (numbers(5, width), numbers(7, width), 1e-5_f32);
            for bias in [&bias[..], &[]] {
                let mut out = vec![f32::NAN; x.len()];
                kernels.layer_norm(&x, &weight, bias, eps, &mut out).unwrap();
                let weight = &weight;
                let want: Vec<f64> = x
                    .chunks(width)
                    .flat_map(|row| {
                        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                        let apart = |x: f32| (f64::from(x) - mean).powi(2);
                        let variance = row.iter().map(|&x| apart(x)).sum::<f64>() / width as f64;
                        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
                        let value = move |i: usize, x: f32| {
                            let bias = bias.get(i).map_or(0.0, |&b| f64::from(b));
                            (f64::from(x) - mean) * scale * f64::from(weight[i]) + bias
                        };
                        row.iter().enumerate().map(move |(i, &x)| value(i, x)).collect::<Vec<f64>>()
                    })
                    .collect();
                close(&format!("layer norm {rows}×{width} on {isa}"), &out, &want, 3e-6);
                let alone: Vec<f32> = x
                    .chunks(width)
                    .flat_map(|row| {
                        let mut out = vec![0.0; width];
                        Kernels::new(isa, 1).unwrap().layer_norm(row, weight, bias, eps, &mut out).unwrap();
                        out
                    })
                    .collect();
                assert_eq!(bits(&alone), bits(&out));
            }
        }
        assert!(kernels.layer_norm(&[0.0; 4], &[1.0; 3], &[], 1e-5, &mut [0.0; 4]).is_err());
        assert!(kernels.layer_norm(&[0.0; 4], &[1.0; 2], &[0.0], 1e-5, &mut [0.0; 4]).is_err());
    }
}

#[test]
fn operations_on_rows_of_heads_agree_with_f64() {
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        let (rows, stride) = (37, 100);
        let x = numbers(3, rows * stride);
        let weights = numbers(5, 48);
        for (kind, heads, own) in [
            (RowNorm::Rms, 3, false),
            (RowNorm::Layer, 3, false),
            (RowNorm::Layer, 3, true),
            (RowNorm::Rms, 1, true),
        ] {
            let head_dim = 48 / heads;
            let weight = if own { &weights[..] } else { &weights[..head_dim] };
            let columns = HeadColumns { first: 20, heads, head_dim };
            let mut out = x.clone();
            kernels.norm_heads(&mut out, stride, columns, (kind, weight, 1e-5)).unwrap();
            let mut want: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for row in want.chunks_mut(stride) {
                for (head, values) in row[20..68].chunks_mut(head_dim).enumerate() {
                    let n = head_dim as f64;
                    let mean = if kind == RowNorm::Layer { values.iter().sum::<f64>() / n } else { 0.0 };
                    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                    for (at, value) in values.iter_mut().enumerate() {
                        let weight = weight[if own { head * head_dim + at } else { at }];
                        *value = (*value - mean) / (variance + 1e-5).sqrt() * f64::from(weight);
                    }
                }
            }
            close(&format!("{kind:?} of {heads} heads on {isa}"), &out, &want, 1e-5);
        }
        let mut out = x.clone();
        kernels.scale_and_cap(&mut out, stride, 3.0, Some(2.0)).unwrap();
        let want: Vec<f64> = x.iter().map(|&x| 2.0 * (3.0 * f64::from(x) / 2.0).tanh()).collect();
        close(&format!("caps on {isa}"), &out, &want, 1e-6);
        let mut out = vec![0.0; rows * 50];
        kernels.clamped_gated(&x, 50, (0.5, 1.702), &mut out).unwrap();
        let want: Vec<f64> = x
            .chunks(stride)
            .flat_map(|row| {
                row[..50].iter().zip(&row[50..]).map(|(&gate, &up)| {
                    let gate = f64::from(gate).min(0.5);
                    (f64::from(up).clamp(-0.5, 0.5) + 1.0) * gate / (1.0 + (-1.702 * gate).exp())
                })
            })
            .collect();
        close(&format!("clamped gates on {isa}"), &out, &want, 1e-6);
        let mut out = x.clone();
        kernels.clamp(&mut out, stride, 60, 0.25).unwrap();
        kernels.scale_rows(&mut out, stride, 10, &[2.0; 37]).unwrap();
        for (row, clamped) in x.chunks(stride).zip(out.chunks(stride)) {
            assert!(clamped[..10].iter().zip(row).all(|(got, x)| *got == 2.0 * x.clamp(-0.25, 0.25)));
            assert!(clamped[60..] == row[60..]);
        }
        let short = HeadColumns { first: 60, heads: 3, head_dim: 16 };
        assert!(kernels.norm_heads(&mut out, stride, short, (RowNorm::Rms, &weights, 1e-5)).is_err());
    }
}

/// Computes erf by its series in f64. Accurate to 1e-14 for |x| ≤ 4.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn activations_agree_with_f64() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let of = |kind: Activation, x: f64| match kind {
        Activation::Gelu => x * 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Silu => x * sigmoid(x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Tanh => x.tanh(),
    };
    let kinds = [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::QuickGelu,
        Activation::Silu,
        Activation::Relu,
        Activation::ReluSquared,
        Activation::Tanh,
    ];
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        let x: Vec<f32> = (-5_000..5_001).map(|i| i as f32 * 0.001).collect();
        for kind in kinds {
            let want: Vec<f64> = x.iter().map(|&x| of(kind, f64::from(x))).collect();
            let mut out = x.clone();
            kernels.activate(kind, &mut out, x.len()).unwrap();
            close(&format!("{kind:?} on {isa}"), &out, &want, 3e-7);
            let squares = kind == Activation::ReluSquared;
            let mut extremes = [1e30, -1e30, f32::INFINITY, f32::NAN, 0.0];
            kernels.activate(kind, &mut extremes, 5).unwrap();
            let top = match kind {
                Activation::Tanh => 1.0,
                _ if squares => f32::INFINITY,
                _ => 1e30,
            };
            assert_eq!(extremes[0], top, "{kind:?}");
            let bottom = if kind == Activation::Tanh { -1.0 } else { 0.0 };
            assert_eq!(extremes[1], bottom, "{kind:?}");
            assert!(extremes[3].is_nan(), "{kind:?} on {isa} hides a NaN");
            assert_eq!(extremes[4], 0.0);
            let gates = numbers(11, x.len());
            let both: Vec<f32> = x.iter().chain(&gates).copied().collect();
            let mut gated = vec![0.0; x.len()];
            kernels.activate_gated(kind, &both, x.len(), &mut gated).unwrap();
            let product: Vec<f32> = out.iter().zip(&gates).map(|(x, gate)| x * gate).collect();
            assert_eq!(bits(&gated), bits(&product), "{kind:?} with gates on {isa}");
        }
        // Small negative values keep their digits, so this checks the relative error.
        let tail: Vec<f32> = (1..500).map(|i| i as f32 * -0.01).collect();
        let mut out = tail.clone();
        kernels.activate(Activation::Gelu, &mut out, tail.len()).unwrap();
        for (&x, &got) in tail.iter().zip(&out) {
            let want = of(Activation::Gelu, f64::from(x));
            let allowed = 4e-6 * want.abs() + 1e-13;
            assert!((f64::from(got) - want).abs() < allowed, "gelu({x}) = {got}, expected {want} on {isa}");
        }
    }
}
