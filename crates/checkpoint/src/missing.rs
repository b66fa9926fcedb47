//! What well-known architectures need that no engine here computes. Must not know files, or what is computed.

/// The beginning of an architecture's name in any format, in lower case and without punctuation, and what it needs.
const NEEDS: &[(&str, &str)] = &[
    ("bart", ENCODER),
    ("bloom", ALIBI),
    ("deepseekv32", INDEXER),
    ("deepseek32", INDEXER),
    ("deepseekv4", "hyper-connections and compressed attention"),
    ("gemma3n", "AltUp and LAuReL blocks"),
    ("glmdsa", INDEXER),
    ("glmmoedsa", INDEXER),
    ("kimilinear", "a state that decays in each channel by itself"),
    ("llama4", "attention in chunks, and experts whose input is scaled"),
    ("mimov2", "values that are narrower than keys"),
    ("minimaxm3", "attention to chosen blocks"),
    ("mllama", "attention to the states of an image encoder"),
    ("mpt", ALIBI),
    ("paligemma", "attention to the prompt in both directions"),
    ("qwen4exp", "hyper-connections and embeddings of n-grams"),
    ("t5", ENCODER),
    ("whisper", ENCODER),
];
const ALIBI: &str = "ALiBi positions";
const ENCODER: &str = "an encoder beside the decoder";
const INDEXER: &str = "attention to the tokens that an indexer chooses";

/// Returns what an architecture needs that is not computed, if it is known.
pub(crate) fn missing_feature(name: &str) -> Option<&'static str> {
    let plain = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase());
    let plain: String = plain.collect();
    NEEDS.iter().find(|(start, _)| plain.starts_with(start)).map(|(_, feature)| *feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_format_are_known() {
        for (name, expected) in [
            (
                "Llama4ForConditionalGeneration",
                Some("attention in chunks, and experts whose input is scaled"),
            ),
            ("llama4", Some("attention in chunks, and experts whose input is scaled")),
            ("DeepseekV32ForCausalLM", Some(INDEXER)),
            ("glm-dsa", Some(INDEXER)),
            ("Qwen9ForCausalLM", None),
            ("", None),
        ] {
            assert_eq!(missing_feature(name), expected, "{name}");
        }
    }
}
