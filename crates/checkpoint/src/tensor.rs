//! Element types and tensors, as the room gives them out. Must not know files or formats.

use std::borrow::Cow;

use headrace_quant::BlockType;

/// Element type of a tensor that can be computed with.
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
    /// Bytes of a row of `k` weights; none when that is not a whole number of blocks, or too many to count.
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

    /// The type of that name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let dense = [Self::F32, Self::F16, Self::BF16];
        let dense = dense.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name));
        dense.or_else(|| BlockType::from_name(name).map(Self::Block))
    }

    /// Bytes of a whole tensor; none as for [`DType::row_bytes`], and for one without dimensions of a block format.
    pub(crate) fn tensor_bytes(self, shape: &[usize]) -> Option<usize> {
        let (outer, row) = match shape.split_last() {
            Some((inner, outer)) => (outer, self.row_bytes(*inner)?),
            None => (shape, self.row_bytes(1)?),
        };
        outer.iter().try_fold(row, |product, dimension| product.checked_mul(*dimension))
    }
}

/// A tensor as it is stored, save that the rows of rotated projections are in the order of Hugging Face's checkpoints
/// whatever file they come from.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Its name in Hugging Face's checkpoints.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in elements, outermost first.
    pub shape: &'a [usize],
    /// Row-major, little-endian; as many rows as the outer dimensions make, of [`DType::row_bytes`] each. **Not
    /// aligned** to the element. Owned where rows had to be put in order.
    pub bytes: Cow<'a, [u8]>,
}
