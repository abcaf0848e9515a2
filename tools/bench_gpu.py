#!/usr/bin/env python3
"""The pair on GPUs against one mixed worker, over HTTP, unloaded and under load.

    python3 tools/bench_gpu.py --model DIR [--dummy] --build build/cuda

For each set-up it starts real processes, sends prompts of random token ids and reports: time to the first
token (TTFT), the gap before the second token (it hides the hand-off), time per output token (TPOT), and
with --streams the same under closed-loop load. JSON lines on stdout, one a measurement.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from cluster import PAIR, Cluster, wait_until  # noqa: E402


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))] if values else 0.0


def one(cluster, length, tokens, seed):
    """One stream: (TTFT, gap before the second token, later gaps), in milliseconds."""
    generator = random.Random(seed)
    ids = [generator.randrange(10, 4000) for _ in range(length)]
    begin = time.monotonic()
    stream = cluster.stream(ids, max_tokens=tokens, temperature=0, ignore_eos=True)
    stream.finish(300)
    at = [1e3 * (t - begin) for t in stream.arrivals]
    gaps = [b - a for a, b in zip(at, at[1:])]
    return at[0], gaps[0] if gaps else 0, gaps[1:], at[-1]


def unloaded(cluster, length, tokens, repeats):
    runs = [one(cluster, length, tokens, i) for i in range(repeats + 1)][1:]
    last = [(r[3] - r[0]) / max(tokens - 1, 1) for r in runs]
    return {"prompt": length, "ttft_ms": statistics.median(r[0] for r in runs),
            "second_gap_ms": statistics.median(r[1] for r in runs),
            "itl_p50_ms": percentile([g for r in runs for g in r[2]], 0.5),
            "tpot_ms": statistics.median(last)}


def loaded(cluster, length, tokens, streams, rounds):
    results = []

    def client(index):
        for i in range(rounds):
            results.append(one(cluster, length, tokens, 1000 * index + i))

    begin = time.monotonic()
    threads = [threading.Thread(target=client, args=(i,)) for i in range(streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wall = time.monotonic() - begin
    gaps = [g for r in results for g in [r[1], *r[2]]]
    return {"prompt": length, "streams": streams, "tokens_per_s": streams * rounds * tokens / wall,
            "ttft_p50_ms": percentile([r[0] for r in results], 0.5),
            "itl_p50_ms": percentile(gaps, 0.5), "itl_p99_ms": percentile(gaps, 0.99)}


def handoffs(trace, model):
    """Pulls as the scheduler sees them, by their number of blocks: sent to answered, the copy alone, GB/s."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    heads = config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    block = 16 * config["num_hidden_layers"] * 2 * heads * dim * 2
    sent, by_blocks = {}, {}
    for event in map(json.loads, trace.read_text().splitlines()):
        if event["event"] == "pull":
            sent[event["transfer"]] = event
        elif event["event"] == "pull_done":
            pull = sent.pop(event["transfer"])
            by_blocks.setdefault(pull["blocks"], []).append(
                ((event["t"] - pull["t"]) / 1e3, event["copy_us"]))
    for blocks, times in sorted(by_blocks.items()):
        median = statistics.median(t for t, _ in times)
        copy = statistics.median(c for _, c in times)
        yield {"blocks": blocks, "mib": blocks * block / 2**20, "pulls": len(times),
               "median_us": median, "copy_us": copy, "gb_per_s": blocks * block / median / 1e3,
               "copy_gb_per_s": blocks * block / copy / 1e3}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dummy", action="store_true", help="random weights from config.json alone")
    parser.add_argument("--build", default="build/cuda")
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 8000])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=2048, help="prompt tokens of one step")
    parser.add_argument("--budget", type=int, default=8192, help="tokens of one step, all in all")
    parser.add_argument("--rounds", type=int, default=3, help="requests of each stream under load")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streams", type=int, default=0, help="also this many closed-loop streams")
    parser.add_argument("--setups", nargs="*", default=["mixed", "pair"])
    args = parser.parse_args()
    setups = {"pair": PAIR, "mixed": [("mixed0", "mixed")]}
    for name in args.setups:
        trace = pathlib.Path(tempfile.mkdtemp(prefix="baton-bench-")) / "trace"
        with Cluster(workers=setups[name], model=args.model, build=pathlib.Path(args.build).resolve() / "bin",
                     scheduler={"token_budget": args.budget, "prompt_chunk": args.chunk, "max_running": 256,
                                "event_log": str(trace)},
                     worker={"device": "cuda", "deterministic": False, "pool_mib": 0,
                             "load_format": "dummy" if args.dummy else "auto"}) as cluster:
            for length in args.lengths:
                print(json.dumps({"setup": name, **unloaded(cluster, length, args.tokens,
                                                            args.repeats)}), flush=True)
            if args.streams:
                print(json.dumps({"setup": name, **loaded(cluster, args.lengths[0], args.tokens,
                                                          args.streams, args.rounds)}), flush=True)
            for line in handoffs(trace, args.model):
                print(json.dumps({"setup": name, **line}), flush=True)
            wait_until(cluster.pools_at_rest, 20, "at rest")


if __name__ == "__main__":
    main()
