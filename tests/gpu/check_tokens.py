#!/usr/bin/env python3
"""Tokens of the CUDA backend against `transformers` in fp32, on random small checkpoints.

Needs a GPU, torch and transformers. Makes one checkpoint a family, lets baton-bench-worker generate
(prompts of mixed lengths, in chunks, joined by others on the way), and forces every token through the
reference: a greedy token may lie below the best logit by twice what transformers' own bf16 run of the
same text is off from its fp32 run, at most (two logits, each off by so much, change places). Quantised
checkpoints are compared with the values that they stand for.
--ranks N computes with N GPUs (--gpu 0,1 names them; families whose sizes N GPUs do not share are
passed over, by name); then deterministic steps must have the tokens and log probabilities of one GPU, to
the bit, but for experts, which have no such steps there.
With --deterministic, solo runs and mixed batches must agree to the bit.

Log probabilities, of prompts too, must lie as near to fp32 as twice what transformers' bf16 run is off.
Drawn tokens, with penalties, bias and bad words: the draw is made again here on the reference's logits,
with the same random number. Where another token comes out, the number must lie as near to the share of
the token that Baton drew as logits that are off by that bound can move it.

    python3 tests/gpu/check_tokens.py build/cuda/bin/baton-bench-worker
"""

import argparse
import collections
import importlib
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
import gguf_model  # noqa: E402
import quantized  # noqa: E402

COMMON = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 1024,
          "max_position_embeddings": 2048, "initializer_range": 0.08, "eos_token_id": 1,
          "bos_token_id": 0, "pad_token_id": None}
