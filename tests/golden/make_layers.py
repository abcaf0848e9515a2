#!/usr/bin/env python3
"""Makes the golden activations that tests/e2e/test_layers.py compares with. Needs torch and transformers.

    make_layers.py [NAME ...]    of the small random models in tests/golden/models

layers_NAME.safetensors holds what transformers leaves after each part in fp32, in the format of layers.py.
"""

import argparse
import pathlib

import torch
from transformers import AutoModelForCausalLM

import layers

GOLDEN = pathlib.Path(__file__).resolve().parent
# A plain one with grouped heads and scaled RoPE, biases, normed heads, a window, experts.
NAMES = ["gqa_tied_llama3", "qwen2_bias", "qwen3_norms", "mistral_window", "mixtral", "qwen3_moe"]
TOKENS = {"mistral_window": 60}  # more than its window
FEW = 20  # more than one block


@torch.no_grad()
def activations(model, tokens):
    """{part: fp32 [tokens, columns]} of one pass, with the names that Baton gives them."""
    found = {}

    def keep(name):
        def hook(module, inputs, output=None):
            value = inputs[0] if output is None else output[0] if isinstance(output, tuple) else output
            found[name] = value[0].float()
        return hook

    decoder = model.model
    # What the first layer gets: some families scale what the table has.
    hooks = [decoder.layers[0].register_forward_pre_hook(keep("embed"))]
    for i, layer in enumerate(decoder.layers):
        hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(keep(f"layer{i}.attended")))
        hooks.append(layer.register_forward_hook(keep(f"layer{i}")))
    try:
        logits = model(torch.tensor([tokens], device=model.device)).logits[0].float()
    finally:
        for hook in hooks:
            hook.remove()
    return {**found, "logits": logits}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    for name in parser.parse_args().names:
        model = AutoModelForCausalLM.from_pretrained(GOLDEN / "models" / name, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(0, model.config.vocab_size, (TOKENS.get(name, FEW),), generator=generator).tolist()
        parts = activations(model, tokens)
        out = GOLDEN / f"layers_{name}.safetensors"
        layers.write(out, {part: values.flatten().tolist() for part, values in parts.items()},
                     {part: values.shape[1] for part, values in parts.items()}, tokens)
        print(f"{out}: {len(parts)} parts of {len(tokens)} tokens, {out.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
