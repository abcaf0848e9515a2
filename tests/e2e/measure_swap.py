"""Recomputation against the host part, with real processes: long chats on a worker whose pool has room for a few.

    python3 tests/e2e/measure_swap.py

Prints, for each rule of `scheduler.swap`: seconds until all have ended, sum of latencies, preemptions, blocks out and in,
prompt tokens computed. All answers must be the same. The rules take turns, so that a noisy machine is noisy for all."""

import statistics
import sys
import time

from cluster import MIXED, Cluster

ROUNDS = 3
REQUESTS = 12
WORDS = "the quick brown fox jumps over the lazy dog and then it tells a long story about what it saw there "


def requests():
    return [{"prompt": f"Story {i}. " + WORDS * 10, "max_tokens": 600, "min_tokens": 600, "temperature": 0.8,
             "seed": 100 + i} for i in range(REQUESTS)]


def play(swap, pool_blocks):
    """(seconds, sum of latencies, counters, answers)"""
    with Cluster(workers=MIXED, worker={"pool_blocks": pool_blocks, "host_pool_blocks": 4096},
                 scheduler={"swap": swap, "watermark": 0.001}) as cluster:
        cluster.stream("warm up", max_tokens=4).finish()
        begin = time.monotonic()
        streams = [cluster.stream(**r) for r in requests()]
        answers = [stream.finish() for stream in streams]
        seconds = time.monotonic() - begin
        latencies = sum(stream.arrivals[-1] - begin for stream in streams)
        cluster.assert_at_rest()
        return seconds, latencies, cluster.show("info")["counters"], answers


def main():
    pool_blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    runs = {swap: [] for swap in ("never", "auto", "always")}
    for _ in range(ROUNDS):
        for swap, done in runs.items():
            done.append(play(swap, pool_blocks))
    answers = {str(run[3]) for done in runs.values() for run in done}
    if len(answers) != 1:
        raise SystemExit("the answers differ")
    for swap, done in runs.items():
        counters = done[0][2]
        computed = counters["prefill_tokens"] - counters["cached_tokens"] - counters["pulled_prefix_tokens"]
        print(f"swap {swap:6}: {statistics.median(run[0] for run in done):6.2f} s, sum of latencies "
              f"{statistics.median(run[1] for run in done):7.2f} s, preempted {counters['preemptions']:3}, blocks out "
              f"{counters['blocks_out']:5}, in {counters['blocks_in']:5}, prompt tokens computed {computed:6}")


if __name__ == "__main__":
    main()
