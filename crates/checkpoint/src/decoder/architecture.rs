//! The names of the decoder architectures in the formats that checkpoints come in.

/// A decoder architecture that this project can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// `LlamaForCausalLM`: RMSNorm, RoPE, grouped-query attention, SwiGLU.
    Llama,
    /// `Qwen2ForCausalLM`: like Llama, with biases on the query, key and value projections.
    Qwen2,
    /// `Qwen3ForCausalLM`: like Llama, with RMSNorm over each query and key head.
    Qwen3,
    /// `SmolLM3ForCausalLM`: like Llama, without rotation in every fourth layer.
    SmolLm3,
    /// `GemmaForCausalLM`.
    Gemma,
    /// `Gemma2ForCausalLM`.
    Gemma2,
    /// `Gemma3ForCausalLM`, also within `Gemma3ForConditionalGeneration`.
    Gemma3,
    /// `Gemma4ForCausalLM`, also within `Gemma4ForConditionalGeneration`.
    Gemma4,
    /// `MistralForCausalLM`, also within `Mistral3ForConditionalGeneration`.
    Mistral,
    /// `Ministral3ForCausalLM`, also within `Mistral3ForConditionalGeneration`.
    Ministral3,
    /// `GraniteForCausalLM`.
    Granite,
    /// `Olmo2ForCausalLM`.
    Olmo2,
    /// `Olmo3ForCausalLM`.
    Olmo3,
    /// `Phi3ForCausalLM`, also of Phi-4.
    Phi3,
    /// `PhiForCausalLM`: Phi-1 and Phi-2.
    Phi,
    /// `GPT2LMHeadModel`.
    Gpt2,
    /// `GPTNeoXForCausalLM`.
    GptNeoX,
    /// `Starcoder2ForCausalLM`.
    StarCoder2,
    /// `CohereForCausalLM`.
    Cohere,
    /// `Cohere2ForCausalLM`.
    Cohere2,
    /// `StableLmForCausalLM`.
    StableLm,
    /// `NemotronForCausalLM`.
    Nemotron,
    /// `Glm4ForCausalLM`.
    Glm4,
    /// `MixtralForCausalLM`.
    Mixtral,
    /// `Qwen2MoeForCausalLM`.
    Qwen2Moe,
    /// `Qwen3MoeForCausalLM`.
    Qwen3Moe,
    /// `OlmoeForCausalLM`.
    OlMoe,
    /// `GptOssForCausalLM`.
    GptOss,
    /// `GraniteMoeForCausalLM`.
    GraniteMoe,
    /// `Lfm2ForCausalLM`: short convolutions and attention.
    Lfm2,
    /// `Lfm2MoeForCausalLM`.
    Lfm2Moe,
    /// `Qwen3_5ForCausalLM`, also within `Qwen3_5ForConditionalGeneration`: gated delta rule and attention.
    Qwen35,
    /// `Qwen3_5MoeForCausalLM`, also within `Qwen3_5MoeForConditionalGeneration`.
    Qwen35Moe,
    /// `Qwen3NextForCausalLM`.
    Qwen3Next,
    /// `GraniteMoeHybridForCausalLM`: Mamba2 and attention.
    GraniteHybrid,
    /// `NemotronHForCausalLM`: Mamba2, attention and feed-forward networks, each a layer of its own.
    NemotronH,
    /// `DeepseekV2ForCausalLM`, also of V2-Lite.
    DeepseekV2,
    /// `DeepseekV3ForCausalLM`, also of Kimi K2.
    DeepseekV3,
    /// `Glm4MoeLiteForCausalLM`: GLM-4.7-Flash.
    Glm4MoeLite,
    /// `Glm4MoeForCausalLM`: GLM-4.5 to 4.7.
    Glm4Moe,
}

/// The names and defaults of an architecture.
struct ArchitectureNames {
    architecture: Architecture,
    /// The class in `architectures` of `config.json`.
    class: &'static str,
    /// `model_type` of `config.json`.
    model_type: &'static str,
    /// `general.architecture` of a GGUF file.
    gguf: &'static str,
    /// `max_position_embeddings` if a configuration gives none.
    positions: usize,
    /// Well-known checkpoints, for people.
    checkpoints: &'static str,
}

impl ArchitectureNames {
    const fn of(self, checkpoints: &'static str) -> Self {
        Self { checkpoints, ..self }
    }
}

