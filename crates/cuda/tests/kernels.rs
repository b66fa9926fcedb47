//! Tests each kernel against a plain reference in f64, on odd sizes. Also compares the ways of computing a product bit
//! by bit, and checks that unsupported shapes are refused by name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use headrace_cuda::attention::{self, Entries, HeadWeights, Heads, Pages, RotaryTables, SeenKeys};
use headrace_cuda::device::{Buffer, Device, DeviceError};
use headrace_cuda::kernels::{WGMMA_ARCHITECTURE, names, sources};
use headrace_cuda::ops::{self, Finish, GateActivation, Matrix, NormWeights, Workspace, padded};

struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Random floats that bf16 represents exactly.
    fn rounded(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| half::bf16::from_f32(self.next()).to_f32()).collect()
    }
}

/// NaN fills memory before a test, so that a read of unwritten memory is noticed.
const POISON: f32 = f32::NAN;

fn floats(device: &mut dyn Device, values: &[f32]) -> Buffer {
    bring(device, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn ints(device: &mut dyn Device, values: &[i32]) -> Buffer {
    bring(device, values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn bf16s(device: &mut dyn Device, values: &[f32]) -> Buffer {
    bring(device, values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect())
}

fn bring(device: &mut dyn Device, bytes: Vec<u8>) -> Buffer {
    let buffer = device.allocate(bytes.len()).unwrap();
    device.upload(buffer, &bytes).unwrap();
    buffer
}

fn poisoned(device: &mut dyn Device, floats: usize) -> Buffer {
    self::floats(device, &vec![POISON; floats])
}

fn read(device: &mut dyn Device, buffer: Buffer) -> Vec<f32> {
    let mut values = vec![0.0; buffer.bytes / 4];
    device.download(buffer, &mut values).unwrap();
    values
}

fn read_bf16(device: &mut dyn Device, buffer: Buffer) -> Vec<f32> {
    let words = read(device, buffer);
    let halves = words.iter().flat_map(|word| [word.to_bits() << 16, word.to_bits() & 0xffff_0000]);
    halves.map(f32::from_bits).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let far = (f64::from(got) - want).abs();
        assert!(far <= tolerance * (1.0 + want.abs()), "{what}, element {at}: {got}, expected {want}");
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// The device with and without `wgmma`. A real device is what it is.
fn devices() -> impl Iterator<Item = Box<dyn Device>> {
    let without = || -> Box<dyn Device> {
        let mut device = common::Emulated::new();
        device.has_wgmma = false;
        Box::new(device)
    };
    std::iter::once(common::device()).chain((!common::is_real()).then(without))
}

/// A product and its operands.
struct Dense {
    weights: Vec<f32>,
    rows: Vec<f32>,
    bias: Vec<f32>,
    features: usize,
    inputs: usize,
}

impl Dense {
    fn new(random: &mut Random, count: usize, features: usize, inputs: usize) -> Dense {
        let (weights, rows) = (random.rounded(features * inputs), random.rounded(count * inputs));
        Dense { weights, rows, bias: random.floats(features), features, inputs }
    }

    fn value(&self, row: usize, feature: usize) -> f64 {
        let of = |values: &'_ [f32], at: usize| values[at * self.inputs..(at + 1) * self.inputs].to_vec();
        dot(&of(&self.weights, feature), &of(&self.rows, row)) + f64::from(self.bias[feature])
    }

    /// Computes the products of the first `count` rows. `before` is the output's previous content.
    fn run(&self, device: &mut dyn Device, count: usize, finish: Finish, before: &[f32]) -> Vec<f32> {
        let workspace = Workspace::new(device).unwrap();
        let bias = Some(floats(device, &self.bias));
        let weights = bf16s(device, &self.weights);
        let matrix = Matrix { weights, bias, features: self.features, inputs: self.inputs };
        let rows = bf16s(device, &self.rows[..count * self.inputs]);
        let stride = if finish.is_gate() { self.features / 2 } else { self.features };
        let out = match finish {
            Finish::Gate(_) => bf16s(device, &vec![POISON; count * stride]),
            _ => floats(device, before),
        };
        ops::product(device, &workspace, &matrix, (rows, count), (out, stride), finish).unwrap();
        match finish {
            Finish::Gate(_) => read_bf16(device, out),
            _ => read(device, out),
        }
    }
}

#[test]
fn every_kernel_is_known_to_the_emulation() {
    let sources: String = sources(WGMMA_ARCHITECTURE).map(|(_, text)| text).collect();
    let all: Vec<&str> = names(WGMMA_ARCHITECTURE).collect();
    for name in &all {
        let base = name.trim_end_matches(char::is_numeric).trim_end_matches('_');
        let is_defined = [format!("{name}("), format!("{base}_##DIMS("), format!("{base}_##TILE_ROWS(")]
            .iter()
            .any(|text| sources.contains(text));
        assert!(is_defined, "{name}");
    }
    let mut unique = all.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), all.len());
}

/// Row counts around every border of the kernels. Features and inputs do not fill a tile or a stage, and the quarters
/// have different lengths.
#[test]
fn products_are_right_and_have_the_same_bits_in_every_way() {
    let mut random = Random(1);
    for (features, inputs) in [(1, 32), (40, 96), (130, 320), (200, 576), (660, 160)] {
        let most = if inputs == 320 || inputs == 160 { 390 } else { 150 };
        let dense = Dense::new(&mut random, most, features, inputs);
        let mut first: Option<Vec<f32>> = None;
        let counts = [most, 257, 129, 128, 65, 64, 33, 32, 17, 16, 9, 8, 3, 1];
        let counts = counts.into_iter().filter(|&count| count <= most);
        for (count, device) in counts.flat_map(|count| devices().map(move |device| (count, device))) {
            let mut device = device;
            let device = &mut *device;
            let got = dense.run(device, count, Finish::Store, &vec![POISON; count * features]);
            let Some(whole) = &first else {
                let want: Vec<f64> =
                    (0..count * features).map(|at| dense.value(at / features, at % features)).collect();
                close(&format!("{features} × {inputs}"), &got, &want, 2e-5);
                first = Some(got);
                continue;
            };
            let same = bits(&got) == bits(&whole[..count * features]);
            assert!(same, "{count} rows of {features} × {inputs} differ from {most}");
        }
    }
}

#[test]
fn a_product_is_added_or_gated() {
    let mut random = Random(2);
    let cases = [(3, 48, 64), (12, 96, 160), (30, 144, 96), (50, 560, 96), (70, 544, 64), (300, 288, 64)];
    for ((count, features, inputs), device) in
        cases.iter().flat_map(|case| devices().map(move |device| (*case, device)))
    {
        let mut device = device;
        let device = &mut *device;
        let dense = Dense::new(&mut random, count, features, inputs);
        let before = random.floats(count * features);
        let got = dense.run(device, count, Finish::Add(0.75), &before);
        let want: Vec<f64> = before
            .iter()
            .enumerate()
            .map(|(at, &before)| f64::from(before) + 0.75 * dense.value(at / features, at % features))
            .collect();
        close(&format!("{count} added"), &got, &want, 2e-5);
        let half = features / 2;
        for activation in [GateActivation::Silu, GateActivation::GeluTanh] {
            let got = dense.run(device, count, Finish::Gate(activation), &[]);
            let activated = |gate: f64| match activation {
                GateActivation::Silu => gate / (1.0 + (-gate).exp()),
                GateActivation::GeluTanh => {
                    let slope = std::f64::consts::FRAC_2_PI.sqrt();
                    0.5 * gate * (1.0 + (slope * (gate + 0.044715 * gate.powi(3))).tanh())
                }
            };
            let want: Vec<f64> = (0..count * half)
                .map(|at| {
                    let (row, feature) = (at / half, at % half / 8 * 16 + at % 8);
                    activated(dense.value(row, feature)) * dense.value(row, feature + 8)
                })
                .collect();
            close(&format!("{count} gated by {activation:?}"), &got, &want, 5e-3);
        }
    }
}

#[test]
fn embeddings_and_norms() {
    let mut device = common::device();
    let device = &mut *device;
    let mut random = Random(3);
    for hidden in [1, 31, 64, 300, 1031] {
        let (vocab, stride, count) = (7, padded(hidden), 4);
        let table = random.rounded(vocab * stride);
        let tokens = [3, 0, 6, 3];
        let stream = poisoned(device, count * hidden);
        let (on_device, ids) = (bf16s(device, &table), ints(device, &tokens));
        ops::embed(device, (on_device, stride), ids, (stream, count), (hidden, 0.5)).unwrap();
        let rows = tokens.iter().flat_map(|&token| &table[token as usize * stride..][..hidden]);
        let want: Vec<f32> = rows.map(|value| value * 0.5).collect();
        assert_eq!(bits(&read(device, stream)), bits(&want), "{hidden}");
        let weight = random.floats(hidden);
        let norm = NormWeights { weight: floats(device, &weight), eps: 1e-5 };
        for rows in [None, Some([2, 1])] {
            let chosen = rows.map(|rows| ints(device, &rows));
            let rows = rows.map_or(vec![0, 1, 2, 3], |rows| rows.map(|row| row as usize).to_vec());
            let out = device.allocate(rows.len() * stride * 2).unwrap();
            device.clear(out).unwrap();
            ops::rms_norm(device, (stream, chosen), norm, (out, rows.len()), hidden).unwrap();
            let mut expected = Vec::new();
            for &row in &rows {
                let x = &want[row * hidden..(row + 1) * hidden];
                let scale = 1.0 / (dot(x, x) / hidden as f64 + 1e-5).sqrt();
                expected.extend((0..hidden).map(|i| f64::from(x[i]) * scale * f64::from(weight[i])));
                expected.extend(std::iter::repeat_n(0.0, stride - hidden));
            }
            close(&format!("norm of {hidden}"), &read_bf16(device, out), &expected, 5e-3);
        }
        let out = device.allocate(count * stride * 2).unwrap();
        device.clear(out).unwrap();
        ops::round_rows(device, stream, (out, count), hidden).unwrap();
        let rounded = |value: f32| half::bf16::from_f32(value).to_f32();
        let padding = vec![0.0; stride - hidden];
        let expected: Vec<f32> = want
            .chunks(hidden)
            .flat_map(|row| {
                row.iter().map(|&value| rounded(value)).chain(padding.clone()).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(bits(&read_bf16(device, out)), bits(&expected), "rows of {hidden} rounded");
    }
}

/// A row over its root mean square, in f64, times the weight.
fn normed(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + 1e-5).sqrt();
    x.iter().zip(weight).map(|(&x, &weight)| f64::from(x) * scale * f64::from(weight)).collect()
}

#[test]
fn norms_are_added_to_the_stream_or_replace_columns() {
    let mut device = common::device();
    let device = &mut *device;
    let mut random = Random(6);
    for hidden in [1, 31, 64, 300, 1031] {
        let (count, before) = (3, 7);
        let weight = random.floats(hidden);
        let norm = NormWeights { weight: floats(device, &weight), eps: 1e-5 };
        let (x, stream) = (random.floats(count * hidden), random.floats(count * hidden));
        let (input, sums) = (floats(device, &x), floats(device, &stream));
        ops::rms_norm_add(device, input, norm, (sums, count), hidden, 0.25).unwrap();
        let added = x.chunks(hidden).flat_map(|row| normed(row, &weight));
        let want: Vec<f64> =
            stream.iter().zip(added).map(|(&stream, added)| f64::from(stream) + 0.25 * added).collect();
        close(&format!("norm of {hidden} added"), &read(device, sums), &want, 1e-5);
        // Columns in the middle of wider rows.
        let stride = before + hidden + 5;
        let wide = random.floats(count * stride);
        let rows = floats(device, &wide);
        ops::rms_norm_columns(device, (rows, count), stride, (before, hidden), norm).unwrap();
        let mut want: Vec<f64> = wide.iter().map(|&value| f64::from(value)).collect();
        for (row, from) in want.chunks_mut(stride).zip(wide.chunks(stride)) {
            row[before..before + hidden].copy_from_slice(&normed(&from[before..before + hidden], &weight));
        }
        close(&format!("columns of {hidden}"), &read(device, rows), &want, 1e-5);
    }
}

#[test]
fn logits_are_scaled_and_capped() {
    let mut device = common::device();
    let device = &mut *device;
    let mut random = Random(7);
    for width in [1, 255, 4096, 4100, 9000] {
        for (scale, cap) in [(0.25, None), (3.0, Some(2.0)), (1.0, Some(30.0))] {
            let values: Vec<f32> = random.floats(2 * width).iter().map(|value| value * 5.0).collect();
            let rows = floats(device, &values);
            ops::scale_and_cap(device, (rows, 2), width, scale, cap).unwrap();
            let expected = |&value: &f32| {
                let scaled = f64::from(value) * f64::from(scale);
                cap.map_or(scaled, |cap| f64::from(cap) * (scaled / f64::from(cap)).tanh())
            };
            let want: Vec<f64> = values.iter().map(expected).collect();
            close(&format!("{width} by {scale}, {cap:?}"), &read(device, rows), &want, 1e-6);
        }
    }
}

/// Keys and values of one sequence, as a plain list and in scattered blocks on the device.
struct Cache {
    heads: Heads,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    table: Vec<i32>,
    pages: Pages,
    window: Option<usize>,
    cap: Option<f32>,
}

impl Cache {
    /// Creates the keys and values of `positions` positions. Memory of no position holds NaN.
    fn new(
        device: &mut dyn Device,
        random: &mut Random,
        heads: Heads,
        positions: usize,
        (window, cap): (Option<usize>, Option<f32>),
    ) -> Cache {
        let Heads { kv_heads, head_dim, width, .. } = heads;
        let blocks = positions.div_ceil(16);
        let pool = blocks + 3; // three blocks are unused
        let table: Vec<i32> = (0..blocks).map(|block| (pool - 1 - (block ^ 1)) as i32).collect();
        let row = |random: &mut Random| random.rounded(kv_heads * head_dim);
        let keys: Vec<Vec<f32>> = (0..positions).map(|_| row(random)).collect();
        let values: Vec<Vec<f32>> = (0..positions).map(|_| row(random)).collect();
        let size = pool * kv_heads * 16 * width;
        let (mut key_pages, mut value_pages) = (vec![POISON; size], vec![POISON; size]);
        for position in 0..positions {
            for head in 0..kv_heads {
                let block = table[position / 16] as usize * kv_heads + head;
                for d in 0..width {
                    let (key, value) = match d < head_dim {
                        true => (keys[position][head * head_dim + d], values[position][head * head_dim + d]),
                        false => (0.0, 0.0),
                    };
                    key_pages[(block * 16 + position % 16) * width + d] = key;
                    value_pages[(block * width + d) * 16 + position % 16] = value;
                }
            }
        }
        let pages = Pages { keys: bf16s(device, &key_pages), values: bf16s(device, &value_pages) };
        Cache { heads, keys, values, table, pages, window, cap }
    }

    /// The first position that a query at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The reference attention of a query over all positions that it sees, up to `position`.
    fn attended(&self, query: &[f32], head: usize, position: usize) -> Vec<f64> {
        let Heads { head_dim, .. } = self.heads;
        let kv = head / self.heads.group() * head_dim;
        let first = self.first_seen(position);
        let scores: Vec<f64> = (first..=position)
            .map(|at| dot(query, &self.keys[at][kv..kv + head_dim]) / (head_dim as f64).sqrt())
            .map(|score| self.cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()))
            .collect();
        let most = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (0..head_dim)
            .map(|d| {
                let weighed =
                    weights.iter().zip(&self.values[first..]).map(|(w, v)| w * f64::from(v[kv + d]));
                weighed.sum::<f64>() / sum
            })
            .collect()
    }

    /// Computes attention of the last `count` positions, in entries of either kind, with room for the partial results
    /// of `partial_entries` entries at a time. Blocks before the window have no id, as if they were released.
    fn run(
        &self,
        device: &mut dyn Device,
        queries: &[f32],
        count: usize,
        few: bool,
        partial_entries: usize,
    ) -> Vec<f32> {
        let (heads, start) = (&self.heads, self.keys.len() - count);
        let Heads { head_dim, width, .. } = *heads;
        let mut wide = vec![0.0; count * heads.heads * width];
        for (to, from) in wide.chunks_mut(width).zip(queries.chunks(head_dim)) {
            to[..head_dim].copy_from_slice(from);
        }
        let all = count * heads.group();
        let each = if few { 16 } else { 64 };
        let words: Vec<i32> = (0..all)
            .step_by(each)
            .flat_map(|from| [0, from as i32, all as i32, start as i32, 0, 0, 0, 0])
            .collect();
        let list = ints(device, &words);
        let empty = list.part(0, 0).unwrap();
        let entries = words.len() / 8;
        let entries = Entries {
            few: if few { list } else { empty },
            few_count: if few { entries } else { 0 },
            splits: self.keys.len().div_ceil(256),
            many: if few { empty } else { list },
            many_count: if few { 0 } else { entries },
        };
        let mut table = self.table.clone();
        table[..self.first_seen(start) / 16].fill(i32::MAX);
        let partial = poisoned(device, partial_entries * entries.splits * heads.partial_bytes() / 4);
        let stride = padded(heads.heads * head_dim);
        let out = device.allocate(count * stride * 2).unwrap();
        device.clear(out).unwrap();
        let queries = bf16s(device, &wide);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let tables = ints(device, &table);
        let seen = SeenKeys { pages: &self.pages, tables, scale, cap: self.cap, window: self.window };
        attention::attend(device, heads, &entries, (queries, &seen), partial, out).unwrap();
        let got = read_bf16(device, out);
        got.chunks(stride).flat_map(|row| row[..heads.heads * head_dim].to_vec()).collect()
    }
}

#[test]
fn attention_is_right_and_has_the_same_bits_in_entries_of_any_kind() {
    let mut device = common::device();
    let device = &mut *device;
    let mut random = Random(4);
    let cases = [
        ((1, 1, 6), 1, 1, (None, None)),
        ((4, 2, 32), 17, 17, (None, None)),
        ((8, 2, 64), 65, 3, (None, None)),
        ((3, 3, 80), 256, 40, (None, None)),
        ((8, 1, 128), 257, 30, (None, None)),
        ((36, 2, 64), 700, 5, (None, None)),
        ((2, 1, 96), 1030, 70, (None, None)),
        // Windows of one position, less than a block, between blocks, and more than a split.
        ((2, 1, 32), 20, 20, (Some(1), None)),
        ((4, 4, 32), 90, 70, (Some(7), None)),
        ((4, 2, 64), 330, 80, (Some(20), None)),
        ((3, 1, 32), 529, 40, (Some(256), None)),
        ((2, 2, 32), 1030, 300, (Some(300), None)),
        // Wide heads in two parts, and scores with a cap.
        ((4, 2, 256), 70, 20, (None, None)),
        ((2, 1, 200), 300, 5, (Some(50), Some(1.5))),
        ((3, 1, 64), 80, 40, (None, Some(0.7))),
    ];
    for ((query_heads, kv_heads, head_dim), positions, count, options) in cases {
        let heads = Heads::new(query_heads, kv_heads, head_dim).unwrap();
        let cache = Cache::new(device, &mut random, heads, positions, options);
        let queries = random.rounded(count * query_heads * head_dim);
        let what = format!("{heads:?}, the last {count} of {positions}, window and cap {options:?}");
        let got = cache.run(device, &queries, count, false, 1);
        let want: Vec<f64> = (0..count * query_heads)
            .flat_map(|at| {
                let query = &queries[at * head_dim..(at + 1) * head_dim];
                cache.attended(query, at % query_heads, positions - count + at / query_heads)
            })
            .collect();
        close(&what, &got, &want, 6e-3);
        let few = cache.run(device, &queries, count, true, 64);
        assert_eq!(bits(&few), bits(&got), "{what}: splits side by side");
        // The last token alone, with partial results for one entry at a time.
        let last = (count - 1) * query_heads * head_dim;
        for (few, partial) in [(true, 1), (false, 1)] {
            let alone = cache.run(device, &queries[last..], 1, few, partial);
            assert_eq!(bits(&alone), bits(&got[last..]), "{what}: the last alone, few: {few}");
        }
    }
}

#[test]
fn heads_are_normalized_rotated_and_written_to_their_pages() {
    let mut device = common::device();
    let device = &mut *device;
    let mut random = Random(5);
    // Heads that are rotated whole, in part, and not at all.
    for ((query_heads, kv_heads, head_dim), normed, rotated) in
        [((3, 1, 6), false, 6), ((4, 2, 64), true, 64), ((5, 5, 80), true, 24), ((2, 1, 32), true, 0)]
    {
        let heads = Heads::new(query_heads, kv_heads, head_dim).unwrap();
        let (width, half, all, count) = (heads.width, rotated / 2, query_heads + 2 * kv_heads, 3);
        let qkv = random.floats(count * all * head_dim);
        let (positions, slots) = ([5, 0, 9], [2 * 16 + 7, -1, 16]);
        let (cos, sin) = (random.floats(10 * half), random.floats(10 * half));
        let norms = [random.floats(head_dim), random.floats(head_dim)];
        let on_device = |device: &mut dyn Device, values: &[f32]| normed.then(|| floats(device, values));
        let growth = random.floats(10);
        let rotary = (rotated > 0).then(|| RotaryTables {
            cos: floats(device, &cos),
            sin: floats(device, &sin),
            rotated,
            growth: normed.then(|| floats(device, &growth)),
        });
        let weights = HeadWeights {
            query_norm: on_device(device, &norms[0]),
            key_norm: on_device(device, &norms[1]),
            eps: 1e-5,
            rotary,
        };
        let page = 3 * heads.block_bytes() / 2;
        let pages = Pages { keys: bf16s(device, &vec![7.0; page]), values: bf16s(device, &vec![7.0; page]) };
        let queries = bf16s(device, &vec![POISON; count * query_heads * width]);
        let heads_in = floats(device, &qkv);
        let places = (ints(device, &positions), ints(device, &slots));
        attention::write_heads(device, &heads, &weights, (heads_in, count), places, queries, &pages).unwrap();
        let turned = |row: usize, head: usize| -> Vec<f64> {
            let x = &qkv[(row * all + head) * head_dim..][..head_dim];
            let scale = 1.0 / (dot(x, x) / head_dim as f64 + 1e-5).sqrt();
            let weight = &norms[usize::from(head >= query_heads)];
            let x: Vec<f64> = (0..head_dim)
                .map(|d| f64::from(x[d]) * if normed { scale * f64::from(weight[d]) } else { 1.0 })
                .collect();
            let position = positions[row] as usize;
            let angle = |table: &[f32], i: usize| f64::from(table[position * half + i % half]);
            let has_growth = head < query_heads && normed && rotated > 0;
            let grown = if has_growth { f64::from(growth[position]) } else { 1.0 };
            let mut out: Vec<f64> = (0..head_dim)
                .map(|d| {
                    let turned = match d {
                        _ if d >= rotated => x[d],
                        _ if d < half => x[d] * angle(&cos, d) - x[d + half] * angle(&sin, d),
                        _ => x[d] * angle(&cos, d) + x[d - half] * angle(&sin, d),
                    };
                    turned * grown
                })
                .collect();
            out.resize(width, 0.0);
            out
        };
        let want: Vec<f64> =
            (0..count * query_heads).flat_map(|at| turned(at / query_heads, at % query_heads)).collect();
        close("queries", &read_bf16(device, queries), &want, 5e-3);
        let (mut keys, mut values) = (vec![7.0; page], vec![7.0; page]);
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
            let (block, offset) = (*slot as usize / 16, *slot as usize % 16);
            for head in 0..kv_heads {
                let at = block * kv_heads + head;
                let key = turned(row, query_heads + head);
                for d in 0..width {
                    keys[(at * 16 + offset) * width + d] = key[d];
                    let value = &qkv[(row * all + query_heads + kv_heads + head) * head_dim..];
                    values[(at * width + d) * 16 + offset] =
                        if d < head_dim { f64::from(value[d]) } else { 0.0 };
                }
            }
        }
        close("keys", &read_bf16(device, pages.keys), &keys, 5e-3);
        close("values", &read_bf16(device, pages.values), &values, 5e-3);
    }
}

#[test]
fn shapes_that_no_kernel_can_work_with_are_refused_by_name() {
    let mut device = common::device();
    let device = &mut *device;
    let refused = |result: Result<(), DeviceError>, named: &str| match result {
        Err(DeviceError::Shape { what, problem }) => assert!(what.contains(named), "{what}: {problem}"),
        other => panic!("{named}: {other:?}"),
    };
    for (heads, kv_heads, head_dim, named) in [
        (4, 3, 64, "num_key_value_heads"),
        (0, 0, 64, "num_key_value_heads"),
        (4, 4, 258, "head_dim"),
        (4, 4, 7, "head_dim"),
    ] {
        refused(Heads::new(heads, kv_heads, head_dim).map(|_| ()), named);
    }
    let workspace = Workspace::new(device).unwrap();
    let buffer = device.allocate(64 * 64 * 4).unwrap();
    let matrix = Matrix { weights: buffer, bias: None, features: 64, inputs: 64 };
    let mut run = |matrix: Matrix, count: usize, stride: usize, finish: Finish| {
        ops::product(device, &workspace, &matrix, (buffer, count), (buffer, stride), finish)
    };
    refused(run(Matrix { inputs: 48, ..matrix }, 1, 64, Finish::Store), "inputs");
    refused(run(Matrix { inputs: 0, ..matrix }, 1, 64, Finish::Store), "inputs");
    refused(run(Matrix { features: 0, ..matrix }, 1, 64, Finish::Store), "features");
    refused(run(Matrix { features: 56, ..matrix }, 1, 64, Finish::Gate(GateActivation::Silu)), "features");
    refused(run(matrix, 1, 63, Finish::Store), "stride");
    refused(run(Matrix { features: 200, ..matrix }, 1, 200, Finish::Store), "weights");
    refused(run(matrix, 129, 64, Finish::Gate(GateActivation::Silu)), "rows");
    refused(run(matrix, 100, 64, Finish::Store), "output");
    refused(run(Matrix { bias: Some(buffer.part(0, 4).unwrap()), ..matrix }, 1, 64, Finish::Store), "biases");
    run(matrix, 0, 64, Finish::Store).unwrap();
    assert!(buffer.part(1, buffer.bytes).is_err() && buffer.part(usize::MAX, 1).is_err());
}

/// More floats than the device's page-locked memory holds, and a last piece that is not full.
#[test]
fn downloads_of_many_floats_are_whole() {
    let mut device = common::device();
    let count = 17_000_003;
    let expected: Vec<f32> = (0..count).map(|at| at as f32 * 0.5).collect();
    let buffer = floats(&mut *device, &expected);
    for part in [count, 600_001, 1] {
        let mut got = vec![f32::NAN; part];
        device.download(buffer.part(0, part * 4).unwrap(), &mut got).unwrap();
        assert!(got == expected[..part], "{part} floats");
    }
}
