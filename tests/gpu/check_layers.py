#!/usr/bin/env python3
"""Activations layer by layer against `transformers` in fp32, on random small checkpoints.

Needs torch and transformers, and a GPU unless --device is cpu. Makes the checkpoints of check_tokens.py, lets
baton-bench-worker write down what each part of the forward pass leaves (--dump), prompts in chunks and decoded
tokens, and compares it with two runs of the same tokens by transformers. A part may be off from the fp32 run by
twice what the bf16 run is off, in its largest value and in the root of the mean square; on CPUs, which compute in
fp32, by 1e-4 of the part's size. The first part out of bounds is named. At the end a fault is planted in a
checkpoint, a row of zeros in one matrix, and must be found where it is.

    python3 tests/gpu/check_layers.py build/cuda/bin/baton-bench-worker
    python3 tests/gpu/check_layers.py build/cpu/bin/baton-bench-worker --device cpu --families llama
"""

import argparse
import pathlib
import sys
import tempfile

import torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent),
                str(pathlib.Path(__file__).resolve().parents[1] / "golden")]
import check_tokens  # noqa: E402
import layers  # noqa: E402
from make_layers import activations  # noqa: E402

LENGTHS = [1, 17, 130, 300]
HOWS = {"chunks of 512": {"chunk": 512}, "chunks of 64": {"chunk": 64}, "chunks of 7": {"chunk": 7}}
PLANTED = {"embed_tokens": "embed", "layers.1.self_attn.v_proj": "layer1.attended",
           "layers.1.self_attn.o_proj": "layer1", "layers.2.mlp.down_proj": "layer2"}


class Deviation:
    """Of parts: the largest value and the root of the mean square, over several prompts."""

    def __init__(self):
        self.parts = {}

    def add(self, part, values):
        values = values.double()
        most, squares, n = self.parts.get(part, (0.0, 0.0, 0))
        largest = values.abs().max().item()
        most = largest if not largest <= most else most  # a NaN stays
        self.parts[part] = (most, squares + values.square().sum().item(), n + values.numel())

    def figures(self):
        return {part: (most, (squares / n) ** 0.5) for part, (most, squares, n) in self.parts.items()}


def dumps(program, folder, tasks, device, *options):
    """[task][prompt] -> ({part: [tokens, columns]}, tokens)"""
    with tempfile.TemporaryDirectory() as out:
        check_tokens.generate(program, folder, tasks, "--dump", out, *options, device=device)

        def one(path):
            parts, tokens = layers.read(path)
            return {part: torch.tensor(values).view(len(tokens), -1) for part, values in parts.items()}, tokens
        return [[one(f"{out}/{t}-{p}.safetensors") for p in range(len(task["prompts"]))]
                for t, task in enumerate(tasks)]


def compare(model, rounded, runs):
    """The table of layers.judge() and the first part out of bounds."""
    errors, offs, sizes = Deviation(), Deviation(), Deviation()
    for parts, tokens in runs:
        exact = activations(model, tokens)
        near = activations(rounded, tokens) if rounded else exact
        if list(parts) != list(exact):
            return [f"parts {list(parts)} where {list(exact)} were expected"], "the list of parts"
        for part, values in exact.items():
            errors.add(part, parts[part].to(values.device) - values)
            offs.add(part, near[part] - values)
            sizes.add(part, values)
    return layers.judge(errors.figures(), offs.figures(), sizes.figures())


def prompts_of(lengths):
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, 1024, (n,), generator=generator).tolist() for n in lengths]


def references(folder, device):
    return (check_tokens.load(folder, torch.float32, device),
            check_tokens.load(folder, torch.bfloat16, device) if device == "cuda" else None)


def check(args, name):
    quantised = check_tokens.QUANTIZED.get(name)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as values:
        check_tokens.make(folder, quantised[0] if quantised else name)
        if quantised:
            check_tokens.quantize(folder, values, quantised[1])
        model, rounded = references(values if quantised else folder, args.device)
        base = {"prompts": prompts_of(LENGTHS), "max_tokens": 6, "temperature": 0}
        good = True
        for options in ((), ("--deterministic",)) if args.device == "cuda" else ((),):
            runs = dumps(args.program, folder, [{**base, **how} for how in HOWS.values()], args.device, *options)
            for how, run in zip(HOWS, runs):
                table, first = compare(model, rounded, run)
                good &= first is None
                print(f"{name}, {how}{', deterministic' if options else ''}: "
                      f"{f'{first} is out of bounds: WRONG' if first else 'all parts within bounds'}", flush=True)
                if first or (how == "chunks of 64" and not options):
                    print("\n".join("  " + line for line in table), flush=True)
    return good


def check_planted(args):
    """The comparison can fail: one row of a matrix is zero on Baton's side."""
    good = True
    for tensor, part in PLANTED.items():
        with tempfile.TemporaryDirectory() as folder:
            check_tokens.make(folder, "llama")
            model, rounded = references(folder, args.device)
            task = {"prompts": prompts_of([100]), "max_tokens": 2, "temperature": 0}
            row = task["prompts"][0][5] if tensor == "embed_tokens" else 3
            layers.zero_row(pathlib.Path(folder) / "model.safetensors", f"model.{tensor}.weight", row)
            [run] = dumps(args.program, folder, [task], args.device)
            table, first = compare(model, rounded, run)
        found = first == part
        good &= found
        print(f"a row of zeros in {tensor}: {f'found at {first}' if found else f'{first} instead of {part}: WRONG'}",
              flush=True)
        if not found:
            print("\n".join("  " + line for line in table), flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--families", nargs="*", default=[*check_tokens.FAMILIES, *check_tokens.QUANTIZED])
    parser.add_argument("--skip-planted", action="store_true", help="plant no fault at the end")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    results = [check(args, name) for name in args.families]
    if not args.skip_planted:
        results.append(check_planted(args))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
