//! Latent attention in `config.json`: sizes, layers and routers of DeepSeek and the GLMs, and settings that are refused.

use headrace_checkpoint::decoder::{
    ExpertGroups, FeedForward, LayerConfig, MixerConfig, RotaryPairs, RowPick, ScoreGrowth, ScoreKind,
};
use headrace_checkpoint::{Architecture, CheckpointError, ModelConfig};
use serde_json::{Map, Value, json};

/// A small DeepSeek V3 with these fields set. A null removes a field.
fn config(changes: &[(&str, Value)]) -> Result<ModelConfig, CheckpointError> {
    let text = include_bytes!("../data/configs/deepseek-v3.json");
    let mut members: Map<String, Value> = serde_json::from_slice(text).unwrap();
    for (field, value) in changes {
        members.insert((*field).to_owned(), value.clone());
    }
    ModelConfig::from_json(&serde_json::to_vec(&members).unwrap())
}

/// The changes that make a DeepSeek V2 of it.
fn second() -> Vec<(&'static str, Value)> {
    vec![
        ("architectures", json!(["DeepseekV2ForCausalLM"])),
        ("model_type", json!("deepseek_v2")),
        ("norm_topk_prob", json!(false)),
    ]
}

/// For each layer, whether it has experts.
fn sparse(config: &ModelConfig) -> Vec<bool> {
    config.layers.iter().map(|layer| matches!(layer.feed, FeedForward::Experts(_))).collect()
}

#[test]
fn a_layer_stores_the_latent_and_the_rotated_part_of_the_keys() {
    let config = config(&[]).unwrap();
    let MixerConfig::Latent(latent) = &config.layers[0].mixer else { panic!("no latent attention") };
    assert_eq!((latent.heads, latent.latent_dim, latent.row_width()), (4, 32, 48));
    assert_eq!((latent.plain_dim, latent.rotary_dim, latent.value_dim), (16, 16, 24));
    assert_eq!((latent.scale, latent.score_growth), (1.0 / 32.0_f32.sqrt(), None));
    assert_eq!(latent.latent_norm.eps, 1e-6);
    let pairs = Some(RotaryPairs { head: 16, rotated: 16 });
    assert_eq!((latent.key_rotary.weight.pairs, latent.query.rotary.weight.pairs), (pairs, pairs));
    assert_eq!((latent.latent.weight.pairs, latent.query.plain.weight.pairs), (None, None));
    let slices: Vec<_> = latent.key.iter().map(|head| head.weight.pick).collect();
    assert_eq!(slices[1], RowPick::Columns { first: 40, count: 16 });
    assert_eq!(latent.value[1].weight.pick, RowPick::Grouped { group: 160, first: 56, count: 24 });
    assert_eq!(latent.key[0].weight.tensor.shape, [160, 32]);
    assert_eq!(config.rotary[0].width, 16);
    let tensors = config.tensors();
    let up = tensors.iter().filter(|(name, _)| name == "model.layers.1.self_attn.kv_b_proj.weight");
    assert_eq!(up.count(), 1, "all heads are parts of one tensor");
    assert!(
        !tensors.iter().any(|(name, _)| name.starts_with("model.layers.3.")),
        "the draft layer is ignored"
    );
}

