//! Tests short convolutions and recurrences on every instruction set against f64 references that advance token by token.
//! Also tests that the bits are the same for any chunking, batch, slots and number of threads.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use headrace_kernels::states::{StatePlan, StateShape, StateSpan, StateStore};
use headrace_kernels::{
    HeadRecurrence, HeadSharing, Isa, KernelError, Kernels, ProjectedRows, RecurrenceRule, ShortConvolution,
};
use headrace_kv_layout::{BLOCK_TOKENS, StateCopy, StateSlots};
use proptest::prelude::*;

mod common;

use common::{isas, numbers};

const LANES: usize = 16;
const EPS: f32 = 1e-6;

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

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// One layer with random inputs: a convolution and a recurrence, which are tested side by side.
#[derive(Clone)]
struct Case {
    shape: StateShape,
    /// Number of heads that share a query and a key.
    sharing: usize,
    /// Whether these are not neighbours.
    is_strided: bool,
    is_delta: bool,
    length: usize,
    /// Rows of the convolution's inputs and of both its factors.
    inputs: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    /// Rows of queries, keys and values.
    mixed: Vec<f32>,
    /// Rows of gates, logits of β and step sizes.
    raw: Vec<f32>,
    step_bias: Vec<f32>,
    rates: Vec<f32>,
    skips: Vec<f32>,
    norm: Vec<f32>,
}

impl Case {
    fn new(shape: StateShape, sharing: usize, is_delta: bool, length: usize, seed: u64) -> Case {
        let (heads, values) = (shape.heads, shape.heads * shape.value_dim);
        let stride = shape.channels.next_multiple_of(LANES);
        let random = |part: u64, count: usize| numbers(seed * 100 + part, count);
        let padded = |part: u64, rows: usize| -> Vec<f32> {
            let all = random(part, rows * shape.channels);
            let rows = all.chunks_exact(shape.channels).map(|row| {
                let mut row = row.to_vec();
                row.resize(stride, 0.0);
                row
            });
            rows.collect::<Vec<_>>().concat()
        };
        let mixed = 2 * heads / sharing * shape.key_dim + values + 3;
        Case {
            shape,
            sharing,
            is_strided: false,
            is_delta,
            length,
            inputs: random(1, length * 3 * shape.channels),
            weight: padded(2, shape.taps),
            bias: padded(3, 1),
            mixed: random(4, length * mixed),
            raw: random(5, length * (values + 2 * heads + 1)).iter().map(|x| 3.0 * x).collect(),
            step_bias: random(6, heads),
            rates: random(7, heads).iter().map(|x| -0.6 + 0.5 * x).collect(),
            skips: random(8, heads),
            norm: random(9, shape.value_dim),
        }
    }

    fn values(&self) -> usize {
        self.shape.heads * self.shape.value_dim
    }

    fn keys(&self) -> usize {
        self.shape.heads / self.sharing * self.shape.key_dim
    }

