//! ggml's tensor types: numbers, names and sizes. Includes types that this project cannot compute with. Must not know
//! how blocks are laid out.

use headrace_quant::BlockType;

use crate::tensor::DType;

/// An element type of tensors in GGUF files.
#[derive(Debug, PartialEq, Eq)]
pub struct TensorType {
    /// ggml's number of the type.
    pub id: u32,
    /// ggml's name of the type.
    pub name: &'static str,
    /// Elements in a block. 1 for types without blocks.
    pub block_elements: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
}

const fn of(id: u32, name: &'static str, block_elements: usize, block_bytes: usize) -> TensorType {
    TensorType { id, name, block_elements, block_bytes }
}

/// From `ggml.h`, `ggml-common.h` and the table of `ggml.c`.
static TYPES: [TensorType; 34] = [
    of(0, "F32", 1, 4),
    of(1, "F16", 1, 2),
    of(2, "Q4_0", 32, 18),
    of(3, "Q4_1", 32, 20),
    of(6, "Q5_0", 32, 22),
    of(7, "Q5_1", 32, 24),
    of(8, "Q8_0", 32, 34),
    of(9, "Q8_1", 32, 36),
    of(10, "Q2_K", 256, 84),
    of(11, "Q3_K", 256, 110),
    of(12, "Q4_K", 256, 144),
    of(13, "Q5_K", 256, 176),
    of(14, "Q6_K", 256, 210),
    of(15, "Q8_K", 256, 292),
    of(16, "IQ2_XXS", 256, 66),
    of(17, "IQ2_XS", 256, 74),
    of(18, "IQ3_XXS", 256, 98),
    of(19, "IQ1_S", 256, 50),
    of(20, "IQ4_NL", 32, 18),
    of(21, "IQ3_S", 256, 110),
    of(22, "IQ2_S", 256, 82),
    of(23, "IQ4_XS", 256, 136),
    of(24, "I8", 1, 1),
    of(25, "I16", 1, 2),
    of(26, "I32", 1, 4),
    of(27, "I64", 1, 8),
    of(28, "F64", 1, 8),
    of(29, "IQ1_M", 256, 56),
    of(30, "BF16", 1, 2),
    of(34, "TQ1_0", 256, 54),
    of(35, "TQ2_0", 256, 66),
    of(39, "MXFP4", 32, 17),
    of(40, "NVFP4", 64, 36),
    of(41, "Q1_0", 128, 18),
];

/// The types of weights that this project computes with, as messages show them.
pub(super) const SUPPORTED: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, \
                                    IQ4_XS and MXFP4";

impl TensorType {
    /// Returns the type with ggml's number `id`.
    pub fn of(id: u32) -> Option<&'static Self> {
        TYPES.iter().find(|known| known.id == id)
    }

    /// The element type used for computation. `None` if this project cannot compute with the type.
    pub fn dtype(&self) -> Option<DType> {
        match self.id {
            0 => Some(DType::F32),
            1 => Some(DType::F16),
            30 => Some(DType::BF16),
            id => BlockType::from_ggml_id(id).map(DType::Block),
        }
    }

    /// Returns the type that stores `dtype`.
    pub fn of_dtype(dtype: DType) -> Option<&'static Self> {
        TYPES.iter().find(|known| known.dtype() == Some(dtype))
    }

    /// Size in bytes of a tensor of `shape`, outermost dimension first.
    pub(super) fn tensor_bytes(&self, shape: &[usize]) -> Result<usize, String> {
        let (inner, outer) = shape.split_last().map_or((1, shape), |(inner, outer)| (*inner, outer));
        if !inner.is_multiple_of(self.block_elements) {
            return Err(format!(
                "{shape:?} has rows of {inner}, not a multiple of {}'s blocks of {}",
                self.name, self.block_elements
            ));
        }
        let row = (inner / self.block_elements).checked_mul(self.block_bytes);
        row.and_then(|row| outer.iter().try_fold(row, |product, n| product.checked_mul(*n)))
            .ok_or_else(|| format!("{shape:?} of {} overflows", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_block_formats() {
        let mut seen = 0;
        for known in &TYPES {
            assert_eq!(TYPES.iter().filter(|other| other.id == known.id).count(), 1, "{}", known.name);
            if let Some(dtype) = known.dtype() {
                seen += 1;
                assert_eq!(dtype.name(), known.name.to_lowercase());
                assert_eq!(known.tensor_bytes(&[3, 512]).unwrap(), 3 * dtype.row_bytes(512).unwrap());
                assert_eq!(TensorType::of_dtype(dtype), Some(known));
            }
        }
        assert_eq!(seen, 16);
        let names: Vec<&str> = SUPPORTED.split(", ").flat_map(|names| names.split(" and ")).collect();
        assert_eq!(names.len(), seen);
        for name in names {
            let dtype = DType::from_name(name).unwrap();
            assert_eq!(TensorType::of_dtype(dtype).unwrap().name, name);
        }
        assert!(TYPES[2].tensor_bytes(&[2, 33]).unwrap_err().contains("rows of 33"));
        assert!(TYPES[0].tensor_bytes(&[usize::MAX, 2]).unwrap_err().contains("overflows"));
    }
}
