//! The architectures of GGUF files, one row each: which class of `config.json` computes it, the members that its keys
//! become, and the changes that llama.cpp's converter makes to its tensors. Source: `conversion/` and `src/models/` of
//! llama.cpp, October 2026. Must not know how a file is read.

use crate::decoder::Architecture;

/// The key of the width of each layer's own input.
pub(super) const INPUT_KEY: &str = "embedding_length_per_layer_input";

/// How files with one name in `general.architecture` are read.
pub(super) struct GgufArchitecture {
    /// The name in `general.architecture`, with which the keys of the model begin.
    pub(super) name: &'static str,
    pub(super) architecture: Architecture,
    /// The architecture of files with a sliding window, if it is another.
    pub(super) with_window: Option<Architecture>,
    /// The architecture of files with experts, if it is another.
    pub(super) with_experts: Option<Architecture>,
    /// The architecture of files whose routers have a softmax, if it is another.
    pub(super) with_softmax: Option<Architecture>,
    /// Whether the converter reorders the rows of queries and keys, so that rotated pairs are neighbours.
    pub(super) is_permuted: bool,
    pub(super) rotation: RotationRule,
    pub(super) window: WindowRule,
    /// The key for the epsilon of the norms, and its member. RMSNorm and LayerNorm have keys of their own.
    pub(super) eps: (&'static str, &'static str),
    /// Members that this class calls otherwise: the usual name, its own name.
    pub(super) names: &'static [(&'static str, &'static str)],
    /// Keys that only some architectures have, and their members.
    pub(super) keys: &'static [(&'static str, &'static str)],
    /// Members that say whether some layer has a tensor.
    pub(super) flags: &'static [(&'static str, &'static str)],
    /// Recurrent layers, beside those with attention.
    pub(super) recurrent: Option<RecurrentMembers>,
    /// Whether attention is over latents.
    pub(super) is_latent: bool,
    pub(super) experts: Option<ExpertMembers>,
    /// The functions that turn a router's logits into scores, by their numbers in the format. The first is that of a file
    /// that does not say it.
    pub(super) gating: &'static [usize],
    /// `Some` if the class scales queries by `query_pre_attn_scalar`. It is the hidden size divided by the heads in the
    /// model of this many layers, and the width of a head in all others.
    pub(super) query_scalar: Option<usize>,
    /// Whether the ends of YaRN's ramp are rounded to whole pairs.
    pub(super) truncates_ramp: bool,
    /// The norm before the feed-forward network.
    pub(super) feed_norm: &'static str,
}

/// The elements of a head that are rotated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RotationRule {
    /// All.
    Whole,
    /// The first ones. The file says how many.
    Part,
    /// None, or all if the file says that the model was trained with it.
    IfTrained,
    /// None.
    Nothing,
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
    /// Whether a file may have none, as a model of the same class.
    pub(super) is_optional: bool,
    /// Width of an expert, if it is not that of the feed-forward network.
    pub(super) width: Option<&'static str>,
    /// Width of the network that every row passes.
    pub(super) shared: Option<&'static str>,
    /// Number of networks that every row passes.
    pub(super) shared_count: Option<&'static str>,
    /// Number of leading layers without experts.
    pub(super) dense_layers: Option<&'static str>,
    /// Factor on the weights of the chosen experts.
    pub(super) factor: Option<&'static str>,
    /// Whether experts may be in groups.
    pub(super) has_groups: bool,
    /// Whether the weights of the chosen are divided by their sum, if the file does not say it. `None` if the class says
    /// it.
    pub(super) renormalises: Option<bool>,
}

impl ExpertMembers {
    /// Whether the class has a member for the key.
    fn reads(&self, key: &str) -> bool {
        match key {
            "expert_shared_count" => self.shared_count.is_some(),
            "leading_dense_block_count" => self.dense_layers.is_some(),
            "expert_weights_scale" => self.factor.is_some(),
            "expert_group_count" => self.has_groups,
            _ => false,
        }
    }
}

/// The members of a model with recurrent layers.
pub(super) struct RecurrentMembers {
    /// The list of the kinds of layers.
    pub(super) kinds: &'static str,
    /// A tensor that each recurrent layer has, and no other.
    pub(super) marker: &'static str,
    pub(super) sizes: RecurrentSizes,
}

