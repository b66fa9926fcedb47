"""Makes the golden files beside it, from ggml's Python package (gguf 0.19.0, numpy 2.4.6).

    pip install gguf==0.19.0 && python make.py

KIND.blocks  random blocks with finite scales       KIND.f32    what they dequantize to
weights.f32  2048 weights, 64 blocks of 32          KIND.quant  their blocks, of the kinds that must have the same bits

With `--ggml LIBRARY` (a shared library that exports ggml_quantize_chunk; the figures in rmse.tsv come from that of
the PyPI package xllamacpp 2026.10.11549) it also writes rmse.tsv: the root mean square error of ggml's own quantizers
on the weights of `made_weights`, which the test makes again by the same whole-number arithmetic.
"""

import ctypes
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

HERE = pathlib.Path(__file__).parent
KINDS = {"q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q4_k": 12, "q5_k": 13, "q6_k": 14, "iq4_nl": 20, "mxfp4": 39}
# Formats that are only read, made after the others so that those keep their bytes.
READ_ONLY = {"q2_k": 10, "q3_k": 11, "iq4_xs": 23}
SAME_BITS = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"]
# Where the f16 scales of a block stand.
SCALES_AT = {"q2_k": [80, 82], "q3_k": [108], "q6_k": [208], "mxfp4": [], "q4_1": [0, 2], "q5_1": [0, 2], "q4_k": [0, 2], "q5_k": [0, 2]}


def random_blocks(rng, kind, size, count):
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in SCALES_AT.get(kind, [0]):
        bits = rng.integers(0, 0x7C00, count, dtype=np.uint16) | (rng.integers(0, 2, count, dtype=np.uint16) << 15)
        blocks[:, at : at + 2] = bits.reshape(-1, 1).view(np.uint8)
    if kind == "mxfp4":
        blocks[:4, 0] = [0, 1, 2, 127]
        blocks[4:, 0] = rng.integers(100, 140, count - 4)
    return blocks


def hard_weights(rng):
    """64 blocks of 32: ordinary ones, and the edges of each format."""
    normal = lambda: rng.normal(0, 0.02, 32)
    bf16 = lambda x: (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    rows = [normal() for _ in range(20)] + [bf16(normal()) for _ in range(6)]
    rows += [np.zeros(32), np.full(32, 0.5), np.full(32, -0.5)]
    rows += [np.tile([0.25, -0.25], 16), np.tile([-0.25, 0.25], 16), np.tile([0.0, 0.25, 1.0, 0.5], 8)]
    rows += [np.eye(1, 32, 7)[0], -np.eye(1, 32, 31)[0], np.abs(normal()), -np.abs(normal())]
    rows += [normal() * 1e-5, normal() * 1e-6, normal() * 1e-7, normal() * 1e-9, normal() * 1e6]
    # Ties of Q8_0 (halves in units of a scale of one), of Q4_0 and of Q4_1.
    rows += [np.append(np.arange(31) - 15.5, 127.0), np.append((np.arange(31) - 15.5) / 2, -8.0)]
    rows += [np.append((np.arange(30) + 0.5) / 2, [0.0, 15.0]), np.linspace(-1, 1, 32), np.arange(32) / 31]
    # The greatest weight just below a power of two, for MXFP4's rounded logarithm; ties between its values.
    for power in (-20, -7, -1, 0, 1, 5, 9):
        for steps in (1, 3):
            peak = np.float32(2.0**power) * np.float32(1 - steps * 2.0**-24)
            rows.append(np.append(rng.uniform(-peak, peak, 31), peak))
    rows += [np.tile([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], 4) * sign for sign in (1, -1)]
    rows += [rng.laplace(0, 0.05, 32) for _ in range(64 - len(rows))]
    return np.stack(rows).astype(np.float32)


def made_weights(count):
    """The same in the test: bell-shaped with a heavy tail, from splitmix64 of the index."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    total = sum((z >> np.uint64(15 * i)) & np.uint64(0x7FFF) for i in range(4)).astype(np.int64) - 2 * 0x7FFF
    scale = np.where((z >> np.uint64(60)) == 0, 4, 1)
    return (total * scale).astype(np.float32) * np.float32(2.0**-20)


def rmse_of_ggml(library, kind, weights):
    number = GGMLQuantizationType(KINDS[kind])
    block, size = GGML_QUANT_SIZES[number]
    out = np.zeros(weights.size // block * size, np.uint8)
    pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    assert quantize(KINDS[kind], pointer(weights), pointer(out), 0, 1, weights.size, None) == out.size
    back = quants.dequantize(out.reshape(1, -1), number).reshape(-1)
    return np.sqrt(np.mean((back.astype(np.float64) - weights) ** 2))


def write_blocks(rng, kind, number):
    number = GGMLQuantizationType(number)
    block, size = GGML_QUANT_SIZES[number]
    blocks = random_blocks(rng, kind, size, 512 // block if block == 256 else 12)
    (HERE / f"{kind}.blocks").write_bytes(blocks.tobytes())
    (HERE / f"{kind}.f32").write_bytes(quants.dequantize(blocks, number).astype("<f4").tobytes())


def main():
    rng = np.random.default_rng(20)
    for kind, number in KINDS.items():
        write_blocks(rng, kind, number)
    weights = hard_weights(rng)
    assert weights.shape == (64, 32)
    (HERE / "weights.f32").write_bytes(weights.astype("<f4").tobytes())
    for kind in SAME_BITS:
        (HERE / f"{kind}.quant").write_bytes(quants.quantize(weights, GGMLQuantizationType(KINDS[kind])).tobytes())
    rng = np.random.default_rng(33)
    for kind, number in READ_ONLY.items():
        write_blocks(rng, kind, number)
    if len(sys.argv) == 3 and sys.argv[1] == "--ggml":
        library, weights = ctypes.CDLL(sys.argv[2]), made_weights(65536)
        lines = [f"{kind}\t{rmse_of_ggml(library, kind, weights):.9e}\n" for kind in KINDS]
        (HERE / "rmse.tsv").write_text("".join(lines))


main()
