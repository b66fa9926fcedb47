//! `config.json`: both spellings, all twenty-four models, and every field that can be false or ask for an unsupported
//! feature.

use headrace_checkpoint::decoder::MixerConfig;
use headrace_checkpoint::{Architecture, CheckpointError, ModelConfig, Rope, RopeScaling, UniformConfig};
use serde_json::{Value, json};

use crate::support::{CONFIG, CONFIG_V5, Files, Row, check_refused};

macro_rules! config_pair {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("../data/configs/", $name, ".json")).as_slice(),
            include_bytes!(concat!("../data/configs/", $name, ".v5.json")).as_slice(),
        )
    };
}

/// The configuration of a model whose layers are all alike.
fn read(text: &[u8]) -> UniformConfig {
    ModelConfig::from_json(text).unwrap().uniform.unwrap()
}

fn llama() -> UniformConfig {
    UniformConfig {
        architecture: Architecture::Llama,
        hidden_size: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        intermediate_size: 112,
        vocab_size: 1024,
        max_positions: 256,
        rms_norm_eps: 1e-6,
        rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tie_embeddings: false,
        bos: Some(1017),
        eos: vec![1022],
    }
}

fn qwen3() -> UniformConfig {
    UniformConfig {
        architecture: Architecture::Qwen3,
        qk_norm: true,
        head_dim: 32,
        rope: Rope { theta: 1e6, scaling: RopeScaling::None },
        bos: None,
        eos: vec![1017],
        ..llama()
    }
}

#[test]
fn both_spellings_of_supported_configurations_mean_the_same() {
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 64,
    };
    let rows = [
        (config_pair!("llama-gqa-untied"), UniformConfig { rms_norm_eps: 1e-5, ..llama() }),
        (config_pair!("llama-mha-f32-sharded"), UniformConfig { kv_heads: 4, ..llama() }),
        (
            config_pair!("llama-tied-rope3"),
            UniformConfig {
                tie_embeddings: true,
                rope: Rope { theta: 10_000.0, scaling: llama3 },
                ..llama()
            },
        ),
        (
            config_pair!("qwen2"),
            UniformConfig {
                architecture: Architecture::Qwen2,
                qk_norm: false,
                qkv_bias: true,
                head_dim: 16,
                tie_embeddings: true,
                ..qwen3()
            },
        ),
        (config_pair!("qwen3"), qwen3()),
        (
            config_pair!("qwen3-tied"),
            UniformConfig {
                head_dim: 16,
                tie_embeddings: true,
                rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
                ..qwen3()
            },
        ),
    ];
    for ((name, old, new), expected) in rows {
        assert_eq!(read(old), expected, "{name}, old spelling");
        assert_eq!(read(new), expected, "{name}, new spelling");
    }
}

#[test]
fn both_spellings_of_every_family_mean_the_same_layers() {
    let rows = [
        (config_pair!("deepseek-v3"), Architecture::DeepseekV3),
        (config_pair!("gemma2"), Architecture::Gemma2),
        (config_pair!("gemma3-text"), Architecture::Gemma3),
        (config_pair!("gemma4-moe"), Architecture::Gemma4),
        (config_pair!("gemma4-ple"), Architecture::Gemma4),
        (config_pair!("glm4-moe-lite"), Architecture::Glm4MoeLite),
        (config_pair!("gpt-oss"), Architecture::GptOss),
        (config_pair!("gpt2"), Architecture::Gpt2),
        (config_pair!("granite"), Architecture::Granite),
        (config_pair!("granite-hybrid"), Architecture::GraniteHybrid),
        (config_pair!("granite-hybrid-dense"), Architecture::GraniteHybrid),
        (config_pair!("lfm2"), Architecture::Lfm2),
        (config_pair!("lfm2-moe"), Architecture::Lfm2Moe),
        (config_pair!("mistral-swa"), Architecture::Mistral),
        (config_pair!("mixtral"), Architecture::Mixtral),
        (config_pair!("nemotron-h"), Architecture::NemotronH),
        (config_pair!("nemotron-h-latent"), Architecture::NemotronH),
        (config_pair!("nemotron-h-moe"), Architecture::NemotronH),
        (config_pair!("olmo2"), Architecture::Olmo2),
        (config_pair!("phi3"), Architecture::Phi3),
        (config_pair!("qwen3-moe"), Architecture::Qwen3Moe),
        (config_pair!("qwen3-next"), Architecture::Qwen3Next),
        (config_pair!("qwen35"), Architecture::Qwen35),
        (config_pair!("qwen35-cond"), Architecture::Qwen35),
        (config_pair!("qwen35-moe"), Architecture::Qwen35Moe),
    ];
    for ((name, old, new), architecture) in rows {
        let [old, new] = [old, new].map(|text| ModelConfig::from_json(text).unwrap());
        assert_eq!((old.architecture, old.uniform.is_none()), (architecture, true), "{name}");
        assert_eq!(old, new, "{name}");
    }
}

