//! [`MatrixRecipe`]: how the rows of a quantized matrix are made from the tensors of a safetensors file. Checks names,
//! types and shapes when a checkpoint is opened, and decodes a matrix when it is loaded. Must not know files, or what a
//! matrix is used for.

mod fp8;
mod int4;
mod mxfp4;
mod stored;

use headrace_quant::{BlockType, WordOrder};

use crate::scheme::WeightScheme;
use crate::tensor::DType;

use fp8::Fp8Matrix;
use int4::StoredInt4;
use mxfp4::StoredMxfp4;
use stored::fault;
pub(crate) use stored::{Find, RecipeFault, StoredTensor};

/// A quantized matrix whose tensors were found to fit each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MatrixRecipe {
    /// Outputs and inputs. Stacked matrices have their number in front.
    pub(crate) shape: Vec<usize>,
    /// Element type of the rows that [`MatrixRecipe::bytes`] makes.
    pub(crate) dtype: DType,
    /// The stored type, as a table of types shows it.
    pub(crate) label: &'static str,
    /// Names of the tensors that the matrix is made from.
    pub(crate) sources: Vec<String>,
    decoder: RecipeDecoder,
}

/// What makes the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RecipeDecoder {
    Fp8(Fp8Matrix),
    Int4(StoredInt4),
    Mxfp4(StoredMxfp4),
}

impl MatrixRecipe {
    /// Returns the name of the matrix whose codes the tensor `name` holds: the one that it has without quantization, or
    /// that of the codes for stacked matrices. `None` if it holds none.
    pub(crate) fn matrix_of(scheme: &WeightScheme, name: &str, element: &str) -> Option<String> {
        let float = || fp8::is_matrix(name, element).then(|| name.to_owned());
        let ends = |end: &str| name.strip_suffix(end).map(|module| format!("{module}.weight"));
        match scheme {
            WeightScheme::Fp8(_) => float(),
            WeightScheme::Int4(_) => ends(int4::CODES),
            WeightScheme::Compressed { .. } => float().or_else(|| ends(int4::PACKED_CODES)),
            // A plain stack of that module has inputs × outputs, and these rows are outputs.
            WeightScheme::Mxfp4 => name.ends_with(mxfp4::CODES).then(|| name.to_owned()),
        }
    }

    /// Reads the recipe of the matrix whose codes the tensor `name` holds.
    ///
    /// # Errors
    /// A [`RecipeFault`] if a tensor is missing, or its type or shape does not fit the others.
    pub(crate) fn read(scheme: &WeightScheme, name: &str, find: Find<'_, '_>) -> Result<Self, RecipeFault> {
        match scheme {
            WeightScheme::Fp8(scheme) => Fp8Matrix::read(scheme, name, find).map(Self::of_fp8),
            WeightScheme::Int4(scheme) => {
                let label = if scheme.order == WordOrder::Awq { "AWQ" } else { "GPTQ" };
                StoredInt4::read(scheme, name, find).map(|matrix| Self::of_int4(matrix, label))
            }
            WeightScheme::Compressed { packed, .. } if name.ends_with(int4::PACKED_CODES) => {
                StoredInt4::read_packed(packed, name, find).map(|matrix| Self::of_int4(matrix, "INT4"))
            }
            WeightScheme::Compressed { float, .. } => Fp8Matrix::read(float, name, find).map(Self::of_fp8),
            WeightScheme::Mxfp4 => StoredMxfp4::read(name, find).map(Self::of_mxfp4),
        }
    }

    fn of_int4(matrix: StoredInt4, label: &'static str) -> Self {
        Self {
            shape: matrix.shape.to_vec(),
            dtype: matrix.block.map_or(DType::F32, DType::Block),
            label,
            sources: matrix.sources(),
            decoder: RecipeDecoder::Int4(matrix),
        }
    }

    fn of_mxfp4(matrices: StoredMxfp4) -> Self {
        Self {
            shape: matrices.shape.clone(),
            dtype: DType::Block(BlockType::Mxfp4),
            label: "MXFP4",
            sources: vec![matrices.codes.clone(), matrices.scales.clone()],
            decoder: RecipeDecoder::Mxfp4(matrices),
        }
    }

    fn of_fp8(matrix: Fp8Matrix) -> Self {
        Self {
            shape: matrix.shape.to_vec(),
            dtype: matrix.block().map_or(DType::F32, DType::Block),
            label: fp8::ELEMENT,
            sources: vec![matrix.codes.clone(), matrix.scales.clone()],
            decoder: RecipeDecoder::Fp8(matrix),
        }
    }

    /// Makes the rows: as many of [`DType::row_bytes`] as the outer dimensions multiply to.
    ///
    /// # Errors
    /// A [`RecipeFault`] if a scale or a weight is NaN or infinite.
    pub(crate) fn bytes(&self, find: Find<'_, '_>) -> Result<Vec<u8>, RecipeFault> {
        match &self.decoder {
            RecipeDecoder::Fp8(matrix) => matrix.bytes(find),
            RecipeDecoder::Int4(matrix) => matrix.bytes(find),
            RecipeDecoder::Mxfp4(matrices) => matrices.bytes(find),
        }
    }

    /// Makes the rows of one of the stacked matrices.
    ///
    /// # Errors
    /// As for [`MatrixRecipe::bytes`], and if nothing is stacked or there is no such matrix.
    pub(crate) fn stacked_bytes(&self, index: usize, find: Find<'_, '_>) -> Result<Vec<u8>, RecipeFault> {
        match &self.decoder {
            RecipeDecoder::Mxfp4(matrices) => matrices.stacked_bytes(index, find),
            RecipeDecoder::Fp8(_) | RecipeDecoder::Int4(_) => {
                let codes = self.sources.first().map_or("", String::as_str);
                Err(fault(codes, "shape", format!("is {:?}, which is no stack of matrices", self.shape)))
            }
        }
    }

    /// Bytes that [`MatrixRecipe::bytes`] makes.
    pub(crate) fn made_bytes(&self) -> u64 {
        self.dtype.tensor_bytes(&self.shape).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX)
    }
}
