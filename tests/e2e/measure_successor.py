#!/usr/bin/env python3
"""What a front end's death costs its clients, and what the journals cost while nobody dies.

    BATON_BUILD_DIR=build/cpu python3 tests/e2e/measure_successor.py

1. Kills of the front end under 64 streams: from each kill to the next event of each stream.
2. With and without a twin, in turns on two clusters of a fake worker: streams of 64 clients (events a second, processor time
   of the front end for each event) and pages on kept connections (replies a second).
"""

import argparse
import http.client
import pathlib
import statistics
import threading
import time

from cluster import MIXED, Cluster

STREAMS = 64


def deaths(kills):
    long = {"max_tokens": 4000, "min_tokens": 4000, "temperature": 0}
    gaps, starts = [], []
    with Cluster(MIXED, fake=True, worker={"step_delay_ms": 20, "pool_mib": 1024}) as cluster:
        streams = [cluster.stream(f"Hello {i}", **long) for i in range(STREAMS)]
        for stream in streams:
            stream.wait_pieces(5)
        for _ in range(kills):
            time.sleep(0.7)
            marks = [stream.pieces for stream in streams]
            began = time.monotonic()
            cluster.kill("frontend0")
            cluster.start("frontend0")
            for stream, mark in zip(streams, marks):
                stream.wait_pieces(mark + 3)
            for stream in streams:
                around = [t for t in stream.arrivals if t > began - 0.2]
                gaps.append(max(b - a for a, b in zip(around, around[1:])))
            starts.append(time.monotonic() - began)
        whole = sum(stream.error is None for stream in streams)
    gaps.sort()
    print(f"{kills} kills under {STREAMS} streams of 20 ms a token: gap p50 {gaps[len(gaps) // 2] * 1e3:.0f} ms, "
          f"p99 {gaps[len(gaps) * 99 // 100] * 1e3:.0f} ms, max {gaps[-1] * 1e3:.0f} ms; {whole} streams without an error")


def cpu_seconds(cluster):
    fields = pathlib.Path(f"/proc/{cluster.processes['frontend0'].pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def stream_load(cluster, tokens):
    before, began = cpu_seconds(cluster), time.monotonic()
    streams = [cluster.stream(f"Hello {i}", max_tokens=tokens, min_tokens=tokens, temperature=0) for i in range(STREAMS)]
    for stream in streams:
        stream.finish()
    events = STREAMS * tokens
    return events / (time.monotonic() - began), (cpu_seconds(cluster) - before) / events * 1e6


def page_load(cluster, seconds):
    port, counts = cluster.frontends["frontend0"], []

    def ask():
        connection, count, end = http.client.HTTPConnection("127.0.0.1", port), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            connection.request("GET", "/version")
            connection.getresponse().read()
            count += 1
        counts.append(count)

    before = cpu_seconds(cluster)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds, (cpu_seconds(cluster) - before) / sum(counts) * 1e6


def costs(rounds):
    rows = {True: [], False: []}
    with Cluster(MIXED, fake=True, frontend={"twin": True}) as with_twin, \
            Cluster(MIXED, fake=True, frontend={"twin": False}) as without:
        for _ in range(rounds):
            for twin, cluster in ((True, with_twin), (False, without)):
                rows[twin].append((*stream_load(cluster, 150), *page_load(cluster, 2)))
    names = ("events a second", "us of the front end an event", "pages a second", "us of the front end a page")
    for i, name in enumerate(names):
        mine, other = (statistics.median(row[i] for row in rows[twin]) for twin in (True, False))
        print(f"{name}: {mine:.1f} with a twin, {other:.1f} without: ratio {mine / other:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    deaths(args.kills)
    costs(args.rounds)


if __name__ == "__main__":
    main()
