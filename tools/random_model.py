#!/usr/bin/env python3
"""Random weights of a published geometry, as a folder, quantised folders and GGUF files: to measure with. Needs numpy, gguf.

    tools/random_model.py 0.6b|wide FOLDER [bf16 gptq gguf-bf16 gguf-q8_0 gguf-q4_0 ...]

Writes FOLDER/bf16 (a model folder), FOLDER/gptq (4 bits, groups of 128, the layers alone), and FOLDER/NAME.gguf: the same
bf16 weights, quantised by the package gguf. Qwen3's geometries alone.
"""
import argparse
import json
import pathlib
import struct

import gguf
import numpy as np

import dummy_model

GROUP = 128
GEOMETRIES = {name: c for name, c in dummy_model.GEOMETRIES.items() if c["model_type"] == "qwen3"}
# 600 million weights in layers, and few beside them: what a format gains is not hidden behind a plain head.
GEOMETRIES["wide"] = {**GEOMETRIES["0.6b"], "vocab_size": 8192, "hidden_size": 2048, "num_hidden_layers": 12,
                      "intermediate_size": 6144}


def shapes(c):
    """(name in a folder, name in a GGUF file, shape)"""
    h, d = c["hidden_size"], c["head_dim"]
    q, kv, m = c["num_attention_heads"] * d, c["num_key_value_heads"] * d, c["intermediate_size"]
    yield "model.embed_tokens.weight", "token_embd.weight", (c["vocab_size"], h)
    yield "model.norm.weight", "output_norm.weight", (h,)
    for i in range(c["num_hidden_layers"]):
        for to, name, shape in (("input_layernorm", "attn_norm", (h,)), ("post_attention_layernorm", "ffn_norm", (h,)),
                                ("self_attn.q_norm", "attn_q_norm", (d,)), ("self_attn.k_norm", "attn_k_norm", (d,)),
                                ("self_attn.q_proj", "attn_q", (q, h)), ("self_attn.k_proj", "attn_k", (kv, h)),
                                ("self_attn.v_proj", "attn_v", (kv, h)), ("self_attn.o_proj", "attn_output", (h, q)),
                                ("mlp.gate_proj", "ffn_gate", (m, h)), ("mlp.up_proj", "ffn_up", (m, h)),
                                ("mlp.down_proj", "ffn_down", (h, m))):
            yield f"model.layers.{i}.{to}.weight", f"blk.{i}.{name}.weight", shape


def drawn(shape, draw):
    """bf16, as fp32."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    values = draw.standard_normal(shape, np.float32) * 0.02
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def save(path, tensors):
    """A safetensors file of (name, type, shape, bytes)."""
    header, at = {}, 0
    for name, kind, shape, data in tensors:
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in tensors:
            file.write(data)


def bf16_bytes(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def gptq(name, values):
    """The four tensors of a layer [out, in], symmetric, rounded to the nearest."""
    out, count = values.shape
    groups = values.reshape(out, count // GROUP, GROUP)
    scale = (np.abs(groups).max(-1) / 7).astype(np.float16)
    q = np.clip(np.rint(groups / scale.astype(np.float32)[..., None]) + 8, 0, 15).astype(np.uint32).reshape(out, count)
    places = np.arange(8, dtype=np.uint32) * 4
    words = (q.T.reshape(count // 8, 8, out) << places[None, :, None]).sum(1, dtype=np.uint32)
    zeros = np.full((count // GROUP, out // 8), 0x77777777, np.uint32)
    layer = name.removesuffix(".weight")
    yield layer + ".qweight", "I32", words.shape, words.tobytes()
    yield layer + ".qzeros", "I32", zeros.shape, zeros.tobytes()
    yield layer + ".scales", "F16", (count // GROUP, out), np.ascontiguousarray(scale.T).tobytes()


def write_gguf(path, config, words, weights, kind):
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([1] * len(words))
    writer.add_token_merges(["! !"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for _, name, values in weights:
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("geometry", choices=GEOMETRIES)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("what", nargs="*", default=["bf16", "gptq", "gguf-bf16", "gguf-q8_0", "gguf-q4_0"])
    arguments = parser.parse_args()
    folder = arguments.folder
    dummy_model.GEOMETRIES.update(GEOMETRIES)
    plain = dummy_model.write(arguments.geometry, folder / "bf16")
    config = json.loads((plain / "config.json").read_text())
    words = list(dummy_model.tokenizer(config["vocab_size"])["model"]["vocab"])
    words[256] = "!!"  # llama.cpp wants a merge
    draw = np.random.default_rng(6)
    weights = [(to, name, drawn(shape, draw)) for to, name, shape in shapes(config)]
    for what in arguments.what:
        if what == "bf16":
            save(plain / "model.safetensors", [(to, "BF16", v.shape, bf16_bytes(v)) for to, _, v in weights])
        elif what == "gptq":
            to_folder = dummy_model.write(arguments.geometry, folder / "gptq")
            tensors = []
            for to, _, values in weights:
                layer = values.ndim == 2 and "layers" in to
                tensors.extend(gptq(to, values) if layer else [(to, "BF16", values.shape, bf16_bytes(values))])
            save(to_folder / "model.safetensors", tensors)
            config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True,
                                             "desc_act": False}
            (to_folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        else:
            kind = gguf.GGMLQuantizationType[what.removeprefix("gguf-").upper()]
            write_gguf(folder / f"{what.removeprefix('gguf-')}.gguf", config, words, weights, kind)
        print(folder, what)


if __name__ == "__main__":
    main()
