//! The file `config.json`: its name, and the weight formats that it may name. Must not know any architecture.

use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::scheme::WeightScheme;

/// File name of the configuration.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// Refuses weight formats that this crate does not read.
pub(crate) fn refuse_formats(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    WeightScheme::read(fields)?;
    refuse_dtypes(fields)
}

/// Refuses a type of all weights that this crate does not read.
pub(crate) fn refuse_dtypes(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    for field in ["dtype", "torch_dtype"] {
        if let Some(dtype) = fields.get(field)
            && !matches!(dtype.as_str(), Some("float32" | "float16" | "bfloat16"))
        {
            return Err(fields.unsupported(field, dtype, "\"float32\", \"float16\" and \"bfloat16\" are"));
        }
    }
    Ok(())
}
