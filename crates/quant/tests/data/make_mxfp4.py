"""Makes mxfp4_stored.{blocks,scales,f32} beside it, from a gpt-oss checkpoint (numpy 2.4.6).

    python make_mxfp4.py DIRECTORY

The first 16 rows of an expert's down projection, as the checkpoint stores them: blocks of 16 bytes in the order of the
weights, low code first, and a scale for each. The weights follow transformers' formula (`convert_moe_packed_tensors`):
the value of the code, times two to the power of the scale less 127.
"""

import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
NAME = "model.layers.0.mlp.experts.down_proj"
ROWS = 16
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def tensor(file, name):
    length = struct.unpack("<Q", file[:8])[0]
    entry = json.loads(file[8 : 8 + length])[name]
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    assert entry["dtype"] == "U8"
    return np.frombuffer(file[begin:end], np.uint8).reshape(entry["shape"])


def main():
    file = (pathlib.Path(sys.argv[1]) / "model.safetensors").read_bytes()
    blocks, scales = tensor(file, f"{NAME}_blocks")[0, :ROWS], tensor(file, f"{NAME}_scales")[0, :ROWS]
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    weights = np.ldexp(VALUES[codes], scales[..., None].astype(np.int32) - 127)
    (HERE / "mxfp4_stored.blocks").write_bytes(blocks.tobytes())
    (HERE / "mxfp4_stored.scales").write_bytes(scales.tobytes())
    (HERE / "mxfp4_stored.f32").write_bytes(weights.astype("<f4").tobytes())


main()
