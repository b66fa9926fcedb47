//! Stored tensors as recipes see them, and why a recipe fails. Must not know how matrices are quantized.

use headrace_quant::{QuantError, ScaleType};

/// A tensor as a file stores it.
#[derive(Clone, Copy)]
pub(crate) struct StoredTensor<'a> {
    /// Element type, as the file spells it.
    pub(crate) element: &'static str,
    /// Dimensions, outermost first.
    pub(crate) shape: &'a [usize],
    /// Bytes, whose number is that of the type and the shape.
    pub(crate) bytes: &'a [u8],
}

/// Finds a tensor by its name.
pub(crate) type Find<'f, 'a> = &'f dyn Fn(&str) -> Option<StoredTensor<'a>>;

/// Why a quantized matrix cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecipeFault {
    /// The tensor at fault.
    pub(crate) tensor: String,
    /// The faulty property, as in [`crate::CheckpointError::Tensor`].
    pub(crate) field: &'static str,
    /// What was found and what was expected.
    pub(crate) problem: String,
}

pub(super) fn fault(tensor: &str, field: &'static str, problem: String) -> RecipeFault {
    RecipeFault { tensor: tensor.to_owned(), field, problem }
}

/// Finds a tensor that the matrix of `codes` needs.
pub(super) fn needed<'a>(
    find: Find<'_, 'a>,
    name: &str,
    codes: &str,
) -> Result<StoredTensor<'a>, RecipeFault> {
    find(name).ok_or_else(|| fault(name, "presence", format!("is missing; \"{codes}\" needs it")))
}

/// Returns the type of scales.
pub(super) fn scale_type(name: &str, tensor: StoredTensor<'_>) -> Result<ScaleType, RecipeFault> {
    match tensor.element {
        "F16" => Ok(ScaleType::F16),
        "BF16" => Ok(ScaleType::Bf16),
        "F32" => Ok(ScaleType::F32),
        other => Err(fault(name, "dtype", format!("{other} is not a scale's; F32, F16 and BF16 are"))),
    }
}

/// The fault of values that cannot be weights, in the tensor that holds them.
pub(super) fn of_values(error: QuantError, codes: &str, scales: &str) -> RecipeFault {
    let tensor = if matches!(error, QuantError::Scale { .. }) { scales } else { codes };
    fault(tensor, "values", format!("cannot be weights: {error}"))
}