FAMILIES = {
    "llama": ("LlamaConfig", {"num_attention_heads": 4, "num_key_value_heads": 1}),
    "llama3": ("LlamaConfig", {
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 256}}),
    "qwen2": ("Qwen2Config", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3Config", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128}),
    "mistral": ("MistralConfig", {"num_attention_heads": 4, "num_key_value_heads": 2,
                                  "head_dim": 64, "sliding_window": 48}),
    "yarn": ("Qwen3Config", {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "original_max_position_embeddings": 128}}),
    "linear": ("LlamaConfig", {
        "num_attention_heads": 4, "num_key_value_heads": 4,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "mixtral": ("MixtralConfig", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                                  "num_local_experts": 8, "num_experts_per_tok": 2,
                                  "sliding_window": None}),
    # Layer 1 is dense by the list.
    "qwen3_moe": ("Qwen3MoeConfig", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                                     "num_experts": 32, "num_experts_per_tok": 4,
                                     "moe_intermediate_size": 112, "norm_topk_prob": True,
                                     "mlp_only_layers": [1]}),
}
def turned(theta=10000.0, **more):
    return {"rope_type": "default", "rope_theta": theta} | more


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES["seed_oss"] = ("SeedOssConfig", HEADS | {"head_dim": 64, "attention_bias": True, "rope_parameters": turned()})
FAMILIES["phi3"] = ("Phi3Config", HEADS | {"sliding_window": 48})
# Families whose layers are computed part by part.
BY_PARTS = {
    "gpt_oss": ("GptOssConfig", {
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 96,
        "sliding_window": 48, "num_local_experts": 8, "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0,
                            "beta_slow": 1.0, "original_max_position_embeddings": 256, "truncate": False}}),
    "gemma2": ("Gemma2Config", HEADS | {"head_dim": 64, "sliding_window": 48, "query_pre_attn_scalar": 50,
                                        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}),
    "gemma2_wide": ("Gemma2Config", HEADS | {"head_dim": 256, "sliding_window": 48, "query_pre_attn_scalar": 200,
                                             "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}),
    "gemma3": ("Gemma3TextConfig", HEADS | {
        "head_dim": 256, "sliding_window": 48, "query_pre_attn_scalar": 200, "layer_types": ["sliding_attention"] * 3 +
        ["full_attention"], "rope_parameters": {"sliding_attention": turned(100.0), "full_attention": {
            "rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}}}),
    "gemma3_tiles": ("Gemma3TextConfig", HEADS | {
        "head_dim": 128, "sliding_window": 48, "query_pre_attn_scalar": 200, "layer_types": ["sliding_attention"] * 3 +
        ["full_attention"], "rope_parameters": {"sliding_attention": turned(100.0), "full_attention": turned(5000.0)}}),
    "llama_biases": ("LlamaConfig", HEADS | {"attention_bias": True, "mlp_bias": True}),
    "ministral": ("MinistralConfig", HEADS | {"head_dim": 64, "sliding_window": 48,
                                              "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "qwen2_moe": ("Qwen2MoeConfig", HEADS | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
                                             "shared_expert_intermediate_size": 160, "decoder_sparse_step": 2}),
    "granite": ("GraniteConfig", HEADS | {"embedding_multiplier": 6.0, "attention_multiplier": 0.1,
                                          "residual_multiplier": 0.4, "logits_scaling": 0.5}),
    "smollm3": ("SmolLM3Config", HEADS | {"no_rope_layers": [1, 1, 0, 1], "rope_parameters": turned(20000.0)}),
    "phi3_part": ("Phi3Config", HEADS | {"rope_parameters": turned(partial_rotary_factor=0.75)}),
    "olmo2": ("Olmo2Config", HEADS | {"rope_parameters": turned(500000.0)}),
    "olmo3": ("Olmo3Config", HEADS | {"sliding_window": 48, "rope_parameters": {
        "sliding_attention": turned(500.0), "full_attention": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 256,
            "beta_fast": 8.0, "beta_slow": 1.0}}}),
    "exaone4": ("Exaone4Config", HEADS | {"sliding_window": 48, "rope_parameters": turned()}),
    "cohere2": ("Cohere2Config", HEADS | {"sliding_window": 48, "logit_scale": 0.3, "attention_bias": True}),
    "starcoder2": ("Starcoder2Config", HEADS | {"sliding_window": 48}),
    "glm4": ("Glm4Config", HEADS | {"head_dim": 64, "attention_bias": True,
                                    "rope_parameters": turned(partial_rotary_factor=0.5)}),
    "glm4_moe": ("Glm4MoeConfig", HEADS | {
        "head_dim": 64, "n_routed_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 1.7, "use_qk_norm": True, "attention_bias": True,
        "rope_parameters": turned(partial_rotary_factor=0.5)}),
}
BY_PARTS |= {
    "gemma": ("GemmaConfig", HEADS | {"head_dim": 64, "rope_parameters": turned()}),
    "cohere": ("CohereConfig", HEADS | {"logit_scale": 0.3, "rope_parameters": turned()}),
    "ernie4_5": ("Ernie4_5Config", HEADS | {"head_dim": 64, "use_bias": True, "rope_parameters": turned(5000.0)}),
    "olmoe": ("OlmoeConfig", HEADS | {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 96,
                                      "rope_parameters": turned()}),
    "minimax_m2": ("MiniMaxM2Config", HEADS | {"head_dim": 64, "num_local_experts": 8, "num_experts_per_tok": 3,
                                               "intermediate_size": 96,
                                               "rope_parameters": turned(partial_rotary_factor=0.5)}),
}
MLA = {"num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 16, "num_experts_per_tok": 3,
       "moe_intermediate_size": 96, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
       "routed_scaling_factor": 1.3}
# Latent keys and values: of DeepSeek's own sizes, which have a tiled kernel, and of others.
BY_PARTS |= {
    "deepseek_v2": ("DeepseekV2Config", MLA | {
        "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "topk_method": "group_limited_greedy", "rope_parameters": turned()}),
    "deepseek_v3": ("DeepseekV3Config", MLA | {
        "q_lora_rank": 96, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "norm_topk_prob": True, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 256}}),
    # Of a size for which plain heads have tiled kernels.
    "deepseek_v3_64": ("DeepseekV3Config", MLA | {
        "q_lora_rank": 96, "kv_lora_rank": 512, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64,
        "rope_parameters": turned()}),
    "deepseek_v3_small": ("DeepseekV3Config", MLA | {
        "q_lora_rank": 48, "kv_lora_rank": 88, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32,
        "rope_parameters": turned()}),
}
GROWING = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32,
           "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}
BY_PARTS |= {
    "ministral3": ("Ministral3Config", HEADS | {"head_dim": 64, "rope_parameters": GROWING}),
    "vaultgemma": ("VaultGemmaConfig", BY_PARTS["gemma2"][1]),
    "dots1": ("Dots1Config", {k: v for k, v in BY_PARTS["glm4_moe"][1].items() if k != "use_qk_norm"} | {
        "sliding_window": None, "rope_parameters": turned()}),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", HEADS | {
        "moe_num_experts": 16, "moe_k": 3, "moe_intermediate_size": 96, "moe_num_shared_experts": 2, "use_bias": False,
        "rope_parameters": turned(5000.0)}),
    "youtu": ("YoutuConfig", {k: BY_PARTS["deepseek_v3"][1][k] for k in (
        "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
        "qk_rope_head_dim", "v_head_dim", "rope_parameters")}),
    "mistral4": ("Mistral4Config", BY_PARTS["deepseek_v3"][1] | {"rope_parameters": GROWING}),
}
MULTIPLIERS = {"embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4, "logits_scaling": 0.5}
BY_PARTS |= {
    "granitemoeshared": ("GraniteMoeSharedConfig", HEADS | MULTIPLIERS | {
        "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 96, "shared_intermediate_size": 64}),
    "exaone_moe": ("ExaoneMoeConfig", HEADS | {
        "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
        "num_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "sliding_window": 48,
        "rope_parameters": turned()}),
}
FAMILIES |= BY_PARTS
NO_JOINS = ("llama_biases", "cohere2", "starcoder2")  # of those, the ones without experts that have no layer kernel
# Experts of sizes, and without the groups, that have a layer kernel.
EXPERTS_64 = {"moe_intermediate_size": 128}
UNGROUPED = EXPERTS_64 | {"n_group": 1, "topk_group": 1}
FAMILIES["qwen3_moe_64"] = ("Qwen3MoeConfig", FAMILIES["qwen3_moe"][1] | EXPERTS_64)
FAMILIES["qwen2_moe_64"] = ("Qwen2MoeConfig", BY_PARTS["qwen2_moe"][1] | EXPERTS_64 | {
    "shared_expert_intermediate_size": 192, "decoder_sparse_step": 1})
FAMILIES["gpt_oss_64"] = ("GptOssConfig", BY_PARTS["gpt_oss"][1] | {"intermediate_size": 128})
FAMILIES["glm4_moe_64"] = ("Glm4MoeConfig", BY_PARTS["glm4_moe"][1] | UNGROUPED)
FAMILIES["deepseek_v2_64"] = ("DeepseekV2Config", BY_PARTS["deepseek_v2"][1] | UNGROUPED | {"topk_method": "greedy"})
FAMILIES["deepseek_v3_one"] = ("DeepseekV3Config", BY_PARTS["deepseek_v3"][1] | UNGROUPED)
FAMILIES["qwen3_moe_fp8"] = ("Qwen3MoeConfig", FAMILIES["qwen3_moe"][1] | {"moe_intermediate_size": 128})
# Of two GPUs one begins within a group of 128.
FAMILIES["qwen3_moe_384"] = ("Qwen3MoeConfig", FAMILIES["qwen3_moe"][1] | {"moe_intermediate_size": 384})
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": True}
# name -> (family, quantization_config)
QUANTIZED = {
    "gptq": ("llama", GPTQ),
    "gptq-order": ("qwen2", GPTQ | {"group_size": 32, "desc_act": True, "sym": False}),
    "gptq-moe": ("qwen3_moe", GPTQ | {"group_size": 16}),  # groups too small: served in bf16
    "awq": ("mistral", {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
                        "zero_point": True}),
    "fp8-block": ("qwen3", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]}),
    "fp8": ("llama3", quantized.MODELS["fp8_channel"][3]),
    "fp8-static": ("ministral3", quantized.MODELS["ministral3_fp8"][3]),
    "mxfp4": ("gpt_oss", {"quant_method": "mxfp4"}),
    # Kept as four bits, kept as eight, and widened.
    "packed4": ("qwen3", quantized.packed_config(4, 32, False)),
    "packed8": ("llama", quantized.packed_config(8, -1, True)),
    "packed8-zeros": ("qwen2", quantized.packed_config(8, 64, False)),
    "gptq8": ("mistral", GPTQ | {"bits": 8, "group_size": 32}),
    "nvfp4": ("qwen3", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "packed4-moe": ("mixtral", quantized.packed_config(4, 64, True)),
    # Experts kept as four bits.
    "gptq-moe-64": ("qwen3_moe_fp8", GPTQ | {"sym": False}),
    "awq-moe": ("qwen3_moe_384", {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
                                  "zero_point": True}),
    "fp8-mistral4": ("mistral4", quantized.MODELS["mistral4_fp8"][3]),  # its experts in one tensor
    "awq-glm4-moe": ("glm4_moe", {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm",
                                  "zero_point": True}),
    # Families by parts; Phi's q, k and v, and gate and up, are one tensor each.
    "gptq-phi3": ("phi3", GPTQ),
    "gptq-olmo2": ("olmo2", GPTQ),
    "packed8-granite": ("granite", quantized.packed_config(8, 128, True)),
    "awq-gemma3": ("gemma3_tiles", {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm",
                                    "zero_point": True}),
    "fp8-block-glm4-moe": ("glm4_moe", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                        "weight_block_size": [64, 64]}),
    "fp8-block-moe": ("qwen3_moe_fp8", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                        "weight_block_size": [128, 128]}),
    "fp8-deepseek": ("deepseek_v3", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [64, 64]}),
    "fp8-qwen2-moe": ("qwen2_moe", quantized.MODELS["fp8_channel"][3]),
    # GGUF files: the types that layers take in turns.
    "q8_0": ("llama", ["q8_0"]),
    "q4_0": ("qwen3", ["q4_0"]),
    "q4_k": ("llama", ["q4_k", "q8_0"]),
}
# Experts: layer kernels of few rows, and no deterministic steps over ranks.
SPARSE = ("deepseek_v2", "deepseek_v3", "mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss", "olmoe",
          "minimax_m2", "dots1", "mistral4",
          "ernie4_5_moe")
SINGLE = ("packed8", "gptq8", "q8_0", "q4_k")  # the layer kernel does not multiply eight bits
EDITS = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2,
         "logit_bias": [[11, 2.5], [700, -4.0], [11, 0.5]], "bad_words": [[5], [9], [17, 23]]}
TOLD = {"logprobs": 5, "prompt_logprobs": 3}
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 33, 48, 63, 64, 65, 90, 100, 127, 129, 170, 200, 250, 300]


