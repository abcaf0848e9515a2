#!/usr/bin/env python3
"""Tokens of the CUDA backend against `transformers` in fp32, on random small checkpoints.

Needs a GPU, torch and transformers. Makes one checkpoint a family, lets baton-bench-worker generate
(prompts of mixed lengths, in chunks, joined by others on the way), and forces every token through the
reference: a greedy token may lie below the best logit by twice what transformers' own bf16 run of the
same text is off from its fp32 run, at most (two logits, each off by so much, change places). Quantised
checkpoints are compared with the values that they stand for.
With --deterministic, solo runs and mixed batches must agree to the bit.

    python3 tests/gpu/check_tokens.py build/cuda/bin/baton-bench-worker
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
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
}
LENGTHS = [1, 2, 15, 16, 17, 33, 63, 64, 100, 129, 200, 300]


def make(folder, name):
    """A random checkpoint whose biases and norms are not zeros and ones."""
    kind, settings = FAMILIES[name]
    torch.manual_seed(sum(map(ord, name)))
    config = getattr(transformers, kind)(**{**COMMON, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("bias"):
                value.normal_(0, 0.5)
            elif "norm" in key:
                value.uniform_(0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(folder)


def quantize(folder, values_folder, config):
    """Replaces the checkpoint's linear layers; what they stand for goes to values_folder."""
    path = pathlib.Path(folder) / "model.safetensors"
    state = safetensors.torch.load_file(path)
    tensors, values, _ = quantized.quantize(state, config, 11, False, shared_order=True)
    safetensors.torch.save_file(tensors, path)
    text = (pathlib.Path(folder) / "config.json").read_text()
    (pathlib.Path(values_folder) / "config.json").write_text(text)
    safetensors.torch.save_file({name: value.float().contiguous() for name, value in values.items()},
                                pathlib.Path(values_folder) / "model.safetensors",
                                metadata={"format": "pt"})
    changed = json.loads(text) | {"quantization_config": config}
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(changed))


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).cuda().eval()


def generate(program, folder, tasks, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(tasks, file)
        file.flush()
        done = subprocess.run(
            [program, "--model", folder, "--device", "cuda", "--budget", "512", "--max-running", "32",
             "--pool-blocks", "600", "--generate", file.name, *options],
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--families", nargs="*", default=[*FAMILIES, *QUANTIZED])
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    good = True
    for name in args.families:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as values:
            make(folder, QUANTIZED[name][0] if name in QUANTIZED else name)
            if name in QUANTIZED:
                quantize(folder, values, QUANTIZED[name][1])
            reference = values if name in QUANTIZED else folder
            model = load(reference, torch.float32)
            rounded = load(reference, torch.bfloat16)
            generator = torch.Generator().manual_seed(5)
            prompts = [torch.randint(2, 1024, (n,), generator=generator).tolist() for n in LENGTHS]
            base = {"prompts": prompts, "max_tokens": 40, "temperature": 0}
            hows = [{"chunk": 512}, {"chunk": 7, "stagger": 2}, {"chunk": 64, "solo": True}]
            runs = generate(args.program, folder, [{**base, **how} for how in hows])
            for how, answers in zip(hows, runs):
                good &= judge(name, json.dumps(how), model, rounded, prompts, answers)
            sampled = {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 3}
            tasks = [{**base, **extra, **how} for extra in ({}, sampled) for how in hows]
            runs = generate(args.program, folder, tasks, "--deterministic")
            same = all(runs[i] == runs[3 * (i // 3)] for i in range(len(runs)))
            good &= judge(name, "deterministic", model, rounded, prompts, runs[0]) and same
            print(f"{name:10} deterministic: solo, mixed and other chunks "
                  f"{'agree to the bit' if same else 'DIFFER'}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
