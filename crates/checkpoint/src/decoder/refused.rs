//! Architectures that this project knows and does not compute, each with the reason and the nearest one that it computes.

/// An architecture that is refused.
struct RefusedArchitecture {
    /// What its class in `architectures` begins with.
    class: &'static str,
    /// What would have to be computed.
    reason: &'static str,
    /// The nearest supported class.
    nearest: &'static str,
}

const REFUSED: &[RefusedArchitecture] = &[
    refused("DeepseekV32", "an indexer chooses the keys that are attended to", "DeepseekV3ForCausalLM"),
    refused("DeepseekV4", "it has hyper-connections and compressed keys", "DeepseekV3ForCausalLM"),
    refused("GlmMoeDsa", "an indexer chooses the keys that are attended to", "Glm4MoeForCausalLM"),
    refused("Glm5", "an indexer chooses the keys that are attended to", "Glm4MoeForCausalLM"),
    refused("KimiLinear", "its linear attention decays each channel by itself", "DeepseekV3ForCausalLM"),
    refused("KimiK3", "its linear attention decays each channel by itself", "DeepseekV3ForCausalLM"),
    refused("Qwen4", "it has several residual streams (hyper-connections)", "Qwen3MoeForCausalLM"),
    refused("Gemma3n", "it keeps several streams of activations (AltUp)", "Gemma3ForCausalLM"),
    refused(
        "Llama4",
        "its attention is cut into chunks, and its router scales the input",
        "LlamaForCausalLM",
    ),
    refused("MiniMax", "its kinds of attention are not computed", "Qwen3MoeForCausalLM"),
    refused("MiMo", "its values are narrower than its keys", "Qwen3MoeForCausalLM"),
    refused("Lfm3", "its attention has a gate for each head", "Qwen3ForCausalLM"),
    refused("HunYuan", "it normalizes queries and keys after their rotation", "Qwen3ForCausalLM"),
    refused("Muse", "it normalizes its embeddings", "Gemma3ForCausalLM"),
];

const fn refused(class: &'static str, reason: &'static str, nearest: &'static str) -> RefusedArchitecture {
    RefusedArchitecture { class, reason, nearest }
}

/// Returns why models of this class are refused, and the nearest class that is computed. `None` if nothing is known of
/// the class.
pub(crate) fn reason(class: &str) -> Option<String> {
    let known = REFUSED.iter().find(|known| class.starts_with(known.class))?;
    Some(format!("{}; the nearest supported class is {}", known.reason, known.nearest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::Architecture;

    #[test]
    fn refused_architectures_name_a_supported_one_and_are_not_supported() {
        for known in REFUSED {
            assert!(Architecture::SUPPORTED.contains(&known.nearest), "{}", known.nearest);
            assert!(
                !Architecture::SUPPORTED.iter().any(|class| class.starts_with(known.class)),
                "{}",
                known.class
            );
        }
        let found = reason("DeepseekV32ForCausalLM").unwrap_or_default();
        assert!(found.contains("indexer") && found.contains("DeepseekV3ForCausalLM"), "{found}");
        assert_eq!(reason("LlamaForCausalLM"), None);
    }
}
