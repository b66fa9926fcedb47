//! Models for text and images that are computed for text: their configurations, and the names of their tensors.

use headrace_checkpoint::{Architecture, CheckpointError, ModelConfig};
use serde_json::{Value, json};

use crate::support::{CONFIG, Files};

/// The configuration of the good files, with other members. `null` leaves a member out.
fn text(changes: Value) -> Value {
    let mut config: Value = serde_json::from_slice(CONFIG).unwrap();
    let members = config.as_object_mut().unwrap();
    for (field, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(members.remove(field)),
            value => drop(members.insert(field.clone(), value.clone())),
        }
    }
    config
}

fn wrapped(class: &str, text: &Value) -> Value {
    json!({"architectures": [class], "model_type": "outer", "text_config": text, "vision_config": {"hidden_size": 9}})
}

fn read(config: &Value) -> Result<ModelConfig, CheckpointError> {
    ModelConfig::from_json(config.to_string().as_bytes())
}

#[test]
fn a_text_model_within_another_is_the_model_alone() {
    let sections = json!({"type": "mrope", "mrope_section": [2, 3, 3]});
    let rows = [
        ("LlavaForConditionalGeneration", "llama", "LlamaForCausalLM"),
        ("LlavaNextForConditionalGeneration", "mistral", "MistralForCausalLM"),
        ("LlavaOnevisionForConditionalGeneration", "qwen2", "Qwen2ForCausalLM"),
        ("Idefics3ForConditionalGeneration", "llama", "LlamaForCausalLM"),
        ("SmolVLMForConditionalGeneration", "llama", "LlamaForCausalLM"),
        ("InternVLForConditionalGeneration", "qwen3", "Qwen3ForCausalLM"),
        ("LightOnOcrForConditionalGeneration", "qwen3", "Qwen3ForCausalLM"),
        ("Mistral3ForConditionalGeneration", "mistral", "MistralForCausalLM"),
        ("Qwen2VLForConditionalGeneration", "qwen2_vl_text", "Qwen2ForCausalLM"),
        ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", "Qwen2ForCausalLM"),
        ("Qwen3VLForConditionalGeneration", "qwen3_vl_text", "Qwen3ForCausalLM"),
    ];
    for (class, model_type, alone) in rows {
        let own = text(json!({"architectures": [alone], "model_type": null}));
        let within = wrapped(class, &text(json!({"architectures": null, "model_type": model_type})));
        let (own, within) = (read(&own).unwrap(), read(&within).unwrap());
        assert_eq!(own.architecture.hf_name(), alone);
        assert_eq!(within, own, "{class}");
        assert!(Architecture::classes_with_text_model().contains(&class));
        let turned = text(json!({"architectures": null, "model_type": model_type, "rope_scaling": sections}));
        assert_eq!(read(&wrapped(class, &turned)).unwrap(), own, "{class}: sections");
    }
}

#[test]
fn text_models_have_the_defaults_of_their_own_classes() {
    // Qwen3-VL-MoE always divides the weights of the chosen experts by their sum, and derives the width of a head.
    let experts = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": null, "num_experts": 6, "moe_intermediate_size": 20,
        "norm_topk_prob": true, "num_experts_per_tok": 2, "head_dim": 16,
    });
    let own = read(&text(experts.clone())).unwrap();
    let mut vision = experts;
    for (field, value) in [
        ("architectures", json!(null)),
        ("model_type", json!("qwen3_vl_moe_text")),
        ("norm_topk_prob", json!(null)),
    ] {
        vision[field] = value;
    }
    let class = "Qwen3VLMoeForConditionalGeneration";
    assert_eq!(read(&wrapped(class, &text(vision.clone()))).unwrap(), own);
    vision["head_dim"] = json!(null);
    let derived = read(&wrapped(class, &text(vision.clone()))).unwrap();
    let usual = text(json!({}));
    let expected = usual["hidden_size"].as_u64().unwrap() / usual["num_attention_heads"].as_u64().unwrap();
    assert_eq!(derived.rotary[0].width as u64, expected);
    vision["norm_topk_prob"] = json!(false);
    let error = read(&wrapped(class, &text(vision))).unwrap_err().to_string();
    assert!(error.contains("norm_topk_prob") && error.contains("true is"), "{error}");
    // GLM-4.1V rotates whole heads if the file does not say a share, and GLM-4.5V half of each.
    for (class, model_type, share) in [
        ("Glm4vForConditionalGeneration", "glm4v_text", 1),
        ("Glm4vMoeForConditionalGeneration", "glm4v_moe_text", 2),
    ] {
        let mut glm = text(json!({
            "architectures": null, "model_type": model_type, "n_routed_experts": 6, "moe_intermediate_size": 20,
            "num_experts_per_tok": 2, "head_dim": null,
        }));
        if share == 1 {
            let members = glm.as_object_mut().unwrap();
            members.retain(|field, _| !field.contains("expert") && !field.starts_with("moe"));
        }
        let rotated = |glm: &Value| read(&wrapped(class, glm)).unwrap().rotary[0].width as u64;
        assert_eq!(rotated(&glm), expected / share, "{class}");
        for object in ["rope_parameters", "rope_scaling"] {
            let mut other = glm.clone();
            other[object] =
                json!({"rope_type": "default", "mrope_section": [1], "partial_rotary_factor": 0.25});
            assert_eq!(rotated(&other), expected / 4, "{class}, {object}");
        }
    }
}

