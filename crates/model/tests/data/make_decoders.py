"""Makes the decoders of random weights that are not among the others' oracles, and transformers' answers for them.

Run with transformers 5.24 and torch 2.15: `python make_decoders.py [NAME ...]`, in this folder. Answers are computed in
float32 from the stored bfloat16 weights, each sequence alone, with eager attention. Windows are no multiples of 16.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers

SIZES = dict(vocab_size=192, hidden_size=48, num_attention_heads=4, intermediate_size=80, num_hidden_layers=3,
             max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
GROUPED = dict(num_key_value_heads=2)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2)

# Widths that are no multiples of 16, and odd ones. The class of DeepSeek V2 takes only even ones.
LATENT = dict(num_key_value_heads=None, kv_lora_rank=27, qk_nope_head_dim=13, qk_rope_head_dim=6, v_head_dim=11,
              n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, first_k_dense_replace=1)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1)

MODELS = {
    "cohere": ("Cohere", dict(GROUPED, logit_scale=0.25, use_qk_norm=True)),
    "cohere2": ("Cohere2", dict(GROUPED, logit_scale=0.25, sliding_window=11, num_hidden_layers=4)),
    "gemma": ("Gemma", dict(GROUPED, head_dim=16)),
    "glm4": ("Glm4", dict(GROUPED, head_dim=16, attention_bias=True)),
    "gpt-neox": ("GPTNeoX", dict(num_attention_heads=3)),
    "gpt-neox-serial": ("GPTNeoX", dict(num_attention_heads=3, use_parallel_residual=False)),
    "granite-moe": ("GraniteMoe", dict(GROUPED, num_local_experts=6, num_experts_per_tok=2, embedding_multiplier=3.0,
                                       attention_multiplier=0.2, residual_multiplier=0.4, logits_scaling=2.0)),
    "nemotron": ("Nemotron", dict(GROUPED, head_dim=12)),
    "olmo3": ("Olmo3", dict(GROUPED, sliding_window=11, num_hidden_layers=4,
                            rope_parameters=dict(
                                full_attention=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                                    original_max_position_embeddings=64),
                                sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    "olmoe": ("Olmoe", dict(**GROUPED, **EXPERTS, clip_qkv=0.5)),
    "phi": ("Phi", dict(GROUPED)),
    "phi3-window": ("Phi3", dict(GROUPED, sliding_window=11,
                                 rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "qwen2-moe": ("Qwen2Moe", dict(EXPERTS, num_key_value_heads=2, moe_intermediate_size=24, shared_expert_intermediate_size=40,
                                   decoder_sparse_step=2, num_hidden_layers=4)),
    "smollm3": ("SmolLM3", dict(GROUPED, num_hidden_layers=4)),
    "stablelm": ("StableLm", dict(num_attention_heads=3, num_key_value_heads=1, use_qkv_bias=True)),
    "stablelm-parallel": ("StableLm", dict(num_attention_heads=3, num_key_value_heads=3, use_parallel_residual=True)),
    "starcoder2": ("Starcoder2", dict(GROUPED, sliding_window=11)),
    "granite-hybrid-dense": ("GraniteMoeHybrid", dict(
        GROUPED, num_local_experts=0, shared_intermediate_size=40, position_embedding_type="rope", mamba_n_heads=6,
        mamba_d_head=16, mamba_n_groups=2, mamba_d_state=12, embedding_multiplier=3.0, attention_multiplier=0.2,
        residual_multiplier=0.4, logits_scaling=2.0, layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "lfm2": ("Lfm2", dict(GROUPED, block_multiple_of=8, conv_bias=True,
                          layer_types=["conv", "full_attention", "conv"])),
    "nemotron-h-latent": ("NemotronH", dict(
        GROUPED, layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe"], head_dim=16,
        mamba_num_heads=6, mamba_head_dim=10, ssm_state_size=12, n_groups=3, use_bias=True, mlp_bias=True, time_step_min=0.8,
        n_routed_experts=8, num_experts_per_tok=2, n_group=4, topk_group=2, routed_scaling_factor=2.5, moe_latent_size=20,
        moe_intermediate_size=24, moe_shared_expert_intermediate_size=40)),
    "qwen3-next": ("Qwen3Next", dict(
        EXPERTS, num_key_value_heads=2, head_dim=16, moe_intermediate_size=24, shared_expert_intermediate_size=40,
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=20,
        num_hidden_layers=4, mlp_only_layers=[1])),
    "deepseek-v2": ("DeepseekV2", dict(LATENT, kv_lora_rank=26, qk_nope_head_dim=14, q_lora_rank=21, topk_method="group_limited_greedy", n_group=3, topk_group=2,
                                       n_shared_experts=2, routed_scaling_factor=3.0, rope_parameters=dict(YARN, mscale=0.707,
                                                                                                           mscale_all_dim=0.707))),
    "deepseek-v2-lite": ("DeepseekV2", dict(LATENT, num_attention_heads=3, q_lora_rank=None, topk_method="greedy", n_group=1,
                                            topk_group=1, n_shared_experts=1, first_k_dense_replace=2, kv_lora_rank=34,
                                            qk_nope_head_dim=10, qk_rope_head_dim=14, v_head_dim=19)),
    "deepseek-v3-yarn": ("DeepseekV3", dict(LATENT, q_lora_rank=19, n_group=3, topk_group=2, n_shared_experts=1,
                                            attention_bias=True, rope_interleave=False, num_mtp_layers=0,
                                            rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    "glm4-moe": ("Glm4Moe", dict(GROUPED, head_dim=16, use_qk_norm=True, attention_bias=True, n_routed_experts=6,
                                 num_experts_per_tok=2, moe_intermediate_size=20, n_group=2, topk_group=1,
                                 first_k_dense_replace=1, routed_scaling_factor=1.5, num_mtp_layers=0)),
}

# Models that also take images, with the text model and the smallest vision tower. Only texts are compared.
TOWER = dict(hidden_size=16, num_attention_heads=2, intermediate_size=24, num_hidden_layers=1, image_size=28, patch_size=14)
SECTIONS = dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 2, 2])
QWEN_TOWER = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=24, out_hidden_size=48)
GLM_TOWER = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=24, out_hidden_size=64, image_size=28, patch_size=14)
WITH_TEXT_MODEL = {
    "qwen25-vl": ("Qwen2_5_VL", dict(GROUPED, rope_parameters=SECTIONS), dict(QWEN_TOWER, fullatt_block_indexes=[0])),
    "qwen3-vl": ("Qwen3VL", dict(GROUPED, head_dim=12, rope_parameters=dict(SECTIONS, mrope_interleaved=True)),
                 dict(QWEN_TOWER, deepstack_visual_indexes=[0], num_position_embeddings=16)),
    "smolvlm": ("SmolVLM", dict(GROUPED, model_type="llama"), TOWER),
    "qwen3-vl-moe": ("Qwen3VLMoe", dict(GROUPED, **EXPERTS, head_dim=12, moe_intermediate_size=20, mlp_only_layers=[1],
                                        rope_parameters=dict(SECTIONS, mrope_interleaved=True)),
                     dict(QWEN_TOWER, deepstack_visual_indexes=[0], num_position_embeddings=16)),
    "glm4v": ("Glm4v", dict(GROUPED, hidden_size=64, rope_parameters=dict(SECTIONS, mrope_section=[1, 1, 2],
                                                                          partial_rotary_factor=0.5)), GLM_TOWER),
    "glm4v-moe": ("Glm4vMoe", dict(GROUPED, hidden_size=64, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
                                   n_group=2, topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
                                   rope_parameters=dict(SECTIONS, mrope_section=[1, 1, 2], partial_rotary_factor=0.5)),
                  GLM_TOWER),
}


def randomize(model, seed):
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            if weight.dim() == 1:
                weight.add_(0.2 * noise)
            else:
                weight.copy_(noise * 1.2 / weight.shape[-1] ** 0.5)
            weight.copy_(weight.to(torch.bfloat16).float())
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.copy_((0.2 * torch.randn(bias.shape, generator=random)).to(torch.bfloat16).float())


def case(model, ids):
    answer = model(torch.tensor([ids])).logits[0]
    logprobs = torch.log_softmax(answer, -1)
    greedy, gaps, row, all_ids = [], [], answer[-1], list(ids)
    for _ in range(16):
        best = torch.topk(row, 2).values
        gaps.append(float(best[0] - best[1]))
        greedy.append(int(row.argmax()))
        all_ids.append(greedy[-1])
        row = model(torch.tensor([all_ids])).logits[0, -1]
    top = torch.topk(logprobs[-1], 5)
    return {
        "ids": ids,
        "logits_last": [round(float(x), 6) for x in answer[-1]],
        "argmax_each_position": answer.argmax(-1).tolist(),
        "logsumexp_each_position": [round(float(x), 6) for x in torch.logsumexp(answer, -1)],
        "prompt_token_logprobs": [round(float(logprobs[i, ids[i + 1]]), 6) for i in range(len(ids) - 1)],
        "top5_logprobs": [[int(i), round(float(x), 6)] for i, x in zip(top.indices, top.values)],
        "greedy": greedy,
        "gaps": [round(gap, 6) for gap in gaps],
    }


def old_spelling(config):
    """The keys that were used on the hub before transformers 5."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    config["rope_theta"] = rope.pop("rope_theta", 10000.0)
    share = rope.pop("partial_rotary_factor", None)
    if share is not None:
        config["rotary_pct" if config["model_type"] == "gpt_neox" else "partial_rotary_factor"] = share
    if config["model_type"] == "lfm2":
        kinds = config.pop("layer_types")
        config["full_attn_idxs"] = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
        config["tie_embedding"] = config.pop("tie_word_embeddings")
    if config["model_type"] == "qwen3_next":
        config.pop("layer_types")
        config["full_attention_interval"] = 4
    if config["model_type"] == "nemotron_h":
        letters = {"linear_attention": "M", "moe": "E", "full_attention": "*", "mlp": "-"}
        config["hybrid_override_pattern"] = "".join(letters[kind] for kind in config.pop("layers_block_type"))
    if config["model_type"] == "granitemoehybrid":
        config["layer_types"] = [{"linear_attention": "mamba"}.get(kind, "attention") for kind in config["layer_types"]]
        config["mamba_d_head"] = "auto"
    config["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
    return config


def old_spelling_with_text(config):
    """The same for a model that also takes images. Those of Qwen2-VL and Qwen2.5-VL had no object for the text model."""
    dtype = config.pop("dtype")
    text = dict(config.pop("text_config"), dtype=dtype)
    sections = {key: value for key, value in text["rope_parameters"].items() if key.startswith("mrope")}
    text = old_spelling(text)
    if config["model_type"] == "qwen2_5_vl":
        return {**text, **config, "rope_scaling": {"type": "mrope", **sections}}
    if sections:
        text["rope_scaling"] = {"rope_type": "default", **sections}
    return {**config, "text_config": text, "torch_dtype": dtype}


def new_model(name):
    if name in WITH_TEXT_MODEL:
        kind, more, tower = WITH_TEXT_MODEL[name]
        image = dict(image_token_id=190)
        if kind.startswith("Qwen"):
            image |= dict(video_token_id=189, vision_start_token_id=188, vision_end_token_id=187)
        if kind.startswith("Glm"):
            image |= dict(video_token_id=189, image_start_token_id=188, image_end_token_id=187, video_start_token_id=186, video_end_token_id=185)
        config = getattr(transformers, f"{kind}Config")(text_config={**SIZES, **more}, vision_config=tower, tie_word_embeddings=False, **image)
        end = "ForConditionalGeneration"
    else:
        kind, more = MODELS[name]
        config, end = getattr(transformers, f"{kind}Config")(**{**SIZES, **more}), "ForCausalLM"
    config._attn_implementation = "eager"
    return getattr(transformers, f"{kind}{end}")(config).eval().float()


def save(name, seed):
    model = new_model(name)
    randomize(model, seed)
    folder = pathlib.Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    # Read again, because the conversion has also rounded the rotary frequencies.
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    new = json.loads((folder / "config.json").read_text())
    (folder / "config.v5.json").write_text(json.dumps(new, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps((old_spelling_with_text if name in WITH_TEXT_MODEL else old_spelling)(new), indent=1) + "\n")
    for path in folder.iterdir():
        if path.name not in ("config.json", "config.v5.json", "model.safetensors"):
            path.unlink()
    random = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        cases = [case(model, torch.randint(3, SIZES["vocab_size"], (length,), generator=random).tolist()) for length in (5, 20, 75)]
    (folder / "expected.json").write_text(json.dumps({"cases": cases}, separators=(",", ":")) + "\n")
    print(name, min(min(case["gaps"]) for case in cases))


for seed, name in enumerate([*MODELS, *WITH_TEXT_MODEL]):
    if len(sys.argv) == 1 or name in sys.argv[1:]:
        save(name, 100 + seed)
