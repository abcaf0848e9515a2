"""The demo model's folder as a GGUF file, as llama.cpp's converter would write it. Standard library only."""

import json
import pathlib
import struct

from cluster import DEMO_MODEL

F32, Q8_0, BF16 = 0, 8, 30
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def setting(key, value):
    """A number, a flag, a text, or a list of texts, whole numbers or fractions."""
    if isinstance(value, bool):
        return text(key) + struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    kind, pack = {bytes: (8, text), int: (5, lambda n: struct.pack("<i", n)),
                  float: (6, lambda x: struct.pack("<f", x))}[type(value[0])]
    return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(pack, value))


def protobuf(data):
    """(field, value) of one message: bytes, or numbers."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 2:
            size = varint()
            at += size
            yield key >> 3, data[at - size:at]
        elif key & 7 == 5:
            at += 4
            yield key >> 3, struct.unpack("<f", data[at - 4:at])[0]
        else:
            yield key >> 3, varint()


def pieces(model):
    """(text, score, kind) of each piece of a tokenizer.model."""
    for field, value in protobuf(model):
        if field == 1:
            piece = dict(protobuf(value))
            yield piece[1], piece.get(2, 0.0), piece.get(3, 1)


def turned(data, rows, head_dim):
    """Rows as llama.cpp wants q and k: the halves of each head alternate."""
    size = len(data) // rows
    row = [data[i * size:(i + 1) * size] for i in range(rows)]
    half = head_dim // 2
    return b"".join(row[first + i % 2 * half + i // 2] for first in range(0, rows, head_dim) for i in range(head_dim))


def floats(bf16):
    return struct.unpack(f"<{len(bf16) // 2}f", b"".join(b"\0\0" + bf16[i:i + 2] for i in range(0, len(bf16), 2)))


def q8_0(bf16):
    values = floats(bf16)
    out = bytearray()
    for at in range(0, len(values), 32):
        block = values[at:at + 32]
        scale = struct.unpack("<e", struct.pack("<e", max(map(abs, block)) / 127))[0]
        out += struct.pack("<e", scale)
        out += struct.pack("32b", *(max(-127, min(127, round(v / scale))) if scale else 0 for v in block))
    return bytes(out)


def write(path, kind=BF16, folder=DEMO_MODEL):
    """`kind` is that of the linear layers; the table and the norms stay as llama.cpp has them."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    words = json.loads((folder / "tokenizer_config.json").read_text())
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = []
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + n for n in entry["data_offsets"])
        data, shape = raw[begin:end], entry["shape"]
        to = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(name)
        if to is None:
            layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            to = f"blk.{layer}.{LAYER[part]}.weight"
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                data = turned(data, shape[0], config["head_dim"])
        if len(shape) == 1:
            tensors.append((to, shape, F32, struct.pack(f"<{shape[0]}f", *floats(data))))
        elif kind == Q8_0 and to != "token_embd.weight":
            tensors.append((to, shape, Q8_0, q8_0(data)))
        else:
            tensors.append((to, shape, BF16, data))
    vocabulary = list(pieces((folder / "tokenizer.model").read_bytes()))
    settings = {
        "general.architecture": "llama",
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in vocabulary],
        "tokenizer.ggml.scores": [float(score) for _, score, _ in vocabulary],
        "tokenizer.ggml.token_type": [kind for _, _, kind in vocabulary],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": words["chat_template"],
    }
    head, data = b"", bytearray()
    for name, shape, number, values in tensors:
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, len(data))
        data += values
    file = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    file += b"".join(setting(key, value) for key, value in settings.items()) + head
    pathlib.Path(path).write_bytes(file + b"\0" * (-len(file) % 32) + data)
    return pathlib.Path(path)