#[test]
fn layers_have_the_windows_and_rotations_of_their_types() {
    let (_, text, _) = config_pair!("gemma3-text");
    let config = ModelConfig::from_json(text).unwrap();
    let attentions = config.layers.iter().filter_map(|layer| layer.mixer.attention());
    let kinds = attentions.map(|attention| (attention.window, attention.rotary.map(|rotary| rotary.table)));
    let window = (Some(8), Some(1));
    let full = (None, Some(0));
    assert_eq!(kinds.collect::<Vec<_>>(), [window, window, full, window, window, full]);
    let thetas: Vec<f64> = config.rotary.iter().map(|rotary| rotary.rope.theta).collect();
    assert_eq!((thetas, config.embedding.scale), (vec![1e6, 1e4], 48.0_f32.sqrt()));
}

#[test]
fn layers_are_recurrent_where_the_file_says_it() {
    let rows = [
        (config_pair!("lfm2"), "c*c"),
        (config_pair!("qwen35"), "dd*dd*"),
        (config_pair!("qwen3-next"), "ddd*"),
        (config_pair!("granite-hybrid"), "mm*m*m"),
        (config_pair!("nemotron-h-latent"), "m-*-m-"),
    ];
    for ((name, old, new), expected) in rows {
        for text in [old, new] {
            let config = ModelConfig::from_json(text).unwrap();
            let kinds = config.layers.iter().map(|layer| match layer.mixer {
                MixerConfig::Attention(_) | MixerConfig::Latent(_) => '*',
                MixerConfig::ShortConv(_) => 'c',
                MixerConfig::Delta(_) => 'd',
                MixerConfig::Mamba(_) => 'm',
                MixerConfig::None => '-',
            });
            assert_eq!(kinds.collect::<String>(), expected, "{name}");
        }
    }
}