#[test]
fn the_first_files_of_qwen_vl_have_no_object_for_the_text_model() {
    for (class, model_type) in [
        ("Qwen2VLForConditionalGeneration", "qwen2_vl"),
        ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"),
    ] {
        let own = text(json!({"architectures": ["Qwen2ForCausalLM"], "model_type": null}));
        let flat =
            text(json!({"architectures": [class], "model_type": model_type, "vision_config": {"depth": 1}}));
        assert_eq!(read(&flat).unwrap(), read(&own).unwrap());
    }
    let flat = text(json!({"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}));
    let error = read(&flat).unwrap_err().to_string();
    assert!(error.contains("text_config") && error.contains("missing"), "{error}");
}

#[test]
fn a_text_model_may_leave_out_what_its_class_assumes() {
    // The text models of LLaVA 1.5 and LLaVA-NeXT, as published.
    let llama = json!({"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064});
    let config = read(&wrapped("LlavaForConditionalGeneration", &llama)).unwrap().uniform.unwrap();
    assert_eq!((config.hidden_size, config.layers, config.heads, config.kv_heads), (4096, 32, 32, 32));
    assert_eq!((config.intermediate_size, config.vocab_size, config.max_positions), (11_008, 32_064, 4096));
    let mistral = json!({
        "model_type": "mistral", "intermediate_size": 14336, "max_position_embeddings": 32768, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": null, "vocab_size": 32064,
    });
    let config = read(&wrapped("LlavaNextForConditionalGeneration", &mistral)).unwrap();
    assert_eq!(
        (config.architecture, config.hidden_size, config.layers.len()),
        (Architecture::Mistral, 4096, 32)
    );
    // A model alone must say its sizes.
    let alone = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 32000});
    assert!(read(&alone).unwrap_err().to_string().contains("hidden_size"));
}

#[test]
fn other_models_for_text_and_images_are_refused_by_name() {
    let llama = text(json!({"architectures": null, "model_type": "llama"}));
    for (class, text, names) in [
        // transformers leaves out this class's logit scale, and other servers do not.
        ("AyaVisionForConditionalGeneration", &llama, "AyaVisionForConditionalGeneration"),
        // Attends to its prompt in both directions.
        ("PaliGemmaForConditionalGeneration", &llama, "PaliGemmaForConditionalGeneration"),
        (
            "LlavaForConditionalGeneration",
            &text(json!({"model_type": "opt"})),
            "LlavaForConditionalGeneration of opt",
        ),
    ] {
        let error = read(&wrapped(class, text)).unwrap_err();
        assert!(matches!(&error, CheckpointError::UnsupportedArchitecture { .. }), "{error}");
        assert!(error.to_string().contains(names), "{error}");
    }
}

#[test]
fn names_of_tensors_are_those_of_the_text_model_alone() {
    let good = Files::good().open().unwrap();
    let names: Vec<String> = good.tensor_names().map(str::to_owned).collect();
    for (class, model) in [
        ("LlavaForConditionalGeneration", "language_model.model."),
        ("InternVLForConditionalGeneration", "model.language_model."),
        ("SmolVLMForConditionalGeneration", "model.text_model."),
    ] {
        let inner = text(json!({"architectures": null, "model_type": "qwen3"}));
        let files = Files::good().with("config.json", wrapped(class, &inner).to_string()).header(|header| {
            let entries = std::mem::take(header).into_iter();
            header.extend(entries.map(|(name, entry)| (name.replacen("model.", model, 1), entry)));
        });
        let checkpoint = files.open().unwrap_or_else(|error| panic!("{class}: {error}"));
        assert_eq!(checkpoint.tensor_names().map(str::to_owned).collect::<Vec<_>>(), names, "{class}");
        for name in &names {
            assert_eq!(
                checkpoint.tensor(name).unwrap().bytes,
                good.tensor(name).unwrap().bytes,
                "{class} {name}"
            );
        }
    }
}