    fn convolution(&self) -> ShortConvolution<'_> {
        ShortConvolution {
            input: 2 * self.shape.channels,
            input_factor: Some(0),
            weight: &self.weight,
            bias: &self.bias,
            silu: true,
            output_factor: Some(self.shape.channels),
        }
    }

    fn recurrence(&self) -> HeadRecurrence<'_> {
        let heads = self.shape.heads;
        let rule = match self.is_delta {
            true => RecurrenceRule::Delta { beta: self.values(), gate: 0, norm: &self.norm, eps: EPS },
            false => RecurrenceRule::Sum { skips: &self.skips, steps: (0.01, 2.5) },
        };
        HeadRecurrence {
            rule,
            query: 0,
            key: self.keys(),
            value: 2 * self.keys(),
            sharing: match self.is_strided {
                true => HeadSharing::Strided(heads / self.sharing),
                false => HeadSharing::Runs(self.sharing),
            },
            step: self.values() + heads,
            step_bias: &self.step_bias,
            rates: &self.rates,
        }
    }

    /// Some rows of a matrix of `length` rows.
    fn rows<'a>(&self, all: &'a [f32], from: usize, count: usize) -> &'a [f32] {
        let stride = all.len() / self.length;
        &all[from * stride..(from + count) * stride]
    }

    /// The convolution in f64.
    fn convolved(&self) -> Vec<f64> {
        let StateShape { channels, taps, .. } = self.shape;
        let stride = channels.next_multiple_of(LANES);
        let at = |row: usize, part: usize, channel: usize| {
            f64::from(self.inputs[row * 3 * channels + part * channels + channel])
        };
        let mut out = Vec::new();
        for row in 0..self.length {
            for channel in 0..channels {
                let mut sum = f64::from(self.bias[channel]);
                for tap in 0..taps {
                    let Some(from) = (row + tap + 1).checked_sub(taps) else { continue };
                    let input = at(from, 0, channel) * at(from, 2, channel);
                    sum += f64::from(self.weight[tap * stride + channel]) * input;
                }
                out.push(sum * sigmoid(sum) * at(row, 1, channel));
            }
        }
        out
    }

    /// The recurrence in f64, token by token.
    fn recurred(&self) -> Vec<f64> {
        let StateShape { heads, key_dim, value_dim, .. } = self.shape;
        let wide = |row: &[f32], from: usize, count: usize| -> Vec<f64> {
            row[from..from + count].iter().map(|&x| f64::from(x)).collect()
        };
        let unit = |x: Vec<f64>| -> Vec<f64> {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.into_iter().map(|x| x / length).collect()
        };
        let mut states = vec![vec![vec![0.0; value_dim]; key_dim]; heads];
        let mut out = Vec::new();
        for row in 0..self.length {
            let (mixed, raw) = (self.rows(&self.mixed, row, 1), self.rows(&self.raw, row, 1));
            for (head, state) in states.iter_mut().enumerate() {
                let keys = heads / self.sharing;
                let shared = if self.is_strided { head % keys } else { head / self.sharing } * key_dim;
                let (mut q, mut k) =
                    (wide(mixed, shared, key_dim), wide(mixed, self.keys() + shared, key_dim));
                let v = wide(mixed, 2 * self.keys() + head * value_dim, value_dim);
                let step = f64::from(raw[self.values() + heads + head] + self.step_bias[head]);
                let mut step = step.exp().ln_1p();
                if self.is_delta {
                    q = unit(q).into_iter().map(|q| q / (key_dim as f64).sqrt()).collect();
                    k = unit(k);
                } else {
                    step = step.clamp(f64::from(0.01_f32), 2.5);
                }
                let decay = (f64::from(self.rates[head]) * step).exp();
                state.iter_mut().flatten().for_each(|x| *x *= decay);
                let beta = sigmoid(f64::from(raw[self.values() + head]));
                let with = |state: &[Vec<f64>], x: &[f64], column: usize| -> f64 {
                    state.iter().zip(x).map(|(row, x)| row[column] * x).sum()
                };
                let added: Vec<f64> = (0..value_dim)
                    .map(|column| match self.is_delta {
                        true => beta * (v[column] - with(state, &k, column)),
                        false => step * v[column],
                    })
                    .collect();
                for (row, k) in state.iter_mut().zip(&k) {
                    row.iter_mut().zip(&added).for_each(|(x, added)| *x += k * added);
                }
                let mut o: Vec<f64> = (0..value_dim).map(|column| with(state, &q, column)).collect();
                if self.is_delta {
                    let mean = o.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
                    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
                    for (column, o) in o.iter_mut().enumerate() {
                        let z = f64::from(raw[head * value_dim + column]);
                        *o *= scale * f64::from(self.norm[column]) * z * sigmoid(z);
                    }
                } else {
                    let skip = f64::from(self.skips[head]);
                    o.iter_mut().zip(&v).for_each(|(o, v)| *o += skip * v);
                }
                out.extend(o);
            }
        }
        out
    }
}

/// Computes steps over a store. A step is a list of cases, each with its tokens and slots.
struct Machine {
    kernels: Kernels,
    store: StateStore,
    plan: StatePlan,
}

/// The outputs of the convolution and of the recurrence.
type Outputs = (Vec<f32>, Vec<f32>);

impl Machine {
    /// A machine whose slots hold NaN.
    fn new(isa: Isa, threads: usize, shape: StateShape, slots: usize) -> Machine {
        let other = StateShape { channels: 8, taps: 2, ..StateShape::default() };
        let store = StateStore::new(&[other, shape], slots).unwrap();
        let mut machine =
            Machine { kernels: Kernels::new(isa, threads).unwrap(), store, plan: StatePlan::default() };
        let mut bad = Case::new(shape, shape.heads.max(1), true, BLOCK_TOKENS + 1, 99);
        for rows in [&mut bad.inputs, &mut bad.mixed, &mut bad.raw] {
            rows.fill(f32::NAN);
        }
        for own in 0..slots as u32 {
            let slots = StateSlots { from: own, own, copy: None };
            machine.step(&[(&bad, StateSpan { count: bad.length, start: 0, slots })]);
        }
        machine
    }

