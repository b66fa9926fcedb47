"""Makes mixtures of experts of random weights with quantized matrices, and transformers' answers for them.

Run with transformers 5.24, torch 2.15 and compressed-tensors 0.20: `python make_quantized.py [NAME ...]`, in this folder.
Each expert has tensors of its own. Answers are computed in float32 from the dequantized weights, each sequence alone, with
eager attention; activations are not quantized. 4-bit codes are packed by compressed-tensors.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file

sys.argv, asked = sys.argv[:1] + ["none"], sys.argv[1:]
from make_decoders import SIZES, case, old_spelling, randomize  # noqa: E402

SMALL = dict(SIZES, num_key_value_heads=2, num_hidden_layers=2)


def fp8_tiles(weight, size=128):
    """Codes and a scale for each tile of `size` rows and columns. Tiles at the edges are cut off."""
    rows, columns = weight.shape
    scale = torch.empty(-(-rows // size), -(-columns // size))
    for r in range(scale.shape[0]):
        for c in range(scale.shape[1]):
            scale[r, c] = weight[r * size:(r + 1) * size, c * size:(c + 1) * size].abs().max() / 448
    whole = scale.repeat_interleave(size, 0)[:rows].repeat_interleave(size, 1)[:, :columns]
    codes = (weight / whole).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * whole


def fp8_channels(weight):
    scale = (weight.abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    codes = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()


def four_bits(weight, group=32):
    """Codes from -8 to 7 with a scale and a zero for each group of columns."""
    groups = weight.unflatten(1, (-1, group))
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = ((high - low) / 15).to(torch.bfloat16)
    zero = (-8 - low / scale.float()).round().clamp(-8, 7)
    codes = (groups / scale.float()[:, :, None] + zero[:, :, None]).round().clamp(-8, 7)
    values = ((codes - zero[:, :, None]) * scale.float()[:, :, None]).flatten(1)
    stored = {
        "weight_packed": pack_to_int32(codes.flatten(1).to(torch.int8), 4),
        "weight_scale": scale,
        "weight_zero_point": pack_to_int32(zero.to(torch.int8), 4, packed_dim=0).contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return stored, values


def groups_of(weights, form):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": weights}}}


MODELS = {
    "qwen3-moe-fp8": (
        "Qwen3Moe", dict(hidden_size=256, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        fp8_tiles, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
    "mixtral-ct-fp8": (
        "Mixtral", dict(hidden_size=64, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2),
        fp8_channels, groups_of({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}, "float-quantized"),
    ),
    "qwen2-moe-ct-w4a16": (
        "Qwen2Moe", dict(hidden_size=64, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                         shared_expert_intermediate_size=64),
        four_bits, groups_of({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
                             "pack-quantized"),
    ),
    "deepseek-v3-fp8": (
        "DeepseekV3", dict(hidden_size=128, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=128, qk_nope_head_dim=24,
                           qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                           n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, num_mtp_layers=0),
        fp8_tiles, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
}
MATRICES = tuple(f".{part}.weight" for part in
                 ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "q_a_proj",
                  "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"))


def save(name, seed):
    kind, more, quantized, described = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **more})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    randomize(model, seed)
    folder = pathlib.Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tensors = load_file(f"{plain}/model.safetensors")
        stored, values = {}, {}
        for tensor, weight in tensors.items():
            if tensor.endswith(MATRICES):
                parts, values[tensor] = quantized(weight)
                stored |= {tensor.removesuffix("weight") + part: value for part, value in parts.items()}
            else:
                stored[tensor], values[tensor] = weight.to(torch.bfloat16), weight
        assert len(stored) > len(tensors)
        save_file(values, f"{plain}/model.safetensors", {"format": "pt"})
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        model, report = type(model).from_pretrained(plain, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
        new = dict(json.loads(pathlib.Path(plain, "config.json").read_text()), dtype="bfloat16", quantization_config=described)
    (folder / "config.v5.json").write_text(json.dumps(new, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(old_spelling(new), indent=1) + "\n")
    random = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        cases = [case(model.eval(), torch.randint(3, SMALL["vocab_size"], (length,), generator=random).tolist())
                 for length in (5, 20, 75)]
    (folder / "expected.json").write_text(json.dumps({"cases": cases}, separators=(",", ":")) + "\n")
    print(name, min(min(case["gaps"]) for case in cases))


for seed, name in enumerate(MODELS):
    if not asked or name in asked:
        save(name, 300 + seed)
