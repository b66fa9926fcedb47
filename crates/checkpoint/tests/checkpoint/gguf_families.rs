//! GGUF files of other architectures than Llama's: which class reads them, where their tensors are, and that refusals name
//! the key or tensor of the file.

use headrace_checkpoint::decoder::{FeedForward, LinearConfig, MixerConfig, RowPick};
use headrace_checkpoint::gguf::Numbers;
use headrace_checkpoint::gguf::writer::Setting;
use headrace_checkpoint::{Architecture, Checkpoint, DType};

use crate::gguf::Small;

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
            small("phi3").tensor("rope_factors_long.weight", DType::F32, &[8]),
            &["rope_factors_long.weight", "LongRoPE", "another server as an upstream"],
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
