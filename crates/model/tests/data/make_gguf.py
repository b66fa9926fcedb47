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
    "stablelm-parallel": "stablelm", "starcoder2": "starcoder2",
}
# The classes that follow LlamaModel, which reorders the rows of queries and keys.
PERMUTED = {"llama", "mistral3", "granite", "granitemoe", "smollm3"}
# Keys that the converter does not write for these classes, but that readers of the format know.
EXTRA = {
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
        name = re.sub(r"model\.layers\.(\d+)\.block_sparse_moe\.", r"layers.\1.feed_forward.", name)
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


def changed(architecture, config, tensors):
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
    return stacked(tensors)


def add_config(writer, name, architecture, config):
    """TextModel.set_gguf_parameters and the classes' own."""
    def find(*members):
        return next((config[member] for member in members if config.get(member) is not None), None)

    heads, hidden = find("num_attention_heads", "n_head"), find("hidden_size", "n_embd")
    positions = find("max_position_embeddings", "n_positions")
    writer.add_context_length(positions)
    writer.add_embedding_length(hidden)
    writer.add_block_count(find("num_hidden_layers", "n_layer"))
    writer.add_feed_forward_length(find("intermediate_size", "n_inner") or 4 * hidden)
    writer.add_head_count(heads)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # GPTNeoXModel and GPT2Model write neither the base nor the heads of keys.
    if architecture not in ("gptneox", "gpt2"):
        writer.add_head_count_kv(find("num_key_value_heads") or heads)
        # Phi2Model, GemmaModel and StableLMModel write no base either: theirs is the default.
        if architecture not in ("phi2", "gemma", "gemma2", "stablelm"):
            writer.add_rope_freq_base(find("rope_theta") or rope["rope_theta"])
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
    if find("rms_norm_eps", "norm_eps") is not None:
        writer.add_layer_norm_rms_eps(find("rms_norm_eps", "norm_eps"))
    if (eps := find("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")) is not None:
        writer.add_layer_norm_eps(eps)
    head_dim = config.get("head_dim")
    # GraniteModel knows no width of heads.
    if head_dim is not None and architecture not in ("granite", "granitemoe"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    head_dim = head_dim or hidden // heads
    if architecture in PERMUTED:
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    share = find("rotary_pct", "partial_rotary_factor")
    if architecture in ("gptneox", "phi2", "phi3", "stablelm", "nemotron", "glm4", "cohere2"):
        writer.add_rope_dimension_count(int((1.0 if share is None else share) * head_dim))
    if architecture in ("gptneox", "stablelm"):
        writer.add_parallel_residual(config["use_parallel_residual"])
    if (experts := find("num_local_experts", "num_experts")) is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if architecture in ("qwen2moe", "qwen3moe"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if architecture == "gpt-oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture in ("granite", "granitemoe"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture in ("command-r", "cohere2"):
        writer.add_logit_scale(config["logit_scale"])
    if architecture in ("gemma2", "gemma3", "gpt-oss", "cohere2", "phi3") or name == "olmo3":
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if architecture == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    if name == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    EXTRA.get(name, lambda writer, config: None)(writer, config)


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
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(arch, layers)
    # Published models of no class have dense layers among those with experts, so that the class's map has no names for them.
    dense = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    for tensor, stored in changed(architecture, config, read_safetensors(source / "model.safetensors")).items():
        if tensor == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        # The map of some classes has no output, because their published models have none of their own.
        known = {"lm_head.weight": "output.weight", "embed_out.weight": "output.weight"}
        kinds = (".weight", ".bias")
        alias = tensor if tensor.startswith("blk.") else known.get(tensor) or names.get_name(tensor, kinds)
        alias = alias or dense.get_name(tensor, kinds)
        values = stored.values
        if not alias.endswith(".weight") or values.ndim == 1 or any(part in alias for part in ("ffn_gate_inp", "norm.", "position_embd")):
            values = stored.f32()
            # GemmaModel and its heirs, NemotronModel: what the forward pass would add to the weights.
            if architecture in ("gemma", "gemma2", "gemma3", "nemotron") and tensor.endswith("norm.weight"):
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
