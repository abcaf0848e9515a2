#!/usr/bin/env python3
"""Figures of everything but the model: a pair with the fake model is started, loaded and measured.

    tools/bench_pair.py [--build build/cpu] [--json FILE]

tokens a second (256 streams, one SSE event a token, the client on the same cores), the time from the
worker's sample to the client's socket (one stream; steps back to back, and 5 ms apart), the hand-off of a small prompt
(pull sent -> pull answered, as the scheduler sees it), and memory at rest with the demo model.
"""

import argparse
import json
import pathlib
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


def throughput(build, folder):
    out = folder / "throughput.json"
    with pair(build, fake=True, worker={"pool_mib": 256}) as cluster:
        port = cluster.frontends["frontend0"]
        client(build, port, "--streams", 256, "--requests", 1280, "--warmup", 256, "--tokens", 400,
               "--json", out)
    return json.loads(out.read_text())["tokens_per_s"]


def sample_to_socket(build, folder, step_delay_ms):
    """Median and p99 in us; the i-th sample of the only stream belongs to the i-th event."""
    sampled = folder / f"sampled-{step_delay_ms}"
    arrived = folder / f"arrived-{step_delay_ms}"
    with pair(build, fake=True, worker={"step_delay_ms": step_delay_ms},
              per_worker={"decode0": {"sample_log": str(sampled)}}) as cluster:
        port = cluster.frontends["frontend0"]
        client(build, port, "--streams", 1, "--requests", 1, "--tokens", 1000,
               "--arrivals", arrived)
    samples = [int(line) for line in sampled.read_text().split()]
    # The first token comes from the prefill worker. One step more may be in flight at the end.
    arrivals = [int(line) for line in arrived.read_text().split()][1:]
    waits = [(arrival - sample) / 1000 for sample, arrival in zip(samples, arrivals)]
    return statistics.median(waits), statistics.quantiles(waits, n=100)[98]


def handoff(build, folder, fake):
    trace = folder / f"trace-{fake}.jsonl"
    with pair(build, fake=fake, scheduler={"event_log": str(trace)}) as cluster:
        port = cluster.frontends["frontend0"]
        client(build, port, "--streams", 1, "--requests", 300, "--warmup", 20, "--tokens", 4)
    sent, waits = {}, []
    for line in trace.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "pull":
            sent[event["transfer"]] = event["t"]
        elif event["event"] == "pull_done":
            waits.append((event["t"] - sent[event["transfer"]]) / 1000)
    return statistics.median(waits), statistics.quantiles(waits, n=100)[98]


def memory(build):
    with pair(build) as cluster:
        cluster.stream("hello", max_tokens=5).finish()
        kib = {}
        for name in ("frontend0", "scheduler"):
            rollup = pathlib.Path(f"/proc/{cluster.processes[name].pid}/smaps_rollup").read_text()
            kib[name] = next(int(line.split()[1]) for line in rollup.splitlines()
                             if line.startswith("Pss:"))
    return kib["frontend0"] / 1024, kib["scheduler"] / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "cpu")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        figures["tokens_per_s"] = throughput(build, folder)
        figures["sample_to_socket_us"], figures["sample_to_socket_p99_us"] = \
            sample_to_socket(build, folder, 0)
        figures["sample_to_socket_idle_us"], figures["sample_to_socket_idle_p99_us"] = \
            sample_to_socket(build, folder, 5)
        figures["handoff_us"], figures["handoff_p99_us"] = handoff(build, folder, fake=False)
        figures["frontend_pss_mib"], figures["scheduler_pss_mib"] = memory(build)
    rows = [
        ("tokens a second, 256 streams", "tokens_per_s", "at least 30,000"),
        ("sample to socket, one stream, median us", "sample_to_socket_us", "at most 200"),
        ("  the same, p99", "sample_to_socket_p99_us", ""),
        ("  the same, 5 ms between steps, median", "sample_to_socket_idle_us", ""),
        ("  the same, 5 ms between steps, p99", "sample_to_socket_idle_p99_us", ""),
        ("hand-off of a small prompt, median us", "handoff_us", "at most 300"),
        ("  the same, p99", "handoff_p99_us", ""),
        ("front end at rest, PSS in MiB", "frontend_pss_mib", "at most 30"),
        ("scheduler at rest, PSS in MiB", "scheduler_pss_mib", "at most 30"),
    ]
    for label, key, goal in rows:
        print(f"{label:42} {figures[key]:12,.1f}   {goal}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
