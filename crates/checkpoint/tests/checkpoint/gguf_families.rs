//! GGUF files of other architectures than Llama's: which class reads them, where their tensors are, and that refusals name
//! the key or tensor of the file.

use headrace_checkpoint::decoder::{FeedForward, LinearConfig, MixerConfig, RowPick};
use headrace_checkpoint::gguf::Numbers;
use headrace_checkpoint::gguf::writer::Setting;
use headrace_checkpoint::{Architecture, Checkpoint, DType};

use crate::gguf::{Small, model};

/// The smallest model, as one of another architecture.
fn small(architecture: &str) -> Small {
    let Small { settings, tensors } = Small::new().text("general.architecture", architecture);
    let renamed = |key: String| match key.strip_prefix("llama.") {
        Some(rest) => format!("{architecture}.{rest}"),
        None => key,
    };
    Small { settings: settings.into_iter().map(|(key, value)| (renamed(key), value)).collect(), tensors }
}

/// The same with two experts. Each row passes one.
fn mixture(architecture: &str) -> Small {
    let Small { settings, mut tensors } = small(architecture)
        .set(&format!("{architecture}.expert_count"), Setting::U32(2))
        .set(&format!("{architecture}.expert_used_count"), Setting::U32(1))
        .tensor("blk.0.ffn_gate_inp.weight", DType::F32, &[2, 32]);
    tensors.retain(|(name, ..)| {
        !["gate.", "up.", "down."].iter().any(|part| name.contains(&format!("ffn_{part}")))
    });
    Small { settings, tensors }
}

fn stacked(small: Small, parts: &[(&str, usize)]) -> Small {
    parts.iter().fold(small, |small, (part, rows)| {
        small.tensor(&format!("blk.0.ffn_{part}_exps.weight"), DType::BF16, &[2, *rows, 32])
    })
}

/// Elements of a head of the smallest model.
const HEAD_DIM: usize = 16;
const APART: [(&str, usize); 3] = [("gate", 32), ("up", 32), ("down", 32)];

fn window(checkpoint: &Checkpoint) -> Option<usize> {
    let MixerConfig::Attention(attention) = &checkpoint.config().layers[0].mixer else {
        panic!("no attention")
    };
    attention.window
}

/// The tensor, the expert and the pick of a projection.
fn origin(linear: &LinearConfig) -> (&str, Option<usize>, RowPick) {
    (&linear.weight.tensor.name, linear.weight.expert, linear.weight.pick)
}

#[test]
fn windows_and_experts_choose_the_class() {
    let at = |architecture: &str, window: u32| {
        small(architecture).set(&format!("{architecture}.attention.sliding_window"), Setting::U32(window))
    };
    for (file, expected, keys) in [
        (at("llama", 4), Architecture::Mistral, Some(4)),
        // A window that no position reaches, and one that is switched off.
        (at("llama", 16), Architecture::Llama, None),
        (at("llama", 0), Architecture::Llama, None),
        (at("phi3", 0), Architecture::Phi3, None),
        (stacked(mixture("llama"), &APART), Architecture::Mixtral, None),
    ] {
        let checkpoint = file.open().unwrap();
        assert_eq!((checkpoint.config().architecture, window(&checkpoint)), (expected, keys));
    }
}

#[test]
fn text_models_of_models_for_images_are_those_of_texts_alone() {
    let sections = |name: &str, file: Small| {
        let list = Setting::Numbers(Numbers::of_i32(&[2, 1, 1, 0]));
        let deep = Setting::U32(3);
        file.set(&format!("{name}.rope.dimension_sections"), list)
            .set(&format!("{name}.n_deepstack_layers"), deep)
    };
    let normed = |small: Small| {
        ["attn_q_norm", "attn_k_norm"]
            .iter()
            .fold(small, |small, norm| small.tensor(&format!("blk.0.{norm}.weight"), DType::F32, &[HEAD_DIM]))
    };
    let biased = |small: Small| {
        ["attn_q", "attn_k", "attn_v"]
            .iter()
            .fold(small, |small, part| small.tensor(&format!("blk.0.{part}.bias"), DType::F32, &[32]))
    };
    let moe = |name| normed(stacked(mixture(name), &APART));
    for (name, file, alone) in [
        ("qwen2vl", biased(small("qwen2vl")), biased(small("qwen2"))),
        ("qwen3vl", normed(small("qwen3vl")), normed(small("qwen3"))),
        ("qwen3vlmoe", moe("qwen3vlmoe"), moe("qwen3moe")),
    ] {
        let within = sections(name, file).open().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(within.config(), alone.open().unwrap().config(), "{name}");
    }
}

