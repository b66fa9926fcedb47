//! The facts of a checkpoint, for commands and for operators: its contents, its memory, and whether it can be served here.
//! Must not know who asks.

mod decoder;
mod encoder;
mod kv;
mod layers;
mod numbers;

use std::path::Path;

use headrace_checkpoint::{EncoderCheckpoint, ModelRefusal};
use headrace_quant::BlockType;
use serde_json::Value;

/// Returns the facts as JSON. `path` is `None` for the model that is built into the program. `quantize` is the type to
/// which weights of decoders would be quantized.
///
/// # Errors
/// Why the checkpoint would be refused.
pub fn to_json(path: Option<&Path>, quantize: Option<BlockType>) -> Result<Value, ModelRefusal> {
    match path {
        Some(path) if is_encoder(path) => encoder::to_json(path),
        path => decoder::to_json(path, quantize),
    }
}

/// Returns the facts as text. `quantize` is the type to which weights of decoders would be quantized.
///
/// # Errors
/// Why the checkpoint would be refused.
pub fn to_text(path: &Path, quantize: Option<BlockType>) -> Result<String, ModelRefusal> {
    if is_encoder(path) { encoder::to_text(path) } else { decoder::to_text(path, quantize) }
}

/// Returns whether a path holds an encoder. `false` for a path that cannot be read.
pub fn is_encoder(path: &Path) -> bool {
    EncoderCheckpoint::is_one(path).unwrap_or(false)
}
