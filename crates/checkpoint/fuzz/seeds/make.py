"""Writes the fuzzers' first inputs, with the formats' own Python packages: `pip install gguf safetensors numpy`."""

import json
import pathlib
import struct

import gguf
import numpy as np
import safetensors.numpy

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = {"attn_q": (2, 2), "attn_k": (2, 2), "attn_v": (2, 2), "attn_output": (2, 2), "attn_norm": (2,)}
SHAPES |= {"ffn_gate": (1, 2), "ffn_up": (1, 2), "ffn_down": (2, 1), "ffn_norm": (2,)}
HUGGING_FACE = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
HUGGING_FACE |= {"attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
HUGGING_FACE |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def model(name, architecture, tokenizer, extra):
    writer = gguf.GGUFWriter(HERE / "gguf" / name, architecture)
    writer.add_context_length(8)
    writer.add_embedding_length(2)
    writer.add_block_count(1)
    writer.add_feed_forward_length(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(tokenizer)
    writer.add_token_list(["a", "b", "ab"] if tokenizer == "gpt2" else ["<unk>", "a", "<0x0A>"])
    writer.add_token_types([1, 4, 1] if tokenizer == "gpt2" else [2, 1, 6])
    writer.add_eos_token_id(2)
    if tokenizer == "gpt2":
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_merges(["a b"])
    else:
        writer.add_token_scores([0.0, -1.0, 0.0])
    tensors = {f"blk.0.{part}.weight": shape for part, shape in SHAPES.items()}
    tensors |= {"token_embd.weight": (3, 2), "output_norm.weight": (2,)}
    extra(writer, tensors)
    for tensor, shape in tensors.items():
        writer.add_tensor(tensor, np.full(shape, 1.5, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama(writer, tensors):
    writer.add_rope_dimension_count(2)
    tensors["rope_freqs.weight"] = (1,)


def scored(writer, tensors):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(2.0)
    writer.add_chat_template("{{ messages }}")
    writer.add_add_bos_token(True)


def qwen2(writer, tensors):
    for part in "qkv":
        tensors[f"blk.0.attn_{part}.bias"] = (2,)


def qwen3(writer, tensors):
    for part in "qk":
        tensors[f"blk.0.attn_{part}_norm.weight"] = (2,)


def quantized(name, method, of_matrix, more=()):
    """A model of one layer whose matrices have 8 rows and columns. `method` is the index in the fuzz target."""
    tensors = [("model.embed_tokens.weight", "F16", [3, 8]), *more]
    tensors += [(f"model.{norm}.weight", "F16", [8]) for norm in ["norm", *(f"layers.0.{HUGGING_FACE[n]}" for n in ("attn_norm", "ffn_norm"))]]
    for part, shape in SHAPES.items():
        if len(shape) == 2:
            tensors += [(f"model.layers.0.{HUGGING_FACE[part]}{end}", dtype, dims) for end, dtype, dims in of_matrix]
    header, data = {}, b""
    for tensor, dtype, shape in tensors:
        size = int(np.prod(shape)) * {"F16": 2, "I32": 4, "F32": 4, "I64": 8}.get(dtype, 1)
        value = struct.pack("<2q", 8, 8) if dtype == "I64" else (b"\x00\x38" if dtype == "F16" else b"\x21") * size
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += value[:size]
    text = json.dumps(header).encode()
    (HERE / "quantized").mkdir(exist_ok=True)
    (HERE / "quantized" / name).write_bytes(bytes([method]) + struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    plain = [(".weight", "F16", [8, 8])]
    quantized("fp8", 0, [(".weight", "F8_E4M3", [8, 8]), (".weight_scale_inv", "F32", [2, 2])])
    quantized("awq", 1, [(".qweight", "I32", [8, 1]), (".qzeros", "I32", [1, 1]), (".scales", "F16", [1, 8])])
    quantized("gptq", 2, [(".qweight", "I32", [1, 8]), (".qzeros", "I32", [1, 1]), (".scales", "F16", [1, 8])])
    packed = [(".weight_packed", "I32", [8, 1]), (".weight_shape", "I64", [2]), (".weight_scale", "F16", [8, 1])]
    quantized("packed", 3, [*packed, (".weight_zero_point", "I32", [1, 1])])
    quantized("float", 4, [(".weight", "F8_E4M3", [8, 8]), (".weight_scale", "F16", [8, 1])])
    quantized("mxfp4", 5, plain, [("x_blocks", "U8", [2, 3, 1, 16]), ("x_scales", "U8", [2, 3, 1])])
    model("llama.gguf", "llama", "gpt2", llama)
    model("scored.gguf", "llama", "llama", scored)
    model("qwen2.gguf", "qwen2", "gpt2", qwen2)
    model("qwen3.gguf", "qwen3", "gpt2", qwen3)
    weights = {f"model.layers.0.{HUGGING_FACE[part]}.weight": np.ones(shape, np.float16) for part, shape in SHAPES.items()}
    weights |= {"model.embed_tokens.weight": np.ones((3, 2), np.float16), "model.norm.weight": np.ones(2, np.float32)}
    safetensors.numpy.save_file(weights, HERE / "safetensors/model.safetensors")
    few = {"scalar": np.float32(1), "none": np.zeros((3, 0)), "bytes": np.zeros(5, np.uint8), "cube": np.zeros((2, 2, 2), np.float16)}
    few = {name: np.asarray(value) for name, value in few.items()}
    safetensors.numpy.save_file(few, HERE / "safetensors/few.safetensors", metadata={"format": "pt"})
