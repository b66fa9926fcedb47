//! Tests the decoders of 4-bit matrices against packing by the documented rules, weight by weight.

use half::{bf16, f16};

use super::*;
use crate::{MXFP4_VALUES, dequantize_row, layout};

/// A matrix in plain order.
struct PlainMatrix {
    rows: usize,
    columns: usize,
    group: usize,
    codes: Vec<u8>,
    zeros: Vec<u8>,
    scales: Vec<f32>,
}

impl PlainMatrix {
    /// Makes codes and zeros of 0 to 15 and scales that f16 and bf16 hold.
    fn new(rows: usize, columns: usize, group: usize) -> Self {
        let mut state = 77_u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let groups = columns / group;
        Self {
            rows,
            columns,
            group,
            codes: (0..rows * columns).map(|_| next(16) as u8).collect(),
            zeros: (0..rows * groups).map(|_| next(16) as u8).collect(),
            scales: (0..rows * groups).map(|_| (1 + next(127)) as f32 / 4096.0).collect(),
        }
    }

    fn groups(&self) -> usize {
        self.columns / self.group
    }

    /// The weight, if every zero is 8 or as stored.
    fn weight(&self, row: usize, column: usize, group: usize, with_zeros: bool) -> f32 {
        let at = row * self.groups() + group;
        let zero = if with_zeros { self.zeros[at] } else { 8 };
        (i32::from(self.codes[row * self.columns + column]) - i32::from(zero)) as f32 * self.scales[at]
    }

    /// Packs what `code(word, position)` returns for each position of each of `count` words.
    fn words(count: usize, code: impl Fn(usize, usize) -> u8) -> Vec<u8> {
        let word = |at: usize| {
            (0..8).fold(0_u32, |word, position| word | u32::from(code(at, position)) << (4 * position))
        };
        (0..count).flat_map(|at| word(at).to_le_bytes()).collect()
    }

    fn stored(&self, order: WordOrder, less_one: bool) -> (Vec<u8>, Vec<u8>) {
        const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
        let (rows, columns, groups) = (self.rows, self.columns, self.groups());
        let code = |row: usize, column: usize| match row < rows && column < columns {
            true => self.codes[row * columns + column],
            false => 0,
        };
        let zero = |row: usize, group: usize| match row < rows {
            true => (self.zeros[row * groups + group] + if less_one { 15 } else { 0 }) & 15,
            false => 0,
        };
        let across = rows.div_ceil(8);
        match order {
            WordOrder::Awq => (
                Self::words(columns * across, |at, p| code(at % across * 8 + AWQ_ORDER[p], at / across)),
                Self::words(groups * across, |at, p| zero(at % across * 8 + AWQ_ORDER[p], at / across)),
            ),
            WordOrder::Gptq => (
                Self::words(columns / 8 * rows, |at, p| code(at % rows, at / rows * 8 + p)),
                Self::words(groups * across, |at, p| zero(at % across * 8 + p, at / across)),
            ),
            WordOrder::Rows => {
                let words = columns.div_ceil(8);
                (
                    Self::words(rows * words, |at, p| code(at / words, at % words * 8 + p)),
                    Self::words(across * groups, |at, p| zero(at / groups * 8 + p, at % groups)),
                )
            }
        }
    }

