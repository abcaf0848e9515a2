#!/usr/bin/env python3
"""Makes ggml_blocks.safetensors: blocks of every quantised type of GGUF files that is read, and the values that the
package gguf gives them. Needs numpy, gguf, safetensors.

For each type: NAME.blocks U8 [bytes], NAME.values F32 [numbers]. Bits are drawn at random, scales are numbers of f16
that are no NaN and no infinity.
"""
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file

BLOCKS = 6
# name -> where the block's f16 numbers lie
SCALES = {Kind.Q4_0: [0], Kind.Q4_1: [0, 2], Kind.Q5_0: [0], Kind.Q5_1: [0, 2], Kind.Q8_0: [0], Kind.Q4_K: [0, 2],
          Kind.Q5_K: [0, 2], Kind.Q6_K: [208]}


def main():
    draw = np.random.default_rng(22)
    tensors = {}
    for kind, places in SCALES.items():
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = draw.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for place in places:
            scales = draw.normal(0, 0.02, BLOCKS).astype(np.float16)
            blocks[:, place:place + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
        values = gguf.dequantize(blocks.reshape(-1), kind).astype(np.float32)
        assert values.size == BLOCKS * numbers
        tensors[kind.name + ".blocks"] = blocks.reshape(-1)
        tensors[kind.name + ".values"] = values.reshape(-1)
    save_file(tensors, pathlib.Path(__file__).with_name("ggml_blocks.safetensors"),
              {"gguf": __import__("importlib.metadata").metadata.version("gguf")})


if __name__ == "__main__":
    main()