def shared_by(config, ranks, in_blocks):
    """Whether so many GPUs share the model: heads evenly, and features in tiles of 16 each, or in blocks of 32, not
    evenly."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    features = [config.intermediate_size] + [
        getattr(config, name, None) or 0 for name in ("moe_intermediate_size", "shared_expert_intermediate_size")]
    sizes = [heads * dim, config.hidden_size]
    if not in_blocks:
        sizes += features
    elif any(n % 32 or n < 32 * ranks for n in features if n):
        return False
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0) and all(
        size % (16 * ranks) == 0 for size in sizes)


def class_of(model_type):
    if model_type == "mistral4":  # others know it within folders that see pictures alone
        return importlib.import_module("transformers.models.mistral4.modeling_mistral4").Mistral4ForCausalLM
    return transformers.AutoModelForCausalLM


def make(folder, name):
    """A random checkpoint whose biases and norms are not zeros and ones."""
    kind, settings = FAMILIES[name]
    torch.manual_seed(sum(map(ord, name)))
    config = getattr(transformers, kind)(**{**COMMON, **settings})
    model = class_of(config.model_type)
    model = model(config) if name == "mistral4" else model.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("sinks"):
                value.normal_(0, 2)
            elif key.endswith("bias"):
                value.normal_(0, 0.5)
            elif "norm" in key:
                value.uniform_(0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(folder)


def quantize(folder, values_folder, config):
    """Replaces the checkpoint's linear layers; what they stand for goes to values_folder."""
    path = pathlib.Path(folder) / "model.safetensors"
    state = safetensors.torch.load_file(path)
    if config["quant_method"] == "mxfp4":
        tensors, values = quantized.mxfp4_experts(state)
    else:
        tensors, values, _ = quantized.quantize(state, config, 11, False, shared_order=True)
    safetensors.torch.save_file(tensors, path)
    text = (pathlib.Path(folder) / "config.json").read_text()
    (pathlib.Path(values_folder) / "config.json").write_text(text)
    safetensors.torch.save_file({name: value.float().contiguous() for name, value in values.items()},
                                pathlib.Path(values_folder) / "model.safetensors",
                                metadata={"format": "pt"})
    changed = json.loads(text) | {"quantization_config": config}
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(changed))