    fn stored_scales(&self, order: WordOrder, scale_type: ScaleType) -> Vec<u8> {
        let groups = self.groups();
        let all: Vec<f32> = match order {
            WordOrder::Rows => self.scales.clone(),
            _ => (0..groups * self.rows)
                .map(|at| self.scales[at % self.rows * groups + at / self.rows])
                .collect(),
        };
        let bytes = |scale: &f32| match scale_type {
            ScaleType::F16 => f16::from_f32(*scale).to_le_bytes().to_vec(),
            ScaleType::Bf16 => bf16::from_f32(*scale).to_le_bytes().to_vec(),
            ScaleType::F32 => scale.to_le_bytes().to_vec(),
        };
        all.iter().flat_map(bytes).collect()
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn every_order_gives_the_same_weights_in_blocks_and_in_floats() {
    for (rows, columns, group) in [(16, 256, 128), (136, 64, 32), (264, 192, 64), (8, 96, 96), (24, 160, 32)]
    {
        let plain = PlainMatrix::new(rows, columns, group);
        for order in [WordOrder::Awq, WordOrder::Gptq, WordOrder::Rows] {
            for (scale_type, less_one, with_zeros) in [
                (ScaleType::F16, order == WordOrder::Gptq, true),
                (ScaleType::Bf16, false, true),
                (ScaleType::F32, false, false),
            ] {
                let (codes, zeros) = plain.stored(order, less_one);
                let scales = plain.stored_scales(order, scale_type);
                let matrix = Int4Matrix {
                    order,
                    rows,
                    columns,
                    group,
                    codes: &codes,
                    scales: &scales,
                    scale_type,
                    zeros: with_zeros.then_some(&zeros),
                    zeros_less_one: less_one,
                    group_index: None,
                };
                let made = floats(&matrix.to_floats().unwrap());
                for (at, weight) in made.iter().enumerate() {
                    let (row, column) = (at / columns, at % columns);
                    let expected = plain.weight(row, column, column / group, with_zeros);
                    assert_eq!(*weight, expected, "{order:?} {rows} × {columns}, row {row}, column {column}");
                }
                let Some(kind) = Int4Matrix::block_type(scale_type, group) else {
                    assert_eq!(scale_type, ScaleType::F32);
                    assert!(matrix.to_blocks().is_err());
                    continue;
                };
                let blocks = matrix.to_blocks().unwrap();
                let mut weights = vec![0.0; rows * columns];
                dequantize_row(kind, &blocks, &mut weights).unwrap();
                assert_eq!(weights, made, "{order:?} {rows} × {columns} in {kind}");
            }
        }
    }
}

#[test]
fn columns_may_be_in_groups_of_any_order() {
    let plain = PlainMatrix::new(16, 64, 32);
    let (codes, zeros) = plain.stored(WordOrder::Gptq, false);
    let scales = plain.stored_scales(WordOrder::Gptq, ScaleType::F16);
    let group_of = |column: usize| (column * 5 / 3) % 2;
    let index: Vec<u8> = (0..64).flat_map(|column| (group_of(column) as u32).to_le_bytes()).collect();
    let matrix = Int4Matrix {
        order: WordOrder::Gptq,
        rows: 16,
        columns: 64,
        group: 32,
        codes: &codes,
        scales: &scales,
        scale_type: ScaleType::F16,
        zeros: Some(&zeros),
        zeros_less_one: false,
        group_index: Some(&index),
    };
    for (at, weight) in floats(&matrix.to_floats().unwrap()).iter().enumerate() {
        let (row, column) = (at / 64, at % 64);
        assert_eq!(*weight, plain.weight(row, column, group_of(column), true), "row {row}, column {column}");
    }
    assert!(matrix.to_blocks().is_err());
    assert!(!Int4Matrix::is_in_order(&index, 64, 32));
    let in_order: Vec<u8> = (0..64_u32).flat_map(|column| (column / 32).to_le_bytes()).collect();
    assert!(Int4Matrix::is_in_order(&in_order, 64, 32) && !Int4Matrix::is_in_order(&in_order, 63, 32));
    let mut far = in_order;
    far[40] = 2;
    let error = Int4Matrix { group_index: Some(&far), ..matrix }.to_floats().unwrap_err();
    assert_eq!(error, QuantError::Group { column: 10, group: 2, groups: 2 });
}

#[test]
fn what_cannot_be_a_matrix_is_refused() {
    let plain = PlainMatrix::new(16, 64, 32);
    let (codes, zeros) = plain.stored(WordOrder::Rows, false);
    let scales = plain.stored_scales(WordOrder::Rows, ScaleType::Bf16);
    let matrix = Int4Matrix {
        order: WordOrder::Rows,
        rows: 16,
        columns: 64,
        group: 32,
        codes: &codes,
        scales: &scales,
        scale_type: ScaleType::Bf16,
        zeros: Some(&zeros),
        zeros_less_one: false,
        group_index: None,
    };
    assert!(matrix.to_blocks().is_ok());
    let mut nan = scales.clone();
    nan[4..6].copy_from_slice(&0x7FC0_u16.to_le_bytes());
    let mut infinite = scales.clone();
    infinite[6..8].copy_from_slice(&0x7F80_u16.to_le_bytes());
    let rows = [
        ("codes", Int4Matrix { codes: &codes[1..], ..matrix }),
        ("codes", Int4Matrix { rows: 15, ..matrix }),
        ("codes", Int4Matrix { rows: usize::MAX, ..matrix }),
        ("codes", Int4Matrix { order: WordOrder::Awq, rows: 12, ..matrix }),
        ("groups of 0 columns", Int4Matrix { group: 0, ..matrix }),
        ("groups of 48 columns do not divide 64", Int4Matrix { group: 48, ..matrix }),
        ("groups of 32 columns do not divide 48", Int4Matrix { columns: 48, ..matrix }),
        ("scales", Int4Matrix { scales: &scales[2..], ..matrix }),
        ("scales", Int4Matrix { scale_type: ScaleType::F32, ..matrix }),
        ("zeros", Int4Matrix { zeros: Some(&zeros[4..]), ..matrix }),
        ("scale 3 is inf", Int4Matrix { scales: &infinite, ..matrix }),
        ("scale 2 is NaN", Int4Matrix { scales: &nan, ..matrix }),
        ("groups of columns", Int4Matrix { group_index: Some(&[0; 4]), ..matrix }),
    ];
    for (what, matrix) in rows {
        let error = matrix.to_floats().unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
        assert!(matrix.to_blocks().is_err(), "{what}");
    }
}

#[test]
fn mxfp4_blocks_hold_the_same_weights_in_the_order_of_gguf() {
    let codes: Vec<u8> = (0..48_u32).map(|at| (at * 37 + 11) as u8).collect();
    let scales = [0, 127, 130];
    let blocks = mxfp4_blocks(&codes, &scales).unwrap();
    let mut weights = vec![0.0; 96];
    dequantize_row(BlockType::Mxfp4, &blocks, &mut weights).unwrap();
    for (at, weight) in weights.iter().enumerate() {
        let code = codes[at / 2] >> (4 * (at % 2)) & 15;
        let expected = f32::from(MXFP4_VALUES[usize::from(code)]) * layout::mxfp4_scale(scales[at / 32]);
        assert_eq!(*weight, expected, "weight {at}");
    }
    let error = mxfp4_blocks(&codes, &[0, 255, 0]).unwrap_err();
    assert!(matches!(error, QuantError::Scale { index: 1, .. }), "{error}");
    assert!(mxfp4_blocks(&codes, &scales[1..]).is_err());
}
