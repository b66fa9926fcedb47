//! Matrices of 4-bit codes in 32-bit words. AWQ and GPTQ: `X.qweight`, `X.qzeros`, `X.scales`, and `X.g_idx` with the
//! group of each column. compressed-tensors: `X.weight_packed`, `X.weight_shape`, `X.weight_scale`,
//! `X.weight_zero_point` unless every zero is 8, and `X.weight_g_idx`.

use headrace_quant::{BlockType, Int4Matrix, QuantError, ScaleType, WordOrder};

use crate::scheme::{Int4Scheme, PackedGroup};

use super::stored::{Find, RecipeFault, StoredTensor, fault, needed, of_values, scale_type};

/// The end of the name of the codes of AWQ and GPTQ.
pub(super) const CODES: &str = ".qweight";
/// The end of the name of the codes of compressed-tensors.
pub(super) const PACKED_CODES: &str = ".weight_packed";
/// Codes in a word.
const WORD_CODES: usize = 8;

/// The tensors of one matrix, and what is known of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredInt4 {
    /// Rows and columns.
    pub(super) shape: [usize; 2],
    /// The block format that holds the rows without loss. `None` for f32.
    pub(super) block: Option<BlockType>,
    order: WordOrder,
    /// Columns that share a scale.
    group: usize,
    codes: String,
    scales: String,
    scale_type: ScaleType,
    zeros: Option<String>,
    zeros_less_one: bool,
    /// The tensor with the group of each column. Only if groups are not consecutive columns.
    group_index: Option<String>,
    /// Other tensors that were read.
    others: Vec<String>,
}

impl StoredInt4 {
    /// Reads the recipe of the AWQ or GPTQ matrix whose codes are the tensor `name`.
    pub(super) fn read(scheme: &Int4Scheme, name: &str, find: Find<'_, '_>) -> Result<Self, RecipeFault> {
        let codes = words(name, needed(find, name, name)?)?;
        let module = name.strip_suffix(CODES).unwrap_or(name);
        let [scales, zeros, index] = ["scales", "qzeros", "g_idx"].map(|part| format!("{module}.{part}"));
        let (rows, columns) = match scheme.order {
            WordOrder::Awq => (codes[1].checked_mul(WORD_CODES), Some(codes[0])),
            _ => (Some(codes[1]), codes[0].checked_mul(WORD_CODES)),
        };
        let shape = matrix(name, rows, columns, codes)?;
        let [rows, columns] = shape;
        let (group, groups) = groups_of(name, columns, scheme.group)?;
        if !rows.is_multiple_of(WORD_CODES) {
            let problem = format!("is {codes:?}: {rows} rows are not a multiple of {WORD_CODES}");
            return Err(fault(name, "shape", problem));
        }
        let found = needed(find, &scales, name)?;
        let scale_type = scale_type(&scales, found)?;
        expect(&scales, found.shape, &[groups, rows], name)?;
        let found = needed(find, &zeros, name)?;
        words(&zeros, found)?;
        expect(&zeros, found.shape, &[groups, rows / WORD_CODES], name)?;
        let is_indexed = match find(&index) {
            Some(found) => !in_order(&index, found, columns, group, groups)?,
            None => false,
        };
        let block = Int4Matrix::block_type(scale_type, group).filter(|_| !is_indexed);
        let others = if find(&index).is_some() && !is_indexed { vec![index.clone()] } else { Vec::new() };
        Ok(Self {
            shape,
            block,
            order: scheme.order,
            group,
            codes: name.to_owned(),
            scales,
            scale_type,
            zeros: Some(zeros),
            zeros_less_one: scheme.zeros_less_one,
            group_index: is_indexed.then_some(index),
            others,
        })
    }

