//! The file `config.json`: its name, and the weight formats that it may name. Must not know any architecture.

use crate::error::CheckpointError;
use crate::fields::Fields;

/// File name of the configuration.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// Refuses weight formats that this crate does not read.
pub(crate) fn refuse_formats(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    for field in ["quantization_config", "compression_config"] {
        if let Some(value) = fields.get(field) {
            return Err(fields.unsupported(field, value, "weights stored as F32, F16 or BF16 are"));
        }
    }
    for field in ["dtype", "torch_dtype"] {
        if let Some(dtype) = fields.get(field)
            && !matches!(dtype.as_str(), Some("float32" | "float16" | "bfloat16"))
        {
            return Err(fields.unsupported(field, dtype, "\"float32\", \"float16\" and \"bfloat16\" are"));
        }
    }
    Ok(())
}
