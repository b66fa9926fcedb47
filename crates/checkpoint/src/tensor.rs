//! Element types and tensors, as this crate returns them. Must not know files or formats.

use std::borrow::Cow;

use headrace_quant::BlockType;

/// Element type of a tensor that this project can compute with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Blocks of quantized weights along the inner dimension.
    Block(BlockType),
}

impl DType {
    /// Size in bytes of a row of `k` weights. `None` if the row is not a whole number of blocks, or on overflow.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        match self {
            Self::F32 => k.checked_mul(4),
            Self::F16 | Self::BF16 => k.checked_mul(2),
            Self::Block(kind) => kind.row_bytes(k),
        }
    }

    /// The lower-case name: `f32`, `f16`, `bf16`, or the block format's.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Block(kind) => kind.name(),
        }
    }

    /// Returns the type with the given name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let dense = [Self::F32, Self::F16, Self::BF16];
        let dense = dense.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name));
        dense.or_else(|| BlockType::from_name(name).map(Self::Block))
    }

    /// Size in bytes of a whole tensor. `None` as for [`DType::row_bytes`], or if a block format has no dimensions.
    pub(crate) fn tensor_bytes(self, shape: &[usize]) -> Option<usize> {
        let (outer, row) = match shape.split_last() {
            Some((inner, outer)) => (outer, self.row_bytes(*inner)?),
            None => (shape, self.row_bytes(1)?),
        };
        outer.iter().try_fold(row, |product, dimension| product.checked_mul(*dimension))
    }
}

/// Returns the bytes of one of `count` equal parts that follow each other. `None` if there is no such part.
pub(crate) fn stacked_part(bytes: &[u8], index: usize, count: usize) -> Option<&[u8]> {
    let each = bytes.len().checked_div(count).filter(|each| each.checked_mul(count) == Some(bytes.len()))?;
    let start = index.checked_mul(each).filter(|_| index < count)?;
    bytes.get(start..start.checked_add(each)?)
}

/// A tensor as it is stored. Only the rows of rotated projections are reordered, if needed, to the order of Hugging
/// Face's checkpoints, and a quantized matrix whose codes and scales are tensors of their own is made from them.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// The tensor's name in Hugging Face's checkpoints.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in elements, outermost first.
    pub shape: &'a [usize],
    /// Row-major, little-endian bytes: as many rows of [`DType::row_bytes`] as the outer dimensions multiply to. **Not
    /// aligned** to the element. Owned if rows had to be reordered or made.
    pub bytes: Cow<'a, [u8]>,
}