/// The members for the sizes of recurrent layers.
pub(super) enum RecurrentSizes {
    /// The usual ones, with a key for each.
    Own,
    /// Those of heads with a state.
    Heads {
        /// Number of heads.
        heads: &'static str,
        /// Elements of a head's value.
        head_dim: &'static str,
        /// How many times as wide as the embedding all heads together are.
        expansion: Option<&'static str>,
        /// Whether the values of heads are stored by their number within the group that shares a key.
        is_tiled: bool,
    },
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
/// Granite's keys and those of Mamba2, without those of its heads.
const GRANITE_HYBRID: &[(&str, &str)] = &[
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.group_count", "mamba_n_groups"),
];
const GPT2_NAMES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
];
/// Experts as wide as the feed-forward network.
const LOCAL_EXPERTS: ExpertMembers = ExpertMembers {
    count: "num_local_experts",
    is_optional: false,
    width: None,
    shared: None,
    shared_count: None,
    dense_layers: None,
    factor: None,
    has_groups: false,
    renormalises: None,
};
const QWEN_EXPERTS: ExpertMembers = ExpertMembers {
    count: "num_experts",
    width: Some("moe_intermediate_size"),
    renormalises: Some(true),
    ..LOCAL_EXPERTS
};
const QWEN_SHARED_EXPERTS: ExpertMembers =
    ExpertMembers { shared: Some("shared_expert_intermediate_size"), ..QWEN_EXPERTS };
/// Experts whose scores are sigmoids, beside networks of the same width.
const SIGMOID_EXPERTS: ExpertMembers = ExpertMembers {
    count: "n_routed_experts",
    width: Some("moe_intermediate_size"),
    shared_count: Some("n_shared_experts"),
    dense_layers: Some("first_k_dense_replace"),
    factor: Some("routed_scaling_factor"),
    has_groups: true,
    renormalises: Some(false),
    ..LOCAL_EXPERTS
};
/// The keys of the delta rule, without those of its heads.
const DELTA: &[(&str, &str)] = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
];
const NEMOTRON_H: &[(&str, &str)] = &[
    ("ssm.conv_kernel", "conv_kernel"),
    ("ssm.state_size", "ssm_state_size"),
    ("ssm.group_count", "n_groups"),
    ("moe_latent_size", "moe_latent_size"),
];
const SHORT_CONVOLUTIONS: RecurrentMembers =
    RecurrentMembers { kinds: "layer_types", marker: "shortconv.conv.weight", sizes: RecurrentSizes::Own };

const fn delta_layers(is_tiled: bool) -> RecurrentMembers {
    RecurrentMembers {
        kinds: "layer_types",
        marker: "ssm_a",
        sizes: RecurrentSizes::Heads {
            heads: "linear_num_value_heads",
            head_dim: "linear_value_head_dim",
            expansion: None,
            is_tiled,
        },
    }
}

/// Qwen3.5 and Qwen3-Next: the delta rule in most layers.
const fn delta(name: &'static str, architecture: Architecture, is_tiled: bool) -> GgufArchitecture {
    GgufArchitecture {
        rotation: RotationRule::Part,
        keys: DELTA,
        flags: &[("attention_bias", "attn_q.bias")],
        recurrent: Some(delta_layers(is_tiled)),
        feed_norm: "post_attention_norm",
        ..plain(name, architecture)
    }
}

/// Nemotron-H, with experts or without.
const fn nemotron_h(name: &'static str) -> GgufArchitecture {
    GgufArchitecture {
        eps: (RMS_EPS.0, "layer_norm_epsilon"),
        rotation: RotationRule::Nothing,
        keys: NEMOTRON_H,
        flags: &[
            ("attention_bias", "attn_q.bias"),
            ("mlp_bias", "ffn_up.bias"),
            ("use_bias", "ssm_in.bias"),
            ("use_conv_bias", "ssm_conv1d.bias"),
        ],
        recurrent: Some(RecurrentMembers {
            kinds: "layers_block_type",
            marker: "ssm_a",
            sizes: RecurrentSizes::Heads {
                heads: "mamba_num_heads",
                head_dim: "mamba_head_dim",
                expansion: None,
                is_tiled: false,
            },
        }),
        gating: SIGMOID,
        feed_norm: "attn_norm",
        ..plain(name, Architecture::NemotronH)
    }
}

const SOFTMAX: &[usize] = &[1];
const SIGMOID: &[usize] = &[2];

/// Layers with RMSNorm, whole heads rotated in halves, and no window.
const PLAIN: GgufArchitecture = GgufArchitecture {
    name: "",
    architecture: Architecture::Llama,
    with_window: None,
    with_experts: None,
    with_softmax: None,
    is_permuted: false,
    rotation: RotationRule::Whole,
    window: WindowRule::Refused,
    eps: RMS_EPS,
    names: &[],
    keys: &[],
    flags: BIASES,
    recurrent: None,
    is_latent: false,
    experts: None,
    gating: SOFTMAX,
    query_scalar: None,
    truncates_ramp: true,
    feed_norm: "ffn_norm",
};