    /// Reads the recipe of the matrix of compressed-tensors whose codes are the tensor `name`.
    pub(super) fn read_packed(
        known: &[PackedGroup],
        name: &str,
        find: Find<'_, '_>,
    ) -> Result<Self, RecipeFault> {
        let codes = words(name, needed(find, name, name)?)?;
        let module = name.strip_suffix(PACKED_CODES).unwrap_or(name);
        let [sizes, scales, zeros, index] =
            ["weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx"]
                .map(|part| format!("{module}.{part}"));
        let (rows, columns) = sizes_in(&sizes, needed(find, &sizes, name)?)?;
        let shape = matrix(name, Some(rows), Some(columns), codes)?;
        expect(name, &codes, &[rows, columns.div_ceil(WORD_CODES)], &sizes)?;
        let found = needed(find, &scales, name)?;
        let scale_type = scale_type(&scales, found)?;
        let groups = match *found.shape {
            [each, groups] if each == rows && groups > 0 && columns.is_multiple_of(groups) => groups,
            [each] if each == rows => 1,
            _ => {
                let problem = format!(
                    "is {:?}; \"{name}\" of {shape:?} takes [{rows}, groups of columns]",
                    found.shape
                );
                return Err(fault(&scales, "shape", problem));
            }
        };
        let group = columns / groups;
        let fits = |known: &&PackedGroup| known.group.map_or(groups == 1, |size| size == group);
        let stored = find(&zeros);
        let is_symmetric = stored.is_none();
        let mut fitting =
            known.iter().filter(fits).filter(|known| known.is_symmetric == is_symmetric).peekable();
        if fitting.peek().is_none() {
            let zeros = if is_symmetric { "without zeros" } else { "with zeros" };
            let problem = format!(
                "is {:?}: groups of {group} {zeros}, which config.json does not describe",
                found.shape
            );
            return Err(fault(&scales, "shape", problem));
        }
        if find(&index).is_none() && fitting.all(|known| known.is_indexed) {
            return Err(fault(
                &index,
                "presence",
                format!("is missing; \"{name}\" needs it, as actorder says"),
            ));
        }
        if let Some(stored) = stored {
            words(&zeros, stored)?;
            expect(&zeros, stored.shape, &[rows.div_ceil(WORD_CODES), groups], name)?;
        }
        let is_indexed = match find(&index) {
            Some(found) => !in_order(&index, found, columns, group, groups)?,
            None => false,
        };
        let mut others = vec![sizes];
        if find(&index).is_some() && !is_indexed {
            others.push(index.clone());
        }
        Ok(Self {
            shape,
            block: Int4Matrix::block_type(scale_type, group).filter(|_| !is_indexed),
            order: WordOrder::Rows,
            group,
            codes: name.to_owned(),
            scales,
            scale_type,
            zeros: (!is_symmetric).then_some(zeros),
            zeros_less_one: false,
            group_index: is_indexed.then_some(index),
            others,
        })
    }

    /// Names of the tensors, the codes first.
    pub(super) fn sources(&self) -> Vec<String> {
        let Self { codes, scales, zeros, group_index, others, .. } = self;
        [codes, scales].into_iter().chain(zeros).chain(group_index).chain(others).cloned().collect()
    }

    /// Makes the rows, as blocks or as f32.
    pub(super) fn bytes(&self, find: Find<'_, '_>) -> Result<Vec<u8>, RecipeFault> {
        let bytes = |name: &String| needed(find, name, &self.codes).map(|tensor| tensor.bytes);
        let Self { order, shape: [rows, columns], group, scale_type, zeros_less_one, .. } = *self;
        let matrix = Int4Matrix {
            order,
            rows,
            columns,
            group,
            codes: bytes(&self.codes)?,
            scales: bytes(&self.scales)?,
            scale_type,
            zeros: self.zeros.as_ref().map(bytes).transpose()?,
            zeros_less_one,
            group_index: self.group_index.as_ref().map(bytes).transpose()?,
        };
        let made = if self.block.is_some() { matrix.to_blocks() } else { matrix.to_floats() };
        made.map_err(|error| match (&error, &self.group_index) {
            (QuantError::Group { .. }, Some(index)) => {
                fault(index, "values", format!("cannot be groups: {error}"))
            }
            _ => of_values(error, &self.codes, &self.scales),
        })
    }
}

