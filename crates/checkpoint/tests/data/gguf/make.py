"""Writes the GGUF files of the tests with the `gguf` package (0.19), as llama.cpp's converter would.

    pip install gguf safetensors numpy && python make.py

Models: ../../../../model/tests/data/NAME/ -> ../../../../model/tests/data/gguf/NAME.gguf, the same weights in another file.
Tokenizers: ../../../../tokenizer/tests/data/NAME/ -> ./NAME.gguf, with a model of a few weights around them.
"""

import json
import math
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType

HERE = pathlib.Path(__file__).resolve().parent
CRATES = HERE.parents[3]
MODELS = CRATES / "model/tests/data"
TOKENIZERS = CRATES / "tokenizer/tests/data"

PRE = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def name_of(name):
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    part, kind = part.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def read_safetensors(path):
    """Name -> float32 array, whatever the file stores."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
        tensors[name] = values.astype(np.float32).reshape(entry["shape"])
    return tensors


def permute(weights, heads):
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py: halves to neighbours."""
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def llama3_factors(config, head_dim):
    scaling = config["rope_scaling"]
    base, factor = config["rope_theta"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    old = scaling["original_max_position_embeddings"]
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (i / head_dim)
        if wavelength < old / high:
            factors.append(1)
        elif wavelength > old / low:
            factors.append(factor)
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def add_tokenizer(writer, tokenizer, size, config, pre):
    model = tokenizer["model"]
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [TokenType.UNUSED] * size
    for text, i in model["vocab"].items():
        tokens[i], types[i] = text, TokenType.NORMAL
        if model["byte_fallback"] and len(text) == 6 and text.startswith("<0x"):
            types[i] = TokenType.BYTE
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    if model["byte_fallback"]:
        writer.add_tokenizer_model("llama")
        # The n-th merge makes the n-th best token; what no merge makes has the worst score of all.
        scores = [-1e6] * size
        for rank, (left, right) in enumerate(model["merges"]):
            scores[model["vocab"][left + right]] = -float(rank)
        writer.add_token_scores(scores)
        types[model["vocab"][model["unk_token"]]] = TokenType.UNKNOWN
        writer.add_unk_token_id(model["vocab"][model["unk_token"]])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([f"{left} {right}" for left, right in model["merges"]])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key in ("bos", "eos"):
        if config.get(f"{key}_token_id") is not None:
            getattr(writer, f"add_{key}_token_id")(config[f"{key}_token_id"])


def add_config(writer, config, head_dim):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if head_dim != config["hidden_size"] // config["num_attention_heads"]:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def convert(name, kind):
    source = MODELS / name
    config = json.loads((source / "config.json").read_text())
    architecture = config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(MODELS / f"gguf/{name}.gguf", architecture)
    writer.add_name(name)
    writer.add_file_type({"F32": 0, "F16": 1, "BF16": 32}[kind.name])
    add_config(writer, config, head_dim)
    words = json.loads((source / "tokenizer_config.json").read_text())
    if words.get("chat_template"):
        writer.add_chat_template(words["chat_template"])
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    add_tokenizer(writer, tokenizer, config["vocab_size"], config, PRE[architecture])
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config, head_dim))
    for tensor, values in read_safetensors(source / "model.safetensors").items():
        if architecture == "llama" and ".q_proj." in tensor:
            values = permute(values, heads)
        if architecture == "llama" and ".k_proj." in tensor:
            values = permute(values, kv_heads)
        stored = GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(name_of(tensor), gguf.quants.quantize(values, stored), raw_dtype=stored)
    finish(writer)


def words_only(name, pre, template):
    """The tokenizer NAME in a file with a model of one layer, 8 wide."""
    tokenizer = json.loads((TOKENIZERS / name / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    size = max(max(tokenizer["model"]["vocab"].values()), max(ids.values())) + 1
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", "llama")
    writer.add_name(name)
    config = {
        "max_position_embeddings": 64,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": ids.get("<|begin_of_text|>", ids.get("<s>")),
        "eos_token_id": ids.get("<|eot_id|>", ids.get("</s>", ids.get("<|im_end|>"))),
    }
    add_config(writer, config, 4)
    writer.add_chat_template(template)
    add_tokenizer(writer, tokenizer, size, config, pre)
    # What Hugging Face's post-processor does: only the Llama tokenizers begin every text with their token.
    writer.add_add_bos_token(tokenizer["post_processor"] is not None)
    random = np.random.default_rng(7)
    shapes = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8)}
    shapes |= {"ffn_gate": (8, 8), "ffn_up": (8, 8), "ffn_down": (8, 8), "attn_norm": (8,), "ffn_norm": (8,)}
    tensors = {f"blk.0.{part}.weight": shape for part, shape in shapes.items()}
    tensors |= {"token_embd.weight": (size, 8), "output_norm.weight": (8,)}
    for tensor, shape in tensors.items():
        values = random.standard_normal(shape).astype(np.float32)
        writer.add_tensor(tensor, values if values.ndim == 1 else values.astype(np.float16))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    (MODELS / "gguf").mkdir(exist_ok=True)
    convert("llama-gqa-untied", GGMLQuantizationType.F32)
    for model in ("llama-tied-rope3", "llama-yarn", "qwen2", "qwen3"):
        convert(model, GGMLQuantizationType.BF16)
    words_only("bytebpe-llama3", "llama-bpe", [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])
    words_only("bytebpe-qwen", "qwen2", "{{ messages }}")
    words_only("spbpe-llama2", None, "{{ messages }}")
