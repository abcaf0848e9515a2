#!/usr/bin/env python3
"""The runs behind the tutorial's figures: real processes with the demo model on CPUs. Three minutes.

    docs/tutorial/record.py [--build build/cpu] [timeline rows rates gaps]

Each part writes docs/tutorial/data/PART.json; draw.py makes the figures of them.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(__file__).resolve().parent / "data"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "e2e")]
import bench_loads  # noqa: E402
import dummy_model  # noqa: E402
from cluster import DEMO_MODEL, PAIR, Cluster  # noqa: E402
from loadgen import judge, loads, replay  # noqa: E402

PROMPT, REPLY = 1000, 24


def cluster(build, workers, folder, threads=1, **scheduler):
    """Each worker's step log lies in `folder`. Every token is text (dummy_model.py)."""
    model = dummy_model.write(str(DEMO_MODEL / "config.json"), folder / "model", weights=DEMO_MODEL)
    logs = {name: {"step_log": str(folder / f"{name}.steps")} for name, _ in workers}
    return Cluster(workers=workers, model=model, build=build / "bin", per_worker=logs,
                   worker={"device": "cpu", "threads": threads, "pool_mib": 256},
                   scheduler={"token_budget": 512, "prompt_chunk": 128, **scheduler})


def send(build, running, load, seed, seconds=10, log=None):
    trace = loads.requests(load, seed, seconds)
    return replay.run(build / "bin" / "baton-bench-client", "127.0.0.1", running.frontends["frontend0"], trace,
                      seed=seed, log=log)


def timeline(build, folder):
    """One request with a prompt of 1,000 tokens through a pair whose decode worker has three other streams."""
    rng = random.Random(1)
    events = folder / "events"
    with cluster(build, PAIR, folder, event_log=str(events)) as running:
        others = [running.stream(f"Tell me about {word}.", max_tokens=4000, ignore_eos=True, seed=i)
                  for i, word in enumerate(("Baton", "GPUs", "queues"))]
        for stream in others:
            stream.wait_pieces(30)
        sent = time.monotonic_ns()
        stream = running.stream([rng.randrange(10, 4000) for _ in range(PROMPT)], max_tokens=REPLY,
                                ignore_eos=True, temperature=0)
        stream.wait_pieces(2)
        shown = {what: running.ctl(f"show {what}") for what in ("workers", "requests", "kv")}
        stream.finish()
        for other in others:
            other.leave()
        trace = [json.loads(line) for line in events.read_text().splitlines()]
    first, last = sent, int(stream.arrivals[-1] * 1e9)
    me = next(e["rows"][0]["request"] for e in trace if e["event"] == "plan" and e["worker"] == "prefill0" and
              e["t"] > sent and e["rows"])

    def ms(ns):
        return round((ns - first) / 1e6, 3)

    steps = {}
    for name in ("prefill0", "decode0"):
        rows = [line.split() for line in (folder / f"{name}.steps").read_text().splitlines()]
        steps[name] = [[ms(int(end) - float(run) * 1e3), ms(int(end)), int(n), int(tokens)]
                       for end, n, tokens, _, run in rows if first <= int(end) <= last]
    pulls = {e["pull"]: [ms(e["t"]), None, e["blocks"]] for e in trace if e["event"] == "pull" and
             e["request"] == me}
    for e in trace:
        if e["event"] == "pull_done" and e["pull"] in pulls:
            pulls[e["pull"]][1] = ms(e["t"])
    mine = [e for e in trace if e.get("request") == me or any(
        row["request"] == me for row in e.get("rows", []) + e.get("add", []))]
    return {"prompt": PROMPT, "chunk": 128, "steps": steps, "pulls": list(pulls.values()),
            "client": [ms(int(at * 1e9)) for at in stream.arrivals],
            "events": [{**{k: v for k, v in e.items() if k not in ("n", "t")}, "ms": ms(e["t"])} for e in mine],
            "shown": shown}


def rows(build, folder):
    """How long a step of n decoding streams takes, one mixed worker."""
    medians = []
    with cluster(build, [("mixed0", "mixed")], folder) as running:
        logs = bench_loads.StepLogs(folder, ["mixed0"])
        for n in (1, 2, 4, 8, 16, 32, 64):
            logs.news()
            send(build, running, f"{n}x64/100", seed=n)
            lines = [line.split() for line in logs.news()["mixed0"]]
            runs = [float(run) for _, count, tokens, _, run in lines if int(count) == int(tokens) == n]
            medians.append({"rows": n, "steps": len(runs), "step_ms": statistics.median(runs) / 1e3})
    return medians


def rates(build, folder):
    """Open loop against one mixed worker: the same requests at rising rates."""
    found = []
    with cluster(build, [("mixed0", "mixed")], folder) as running:
        for i, rate in enumerate((1, 2, 4, 6, 8, 10, 12, 14)):
            report = send(build, running, f"300/64@{rate}", seed=i)
            found.append({"rate": rate, **{k: report[k] for k in (
                "requests", "errors", "ttft_ms", "itl_ms", "slo_i", "slo_ii", "goodput_per_s")}})
    return found


def gaps(build, folder):
    """The gaps between the tokens of eight running streams while a prompt of 800 tokens arrives every second:
    a pair with one thread each, and a mixed worker with two that cuts prompts into chunks, or does not."""
    trace = [{"timestamp": 0, "input_length": 64, "output_length": 1500} for _ in range(8)]
    trace += [{"timestamp": 1000 * i, "input_length": 800, "output_length": 2} for i in range(1, 11)]
    points = [p / 1000 for p in (*range(0, 950, 25), *range(950, 1000))]
    found = []
    for label, setup, chunk in (("1 prefill + 1 decode", "pair", 128), ("1 mixed, chunks of 128", "mixed", 128),
                                ("1 mixed, whole prompts", "mixed", 1024)):
        inside = folder / f"{setup}-{chunk}"
        inside.mkdir()
        log = inside / "log"
        with cluster(build, bench_loads.workers(setup), inside, threads=1 if setup == "pair" else 2,
                     prompt_chunk=chunk, token_budget=max(512, chunk + 8)) as running:
            replay.run(build / "bin" / "baton-bench-client", "127.0.0.1", running.frontends["frontend0"], trace,
                       seed=3, log=log)
        records = judge.read_log(log)
        own = [judge.figures(r) for r in records]
        ordered = sorted(gap for r, f in zip(records, own) if r["input"] == 64 for gap in f["gaps"])
        first = sorted(f["ttft"] for r, f in zip(records, own) if r["input"] == 800)
        found.append({"label": label, "gaps": len(ordered), "ttft_p50_ms": statistics.median(first),
                      "quantiles": [[p, round(judge.quantiles.quantile(ordered, p), 3)] for p in points]})
    return found


def main():
    parts = {f.__name__: f for f in (timeline, rows, rates, gaps)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "cpu")
    parser.add_argument("parts", nargs="*", choices=[[], *parts], default=list(parts))
    args = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    for name in args.parts or parts:
        with tempfile.TemporaryDirectory(prefix="baton-tutorial-") as folder:
            found = parts[name](args.build.resolve(), pathlib.Path(folder))
        (DATA / f"{name}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
        print(name, "recorded", flush=True)


if __name__ == "__main__":
    main()
