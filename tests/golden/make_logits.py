#!/usr/bin/env python3
"""Makes the golden logits that tests/cpu_torch compares with. Needs torch, transformers, safetensors.

    make_logits.py                                   the small random models and their logits
    make_logits.py --model demo/model --out FILE     logits of a model that exists

A golden file is a safetensors file: `tokens` I32 [n]; `positions` I32 [m], the positions whose logits
are kept; `logits` F32 [m, vocab], by transformers in fp32 with eager attention; `crc32` I64 [1] of the
model.safetensors that it was made from. The versions that made it stand in its metadata.
"""
import argparse
import json
import pathlib
import zlib

import safetensors.torch
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

GOLDEN = pathlib.Path(__file__).resolve().parent
TOKENS = 150  # more than two attention tiles of 64

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# name -> (sizes, dtype of the file, whether config.json is written as transformers 4 did)
MODELS = {
    "mha": (dict(hidden_size=36, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
                 intermediate_size=56, vocab_size=61, tie_word_embeddings=False), torch.float32, False),
    "gqa_tied_llama3": (dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=6,
                             num_key_value_heads=2, head_dim=16, intermediate_size=100, vocab_size=80,
                             tie_word_embeddings=True, rope_parameters=LLAMA3), torch.bfloat16, False),
    "mqa_linear_f16": (dict(hidden_size=40, num_hidden_layers=2, num_attention_heads=5,
                            num_key_value_heads=1, intermediate_size=64, vocab_size=64,
                            tie_word_embeddings=True,
                            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0,
                                             "factor": 4.0}), torch.float16, True),
    "wide_heads": (dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        num_key_value_heads=1, head_dim=80, intermediate_size=50, vocab_size=70,
                        tie_word_embeddings=False,
                        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
                   torch.bfloat16, True),
}


def make_model(folder, sizes, dtype, old_config, seed):
    """A random model whose weights are large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    config = LlamaConfig(max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
                         initializer_range=0.2, **sizes)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if old_config:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else \
            {"type": rope["rope_type"], **{k: v for k, v in rope.items() if k != "rope_type"}}
        path.write_text(json.dumps(config, indent=2) + "\n")


def make_golden(folder, out, positions):
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, model.config.vocab_size, (TOKENS,), generator=generator)
    with torch.inference_mode():
        logits = model.eval()(tokens[None]).logits[0]
    safetensors.torch.save_file(
        {"tokens": tokens.int(), "positions": torch.tensor(positions, dtype=torch.int32),
         "logits": logits[positions].float().contiguous(),
         "crc32": torch.tensor([zlib.crc32((folder / "model.safetensors").read_bytes())])},
        out, metadata={"torch": torch.__version__, "transformers": transformers.__version__})
    print(f"{out}: {len(positions)} rows, largest logit {logits.abs().max():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.model:
        if not arguments.out:
            parser.error("--model needs --out")
        make_golden(arguments.model, arguments.out, [0, 1, 15, 16, 63, 64, 127, TOKENS - 1])
        return
    for seed, (name, (sizes, dtype, old_config)) in enumerate(MODELS.items()):
        folder = GOLDEN / "models" / name
        make_model(folder, sizes, dtype, old_config, seed)
        make_golden(folder, GOLDEN / f"logits_{name}.safetensors", list(range(0, TOKENS, 4)) + [TOKENS - 1])


if __name__ == "__main__":
    main()
