//! Activations of a pass: their sizes and buffers. Must not know: which operations compute them.

use headrace_checkpoint::UniformConfig;

use crate::device::{Buffer, Device, DeviceError};
use crate::ops::{Heads, padded};
use crate::options::LoadOptions;
use crate::weights::inner;

/// Activations, for the maximum rows of a pass.
pub(crate) struct Scratch {
    /// Tokens, tables and entries of a pass. Grows on demand.
    pub(crate) inputs: Buffer,
    /// The residual stream, f32.
    pub(crate) stream: Buffer,
    /// Normalized rows, bf16.
    pub(crate) normed: Buffer,
    /// Query, key and value heads, f32.
    pub(crate) qkv: Buffer,
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
    fn sizes(config: &UniformConfig, heads: &Heads, options: &LoadOptions) -> [usize; 8] {
        let (rows, all) = (options.pass_rows, heads.heads + 2 * heads.kv_heads);
        [
            FIRST_INPUT_BYTES,
            rows * config.hidden_size * 4,
            rows * padded(config.hidden_size) * 2,
            rows * all * heads.head_dim * 4,
            rows * heads.heads * heads.width * 2,
            rows * padded(heads.heads * heads.head_dim) * 2,
            rows * inner(config) * 2,
            options.logit_rows * config.vocab_size * 4,
        ]
    }

    pub(crate) fn bytes(config: &UniformConfig, heads: &Heads, options: &LoadOptions) -> usize {
        Self::sizes(config, heads, options).iter().sum()
    }

    /// Allocates all buffers and fills them with zeros, because no kernel writes the padding of rows.
    pub(crate) fn new(
        device: &mut dyn Device,
        config: &UniformConfig,
        heads: &Heads,
        options: &LoadOptions,
    ) -> Result<Scratch, DeviceError> {
        let mut zeros = |bytes: usize| {
            let buffer = device.allocate(bytes)?;
            device.clear(buffer)?;
            Ok(buffer)
        };
        let [inputs, stream, normed, qkv, queries, attended, inner, logits] =
            Self::sizes(config, heads, options);
        Ok(Scratch {
            inputs: zeros(inputs)?,
            stream: zeros(stream)?,
            normed: zeros(normed)?,
            qkv: zeros(qkv)?,
            queries: zeros(queries)?,
            attended: zeros(attended)?,
            inner: zeros(inner)?,
            logits: zeros(logits)?,
        })
    }
}