const ALL: &[ArchitectureNames] = &[
    named(Architecture::Llama, "LlamaForCausalLM", "llama", "llama", 2_048)
        .of("Llama 2 to 3.3, TinyLlama, Yi, R1 distillations to Llama"),
    named(Architecture::Qwen2, "Qwen2ForCausalLM", "qwen2", "qwen2", 32_768)
        .of("Qwen2, Qwen2.5, QwQ, R1 distillations to Qwen"),
    named(Architecture::Qwen3, "Qwen3ForCausalLM", "qwen3", "qwen3", 32_768)
        .of("Qwen3 0.6B to 32B, Qwen3-VL 2B to 32B (text)"),
    named(Architecture::SmolLm3, "SmolLM3ForCausalLM", "smollm3", "smollm3", 32_768).of("SmolLM3"),
    named(Architecture::Gemma, "GemmaForCausalLM", "gemma", "gemma", 8_192).of("Gemma 1"),
    named(Architecture::Gemma2, "Gemma2ForCausalLM", "gemma2", "gemma2", 8_192).of("Gemma 2"),
    named(Architecture::Gemma3, "Gemma3ForCausalLM", "gemma3_text", "gemma3", 131_072)
        .of("Gemma 3 (text, also of files with a vision part)"),
    named(Architecture::Gemma4, "Gemma4ForCausalLM", "gemma4_text", "gemma4", 131_072)
        .of("Gemma 4 E2B to 31B and 26B-A4B (text, also of files with a vision or audio part)"),
    named(Architecture::Mistral, "MistralForCausalLM", "mistral", "llama", 131_072)
        .of("Mistral 7B, Nemo, Small (text, also of files with a vision part)"),
    named(Architecture::Ministral3, "Ministral3ForCausalLM", "ministral3", "mistral3", 131_072)
        .of("Ministral 3 (text, also of files with a vision part)"),
    named(Architecture::Granite, "GraniteForCausalLM", "granite", "granite", 2_048)
        .of("Granite 3, Granite 4 dense"),
    named(Architecture::Olmo2, "Olmo2ForCausalLM", "olmo2", "olmo2", 2_048).of("OLMo 2"),
    named(Architecture::Olmo3, "Olmo3ForCausalLM", "olmo3", "olmo2", 65_536).of("OLMo 3"),
    named(Architecture::Phi3, "Phi3ForCausalLM", "phi3", "phi3", 4_096).of("Phi-3, Phi-3.5, Phi-4"),
    named(Architecture::Phi, "PhiForCausalLM", "phi", "phi2", 2_048).of("Phi-1.5, Phi-2"),
    named(Architecture::Gpt2, "GPT2LMHeadModel", "gpt2", "gpt2", 1_024).of("GPT-2"),
    named(Architecture::GptNeoX, "GPTNeoXForCausalLM", "gpt_neox", "gptneox", 2_048).of("Pythia, GPT-NeoX"),
    named(Architecture::StarCoder2, "Starcoder2ForCausalLM", "starcoder2", "starcoder2", 4_096)
        .of("StarCoder 2"),
    named(Architecture::Cohere, "CohereForCausalLM", "cohere", "command-r", 8_192).of("Command R"),
    named(Architecture::Cohere2, "Cohere2ForCausalLM", "cohere2", "cohere2", 8_192)
        .of("Command R7B, Command A"),
    named(Architecture::StableLm, "StableLmForCausalLM", "stablelm", "stablelm", 4_096).of("StableLM 2"),
    named(Architecture::Nemotron, "NemotronForCausalLM", "nemotron", "nemotron", 4_096)
        .of("Nemotron 4, Minitron"),
    named(Architecture::Glm4, "Glm4ForCausalLM", "glm4", "glm4", 131_072).of("GLM-4 0414, GLM-4.1V (text)"),
    named(Architecture::Mixtral, "MixtralForCausalLM", "mixtral", "llama", 131_072).of("Mixtral 8x7B, 8x22B"),
    named(Architecture::Qwen2Moe, "Qwen2MoeForCausalLM", "qwen2_moe", "qwen2moe", 32_768)
        .of("Qwen1.5-MoE, Qwen2-57B-A14B"),
    named(Architecture::Qwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe", "qwen3moe", 32_768)
        .of("Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, Qwen3-235B-A22B, Qwen3-VL-30B-A3B and 235B-A22B (text)"),
    named(Architecture::OlMoe, "OlmoeForCausalLM", "olmoe", "olmoe", 4_096).of("OLMoE"),
    named(Architecture::GptOss, "GptOssForCausalLM", "gpt_oss", "gpt-oss", 131_072)
        .of("gpt-oss, in MXFP4 and bf16"),
    named(Architecture::GraniteMoe, "GraniteMoeForCausalLM", "granitemoe", "granitemoe", 2_048)
        .of("Granite 3 MoE"),
    named(Architecture::Lfm2, "Lfm2ForCausalLM", "lfm2", "lfm2", 128_000).of("LFM2 350M to 2.6B"),
    named(Architecture::Lfm2Moe, "Lfm2MoeForCausalLM", "lfm2_moe", "lfm2moe", 128_000).of("LFM2-8B-A1B"),
    named(Architecture::Qwen35, "Qwen3_5ForCausalLM", "qwen3_5_text", "qwen35", 32_768)
        .of("Qwen3.5 and 3.6 dense (text, also of files with a vision part)"),
    named(Architecture::Qwen35Moe, "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "qwen35moe", 32_768)
        .of("Qwen3.5-35B-A3B, Qwen3.6-35B-A3B (text, also of files with a vision part)"),
    named(Architecture::Qwen3Next, "Qwen3NextForCausalLM", "qwen3_next", "qwen3next", 32_768)
        .of("Qwen3-Next-80B-A3B, Qwen3-Coder-Next"),
    named(
        Architecture::GraniteHybrid,
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        "granitehybrid",
        2_048,
    )
    .of("Granite 4 Micro, Tiny and Small, hybrid or not"),
    named(Architecture::NemotronH, "NemotronHForCausalLM", "nemotron_h", "nemotron_h", 4_096)
        .of("Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano"),
    named(Architecture::DeepseekV2, "DeepseekV2ForCausalLM", "deepseek_v2", "deepseek2", 2_048)
        .of("DeepSeek V2, V2-Lite, Coder V2"),
    named(Architecture::DeepseekV3, "DeepseekV3ForCausalLM", "deepseek_v3", "deepseek2", 4_096)
        .of("DeepSeek V3, R1, V3.1, Kimi K2, Moonlight"),
    named(Architecture::Glm4MoeLite, "Glm4MoeLiteForCausalLM", "glm4_moe_lite", "deepseek2", 202_752)
        .of("GLM-4.7-Flash"),
    named(Architecture::Glm4Moe, "Glm4MoeForCausalLM", "glm4_moe", "glm4moe", 131_072)
        .of("GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7, GLM-4.5V (text)"),
];

/// Architectures that GGUF files are read of.
const GGUF: &[Architecture] = &[
    Architecture::Llama,
    Architecture::Qwen2,
    Architecture::Qwen3,
    Architecture::SmolLm3,
    Architecture::Gemma,
    Architecture::Gemma2,
    Architecture::Gemma3,
    Architecture::Mistral,
    Architecture::Ministral3,
    Architecture::Granite,
    Architecture::Olmo2,
    Architecture::Olmo3,
    Architecture::Phi3,
    Architecture::Phi,
    Architecture::Gpt2,
    Architecture::GptNeoX,
    Architecture::StarCoder2,
    Architecture::Cohere,
    Architecture::Cohere2,
    Architecture::StableLm,
    Architecture::Nemotron,
    Architecture::Glm4,
    Architecture::Mixtral,
    Architecture::Qwen2Moe,
    Architecture::Qwen3Moe,
    Architecture::OlMoe,
    Architecture::GptOss,
    Architecture::GraniteMoe,
    Architecture::Lfm2,
    Architecture::Lfm2Moe,
    Architecture::Qwen35,
    Architecture::Qwen35Moe,
    Architecture::Qwen3Next,
    Architecture::GraniteHybrid,
    Architecture::NemotronH,
    Architecture::DeepseekV2,
    Architecture::DeepseekV3,
    Architecture::Glm4MoeLite,
    Architecture::Glm4Moe,
    Architecture::Gemma4,
];

/// Classes of models that also take images. Their text model is described in `text_config`, and for a text without
/// images it computes what a model of its own would.
const WITH_TEXT_MODEL: &[&str] = &[
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
];

/// Names of text models within such models, where they differ from `model_type` of the model alone.
const TEXT_MODEL_TYPES: &[(&str, Architecture)] = &[
    ("qwen2_vl", Architecture::Qwen2),
    ("qwen2_vl_text", Architecture::Qwen2),
    ("qwen2_5_vl", Architecture::Qwen2),
    ("qwen2_5_vl_text", Architecture::Qwen2),
    ("qwen3_vl_text", Architecture::Qwen3),
    ("qwen3_vl_moe_text", Architecture::Qwen3Moe),
    ("glm4v_text", Architecture::Glm4),
    ("glm4v_moe_text", Architecture::Glm4Moe),
];

/// Further values of `model_type` that files of a class have.
const OTHER_MODEL_TYPES: &[(&str, Architecture)] = &[("kimi_k2", Architecture::DeepseekV3)];

/// Further names that GGUF files of a class have.
const OTHER_GGUF_NAMES: &[(&str, Architecture)] = &[
    ("nemotron_h_moe", Architecture::NemotronH),
    ("qwen2vl", Architecture::Qwen2),
    ("qwen3vl", Architecture::Qwen3),
    ("qwen3vlmoe", Architecture::Qwen3Moe),
];

const fn named(
    architecture: Architecture,
    class: &'static str,
    model_type: &'static str,
    gguf: &'static str,
    positions: usize,
) -> ArchitectureNames {
    ArchitectureNames { architecture, class, model_type, gguf, positions, checkpoints: "" }
}

impl Architecture {
    /// The supported architectures, by their class names in `config.json`.
    pub const SUPPORTED: &'static [&'static str] = &{
        let mut classes = [""; ALL.len()];
        let mut at = 0;
        while at < ALL.len() {
            classes[at] = ALL[at].class;
            at += 1;
        }
        classes
    };

    /// All architectures, in the order of the pages that list them.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|names| names.architecture)
    }

    /// Well-known checkpoints of this architecture, for people.
    pub fn checkpoints(self) -> &'static str {
        self.names().checkpoints
    }

    /// Whether GGUF files of this architecture are read.
    pub fn is_read_from_gguf(self) -> bool {
        GGUF.contains(&self)
    }

    /// Whether every layer is attention over keys and values of its own, over every position or a window, and one gated
    /// network, one after the other, with RMSNorm.
    pub fn is_dense_attention(self) -> bool {
        matches!(
            self,
            Self::Llama
                | Self::Qwen2
                | Self::Qwen3
                | Self::SmolLm3
                | Self::Gemma
                | Self::Gemma2
                | Self::Gemma3
                | Self::Mistral
                | Self::Ministral3
                | Self::Granite
                | Self::Olmo2
                | Self::Olmo3
                | Self::Phi3
                | Self::Glm4
        )
    }

    /// The class name in `config.json`.
    pub fn hf_name(self) -> &'static str {
        self.names().class
    }

    /// The name in the metadata of a GGUF file.
    pub fn gguf_name(self) -> &'static str {
        self.names().gguf
    }

    /// All names in the metadata of GGUF files.
    pub fn gguf_names(self) -> impl Iterator<Item = &'static str> {
        let others = OTHER_GGUF_NAMES.iter().filter(move |(_, architecture)| *architecture == self);
        [self.gguf_name()].into_iter().chain(others.map(|(name, _)| *name))
    }

    /// Returns the architecture with this class name in `config.json`.
    pub(crate) fn from_hf_name(name: &str) -> Option<Self> {
        ALL.iter().find(|names| names.class == name).map(|names| names.architecture)
    }

    /// Returns the architecture with this `model_type`, also if it is the one of a text model within another model.
    pub(crate) fn from_model_type(name: &str) -> Option<Self> {
        let alone = ALL.iter().find(|names| names.model_type == name).map(|names| names.architecture);
        let within = TEXT_MODEL_TYPES.iter().find(|(within, _)| *within == name);
        alone.or(within.map(|(_, architecture)| *architecture))
    }

    /// Classes of models that also take images, and that are computed for text.
    pub const fn classes_with_text_model() -> &'static [&'static str] {
        WITH_TEXT_MODEL
    }

    /// Whether models of this class have a text model inside, whose configuration is `text_config`.
    pub(crate) fn wraps_text(class: &str) -> bool {
        WITH_TEXT_MODEL.contains(&class)
    }

    pub(crate) fn model_type(self) -> &'static str {
        self.names().model_type
    }

    /// Whether files of this class may have this `model_type`.
    pub(crate) fn has_model_type(self, name: &str) -> bool {
        self.model_type() == name || OTHER_MODEL_TYPES.contains(&(name, self))
    }

    /// `max_position_embeddings` if a configuration gives none.
    pub(crate) fn default_positions(self) -> usize {
        self.names().positions
    }

    fn names(self) -> &'static ArchitectureNames {
        // Every architecture has a row; the test below checks it.
        ALL.iter().find(|names| names.architecture == self).unwrap_or(&ALL[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_names_of_its_own() {
        for names in ALL {
            assert_eq!(names.architecture.hf_name(), names.class);
            assert!(!names.checkpoints.is_empty(), "{}", names.class);
            assert_eq!(Architecture::from_hf_name(names.class), Some(names.architecture));
            assert_eq!(names.architecture.model_type(), names.model_type);
        }
        assert_eq!(Architecture::from_hf_name("GptForCausalLM"), None);
        assert!(Architecture::DeepseekV3.has_model_type("kimi_k2"));
        assert!(!Architecture::DeepseekV2.has_model_type("kimi_k2"));
    }
}