#[test]
fn settings_of_recurrent_layers_that_do_not_fit_are_refused_by_name() {
    let rows = [
        (config_pair!("lfm2"), "conv_L_cache", json!(18), "from 1 to 17"),
        (config_pair!("lfm2"), "full_attn_idxs", json!("1"), "a list of layer numbers"),
        (
            config_pair!("lfm2-moe"),
            "layer_types",
            json!(["conv"]),
            "lists 1 layers, but num_hidden_layers says 6",
        ),
        (config_pair!("qwen35"), "layer_types", json!(["moe"]), "\"moe\""),
        (config_pair!("qwen35"), "attn_output_gate", json!(false), "true is"),
        (config_pair!("qwen35"), "linear_num_key_heads", json!(3), "3 does not divide"),
        (config_pair!("qwen35"), "hidden_act", json!("gelu"), "\"silu\" is"),
        (config_pair!("granite-hybrid"), "mamba_d_head", json!(24), "8 heads of 24"),
        (config_pair!("granite-hybrid"), "mamba_n_groups", json!(3), "does not divide"),
        (config_pair!("granite-hybrid"), "time_step_limit", json!([2.0, 1.0]), "the lower one first"),
        (config_pair!("granite-hybrid"), "position_embedding_type", json!("alibi"), "\"nope\" are"),
        (config_pair!("nemotron-h"), "hybrid_override_pattern", json!("M-x"), "the letters M, *, - and E"),
        (config_pair!("nemotron-h"), "num_hidden_layers", json!(5), "the list of layers has 6"),
        (config_pair!("nemotron-h-moe"), "n_group", json!(3), "does not divide n_routed_experts 8"),
        (config_pair!("nemotron-h-moe"), "mamba_hidden_act", json!("relu"), "\"silu\" is"),
    ];
    for ((name, old, _), field, value, expected) in rows {
        let mut config: serde_json::Value = serde_json::from_slice(old).unwrap();
        config[field] = value;
        let error = ModelConfig::from_json(config.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn a_field_that_changes_other_architectures_is_refused_by_name() {
    for (field, value) in [
        ("attn_logit_softcapping", json!(50.0)),
        ("num_experts", json!(8)),
        ("embedding_multiplier", json!(12)),
        ("kv_lora_rank", json!(512)),
        ("no_rope_layers", json!([1, 0])),
        ("logit_scale", json!(0.0625)),
        ("is_causal", json!(false)),
        ("mlp_multipliers", json!([1.0, 0.5])),
        ("routed_scaling_factor", json!(2.5)),
        ("attention_chunk_size", json!(8192)),
        ("use_post_norm", json!(true)),
    ] {
        let error = Files::good().config(field, value).open().unwrap_err();
        let CheckpointError::UnsupportedFeature { field: named, .. } = &error else {
            panic!("{field}: {error}")
        };
        assert_eq!(named, field);
    }
    for (field, neutral) in [
        ("attn_logit_softcapping", json!(null)),
        ("num_experts", json!(0)),
        ("embedding_multiplier", json!(1.0)),
        ("no_rope_layers", json!([])),
        ("use_qk_norm", json!(false)),
        ("is_causal", json!(true)),
        ("mlp_multipliers", json!([1.0, 1])),
        ("routed_scaling_factor", json!(1)),
        ("attention_chunk_size", json!(null)),
        ("use_post_norm", json!(false)),
    ] {
        Files::good().config(field, neutral).open().unwrap_or_else(|error| panic!("{field}: {error}"));
    }
}

#[test]
fn unsupported_architectures_are_refused_by_name_with_the_supported_list() {
    let rows = [
        (config_pair!("bert-embed"), "BertModel"),
        (config_pair!("qwen3-embed"), "Qwen3Model"),
        (config_pair!("xlmr-embed"), "XLMRobertaModel"),
    ];
    for ((name, old, new), architecture) in rows {
        for text in [old, new] {
            let error = Files::good().with("config.json", text).open().unwrap_err();
            let CheckpointError::UnsupportedArchitecture { found, supported } = &error else {
                panic!("{name}: {error}");
            };
            assert_eq!(found, architecture, "{name}");
            assert_eq!(*supported, Architecture::SUPPORTED, "{name}");
            let message = error.to_string();
            assert!(message.contains("LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"), "{message}");
        }
    }
}

#[test]
fn yarn_is_read_in_both_spellings_with_its_defaults() {
    let yarn = |beta_fast, truncate, attention_factor, mscales| RopeScaling::Yarn {
        factor: 4.0,
        original_max_positions: 64,
        beta_fast,
        beta_slow: 1.0,
        truncate,
        attention_factor,
        mscales,
    };
    let (_, old, new) = config_pair!("llama-yarn");
    for text in [old, new] {
        let scaling = read(text).rope.scaling;
        assert_eq!(scaling, yarn(32.0, true, None, None));
    }
    let full = json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 8,
        "truncate": false, "attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 0.5});
    let checkpoint = Files::good().config("rope_scaling", full).open().unwrap();
    assert_eq!(checkpoint.config().rotary[0].rope.scaling, yarn(8.0, false, Some(1.5), Some((1.0, 0.5))));
}

#[test]
fn the_whole_checkpoint_opens_with_either_spelling() {
    for config in [CONFIG, CONFIG_V5] {
        let checkpoint = Files::good().with("config.json", config).open().unwrap();
        assert_eq!(checkpoint.config().architecture, Architecture::Qwen3);
    }
}

/// `qwen3-tied` with one field of `config.json` set. The refusal must contain every piece.
fn set(field: &'static str, value: Value, pieces: &'static [&'static str]) -> Row {
    (field, Files::good().config(field, value), pieces)
}

/// `qwen3-tied` with one field's text replaced by text that a `serde_json` value cannot hold.
fn written(field: &'static str, from: &str, to: &str, pieces: &'static [&'static str]) -> Row {
    (field, Files::good().replace("config.json", from, to), pieces)
}

#[test]
fn absurd_numbers_are_refused_with_the_field_named() {
    check_refused(vec![
        set("num_attention_heads", json!(0), &["config.json", "num_attention_heads", "found 0", "1 to 1024"]),
        set("num_attention_heads", json!(-4), &["num_attention_heads", "found -4"]),
        set("num_attention_heads", json!(4.5), &["num_attention_heads", "found 4.5"]),
        set("num_attention_heads", json!("4"), &["num_attention_heads", "found \"4\""]),
        set("num_attention_heads", json!(null), &["num_attention_heads", "is missing"]),
        set("num_key_value_heads", json!(3), &["num_key_value_heads", "3 does not divide", "heads 4"]),
        set("num_key_value_heads", json!(0), &["num_key_value_heads", "found 0"]),
        set("num_key_value_heads", json!(8), &["num_key_value_heads", "8 does not divide"]),
        set("head_dim", json!(15), &["head_dim", "15 must be even"]),
        set("head_dim", json!(0), &["head_dim", "found 0"]),
        set("head_dim", json!(1u64 << 40), &["head_dim", "found 1099511627776"]),
        set("hidden_size", json!(1u64 << 60), &["hidden_size", "found 1152921504606846976", "1 to 131072"]),
        set("hidden_size", json!(0), &["hidden_size", "found 0"]),
        set("hidden_size", json!([64]), &["hidden_size", "a list of 1"]),
        set("intermediate_size", json!(u64::MAX), &["intermediate_size", "found 18446744073709551615"]),
        set("vocab_size", json!(0), &["vocab_size", "found 0"]),
        set("vocab_size", json!(1u64 << 62), &["vocab_size", "found 4611686018427387904"]),
        set("num_hidden_layers", json!(1_000_000_000), &["num_hidden_layers", "1000000000", "1 to 1024"]),
        set("num_hidden_layers", json!(0), &["num_hidden_layers", "found 0"]),
        set("max_position_embeddings", json!(0), &["max_position_embeddings", "found 0"]),
        set("max_position_embeddings", json!(1e300), &["max_position_embeddings", "found 1e+300"]),
        set("rms_norm_eps", json!(0.0), &["rms_norm_eps", "found 0.0", "above"]),
        set("rms_norm_eps", json!(-1e-6), &["rms_norm_eps", "found -1e-6"]),
        set("rms_norm_eps", json!(1e-60), &["rms_norm_eps", "vanishes"]),
        set("rms_norm_eps", json!(2.0), &["rms_norm_eps", "found 2.0"]),
        set("rope_theta", json!(0), &["rope_theta", "found 0"]),
        set("rope_theta", json!(-1), &["rope_theta", "found -1"]),
        set("rope_theta", json!(1e300), &["rope_theta", "found 1e+300"]),
        set("rope_theta", json!("big"), &["rope_theta", "found \"big\""]),
        written("rms_norm_eps", "1e-06", "NaN", &["config.json", "\"rms_norm_eps\"", "line"]),
        written("rms_norm_eps", "1e-06", "Infinity", &["config.json", "\"rms_norm_eps\"", "line"]),
        written("rms_norm_eps", "1e-06", "1e999", &["config.json", "\"rms_norm_eps\"", "out of range"]),
        written("rope_theta", "10000", "-Infinity", &["config.json", "\"rope_theta\"", "line"]),
        written("rope_theta", "10000", "1e400", &["config.json", "\"rope_theta\"", "out of range"]),
        set("eos_token_id", json!(1024), &["eos_token_id", "found 1024", "below vocab_size 1024"]),
        set("eos_token_id", json!([1, -1]), &["eos_token_id", "found -1"]),
        set("eos_token_id", json!(vec![1; 65]), &["eos_token_id", "a list of 65"]),
        set("bos_token_id", json!([1, 2]), &["bos_token_id", "a list of 2"]),
        set("tie_word_embeddings", json!("yes"), &["tie_word_embeddings", "found \"yes\""]),
        set("attention_bias", json!(1), &["attention_bias", "found 1"]),
    ]);
}

#[test]
fn unsupported_features_are_refused_with_the_field_named() {
    let scaling = |kind: &str| json!({"rope_type": kind, "factor": 4.0});
    let long = |short: Value, long: Value| {
        let original = ("original_max_position_embeddings", json!(64));
        let fields = [("type", json!("longrope")), original, ("short_factor", short), ("long_factor", long)];
        Value::Object(fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect())
    };
    check_refused(vec![
        set("rope_scaling", scaling("dynamic"), &["rope_scaling.rope_type", "\"dynamic\"", "linear, llama3"]),
        set(
            "rope_scaling",
            scaling("yarn"),
            &["rope_scaling.original_max_position_embeddings", "is missing"],
        ),
        set(
            "rope_scaling",
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 0.5}),
            &["rope_scaling.beta_fast", "found 0.5", "at least beta_slow 1"],
        ),
        set(
            "rope_scaling",
            json!({"type": "longrope"}),
            &["rope_scaling.original_max_position_embeddings", "is missing"],
        ),
        set(
            "rope_parameters",
            scaling("su"),
            &["rope_parameters.original_max_position_embeddings", "is missing"],
        ),
        set("rope_scaling", long(json!([1.0]), json!(null)), &["rope_scaling.long_factor", "is missing"]),
        set("rope_scaling", long(json!([0.0]), json!([1.0])), &["short_factor", "positive numbers"]),
        set("rope_scaling", long(json!([1e-60]), json!([1.0])), &["short_factor", "positive numbers"]),
        set("rope_scaling", long(json!(vec![1.0; 513]), json!([1.0])), &["short_factor", "at most 512"]),
        set("rope_scaling", long(json!([1.0]), json!([1.0])), &["short_factor", "1 factors for 8 pairs"]),
        set(
            "rope_scaling",
            long(json!(vec![1.0; 8]), json!([1.0])),
            &["long_factor", "1 factors for 8 pairs"],
        ),
        set(
            "rope_parameters",
            json!({"full_attention": {"rope_theta": 1.0}}),
            &["rope_parameters.full_attention", "one RoPE for all layers"],
        ),
        set("rope_parameters", json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor", "0.5"]),
        set("partial_rotary_factor", json!(0.25), &["partial_rotary_factor", "0.25"]),
        set(
            "rope_parameters",
            json!({"llama_4_scaling_beta": 0.1}),
            &["rope_parameters.llama_4_scaling_beta", "0.1", "no such option"],
        ),
        set(
            "rope_scaling",
            json!({"type": "default", "llama_4_scaling_beta": 0.1}),
            &["rope_scaling.llama_4_scaling_beta", "0.1", "no such option"],
        ),
        set("hidden_act", json!("gelu"), &["hidden_act", "\"gelu\"", "\"silu\" is"]),
        set(
            "quantization_config",
            json!({"quant_method": "bitsandbytes"}),
            &["quantization_config.quant_method", "\"bitsandbytes\" is not supported", "\"awq\""],
        ),
        set("torch_dtype", json!("float8_e4m3fn"), &["torch_dtype", "float8_e4m3fn", "bfloat16"]),
        set("dtype", json!("int8"), &["\"dtype\"", "int8"]),
        set(
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            &["layer_types", "sliding_attention"],
        ),
        set("layer_types", json!(["full_attention"]), &["layer_types", "a list of 1", "num_hidden_layers 2"]),
        set("model_type", json!("mistral"), &["model_type", "\"mistral\" contradicts", "Qwen3ForCausalLM"]),
        set("architectures", json!([]), &["architectures", "a list of one name"]),
        set("architectures", json!(null), &["architectures", "is missing"]),
        set("architectures", json!(["Evil\u{1b}[2J"]), &["Evil\\u{1b}[2J is not supported"]),
        (
            "a window in use",
            Files::good().edit("config.json", |config| {
                config.remove("layer_types");
                config.insert("use_sliding_window".into(), json!(true));
                config.insert("sliding_window".into(), json!(8));
                config.insert("max_window_layers".into(), json!(1));
            }),
            &["use_sliding_window", "full attention in every layer"],
        ),
    ]);
}

#[test]
fn contradictory_and_incomplete_rope_is_refused() {
    let llama3 = |field: &str, value: Value| {
        let mut scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
        scaling[field] = value;
        scaling
    };
    check_refused(vec![
        set("rope_parameters", json!({"rope_theta": 5e5}), &["rope_theta", "given twice", "500000", "10000"]),
        (
            "two scalings",
            Files::good()
                .config("rope_scaling", json!({"type": "linear", "factor": 2.0}))
                .config("rope_parameters", json!({"rope_type": "default"})),
            &["rope_scaling", "factor: 2.0", "rope_parameters says None"],
        ),
        set("rope_scaling", json!({"type": "linear"}), &["rope_scaling.factor", "is missing"]),
        set("rope_scaling", json!({"type": "linear", "factor": 0.5}), &["rope_scaling.factor", "found 0.5"]),
        set("rope_scaling", json!("linear"), &["rope_scaling", "an object or null"]),
        set(
            "rope_scaling",
            llama3("high_freq_factor", json!(1.0)),
            &["high_freq_factor", "low_freq_factor 1"],
        ),
        set("rope_scaling", llama3("low_freq_factor", json!(0)), &["low_freq_factor", "found 0"]),
        set("rope_scaling", llama3("factor", json!(null)), &["rope_scaling.factor", "is missing"]),
        set(
            "rope_scaling",
            llama3("original_max_position_embeddings", json!(0)),
            &["rope_scaling.original_max_position_embeddings", "found 0"],
        ),
    ]);
}

#[test]
fn malformed_json_is_refused_with_the_place_named() {
    let config = |text: &str| Files::good().with("config.json", text.as_bytes());
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let wide = format!("{{\"a\":[{}0]}}", "0,".repeat(500_000));
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(2 << 20));
    check_refused(vec![
        ("empty", config(""), &["config.json", "is empty; download it again"]),
        ("not an object", config("[]"), &["config.json", "expected an object"]),
        ("cut off", config("{\"hidden_size\": "), &["config.json", "\"hidden_size\"", "EOF"]),
        ("rest", config("{} {}"), &["config.json", "trailing characters"]),
        ("deep", config(&deep), &["config.json", "\"a[0][0]", "recursion limit"]),
        ("wide", config(&wide), &["architectures"]),
        ("large", config(&large), &["config.json", "2097160 bytes", "the most is 1048576"]),
        ("key twice", config("{\"a\": {\"b\": 1, \"b\": 2}}"), &["\"a.b\"", "given twice"]),
        ("not UTF-8", Files::good().with("config.json", *b"{\"a\": \"\xff\"}"), &["not UTF-8 after 7 bytes"]),
        (
            "too many values",
            Files::good().with("tokenizer_config.json", format!("{{\"a\":[{}0]}}", "0,".repeat(1 << 20))),
            &["tokenizer_config.json", "more than 1048576 values"],
        ),
    ]);
}

#[test]
fn defaults_are_those_of_the_architecture() {
    let bare = |architecture: &str| {
        let text = json!({"architectures": [architecture], "hidden_size": 4096, "num_hidden_layers": 2,
            "num_attention_heads": 32, "intermediate_size": 112, "vocab_size": 1024});
        read(&serde_json::to_vec(&text).unwrap())
    };
    for (name, positions) in
        [("LlamaForCausalLM", 2_048), ("Qwen2ForCausalLM", 32_768), ("Qwen3ForCausalLM", 32_768)]
    {
        let config = bare(name);
        assert_eq!((config.kv_heads, config.head_dim, config.max_positions), (32, 128, positions), "{name}");
        assert_eq!((config.rms_norm_eps, config.rope.theta), (1e-6, 10_000.0), "{name}");
        assert_eq!((config.tie_embeddings, config.bos, config.eos), (false, None, vec![]), "{name}");
    }
}

#[test]
fn switches_that_are_not_in_use_are_accepted() {
    let accepted: [(&str, Value); 9] = [
        ("rope_parameters", json!({"rope_type": "default", "llama_4_scaling_beta": 0.0})),
        ("rope_scaling", json!({"type": "default"})),
        ("rope_scaling", json!({})),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 10000})),
        ("partial_rotary_factor", json!(1.0)),
        ("sliding_window", json!(8)),
        ("torch_dtype", json!(null)),
        ("eos_token_id", json!([1017, 1018])),
        ("an_unknown_field", json!({"x": [1, 2, 3]})),
    ];
    for (field, value) in accepted {
        Files::good().config(field, value).open().unwrap_or_else(|error| panic!("{field}: {error}"));
    }
    let window = |config: &mut serde_json::Map<String, Value>, layers: u64, window: u64| {
        config.remove("layer_types");
        config.insert("use_sliding_window".into(), json!(true));
        config.insert("sliding_window".into(), json!(window));
        config.insert("max_window_layers".into(), json!(layers));
    };
    // First the window begins after the last layer. Then the window is as long as the context.
    Files::good().edit("config.json", |config| window(config, 2, 8)).open().unwrap();
    Files::good().edit("config.json", |config| window(config, 0, 256)).open().unwrap();
}

