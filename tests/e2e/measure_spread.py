#!/usr/bin/env python3
"""How long does a long prompt take on one worker, and on several that compute it at the same time? Not a test: it wants
a quiet machine with a core for each worker.

    tests/e2e/measure_spread.py [--tokens 8000] [--workers 2] [--chunk 256] [--runs 5]
"""

import argparse
import statistics
import time

from cluster import DEMO_MODEL, Cluster, wait_until
from test_elastic import ask, counters, ids


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(DEMO_MODEL))
    parser.add_argument("--tokens", type=int, default=8000, help="of the prompt (8000)")
    parser.add_argument("--workers", type=int, default=2, help="with one thread each (2)")
    parser.add_argument("--chunk", type=int, default=256, help="prompt tokens of a step (256)")
    parser.add_argument("--runs", type=int, default=5, help="prompts that are measured, in turns (5)")
    return parser.parse_args()


def main():
    o = parsed()
    scheduler = {"prompt_chunk": o.chunk, "token_budget": max(512, o.chunk), "prefix_cache": False, "elastic": "auto"}
    worker = {"threads": 1, "pool_blocks": o.tokens // 16 + 64}
    times = {}
    answers = {}

    def cluster_of(count):
        return Cluster(workers=[(f"mixed{i}", "mixed") for i in range(count)], model=o.model, worker=worker,
                       scheduler={**scheduler, "elastic_prompt_tokens": min(4096, o.tokens)})

    with cluster_of(1) as one, cluster_of(o.workers) as several:
        wait_until(lambda: several.show("info")["max_context"] > 0, 20, "pools are read")
        time.sleep(1)
        for run in range(o.runs + 1):
            for name, cluster in (("one", one), ("several", several)):
                prompt = ids(o.tokens, run)
                began = time.monotonic()
                answers.setdefault(run, []).append(ask(cluster, prompt, 1))
                if run > 0:  # the first one warms up
                    times.setdefault(name, []).append(time.monotonic() - began)
        numbers = counters(several)
        if numbers["spreads"] != o.runs + 1 or numbers["spread_failures"] != 0:
            raise SystemExit(f"not every prompt was spread: {numbers}")
    if any(a != b for a, b in answers.values()):
        raise SystemExit("the answers differ")
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"{name}: median {medians[name]:.3f} s of", " ".join(f"{value:.3f}" for value in values))
    print(f"{o.tokens} tokens, chunks of {o.chunk}: {medians['one'] / medians['several']:.2f} times as fast "
          f"on {o.workers} workers")
    print(f"chunks of all prompts but the first: predicted {numbers['spread_predicted_us'] / 1e6:.2f} s, "
          f"measured {numbers['spread_measured_us'] / 1e6:.2f} s")


if __name__ == "__main__":
    main()