    /// Computes a step of several cases. Returns the outputs of each.
    fn step(&mut self, batch: &[(&Case, StateSpan)]) -> Vec<Outputs> {
        let shape = batch[0].0.shape;
        self.plan.fill(batch.iter().map(|(_, span)| *span), self.store.slots()).unwrap();
        let gather = |of: &dyn Fn(&Case) -> &Vec<f32>| -> Vec<f32> {
            let rows = batch.iter().map(|(case, span)| case.rows(of(case), span.start, span.count));
            rows.collect::<Vec<_>>().concat()
        };
        let rows = self.plan.rows();
        let (inputs, mixed, raw) =
            (gather(&|case| &case.inputs), gather(&|case| &case.mixed), gather(&|case| &case.raw));
        let view = |all| ProjectedRows { rows: all, stride: <[f32]>::len(all) / rows };
        // All cases of a batch have the same weights.
        let first = batch[0].0;
        let mut convolved = vec![0.0; rows * shape.channels];
        self.kernels
            .convolve(&mut self.store, (1, &self.plan), &first.convolution(), view(&inputs), &mut convolved)
            .unwrap();
        let mut recurred = vec![0.0; rows * first.values()];
        let both = (view(&mixed), view(&raw));
        self.kernels
            .recur(&mut self.store, (1, &self.plan), &first.recurrence(), both, &mut recurred)
            .unwrap();
        let mut outputs = Vec::new();
        let (mut from, values) = (0, first.values());
        for (_, span) in batch {
            let to = from + span.count;
            outputs.push((
                convolved[from * shape.channels..to * shape.channels].to_vec(),
                recurred[from * values..to * values].to_vec(),
            ));
            from = to;
        }
        outputs
    }

    /// Computes a case alone, in chunks of these lengths. Each chunk that completes a block leaves its state in another
    /// slot if `moves` is set.
    fn run(&mut self, case: &Case, chunks: &[usize], moves: bool) -> Outputs {
        let (mut all, mut start, mut slot) = ((Vec::new(), Vec::new()), 0, 0);
        for &count in chunks {
            let own = match moves && (start + count) / BLOCK_TOKENS > start / BLOCK_TOKENS {
                true => 1 - slot,
                false => slot,
            };
            let slots = StateSlots { from: slot, own, copy: None };
            let [(convolved, recurred)] =
                self.step(&[(case, StateSpan { count, start, slots })]).try_into().unwrap();
            all.0.extend(convolved);
            all.1.extend(recurred);
            (start, slot) = (start + count, own);
        }
        assert_eq!(start, case.length);
        all
    }
}

/// Chunks of at most `size`.
fn chunks(length: usize, size: usize) -> Vec<usize> {
    (0..length).step_by(size).map(|from| size.min(length - from)).collect()
}

fn shape(heads: usize, key_dim: usize, value_dim: usize, channels: usize, taps: usize) -> StateShape {
    StateShape { heads, key_dim, value_dim, channels, taps }
}

#[test]
fn outputs_are_close_to_a_reference_that_advances_token_by_token() {
    for isa in isas() {
        for (shape, sharing) in [
            (shape(4, 5, 20, 5, 1), 2),
            (shape(2, 16, 16, 16, 3), 1),
            (shape(6, 33, 48, 40, 4), 3),
            (shape(2, 128, 128, 100, 17), 2),
            (shape(1, 64, 70, 7, 4), 1),
        ] {
            for is_delta in [true, false] {
                let case = Case::new(shape, sharing, is_delta, 70, 5);
                for is_strided in [false, true] {
                    let case = Case { is_strided, ..case.clone() };
                    let (convolved, recurred) = Machine::new(isa, 2, shape, 2).run(&case, &[70], false);
                    let what = format!("{shape:?} on {isa}, delta {is_delta}, strided {is_strided}");
                    close(&what, &convolved, &case.convolved(), 1e-6);
                    close(&what, &recurred, &case.recurred(), 1e-5);
                }
            }
        }
    }
}

