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


# DeepSeek V3's parts in small: a token leaves 40 numbers a layer for all eight heads.
LATENT = dict(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=128, num_hidden_layers=4,
              num_attention_heads=8, num_key_value_heads=8, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=16,
              qk_rope_head_dim=8, v_head_dim=16, intermediate_size=256, moe_intermediate_size=64,
              n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, n_group=2,
              topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, num_nextn_predict_layers=0)


# OLMo 3's parts in small: norms behind each part and over all of q and k, two windows.
NORMS_BEHIND = dict(architectures=["Olmo3ForCausalLM"], model_type="olmo3", hidden_size=256, num_attention_heads=8,
                    num_key_value_heads=2, head_dim=32, intermediate_size=512, num_hidden_layers=6, sliding_window=48,
                    rope_theta=500000.0)


# Qwen3-MoE's parts in small: norms of each head of q and k, experts in every layer.
EXPERTS = dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=128, num_attention_heads=4,
               num_key_value_heads=2, head_dim=32, intermediate_size=256, num_hidden_layers=6, num_experts=8,
               num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True, decoder_sparse_step=1,
               mlp_only_layers=[])


def norms(config):
    hidden, dim = config["hidden_size"], config["head_dim"]
    if config["model_type"] == "qwen3_moe":
        return {"input_layernorm": [hidden], "post_attention_layernorm": [hidden],
                "self_attn.q_norm": [dim], "self_attn.k_norm": [dim]}
    if config["model_type"] != "olmo3":
        return {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    return {"post_attention_layernorm": [hidden], "post_feedforward_layernorm": [hidden],
            "self_attn.q_norm": [config["num_attention_heads"] * dim],
            "self_attn.k_norm": [config["num_key_value_heads"] * dim]}


def plain_attention(config):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads, dim = config["num_key_value_heads"], config["head_dim"]
    return {"q_proj": [heads * dim, hidden], "k_proj": [kv_heads * dim, hidden], "v_proj": [kv_heads * dim, hidden],
            "o_proj": [hidden, heads * dim]}


def latent_attention(config):
    hidden, heads, rank, q_rank = (config[key] for key in ("hidden_size", "num_attention_heads", "kv_lora_rank",
                                                           "q_lora_rank"))
    plain, rope, value = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    return {"q_a_proj": [q_rank, hidden], "q_a_layernorm": [q_rank], "q_b_proj": [heads * (plain + rope), q_rank],
            "kv_a_proj_with_mqa": [rank + rope, hidden], "kv_a_layernorm": [rank],
            "kv_b_proj": [heads * (plain + value), rank], "o_proj": [hidden, heads * value]}


def feed_forward(hidden, inner):
    return {"gate_proj": [inner, hidden], "up_proj": [inner, hidden], "down_proj": [hidden, inner]}


def parts(config, layer):
    """The feed-forward part of a layer, or its experts."""
    hidden, experts = config["hidden_size"], config.get("n_routed_experts", config.get("num_experts", 0))
    if layer < config.get("first_k_dense_replace", 0) or not experts:
        return feed_forward(hidden, config["intermediate_size"])
    shapes = {"gate": [experts, hidden]}
    named = [f"experts.{i}" for i in range(experts)]
    if config["model_type"] == "deepseek_v3":
        shapes["gate.e_score_correction_bias"] = [experts]
        named.insert(0, "shared_experts")
    for name in named:
        part = feed_forward(hidden, config["moe_intermediate_size"])
        shapes.update({f"{name}.{key}": shape for key, shape in part.items()})
    return shapes


def write(folder, **changes):
    """Copies the demo model's configuration with `changes` and writes bf16 weights that fit it."""
    folder = pathlib.Path(folder)
    shutil.copytree(DEMO_MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))

    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [vocab, hidden]
    attention = latent_attention if "kv_lora_rank" in config else plain_attention
    for i in range(config["num_hidden_layers"]):
        named = norms(config)
        named.update({f"self_attn.{name}": shape for name, shape in attention(config).items()})
        named.update({f"mlp.{name}": shape for name, shape in parts(config, i).items()})
        for name, shape in named.items():
            suffix = "" if name.endswith("bias") else ".weight"
            shapes[f"model.layers.{i}.{name}{suffix}"] = shape
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
