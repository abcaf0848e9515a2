#!/usr/bin/env python3
"""Prints how long streams stand still when a request with a new grammar joins them: demo model, grammars that
take tenths of a second to compile. Not a test.

    tests/e2e/measure_grammar.py [pair|mixed] [FOLDER_OF_ANOTHER_BUILDS_PROGRAMS]
"""

import statistics
import sys
import time

from cluster import PAIR, Cluster

STREAMS, GRAMMARS = 2, 12


def main():
    workers = [("mixed0", "mixed")] if sys.argv[1:2] == ["mixed"] else PAIR
    with Cluster(workers=workers, worker={"threads": 1, "step_delay_ms": 2, "pool_mib": 512},
                 build=(sys.argv[2:3] or [None])[0]) as cluster:
        streams = [cluster.stream("What is Baton?", max_tokens=20000, min_tokens=20000, seed=i)
                   for i in range(STREAMS)]
        for stream in streams:
            stream.wait_pieces(50)
        windows, first = [], []
        for i in range(GRAMMARS):
            begin = time.monotonic()
            status, reply = cluster.post("/v1/completions", {
                "prompt": "Write.", "max_tokens": 8, "guided_regex": f"[a-z ]{{1,{300 + i}}}"})
            assert status == 200, reply
            windows.append((begin, time.monotonic()))
            first.append(windows[-1][1] - begin)
            time.sleep(0.3)
        gaps = []
        for begin, end in windows:
            for stream in streams:
                arrivals = [t for t in stream.arrivals if begin - 0.1 <= t <= end + 0.1]
                assert len(arrivals) > 2, stream.error or "a stream has ended"
                gaps.append(max(b - a for a, b in zip(arrivals, arrivals[1:])))
        for stream in streams:
            stream.leave()
        print(f"{len(windows)} new grammars, {STREAMS} streams beside them: longest gap of a stream while one joined, "
              f"median {1000 * statistics.median(gaps):.0f} ms, max {1000 * max(gaps):.0f} ms; "
              f"the request itself, median {1000 * statistics.median(first):.0f} ms")


main()