#[test]
fn experts_are_found_stacked_fused_and_apart() {
    let both = RowPick::Grouped { group: 64, first: 32, count: 32 };
    let own = [0, 1].iter().fold(mixture("llama"), |small, expert| {
        ["gate", "up", "down"].iter().fold(small, |small, part| {
            small.tensor(&format!("blk.0.ffn_{part}.{expert}.weight"), DType::BF16, &[32, 32])
        })
    });
    for (what, file, up) in [
        ("stacked", stacked(mixture("llama"), &APART), ("blk.0.ffn_up_exps.weight", Some(1), RowPick::All)),
        (
            "fused",
            stacked(mixture("llama"), &[("gate_up", 64), ("down", 32)]),
            ("blk.0.ffn_gate_up_exps.weight", Some(1), both),
        ),
        ("apart", own, ("model.layers.0.block_sparse_moe.experts.1.w3.weight", None, RowPick::All)),
    ] {
        let checkpoint = file.open().unwrap();
        let FeedForward::Experts(mixture) = &checkpoint.config().layers[0].feed else { panic!("{what}") };
        assert_eq!(origin(&mixture.experts[1].up), up, "{what}");
    }
}

#[test]
fn projections_are_found_fused_and_apart() {
    let fused = |rows| RowPick::Grouped { group: 96, first: rows, count: 32 };
    let phi = |fused: bool| {
        let mut file = small("phi2").set("phi2.attention.layer_norm_epsilon", Setting::F32(1e-5));
        let apart = ["attn_q.", "attn_k.", "attn_v."].into_iter().filter(|_| fused);
        let absent: Vec<&str> = ["ffn_norm", "ffn_gate"].into_iter().chain(apart).collect();
        file.tensors.retain(|(name, ..)| !absent.iter().any(|part| name.contains(part)));
        let parts: &[&str] = if fused { &["attn_qkv"] } else { &["attn_q", "attn_k", "attn_v"] };
        let biases = parts.iter().chain(&["attn_output", "ffn_up", "ffn_down", "attn_norm"]);
        let file = biases.fold(file, |file, part| {
            let width = if *part == "attn_qkv" { 96 } else { 32 };
            file.tensor(&format!("blk.0.{part}.bias"), DType::F32, &[width])
        });
        let file = if fused { file.tensor("blk.0.attn_qkv.weight", DType::BF16, &[96, 32]) } else { file };
        file.tensor("output_norm.bias", DType::F32, &[32])
    };
    for (is_fused, key) in [
        (true, ("blk.0.attn_qkv.weight", None, fused(32))),
        (false, ("model.layers.0.self_attn.k_proj.weight", None, RowPick::All)),
    ] {
        let checkpoint = phi(is_fused).open().unwrap();
        let MixerConfig::Attention(attention) = &checkpoint.config().layers[0].mixer else {
            panic!("no attention")
        };
        assert_eq!(origin(&attention.key), key);
    }
}

#[test]
fn layers_that_only_draft_tokens_are_skipped() {
    let file = |layers: u32, drafts: u32, tensor: &str| {
        let of_drafts = ["blk.1.attn_q.weight", "blk.1.nextn.eh_proj.weight", tensor];
        let file = small("qwen2")
            .set("qwen2.block_count", Setting::U32(layers))
            .set("qwen2.nextn_predict_layers", Setting::U32(drafts));
        let biases = [("q", 32), ("k", 32), ("v", 32)];
        let file = biases.iter().fold(file, |file, (part, rows)| {
            file.tensor(&format!("blk.0.attn_{part}.bias"), DType::F32, &[*rows])
        });
        of_drafts.iter().fold(file, |file, tensor| file.tensor(tensor, DType::BF16, &[8, 8]))
    };
    let checkpoint = file(2, 1, "blk.1.nextn.enorm.weight").open().unwrap();
    assert_eq!(checkpoint.config().layers.len(), 1);
    assert!(checkpoint.tensor_names().all(|name| !name.contains("blk.1") && !name.contains("layers.1")));
    for (what, file, pieces) in [
        ("beyond them", file(2, 1, "blk.2.nextn.enorm.weight"), ["blk.2.nextn.enorm.weight", "1 layers"]),
        ("no other layer", file(2, 2, "blk.1.nextn.enorm.weight"), ["qwen2.nextn_predict_layers", "0 to 1"]),
    ] {
        let message = file.open().map(|_| ()).unwrap_err().to_string();
        assert!(pieces.iter().all(|piece| message.contains(piece)), "{what}: {message:?}");
    }
}

