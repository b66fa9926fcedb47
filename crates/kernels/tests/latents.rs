//! Tests what latent attention needs: attention over values that are the first elements of their keys, against an f64
//! reference over what is stored, and products of heads with matrices of their own, against the products of the same
//! rows one head at a time. The bits do not depend on chunks, neighbours or threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use half::{bf16, f16};
use headrace_kernels::attention::{KvShape, KvSlot, KvStore, KvType, KvValues, Sees, Span};
use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::{ComputeMode, HeadColumns, Isa, KernelError, Kernels, Queries, RopeTable, Write};
use headrace_kv_layout::BLOCK_TOKENS;
use headrace_quant::BlockType;

mod common;

use common::{isas, numbers};

const SCALE: f32 = 0.3;
const LAYER: usize = 1;

/// (query heads, elements of a key, elements of a value, length).
const SHAPES: [(usize, usize, usize, usize); 8] = [
    (16, 576, 512, 40),
    (5, 20, 13, 300),
    (3, 7, 7, 18),
    (100, 24, 16, 270),
    (1, 9, 1, 33),
    (2, 40, 33, 17),
    (128, 48, 32, 20),
    (4, 288, 270, 530),
];

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One sequence of random queries and keys.
struct Sequence {
    heads: usize,
    key: usize,
    value: usize,
    length: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,
}

impl Sequence {
    fn new((heads, key, value, length): (usize, usize, usize, usize), seed: u64) -> Sequence {
        let (queries, keys) = (numbers(seed, length * heads * key), numbers(seed + 1, length * key));
        Sequence { heads, key, value, length, queries, keys }
    }

    /// A key as it is stored.
    fn stored(&self, kv_type: KvType, row: usize) -> Vec<f64> {
        let key = &self.keys[row * self.key..(row + 1) * self.key];
        let bytes = |part: &[f32]| -> Vec<f64> {
            let most = part.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            part.iter()
                .map(|x| f64::from(most / 127.0) * f64::from((x * (127.0 / most)).round_ties_even()))
                .collect()
        };
        match kv_type {
            KvType::F32 => key.iter().map(|&x| f64::from(x)).collect(),
            KvType::F16 => key.iter().map(|&x| f64::from(f16::from_f32(x))).collect(),
            KvType::Bf16 => key.iter().map(|&x| f64::from(bf16::from_f32(x))).collect(),
            // The value and the other elements have a scale each.
            KvType::Q8 => [bytes(&key[..self.value]), bytes(&key[self.value..])].concat(),
        }
    }

