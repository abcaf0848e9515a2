#!/usr/bin/env python3
"""Random checkpoints of odd shapes, beside transformers: sizes of a golden model's family are drawn anew.

    fuzz_shapes.py PROGRAM [--quantised] [--families NAME ...] [--seeds FIRST LAST] [--log FILE]

With --quantised the linear layers are stored quantised, in a format drawn as well, and what transformers runs are the
values that they stand for. PROGRAM is baton-bench-worker. A shape that transformers does not build is drawn again.
Exit status 1: a shape is refused or served with other numbers. Wants transformers 5; about a second a shape.
"""
import argparse
import collections
import json
import pathlib
import random
import sys
import tempfile

import torch

import fuzz_configs
from families import FAMILIES
import quantized
from make_logits import MODELS, make_model, make_quantized, part_experts

# Drawn from; lists of layers follow the number of layers.
PICKS = {
    "hidden_size": [24, 40, 56, 72, 88, 120, 136], "intermediate_size": [24, 44, 50, 90, 130],
    "moe_intermediate_size": [12, 20, 36, 50], "shared_expert_intermediate_size": [12, 30, 44],
    "vocab_size": [51, 63, 80, 97], "num_hidden_layers": [1, 2, 3, 5], "num_attention_heads": [1, 2, 3, 4, 6, 8],
    "head_dim": [8, 12, 16, 20, 34], "sliding_window": [3, 11, 16, 17, 40], "num_experts_per_tok": [1, 2, 3, 4],
    "moe_k": [1, 2, 3], "num_experts": [4, 6, 9, 16], "n_routed_experts": [8, 16], "num_local_experts": [4, 7, 8],
    "moe_num_experts": [4, 9], "n_shared_experts": [1, 2, 3], "kv_lora_rank": [10, 18, 34], "q_lora_rank": [12, 24, 30],
    "qk_nope_head_dim": [6, 10, 24], "qk_rope_head_dim": [4, 6, 12], "v_head_dim": [6, 14, 26],
    "first_k_dense_replace": [0, 1, 2], "decoder_sparse_step": [1, 2], "rms_norm_eps": [1e-6, 1e-5, 1e-3],
}


def drawn(settings, rng):
    """The settings with some sizes of their own."""
    new = json.loads(json.dumps(settings))
    layers = new.get("num_hidden_layers")
    for key, values in PICKS.items():
        if new.get(key) and not isinstance(new[key], (bool, str)) and rng.random() < 0.7:
            new[key] = rng.choice(values)
    heads = new["num_attention_heads"]
    if new.get("num_key_value_heads"):
        same = settings["num_key_value_heads"] == settings["num_attention_heads"] and "kv_lora_rank" in settings
        new["num_key_value_heads"] = heads if same else rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    if "head_dim" not in new or rng.random() < 0.3:
        new["hidden_size"] = heads * rng.choice([8, 12, 16, 20])
        new.pop("head_dim", None)
    if new["num_hidden_layers"] != layers:
        for key in ("layer_types", "no_rope_layers", "mlp_layer_types"):
            if key in new:
                new[key] = [rng.choice(settings[key]) for _ in range(new["num_hidden_layers"])]
        if "mlp_only_layers" in new:
            new["mlp_only_layers"] = [i for i in new["mlp_only_layers"] if i < new["num_hidden_layers"]]
    return new


def quantization(rng):
    """quantization_config of some kind."""
    fp8 = {"quant_method": "fp8", "activation_scheme": rng.choice(["dynamic", "static"])}
    return rng.choice([
        {"quant_method": "gptq", "bits": rng.choice([4, 8]), "group_size": rng.choice([-1, 8, 16, 32]), "sym": False,
         "desc_act": False} | rng.choice([{}, {"checkpoint_format": "gptq_v2"}]),
        {"quant_method": "gptq", "bits": 4, "group_size": rng.choice([8, 16, 32]), "sym": False, "desc_act": True},
        {"quant_method": "awq", "bits": 4, "group_size": rng.choice([16, 32]), "version": "gemm", "zero_point": True},
        fp8 | {"weight_block_size": rng.choice([None, [8, 16], [24, 40], [128, 128]])},
        quantized.MODELS["fp8_channel"][3],
        quantized.packed_config(rng.choice([4, 8]), rng.choice([-1, 8, 16]), rng.choice([True, False])),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ])


