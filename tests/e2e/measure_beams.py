#!/usr/bin/env python3
"""Prints what beams cost with the demo model: tokens a second of searches with 4 beams against 4
independent greedy streams, and blocks in use with sharing and without. Not a test.

    tests/e2e/measure_beams.py [mixed|pair]
"""

import sys
import threading
import time

from cluster import PAIR, Cluster

PROMPT = "What happens when I kill a worker? " * 24
TOKENS = 128
BODY = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True}
BEAMS = BODY | {"use_beam_search": True, "best_of": 4, "early_stopping": "never"}
GREEDY = BODY | {"temperature": 0}


def timed(cluster, bodies):
    """Seconds until all have ended, and the most blocks that were owned meanwhile."""
    peak, done = [0], threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], sum(pool["owned"] for pool in cluster.show("kv")))
            time.sleep(0.005)

    replies = []
    threads = [threading.Thread(target=lambda b=b: replies.append(cluster.post("/v1/completions", b)))
               for b in bodies]
    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    done.set()
    watcher.join()
    assert all(status == 200 for status, _ in replies), replies
    return seconds, peak[0], replies[0][1]["usage"]["prompt_tokens"]


def main():
    workers = PAIR if sys.argv[1:] == ["pair"] else [("mixed0", "mixed")]
    with Cluster(workers=workers, worker={"pool_mib": 256}) as cluster:
        timed(cluster, [GREEDY])
        for turn in range(3):
            search = timed(cluster, [BEAMS])
            greedy = timed(cluster, [GREEDY] * 4)
            rows = 4 * TOKENS
            print(f"run {turn}: prompt {search[2]}; 4 beams {search[0]:.2f} s, {rows / search[0]:.0f} rows/s, "
                  f"{search[1]} blocks; 4 greedy {greedy[0]:.2f} s, {rows / greedy[0]:.0f} tokens/s, "
                  f"{greedy[1]} blocks")


main()