    /// The expected output from position `from` on.
    fn reference(&self, kv_type: KvType, from: usize) -> Vec<f64> {
        let keys: Vec<Vec<f64>> = (0..self.length).map(|row| self.stored(kv_type, row)).collect();
        let mut out = Vec::new();
        for query in from * self.heads..self.length * self.heads {
            let q = &self.queries[query * self.key..(query + 1) * self.key];
            let seen = &keys[..=query / self.heads];
            let score = |key: &Vec<f64>| {
                key.iter().zip(q).map(|(k, &q)| k * f64::from(q)).sum::<f64>() * f64::from(SCALE)
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for element in 0..self.value {
                out.push(
                    weights.iter().zip(seen).map(|(weight, key)| weight * key[element]).sum::<f64>() / sum,
                );
            }
        }
        out
    }

    /// Stores and attends in chunks of `size`. All other blocks of the store are full of NaN.
    fn in_chunks(&self, kernels: &mut Kernels, kv_type: KvType, size: usize) -> Vec<f32> {
        let count = self.length.div_ceil(BLOCK_TOKENS);
        let shape =
            KvShape { layers: 2, kv_heads: 1, head_dim: self.key, values: KvValues::FirstOfKeys(self.value) };
        let mut store = KvStore::new(shape, kv_type, 2 * count).unwrap();
        let all: Vec<KvSlot> = (0..2 * count * BLOCK_TOKENS)
            .map(|i| KvSlot { block: (i / BLOCK_TOKENS) as u32, offset: i % BLOCK_TOKENS })
            .collect();
        let garbage = vec![f32::NAN; all.len() * self.key];
        kernels.store_kv(&mut store, LAYER, &garbage, 0, &all).unwrap();
        let blocks: Vec<u32> = (0..count as u32).rev().map(|block| 2 * block).collect();
        let (stride, width) = (self.heads * self.key, self.heads * self.value);
        let mut out = vec![0.0; self.length * width];
        for start in (0..self.length).step_by(size) {
            let rows = start..(start + size).min(self.length);
            let slot = |p: usize| KvSlot { block: blocks[p / BLOCK_TOKENS], offset: p % BLOCK_TOKENS };
            let slots: Vec<KvSlot> = rows.clone().map(slot).collect();
            let keys = &self.keys[rows.start * self.key..rows.end * self.key];
            kernels.store_kv(&mut store, LAYER, keys, 0, &slots).unwrap();
            let span = Span {
                query_row: 0,
                out_row: 0,
                count: rows.len(),
                start,
                blocks: &blocks,
                sees: Sees::Before,
            };
            let queries = Queries {
                rows: &self.queries[rows.start * stride..rows.end * stride],
                stride,
                heads: self.heads,
                scale: SCALE,
                cap: None,
                sinks: &[],
            };
            let out = &mut out[rows.start * width..rows.end * width];
            kernels.attention(&store, LAYER, queries, &[span], out).unwrap();
        }
        out
    }
}

#[test]
fn values_within_keys_agree_with_f64_and_do_not_depend_on_chunks_or_threads() {
    for isa in isas() {
        for shape in SHAPES {
            for kv_type in KvType::ALL {
                let what = format!("{shape:?}, {kv_type} on {isa}");
                let sequence = Sequence::new(shape, 3);
                let whole = sequence.in_chunks(&mut Kernels::new(isa, 2).unwrap(), kv_type, sequence.length);
                let from = sequence.length.saturating_sub(20);
                let want = sequence.reference(kv_type, from);
                let got = &whole[from * sequence.heads * sequence.value..];
                assert_eq!(got.len(), want.len());
                for (i, (&got, want)) in got.iter().zip(&want).enumerate() {
                    let allowed = 2e-5 * want.abs().max(1.0);
                    assert!((f64::from(got) - want).abs() < allowed, "{what}: {i} is {got}, expected {want}");
                }
                for (threads, size) in [(1, sequence.length), (3, 1), (2, 17), (1, 64)] {
                    // One token at a time takes long with the scalar kernels.
                    if size == 1 && isa == Isa::Scalar && sequence.length > 40 {
                        continue;
                    }
                    let cut = sequence.in_chunks(&mut Kernels::new(isa, threads).unwrap(), kv_type, size);
                    assert_eq!(bits(&cut), bits(&whole), "{what}: {threads} threads, chunks of {size}");
                }
            }
        }
    }
}

fn types() -> Vec<WeightType> {
    let blocks = BlockType::QUANTIZED.into_iter().map(WeightType::Block);
    [WeightType::F32, WeightType::F16, WeightType::Bf16].into_iter().chain(blocks).collect()
}

fn pack(kernels: &mut Kernels, weight_type: WeightType, n: usize, k: usize, seed: u64) -> Matrix {
    let values = numbers(seed, n * k);
    let bytes: Vec<u8> = match weight_type {
        WeightType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        WeightType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        WeightType::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        WeightType::Block(kind) => {
            let mut bytes = vec![0; kind.row_bytes(values.len()).unwrap()];
            headrace_quant::quantize_row(kind, &values, &mut bytes).unwrap();
            bytes
        }
    };
    Matrix::pack(kernels.pool(), &[Part { weight_type, rows: n, bytes: &bytes, bias: None }], k).unwrap()
}

#[test]
fn products_of_heads_have_the_bits_of_the_products_of_each_head() {
    for isa in isas() {
        for mode in ComputeMode::ALL {
            for weight_type in types() {
                let sizes: &[(usize, usize, usize, usize)] = match weight_type {
                    WeightType::Block(_) => &[(3, 1, 20, 256), (2, 15, 130, 512)],
                    _ => &[(1, 1, 1, 1), (3, 1, 40, 19), (4, 5, 17, 24), (2, 30, 150, 200)],
                };
                for &(heads, m, n, k) in sizes {
                    let mut kernels = Kernels::with_mode(isa, 2, mode).unwrap();
                    let matrices: Vec<Matrix> =
                        (0..heads).map(|head| pack(&mut kernels, weight_type, n, k, head as u64)).collect();
                    // Rows and heads have elements that take no part.
                    let (stride, step) = (heads * k + 3, n + 2);
                    let x = numbers(5, m * stride);
                    let mut out = vec![7.0; m * heads * step];
                    kernels.matmul_heads(&x, m, &matrices, &mut out).unwrap();
                    for (head, matrix) in matrices.iter().enumerate() {
                        let rows: Vec<f32> = x
                            .chunks_exact(stride)
                            .flat_map(|row| row[head * k..(head + 1) * k].to_vec())
                            .collect();
                        let mut want = vec![0.0; m * n];
                        kernels.matmul(&rows, m, matrix, &mut want, Write::Set).unwrap();
                        for (row, want) in want.chunks_exact(n).enumerate() {
                            let at = (row * heads + head) * step;
                            let what = format!("{weight_type:?} {mode} on {isa}: row {row}, head {head}");
                            assert_eq!(bits(&out[at..at + n]), bits(want), "{what}");
                            assert_eq!(out[at + n..at + step], [7.0; 2], "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rotation_turns_only_the_heads_that_are_named() {
    let mut kernels = Kernels::new(Isa::best(), 2).unwrap();
    let table = RopeTable { half: 2, cos: vec![1.0, 1.0, 0.6, 0.0], sin: vec![0.0, 0.0, 0.8, 1.0] };
    // Two rows of [1 | two heads of 5 | 1], at positions 1 and 0.
    let row: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let mut rows = [row.clone(), row.clone()].concat();
    let columns = HeadColumns { first: 1, heads: 2, head_dim: 5 };
    kernels.rotate_heads(&mut rows, 12, columns, &[1, 0], &table).unwrap();
    let turned = |a: f32, b: f32| (a * 0.6 - b * 0.8, b * 0.6 + a * 0.8);
    let ((a, b), (c, d)) = (turned(1.0, 3.0), turned(6.0, 8.0));
    assert_eq!(rows[..12], [0.0, a, -4.0, b, 2.0, 5.0, c, -9.0, d, 7.0, 10.0, 11.0]);
    assert_eq!(rows[12..], row);
    for (columns, positions) in [
        (HeadColumns { first: 3, ..columns }, &[1, 0][..]),
        (HeadColumns { head_dim: 3, ..columns }, &[1, 0]),
        (columns, &[2, 0]),
        (columns, &[1]),
    ] {
        let refused = kernels.rotate_heads(&mut rows, 12, columns, positions, &table);
        assert!(matches!(refused, Err(KernelError::Shape { .. })), "{columns:?} {positions:?}");
    }
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    let mut kernels = Kernels::new(Isa::best(), 2).unwrap();
    let matrices =
        [pack(&mut kernels, WeightType::F32, 3, 4, 1), pack(&mut kernels, WeightType::F32, 3, 4, 2)];
    let mut out = [0.0; 12];
    assert_eq!(kernels.matmul_heads(&[0.0; 16], 2, &matrices, &mut out), Ok(()));
    assert!(kernels.matmul_heads(&[0.0; 14], 2, &matrices, &mut out).is_err(), "too few inputs");
    assert!(kernels.matmul_heads(&[0.0; 17], 2, &matrices, &mut out).is_err(), "no whole rows");
    assert!(kernels.matmul_heads(&[0.0; 16], 2, &matrices, &mut out[..10]).is_err(), "too few outputs");
    let [one, _] = matrices;
    for other in [pack(&mut kernels, WeightType::F32, 4, 4, 3), pack(&mut kernels, WeightType::F16, 3, 4, 3)]
    {
        let both = [pack(&mut kernels, WeightType::F32, 3, 4, 1), other];
        assert!(kernels.matmul_heads(&[0.0; 16], 2, &both, &mut out).is_err(), "of another kind");
    }
    assert_eq!(kernels.matmul_heads(&[0.0; 8], 2, &[one], &mut out[..6]), Ok(()));
    assert_eq!(kernels.matmul_heads(&[], 0, &[], &mut []), Ok(()));
}
