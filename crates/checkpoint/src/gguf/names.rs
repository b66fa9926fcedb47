//! Maps tensor names of llama.cpp to those of Hugging Face, for messages. Must not know shapes.

/// Tensors outside the layers: llama.cpp's name, Hugging Face's name.
const GLOBAL: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Tensors within a layer, without `.weight` or `.bias`.
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Factors of the rotary frequencies. Hugging Face's checkpoints do not store them as a tensor.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The factors of LongRoPE: for contexts as long as in the pretraining, and for longer ones.
pub(super) const LONG_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

/// Returns Hugging Face's name for a tensor of a GGUF file. `None` for an unknown name.
pub fn to_hugging_face(name: &str) -> Option<String> {
    if let Some((_, known)) = GLOBAL.iter().find(|(other, _)| *other == name) {
        return Some((*known).to_owned());
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer = layer_number(layer)?;
    let (part, kind) = part.rsplit_once('.').filter(|(_, kind)| is_kind(kind))?;
    let (_, known) = LAYER.iter().find(|(other, _)| *other == part)?;
    Some(format!("model.layers.{layer}.{known}.{kind}"))
}

/// Parses a layer number in canonical form only, so that no two names mean the same tensor.
fn layer_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

fn is_kind(kind: &str) -> bool {
    matches!(kind, "weight" | "bias")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_translated() {
        for (gguf, theirs) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("blk.17.attn_k.bias", "model.layers.17.self_attn.k_proj.bias"),
            ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
        ] {
            assert_eq!(to_hugging_face(gguf).as_deref(), Some(theirs));
        }
        for unknown in
            ["", "blk.03.attn_q.weight", "blk.+3.attn_q.weight", "blk.3.attn_q", "blk.3.ffn_gate_exps.weight"]
        {
            assert_eq!(to_hugging_face(unknown), None, "{unknown}");
        }
    }
}
