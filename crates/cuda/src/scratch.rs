//! Activations of a pass: their sizes and buffers. Must not know: which operations compute them.

use crate::device::{Buffer, Device, DeviceError};
use crate::ops::padded;
use crate::options::LoadOptions;
use crate::plan::DecoderPlan;

/// Activations, for the maximum rows of a pass.
pub(crate) struct Scratch {
    /// Tokens, tables and entries of a pass. Grows on demand.
    pub(crate) inputs: Buffer,
    /// The residual stream, f32.
    pub(crate) stream: Buffer,
    /// Normalized rows, bf16.
    pub(crate) normed: Buffer,
    /// Query, key and value heads, or the output of a half before its norm, f32.
    pub(crate) projected: Buffer,
    /// Rotated queries, bf16.
    pub(crate) queries: Buffer,
    /// Attention's output, bf16. The padding of its rows is zero.
    pub(crate) attended: Buffer,
    /// Activations within the MLP, bf16.
    pub(crate) inner: Buffer,
    /// Logits of `logit_rows` rows, f32.
    pub(crate) logits: Buffer,
}

/// Initial bytes for a pass's inputs.
const FIRST_INPUT_BYTES: usize = 1 << 20;

impl Scratch {
    /// Size of each buffer in bytes.
    fn sizes(plan: &DecoderPlan<'_>, options: &LoadOptions) -> [usize; 8] {
        let (rows, heads, hidden) = (options.pass_rows, &plan.heads, plan.config.hidden_size);
        let all = (heads.heads + 2 * heads.kv_heads) * heads.head_dim;
        let projected = if plan.has_out_norms() { all.max(hidden) } else { all };
        [
            FIRST_INPUT_BYTES,
            rows * hidden * 4,
            rows * padded(hidden) * 2,
            rows * projected * 4,
            rows * heads.heads * heads.width * 2,
            rows * padded(heads.heads * heads.head_dim) * 2,
            rows * padded(plan.inner()) * 2,
            options.logit_rows * plan.config.vocab_size * 4,
        ]
    }

    pub(crate) fn bytes(plan: &DecoderPlan<'_>, options: &LoadOptions) -> usize {
        Self::sizes(plan, options).iter().sum()
    }

    /// Allocates all buffers and fills them with zeros, because no kernel writes the padding of rows.
    pub(crate) fn new(
        device: &mut dyn Device,
        plan: &DecoderPlan<'_>,
        options: &LoadOptions,
    ) -> Result<Scratch, DeviceError> {
        let mut zeros = |bytes: usize| {
            let buffer = device.allocate(bytes)?;
            device.clear(buffer)?;
            Ok(buffer)
        };
        let [inputs, stream, normed, projected, queries, attended, inner, logits] =
            Self::sizes(plan, options);
        Ok(Scratch {
            inputs: zeros(inputs)?,
            stream: zeros(stream)?,
            normed: zeros(normed)?,
            projected: zeros(projected)?,
            queries: zeros(queries)?,
            attended: zeros(attended)?,
            inner: zeros(inner)?,
            logits: zeros(logits)?,
        })
    }
}