#[test]
fn routers_choose_the_class_of_latent_attention() {
    for (name, expected, key) in [
        // This file has the projection from the latents in one tensor.
        ("deepseek-v2-lite", Architecture::DeepseekV2, ("model.layers.0.self_attn.kv_b_proj.weight", None)),
        ("deepseek-v3", Architecture::DeepseekV3, ("blk.0.attn_k_b.weight", Some(1))),
    ] {
        let checkpoint = Checkpoint::open(&model(&format!("gguf/{name}.gguf"))).unwrap();
        assert_eq!(checkpoint.config().architecture, expected);
        let MixerConfig::Latent(latent) = &checkpoint.config().layers[0].mixer else { panic!("no latents") };
        let (tensor, head, _) = origin(&latent.key[1]);
        assert_eq!((tensor, head), key);
    }
    // Some files have it twice.
    let both = latents(64).tensor("blk.0.attn_k_b.weight", DType::BF16, &[2, 16, 8]);
    let both = both.tensor("blk.0.attn_v_b.weight", DType::BF16, &[2, 8, 16]).open().unwrap();
    assert!(both.tensor_names().all(|name| !name.contains("kv_b")));
    assert_eq!(both.tensor("blk.0.attn_v_b.weight").unwrap().shape, [2, 8, 16]);
}

#[test]
fn experts_may_have_projections_around_them() {
    let numbers = [
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 8),
        ("ssm.group_count", 1),
        ("ssm.time_step_rank", 2),
        ("ssm.inner_size", 16),
        ("moe_latent_size", 16),
        ("expert_feed_forward_length", 8),
        ("expert_shared_feed_forward_length", 8),
    ];
    let file = numbers.iter().fold(mixture("nemotron_h_moe"), |file, (key, n)| {
        file.set(&format!("nemotron_h_moe.{key}"), Setting::U32(*n))
    });
    let tensors: [(&str, &[usize]); 6] = [
        ("ffn_latent_down", &[16, 32]),
        ("ffn_latent_up", &[32, 16]),
        ("ffn_up_exps", &[2, 8, 16]),
        ("ffn_down_exps", &[2, 16, 8]),
        ("ffn_up_shexp", &[8, 32]),
        ("ffn_down_shexp", &[32, 8]),
    ];
    let file = tensors
        .iter()
        .fold(file, |file, (name, shape)| file.tensor(&format!("blk.0.{name}.weight"), DType::BF16, shape));
    let mut file = file.tensor("blk.0.exp_probs_b.bias", DType::F32, &[2]);
    file.tensors.retain(|(name, ..)| {
        !["attn_q.", "attn_k.", "attn_v.", "attn_output.", "ffn_norm."].iter().any(|part| name.contains(part))
    });
    let checkpoint = file.open().unwrap();
    let FeedForward::Experts(mixture) = &checkpoint.config().layers[0].feed else { panic!("no experts") };
    let latent = mixture.latent.as_ref().unwrap();
    for (linear, shape) in [(&latent.input, [16, 32]), (&latent.output, [32, 16])] {
        assert_eq!((linear.outputs, linear.inputs), (shape[0], shape[1]));
        assert_eq!(checkpoint.tensor(&linear.weight.tensor.name).unwrap().shape, shape);
    }
    assert_eq!(origin(&mixture.experts[1].up), ("blk.0.ffn_up_exps.weight", Some(1), RowPick::All));
}