/// Only Ministral 3 has queries that grow with their position, in both spellings.
#[test]
fn queries_grow_in_ministral_only() {
    let rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "llama_4_scaling_beta": 0.1});
    for object in ["rope_parameters", "rope_scaling"] {
        let config = |class: &str| {
            let members = json!({"architectures": [class], "hidden_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64,
                object: rope});
            ModelConfig::from_json(&serde_json::to_vec(&members).unwrap())
        };
        let ministral = config("Ministral3ForCausalLM").unwrap();
        let rotary = ministral.layers[0].mixer.attention().unwrap().rotary.unwrap();
        let growth = rotary.growth.map(|growth| (growth.beta, growth.positions));
        assert_eq!(growth, Some((0.1, 64)), "{object}");
        let refusal = config("MistralForCausalLM").unwrap_err().to_string();
        assert!(refusal.contains(&format!("{object}.llama_4_scaling_beta")), "{refusal}");
    }
}

#[test]
fn biases_follow_the_architecture() {
    let switches = |architecture: &str, model_type: &str| {
        let files = Files::good()
            .config("architectures", json!([architecture]))
            .config("model_type", json!(model_type))
            .config("attention_bias", json!(true))
            .config("mlp_bias", json!(true));
        let config = read(files.bytes("config.json"));
        (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm)
    };
    assert_eq!(switches("LlamaForCausalLM", "llama"), (true, true, true, false));
    assert_eq!(switches("Qwen2ForCausalLM", "qwen2"), (true, false, false, false));
    assert_eq!(switches("Qwen3ForCausalLM", "qwen3"), (true, true, false, true));
}