/// The key for the epsilon of RMSNorm, and its usual member.
const RMS_EPS: (&str, &str) = ("attention.layer_norm_rms_epsilon", "rms_norm_eps");
/// The key for the epsilon of LayerNorm.
const LAYER_EPS: &str = "attention.layer_norm_epsilon";

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
    // The text models of models that also take images. Their sections of positions are equal for text.
    plain("qwen2vl", Architecture::Qwen2),
    plain("qwen3vl", Architecture::Qwen3),
    GgufArchitecture { experts: Some(QWEN_EXPERTS), ..plain("qwen3vlmoe", Architecture::Qwen3Moe) },
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
        experts: Some(ExpertMembers { renormalises: Some(false), ..QWEN_SHARED_EXPERTS }),
        // Queries, keys and values always have biases.
        flags: &[("attention_bias", "attn_output.bias")],
        ..plain("qwen2moe", Architecture::Qwen2Moe)
    },
    GgufArchitecture { experts: Some(QWEN_EXPERTS), ..plain("qwen3moe", Architecture::Qwen3Moe) },
    GgufArchitecture {
        window: WindowRule::SomeLayers,
        experts: Some(ExpertMembers { width: Some("intermediate_size"), ..LOCAL_EXPERTS }),
        truncates_ramp: false,
        gating: &[3],
        feed_norm: "post_attention_norm",
        ..plain("gpt-oss", Architecture::GptOss)
    },
    GgufArchitecture {
        rotation: RotationRule::Part,
        window: WindowRule::AllLayers,
        ..plain("phi3", Architecture::Phi3)
    },
    GgufArchitecture { rotation: RotationRule::Part, ..plain("glm4", Architecture::Glm4) },
    GgufArchitecture {
        rotation: RotationRule::Part,
        eps: (LAYER_EPS, "layer_norm_eps"),
        ..plain("phi2", Architecture::Phi)
    },
    GgufArchitecture {
        eps: (LAYER_EPS, "layer_norm_eps"),
        keys: &[("logit_scale", "logit_scale")],
        flags: &[("attention_bias", "attn_q.bias"), ("use_qk_norm", "attn_q_norm.weight")],
        ..plain("command-r", Architecture::Cohere)
    },
    GgufArchitecture {
        eps: (LAYER_EPS, "layer_norm_eps"),
        keys: &[("logit_scale", "logit_scale")],
        window: WindowRule::SomeLayers,
        ..plain("cohere2", Architecture::Cohere2)
    },
    GgufArchitecture {
        eps: (LAYER_EPS, "norm_epsilon"),
        window: WindowRule::AllLayers,
        flags: &[("use_bias", "attn_q.bias")],
        ..plain("starcoder2", Architecture::StarCoder2)
    },
    GgufArchitecture {
        eps: (LAYER_EPS, "layer_norm_eps"),
        rotation: RotationRule::Part,
        keys: &[("use_parallel_residual", "use_parallel_residual")],
        flags: &[("use_qkv_bias", "attn_q.bias"), ("qk_layernorm", "attn_q_norm.weight")],
        ..plain("stablelm", Architecture::StableLm)
    },
    GgufArchitecture {
        eps: (LAYER_EPS, "layer_norm_eps"),
        rotation: RotationRule::Part,
        keys: &[("use_parallel_residual", "use_parallel_residual")],
        flags: FUSED_BIASES,
        ..plain("gptneox", Architecture::GptNeoX)
    },
    GgufArchitecture {
        eps: (LAYER_EPS, "layer_norm_epsilon"),
        names: GPT2_NAMES,
        flags: &[],
        ..plain("gpt2", Architecture::Gpt2)
    },
    GgufArchitecture {
        eps: (LAYER_EPS, "norm_eps"),
        rotation: RotationRule::Part,
        ..plain("nemotron", Architecture::Nemotron)
    },
    delta("qwen35", Architecture::Qwen35, true),
    GgufArchitecture {
        experts: Some(QWEN_SHARED_EXPERTS),
        ..delta("qwen35moe", Architecture::Qwen35Moe, true)
    },
    GgufArchitecture {
        experts: Some(QWEN_SHARED_EXPERTS),
        ..delta("qwen3next", Architecture::Qwen3Next, false)
    },
    GgufArchitecture {
        eps: (RMS_EPS.0, "norm_eps"),
        keys: &[("shortconv.l_cache", "conv_L_cache")],
        flags: &[("conv_bias", "shortconv.conv.bias")],
        recurrent: Some(SHORT_CONVOLUTIONS),
        ..plain("lfm2", Architecture::Lfm2)
    },
    GgufArchitecture {
        eps: (RMS_EPS.0, "norm_eps"),
        keys: &[("shortconv.l_cache", "conv_L_cache")],
        flags: &[("conv_bias", "shortconv.conv.bias"), ("use_expert_bias", "exp_probs_b.bias")],
        recurrent: Some(SHORT_CONVOLUTIONS),
        experts: Some(ExpertMembers {
            dense_layers: Some("num_dense_layers"),
            factor: Some("routed_scaling_factor"),
            ..QWEN_EXPERTS
        }),
        gating: SIGMOID,
        ..plain("lfm2moe", Architecture::Lfm2Moe)
    },
    GgufArchitecture {
        is_permuted: true,
        rotation: RotationRule::IfTrained,
        keys: GRANITE_HYBRID,
        flags: &[
            ("attention_bias", "attn_q.bias"),
            ("mamba_proj_bias", "ssm_in.bias"),
            ("mamba_conv_bias", "ssm_conv1d.bias"),
        ],
        recurrent: Some(RecurrentMembers {
            kinds: "layer_types",
            marker: "ssm_a",
            sizes: RecurrentSizes::Heads {
                heads: "mamba_n_heads",
                head_dim: "mamba_d_head",
                expansion: Some("mamba_expand"),
                is_tiled: false,
            },
        }),
        experts: Some(ExpertMembers {
            is_optional: true,
            shared: Some("shared_intermediate_size"),
            ..LOCAL_EXPERTS
        }),
        ..plain("granitehybrid", Architecture::GraniteHybrid)
    },
    nemotron_h("nemotron_h"),
    GgufArchitecture {
        experts: Some(ExpertMembers {
            shared: Some("moe_shared_expert_intermediate_size"),
            dense_layers: None,
            ..SIGMOID_EXPERTS
        }),
        ..nemotron_h("nemotron_h_moe")
    },
    GgufArchitecture {
        with_softmax: Some(Architecture::DeepseekV2),
        // Also of GLM-4.7-Flash, whose class computes the same.
        keys: &[("attention.q_lora_rank", "q_lora_rank"), ("attention.kv_lora_rank", "kv_lora_rank")],
        flags: &[("attention_bias", "attn_q_a.bias")],
        is_latent: true,
        experts: Some(SIGMOID_EXPERTS),
        gating: &[1, 2],
        ..plain("deepseek2", Architecture::DeepseekV3)
    },
    GgufArchitecture {
        rotation: RotationRule::Part,
        flags: &[("attention_bias", "attn_q.bias"), ("use_qk_norm", "attn_q_norm.weight")],
        experts: Some(SIGMOID_EXPERTS),
        gating: SIGMOID,
        feed_norm: "post_attention_norm",
        ..plain("glm4moe", Architecture::Glm4Moe)
    },
    GgufArchitecture {
        window: WindowRule::SomeLayers,
        names: &[("num_experts_per_tok", "top_k_experts")],
        keys: CAPS,
        flags: &[("attention_bias", "attn_q.bias")],
        experts: Some(ExpertMembers { is_optional: true, renormalises: None, ..QWEN_EXPERTS }),
        ..plain("gemma4", Architecture::Gemma4)
    },
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

    /// Whether the heads of the delta rule's values are stored by their number within a group.
    pub(super) fn is_tiled(&self) -> bool {
        self.recurrent
            .as_ref()
            .is_some_and(|members| matches!(members.sizes, RecurrentSizes::Heads { is_tiled: true, .. }))
    }

    /// Whether the architecture has a member for the key.
    pub(super) fn reads(&self, key: &str) -> bool {
        self.keys.iter().any(|(other, _)| *other == key)
            || self.experts.as_ref().is_some_and(|experts| experts.reads(key))
            || (self.architecture == Architecture::Gemma4 && key == INPUT_KEY)
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
        // Files of GLM-4.7-Flash are read as those of DeepSeek V3, because they are the same.
        let mut rows = vec![Architecture::Glm4MoeLite];
        for row in ALL {
            let each = [Some(row.architecture), row.with_window, row.with_experts, row.with_softmax];
            for architecture in each.into_iter().flatten() {
                assert!(architecture.is_read_from_gguf(), "{}", row.name);
                assert!(architecture.gguf_names().any(|name| name == row.name), "{}", row.name);
                rows.push(architecture);
            }
        }
        for architecture in Architecture::all() {
            assert_eq!(architecture.is_read_from_gguf(), rows.contains(&architecture), "{architecture:?}");
        }
    }
}
