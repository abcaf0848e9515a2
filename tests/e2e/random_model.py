"""A folder with the demo model's tokenizer and random weights of another geometry. Standard library only."""

import array
import json
import pathlib
import random
import shutil
import struct

from cluster import DEMO_MODEL


def bf16(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def write(folder, **changes):
    """Copies the demo model's configuration with `changes` and writes bf16 weights that fit it."""
    folder = pathlib.Path(folder)
    shutil.copytree(DEMO_MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))

    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads, dim = config["num_key_value_heads"], config["head_dim"]
    inner, vocab = config["intermediate_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [vocab, hidden]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes.update({
            layer + "input_layernorm.weight": [hidden],
            layer + "post_attention_layernorm.weight": [hidden],
            layer + "self_attn.q_proj.weight": [heads * dim, hidden],
            layer + "self_attn.k_proj.weight": [kv_heads * dim, hidden],
            layer + "self_attn.v_proj.weight": [kv_heads * dim, hidden],
            layer + "self_attn.o_proj.weight": [hidden, heads * dim],
            layer + "mlp.gate_proj.weight": [inner, hidden],
            layer + "mlp.up_proj.weight": [inner, hidden],
            layer + "mlp.down_proj.weight": [hidden, inner],
        })
    generator = random.Random(7)
    # Drawing millions of numbers one by one takes seconds; a long table read at random places does not.
    table = array.array("H", (bf16(generator.gauss(0, 0.05)) for _ in range(65536)))
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        start = len(data)
        if len(shape) == 1:
            data += array.array("H", [bf16(1.0)] * count).tobytes()
        else:
            while len(data) - start < 2 * count:
                place = generator.randrange(0, 60000)
                wanted = count - (len(data) - start) // 2
                data += table[place:place + min(wanted, 5000)].tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    return folder
