//! What the tensors of a GGUF file say about its model, beside the metadata. Must not know how metadata is read.

use std::sync::Arc;

/// Facts that follow from the tensors and are not in the metadata.
pub(super) struct FoundTensors<'a> {
    /// Rows of the embedding.
    pub(super) vocab_size: usize,
    /// Whether the file has a tensor.
    pub(super) has: &'a dyn Fn(&str) -> bool,
    /// Factors of the rotary frequencies.
    pub(super) rope_factors: Option<Arc<[f32]>>,
    /// The two lists of factors of LongRoPE: for contexts as long as in the pretraining, and for longer ones.
    pub(super) long_factors: Option<[Arc<[f32]>; 2]>,
    /// Rows of the embedding of the layers' own inputs.
    pub(super) input_words: Option<usize>,
}