#[test]
fn switches_of_the_layers_and_routers_are_read() {
    let yarn = |more: Value| {
        let mut yarn = json!({"type": "yarn", "factor": 40, "original_max_position_embeddings": 64});
        yarn.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("rope_scaling", yarn)
    };
    let growth = |config: &ModelConfig| match &config.layers[0].mixer {
        MixerConfig::Latent(latent) => latent.score_growth,
        _ => None,
    };
    let with = |more| config(&[yarn(more)]).unwrap();
    assert_eq!(
        growth(&with(json!({"mscale": 1.0, "mscale_all_dim": 0.7}))),
        Some(ScoreGrowth { mscale: 0.7, factor: 40.0 })
    );
    assert_eq!(growth(&with(json!({}))), None);
    let straight = config(&[("rope_interleave", json!(false)), ("q_lora_rank", json!(null))]).unwrap();
    let MixerConfig::Latent(latent) = &straight.layers[0].mixer else { panic!("no latent attention") };
    assert_eq!((latent.key_rotary.weight.pairs, latent.query.compressed.is_none()), (None, true));
    assert_eq!(latent.query.plain.weight.tensor.name, "model.layers.0.self_attn.q_proj.weight");
    for (changes, expected) in [
        (vec![], [false, true, true]),
        (vec![("first_k_dense_replace", json!(0))], [true, true, true]),
        (vec![("first_k_dense_replace", json!(0)), ("moe_layer_freq", json!(2))], [true, false, true]),
        (vec![("mlp_layer_types", json!(["sparse", "dense", "sparse"]))], [true, false, true]),
    ] {
        assert_eq!(sparse(&config(&changes).unwrap()), expected, "{changes:?}");
    }
    let routing = |config: ModelConfig| {
        let LayerConfig { feed: FeedForward::Experts(experts), .. } = &config.layers[1] else {
            panic!("no experts")
        };
        let shared = experts.shared.as_ref().map_or(0, |shared| shared.feed.inner());
        let routing = &experts.routing;
        (routing.scores, routing.bias.is_some(), routing.groups, routing.renormalise, routing.factor, shared)
    };
    let groups = |count, kept, best| Some(ExpertGroups { count, kept, best });
    assert_eq!(
        routing(config(&[]).unwrap()),
        (ScoreKind::Sigmoid, true, groups(4, 2, 2), Some(1e-20), 2.5, 24)
    );
    let one = config(&[("n_group", json!(1)), ("topk_group", json!(1)), ("n_shared_experts", json!(null))]);
    assert_eq!(routing(one.unwrap()), (ScoreKind::Sigmoid, true, None, Some(1e-20), 2.5, 24));
    let greedy = config(&[second(), vec![("n_shared_experts", json!(2))]].concat()).unwrap();
    assert_eq!(routing(greedy), (ScoreKind::Softmax, false, None, None, 2.5, 48));
    let limited = config(&[second(), vec![("topk_method", json!("group_limited_greedy"))]].concat()).unwrap();
    assert_eq!(routing(limited), (ScoreKind::Softmax, false, groups(4, 2, 1), None, 2.5, 24));
    let kimi = config(&[("model_type", json!("kimi_k2"))]).unwrap();
    assert_eq!(kimi.architecture, Architecture::DeepseekV3);
}

#[test]
fn settings_that_contradict_or_are_not_computed_are_refused_by_name() {
    let third = |field: &'static str, value: Value| vec![(field, value)];
    let also = |field: &'static str, value: Value| [second(), vec![(field, value)]].concat();
    for (changes, pieces) in [
        (third("kv_lora_rank", json!(null)), ["kv_lora_rank", "is missing"]),
        (third("kv_lora_rank", json!(5000)), ["kv_lora_rank", "1 to 4096"]),
        (third("qk_rope_head_dim", json!(15)), ["qk_rope_head_dim", "must be even"]),
        (third("n_group", json!(3)), ["n_group", "does not divide 8"]),
        (third("topk_group", json!(5)), ["topk_group", "5 of 4 groups"]),
        (third("num_experts_per_tok", json!(5)), ["topk_group", "must hold num_experts_per_tok 5"]),
        (third("scoring_func", json!("softmax")), ["scoring_func", "\"sigmoid\" is"]),
        (third("topk_method", json!("greedy")), ["topk_method", "\"noaux_tc\" is"]),
        (third("n_shared_experts", json!(9e9)), ["n_shared_experts", "a whole number"]),
        (third("mlp_layer_types", json!(["sparse"])), ["mlp_layer_types", "num_hidden_layers 3"]),
        (third("mlp_layer_types", json!(["a", "dense", "dense"])), ["mlp_layer_types", "\"sparse\" are"]),
        (third("use_qk_norm", json!(true)), ["use_qk_norm", "no such option"]),
        (third("model_type", json!("kimi_k3")), ["model_type", "contradicts"]),
        (also("norm_topk_prob", json!(true)), ["norm_topk_prob", "false is"]),
        (also("scoring_func", json!("sigmoid")), ["scoring_func", "\"softmax\" is"]),
        (
            also("topk_method", json!("noaux_tc")),
            ["topk_method", "\"greedy\" and \"group_limited_greedy\" are"],
        ),
        (third("architectures", json!(["DeepseekV32ForCausalLM"])), ["indexer", "DeepseekV3ForCausalLM"]),
        (third("architectures", json!(["GlmMoeDsaForCausalLM"])), ["indexer", "Glm4MoeForCausalLM"]),
    ] {
        let message = config(&changes).unwrap_err().to_string();
        assert!(pieces.iter().all(|piece| message.contains(piece)), "{changes:?}: {message}");
    }
}
