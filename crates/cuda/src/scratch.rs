//! Activations of a pass: how large they are, and where they stand. Must not know: what computes them.

use headrace_checkpoint::ModelConfig;

use crate::device::{Buffer, Device, DeviceError};
use crate::ops::{Heads, padded};
use crate::options::LoadOptions;
use crate::weights::inner;

/// Activations, for as many rows as a pass has at most.
pub(crate) struct Scratch {
    /// Tokens, tables and entries of a pass; grows.
    pub(crate) inputs: Buffer,
    /// The residual stream, f32.
    pub(crate) stream: Buffer,
    /// Normalized rows, bf16.
    pub(crate) normed: Buffer,
    /// Query, key and value heads, f32.
    pub(crate) qkv: Buffer,
    /// Rotated queries, bf16.
    pub(crate) queries: Buffer,
    /// Attention's output, bf16. What fills up its rows is zero.
    pub(crate) attended: Buffer,
    /// The MLP's middle, bf16.
    pub(crate) inner: Buffer,
    /// f32, of `logit_rows`.
    pub(crate) logits: Buffer,
}

/// Bytes of a pass's inputs at first.
const FIRST_INPUT_BYTES: usize = 1 << 20;

impl Scratch {
    /// Bytes of each of its buffers.
    fn sizes(config: &ModelConfig, heads: &Heads, options: &LoadOptions) -> [usize; 8] {
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

    pub(crate) fn bytes(config: &ModelConfig, heads: &Heads, options: &LoadOptions) -> usize {
        Self::sizes(config, heads, options).iter().sum()
    }

    /// All of it zero: nobody writes what fills up rows.
    pub(crate) fn new(
        device: &mut dyn Device,
        config: &ModelConfig,
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
