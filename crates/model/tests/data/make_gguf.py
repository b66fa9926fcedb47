"""Writes the decoders of this folder as GGUF files, with the `gguf` package (0.19), as llama.cpp's converter would.

    pip install gguf numpy && python make_gguf.py [NAME ...]

NAME/ -> gguf/NAME.gguf, the same weights in another file. Matrices keep their bytes (bf16 or f32), vectors and routers
become f32. Names of tensors are those of `gguf.get_tensor_name_map`; the keys and the changes of tensors follow the classes
in `conversion/` of github.com/ggml-org/llama.cpp (October 2026). Where a test model has a value that the converter does not
write, because published models have another, its key is written here: see EXTRA.
"""

import json
import math
import pathlib
import re
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType

HERE = pathlib.Path(__file__).resolve().parent

# The converter's name of each model's architecture.
ARCHITECTURES = {
    "cohere": "command-r", "cohere2": "cohere2", "gemma": "gemma", "gemma2": "gemma2", "gemma3-text": "gemma3",
    "glm4": "glm4", "gpt-neox": "gptneox", "gpt-neox-serial": "gptneox", "gpt-oss": "gpt-oss", "gpt2": "gpt2",
    "granite": "granite", "granite-moe": "granitemoe", "ministral3": "mistral3", "mistral-swa": "llama", "mixtral": "llama",
    "nemotron": "nemotron", "olmo2": "olmo2", "olmo3": "olmo2", "olmoe": "olmoe", "phi": "phi2",
    "phi3-window": "phi3", "qwen2-moe": "qwen2moe", "qwen3-moe": "qwen3moe", "smollm3": "smollm3", "stablelm": "stablelm",
    "stablelm-parallel": "stablelm", "starcoder2": "starcoder2", "qwen35": "qwen35", "qwen35-moe": "qwen35moe",
    "qwen3-next": "qwen3next", "lfm2": "lfm2", "lfm2-moe": "lfm2moe", "granite-hybrid": "granitehybrid",
    "granite-hybrid-dense": "granitehybrid", "nemotron-h": "nemotron_h", "nemotron-h-moe": "nemotron_h_moe",
    "deepseek-v2": "deepseek2", "deepseek-v2-lite": "deepseek2", "deepseek-v3": "deepseek2", "glm4-moe-lite": "deepseek2",
    "glm4-moe": "glm4moe", "gemma4-moe": "gemma4", "gemma4-ple": "gemma4",
    "phi3-longrope": "phi3",
}
# Files with the projection from the latents in one tensor, as the converter wrote it before April 2025.
OLD_LATENTS = {"deepseek-v2-lite"}
HYBRID = {"qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe"}
DELTA = {"qwen35", "qwen35moe", "qwen3next"}
MAMBA = {"granitehybrid", "nemotron_h", "nemotron_h_moe"}
# The classes that follow LlamaModel, which reorders the rows of queries and keys.
PERMUTED = {"llama", "mistral3", "granite", "granitemoe", "granitehybrid", "smollm3"}
# Keys that the converter does not write for these classes, but that readers of the format know.
EXTRA = {
    # The class knows no hybrid model that rotates.
    "granite-hybrid-dense": lambda w, c: w.add_rope_scaling_finetuned(True),
    "gemma2": lambda w, c: w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5),
    "gemma3-text": lambda w, c: w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]]),
    "mistral-swa": lambda w, c: w.add_sliding_window(c["sliding_window"]),
    "olmoe": lambda w, c: w.add_clamp_kqv(c["clip_qkv"]),
    "starcoder2": lambda w, c: w.add_sliding_window(c["sliding_window"]),
}


class Stored:
    """A tensor's elements, as they are stored: moved, but never computed with, unless they become f32."""

    def __init__(self, values, is_bf16):
        self.values, self.is_bf16 = values, is_bf16

    def f32(self):
        return (self.values.astype(np.uint32) << 16).view(np.float32) if self.is_bf16 else self.values.astype(np.float32)

    def moved(self, change):
        return Stored(np.ascontiguousarray(change(self.values)), self.is_bf16)