def write_gguf(folder, values_folder, kinds):
    """Turns the checkpoint into a GGUF file, whose name it gives; what it stands for goes to values_folder."""
    state = safetensors.torch.load_file(pathlib.Path(folder) / "model.safetensors")
    text = (pathlib.Path(folder) / "config.json").read_text()
    path = pathlib.Path(folder) / "model.gguf"
    values = gguf_model.write(path, json.loads(text), state, kinds)
    (pathlib.Path(values_folder) / "config.json").write_text(text)
    safetensors.torch.save_file(values, pathlib.Path(values_folder) / "model.safetensors", metadata={"format": "pt"})
    return str(path)


def load(folder, dtype, device="cuda"):
    # The other implementations leave out caps and sinks.
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    return class_of(config["model_type"]).from_pretrained(folder, dtype=dtype, attn_implementation="eager").to(
        device).eval()


RANKS = []  # options of every run


def generate(program, folder, tasks, *options, budget=512, device="cuda", running=32, ranks=None):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(tasks, file)
        file.flush()
        done = subprocess.run(
            [program, "--model", folder, "--device", device, "--budget", str(budget),
             "--max-running", str(running), "--pool-blocks", "2400", "--generate", file.name, *(RANKS if ranks is None else ranks), *options],
            stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{program} failed")
    return json.loads(done.stdout.splitlines()[-1])


@torch.no_grad()
def distances(model, rounded, prompt, tokens):
    """(how far below the best logit each token lies, how far the bf16 run is off), by position."""
    ids = torch.tensor([prompt + tokens], device="cuda")
    logits = model(ids).logits[0, len(prompt) - 1:-1].float()
    noise = (rounded(ids).logits[0, len(prompt) - 1:-1].float() - logits).abs().max()
    chosen = logits.gather(1, torch.tensor(tokens, device="cuda")[:, None])[:, 0]
    return (logits.max(1).values - chosen).max().item(), noise.item()


def judge(name, how, model, rounded, prompts, answers):
    pairs = [distances(model, rounded, p, t) for p, t in zip(prompts, answers)]
    worst = max(d for d, _ in pairs)
    bound = 2 * max(n for _, n in pairs)
    print(f"{name:10} {how:32} worst {worst:.4f}, bound {bound:.4f} "
          f"{'ok' if worst <= bound else 'WRONG'}", flush=True)
    return worst <= bound


@torch.no_grad()
def log_probabilities(model, rounded, prompt, tokens):
    """(fp32 logits, their log softmax, how far the bf16 run is off in each), a row a token that follows."""
    ids = torch.tensor([prompt + tokens], device="cuda")
    logits = model(ids).logits[0, :-1].double()
    off = rounded(ids).logits[0, :-1].double()
    logs = logits.log_softmax(1)
    return (logits.cpu(), logs.cpu(), (off - logits).abs().max().item(),
            (off.log_softmax(1) - logs).abs().max().item())


def judge_logprobs(name, how, references, prompts, answers):
    worst = 0.0
    complete = True
    for (_, logs, _, _), prompt, answer in zip(references, prompts, answers):
        entries = answer["prompt_logprobs"] + answer["logprobs"]
        told = [TOLD["prompt_logprobs"]] * (len(prompt) - 1) + [TOLD["logprobs"]] * len(answer["tokens"])
        complete &= [len(tops) for _, tops in entries] == told
        for row, token, (value, tops) in zip(logs, (prompt + answer["tokens"])[1:], entries):
            worst = max(worst, abs(value - row[token].item()))
            for (_, top), best in zip(tops, row.topk(len(tops)).values.tolist()):
                worst = max(worst, abs(top - best))
    bound = 2 * max(reference[3] for reference in references)
    good = complete and worst <= bound
    print(f"{name:8} {how:32} log probabilities: worst {worst:.4f}, bound {bound:.4f} "
          f"{'ok' if good else 'WRONG' if complete else 'MISSING'}", flush=True)
    return good


def philox4x32(counter, key):
    """Salmon and others, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011): ten rounds."""
    mask = 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key[0], b & mask, a >> 32 ^ counter[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def uniform(seed, position):
    bits = philox4x32([0, 0, position, 0], [seed & 0xFFFFFFFF, seed >> 32])
    return ((bits[0] << 32 | bits[1]) >> 11) * 2.0 ** -53


def edited(logits, prompt, tokens, task):
    """What the fields of EDITS make of a row, in vLLM's order."""
    logits = logits.clone()
    for *before, last in task["bad_words"]:
        if tokens[len(tokens) - len(before):] == before:
            logits[last] = -math.inf
    for token, value in task["logit_bias"]:
        logits[token] += value
    counts = collections.Counter(tokens)
    for token in set(prompt + tokens):
        penalty = task["repetition_penalty"]
        value = logits[token].item()
        value = value / penalty if value > 0 else value * penalty
        value -= task["frequency_penalty"] * counts[token]
        logits[token] = value - (task["presence_penalty"] if counts[token] else 0)
    return logits


def judge_draws(name, how, references, prompts, answers, task):
    """In order of id, as without top_k, top_p and min_p. Logits that are off by d change the odds of
    a share by a factor of exp(2 d) at most."""
    odds = lambda share: math.log(share / (1 - share)) if 0 < share < 1 else math.copysign(
        math.inf, share - 0.5)
    bound = 2 * max(reference[2] for reference in references)
    slack = 2 * bound * task["repetition_penalty"] / task["temperature"]
    worst = 0.0
    same = total = 0
    for i, ((logits, _, _, _), prompt, answer) in enumerate(zip(references, prompts, answers)):
        for position, token in enumerate(answer["tokens"]):
            row = edited(logits[len(prompt) - 1 + position], prompt, answer["tokens"][:position], task)
            ends = (row / task["temperature"]).softmax(0).cumsum(0)
            number = uniform(task["seed"] + i, position)
            begin = ends[token - 1].item() if token > 0 else 0.0
            end = min(ends[token].item(), 1.0)
            total += 1
            same += begin <= number < end
            if not math.isfinite(row[token].item()):
                worst = math.inf
            elif not begin <= number < end:
                worst = max(worst, odds(begin) - odds(number), odds(number) - odds(end))
    print(f"{name:8} {how:32} draws: {same} of {total} the same, others off by {worst:.4f}, bound "
          f"{slack:.4f} {'ok' if worst <= slack else 'WRONG'}", flush=True)
    return worst <= slack


def check_sampling_fields(program, folder, name, model, rounded, prompts, base, hows):
    drawn = {**base, **EDITS, **TOLD, "temperature": 0.8, "seed": 3}
    draws = generate(program, folder, [{**drawn, **how} for how in hows])
    good = True
    for how, answers in zip(hows, draws):
        references = [log_probabilities(model, rounded, p, a["tokens"]) for p, a in zip(prompts, answers)]
        good &= judge_logprobs(name, json.dumps(how), references, prompts, answers)
        good &= judge_draws(name, json.dumps(how), references, prompts, answers, drawn)
    # More lines of logits in one step than the device holds at a time; keys enough for Hopper to gather them.
    long = {**drawn, "prompts": [(prompts[-1] * 8)[:1900], prompts[-2]], "chunk": 1900, "max_tokens": 4}
    [answers] = generate(program, folder, [long], budget=2048)
    references = [log_probabilities(model, rounded, p, a["tokens"])
                  for p, a in zip(long["prompts"], answers)]
    good &= judge_logprobs(name, "a prompt of 1900", references, long["prompts"], answers)
    if RANKS:
        return good
    # Also what the host draws (typical_p), and rows of each kind in one step.
    extras = [{}, {"temperature": 0}, {"min_p": 0.05, "top_k": 50}, {"typical_p": 0.8},
              {"allowed_tokens": list(range(100, 200)), "min_tokens": 50, "stop_ids": [101, 102]}]
    tasks = [{**drawn, **extra, **how} for extra in extras for how in hows]
    runs = generate(program, folder, tasks, "--deterministic")
    same = all(runs[i] == runs[len(hows) * (i // len(hows))] for i in range(len(runs)))
    print(f"{name:8} deterministic, all sampling fields: solo, mixed and other chunks "
          f"{'agree to the bit' if same else 'DIFFER'}", flush=True)
    allowed = all(100 <= t < 200 and t not in (101, 102) for a in runs[-1] for t in a["tokens"])
    if not allowed:
        print(f"{name:8} a token that is not allowed was drawn: WRONG", flush=True)
    return good and same and allowed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--families", nargs="*", default=[*FAMILIES, *QUANTIZED])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--layer-kernels", action="store_true", help="check nothing but steps of layer kernels")
    args = parser.parse_args()
    if args.ranks > 1:
        RANKS.extend(["--ranks", str(args.ranks), "--gpu", args.gpu])
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    good = True
    for name in args.families:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as values:
            family = QUANTIZED[name][0] if name in QUANTIZED else name
            make(folder, family)
            model_path = folder
            if name in QUANTIZED and isinstance(QUANTIZED[name][1], list):
                model_path = write_gguf(folder, values, QUANTIZED[name][1])
            elif name in QUANTIZED:
                quantize(folder, values, QUANTIZED[name][1])
            reference = values if name in QUANTIZED else folder
            if args.ranks > 1 and not shared_by(transformers.AutoConfig.from_pretrained(reference), args.ranks,
                                                name.startswith("mxfp4")):
                print(f"{name:10} passed over: {args.ranks} GPUs do not share its sizes", flush=True)
                continue
            model = load(reference, torch.float32)
            rounded = load(reference, torch.bfloat16)
            generator = torch.Generator().manual_seed(5)
            prompts = [torch.randint(2, 1024, (n,), generator=generator).tolist() for n in LENGTHS]
            base = {"prompts": prompts, "max_tokens": 40, "temperature": 0}
            hows = [{"chunk": 512}, {"chunk": 7, "stagger": 2}, {"chunk": 64, "solo": True}]
            if not args.layer_kernels:
                runs = generate(args.program, model_path, [{**base, **how} for how in hows])
                for how, answers in zip(hows, runs):
                    good &= judge(name, json.dumps(how), model, rounded, prompts, answers)
            sparse = model.config.model_type in SPARSE
            if not RANKS and (sparse or (family not in NO_JOINS and name not in SINGLE)):
                # Of layer kernels
                rows = 4 if sparse else 64 if family in BY_PARTS else 8 if name in QUANTIZED else 96
                many = [torch.randint(2, 1024, (3 + i % 40,), generator=generator).tolist() for i in range(rows)]
                runs = generate(args.program, model_path, [{"prompts": many, "max_tokens": 24, "temperature": 0}],
                                "--layer-kernel", "always", running=rows)
                good &= judge(name, f"{rows} at once, in layer kernels", model, rounded, many, runs[0])
            if args.layer_kernels:
                continue
            sampled = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 3}
            tasks = [{**base, **extra, **how} for extra in ({}, {**sampled, "logprobs": 3}) for how in hows]
            if RANKS:
                if model.config.model_type not in SPARSE:
                    one, several = (generate(args.program, model_path, tasks, "--deterministic", ranks=ranks)
                                    for ranks in ([], RANKS))
                    good &= one == several
                    print(f"{name:10} deterministic: one GPU and {args.ranks} ranks "
                          f"{'agree to the bit' if one == several else 'DIFFER'}", flush=True)
                good &= check_sampling_fields(args.program, model_path, name, model, rounded, prompts, base, hows)
                continue
            runs = generate(args.program, model_path, tasks, "--deterministic")
            same = all(runs[i] == runs[3 * (i // 3)] for i in range(len(runs)))
            good &= judge(name, "deterministic", model, rounded, prompts, runs[0]) and same
            print(f"{name:10} deterministic: solo, mixed and other chunks "
                  f"{'agree to the bit' if same else 'DIFFER'}", flush=True)
            good &= check_sampling_fields(args.program, model_path, name, model, rounded, prompts, base, hows)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