/// Checks that a tensor is a matrix of words, and returns its shape.
fn words(name: &str, tensor: StoredTensor<'_>) -> Result<[usize; 2], RecipeFault> {
    if !matches!(tensor.element, "I32" | "U32") {
        let problem =
            format!("{} is not supported; eight codes of 4 bits are stored in an I32", tensor.element);
        return Err(fault(name, "dtype", problem));
    }
    match *tensor.shape {
        [a, b] => Ok([a, b]),
        _ => Err(fault(name, "shape", format!("is {:?}, which is no matrix", tensor.shape))),
    }
}

/// Returns the rows and columns of a matrix that has some.
fn matrix(
    name: &str,
    rows: Option<usize>,
    columns: Option<usize>,
    codes: [usize; 2],
) -> Result<[usize; 2], RecipeFault> {
    match (rows, columns) {
        (Some(rows), Some(columns)) if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(fault(name, "shape", format!("is {codes:?}, which holds no weights"))),
    }
}

/// Returns the columns of a group and the number of groups.
fn groups_of(name: &str, columns: usize, group: Option<usize>) -> Result<(usize, usize), RecipeFault> {
    let group = group.unwrap_or(columns);
    if columns.is_multiple_of(group) {
        return Ok((group, columns / group));
    }
    let problem = format!("has {columns} columns, which groups of {group} (config.json) do not divide");
    Err(fault(name, "shape", problem))
}

/// Checks the shape of a tensor, which follows from the tensor `by`.
fn expect(name: &str, found: &[usize], expected: &[usize], by: &str) -> Result<(), RecipeFault> {
    if found == expected {
        return Ok(());
    }
    Err(fault(name, "shape", format!("is {found:?}, but \"{by}\" calls for {expected:?}")))
}

/// Reads the rows and columns that a tensor of two numbers holds.
fn sizes_in(name: &str, tensor: StoredTensor<'_>) -> Result<(usize, usize), RecipeFault> {
    let numbers: Vec<Option<usize>> = match tensor.element {
        "I64" => {
            let number = |bytes: &[u8; 8]| usize::try_from(i64::from_le_bytes(*bytes)).ok();
            tensor.bytes.as_chunks().0.iter().map(number).collect()
        }
        "I32" => {
            let number = |bytes: &[u8; 4]| usize::try_from(i32::from_le_bytes(*bytes)).ok();
            tensor.bytes.as_chunks().0.iter().map(number).collect()
        }
        other => return Err(fault(name, "dtype", format!("{other} is not supported; I64 and I32 are"))),
    };
    match numbers[..] {
        [Some(rows), Some(columns)] => Ok((rows, columns)),
        _ => Err(fault(name, "values", "are not the rows and columns of a matrix".to_owned())),
    }
}

/// Checks the groups of columns: each has as many. Returns whether they are consecutive columns.
fn in_order(
    name: &str,
    tensor: StoredTensor<'_>,
    columns: usize,
    group: usize,
    groups: usize,
) -> Result<bool, RecipeFault> {
    if !matches!(tensor.element, "I32" | "U32") || *tensor.shape != [columns] {
        let problem = format!("is {:?} of {}, expected [{columns}] of I32", tensor.shape, tensor.element);
        return Err(fault(name, "shape", problem));
    }
    if Int4Matrix::is_in_order(tensor.bytes, columns, group) {
        return Ok(true);
    }
    let mut sizes = vec![0_usize; groups];
    let words = tensor.bytes.as_chunks().0.iter().map(|word| i32::from_le_bytes(*word));
    for (column, word) in words.enumerate() {
        match usize::try_from(word).ok().and_then(|word| sizes.get_mut(word)) {
            Some(size) => *size += 1,
            None => {
                let problem = format!("[{column}] is {word}, but there are {groups} groups");
                return Err(fault(name, "values", problem));
            }
        }
    }
    match sizes.iter().enumerate().find(|(_, size)| **size != group) {
        Some((other, size)) => {
            let problem = format!("give group {other} {size} columns, not {group}");
            Err(fault(name, "values", problem))
        }
        None => Ok(false),
    }
}
