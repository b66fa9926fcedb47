//! Stacked matrices of MXFP4, as gpt-oss stores its experts: `X_blocks` of bytes `[matrices, rows, blocks, 16]` and
//! `X_scales` of bytes `[matrices, rows, blocks]`. A block holds 32 weights of a row.

use headrace_quant::mxfp4_blocks;

use super::stored::{Find, RecipeFault, fault, needed, of_values};
use crate::tensor::stacked_part;

/// The end of the name of the codes.
pub(super) const CODES: &str = "_blocks";
/// The end of the name of the scales.
const SCALES: &str = "_scales";
/// Bytes of codes in a block.
const BLOCK_BYTES: usize = 16;
/// Weights in a block.
const BLOCK_WEIGHTS: usize = 32;

/// The tensors of stacked matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredMxfp4 {
    /// Number of matrices, rows and columns.
    pub(super) shape: Vec<usize>,
    /// Name of the tensor of codes.
    pub(super) codes: String,
    /// Name of the tensor of scales.
    pub(super) scales: String,
}

impl StoredMxfp4 {
    /// Reads the recipe of the matrices whose codes are the tensor `name`.
    pub(super) fn read(name: &str, find: Find<'_, '_>) -> Result<Self, RecipeFault> {
        let codes = needed(find, name, name)?;
        let scales = format!("{}{SCALES}", name.strip_suffix(CODES).unwrap_or(name));
        let found = needed(find, &scales, name)?;
        for (name, tensor) in [(name, codes), (scales.as_str(), found)] {
            if tensor.element != "U8" {
                return Err(fault(name, "dtype", format!("{} is not supported; U8 is", tensor.element)));
            }
        }
        let rows = match codes.shape {
            [outer @ .., blocks, BLOCK_BYTES]
                if !outer.is_empty() && found.shape == [outer, &[*blocks]].concat() =>
            {
                blocks.checked_mul(BLOCK_WEIGHTS).map(|columns| [outer, &[columns]].concat())
            }
            _ => None,
        };
        let Some(shape) = rows.filter(|shape| shape.iter().all(|size| *size > 0)) else {
            let problem = format!(
                "is {:?}, and \"{scales}\" is {:?}; expected [matrices, rows, blocks, {BLOCK_BYTES}] and [matrices, rows, blocks]",
                codes.shape, found.shape
            );
            return Err(fault(name, "shape", problem));
        };
        Ok(Self { shape, codes: name.to_owned(), scales })
    }

    /// Makes the rows of one matrix, as GGUF's MXFP4 blocks.
    pub(super) fn stacked_bytes(&self, index: usize, find: Find<'_, '_>) -> Result<Vec<u8>, RecipeFault> {
        let codes = needed(find, &self.codes, &self.codes)?.bytes;
        let scales = needed(find, &self.scales, &self.codes)?.bytes;
        let count = self.shape.first().copied().unwrap_or(0);
        let parts = stacked_part(codes, index, count).zip(stacked_part(scales, index, count));
        let (codes, scales) = parts
            .ok_or_else(|| fault(&self.codes, "shape", format!("has {count} matrices, and no {index}")))?;
        mxfp4_blocks(codes, scales).map_err(|error| {
            let RecipeFault { tensor, field, problem } = of_values(error, &self.codes, &self.scales);
            RecipeFault { tensor, field, problem: format!("of matrix {index} {problem}") }
        })
    }

    /// Makes the rows of all matrices, as GGUF's MXFP4 blocks.
    pub(super) fn bytes(&self, find: Find<'_, '_>) -> Result<Vec<u8>, RecipeFault> {
        let codes = needed(find, &self.codes, &self.codes)?.bytes;
        let scales = needed(find, &self.scales, &self.codes)?.bytes;
        mxfp4_blocks(codes, scales).map_err(|error| of_values(error, &self.codes, &self.scales))
    }
}
