//! The architectures of GGUF files, one row each: which class of `config.json` computes it, the members that its keys
//! become, and the changes that llama.cpp's converter makes to its tensors. Source: `conversion/` and `src/models/` of
//! llama.cpp, October 2026. Must not know how a file is read.

use crate::decoder::Architecture;

/// How files with one name in `general.architecture` are read.
pub(super) struct GgufArchitecture {
    /// The name in `general.architecture`, with which the keys of the model begin.
    pub(super) name: &'static str,
    pub(super) architecture: Architecture,
    /// The architecture of files with a sliding window, if it is another.
    pub(super) with_window: Option<Architecture>,
    /// The architecture of files with experts, if it is another.
    pub(super) with_experts: Option<Architecture>,
    /// Whether the converter reorders the rows of queries and keys, so that rotated pairs are neighbours.
    pub(super) is_permuted: bool,
    /// Whether a part of each head may be rotated.
    pub(super) rotates_part: bool,
    pub(super) window: WindowRule,
    /// The member for the epsilon of the norms. RMSNorm and LayerNorm have keys of their own.
    pub(super) eps: &'static str,
    /// Members that this class calls otherwise: the usual name, its own name.
    pub(super) names: &'static [(&'static str, &'static str)],
    /// Keys that only some architectures have, and their members.
    pub(super) keys: &'static [(&'static str, &'static str)],
    /// Members that say whether the first layer has a tensor.
    pub(super) flags: &'static [(&'static str, &'static str)],
    pub(super) experts: Option<ExpertMembers>,
    /// `Some` if the class scales queries by `query_pre_attn_scalar`. It is the hidden size divided by the heads in the
    /// model of this many layers, and the width of a head in all others.
    pub(super) query_scalar: Option<usize>,
    /// Whether the ends of YaRN's ramp are rounded to whole pairs.
    pub(super) truncates_ramp: bool,
    /// The norm before the feed-forward network.
    pub(super) feed_norm: &'static str,
}

/// What the key of the sliding window means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowRule {
    /// The class has none.
    Refused,
    /// It is that of all layers. Absent or 0 means that there is none.
    AllLayers,
    /// It is that of some layers. Absent or 0 means that there is none.
    SomeLayers,
    /// It is that of some layers. Absent means the window of the class.
    SomeLayersOrClass,
}

/// The members of a model with experts.
pub(super) struct ExpertMembers {
    pub(super) count: &'static str,
    /// Width of an expert, if it is not that of the feed-forward network.
    pub(super) width: Option<&'static str>,
    /// Width of the network that every row passes.
    pub(super) shared: Option<&'static str>,
    /// Whether the weights of the chosen are divided by their sum, if the file does not say it. `None` if the class says
    /// it.
    pub(super) renormalises: Option<bool>,
}

const BIASES: &[(&str, &str)] = &[("attention_bias", "attn_q.bias"), ("mlp_bias", "ffn_up.bias")];
const FUSED_BIASES: &[(&str, &str)] = &[("attention_bias", "attn_qkv.bias"), ("mlp_bias", "ffn_up.bias")];
const CAPS: &[(&str, &str)] = &[
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];
const GRANITE: &[(&str, &str)] = &[
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
];
const GPT2_NAMES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
];
/// Experts as wide as the feed-forward network.
const LOCAL_EXPERTS: ExpertMembers =
    ExpertMembers { count: "num_local_experts", width: None, shared: None, renormalises: None };
const QWEN_EXPERTS: ExpertMembers = ExpertMembers {
    count: "num_experts",
    width: Some("moe_intermediate_size"),
    shared: None,
    renormalises: Some(true),
};

/// Layers with RMSNorm, whole heads rotated in halves, and no window.
const PLAIN: GgufArchitecture = GgufArchitecture {
    name: "",
    architecture: Architecture::Llama,
    with_window: None,
    with_experts: None,
    is_permuted: false,
    rotates_part: false,
    window: WindowRule::Refused,
    eps: RMS_EPS,
    names: &[],
    keys: &[],
    flags: BIASES,
    experts: None,
    query_scalar: None,
    truncates_ramp: true,
    feed_norm: "ffn_norm",
};

/// The member for the epsilon of RMSNorm.
pub(super) const RMS_EPS: &str = "rms_norm_eps";

const fn plain(name: &'static str, architecture: Architecture) -> GgufArchitecture {
    GgufArchitecture { name, architecture, ..PLAIN }
}

