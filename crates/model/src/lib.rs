//! Models over loaded weights. Decoders, given as lists of layers, implement `Forward`. BERT-like encoders,
//! ModernBERT, and decoders used as encoders implement `Encode`. Must not know: scheduling, sampling, requests, or how
//! an operation is computed, which is the task of `kernels`.

mod attention;
pub mod batch;
mod delta;
mod encoder;
mod error;
mod experts;
mod feed;
mod kv_plan;
mod latent;
mod layer;
mod layer_inputs;
mod layer_step;
mod load;
mod load_mixers;
mod mamba;
mod memory;
mod model;
mod norm;
pub mod pick;
mod quantize;
pub mod rope;
mod scratch;
mod short_conv;
mod states;
mod weights;

pub use encoder::{Encoder, EncoderOptions};
pub use error::ModelError;
pub use kv_plan::{KvBlocks, KvGroups, KvUse};
pub use load::LoadOptions;
pub use memory::{active_weight_bytes, layer_window, weight_bytes};
pub use model::Model;
pub use states::state_bytes_per_slot;
