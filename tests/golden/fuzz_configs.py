#!/usr/bin/env python3
"""What a config.json may say, beside transformers: one key of a golden model changed at a time.

Each key of each golden model's configuration is left out, set to null and set to other values; keys that the file
does not have are added (ADDED). transformers and baton-bench-worker then run the same random weights on CPUs. Whatever
is served must be what transformers computes. What one of the two refuses is in the log for a reader to judge (SERVED
ALONE: mostly a null where transformers wants a value): these are no errors. Wants transformers 5 and a built
baton-bench-worker; takes about an hour for all families. Exit status 1: wrong numbers are served; 2: out of time.

    fuzz_configs.py PROGRAM [--families NAME ...] [--pairs N] [--seconds N] [--log FILE]

With --pairs so many random pairs of these changes are made to each model instead of each change alone.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

GOLDEN = pathlib.Path(__file__).resolve().parent
TOKENS = 90
MOST = 5e-4  # of a log probability
YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 40}
# Keys that one family or another has, and what they may be.
ADDED = {
    "attention_bias": [True, False], "mlp_bias": [True], "use_bias": [True], "bias": [True], "qkv_bias": [False],
    "sliding_window": [None, 7], "use_sliding_window": [True, False], "max_window_layers": [0, 1],
    "layer_types": [None], "sliding_window_pattern": [2], "no_rope_layers": [None], "no_rope_layer_interval": [2],
    "tie_word_embeddings": [True, False], "head_dim": [None, 8], "num_key_value_heads": [None],
    "hidden_act": ["gelu", "relu", "gelu_pytorch_tanh"], "hidden_activation": ["gelu", "silu"],
    "rms_norm_eps": [None, 0.05], "layer_norm_eps": [0.05], "norm_eps": [0.05], "norm_epsilon": [0.05],
    "rope_theta": [77.0], "rope_local_base_freq": [33.0], "partial_rotary_factor": [0.5, 1.0],
    "rope_scaling": [None, {}, {"rope_type": "linear", "factor": 2.0}, YARN, YARN | {"mscale": 0.7, "mscale_all_dim": 0},
                     YARN | {"llama_4_scaling_beta": 0.3}, YARN | {"attention_factor": 1.3}],
    "rope_parameters": [None, {}, {"rope_type": "default", "rope_theta": 50.0},
                        YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}, YARN | {"partial_rotary_factor": 0.5}],
    "rope_interleave": [False, True], "original_max_position_embeddings": [20], "max_position_embeddings": [128],
    "attn_logit_softcapping": [None, 1.0], "final_logit_softcapping": [None, 1.0], "query_pre_attn_scalar": [3.0],
    "logit_scale": [0.3], "logits_scaling": [0.3], "attention_multiplier": [0.9], "embedding_multiplier": [3.0],
    "residual_multiplier": [0.4], "qk_layernorm": [True], "use_qk_norm": [True, False], "clip_qkv": [0.05],
    "norm_topk_prob": [True, False, None], "routed_scaling_factor": [3.0], "n_group": [1, 2, None],
    "topk_group": [1, None], "topk_method": ["greedy", "noaux_tc", "group_limited_greedy"],
    "scoring_func": ["softmax", "sigmoid"], "first_k_dense_replace": [0, 2], "moe_layer_freq": [2],
    "decoder_sparse_step": [2], "mlp_only_layers": [[1], None], "mlp_layer_types": [None], "num_experts_per_tok": [1],
    "n_shared_experts": [None, 0], "swiglu_limit": [1.0], "num_nextn_predict_layers": [1], "q_lora_rank": [None],
    "moe_norm_min": [0.0], "moe_layer_interval": [1], "moe_layer_end_index": [-1], "use_parallel_residual": [False],
    "attn_output_gate": [True], "use_bidirectional_attention": [True], "attention_chunk_size": [16],
    "attention_out_bias": [True], "attention_k_eq_v": [True], "moe_router_use_softmax": [True],
    "scale_qk_by_inverse_layer_idx": [True], "use_post_norm": [True], "is_causal": [False], "pretraining_tp": [2],
    "num_hidden_layers": [1], "vocab_size": [50], "eos_token_id": [None, [3, 4]], "bos_token_id": [None],
    "torch_dtype": ["float16"], "dtype": [None],
}
# What is no setting of the mathematics.
LEFT = {"transformers_version", "model_type", "vision_config", "text_config", "initializer_range", "use_cache",
        "attention_dropout", "architectures"}


def changes(config):
    """(key, value or "absent") for one object of settings."""
    for key in sorted(set(config) - LEFT):
        yield key, "absent"
        yield key, None
    for key, values in ADDED.items():
        for value in values:
            if not (key in config and config[key] == value) and not (value is None and key in config):
                yield key, value


def change(settings, key, value):
    if value == "absent":
        settings.pop(key, None)
    else:
        settings[key] = value


def pairs(config, count, name):
    """`count` pairs of changes, others for each name."""
    rng = random.Random(name)
    all_changes = list(changes(config))
    return [rng.sample(all_changes, 2) for _ in range(count)]


def prompt(vocab=50):
    return torch.randint(0, min(vocab, 50), (TOKENS,), generator=torch.Generator().manual_seed(5))


def reference(folder):
    """Log probabilities [TOKENS - 1, vocab], or why there are none."""
    try:
        config = json.loads((folder / "config.json").read_text())
        kind = AutoModelForImageTextToText if "text_config" in config or "vision_config" in config \
            else AutoModelForCausalLM
        model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                           output_loading_info=True)
        if info["missing_keys"] or info["mismatched_keys"]:
            return "other tensors: " + ", ".join(sorted(map(str, info["missing_keys"])))[:80]
        vocab = model.config.get_text_config().vocab_size
        tokens = prompt(vocab)
        with torch.inference_mode():
            logits = model.eval()(tokens[None]).logits[0]
        if not torch.isfinite(logits).all():
            return "no numbers"
        return tokens, logits.double().log_softmax(1)
    except Exception as error:  # whatever it is: transformers does not run it
        return type(error).__name__ + ": " + str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def served(program, folder, tokens):
    """The program's answers to one task of one prompt, or why the folder is refused."""
    tasks = [{"prompts": [tokens.tolist()], "max_tokens": 1, "prompt_logprobs": 3}]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(tasks, file)
        file.flush()
        done = subprocess.run([program, "--model", str(folder), "--threads", "1", "--pool-blocks", "64", "--generate",
                               file.name], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1])