/// The smallest model with latent attention, with this many experts in one layer.
fn latents(experts: u32) -> Small {
    let count = experts as usize;
    let numbers = [
        ("expert_count", experts),
        ("expert_used_count", 1),
        ("expert_feed_forward_length", 8),
        ("attention.key_length", 16),
        ("attention.value_length", 8),
        ("attention.kv_lora_rank", 16),
        ("rope.dimension_count", 8),
    ];
    let file = numbers
        .iter()
        .fold(mixture("deepseek2"), |file, (key, n)| file.set(&format!("deepseek2.{key}"), Setting::U32(*n)));
    let tensors: [(&str, DType, &[usize]); 8] = [
        ("attn_kv_a_mqa", DType::BF16, &[24, 32]),
        ("attn_kv_a_norm", DType::F32, &[16]),
        ("attn_kv_b", DType::BF16, &[32, 16]),
        ("attn_output", DType::BF16, &[32, 16]),
        ("ffn_gate_inp", DType::F32, &[count, 32]),
        ("ffn_gate_exps", DType::BF16, &[count, 8, 32]),
        ("ffn_up_exps", DType::BF16, &[count, 8, 32]),
        ("ffn_down_exps", DType::BF16, &[count, 32, 8]),
    ];
    let mut file = tensors
        .iter()
        .fold(file, |file, (name, dtype, shape)| file.tensor(&format!("blk.0.{name}.weight"), *dtype, shape));
    file.tensors.retain(|(name, ..)| !name.ends_with("attn_k.weight") && !name.ends_with("attn_v.weight"));
    file
}

#[test]
fn old_files_have_the_groups_of_their_model() {
    let sigmoid = |file: Small| {
        let count =
            file.tensors.iter().find(|(name, ..)| name.ends_with("ffn_gate_inp.weight")).unwrap().2[0];
        file.set("deepseek2.expert_gating_func", Setting::U32(2)).tensor(
            "blk.0.exp_probs_b.bias",
            DType::F32,
            &[count],
        )
    };
    let keyed = |file: Small| {
        let file = file.set("deepseek2.expert_group_count", Setting::U32(4));
        file.set("deepseek2.expert_group_used_count", Setting::U32(2))
    };
    for (what, file, expected) in [
        ("V2-Lite", latents(64), None),
        ("V2", latents(160), Some((8, 3, 1))),
        ("V2 with keys", keyed(latents(160)), Some((4, 2, 1))),
        ("V3", sigmoid(latents(256)), Some((8, 4, 2))),
        ("Kimi K2", sigmoid(latents(384)), None),
        ("Kimi K2 with keys", keyed(sigmoid(latents(384))), Some((4, 2, 2))),
    ] {
        let checkpoint = file.open().unwrap_or_else(|error| panic!("{what}: {error}"));
        let FeedForward::Experts(mixture) = &checkpoint.config().layers[0].feed else { panic!("{what}") };
        let groups = mixture.routing.groups.map(|groups| (groups.count, groups.kept, groups.best));
        assert_eq!(groups, expected, "{what}");
    }
}

