//! Quantization at load time: chooses the type of each matrix, and converts rows on the pool's threads. Must not know:
//! files, or the meaning of a matrix except whether it is an output projection.

use std::borrow::Cow;
use std::sync::Mutex;

use headrace_kernels::matrix::WeightType;
use headrace_kernels::pool::Pool;
use headrace_quant::{BlockType, QuantError};

use crate::error::ModelError;

/// Number of rows quantized in one task.
const TASK_ROWS: usize = 8;

/// The role of a matrix in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The output projection, even if it is also the embedding. Small errors here move every logit.
    Head,
    /// Any other matrix.
    Inner,
}

/// Returns the type to which weights stored as `stored` are converted if `asked` is requested. Dense weights become
/// `asked`, or its stand-in with shorter blocks if `k` is not a multiple of the block length. If neither fits, they
/// stay dense. Weights that are already quantized stay as they are. The head gets at least six bits.
pub(crate) fn target(asked: Option<BlockType>, stored: WeightType, role: Role, k: usize) -> WeightType {
    let Some(asked) = asked.filter(|_| !matches!(stored, WeightType::Block(_))) else { return stored };
    let wanted = match role {
        Role::Head if asked.code_bits() < 6 => BlockType::Q6K,
        _ => asked,
    };
    let fitting = [wanted, short_block(wanted)];
    fitting.into_iter().find(|kind| k.is_multiple_of(kind.block_weights())).map_or(stored, WeightType::Block)
}

/// The stand-in with blocks of 32 for a type with blocks of 256, with no fewer bits. llama.cpp makes the same choice.
fn short_block(kind: BlockType) -> BlockType {
    match kind {
        BlockType::Q4K => BlockType::Q5_0,
        BlockType::Q5K => BlockType::Q5_1,
        BlockType::Q6K => BlockType::Q8_0,
        other => other,
    }
}

/// Converts the rows of the tensor `name` from type `stored` to `target`. Rows have `k` weights.
pub(crate) fn convert<'a>(
    pool: &mut Pool,
    name: &str,
    (stored, bytes): (WeightType, &'a [u8]),
    target: WeightType,
    k: usize,
) -> Result<Cow<'a, [u8]>, ModelError> {
    let WeightType::Block(kind) = target else { return Ok(Cow::Borrowed(bytes)) };
    let (Some(from), Some(to)) = (stored.row_bytes(k), target.row_bytes(k)) else {
        return Ok(Cow::Borrowed(bytes));
    };
    if stored == target || from == 0 {
        return Ok(Cow::Borrowed(bytes));
    }
    let rows = bytes.len() / from;
    let mut out = vec![0; rows * to];
    // Each task locks its own piece. One lock per eight rows costs almost nothing.
    let pieces: Vec<Mutex<&mut [u8]>> = out.chunks_mut(to * TASK_ROWS).map(Mutex::new).collect();
    let failed: Mutex<Option<(usize, QuantError)>> = Mutex::new(None);
    pool.run(pieces.len(), |task, _| {
        let Some(mut piece) = pieces.get(task).and_then(|piece| piece.lock().ok()) else { return };
        let sources = bytes.chunks_exact(from).skip(task * TASK_ROWS);
        for (row, (source, out)) in sources.zip(piece.chunks_exact_mut(to)).enumerate() {
            if let Err(error) = headrace_quant::quantize_row(kind, &stored.widen(source), out)
                && let Ok(mut failed) = failed.lock()
            {
                failed.get_or_insert((task * TASK_ROWS + row, error));
            }
        }
    })?;
    drop(pieces);
    match failed.into_inner().ok().flatten() {
        None => Ok(Cow::Owned(out)),
        Some((row, error)) => {
            let problem = format!("row {row} cannot be quantized to {}: {error}", kind.name());
            Err(ModelError::Tensor { name: name.to_owned(), problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_becomes_what_was_asked_for_as_far_as_its_rows_allow() {
        use BlockType::{Q4_0, Q4K, Q5_0, Q6K, Q8_0};
        let block = WeightType::Block;
        for (asked, stored, role, k, expected) in [
            (None, WeightType::Bf16, Role::Inner, 256, WeightType::Bf16),
            (Some(Q4K), WeightType::Bf16, Role::Inner, 512, block(Q4K)),
            (Some(Q4K), WeightType::Bf16, Role::Inner, 896, block(Q5_0)),
            (Some(Q4K), WeightType::Bf16, Role::Inner, 40, WeightType::Bf16),
            (Some(Q4K), WeightType::F32, Role::Head, 256, block(Q6K)),
            (Some(Q4_0), WeightType::F32, Role::Head, 96, block(Q8_0)),
            (Some(Q8_0), WeightType::F16, Role::Head, 256, block(Q8_0)),
            (Some(Q8_0), block(Q4_0), Role::Inner, 256, block(Q4_0)),
        ] {
            assert_eq!(target(asked, stored, role, k), expected, "{asked:?} of {stored:?}, {role:?}, {k}");
        }
    }
}
