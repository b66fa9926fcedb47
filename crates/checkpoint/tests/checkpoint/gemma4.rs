//! Gemma 4 in `config.json`: what differs between layers, and settings that are refused.

use headrace_checkpoint::decoder::{AttentionConfig, FeedForward, LayerConfig, MixerConfig};
use headrace_checkpoint::{CheckpointError, ModelConfig, RopeScaling};
use serde_json::{Map, Value, json};

/// A configuration with these fields set.
fn config(text: &[u8], changes: &[(&str, Value)]) -> Result<ModelConfig, CheckpointError> {
    let mut members: Map<String, Value> = serde_json::from_slice(text).unwrap();
    for (field, value) in changes {
        members.insert((*field).to_owned(), value.clone());
    }
    ModelConfig::from_json(&serde_json::to_vec(&members).unwrap())
}

const SHARED: &[u8] = include_bytes!("../data/configs/gemma4-ple.json");
const EXPERTS: &[u8] = include_bytes!("../data/configs/gemma4-moe.json");

fn attention(layer: &LayerConfig) -> &AttentionConfig {
    let MixerConfig::Attention(attention) = &layer.mixer else { panic!("{:?}", layer.mixer) };
    attention
}

#[test]
fn the_last_layers_read_the_keys_and_values_of_the_last_producer_of_their_type() {
    let config = config(SHARED, &[]).unwrap();
    let layers = config.layers.iter().map(|layer| {
        let attention = attention(layer);
        (attention.kv_of, attention.head_dim, attention.window, layer.feed.inner())
    });
    let (window, full) = (Some(12), None);
    let expected = [
        (None, 16, window, 48),
        (None, 32, full, 48),
        (None, 16, window, 48),
        (None, 32, full, 48),
        (Some(2), 16, window, 96),
        (Some(3), 32, full, 96),
        (Some(2), 16, window, 96),
        (Some(3), 32, full, 96),
    ];
    assert_eq!(layers.collect::<Vec<_>>(), expected);
    let names: Vec<String> = config.tensors().into_iter().map(|(name, _)| name).collect();
    let has = |name: &str| names.iter().any(|other| other == name);
    assert!(has("model.layers.3.self_attn.k_proj.weight") && has("model.layers.4.self_attn.q_proj.weight"));
    assert!(!has("model.layers.4.self_attn.k_proj.weight") && !has("model.layers.4.self_attn.k_norm.weight"));
    assert!(has("model.embed_tokens_per_layer.weight") && has("model.layers.7.layer_scalar"));
    let inputs = config.layer_inputs.as_ref().unwrap();
    assert_eq!((inputs.width, inputs.words.tensor.shape.clone()), (8, vec![512, 64]));
    assert_eq!((config.embedding.scale, config.head.cap), (8.0, Some(30.0)));
    assert!(config.layers.iter().all(|layer| attention(layer).scale == 1.0));
}

#[test]
fn a_quarter_of_each_pair_turns_in_full_layers() {
    let config = config(SHARED, &[]).unwrap();
    let RopeScaling::Divided { factors } = &config.rotary[0].rope.scaling else { panic!("no factors") };
    let expected = [[1.0; 4].as_slice(), &[f32::INFINITY; 12]].concat();
    assert_eq!((factors.to_vec(), config.rotary[0].rope.theta, config.rotary[0].width), (expected, 1e6, 32));
    assert_eq!((&config.rotary[1].rope.scaling, config.rotary[1].rope.theta), (&RopeScaling::None, 1e4));
    assert_eq!(config.rotary[1].width, 16);
}

#[test]
fn experts_are_beside_the_dense_network_and_values_may_be_keys() {
    let config = config(EXPERTS, &[]).unwrap();
    let FeedForward::Both(both) = &config.layers[0].feed else { panic!("no experts") };
    assert_eq!((both.dense.inner(), both.experts.inner, both.experts.chosen), (48, 16, 2));
    assert_eq!((both.router_scale, both.experts.routing.renormalise), (0.125, Some(0.0)));
    let (window, full) = (attention(&config.layers[0]), attention(&config.layers[2]));
    assert_eq!((window.kv_heads, full.kv_heads, full.head_dim), (2, 1, 32));
    assert_eq!(full.value.weight, full.key.weight);
    assert!(window.value.weight.tensor.name.ends_with("v_proj.weight"));
    assert!(config.layer_inputs.is_none());
}

#[test]
fn settings_that_contradict_or_are_not_computed_are_refused_by_name() {
    let types = |kinds: &[&str]| kinds.iter().map(|kind| format!("{kind}_attention")).collect::<Vec<_>>();
    let all_windows = types(&["sliding"; 8]);
    for (field, value, pieces) in [
        ("num_kv_shared_layers", json!(8), ["num_kv_shared_layers", "from 0 to 7"]),
        ("num_kv_shared_layers", json!(7), ["num_kv_shared_layers", "no layer before 1 has the type"]),
        ("layer_types", json!(all_windows), ["num_kv_shared_layers", "no layer before 4 has the type"]),
        ("use_bidirectional_attention", json!("all"), ["use_bidirectional_attention", "\"vision\" are"]),
        ("vocab_size_per_layer_input", json!(511), ["vocab_size_per_layer_input", "below vocab_size 512"]),
        ("global_head_dim", json!(31), ["global_head_dim", "must be even"]),
        ("enable_moe_block", json!(true), ["top_k_experts", "is missing"]),
        ("per_layer_config", json!({"8": {}}), ["per_layer_config", "below 8"]),
        ("per_layer_config", json!({"1": {"scale": 2}}), ["scale", "head_dim and num_key_value_heads"]),
        ("per_layer_config", json!({"1": {"head_dim": 64}}), ["per_layer_config", "several widths"]),
        ("attn_logit_softcapping", json!(50.0), ["attn_logit_softcapping", "no such option"]),
    ] {
        let message = config(SHARED, &[(field, value)]).unwrap_err().to_string();
        assert!(pieces.iter().all(|piece| message.contains(piece)), "{field}: {message}");
    }
    let text = config(SHARED, &[("use_bidirectional_attention", json!("vision"))]);
    assert!(text.is_ok(), "images see each other, texts do not");
    let heads = config(EXPERTS, &[("num_global_key_value_heads", json!(3))]).unwrap_err().to_string();
    assert!(heads.contains("does not divide num_attention_heads 4"), "{heads}");
}