#[test]
fn refusals_name_the_key_or_tensor_of_the_file() {
    let number = |architecture: &str, key: &str, n| {
        small(architecture).set(&format!("{architecture}.{key}"), Setting::U32(n))
    };
    let float = |architecture: &str, key: &str, n| {
        small(architecture).set(&format!("{architecture}.{key}"), Setting::F32(n))
    };
    let list = |numbers: &[i32]| Setting::Numbers(Numbers::of_i32(numbers));
    for (what, file, pieces) in [
        (
            "window",
            number("qwen2", "attention.sliding_window", 4),
            &["qwen2.attention.sliding_window", "4 is not"][..],
        ),
        (
            "reordered queries and keys",
            number("glm4", "rope.dimension_count", 8)
                .set("glm4.rope.dimension_sections", list(&[1, 1, 2, 0])),
            &["glm4.rope.dimension_sections", "GLM-4.1V"],
        ),
        ("base", float("gemma3", "rope.freq_base_swa", -1.0), &["gemma3.rope.freq_base_swa", "found -1"]),
        (
            "cap",
            float("gemma2", "final_logit_softcapping", -1.0),
            &["gemma2.final_logit_softcapping", "found -1"],
        ),
        (
            "cap of others",
            float("gemma", "final_logit_softcapping", 30.0),
            &["gemma.final_logit_softcapping", "30 is not"],
        ),
        ("multiplier", float("granite", "residual_scale", -0.5), &["granite.residual_scale", "found -0.5"]),
        ("no experts", small("gpt-oss"), &["gpt-oss.expert_count", "is missing"]),
        (
            "too many experts",
            mixture("qwen3moe").set("qwen3moe.expert_used_count", Setting::U32(3)),
            &["qwen3moe.expert_used_count", "found 3, expected a whole number from 1 to 2"],
        ),
        (
            "no routers",
            number("qwen3moe", "expert_count", 2).set("qwen3moe.expert_used_count", Setting::U32(1)),
            &["qwen3moe.expert_count", "no layer has a ffn_gate_inp.weight"],
        ),
        (
            "a pattern of others",
            small("gemma3").set("gemma3.attention.sliding_window_pattern", list(&[1, 0])),
            &["gemma3.attention.sliding_window_pattern", "a truth value for each of 1 layers"],
        ),
        (
            "odd rotation",
            number("phi3", "rope.dimension_count", 3),
            &["phi3.rope.dimension_count", "must be even"],
        ),
        (
            "wide rotation",
            number("phi3", "rope.dimension_count", 18),
            &["phi3.rope.dimension_count", "from 2 to 16"],
        ),
        (
            "long factors",
            small("qwen2").tensor("rope_factors_long.weight", DType::F32, &[8]),
            &["rope_factors_long.weight", "LongRoPE", "another server as an upstream"],
        ),
        (
            "factors of 0",
            small("phi3").tensor("rope_factors_long.weight", DType::F32, &[8]),
            &["rope_factors_long.weight", "has a factor of 0"],
        ),
        (
            "norms of heads",
            small("stablelm").set("stablelm.attention.layer_norm_epsilon", Setting::F32(1e-5)).tensor(
                "blk.0.attn_q_norm.weight",
                DType::F32,
                &[2, 16],
            ),
            &["blk.0.attn_q_norm.weight", "true is not supported"],
        ),
        (
            "gating",
            mixture("qwen3moe").set("qwen3moe.expert_gating_func", Setting::U32(2)),
            &["qwen3moe.expert_gating_func", "2 is not supported", "1 is"],
        ),
        (
            "gating of two classes",
            mixture("deepseek2")
                .set("deepseek2.expert_gating_func", Setting::U32(3))
                .set("deepseek2.rope.dimension_count", Setting::U32(8)),
            &["deepseek2.expert_gating_func", "3 is not supported", "1 and 2 are"],
        ),
        (
            "latent heads",
            mixture("deepseek2")
                .set("deepseek2.attention.key_length", Setting::U32(8))
                .set("deepseek2.attention.value_length", Setting::U32(8))
                .set("deepseek2.rope.dimension_count", Setting::U32(8)),
            &["deepseek2.attention.key_length_mla", "is 8, which is not above"],
        ),
        (
            "heads of states",
            number("qwen35", "ssm.time_step_rank", 3).set("qwen35.ssm.inner_size", Setting::U32(32)),
            &["qwen35.ssm.inner_size", "ssm.time_step_rank 3 does not divide"],
        ),
        ("no heads of states", small("granitehybrid"), &["granitehybrid.ssm.time_step_rank", "is missing"]),
        (
            "pairs that turn otherwise",
            small("gemma4").tensor("rope_freqs.weight", DType::F32, &[8]),
            &["rope_freqs.weight", "has a factor of 0"],
        ),
        ("no epsilon", small("starcoder2"), &["starcoder2.attention.layer_norm_epsilon", "is missing"]),
        ("no norm", small("gemma2"), &["blk.0.post_attention_norm.weight", "is missing"]),
        (
            "growth",
            float("llama", "attention.temperature_scale", 0.1),
            &["llama.attention.temperature_scale"],
        ),
    ] {
        let message = file.open().map(|_| ()).unwrap_err().to_string();
        for piece in [&["m.gguf"], pieces].concat() {
            assert!(message.contains(piece), "{what}: {message:?} does not say {piece:?}");
        }
    }
}