/// Every architecture that is read, by its name in the metadata.
const ALL: &[GgufArchitecture] = &[
    GgufArchitecture {
        with_window: Some(Architecture::Mistral),
        with_experts: Some(Architecture::Mixtral),
        is_permuted: true,
        window: WindowRule::AllLayers,
        experts: Some(LOCAL_EXPERTS),
        ..plain("llama", Architecture::Llama)
    },
    plain("qwen2", Architecture::Qwen2),
    plain("qwen3", Architecture::Qwen3),
    GgufArchitecture { is_permuted: true, ..plain("smollm3", Architecture::SmolLm3) },
    plain("gemma", Architecture::Gemma),
    GgufArchitecture {
        window: WindowRule::SomeLayersOrClass,
        keys: CAPS,
        query_scalar: Some(46),
        ..plain("gemma2", Architecture::Gemma2)
    },
    GgufArchitecture {
        window: WindowRule::SomeLayers,
        keys: CAPS,
        query_scalar: Some(62),
        ..plain("gemma3", Architecture::Gemma3)
    },
    GgufArchitecture {
        is_permuted: true,
        window: WindowRule::AllLayers,
        ..plain("mistral3", Architecture::Ministral3)
    },
    GgufArchitecture { is_permuted: true, keys: GRANITE, ..plain("granite", Architecture::Granite) },
    GgufArchitecture {
        is_permuted: true,
        keys: GRANITE,
        experts: Some(LOCAL_EXPERTS),
        ..plain("granitemoe", Architecture::GraniteMoe)
    },
    GgufArchitecture {
        with_window: Some(Architecture::Olmo3),
        window: WindowRule::SomeLayers,
        ..plain("olmo2", Architecture::Olmo2)
    },
    GgufArchitecture {
        keys: &[("attention.clamp_kqv", "clip_qkv")],
        experts: Some(ExpertMembers { width: None, renormalises: Some(false), ..QWEN_EXPERTS }),
        ..plain("olmoe", Architecture::OlMoe)
    },
    GgufArchitecture {
        experts: Some(ExpertMembers {
            shared: Some("shared_expert_intermediate_size"),
            renormalises: Some(false),
            ..QWEN_EXPERTS
        }),
        // Queries, keys and values always have biases.
        flags: &[("attention_bias", "attn_output.bias")],
        ..plain("qwen2moe", Architecture::Qwen2Moe)
    },
    GgufArchitecture { experts: Some(QWEN_EXPERTS), ..plain("qwen3moe", Architecture::Qwen3Moe) },
    GgufArchitecture {
        window: WindowRule::SomeLayers,
        experts: Some(ExpertMembers { width: Some("intermediate_size"), ..LOCAL_EXPERTS }),
        truncates_ramp: false,
        feed_norm: "post_attention_norm",
        ..plain("gpt-oss", Architecture::GptOss)
    },
    GgufArchitecture {
        rotates_part: true,
        window: WindowRule::AllLayers,
        ..plain("phi3", Architecture::Phi3)
    },
    GgufArchitecture { rotates_part: true, ..plain("glm4", Architecture::Glm4) },
    GgufArchitecture { rotates_part: true, eps: "layer_norm_eps", ..plain("phi2", Architecture::Phi) },
    GgufArchitecture {
        eps: "layer_norm_eps",
        keys: &[("logit_scale", "logit_scale")],
        flags: &[("attention_bias", "attn_q.bias"), ("use_qk_norm", "attn_q_norm.weight")],
        ..plain("command-r", Architecture::Cohere)
    },
    GgufArchitecture {
        eps: "layer_norm_eps",
        keys: &[("logit_scale", "logit_scale")],
        window: WindowRule::SomeLayers,
        ..plain("cohere2", Architecture::Cohere2)
    },
    GgufArchitecture {
        eps: "norm_epsilon",
        window: WindowRule::AllLayers,
        flags: &[("use_bias", "attn_q.bias")],
        ..plain("starcoder2", Architecture::StarCoder2)
    },
    GgufArchitecture {
        eps: "layer_norm_eps",
        rotates_part: true,
        keys: &[("use_parallel_residual", "use_parallel_residual")],
        flags: &[("use_qkv_bias", "attn_q.bias"), ("qk_layernorm", "attn_q_norm.weight")],
        ..plain("stablelm", Architecture::StableLm)
    },
    GgufArchitecture {
        eps: "layer_norm_eps",
        rotates_part: true,
        keys: &[("use_parallel_residual", "use_parallel_residual")],
        flags: FUSED_BIASES,
        ..plain("gptneox", Architecture::GptNeoX)
    },
    GgufArchitecture {
        eps: "layer_norm_epsilon",
        names: GPT2_NAMES,
        flags: &[],
        ..plain("gpt2", Architecture::Gpt2)
    },
    GgufArchitecture { eps: "norm_eps", rotates_part: true, ..plain("nemotron", Architecture::Nemotron) },
];

impl GgufArchitecture {
    /// Returns the row of the architecture with this name in the metadata.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|row| row.name == name)
    }

    /// Returns this class's name for a member.
    pub(super) fn member(&self, usual: &'static str) -> &'static str {
        self.names.iter().find(|(other, _)| *other == usual).map_or(usual, |(_, own)| own)
    }

    /// Whether the architecture has a member for the key.
    pub(super) fn reads(&self, key: &str) -> bool {
        self.keys.iter().any(|(other, _)| *other == key)
    }
}

/// The names of the architectures that are read.
pub(super) fn supported() -> String {
    let names: Vec<String> = ALL.iter().map(|row| format!("\"{}\"", row.name)).collect();
    match names.split_last() {
        Some((last, others)) => format!("supported are {} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_architectures_that_are_read_from_gguf() {
        let mut rows = Vec::new();
        for row in ALL {
            let each = [Some(row.architecture), row.with_window, row.with_experts];
            for architecture in each.into_iter().flatten() {
                assert!(architecture.is_read_from_gguf(), "{}", row.name);
                assert_eq!(architecture.gguf_name(), row.name);
                rows.push(architecture);
            }
        }
        for architecture in Architecture::all() {
            assert_eq!(architecture.is_read_from_gguf(), rows.contains(&architecture), "{architecture:?}");
        }
    }
}
