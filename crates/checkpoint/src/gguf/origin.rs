//! Which elements of a Hugging Face checkpoint each row of a GGUF file holds: the inverse of [`TensorLayout`]. Must not know
//! metadata, or how elements are stored.

use std::collections::BTreeMap;

use crate::decoder::{ElementForm, ModelConfig, PartSource, RotaryPairs, RowPick, RowSource, TensorSpec};
use crate::order::{StoredOrder, TiledHeads};

use super::layout::ClaimedTensor;

/// A tensor of a GGUF file, and the origin of its rows. Each element of a vector is a row.
#[derive(Debug, Clone)]
pub struct FileTensor {
    /// The name in llama.cpp's spelling.
    pub name: String,
    /// Dimensions, outermost first. Dimensions of 1 are left out.
    pub shape: Vec<usize>,
    /// Elements of a row: 1 in vectors, also in vectors of several experts.
    pub row_elements: usize,
    /// In the order of their rows.
    parts: Vec<TensorPart>,
}

/// Rows of a tensor of the file that one part of the model takes.
#[derive(Debug, Clone)]
struct TensorPart {
    first: usize,
    rows: usize,
    order: FileOrder,
    /// The rows in the checkpoint.
    source: RowSource,
    change: ElementChange,
}

/// How the file orders rows or columns.
#[derive(Debug, Clone, Copy)]
enum FileOrder {
    /// As the part of the model takes them.
    Same,
    /// The pairs of rotated heads are neighbours.
    Pairs(RotaryPairs),
    TiledRows(TiledHeads),
    TiledColumns(TiledHeads),
}

/// What is stored in the file for an element of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementChange {
    /// The element.
    None,
    /// The element plus 1.
    PlusOne,
    /// `−e^x` of the element.
    NegativeExponential,
}

/// The elements of a row, in the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowOrigin<'t> {
    /// The checkpoint's tensor.
    pub tensor: &'t TensorSpec,
    /// What is stored instead of each element.
    pub change: ElementChange,
    first: usize,
    step: usize,
    columns: Option<TiledHeads>,
}

impl<'t> RowOrigin<'t> {
    /// A row whose elements follow each other from `first` on, in the order in which the tensor is stored.
    pub fn following(tensor: &'t TensorSpec, first: usize) -> Self {
        Self { tensor, change: ElementChange::None, first, step: 1, columns: None }
    }

    /// The index of the first element, if all others follow it.
    pub fn first_of_following(&self) -> Option<usize> {
        (self.step == 1 && self.columns.is_none()).then_some(self.first)
    }

    /// The index of an element of the row, in the order in which the checkpoint's tensor is stored.
    pub fn element(&self, column: usize) -> usize {
        self.first + self.columns.map_or(column, |heads| heads.original(column)) * self.step
    }
}

impl FileTensor {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.shape.iter().product::<usize>() / self.row_elements.max(1)
    }

    /// Returns the origin of a row. `None` if there is no such row.
    pub fn origin(&self, row: usize) -> Option<RowOrigin<'_>> {
        let after = self.parts.partition_point(|part| part.first <= row);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let row = row.checked_sub(part.first).filter(|row| *row < part.rows)?;
        let (row, columns) = match part.order {
            FileOrder::Same => (row, None),
            FileOrder::Pairs(pairs) => (halved(row, pairs), None),
            FileOrder::TiledRows(heads) => (heads.original(row), None),
            FileOrder::TiledColumns(heads) => (row, Some(heads)),
        };
        let (first, step) = part.source.elements(row)?;
        Some(RowOrigin { tensor: &part.source.tensor, change: part.change, first, step, columns })
    }
}

impl RowSource {
    /// The dimensions of the tensor, or of the expert's part.
    fn dimensions(&self) -> &[usize] {
        let skipped = usize::from(self.expert.is_some());
        self.tensor.shape.get(skipped..).unwrap_or_default()
    }

