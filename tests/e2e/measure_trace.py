"""What a trace costs: processor time of each process, and steps, while N streams run, with a trace and without one, in
turns. With --fake the model takes no time, so that only what surrounds it is seen. Processor time a token is the figure
that other load moves least.

    python3 tests/e2e/measure_trace.py --streams 8 --rounds 9 --seconds 4 [--fake | --model FOLDER]
"""

import argparse
import pathlib
import statistics
import subprocess
import time

from cluster import DEMO_MODEL, PAIR, Cluster
from test_trace import Load


def seconds_of(process):
    """Processor time that it has had, all threads together."""
    return sum(int(task.read_text().split()[0]) for task in
               pathlib.Path(f"/proc/{process.pid}/task").glob("*/schedstat")) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--model", type=pathlib.Path, default=DEMO_MODEL, help="a folder; else the demo model")
    parser.add_argument("--pool-mib", type=int, default=64, help="of each worker's pool")
    options = parser.parse_args()
    with Cluster(workers=PAIR, fake=options.fake, model=options.model,
                 worker={"pool_mib": options.pool_mib}) as cluster:
        load = Load(cluster, width=options.streams, tokens=options.tokens)
        time.sleep(2)
        file = cluster.folder / "trace.json"
        kinds = {"off": [], "on": []}
        for turn in range(2 * options.rounds):
            kind = ("off", "on")[(turn + turn // 2) % 2]  # off on on off off on ...
            if kind == "on":
                tracing = subprocess.Popen(
                    [cluster.bin / "baton-ctl", "--socket", cluster.folder / "run" / "admin.sock", "trace",
                     "--seconds", str(options.seconds + 1.5), "-o", file],
                    stderr=subprocess.PIPE, text=True)
                time.sleep(1.2)  # by then everybody has begun
            used = {name: seconds_of(process) for name, process in cluster.processes.items()}
            begun, tokens = time.monotonic(), cluster.show("info")["counters"]["tokens"]
            time.sleep(options.seconds)
            took = time.monotonic() - begun
            tokens = cluster.show("info")["counters"]["tokens"] - tokens
            used = {name: seconds_of(process) - used[name] for name, process in cluster.processes.items()}
            kinds[kind].append((tokens / took, 1e6 * sum(used.values()) / max(1, tokens), tokens))
            if kind == "on":
                told = tracing.communicate()[1]
        load.stop()
        print(told.strip().splitlines()[0])
        for kind, rows in kinds.items():
            rate, cpu, _ = (statistics.median(column) for column in zip(*rows))
            print(f"{kind:>3}: {rate:.0f} tokens/s, {cpu:.1f} us of processors a token (medians of {len(rows)})")
        for what, column in (("processor time a token", 1), ("tokens/s", 0)):
            ratios = [on[column] / off[column] for on, off in zip(kinds["on"], kinds["off"])]
            print(f"{what}, with a trace over without: {statistics.median(ratios):.4f} "
                  f"(median of {len(ratios)}; from {min(ratios):.4f} to {max(ratios):.4f})")


if __name__ == "__main__":
    main()
