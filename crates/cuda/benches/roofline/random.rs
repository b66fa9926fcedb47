//! Random weights in the shape of an eight-billion-parameter Llama, generated without a weight file.

use std::borrow::Cow;
use std::collections::BTreeMap;

use headrace_checkpoint::{CheckpointError, DType, ModelConfig, Tensor};
use headrace_cuda::Tensors;
use headrace_cuda::device::{Buffer, Device, DeviceError};

use crate::Failure;

/// The model's configuration.
pub(crate) fn config() -> Result<ModelConfig, Failure> {
    let layers: usize = std::env::var("HEADRACE_LAYERS").map_or(Ok(32), |layers| layers.parse())?;
    let text = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": layers,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 128_256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "hidden_act": "silu",
        "tie_word_embeddings": false,
    });
    Ok(ModelConfig::from_json(text.to_string().as_bytes())?)
}

/// A tensor source in which every tensor is a piece of the same noise.
pub(crate) struct Random {
    shapes: BTreeMap<String, Vec<usize>>,
    noise: Vec<u8>,
    bytes: u64,
}

impl Random {
    pub(crate) fn new(config: &ModelConfig) -> Random {
        let shapes: BTreeMap<String, Vec<usize>> = config.tensors().into_iter().collect();
        let sizes = || shapes.values().map(|shape| shape.iter().product::<usize>() * 2);
        let (longest, bytes) = (sizes().max().unwrap_or(0), sizes().sum::<usize>() as u64);
        let noise = words(longest / 2, 3).into_iter().flat_map(u16::to_le_bytes).collect();
        Random { shapes, noise, bytes }
    }
}

impl Tensors for Random {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let (name, shape) = self.shapes.get_key_value(name).ok_or_else(|| CheckpointError::File {
            file: name.to_owned(),
            problem: "there is no such tensor".to_owned(),
        })?;
        let bytes = &self.noise[..shape.iter().product::<usize>() * 2];
        Ok(Tensor { name, dtype: DType::BF16, shape, bytes: Cow::Borrowed(bytes) })
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn release_pages(&self) {}
}

/// Random bf16 bits of values between −1/16 and 1/16.
pub(crate) fn words(count: usize, seed: u64) -> Vec<u16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count)
        .map(|_| half::bf16::from_f32(((next() >> 40) as f32 / (1 << 23) as f32 - 1.0) / 16.0).to_bits())
        .collect()
}

/// Device memory filled with random bf16 values.
pub(crate) fn fill(device: &mut dyn Device, bytes: usize, seed: u64) -> Result<Buffer, DeviceError> {
    let buffer = device.allocate(bytes)?;
    let noise: Vec<u8> =
        words((bytes / 2).min(32 << 20), seed).into_iter().flat_map(u16::to_le_bytes).collect();
    for at in (0..bytes).step_by(noise.len()) {
        let piece = noise.len().min(bytes - at);
        device.upload(buffer.part(at, piece)?, &noise[..piece])?;
    }
    Ok(buffer)
}