    /// The index of the first element of row `row` of the part, and the distance to the next.
    fn elements(&self, row: usize) -> Option<(usize, usize)> {
        let dimensions = self.dimensions();
        let all: usize = dimensions.iter().product();
        let width: usize = dimensions.get(1..)?.iter().product();
        let base = self.expert.unwrap_or(0).checked_mul(all)?;
        let row = self.pairs.map_or(row, |pairs| neighboured(row, pairs));
        let columns = *dimensions.last()?;
        let (first, step) = match self.pick {
            RowPick::All => (row * width, 1),
            RowPick::Grouped { group, first, count } => {
                ((row / count.max(1) * group + first + row % count.max(1)) * width, 1)
            }
            RowPick::Transposed { first, step, .. } => (first + row * step, columns),
            RowPick::Columns { first, .. } => (first * columns + row, columns),
        };
        (first < all).then_some((base + first, step))
    }
}

/// The row in the order of halves that is at `row` in the order of neighbours.
fn halved(row: usize, RotaryPairs { head, rotated }: RotaryPairs) -> usize {
    let (before, within) = (row - row % head.max(1), row % head.max(1));
    match within < rotated {
        true => before + within % 2 * (rotated / 2) + within / 2,
        false => row,
    }
}

/// The inverse of [`halved`].
fn neighboured(row: usize, RotaryPairs { head, rotated }: RotaryPairs) -> usize {
    let (before, within) = (row - row % head.max(1), row % head.max(1));
    let half = (rotated / 2).max(1);
    match within < rotated {
        true => before + within % half * 2 + within / half,
        false => row,
    }
}

/// Returns the tensors of the file in the order of the layers. `config` has the checkpoint's sources and `written` those of
/// the file, which claims the tensors `claims`.
///
/// # Errors
/// The name of a tensor whose rows do not all have an origin.
pub(super) fn tensors(
    config: &ModelConfig,
    written: &ModelConfig,
    claims: &BTreeMap<String, ClaimedTensor>,
) -> Result<Vec<FileTensor>, String> {
    let by_name: BTreeMap<&str, (&String, &ClaimedTensor)> =
        claims.iter().map(|(alias, claim)| (claim.name.as_str(), (alias, claim))).collect();
    let mut tensors: Vec<FileTensor> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (part, file) in config.sources().zip(written.sources()) {
        let name = file.source.tensor.name.as_str();
        let (alias, claim) = *by_name.get(name).ok_or_else(|| name.to_owned())?;
        let (part, row_elements) = placed(&part, &file, claim).ok_or_else(|| alias.clone())?;
        let place = *places.entry(alias).or_insert_with(|| {
            let shape = squeezed(claim.stored_shape.as_ref().unwrap_or(&claim.shape));
            tensors.push(FileTensor { name: alias.clone(), shape, row_elements, parts: Vec::new() });
            tensors.len() - 1
        });
        if let Some(tensor) = tensors.get_mut(place) {
            tensor.parts.push(part);
        }
    }
    for tensor in &mut tensors {
        tensor.parts.sort_by_key(|part| part.first);
        // Layers may share a part.
        tensor.parts.dedup_by_key(|part| part.first);
        let rows: usize = tensor.parts.iter().map(|part| part.rows).sum();
        if rows != tensor.rows() {
            return Err(tensor.name.clone());
        }
    }
    Ok(tensors)
}

/// Where the file has the rows of a part, and the elements of a row. `None` if its rows have no origin.
fn placed(
    part: &PartSource<'_>,
    file: &PartSource<'_>,
    claim: &ClaimedTensor,
) -> Option<(TensorPart, usize)> {
    let change = match (part.form, file.form) {
        (ElementForm::LessOne, ElementForm::Plain) => ElementChange::PlusOne,
        (ElementForm::Logarithm, ElementForm::Negative) => ElementChange::NegativeExponential,
        (from, to) if from == to => ElementChange::None,
        _ => return None,
    };
    if part.source.tensor.name == file.source.tensor.name {
        return whole(&part.source.tensor, claim.order, change);
    }
    let (rows, widths) = file.source.dimensions().split_first()?;
    let base = file.source.expert.unwrap_or(0) * rows;
    let (first, rows) = match file.source.pick {
        RowPick::All => (base, *rows),
        RowPick::Grouped { group, first, count } if group == *rows => (base + first, count),
        _ => return None,
    };
    let order = match (claim.order, file.source.pairs) {
        (None, None) => FileOrder::Same,
        (None, Some(pairs)) => FileOrder::Pairs(pairs),
        (Some(_), _) => return None,
    };
    let part = TensorPart { first, rows, order, source: part.source.clone(), change };
    Some((part, widths.iter().product()))
}

