#!/usr/bin/env python3
"""Figures of everything but the model: a pair with the fake model is started, loaded and measured.

    tools/bench_pair.py [--build build/cpu] [--rounds 3] [--json FILE]

What the control path takes depends on the machine and on what else runs there, so each of its times comes with a ratio:
to the round trip of bare ZeroMQ between two processes (baton-bench-hops), measured before and after it, over the
same kind of socket. A round trip is two hops, as is the way from the worker's sample to the front end (worker,
scheduler, front end), and a hand-off's order and answer. One round measures each once; the medians of all rounds
are told.

Beside it: tokens a second (256 streams, one SSE event a token, the client on the same cores), and memory at rest with
the demo model.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import cluster as clusters  # noqa: E402  the tests' cluster of real processes serves here too


def client(build, port, *arguments):
    command = [build / "bin" / "baton-bench-client", "--port", port, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the load client failed:\n{done.stdout}{done.stderr}")


def pair(build, **options):
    return clusters.Cluster(build=build / "bin", **options)


class Counts:
    """How much is measured."""

    def __init__(self, quick):
        self.round_trips, self.apart = (300, 30) if quick else (3000, 300)
        self.plan_steps = 400 if quick else 4000
        self.tokens, self.requests = (100, 40) if quick else (1000, 300)
        self.streams, self.all_streams = (32, 96) if quick else (256, 1280)


def round_trip(build, folder, count, pause_ms):
    """Median in us of bare ZeroMQ's."""
    out = folder / "hops.json"
    subprocess.run(list(map(str, [build / "bin" / "baton-bench-hops", "--count", count, "--pause-ms", pause_ms,
                                  "--json", out])), check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())["median_us"]


def beside(build, folder, counts, measure, pause_ms=0):
    """What `measure` gives, {name: (median, p99)}, each with the ratio of its median to round trips around it."""
    count = counts.apart if pause_ms else counts.round_trips
    before = round_trip(build, folder, count, pause_ms)
    measured = measure()
    bare = (before + round_trip(build, folder, count, pause_ms)) / 2
    return {name: {"us": median, "p99_us": p99, "round_trip_us": bare, "ratio": median / bare}
            for name, (median, p99) in measured.items()}


def middle(values):
    return statistics.median(values), statistics.quantiles(values, n=100)[98]


def plan(build, counts):
    done = subprocess.run([build / "bin" / "baton-bench-plan", str(counts.plan_steps)], capture_output=True, text=True,
                          check=True)
    found = re.findall(r"(\d+) waiting: median +([\d.]+) us, p99 +([\d.]+) us", done.stdout)
    return {"plan" if waiting == "0" else "plan_queue": (float(median), float(p99))
            for waiting, median, p99 in found}


def throughput(build, folder, counts):
    out = folder / "throughput.json"
    with pair(build, fake=True, worker={"pool_mib": 256}) as cluster:
        port = cluster.frontends["frontend0"]
        client(build, port, "--streams", counts.streams, "--requests", counts.all_streams, "--warmup", counts.streams,
               "--tokens", 400, "--json", out)
    return json.loads(out.read_text())["tokens_per_s"]


def sample_to_socket(build, folder, counts, step_delay_ms):
    """The i-th sample of the only stream belongs to the i-th event."""
    sampled = folder / f"sampled-{step_delay_ms}"
    arrived = folder / f"arrived-{step_delay_ms}"
    sampled.unlink(missing_ok=True)
    with pair(build, fake=True, worker={"step_delay_ms": step_delay_ms},
              per_worker={"decode0": {"sample_log": str(sampled)}}) as cluster:
        port = cluster.frontends["frontend0"]
        client(build, port, "--streams", 1, "--requests", 1, "--tokens", counts.tokens, "--arrivals", arrived)
    samples = [int(line) for line in sampled.read_text().split()]
    # The first token comes from the prefill worker. One step more may be in flight at the end.
    arrivals = [int(line) for line in arrived.read_text().split()][1:]
    return middle([(arrival - sample) / 1000 for sample, arrival in zip(samples, arrivals)])