def read_safetensors(path):
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = {"BF16": np.uint16, "F32": np.float32, "F16": np.float16}[entry["dtype"]]
            values = np.frombuffer(data[begin:end], kind).reshape(entry["shape"])
            tensors[name] = Stored(values, entry["dtype"] == "BF16")
    return tensors


def permute(heads):
    """LlamaModel.permute: halves to neighbours."""
    def change(rows):
        parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        return parts.swapaxes(1, 2).reshape(rows.shape)
    return change


def grouped(heads):
    """GPTNeoXModel.modify_tensors: [q, k, v] of each head to all q, all k, all v."""
    def change(rows):
        parts = rows.reshape(heads, 3, rows.shape[0] // heads // 3, *rows.shape[1:])
        return np.concatenate([parts[:, kind].reshape(-1, *rows.shape[1:]) for kind in range(3)])
    return change


def transpose(values):
    return values.swapaxes(-1, -2)


def renamed(tensors, change):
    return dict(pair for name, stored in tensors.items() for pair in change(name, stored))


def stacked(tensors):
    """Experts with tensors of their own, in one tensor for each layer and projection."""
    stacks, rest = {}, {}
    for name, stored in tensors.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if match:
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = stored
        else:
            rest[name] = stored
    for name, experts in stacks.items():
        # LlamaModel writes Mixtral's under a name of its own, which the name map knows.
        name = re.sub(r"model\.layers\.(\d+)\.(block_sparse_moe|feed_forward)\.", r"layers.\1.feed_forward.", name)
        # NemotronHModel does so, too.
        name = re.sub(r"backbone\.layers\.(\d+)\.mixer\.", r"model.layers.\1.mlp.", name)
        rest[name] = experts[0].moved(lambda _: np.stack([experts[index].values for index in sorted(experts)]))
    return rest


def gpt_oss(name, stored):
    """GptOssModel.modify_tensors for weights that are not in MXFP4."""
    if name.endswith("sinks"):
        return [(f"{name}.weight", stored)]
    if name.endswith("down_proj_bias"):
        return [(name.replace("down_proj_bias", "down_proj.bias"), stored)]
    if name.endswith("gate_up_proj_bias"):
        stem, halves = name.removesuffix("gate_up_proj_bias"), (lambda v: v[..., ::2], lambda v: v[..., 1::2])
        return [(f"{stem}{part}_proj.bias", stored.moved(half)) for part, half in zip(("gate", "up"), halves)]
    if name.endswith("experts.down_proj"):
        return [(f"{name}.weight", stored.moved(transpose))]
    if name.endswith("experts.gate_up_proj"):
        stem, rows = name.removesuffix("gate_up_proj"), stored.moved(transpose)
        halves = (lambda v: v[:, ::2, :], lambda v: v[:, 1::2, :])
        return [(f"{stem}{part}_proj.weight", rows.moved(half)) for part, half in zip(("gate", "up"), halves)]
    return [(name, stored)]


def granite_moe(width):
    """GraniteMoeModel.modify_tensors: gate and up apart."""
    def change(name, stored):
        if not name.endswith("block_sparse_moe.input_linear.weight"):
            return [(name, stored)]
        block = re.search(r"layers\.(\d+)\.", name)[1]
        halves = (lambda v: v[:, :width], lambda v: v[:, width:])
        return [(f"blk.{block}.ffn_{part}_exps.weight", stored.moved(half)) for part, half in zip(("gate", "up"), halves)]
    return change


def qwen_experts(name, stored):
    """Newer files stack the experts themselves: Qwen2MoeModel splits gate and up."""
    if name.endswith("experts.down_proj"):
        return [(f"{name}.weight", stored)]
    if name.endswith("experts.gate_up_proj"):
        stem, width = name.removesuffix("gate_up_proj"), stored.values.shape[1] // 2
        halves = (lambda v: v[:, :width], lambda v: v[:, width:])
        return [(f"{stem}{part}_proj.weight", stored.moved(half)) for part, half in zip(("gate", "up"), halves)]
    return [(name, stored)]


def kinds(config):
    """What each layer is: "attention", "recurrent", "mlp" or "moe"."""
    if "hybrid_override_pattern" in config:
        letters = {"M": "recurrent", "*": "attention", "-": "mlp", "E": "moe"}
        return [letters[letter] for letter in config["hybrid_override_pattern"]]
    layers = config["num_hidden_layers"]
    if "full_attn_idxs" in config:
        return ["attention" if index in config["full_attn_idxs"] else "recurrent" for index in range(layers)]
    if "layer_types" in config:
        return ["attention" if "attention" in kind and "linear" not in kind else "recurrent" for kind in config["layer_types"]]
    interval = config["full_attention_interval"]
    return ["recurrent" if (index + 1) % interval else "attention" for index in range(layers)]


def decays(stored):
    """The rates instead of their logarithms."""
    return Stored(-np.exp(stored.f32()), False)


def tiled(config, dim, width, first=0):
    """_LinearAttentionVReorderBase: the first value head of each key head, then the second of each."""
    groups = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // groups
    def change(values):
        before, heads = np.split(values, [first], dim)
        shape = heads.shape
        heads = heads.reshape(*shape[:dim], groups, each, width, *shape[dim + 1:]).swapaxes(dim, dim + 1).reshape(shape)
        return np.concatenate([before, heads], dim)
    return change


def qwen_delta(architecture, config):
    """Qwen3NextModel.modify_tensors and, for Qwen3.5, _LinearAttentionVReorderBase.modify_tensors before it."""
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys = groups * key
    orders = {
        ".in_proj_qkv.weight": (0, value, 2 * keys), ".in_proj_z.weight": (0, value), ".in_proj_b.weight": (0, 1),
        ".in_proj_a.weight": (0, 1), ".A_log": (0, 1), ".dt_bias": (0, 1), ".conv1d.weight": (0, value, 2 * keys),
        ".out_proj.weight": (1, value),
    }

    def change(name, stored):
        if architecture != "qwen3next":
            for end, order in orders.items():
                if "linear_attn" in name and name.endswith(end):
                    stored = stored.moved(tiled(config, *order))
        if name.endswith(".A_log"):
            return [(name, decays(stored))]
        if name.endswith(".dt_bias"):
            return [(name.replace(".dt_bias", ".dt_proj.bias"), stored)]
        if ".conv1d." in name:
            return [(name, stored.moved(lambda v: v.squeeze(1)))]
        if name.endswith(".in_proj_qkvz.weight"):
            layer = re.search(r"layers\.(\d+)\.", name)[1]
            each = heads // groups * value
            parts = np.split(stored.values.reshape(groups, -1, stored.values.shape[-1]), [key, 2 * key, 2 * key + each], 1)
            parts = [part.reshape(-1, part.shape[-1]) for part in parts]
            return [(f"blk.{layer}.attn_qkv.weight", stored.moved(lambda _: np.concatenate(parts[:3]))),
                    (f"blk.{layer}.attn_gate.weight", stored.moved(lambda _: parts[3]))]
        return qwen_experts(name, stored)
    return change


def mamba(groups):
    """Mamba2Model.modify_tensors."""
    def change(name, stored):
        if name.endswith(".dt_bias"):
            return [(name.replace(".dt_bias", ".dt_proj.bias"), stored)]
        if name.endswith(".A_log"):
            return [(name, decays(stored).moved(lambda v: v[:, None]))]
        if name.endswith(".D"):
            return [(name, stored.moved(lambda v: v[:, None]))]
        if name.endswith("conv1d.weight"):
            return [(name, stored.moved(lambda v: v.squeeze(1)))]
        if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
            return [(name, stored.moved(lambda v: v.reshape(groups, -1)))]
        return [(name, stored)]
    return change


def granite_shared(config):
    """GraniteMoeModel.modify_tensors for the network that every row passes."""
    suffix = "_shexp" if config["num_local_experts"] else ""
    def change(name, stored):
        if "shared_mlp" not in name:
            return granite_moe(config["intermediate_size"])(name, stored)
        layer, width = re.search(r"layers\.(\d+)\.", name)[1], config["shared_intermediate_size"]
        if name.endswith("output_linear.weight"):
            return [(f"blk.{layer}.ffn_down{suffix}.weight", stored)]
        return [(f"blk.{layer}.ffn_gate{suffix}.weight", stored.moved(lambda v: v[:width])),
                (f"blk.{layer}.ffn_up{suffix}.weight", stored.moved(lambda v: v[width:]))]
    return change


def latents(config):
    """DeepseekV2Model.modify_tensors: keys, transposed, and values of each head."""
    def change(name, stored):
        if not name.endswith("kv_b_proj.weight"):
            return [(name, stored)]
        plain, heads = config["qk_nope_head_dim"], config["num_attention_heads"]
        each = lambda v: v.reshape(heads, -1, v.shape[-1])
        return [(name.replace("kv_b_proj", "k_b_proj"), stored.moved(lambda v: each(v)[:, :plain].swapaxes(1, 2))),
                (name.replace("kv_b_proj", "v_b_proj"), stored.moved(lambda v: each(v)[:, plain:]))]
    return change


def gemma4(name, stored):
    """Gemma4Model.filter_tensors and modify_tensors."""
    layer = re.search(r"layers\.(\d+)\.", name)
    if name.endswith("router.scale"):
        return [(f"blk.{layer[1]}.ffn_gate_inp.scale", stored)]
    if name.endswith("per_expert_scale"):
        return [(f"blk.{layer[1]}.ffn_down_exps.scale", stored)]
    if name.endswith("layer_scalar") or ".experts." in name:
        name += ".weight"
    return [(name, stored)]


def still_pairs(config):
    """Gemma4Model.generate_extra_tensors."""
    width = config["global_head_dim"]
    turning = int(width * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    return np.array([1.0] * turning + [1e30] * (width // 2 - turning), np.float32)


def changed(name, architecture, config, tensors):
    """The tensors as the converter's class changes them, some of them renamed."""
    heads = config.get("num_attention_heads") or config["n_head"]
    kv_heads = config.get("num_key_value_heads") or heads
    if architecture in PERMUTED:
        turned = {"q_proj": permute(heads), "k_proj": permute(kv_heads)}
        for name, stored in tensors.items():
            projection = name.split(".")[-2]
            tensors[name] = stored.moved(turned[projection]) if projection in turned else stored
    if architecture == "gptneox":
        tensors = {name: stored.moved(grouped(heads)) if "query_key_value" in name else stored for name, stored in tensors.items()}
    if architecture == "gpt2":
        def turn(name, stored):
            name = name if name.startswith("transformer.") else f"transformer.{name}"
            if name.endswith((".attn.bias", ".attn.masked_bias")):
                return []
            is_turned = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
            return [(name, stored.moved(transpose) if is_turned else stored)]
        tensors = renamed(tensors, turn)
    if architecture == "gpt-oss":
        tensors = renamed(tensors, gpt_oss)
    if architecture == "granitemoe":
        tensors = renamed(tensors, granite_moe(config["intermediate_size"]))
    if architecture in ("qwen2moe", "qwen3moe", "olmoe"):
        tensors = renamed(tensors, qwen_experts)
    if architecture in DELTA:
        tensors = renamed(tensors, qwen_delta(architecture, config))
    if architecture in ("lfm2", "lfm2moe"):
        def short(name, stored):
            name = name.replace(".expert_bias", ".expert_bias.bias")
            return [(name, stored.moved(lambda v: v.squeeze(1)) if name.endswith("conv.conv.weight") else stored)]
        tensors = renamed(tensors, short)
    if architecture in MAMBA:
        tensors = renamed(tensors, mamba(config.get("n_groups") or config["mamba_n_groups"]))
    if architecture == "granitehybrid":
        tensors = renamed(tensors, granite_shared(config))
    if architecture == "deepseek2" and name not in OLD_LATENTS:
        tensors = renamed(tensors, latents(config))
    if architecture == "phi3" and (config.get("rope_scaling") or {}).get("long_factor"):
        # Phi3MiniModel.generate_extra_tensors.
        for kind in ("long", "short"):
            factors = np.array(config["rope_scaling"][f"{kind}_factor"], np.float32)
            tensors[f"rope_factors_{kind}.weight"] = Stored(factors, False)
    if architecture == "gemma4":
        tensors = renamed(tensors, gemma4)
        tensors["rope_freqs.weight"] = Stored(still_pairs(config), False)
    tensors = {name.replace("e_score_correction_bias", "e_score_correction.bias"): stored for name, stored in tensors.items()}
    return stacked(tensors)


def add_config(writer, name, architecture, config):
    """TextModel.set_gguf_parameters and the classes' own."""
    def find(*members):
        return next((config[member] for member in members if config.get(member) is not None), None)

    if architecture == "gemma4":
        return add_gemma4(writer, config)
    heads, hidden = find("num_attention_heads", "n_head"), find("hidden_size", "n_embd")
    positions = find("max_position_embeddings", "n_positions")
    writer.add_context_length(positions)
    writer.add_embedding_length(hidden)
    drafts = config.get("num_nextn_predict_layers") or 0
    # DeepseekV2Model leaves draft layers out, Glm4MoeLiteModel does not.
    drafts = drafts if name == "glm4-moe-lite" else 0
    writer.add_block_count(find("num_hidden_layers", "n_layer") + drafts)
    if drafts:
        writer.add_nextn_predict_layers(drafts)
    inner = find("intermediate_size", "n_inner")
    if architecture == "lfm2":
        # LFM2Model._add_feed_forward_length.
        multiple = config["block_multiple_of"]
        inner = -(-int(2 * inner / 3) // multiple) * multiple
    if architecture == "nemotron_h":
        inner = [inner if kind == "mlp" else 0 for kind in kinds(config)]
    if architecture == "nemotron_h_moe":
        inner = [config["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds(config)]
    # Qwen3.5 with experts gives no width of a dense network.
    if inner or architecture not in DELTA:
        writer.add_feed_forward_length(inner or 4 * hidden)
    writer.add_head_count(heads)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # GPTNeoXModel and GPT2Model write neither the base nor the heads of keys.
    if architecture not in ("gptneox", "gpt2"):
        kv_heads = find("num_key_value_heads") or heads
        if architecture == "deepseek2" and name not in OLD_LATENTS:
            kv_heads = 1
        if architecture in HYBRID and architecture not in DELTA:
            kv_heads = [kv_heads if kind == "attention" else 0 for kind in kinds(config)]
        writer.add_head_count_kv(kv_heads)
        # Phi2Model, GemmaModel and StableLMModel write no base either: theirs is the default.
        if architecture not in ("phi2", "gemma", "gemma2", "stablelm"):
            theta = find("rope_theta") or rope.get("rope_theta")
            if theta is not None:
                writer.add_rope_freq_base(theta)
    if config.get("rope_local_base_freq"):
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for end in ("fast", "slow"):
            if rope.get(f"beta_{end}") is not None:
                getattr(writer, f"add_rope_scaling_yarn_beta_{end}")(rope[f"beta_{end}"])
    if architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if architecture in ("command-r", "cohere2", "nemotron"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    rms_eps = find("rms_norm_eps", "norm_eps")
    if architecture.startswith("nemotron_h"):
        rms_eps = config["layer_norm_epsilon"]
    if rms_eps is not None:
        writer.add_layer_norm_rms_eps(rms_eps)
    if (eps := find("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")) is not None:
        writer.add_layer_norm_eps(eps)
    head_dim = config.get("head_dim")
    # GraniteModel knows no width of heads.
    if head_dim is not None and architecture not in ("granite", "granitemoe", "granitehybrid", "deepseek2"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    head_dim = head_dim or hidden // heads
    if architecture in PERMUTED:
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    share = find("rotary_pct", "partial_rotary_factor")
    if share is None:
        share = rope.get("partial_rotary_factor")
    if architecture in ("gptneox", "phi2", "phi3", "stablelm", "nemotron", "glm4", "glm4moe", "cohere2") or architecture in DELTA:
        writer.add_rope_dimension_count(int((1.0 if share is None else share) * head_dim))
    if architecture in ("gptneox", "stablelm"):
        writer.add_parallel_residual(config["use_parallel_residual"])
    if architecture in HYBRID or architecture in ("deepseek2", "glm4moe"):
        add_sizes(writer, name, architecture, config)
    if architecture != "nemotron_h" and (experts := find("num_local_experts", "num_experts", "n_routed_experts")):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if architecture in ("qwen2moe", "qwen3moe", "qwen35moe", "qwen3next", "lfm2moe", "nemotron_h_moe", "deepseek2", "glm4moe"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture in ("qwen2moe", "qwen35moe", "qwen3next"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if architecture == "gpt-oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture in ("granite", "granitemoe", "granitehybrid"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
    if architecture in ("gemma2", "gemma3", "gpt-oss", "cohere2", "phi3") or name == "olmo3":
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if architecture == "phi3":
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        if rope.get("long_factor"):
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(positions / original) / math.log(original)))
    if name == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    EXTRA.get(name, lambda writer, config: None)(writer, config)


def add_gemma4(writer, config):
    """Gemma4Model.set_gguf_parameters and what it inherits."""
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    readers, inner = config["num_kv_shared_layers"], config["intermediate_size"]
    own = len(windows) - readers
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(len(windows))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windows)
    writer.add_shared_kv_layers(readers)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"] or 0)
    full, narrow = config["global_head_dim"], config["head_dim"]
    writer.add_key_length(full)
    writer.add_value_length(full)
    writer.add_key_length_swa(narrow)
    writer.add_value_length_swa(narrow)
    writer.add_rope_dimension_count(full)
    writer.add_rope_dimension_count_swa(narrow)
    double = config["use_double_wide_mlp"]
    writer.add_feed_forward_length([inner * (1 + (layer >= own)) for layer in range(len(windows))] if double else inner)
    kv_heads, full_heads = config["num_key_value_heads"], config.get("num_global_key_value_heads")
    writer.add_head_count_kv([kv_heads if window else full_heads for window in windows] if full_heads else kv_heads)
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_sizes(writer, name, architecture, config):
    """The keys of recurrent mixers, latents and experts with sigmoids."""
    if architecture in DELTA:
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        writer.add_full_attention_interval(config["full_attention_interval"])
    if architecture == "granitehybrid":
        writer.add_ssm_conv_kernel(config["mamba_d_conv"])
        writer.add_ssm_state_size(config["mamba_d_state"])
        writer.add_ssm_group_count(config["mamba_n_groups"])
        writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
        writer.add_ssm_time_step_rank(config["mamba_n_heads"])
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
        if name != "granite-hybrid-dense":
            writer.add_rope_scaling_finetuned(False)
    if architecture.startswith("nemotron_h"):
        writer.add_ssm_conv_kernel(config["conv_kernel"])
        writer.add_ssm_state_size(config["ssm_state_size"])
        writer.add_ssm_group_count(config["n_groups"])
        writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
        writer.add_ssm_time_step_rank(config["mamba_num_heads"])
        writer.add_rope_scaling_finetuned(False)
    if architecture.startswith("lfm2"):
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if architecture == "lfm2moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture in ("nemotron_h_moe", "deepseek2", "glm4moe"):
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        is_softmax = config["model_type"] == "deepseek_v2"
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if is_softmax else gguf.ExpertGatingFuncType.SIGMOID)
        if config["norm_topk_prob"]:
            writer.add_expert_weights_norm(True)
    if architecture == "nemotron_h_moe":
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    if architecture in ("deepseek2", "glm4moe"):
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    if architecture == "deepseek2":
        key, value = config["qk_nope_head_dim"] + config["qk_rope_head_dim"], config["v_head_dim"]
        if config["q_lora_rank"] is not None:
            writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_kv_lora_rank(config["kv_lora_rank"])
        if name in OLD_LATENTS:
            writer.add_key_length(key)
            writer.add_value_length(value)
        else:
            writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
            writer.add_value_length(config["kv_lora_rank"])
            writer.add_key_length_mla(key)
            writer.add_value_length_mla(value)
        writer.add_rope_dimension_count(config["qk_rope_head_dim"])
        rope = config.get("rope_scaling") or {}
        if rope.get("mscale_all_dim") is not None:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_tokenizer(writer, size):
    """Any words: only ids are tested."""
    tokens = ["a", "b", "ab"] + [f"word{index}" for index in range(3, size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def convert(name):
    architecture, source = ARCHITECTURES[name], HERE / name
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(HERE / f"gguf/{name}.gguf", architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(32)
    add_config(writer, name, architecture, config)
    add_tokenizer(writer, config["vocab_size"])
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    layers = (config.get("num_hidden_layers") or config["n_layer"]) + (config.get("num_nextn_predict_layers") or 0)
    names = gguf.get_tensor_name_map(arch, layers)
    # Published models of no class have dense layers among those with experts, so that the class's map has no names for them.
    dense = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    for tensor, stored in changed(name, architecture, config, read_safetensors(source / "model.safetensors")).items():
        if tensor == "lm_head.weight" and config.get("tie_word_embeddings", config.get("tie_embedding")):
            continue
        # The map of some classes has no output, because their published models have none of their own.
        known = {"lm_head.weight": "output.weight", "embed_out.weight": "output.weight"}
        kinds = (".weight", ".bias")
        alias = tensor if tensor.startswith(("blk.", "rope_f")) else known.get(tensor) or names.get_name(tensor, kinds)
        alias = alias or dense.get_name(tensor, kinds)
        # The package's names of this class do not include those of draft layers, which newer converters write.
        draft = re.fullmatch(r"model\.layers\.(\d+)\.(eh_proj|enorm|hnorm|shared_head\.norm)\.weight", tensor)
        alias = alias or f"blk.{draft[1]}.nextn.{draft[2].replace('.', '_')}.weight"
        values = stored.values
        kept = ("ffn_gate_inp", "norm.", "position_embd", "conv1d", "shortconv.conv", "nextn")
        if not alias.endswith(".weight") or values.ndim == 1 or any(part in alias for part in kept):
            values = stored.f32()
            # GemmaModel and its heirs, NemotronModel: what the forward pass would add to the weights.
            if architecture in ("gemma", "gemma2", "gemma3", "nemotron") and tensor.endswith("norm.weight"):
                values = values + np.float32(1)
            if architecture in DELTA and tensor.endswith("norm.weight") and not tensor.endswith("linear_attn.norm.weight"):
                values = values + np.float32(1)
            writer.add_tensor(alias, values)
        elif stored.is_bf16:
            raw = np.ascontiguousarray(values).view(np.uint8)
            writer.add_tensor(alias, raw, raw_dtype=GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(alias, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    (HERE / "gguf").mkdir(exist_ok=True)
    for model in sys.argv[1:] or ARCHITECTURES:
        convert(model)
