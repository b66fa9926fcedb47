//! Checkpoints in safetensors give the reference answers.

use headrace_kernels::Isa;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::Forward;
use headrace_kv_layout::KvGroup;
use headrace_model::{KvGroups, LoadOptions, Model, weight_bytes};

use crate::common::isas;
use crate::support::{
    CLOSE_GAP, DemoCase, Expected, all_rows, blocks, check_case, checkpoint, configs, data, demo, emulated,
    expected, greedy, load, same_bits,
};

const CHECKPOINTS: [&str; 73] = [
    "cohere",
    "cohere2",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3-fp8",
    "deepseek-v3-yarn",
    "gemma",
    "gemma2",
    "gemma3-cond",
    "gemma3-text",
    "gemma4-cond",
    "gemma4-moe",
    "gemma4-ple",
    "glm4",
    "glm4-moe",
    "glm4-moe-lite",
    "glm4v",
    "glm4v-moe",
    "gpt-neox",
    "gpt-neox-serial",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "gpt2",
    "granite",
    "granite-hybrid",
    "granite-hybrid-dense",
    "granite-moe",
    "lfm2",
    "lfm2-moe",
    "llama-ct-w4a16",
    "llama-gqa-untied",
    "llama-mha-f32-sharded",
    "llama-tied-rope3",
    "llama-yarn",
    "ministral3",
    "mistral-swa",
    "mistral3-cond",
    "mixtral",
    "mixtral-ct-fp8",
    "nemotron",
    "nemotron-h",
    "nemotron-h-latent",
    "nemotron-h-moe",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi",
    "phi3",
    "phi3-longrope",
    "phi3-window",
    "qwen2",
    "qwen2-awq",
    "qwen2-moe",
    "qwen2-moe-ct-w4a16",
    "qwen25-vl",
    "qwen3",
    "qwen3-fp8",
    "qwen3-gptq",
    "qwen3-moe",
    "qwen3-moe-fp8",
    "qwen3-next",
    "qwen3-tied",
    "qwen3-vl",
    "qwen3-vl-moe",
    "qwen35",
    "qwen35-cond",
    "qwen35-moe",
    "smollm3",
    "smolvlm",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
];

#[test]
fn oracle_checkpoints_are_reproduced_on_every_instruction_set() {
    for isa in isas() {
        for name in CHECKPOINTS {
            for config in configs() {
                let expected: Expected = expected(&data(name));
                let checkpoint = checkpoint(&data(name), config);
                let mut model = load(&checkpoint, isa, 2);
                let planned = KvGroups::of(checkpoint.config(), KvType::F32);
                let sizes = |group: &KvGroup| (group.kind, group.bytes_per_block);
                assert!(model.shape().kv.used().map(sizes).eq(planned.groups().map(sizes)));
                assert!(model.shape().weight_bytes >= weight_bytes(&checkpoint, None).unwrap());
                let cases = if emulated() { 1 } else { expected.cases.len() };
                for (index, case) in expected.cases.iter().take(cases).enumerate() {
                    check_case(&format!("{name} {config} case {index} on {isa}"), &mut model, isa, case);
                }
            }
        }
    }
}

/// The same request may have other factors on an engine whose context is no longer than that of the pretraining.
#[test]
fn numerics_name_the_choice_of_longropes_factors() {
    const ORIGINAL: usize = 96;
    let checkpoint = checkpoint(&data("phi3-longrope"), "config.json");
    for (max_positions, is_chosen) in [(ORIGINAL, false), (ORIGINAL + 1, true)] {
        let options =
            LoadOptions { max_positions: Some(max_positions), ..LoadOptions::exact(Isa::best(), 1, 64) };
        let model = Model::load(&checkpoint, options, &mut |_, _| ()).unwrap();
        assert_eq!(model.numerics().ends_with("/longrope"), is_chosen, "{}", model.numerics());
        assert_eq!(model.shape().is_long(ORIGINAL + 1), is_chosen);
    }
}

#[test]
fn the_demo_model_answers_as_recorded_on_every_instruction_set() {
    let checkpoint = checkpoint(&demo(), "config.json");
    let cases: Vec<DemoCase> = expected(&demo());
    for isa in isas() {
        let mut model = load(&checkpoint, isa, 2);
        for (index, case) in cases.iter().enumerate() {
            let table = blocks(case.ids.len() + case.greedy.len(), 5);
            let rows = all_rows(&mut model, &case.ids, usize::MAX, &table);
            let tokens = greedy(&mut model, rows.last().unwrap(), case.ids.len(), case.greedy.len(), &table);
            assert!(tokens == case.greedy || case.min_gap < CLOSE_GAP, "case {index} on {isa}: {tokens:?}");
            let cut = all_rows(&mut model, &case.ids, 7, &table);
            same_bits("chunks of 7", &rows.concat(), &cut.concat());
        }
    }
}
