#!/usr/bin/env python3
"""Measures how long a device takes for a step, as `./baton plan` needs it (docs/planning.md): runs
baton-bench-worker and fits planning/step_times.h's model to what it tells.

    tools/step_times.py --model demo/model --threads 1 --budget 256 --out times.json
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHORT, LONG = 16, 1024  # tokens of a context that costs next to nothing, and of one that costs something
STEPS = 48  # that a context grows by while it is timed


def doubled(most):
    """1, 2, 4, ... up to `most`, which is one of them."""
    counts, n = [], 1
    while n < most:
        counts.append(n)
        n *= 2
    return [*counts, most]


def bench(o, *arguments):
    """What baton-bench-worker tells."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [o.program, "--model", o.model, "--device", o.device, "--threads", str(o.threads),
                   "--ranks", str(o.ranks), "--tokens-per-block", str(o.tokens_per_block), "--budget", str(o.budget),
                   "--load-format", "dummy" if o.dummy else "auto", "--pool-blocks", str(o.pool_blocks), "--max-running", str(o.max_running),
                   "--steps", str(STEPS), "--json", out.name, *map(str, arguments)]
        result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if result.returncode != 0:
            raise SystemExit(f"{o.program}: {result.stderr.strip()}")
        return json.loads(pathlib.Path(out.name).read_text())


def repeated(name, values):
    return [word for value in values for word in (name, value)]


def decode_us(told):
    return {d["rows"]: 1000 * d["step_ms"] for d in told["decode"]}


def prompt_us(told):
    return {p["prompt"]: 1000 * p["ms"] for p in told["prefill"]}


def fit(o):
    rows = doubled(o.max_running)
    short = decode_us(bench(o, "--context", SHORT, *repeated("--rows", rows)))
    many = max(r for r in rows if r * (LONG + STEPS + o.tokens_per_block) <= o.pool_blocks * o.tokens_per_block
               and r <= 16)
    long = decode_us(bench(o, "--context", LONG, "--rows", many))
    context_ns = max(0.0, 1000 * (long[many] - short[many]) / (many * (LONG - SHORT)))
    # The first quarter of the steps is not counted.
    told = SHORT + STEPS * 5 / 8
    decode = [[r, max(0.0, us - r * told * context_ns / 1000)] for r, us in short.items()]
    # A prompt of several chunks costs as many as it has, and its attention.
    sizes = [n for n in doubled(o.budget) if n not in (2, 4, 8)]
    whole = 8 * o.budget
    prompts = prompt_us(bench(o, *repeated("--prompts", [*sizes, whole])))
    pairs = (whole * whole - 8 * o.budget * o.budget) / 2
    pair_ns = max(0.0, 1000 * (prompts[whole] - 8 * prompts[o.budget]) / pairs)
    prompt = [[n, max(0.0, prompts[n] - pair_ns * n * (n + 1) / 2000)] for n in sizes]
    return {"model": str(pathlib.Path(o.model).resolve()), "device": o.device, "ranks": o.ranks,
            "tokens_per_block": o.tokens_per_block, "pool_blocks": o.pool_blocks,
            "decode_us": [[r, round(us, 1)] for r, us in sorted(decode)],
            "decode_context_ns": round(context_ns, 3),
            "prompt_us": [[n, round(us, 1)] for n, us in sorted(prompt)], "prompt_pair_ns": round(pair_ns, 3),
            # Rows cost the same as tokens of a prompt and are sampled in both kinds of step: what is left of
            # it stays in the curves.
            "sample_us": 0, "pull_us": 0, "pull_block_us": 0, "host_us": 0, "message_us": 0, "request_us": 0}


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--out", required=True, help="file to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dummy", action="store_true", help="random weights, from config.json alone")
    parser.add_argument("--threads", type=int, default=0, help="of a step, on CPUs")
    parser.add_argument("--ranks", type=int, default=1,
                        help="of the worker: processes that share the model, each with --threads (1)")
    parser.add_argument("--budget", type=int, default=512, help="most prompt tokens of a step (512)")
    parser.add_argument("--max-running", type=int, default=64, help="most rows of a decode step (64)")
    parser.add_argument("--tokens-per-block", type=int, default=16)
    parser.add_argument("--pool-blocks", type=int, default=4096, help="blocks of a worker's KV pool (4096)")
    parser.add_argument("--program", help="baton-bench-worker (that of build/DEVICE)")
    o = parser.parse_args()
    o.program = o.program or str(ROOT / "build" / o.device / "bin" / "baton-bench-worker")
    need = max(16 * (LONG + STEPS), 8 * o.budget) // o.tokens_per_block
    if o.pool_blocks < 2 * need or o.budget < 16 or o.max_running < 1:
        parser.error(f"--budget must be at least 16, --pool-blocks at least {2 * need}")
    return o


def main():
    o = options()
    pathlib.Path(o.out).write_text(json.dumps(fit(o), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