# Families whose layers are stored by themselves, and with all experts in one tensor.
QUANTISED = ("gqa_tied_llama3", "qwen2_bias", "qwen3_norms", "mixtral", "qwen3_moe", "mistral_window", "olmo2", "gemma2",
             "glm4", "phi3", "deepseek_v3", "mistral4", "granite", "ernie4_5_moe", "starcoder2", "exaone_moe")
# What all formats take: multiples of 16, none of them a multiple of all groups.
EVEN = {key: [16, 32, 48, 80, 96] for key in ("hidden_size", "intermediate_size", "moe_intermediate_size", "q_lora_rank")} \
    | {"head_dim": [16, 32], "kv_lora_rank": [16, 32], "qk_nope_head_dim": [16], "qk_rope_head_dim": [16],
       "v_head_dim": [16, 32], "num_attention_heads": [1, 2, 3]}


def one_quantised(o, name, model_type, settings, seed, rng):
    for _ in range(20):
        changed = json.loads(json.dumps(settings))
        inner = changed.get("text_config", changed)
        for key, values in EVEN.items():
            if inner.get(key):
                inner[key] = rng.choice(values)
        heads = inner["num_attention_heads"]
        if inner.get("num_key_value_heads"):
            inner["num_key_value_heads"] = heads if "kv_lora_rank" in inner else 1
        if "head_dim" not in inner and "kv_lora_rank" not in inner:
            inner["hidden_size"] = 16 * heads
        config = quantization(rng)
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path) / name
            folder.mkdir()
            try:
                model, _ = make_quantized(folder, model_type, changed, torch.bfloat16, config, "config.json", seed)
            except Exception:  # a shape that there is not
                continue
            tokens = fuzz_configs.prompt()
            with torch.inference_mode():
                logs = model.eval()(tokens[None]).logits[0].double().log_softmax(1)
            changed_config = json.loads((folder / "config.json").read_text())
            said = f"seed {seed} {json.dumps(config)} {json.dumps(changed)}"
            return fuzz_configs.judge(o.program, name, folder, changed_config, said, o.log, collections.Counter(),
                                      (tokens, logs))
    return "no shape"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="baton-bench-worker")
    parser.add_argument("--families", nargs="*", help="of the golden models; default: all that are not quantised")
    parser.add_argument("--seeds", nargs=2, type=int, default=[0, 3], metavar=("FIRST", "LAST"))
    parser.add_argument("--quantised", action="store_true")
    parser.add_argument("--log", type=argparse.FileType("w"), default=sys.stdout)
    o = parser.parse_args()
    fuzz_configs.quiet()
    all_models = {name: settings for name, settings in (MODELS | FAMILIES).items()
                  if not name.endswith("_mxfp4") and name != "dynamic_ntk"}
    counts = collections.Counter()
    for name, (model_type, settings, dtype, old) in all_models.items():
        if o.families and name not in o.families:
            continue
        for seed in range(o.seeds[0], o.seeds[1] + 1):
            rng = random.Random(f"{name} {seed}")
            if o.quantised:
                if name in QUANTISED:
                    counts[one_quantised(o, name, model_type, settings, seed, rng)] += 1
                continue
            counts[one(o, name, model_type, settings, dtype, old, seed, rng)] += 1
    print(dict(counts), flush=True)
    if not counts:
        sys.exit("none of these families is quantised here: " + ", ".join(QUANTISED))
    return 1 if counts["WRONG"] + counts["refused"] else 0


def one(o, name, model_type, settings, dtype, old, seed, rng):
    for _ in range(20):
        changed = json.loads(json.dumps(settings))
        if "text_config" in changed:
            changed["text_config"] = drawn(changed["text_config"], rng)
        else:
            changed = drawn(changed, rng)
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path) / name
            folder.mkdir()
            try:
                make_model(folder, model_type, changed, dtype, old, seed)
                if name.endswith("_each"):
                    part_experts(folder)
            except Exception:  # a shape that there is not
                continue
            config = json.loads((folder / "config.json").read_text())
            found = fuzz_configs.reference(folder)
            if isinstance(found, str):
                continue
            said = f"seed {seed} {json.dumps(changed)}"
            return fuzz_configs.judge(o.program, name, folder, config, said, o.log, collections.Counter(), found)
    return "no shape"


if __name__ == "__main__":
    sys.exit(main())
