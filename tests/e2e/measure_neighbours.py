#!/usr/bin/env python3
"""Prints what a small request waits for beside large bodies and beside costly grammars, in milliseconds and
as a ratio to being alone. Not a test.

    tests/e2e/measure_neighbours.py words|ids|fields|grammars [FOLDER_OF_ANOTHER_BUILDS_PROGRAMS]
"""

import contextlib
import http.client
import json
import statistics
import sys
import threading
import time

from cluster import Cluster

BODIES = {
    "words": {"prompt": "Hello world " * 250_000},
    "ids": {"prompt": [5] * 600_000},
    "fields": {"prompt": "x", "metadata": [{"a": i} for i in range(250_000)]},
}
CLIENTS, SMALL_REQUESTS, COSTLY = 8, 40, "ghijkl"


def ask(port, body, source=None):
    """Seconds, and the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300,
                                            source_address=(source, 0) if source else None)
    with contextlib.closing(connection):
        begin = time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return time.monotonic() - begin, response.status


def small(port, **fields):
    seconds, status = ask(port, json.dumps({"prompt": "Hello", "max_tokens": 3, "ignore_eos": not fields, **fields}))
    assert status == 200, status
    return 1000 * seconds


def beside_bodies(port, kind):
    body = json.dumps({**BODIES[kind], "max_tokens": 1})
    small(port)
    alone = [small(port) for _ in range(SMALL_REQUESTS)]
    done = threading.Event()

    def large():
        while not done.is_set():
            with contextlib.suppress(OSError):
                ask(port, body)
    threads = [threading.Thread(target=large) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    beside = [small(port) for _ in range(SMALL_REQUESTS)]
    done.set()
    for thread in threads:
        thread.join()
    return alone, beside, f"{CLIENTS} clients with bodies of {len(body) / 1e6:.1f} MB ({kind})"


def beside_grammars(port):
    alone = [small(port, guided_choice=[f"a{i}", "b"]) for i in range(SMALL_REQUESTS)]
    costly = [f"((a|aa|aaa|{c})*(b|bb)?){{1,900}}(c|d|cd)*(x{{1,900}}){{1,90}}" for c in COSTLY]
    threads = [threading.Thread(target=ask, args=(port, json.dumps({"prompt": "a", "guided_regex": regex}), "127.0.0.2"))
               for regex in costly]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    beside = [small(port, guided_choice=["c", "d"])]
    for thread in threads:
        thread.join()
    return alone, beside, f"{len(costly)} expressions of {len(costly[0])} bytes that take 10 s each"


def main():
    kind = sys.argv[1]
    with Cluster(fake=kind != "grammars", build=(sys.argv[2:3] or [None])[0]) as cluster:
        port = next(iter(cluster.frontends.values()))
        alone, beside, what = beside_grammars(port) if kind == "grammars" else beside_bodies(port, kind)
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"alone {statistics.median(alone):.1f} ms, beside {what}: median {statistics.median(beside):.1f}, "
          f"longest {max(beside):.1f} ms, ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