def distance(answer, logs, tokens):
    entries = answer[0][0]["prompt_logprobs"]
    worst = 0.0
    for row, token, (value, tops) in zip(logs, tokens[1:].tolist(), entries):
        worst = max(worst, abs(value - row[token].item()), *(abs(v - row[t].item()) for t, v in tops))
    return worst


def judge(program, name, source, config, said, log, counts, found=None):
    """`found`: reference()'s answer, where it is known."""
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        for file in source.iterdir():
            if file.name != "config.json":
                os.symlink(file, folder / file.name)
        (folder / "config.json").write_text(json.dumps(config))
        found = found or reference(folder)
        tokens = torch.arange(TOKENS) % 40 if isinstance(found, str) else found[0]
        answer = served(program, folder, tokens)
    line = f"{name} {said}: "
    if isinstance(answer, str):
        kind = "both refuse" if isinstance(found, str) else "refused"
        line += f"{kind}: {answer[-160:]}"
    elif isinstance(found, str):
        kind, line = "SERVED ALONE", line + "served, transformers: " + found
    else:
        off = distance(answer, found[1], tokens)
        kind = "same" if off < MOST else "WRONG"
        line += f"off by {off:.2g}"
    counts[kind] += 1
    print(f"{kind}: {line}", file=log, flush=True)
    return kind


def quiet():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="baton-bench-worker")
    parser.add_argument("--families", nargs="*", help="golden models; default: all that are not quantised")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=7200, help="ends after so long")
    parser.add_argument("--log", type=argparse.FileType("w"), default=sys.stdout)
    o = parser.parse_args()
    quiet()
    end = time.monotonic() + o.seconds
    counts, wrong = collections.Counter(), 0
    for source in sorted((GOLDEN / "models").iterdir()):
        config = json.loads((source / "config.json").read_text())
        if (source.name not in o.families) if o.families else "quantization_config" in config:
            continue
        if source.name == "dynamic_ntk":  # transformers' frequencies follow the longest sequence: docs/models.md
            continue
        inner = config.get("text_config")
        counts.clear()
        judge(o.program, source.name, source, config, "as it is", o.log, counts)
        for where in [None] + (["text_config"] if inner else []):
            settings = inner if where else config
            for made in pairs(settings, o.pairs, source.name) if o.pairs else [[c] for c in changes(settings)]:
                if time.monotonic() > end:
                    print("out of time", flush=True)
                    return 2
                changed = json.loads(json.dumps(config))
                for key, value in made:
                    change(changed[where] if where else changed, key, value)
                said = ", ".join(f"{where + '.' if where else ''}{key} = {json.dumps(value)}" for key, value in made)
                judge(o.program, source.name, source, changed, said, o.log, counts)
        wrong += counts["WRONG"]
        print(f"{source.name}: {dict(counts)}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