/// A tensor that both formats have, in two orders if `order` is `Some`.
fn whole(
    tensor: &TensorSpec,
    order: Option<StoredOrder>,
    change: ElementChange,
) -> Option<(TensorPart, usize)> {
    let (rows, row_elements) = match *tensor.shape {
        [rows] => (rows, 1),
        [rows, columns] | [rows, 1, columns] => (rows, columns),
        _ => return None,
    };
    let order = match order {
        None => FileOrder::Same,
        Some(StoredOrder::Pairs { head }) => FileOrder::Pairs(RotaryPairs { head, rotated: head }),
        Some(StoredOrder::TiledRows(heads)) => FileOrder::TiledRows(heads),
        Some(StoredOrder::TiledColumns(heads)) => FileOrder::TiledColumns(heads),
    };
    let source =
        RowSource { tensor: tensor.clone(), expert: None, pick: RowPick::All, pairs: None, otherwise: None };
    Some((TensorPart { first: 0, rows, order, source, change }, row_elements))
}

/// Leaves out dimensions of 1, but not the last that is left.
fn squeezed(shape: &[usize]) -> Vec<usize> {
    let kept: Vec<usize> = shape.iter().copied().filter(|n| *n != 1).collect();
    if kept.is_empty() { vec![1] } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::SizeField;

    #[test]
    fn rows_have_the_elements_that_loading_takes() {
        let dimensions = |sizes: &[usize]| -> Vec<SizeField> {
            sizes.iter().map(|size| SizeField::new(*size, "n")).collect()
        };
        let source = |shape: &[usize], expert, pick, pairs| RowSource {
            expert,
            pick,
            pairs,
            ..RowSource::whole("w".to_owned(), &dimensions(shape))
        };
        let pairs = Some(RotaryPairs { head: 6, rotated: 4 });
        let grouped = |group, first, count| RowPick::Grouped { group, first, count };
        for (source, expected) in [
            (source(&[4, 3], None, RowPick::All, None), [(0, 1), (3, 1), (6, 1)]),
            (source(&[2, 4, 3], Some(1), RowPick::All, None), [(12, 1), (15, 1), (18, 1)]),
            (source(&[8, 3], None, grouped(8, 4, 4), None), [(12, 1), (15, 1), (18, 1)]),
            (source(&[8, 3], None, grouped(2, 1, 1), None), [(3, 1), (9, 1), (15, 1)]),
            (source(&[2, 8], Some(1), grouped(2, 1, 1), None), [(9, 1), (11, 1), (13, 1)]),
            (source(&[6, 2], None, RowPick::All, pairs), [(0, 1), (4, 1), (2, 1)]),
            (
                source(&[2, 8], None, RowPick::Transposed { first: 1, step: 2, count: 3 }, None),
                [(1, 8), (3, 8), (5, 8)],
            ),
            (
                source(&[4, 5], None, RowPick::Columns { first: 2, count: 2 }, None),
                [(10, 5), (11, 5), (12, 5)],
            ),
        ] {
            let found = [0, 1, 2].map(|row| source.elements(row).unwrap());
            assert_eq!(found, expected, "{source:?}");
        }
        for row in 0..12 {
            let pairs = RotaryPairs { head: 6, rotated: 4 };
            assert_eq!(neighboured(halved(row, pairs), pairs), row);
            assert_eq!(halved(neighboured(row, pairs), pairs), row);
        }
    }
}
