"""A folder of transformers' as a GGUF file with quantised blocks, and the values that they stand for.

Blocks are packed from ggml's public descriptions (k-quants: ggml-quants.c); rounding to the nearest is all the
quantising there is. Architectures llama and qwen3, with a tokenizer that nobody asks.
"""

import pathlib
import struct
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from gguf_file import LAYER, setting, text, turned  # noqa: E402

F32, Q4_0, Q8_0, Q4_K = 0, 2, 8, 12
NAMES = LAYER | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}


def halves(values):
    """fp16 as two bytes, in a last dimension of its own."""
    return values.half().contiguous().view(torch.uint8).reshape(*values.shape, 2)


def q8_0(weight):
    blocks = weight.reshape(weight.shape[0], -1, 32)
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
    q = (blocks / scale).round().clamp(-127, 127)
    data = torch.cat([halves(scale)[..., 0, :], q.to(torch.int8).view(torch.uint8)], -1)
    return data, (q * scale).reshape(weight.shape)


def q4_0(weight):
    blocks = weight.reshape(weight.shape[0], -1, 32)
    scale = (blocks.abs().amax(-1, keepdim=True) / 7).half().float()
    q = ((blocks / scale).round() + 8).clamp(0, 15)
    nibbles = q.to(torch.uint8)
    data = torch.cat([halves(scale)[..., 0, :], nibbles[..., :16] | nibbles[..., 16:] << 4], -1)
    return data, ((q - 8) * scale).reshape(weight.shape)


def q4_k(weight):
    groups = weight.reshape(weight.shape[0], -1, 8, 32)
    least = (-groups.amin(-1)).clamp(min=0)
    step = (groups.amax(-1) + least) / 15
    d = (step.amax(-1, keepdim=True) / 63).half().float()
    low = (least.amax(-1, keepdim=True) / 63).half().float()
    s = (step / d).round().clamp(1, 63)
    m = (least / low).round().clamp(0, 63)
    spread, offset = (d * s)[..., None], (low * m)[..., None]
    q = ((groups + offset) / spread).round().clamp(0, 15)
    s, m, bits = s.to(torch.uint8), m.to(torch.uint8), q.to(torch.uint8)
    packed = torch.cat([s[..., :4] | s[..., 4:] >> 4 << 6, m[..., :4] | m[..., 4:] >> 4 << 6,
                        s[..., 4:] & 15 | (m[..., 4:] & 15) << 4], -1)
    nibbles = (bits[..., 0::2, :] | bits[..., 1::2, :] << 4).flatten(-2)
    data = torch.cat([halves(d)[..., 0, :], halves(low)[..., 0, :], packed, nibbles], -1)
    return data, (spread * q - offset).reshape(weight.shape)


TYPES = {"q8_0": (Q8_0, q8_0), "q4_0": (Q4_0, q4_0), "q4_k": (Q4_K, q4_k)}


def settings_of(config):
    kind = config["model_type"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    words = [b"a", b"b", b"ab"] + [b"t%d" % i for i in range(config["vocab_size"] - 3)]
    return {
        "general.architecture": kind,
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.key_length": head_dim,
        f"{kind}.attention.value_length": head_dim,
        f"{kind}.rope.dimension_count": head_dim,
        f"{kind}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{kind}.rope.freq_base": float(theta),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [1] * len(words),
        "tokenizer.ggml.merges": [b"a b"],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }, head_dim


def write(path, config, state, kinds):
    """Writes the file; layers take `kinds` in turns, vectors are F32. The state that it stands for."""
    settings, head_dim = settings_of(config)
    tensors, values, turn = [], {}, 0
    for name, tensor in state.items():
        tensor = tensor.float()
        to = OUTSIDE.get(name)
        if to is None:
            layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            to = f"blk.{layer}.{NAMES[part]}.weight"
        if tensor.dim() == 1:
            number, data, values[name] = F32, tensor.contiguous().view(torch.uint8), tensor
        else:
            number, quantise = TYPES[kinds[turn % len(kinds)]]
            data, values[name] = quantise(tensor)
            turn += 1
        raw = bytes(data.contiguous().flatten().numpy())
        if config["model_type"] == "llama" and to.endswith((".attn_q.weight", ".attn_k.weight")):
            raw = turned(raw, tensor.shape[0], head_dim)
        tensors.append((to, list(tensor.shape), number, raw))
    head, data = b"", bytearray()
    for name, shape, number, raw in tensors:
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, len(data))
        data += raw
    file = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    file += b"".join(setting(key, value) for key, value in settings.items()) + head
    pathlib.Path(path).write_bytes(file + b"\0" * (-len(file) % 32) + data)
    return values
