//! Tests attention in every KV type and on every instruction set against an f64 reference over the stored values.
//! Also tests that the bits are the same for any chunking, batch, block order and number of threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use half::{bf16, f16};
use headrace_kernels::attention::{KvShape, KvSlot, KvStore, KvType, KvValues, Sees, Span};
use headrace_kernels::{Isa, KernelError, Kernels, Queries};
use headrace_kv_layout::{BLOCK_TOKENS, FREED};
use proptest::prelude::*;

mod common;

use common::isas;

const SCALE: f32 = 0.3;

fn kernels(isa: Isa, threads: usize) -> Kernels {
    Kernels::new(isa, threads).unwrap()
}

/// A random number generator with a seed (xorshift64).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    /// Returns a number in −1..1.
    fn number(&mut self) -> f32 {
        (self.next() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0
    }
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

/// Returns a vector after rounding to the type.
fn stored(kv_type: KvType, vector: &[f32]) -> Vec<f64> {
    let most = vector.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let widen = |&x: &f32| match kv_type {
        KvType::F32 => f64::from(x),
        KvType::F16 => f64::from(f16::from_f32(x)),
        KvType::Bf16 => f64::from(bf16::from_f32(x)),
        KvType::Q8 => f64::from(most / 127.0) * f64::from((x * (127.0 / most)).round_ties_even()),
    };
    vector.iter().map(widen).collect()
}

/// One sequence of random heads.
#[derive(Clone)]
struct Sequence {
    shape: KvShape,
    heads: usize,
    /// Rows of queries, keys and values.
    rows: Vec<f32>,
    length: usize,
}

impl Sequence {
    fn new(kv_heads: usize, head_dim: usize, group: usize, length: usize, seed: u64) -> Sequence {
        let shape = KvShape { layers: 2, kv_heads, head_dim, values: KvValues::Own };
        let heads = group * kv_heads;
        let mut random = Random::new(seed);
        let rows = (0..length * (heads + 2 * kv_heads) * head_dim).map(|_| random.number()).collect();
        Sequence { shape, heads, rows, length }
    }

    fn stride(&self) -> usize {
        (self.heads + 2 * self.shape.kv_heads) * self.shape.head_dim
    }

    fn width(&self) -> usize {
        self.heads * self.shape.head_dim
    }

    fn blocks(&self) -> usize {
        self.length.div_ceil(BLOCK_TOKENS)
    }

    /// Returns a head of a row. Query heads come first, then keys, then values.
    fn head(&self, row: usize, head: usize) -> &[f32] {
        let at = row * self.stride() + head * self.shape.head_dim;
        &self.rows[at..at + self.shape.head_dim]
    }

    /// Returns the expected output from position `from` on, in f64.
    fn reference(&self, kv_type: KvType, from: usize) -> Vec<f64> {
        self.reference_seeing(kv_type, from, Sees::Before)
    }

    fn reference_seeing(&self, kv_type: KvType, from: usize, sees: Sees) -> Vec<f64> {
        self.reference_with(kv_type, from, &Options { sees, cap: None, sinks: Vec::new() })
    }

    fn reference_with(&self, kv_type: KvType, from: usize, options: &Options) -> Vec<f64> {
        let Options { sees, cap, sinks } = options;
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        let mut out = vec![0.0; (self.length - from) * self.width()];
        for kv in 0..kv_heads {
            let all = |head: usize| -> Vec<Vec<f64>> {
                (0..self.length).map(|row| stored(kv_type, self.head(row, head))).collect()
            };
            let (keys, values) = (all(self.heads + kv), all(self.heads + kv_heads + kv));
            for query in from..self.length {
                for head in kv * self.heads / kv_heads..(kv + 1) * self.heads / kv_heads {
                    let q = self.head(query, head);
                    let score = |key: &Vec<f64>| -> f64 {
                        let score = key.iter().zip(q).map(|(&k, &q)| k * f64::from(q)).sum::<f64>()
                            * f64::from(SCALE);
                        cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                    };
                    let seen = match *sees {
                        Sees::Before => 0..query + 1,
                        Sees::Window(keys) => (query + 1).saturating_sub(keys)..query + 1,
                        Sees::All => 0..self.length,
                        Sees::Near(reach) => {
                            query.saturating_sub(reach)..(query + reach + 1).min(self.length)
                        }
                    };
                    let scores: Vec<f64> = keys[seen.clone()].iter().map(score).collect();
                    let most = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let sink = sinks.get(head).map_or(0.0, |&sink| (f64::from(sink) - most).exp());
                    let sum: f64 = weights.iter().sum::<f64>() + sink;
                    let at = ((query - from) * self.heads + head) * head_dim;
                    for (weight, value) in weights.iter().zip(&values[seen]) {
                        for (out, value) in out[at..at + head_dim].iter_mut().zip(value) {
                            *out += weight * value / sum;
                        }
                    }
                }
            }
        }
        out
    }
}

/// Options of attention.
struct Options {
    sees: Sees,
    cap: Option<f32>,
    sinks: Vec<f32>,
}

/// Several sequences in one store. All unused blocks are full of NaN.
struct Table {
    store: KvStore,
    blocks: Vec<Vec<u32>>,
}

const LAYER: usize = 1;

impl Table {
    fn new(kernels: &mut Kernels, kv_type: KvType, sequences: &[&Sequence], seed: u64) -> Table {
        let shape = sequences[0].shape;
        let count: usize = sequences.iter().map(|sequence| sequence.blocks()).sum::<usize>() + 1;
        let mut store = KvStore::new(shape, kv_type, count).unwrap();
        let all: Vec<KvSlot> = (0..count * BLOCK_TOKENS)
            .map(|i| KvSlot { block: (i / BLOCK_TOKENS) as u32, offset: i % BLOCK_TOKENS })
            .collect();
        let garbage = vec![f32::NAN; all.len() * 2 * shape.kv_heads * shape.head_dim];
        kernels.store_kv(&mut store, LAYER, &garbage, 0, &all).unwrap();
        let (mut ids, mut random) = ((0..count as u32).collect::<Vec<u32>>(), Random::new(seed));
        for i in (1..ids.len()).rev() {
            ids.swap(i, random.next() as usize % (i + 1));
        }
        let mut blocks = Vec::new();
        for sequence in sequences {
            blocks.push(ids.split_off(ids.len() - sequence.blocks()));
        }
        Table { store, blocks }
    }

    fn store(&mut self, kernels: &mut Kernels, at: usize, sequence: &Sequence, from: usize, to: usize) {
        let slot = |p: usize| KvSlot { block: self.blocks[at][p / BLOCK_TOKENS], offset: p % BLOCK_TOKENS };
        let slots: Vec<KvSlot> = (from..to).map(slot).collect();
        let rows = &sequence.rows[from * sequence.stride()..to * sequence.stride()];
        kernels.store_kv(&mut self.store, LAYER, rows, sequence.width(), &slots).unwrap();
    }

    /// Computes attention of `parts` (sequence, first position, last position + 1) in one call. The last part comes
    /// first in the matrices.
    fn attend(
        &self,
        kernels: &mut Kernels,
        sequences: &[&Sequence],
        parts: &[(usize, usize, usize)],
    ) -> Vec<Vec<f32>> {
        self.attend_seeing(kernels, sequences, parts, Sees::Before)
    }

    fn attend_seeing(
        &self,
        kernels: &mut Kernels,
        sequences: &[&Sequence],
        parts: &[(usize, usize, usize)],
        sees: Sees,
    ) -> Vec<Vec<f32>> {
        self.attend_with(kernels, sequences, parts, &Options { sees, cap: None, sinks: Vec::new() })
    }

    /// The block table of a sequence whose next query is at `from`, without the blocks before its window.
    fn after_window(&self, at: usize, from: usize, sees: Sees) -> Vec<u32> {
        let mut table = self.blocks[at].clone();
        if let Sees::Window(keys) = sees {
            table[..(from + 1).saturating_sub(keys) / BLOCK_TOKENS].fill(FREED);
        }
        table
    }

    fn attend_with(
        &self,
        kernels: &mut Kernels,
        sequences: &[&Sequence],
        parts: &[(usize, usize, usize)],
        options: &Options,
    ) -> Vec<Vec<f32>> {
        let Options { sees, cap, ref sinks } = *options;
        let (stride, width, heads) = (sequences[0].stride(), sequences[0].width(), sequences[0].heads);
        let (mut rows, mut spans) = (Vec::new(), Vec::new());
        let tables: Vec<Vec<u32>> =
            parts.iter().map(|&(at, from, _)| self.after_window(at, from, sees)).collect();
        for (&(at, from, to), blocks) in parts.iter().zip(&tables).rev() {
            let row = rows.len() / stride;
            rows.extend_from_slice(&sequences[at].rows[from * stride..to * stride]);
            spans.push(Span { query_row: row, out_row: row, count: to - from, start: from, blocks, sees });
        }
        let mut out = vec![0.0; rows.len() / stride * width];
        let queries = Queries { rows: &rows, stride, heads, scale: SCALE, cap, sinks };
        kernels.attention(&self.store, LAYER, queries, &spans, &mut out).unwrap();
        let piece = |span: &Span<'_>| out[span.out_row * width..(span.out_row + span.count) * width].to_vec();
        spans.iter().rev().map(piece).collect()
    }
}

/// Computes attention of every position of one sequence, stored and computed in chunks that end at `ends`.
fn in_chunks(kernels: &mut Kernels, kv_type: KvType, sequence: &Sequence, ends: &[usize]) -> Vec<f32> {
    let mut table = Table::new(kernels, kv_type, &[sequence], ends.len() as u64);
    let (mut out, mut start) = (Vec::new(), 0);
    for &end in ends {
        table.store(kernels, 0, sequence, start, end);
        out.extend(table.attend(kernels, &[sequence], &[(0, start, end)]).remove(0));
        start = end;
    }
    out
}

/// (key/value heads, elements of a head, query heads per key/value head, length).
const SHAPES: [(usize, usize, usize, usize); 18] = [
    (1, 16, 1, 1),
    (2, 16, 2, 33),
    (1, 20, 6, 40),
    (1, 7, 3, 18),
    (2, 64, 7, 15),
    (2, 64, 7, 16),
    (1, 64, 4, 17),
    (1, 80, 1, 255),
    (1, 80, 8, 256),
    (1, 96, 2, 257),
    (2, 128, 1, 241),
    (1, 128, 8, 272),
    (1, 64, 14, 300),
    (1, 64, 7, 530),
    (1, 48, 100, 20),
    (1, 300, 2, 40),
    (1, 257, 1, 20),
    (1, 16, 1, 1100),
];

#[test]
fn attention_agrees_with_f64_over_what_is_stored() {
    for isa in isas() {
        let mut kernels = kernels(isa, 2);
        for (kv_heads, head_dim, group, length) in SHAPES {
            for kv_type in KvType::ALL {
                let sequence = Sequence::new(kv_heads, head_dim, group, length, 3);
                let from = length.saturating_sub(40);
                let mut table = Table::new(&mut kernels, kv_type, &[&sequence], 5);
                table.store(&mut kernels, 0, &sequence, 0, length);
                let want = sequence.reference(kv_type, from);
                let what = format!("{group}·{kv_heads}×{head_dim}, {length}, {kv_type} on {isa}");
                let out = table.attend(&mut kernels, &[&sequence], &[(0, from, length)]).remove(0);
                close(&what, &out, &want, 1e-5);
                let last = table.attend(&mut kernels, &[&sequence], &[(0, length - 1, length)]).remove(0);
                assert_eq!(bits(&last), bits(&out[out.len() - sequence.width()..]), "{what}: decode");
            }
        }
    }
}

#[test]
fn windows_caps_and_sinks_agree_with_f64_and_do_not_depend_on_chunks() {
    for isa in isas() {
        let mut kernels = kernels(isa, 2);
        for (kv_heads, head_dim, group, length) in [(2, 16, 2, 33), (1, 80, 3, 290), (1, 64, 7, 530)] {
            for (case, window) in [1, 8, 20, 255, 256, 300].into_iter().enumerate() {
                let heads = kv_heads * group;
                let sinks = (0..heads).map(|head| head as f32 - 2.0).collect();
                let options = Options {
                    sees: if case == 5 { Sees::Before } else { Sees::Window(window) },
                    cap: (case % 2 == 1).then_some(1.5),
                    sinks: if case % 3 == 2 { sinks } else { Vec::new() },
                };
                let kv_type = KvType::ALL[case % KvType::ALL.len()];
                let sequence = Sequence::new(kv_heads, head_dim, group, length, 3);
                let what =
                    format!("{group}·{kv_heads}×{head_dim}, {length}, {kv_type}, case {case} on {isa}");
                let mut table = Table::new(&mut kernels, kv_type, &[&sequence], 5);
                table.store(&mut kernels, 0, &sequence, 0, length);
                let whole =
                    table.attend_with(&mut kernels, &[&sequence], &[(0, 0, length)], &options).remove(0);
                close(&what, &whole, &sequence.reference_with(kv_type, 0, &options), 2e-5);
                for size in [1, 17, 64] {
                    let mut table = Table::new(&mut kernels, kv_type, &[&sequence], 9);
                    let (mut out, mut start) = (Vec::new(), 0);
                    while start < length {
                        let end = (start + size).min(length);
                        table.store(&mut kernels, 0, &sequence, start, end);
                        let part = [(0, start, end)];
                        out.extend(table.attend_with(&mut kernels, &[&sequence], &part, &options).remove(0));
                        start = end;
                    }
                    assert_eq!(bits(&out), bits(&whole), "{what}: chunks of {size}");
                }
            }
        }
    }
}

/// The visibility modes of encoders.
const ATTENDED_RANGES: [Sees; 5] = [Sees::All, Sees::Near(0), Sees::Near(1), Sees::Near(64), Sees::Near(300)];

#[test]
fn encoders_attention_agrees_with_f64() {
    for isa in isas() {
        let mut kernels = kernels(isa, 2);
        for (kv_heads, head_dim, group, length) in SHAPES.into_iter().chain([(2, 16, 1, 700), (3, 32, 1, 64)])
        {
            let others = [KvType::Bf16, KvType::Q8].map(|kind| (kind, Sees::Near(64)));
            for (kv_type, sees) in ATTENDED_RANGES.map(|sees| (KvType::F32, sees)).into_iter().chain(others) {
                let sequence = Sequence::new(kv_heads, head_dim, group, length, 3);
                let mut table = Table::new(&mut kernels, kv_type, &[&sequence], 5);
                table.store(&mut kernels, 0, &sequence, 0, length);
                let want = sequence.reference_seeing(kv_type, 0, sees);
                let what = format!("{group}·{kv_heads}×{head_dim}, {length}, {kv_type} {sees:?} on {isa}");
                let out = table.attend_seeing(&mut kernels, &[&sequence], &[(0, 0, length)], sees).remove(0);
                close(&what, &out, &want, 1e-5);
            }
        }
    }
}

#[test]
fn encoders_attention_has_the_same_bits_alone_and_among_others() {
    for isa in isas() {
        for sees in ATTENDED_RANGES {
            let lengths = [530, 1, 33, 16, 257, 700];
            let all: Vec<Sequence> =
                lengths.iter().map(|&length| Sequence::new(2, 32, 1, length, length as u64)).collect();
            let all: Vec<&Sequence> = all.iter().collect();
            let alone = |sequence: &Sequence| {
                let mut kernels = kernels(isa, 1);
                let mut table = Table::new(&mut kernels, KvType::F32, &[sequence], 5);
                table.store(&mut kernels, 0, sequence, 0, sequence.length);
                let parts = [(0, 0, sequence.length)];
                bits(&table.attend_seeing(&mut kernels, &[sequence], &parts, sees).remove(0))
            };
            let want: Vec<Vec<u32>> = all.iter().map(|sequence| alone(sequence)).collect();
            for threads in [1, 2, 3] {
                let mut kernels = kernels(isa, threads);
                let mut table = Table::new(&mut kernels, KvType::F32, &all, 7);
                let parts: Vec<_> = (0..all.len()).map(|at| (at, 0, lengths[at])).collect();
                for (at, sequence) in all.iter().enumerate() {
                    table.store(&mut kernels, at, sequence, 0, sequence.length);
                }
                let got = table.attend_seeing(&mut kernels, &all, &parts, sees);
                let got: Vec<Vec<u32>> = got.iter().map(|out| bits(out)).collect();
                assert_eq!(got, want, "{sees:?} on {isa}, {threads} threads");
            }
        }
    }
}

#[test]
fn every_cut_gives_the_same_bits() {
    for isa in isas() {
        for kv_type in KvType::ALL {
            for (kv_heads, head_dim, group, length) in [(2, 64, 7, 530), (1, 80, 3, 290), (1, 16, 1, 1040)] {
                let sequence = Sequence::new(kv_heads, head_dim, group, length, 9);
                let whole = bits(&in_chunks(&mut kernels(isa, 1), kv_type, &sequence, &[length]));
                for threads in [1, 2, 3] {
                    for ends in
                        [&[length][..], &[1, 2, 17, 255, 256, 257, length], &[100, length - 1, length]]
                    {
                        let cut = in_chunks(&mut kernels(isa, threads), kv_type, &sequence, ends);
                        assert_eq!(whole, bits(&cut), "{kv_type} on {isa}, {threads} threads, {ends:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn neighbours_in_the_batch_change_nothing() {
    for isa in isas() {
        for kv_type in KvType::ALL {
            let lengths = [5000, 1, 300, 17, 256, 700];
            let sequences: Vec<Sequence> =
                lengths.iter().map(|&length| Sequence::new(2, 32, 4, length, length as u64)).collect();
            let all: Vec<&Sequence> = sequences.iter().collect();
            let mut alone = Vec::new();
            let mut one = kernels(isa, 1);
            let parts: Vec<(usize, usize, usize)> = [1, 1, 280, 3, 1, 40]
                .iter()
                .zip(lengths)
                .enumerate()
                .map(|(at, (&count, length))| (at, length - count, length))
                .collect();
            for &(at, from, to) in &parts {
                let mut table = Table::new(&mut one, kv_type, &all[at..=at], 1);
                table.store(&mut one, 0, all[at], 0, to);
                alone.push(bits(&table.attend(&mut one, &all[at..=at], &[(0, from, to)])[0]));
            }
            for threads in [1, 2, 5] {
                let mut many = kernels(isa, threads);
                let mut table = Table::new(&mut many, kv_type, &all, 2);
                for (at, sequence) in all.iter().enumerate() {
                    table.store(&mut many, at, sequence, 0, sequence.length);
                }
                let mut order = parts.clone();
                for turn in 0..3 {
                    order.rotate_left(turn);
                    let got = table.attend(&mut many, &all, &order);
                    for (&(at, ..), got) in order.iter().zip(&got) {
                        assert_eq!(alone[at], bits(got), "{kv_type} on {isa}, {threads} threads: {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn nan_stays_in_its_own_sequence_and_behind_its_position() {
    for isa in isas() {
        for kv_type in KvType::ALL {
            for poison in [f32::NAN, f32::INFINITY] {
                let clean = Sequence::new(1, 64, 4, 600, 1);
                let mut sick = Sequence::new(1, 64, 4, 600, 2);
                let healthy = sick.clone();
                // One element of a key and one of a value, at position 410.
                let at = 410 * sick.stride() + sick.width();
                (sick.rows[at], sick.rows[at + 64 + 3]) = (poison, poison);
                let mut kernels = kernels(isa, 2);
                let parts = [(0, 0, 600), (1, 0, 600)];
                let mut run = |sequences: &[&Sequence]| {
                    let mut table = Table::new(&mut kernels, kv_type, sequences, 4);
                    for (at, sequence) in sequences.iter().enumerate() {
                        table.store(&mut kernels, at, sequence, 0, 600);
                    }
                    table.attend(&mut kernels, sequences, &parts)
                };
                let (well, ill) = (run(&[&clean, &healthy]), run(&[&clean, &sick]));
                assert_eq!(bits(&well[0]), bits(&ill[0]), "{kv_type} on {isa}: the neighbour");
                let before = 410 * sick.width();
                assert_eq!(
                    bits(&well[1][..before]),
                    bits(&ill[1][..before]),
                    "{kv_type} on {isa}: before it"
                );
                let row = &ill[1][before..before + 64];
                assert!(row.iter().any(|x| !x.is_finite()), "{kv_type} on {isa}: at it");
            }
        }
    }
}

#[test]
fn narrow_types_err_within_their_step() {
    let sequence = Sequence::new(1, 64, 8, 700, 21);
    let exact = sequence.reference(KvType::F32, 600);
    // Relative to the root mean square of the output. Elements are uniform in −1..1, where f16 has an error of up to
    // 2⁻¹², bf16 of 2⁻⁹ and a byte of 2⁻⁸.
    let size = (exact.iter().map(|x| x * x).sum::<f64>() / exact.len() as f64).sqrt();
    for isa in isas() {
        let mut kernels = kernels(isa, 2);
        for (kv_type, bound) in
            [(KvType::F32, 2e-6), (KvType::F16, 5e-4), (KvType::Bf16, 4e-3), (KvType::Q8, 8e-3)]
        {
            let mut table = Table::new(&mut kernels, kv_type, &[&sequence], 5);
            table.store(&mut kernels, 0, &sequence, 0, 700);
            let out = table.attend(&mut kernels, &[&sequence], &[(0, 600, 700)]).remove(0);
            let squares = out.iter().zip(&exact).map(|(&got, want)| (f64::from(got) - want).powi(2));
            let error = (squares.sum::<f64>() / exact.len() as f64).sqrt() / size;
            assert!(error < bound, "{kv_type} on {isa}: relative error {error:.2e}");
            println!("{kv_type} on {isa}: relative error {error:.2e}");
        }
    }
}

#[test]
fn large_scores_keep_the_largest_keys_value() {
    // With scores in the thousands, every key but the largest has no weight, in whichever split it is.
    for isa in isas() {
        let mut kernels = kernels(isa, 2);
        for at in [0, 255, 256, 511, 599] {
            let mut sequence = Sequence::new(1, 16, 1, 600, 6);
            let stride = sequence.stride();
            sequence.rows[at * stride + 16..at * stride + 32].fill(40_000.0);
            sequence.rows[599 * stride..599 * stride + 16].fill(1.0);
            for kv_type in [KvType::F32, KvType::F16] {
                let mut table = Table::new(&mut kernels, kv_type, &[&sequence], 5);
                table.store(&mut kernels, 0, &sequence, 0, 600);
                let out = table.attend(&mut kernels, &[&sequence], &[(0, 599, 600)]).remove(0);
                close("largest", &out, &stored(kv_type, sequence.head(at, 2)), 1e-6);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut kernels = kernels(Isa::best(), 2);
    let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 4, values: KvValues::Own };
    for kv_type in KvType::ALL {
        let mut store = KvStore::new(shape, kv_type, 2).unwrap();
        let slot = KvSlot { block: 1, offset: 15 };
        let mut put = |layer, offset, slot| kernels.store_kv(&mut store, layer, &[0.0; 12], offset, &[slot]);
        assert_eq!(put(0, 4, slot), Ok(()));
        for (layer, offset, slot) in [
            (1, 4, slot),
            (0, 5, slot),
            (0, 4, KvSlot { block: 2, ..slot }),
            (0, 4, KvSlot { offset: 16, ..slot }),
        ] {
            assert!(matches!(put(layer, offset, slot), Err(KernelError::Shape { .. })));
        }
        let queries = Queries { rows: &[0.0; 12], stride: 12, heads: 1, scale: 1.0, cap: None, sinks: &[] };
        let mut out = [0.0; 4];
        for (blocks, start) in [(&[2_u32][..], 0), (&[0], 16), (&[0], usize::MAX)] {
            let span = Span { query_row: 0, out_row: 0, count: 1, start, blocks, sees: Sees::Before };
            assert!(kernels.attention(&store, 0, queries, &[span], &mut out).is_err());
        }
        assert_eq!(kernels.attention(&store, 0, queries, &[], &mut out), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn bits_do_not_depend_on_chunks_or_threads(
        length in 1..600_usize, group in 1..9_usize, kv_heads in 1..3_usize, chunk in 1..80_usize,
        which in 0..KvType::ALL.len(),
    ) {
        let (kv_type, sequence) = (KvType::ALL[which], Sequence::new(kv_heads, 16, group, length, chunk as u64));
        let ends: Vec<usize> = (1..=length.div_ceil(chunk)).map(|i| (i * chunk).min(length)).collect();
        for isa in isas() {
            let whole = in_chunks(&mut kernels(isa, 1), kv_type, &sequence, &[length]);
            for threads in [1, 2, 3] {
                let cut = in_chunks(&mut kernels(isa, threads), kv_type, &sequence, &ends);
                prop_assert_eq!(bits(&whole), bits(&cut));
            }
        }
    }
}