def handoff(build, folder, counts):
    """Pull sent -> pull answered, as the scheduler sees it."""
    trace = folder / "trace.jsonl"
    trace.unlink(missing_ok=True)
    with pair(build, scheduler={"event_log": str(trace)}) as cluster:
        port = cluster.frontends["frontend0"]
        client(build, port, "--streams", 1, "--requests", counts.requests, "--warmup", counts.requests // 10,
               "--tokens", 4)
    sent, waits = {}, []
    for line in trace.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "pull":
            sent[event["pull"]] = event["t"]
        elif event["event"] == "pull_done":
            waits.append((event["t"] - sent[event["pull"]]) / 1000)
    return middle(waits)


def control_path(build, folder, counts):
    """One round."""
    figures = beside(build, folder, counts, lambda: plan(build, counts))
    for name, pause_ms in (("sample_to_socket", 0), ("sample_to_socket_idle", 5)):
        figures |= beside(build, folder, counts,
                          lambda name=name, pause_ms=pause_ms: {name: sample_to_socket(build, folder, counts, pause_ms)},
                          pause_ms)
    return figures | beside(build, folder, counts, lambda: {"handoff": handoff(build, folder, counts)})


def over_rounds(rounds):
    """Medians; of the ratios the range, too."""
    return {name: {**{key: statistics.median(r[name][key] for r in rounds) for key in rounds[0][name]},
                   "ratios": sorted(r[name]["ratio"] for r in rounds)} for name in rounds[0]}


def memory(build):
    with pair(build) as cluster:
        cluster.stream("hello", max_tokens=5).finish()
        kib = {}
        for name in ("frontend0", "scheduler"):
            rollup = pathlib.Path(f"/proc/{cluster.processes[name].pid}/smaps_rollup").read_text()
            kib[name] = next(int(line.split()[1]) for line in rollup.splitlines()
                             if line.startswith("Pss:"))
    return kib["frontend0"] / 1024, kib["scheduler"] / 1024


CONTROL_PATH = [
    ("plan, 256 sequences decode", "plan", 15),
    ("  the same, 10,000 requests wait", "plan_queue", 30),
    ("worker's sample to client's socket", "sample_to_socket", 200),
    ("  the same, 5 ms between steps", "sample_to_socket_idle", None),
    ("hand-off of a small prompt", "handoff", 300),
]


def show(figures, rounds):
    print(f"control path, medians of {rounds} round{'s' if rounds > 1 else ''}:\n{'':36} round trips of bare ZeroMQ"
          f"{'us':>12}{'p99':>9}{'goal':>7}{'round trip us':>15}")
    for label, key, goal in CONTROL_PATH:
        f = figures["control_path"][key]
        ratios = f"{f['ratio']:.2f} ({f['ratios'][0]:.2f}-{f['ratios'][-1]:.2f})"
        print(f"{label:36} {ratios:26}{f['us']:12.1f}{f['p99_us']:9.1f}{goal or '-':>7}{f['round_trip_us']:15.1f}")
    for label, key, goal in (("tokens a second", "tokens_per_s", "at least 30,000 with 256 streams"),
                             ("front end at rest, PSS in MiB", "frontend_pss_mib", "at most 30"),
                             ("scheduler at rest, PSS in MiB", "scheduler_pss_mib", "at most 30")):
        print(f"{label:36} {figures[key]:12,.1f}   {goal}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "cpu")
    parser.add_argument("--rounds", type=int, choices=range(1, 21), metavar="1..20", default=3,
                        help="of the control path's figures (3)")
    parser.add_argument("--quick", action="store_true", help="few requests: shows that all of it runs, no more")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    counts = Counts(arguments.quick)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rounds = [control_path(build, folder, counts) for _ in range(arguments.rounds)]
        figures = {"control_path": over_rounds(rounds), "tokens_per_s": throughput(build, folder, counts)}
        figures["frontend_pss_mib"], figures["scheduler_pss_mib"] = memory(build)
    show(figures, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