#[test]
fn chunks_of_any_length_give_the_same_bits() {
    for isa in isas() {
        for (shape, sharing) in [(shape(4, 20, 36, 50, 4), 2), (shape(2, 16, 64, 16, 17), 1)] {
            for is_delta in [true, false] {
                let case = Case::new(shape, sharing, is_delta, 83, 7);
                let whole = Machine::new(isa, 1, shape, 2).run(&case, &[83], false);
                for size in [1, 2, 3, 7, 15, 16, 17, 31, 64] {
                    for (threads, moves) in [(1, true), (3, false)] {
                        let cut = Machine::new(isa, threads, shape, 2).run(&case, &chunks(83, size), moves);
                        let what = format!("{shape:?} on {isa} in chunks of {size}, delta {is_delta}");
                        assert_eq!(bits(&whole.0), bits(&cut.0), "{what}");
                        assert_eq!(bits(&whole.1), bits(&cut.1), "{what}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_sequence_has_the_same_bits_alone_and_among_others(
        cuts in prop::collection::vec(1_usize..40, 1..6),
        others in prop::collection::vec(1_usize..40, 1..6),
        is_delta: bool,
        seed in 1_u64..1000,
    ) {
        let isa = Isa::best();
        let shape = shape(3, 9, 24, 21, 4);
        let case = Case::new(shape, 3, is_delta, cuts.iter().sum(), seed);
        let alone = Machine::new(isa, 1, shape, 2).run(&case, &[case.length], false);
        let mut mate = Case::new(shape, 3, is_delta, others.iter().sum(), seed + 1);
        // A batch has one set of weights.
        (mate.weight, mate.bias) = (case.weight.clone(), case.bias.clone());
        (mate.step_bias, mate.rates) = (case.step_bias.clone(), case.rates.clone());
        (mate.skips, mate.norm) = (case.skips.clone(), case.norm.clone());
        mate.raw[0] = f32::NAN;
        mate.inputs[0] = f32::NAN;
        let mut machine = Machine::new(isa, 3, shape, 4);
        let (mut got, mut done) = ((Vec::new(), Vec::new()), [0, 0]);
        for step in 0..cuts.len().max(others.len()) {
            let mut batch = Vec::new();
            for (index, (case, cuts)) in [(&mate, &others), (&case, &cuts)].into_iter().enumerate() {
                let Some(&count) = cuts.get(step) else { continue };
                let own = index as u32 + 2;
                let slots = StateSlots { from: own, own, copy: None };
                batch.push((case, StateSpan { count, start: done[index], slots }));
                done[index] += count;
            }
            let outputs = machine.step(&batch);
            if step < cuts.len() {
                let (convolved, recurred) = outputs.into_iter().last().unwrap();
                got.0.extend(convolved);
                got.1.extend(recurred);
            }
        }
        prop_assert_eq!(bits(&alone.0), bits(&got.0));
        prop_assert_eq!(bits(&alone.1), bits(&got.1));
    }
}

#[test]
fn a_copy_continues_with_the_same_bits_and_is_not_changed() {
    for isa in isas() {
        for is_delta in [true, false] {
            let shape = shape(2, 12, 17, 19, 4);
            let case = Case::new(shape, 1, is_delta, 75, 3);
            let mut machine = Machine::new(isa, 2, shape, 5);
            let whole = machine.run(&case, &[75], false);
            // Copies are made within a chunk, and at its end.
            for (chunk, position) in [(75, 32), (64, 64), (50, 16)] {
                let slots = StateSlots { from: 0, own: 0, copy: Some(StateCopy { position, slot: 4 }) };
                machine.step(&[(&case, StateSpan { count: chunk, start: 0, slots })]);
                // Two sequences continue from it, one after the other in short chunks.
                for size in [100, 1, 5] {
                    let (mut got, mut start, mut from) = ((Vec::new(), Vec::new()), position, 4);
                    for count in chunks(75 - position, size) {
                        let slots = StateSlots { from, own: 2, copy: None };
                        let outputs = machine.step(&[(&case, StateSpan { count, start, slots })]);
                        got.0.extend(outputs[0].0.clone());
                        got.1.extend(outputs[0].1.clone());
                        (start, from) = (start + count, 2);
                    }
                    let rest = |all: &[f32], width: usize| bits(&all[position * width..]);
                    assert_eq!(rest(&whole.0, shape.channels), bits(&got.0), "{position} by {size} on {isa}");
                    assert_eq!(rest(&whole.1, case.values()), bits(&got.1), "{position} by {size} on {isa}");
                }
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let shape = shape(2, 8, 8, 10, 4);
    let case = Case::new(shape, 1, true, 3, 1);
    let mut machine = Machine::new(Isa::best(), 1, shape, 1);
    let slots = StateSlots::default();
    machine.plan.fill([StateSpan { count: 3, start: 0, slots }], 1).unwrap();
    let Machine { kernels, store, plan } = &mut machine;
    let view = |all| ProjectedRows { rows: all, stride: <[f32]>::len(all) / 3 };
    let mut out = vec![0.0; 3 * 16];
    let both = (view(&case.mixed), view(&case.raw));
    let good = case.recurrence();
    let mut recur = |layer: usize, recurrence: HeadRecurrence<'_>, out: &mut [f32]| {
        kernels.recur(store, (layer, plan), &recurrence, both, out)
    };
    let refused = |result: Result<(), KernelError>| matches!(result, Err(KernelError::Shape { .. }));
    assert!(refused(recur(0, good, &mut out)), "that layer has no heads");
    assert!(refused(recur(2, good, &mut out)), "there is no such layer");
    assert!(refused(recur(1, good, &mut out[1..])));
    assert!(refused(recur(1, HeadRecurrence { sharing: HeadSharing::Runs(0), ..good }, &mut out)));
    assert!(refused(recur(1, HeadRecurrence { value: 40, ..good }, &mut out)));
    assert!(refused(recur(1, HeadRecurrence { rates: &[], ..good }, &mut out)));
    let rule = RecurrenceRule::Sum { skips: &case.skips, steps: (1.0, f32::NAN) };
    assert!(refused(recur(1, HeadRecurrence { rule, ..good }, &mut out)));
    assert_eq!(recur(1, good, &mut out), Ok(()));
    let mut out = vec![0.0; 30];
    let bad = ShortConvolution { input: 21, ..case.convolution() };
    assert!(refused(kernels.convolve(store, (1, plan), &bad, view(&case.inputs), &mut out)));
    let mut other = StateStore::new(&[shape], 2).unwrap();
    let good = case.convolution();
    assert!(
        refused(kernels.convolve(&mut other, (0, plan), &good, view(&case.inputs), &mut out)),
        "other slots"
    );
}

#[test]
fn norms_and_gates_of_heads_are_close_to_f64() {
    for isa in isas() {
        let mut kernels = Kernels::new(isa, 2).unwrap();
        let (rows, width, groups) = (3, 60, 3);
        let (x, gates, weight) =
            (numbers(1, rows * width), numbers(2, rows * (width + 2)), numbers(3, width));
        let view = ProjectedRows { rows: &gates, stride: width + 2 };
        let gate = |row: usize, i: usize| f64::from(gates[row * (width + 2) + 1 + i]);
        let norm = headrace_kernels::GroupNorm { weight: &weight, groups, eps: EPS };
        let mut out = vec![0.0; x.len()];
        kernels.gated_group_norm(&x, (view, 1), norm, &mut out).unwrap();
        let mut want = Vec::new();
        for row in 0..rows {
            let gated: Vec<f64> = (0..width)
                .map(|i| f64::from(x[row * width + i]) * gate(row, i) * sigmoid(gate(row, i)))
                .collect();
            for (group, part) in gated.chunks(width / groups).enumerate() {
                let mean = part.iter().map(|x| x * x).sum::<f64>() / part.len() as f64;
                let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
                let weights = &weight[group * part.len()..];
                want.extend(part.iter().zip(weights).map(|(x, &w)| x * scale * f64::from(w)));
            }
        }
        close("gated group norm", &out, &want, 2e-6);
        let mut some = x[..2 * width].to_vec();
        kernels.sigmoid_gated(&mut some, width, (view, 1), Some(&[2, 0])).unwrap();
        let want: Vec<f64> =
            (0..2 * width).map(|i| f64::from(x[i]) * sigmoid(gate([2, 0][i / width], i % width))).collect();
        close("sigmoid gates", &some, &want, 2e-7);
        assert!(kernels.sigmoid_gated(&mut some, width, (view, 1), Some(&[3, 0])).is_err());
        assert!(kernels.sigmoid_gated(&mut some, width, (view, 3), None).is_err());
    }
}
