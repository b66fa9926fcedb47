//! The tensors that a configuration calls for, with their shapes, and those that contradict it. Must not know what the
//! tensors are used for.

use std::borrow::Cow;

use crate::decoder::TensorSpec;
use crate::tensor::DType;

/// A tensor that must exist.
pub(crate) struct Required {
    pub(crate) name: String,
    /// One to three dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// The fields of `config.json` that give the shape, in the same order.
    pub(crate) fields: Cow<'static, str>,
}

impl From<&TensorSpec> for Required {
    fn from(tensor: &TensorSpec) -> Self {
        let fields = tensor.shown_fields().into();
        Self { name: tensor.name.clone(), shape: tensor.shape.clone(), fields }
    }
}

/// Element types that weights may have, as messages show them.
pub(crate) const SUPPORTED_DTYPES: &str = "F32, F16 and BF16";

/// The element type used for computation, by its safetensors name. `None` if this project cannot compute with it.
pub(crate) fn supported_dtype(name: &str) -> Option<DType> {
    match name {
        "F32" => Some(DType::F32),
        "F16" => Some(DType::F16),
        "BF16" => Some(DType::BF16),
        _ => None,
    }
}

/// The type that is read and nearest to one that is not. `None` if no such type holds weights.
fn nearest(element: &str) -> Option<&'static str> {
    match element {
        "IQ1_S" | "IQ1_M" | "IQ2_XXS" | "IQ2_XS" | "IQ2_S" | "TQ1_0" | "TQ2_0" | "Q1_0" => Some("Q2_K"),
        "IQ3_XXS" | "IQ3_S" => Some("Q3_K"),
        "NVFP4" => Some("MXFP4"),
        "Q8_1" | "Q8_K" => Some("Q8_0"),
        "F64" => Some("F32"),
        _ => None,
    }
}

/// Why tensors of the type `element` are refused, with those of `supported` and the way out.
pub(crate) fn not_supported(element: &str, supported: &str) -> String {
    let is_code = element.starts_with("F8_") || matches!(element, "U8" | "I8" | "I32" | "U32");
    let way_out = match nearest(element) {
        Some(nearest) => format!("; take a copy of the model in {nearest}, the nearest"),
        None if is_code && supported == SUPPORTED_DTYPES => {
            "; codes of quantized weights are read if quantization_config in config.json says their method"
                .to_owned()
        }
        None => String::new(),
    };
    format!("{element} is not supported; supported are {supported}{way_out}")
}

/// Returns why a tensor of a layer must not be there, if the architecture does not call for it. transformers drops such
/// tensors with a warning, and a mislabelled checkpoint then answers nonsense. `None` for tensors that change nothing:
/// buffers, and the scales of quantized weights.
pub(crate) fn contradiction(part: &str) -> Option<&'static str> {
    const NO_ATTENTION_BIAS: &str = "the architecture and attention_bias say that there is none";
    const NO_MLP_BIAS: &str = "the architecture and mlp_bias say that there is none";
    const NO_NORM: &str = "the architecture has no norm over query and key heads";
    const NO_TENSOR: &str = "the architecture has no such tensor";
    // The causal masks of old checkpoints.
    let is_buffer = part.ends_with("attn.bias") || part.ends_with("attention.bias");
    let (module, kind) = part.rsplit_once('.')?;
    if is_buffer || !matches!(kind, "weight" | "bias") {
        return None;
    }
    let is_attention = module.contains("attn") || module.contains("attention");
    Some(match kind {
        "bias" if is_attention => NO_ATTENTION_BIAS,
        "bias" if module.contains("mlp") => NO_MLP_BIAS,
        _ if module.ends_with("q_norm") || module.ends_with("k_norm") => NO_NORM,
        _ => NO_TENSOR,
    })
}
