//! Tests of the checkpoint crate: real configurations in both spellings, refusals that name file and field, and
//! malicious bytes. The latter must not cause a panic or a read outside a file. The data is a small Qwen3 with random
//! weights and the configurations of twenty-four models.

#[cfg(test)]
mod configs;
#[cfg(test)]
mod directory;
#[cfg(test)]
mod encoders;
#[cfg(test)]
mod gemma4;
#[cfg(test)]
mod gguf;
#[cfg(test)]
mod gguf_described;
#[cfg(test)]
mod gguf_families;
#[cfg(test)]
mod gguf_hostile;
#[cfg(test)]
mod latents;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod quantized;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tensors;
#[cfg(test)]
mod text_models;
#[cfg(test)]
mod tokenizer;
#[cfg(test)]
mod wording;
