#!/usr/bin/env python3
"""Random kills and freezes under a mixed load, for as long as one likes.

    BATON_BUILD_DIR=build/cpu python3 tests/e2e/soak_faults.py --minutes 10 --seed 1

One cluster after the other, each of another shape: prefill, decode and mixed workers, one or two front ends, with and
without a host part, with and without a supervisor. Sampled, greedy and JSON-schema streams are open all the time while the memory process, the scheduler,
front ends, their twins and the workers, up to three at once, are killed and started again in any order, or frozen for up to
three seconds, and so is the supervisor; now and then a worker is given another role, or processes are replaced as an upgrade
does it, one or all in order. (A front end and its twin are never killed together: that costs
its streams, as the documents say.) Every stream must get on soon after all processes are ready, and end with the text of an
undisturbed run; at the end of each cluster every block is free and the audit says ok. What was killed how often, and the
longest gaps of the streams, are told at the end. The blows are those of the seed, their moments are not. On GPUs:
BATON_TEST_DEVICE=cuda.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import sys
import time

from cluster import MIXED, PAIR, Cluster, wait_until
import requests_mix
from supervised import Supervised

SHAPES = [
    PAIR,
    [("mixed0", "mixed"), ("mixed1", "mixed")],
    [("prefill0", "prefill"), ("decode0", "decode"), ("decode1", "decode")],
    [("prefill0", "prefill"), ("prefill1", "prefill"), ("decode0", "decode")],
]
CLUSTER_SECONDS = 90
# A request that six workers die under ends, unless it decodes so many tokens in peace (docs/reliability.md): nobody
# outside can tell it from one that kills them. A blow takes up to three, so each second one on workers is followed by peace.
PEACE_TOKENS = 70
# How often each kind of process is struck, beside the others.
WEIGHTS = {"frontend": 4, "decode": 4, "prefill": 3, "mixed": 3, "scheduler": 3, "twin": 2, "memory": 1.5, "supervisor": 2}


def schema(i):
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 40}
    fields = {f"field{i}": {"type": "string", "maxLength": 40}, "numbers": numbers}
    return {"type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object", "properties": fields,
                                                    "required": list(fields), "additionalProperties": False}}}


def make_requests(dice):
    """The mix with longer prompts; one in four, sampled, writes JSON."""
    requests = requests_mix.mix(48, tokens=300)
    for i, request in enumerate(requests):
        request["prompt"] *= dice.randint(1, 12)
        if i % 4 == 1:
            request["response_format"] = schema(i)
            del request["min_tokens"]
    return requests


class Load:
    """Keeps so many streams open; compares those that ended."""

    def __init__(self, cluster, requests, truth, count):
        self.cluster, self.requests, self.truth, self.count = cluster, requests, truth, count
        self.open = []  # (number of the request, stream)
        self.next = 0
        self.ended = 0
        self.gaps = []  # the longest of each stream that ended
        self.wrong = []

    def top_up(self):
        self.settle([s for s in self.open if s[1].done.is_set()])
        while len(self.open) < self.count:
            number = self.next % len(self.requests)
            self.next += 1
            names = list(self.cluster.frontends)
            self.open.append((number, self.cluster.stream(frontend=names[self.next % len(names)],
                                                          **self.requests[number])))

    def settle(self, streams):
        for number, stream in streams:
            self.open.remove((number, stream))
            self.ended += 1
            times = stream.arrivals
            if len(times) > 1:
                self.gaps.append(max(b - a for a, b in zip(times, times[1:])))
            try:
                if stream.finish(120) != self.truth[number]:
                    self.wrong.append(f"request {number}: another text than undisturbed")
            except AssertionError as failure:
                self.wrong.append(f"request {number}: {failure}")

    def await_tokens_each(self, count, patience):
        """The seconds until every open stream has got on; None if one does not, and why is printed."""
        begin = time.monotonic()
        marks = [(stream, stream.pieces + count - 1) for _, stream in self.open]
        try:
            wait_until(lambda: all(s.pieces > mark or s.done.is_set() for s, mark in marks), patience, "all get on")
        except AssertionError:
            late = [s.body["prompt"][:24] for s, mark in marks if s.pieces <= mark and not s.done.is_set()]
            print(f"stalled for {patience} s: {len(late)} of {len(marks)} streams, {late[:4]}")
            for what in ("workers", "requests"):
                print(what, json.dumps(self.cluster.show(what))[:4000])
            return None
        return time.monotonic() - begin


def kind_of(name):
    return "twin" if name.startswith("twin") else name.rstrip("0123456789")


def pid_of(cluster, name):
    if name.startswith("twin"):
        return cluster.twin_pid(name[4:])
    if isinstance(cluster, Supervised):
        return cluster.supervisor.pid if name == "supervisor" else cluster.pid(name)
    return cluster.processes[name].pid


def kill_twin(cluster, frontend):
    """Its front end makes another one, within a second or so."""
    before = cluster.twin_pid(frontend)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: cluster.twin_pid(frontend) != before, 10, f"another twin of {frontend}")


def switch_role(cluster, dice):
    """Somebody must be left who prefills, and somebody who decodes: mixed ones do both."""
    name = dice.choice(cluster.workers)
    role = "mixed" if dice.random() < 0.5 else name.rstrip("0123456789")
    cluster.ctl(f"set worker {name} role {role}")
    return f"{name} is {role} now"


def replace(cluster, dice):
    """What an upgrade does: one process by the next, or all in order."""
    what = dice.choice([["all", "--rolling"], *([name] for name in ["memory", "scheduler", "frontend0", *cluster.workers])])
    code, _, complaint = cluster.restart_words(*what)
    assert code == 0, f"restart {' '.join(what)}: {complaint}"
    return f"restarted {what[0]}"


def choose_victims(cluster, dice, names):
    """Up to three of them, never a front end together with its twin."""
    victims = []
    for _ in range(dice.choice([1, 2, 2, 3])):
        left = [name for name in names if name not in victims]
        victims += dice.choices(left, [WEIGHTS[kind_of(name)] for name in left])
    if any(name in cluster.frontends for name in victims):
        victims = [name for name in victims if not name.startswith("twin")]
    return victims


def freeze(cluster, dice, victims):
    pids = [pid_of(cluster, name) for name in victims]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(dice.choice([0.2, 1.0, 3.0]))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill(cluster, dice, victims):
    for name in victims:
        if name.startswith("twin"):
            kill_twin(cluster, name[4:])
    others = [name for name in victims if not name.startswith("twin")]
    for name in others:
        cluster.kill(name)
    dice.shuffle(others)
    for name in others:
        cluster.start(name)
        time.sleep(dice.choice([0, 0, dice.random() * 0.4]))


def blow(cluster, dice, names, tally):
    luck = dice.random()
    if luck < 0.03:
        tally["role switches"] += 1
        return switch_role(cluster, dice)
    if luck < 0.06 and isinstance(cluster, Supervised):
        what = replace(cluster, dice)
        tally["rolling restarts" if what == "restarted all" else "restarts of one process"] += 1
        return what
    victims = choose_victims(cluster, dice, names)
    frozen = dice.random() < 0.25
    for name in victims:
        tally[("freezes of " if frozen else "kills of ") + kind_of(name)] += 1
    (freeze if frozen else kill)(cluster, dice, victims)
    cluster.wait_ready()
    return ("frozen " if frozen else "killed ") + ", ".join(victims)


def books(cluster):
    """Why the blocks of a pool do not add up; an empty text if they do."""
    for pool in cluster.show("kv"):
        if pool["owned"] + pool["cached"] + pool["free"] + pool["fenced"] != pool["total"]:
            return f"blocks do not add up: {pool}"
    return ""


def soak_one(dice, requests, truth, patience, tally, gaps):
    """One cluster; (blows, streams that ended, slowest, faults)."""
    workers = dice.choice(SHAPES)
    worker = {"pool_mib": 384, "step_delay_ms": dice.choice([5, 15, 30])}
    if dice.random() < 0.5:
        worker["host_pool_blocks"] = 256
    scheduler = {"prompt_chunk": dice.choice([64, 256])}
    blows, slowest, faults = 0, 0.0, []
    supervised = dice.random() < 0.4
    kind = Supervised if supervised else Cluster
    frontends = ("frontend0",) if supervised or dice.random() < 0.5 else ("frontend0", "frontend1")
    with kind(workers=workers, worker=worker, scheduler=scheduler, frontends=frontends) as cluster:
        load = Load(cluster, requests, truth, dice.choice([6, 16, 32]))
        names = ["memory", "scheduler", *cluster.workers, *frontends, *(f"twin{name}" for name in frontends),
                 *(["supervisor"] if supervised else [])]
        strikes = 0  # on workers since the last peace
        end = time.monotonic() + CLUSTER_SECONDS
        while time.monotonic() < end and not faults:
            load.top_up()
            try:
                what = blow(cluster, dice, names, tally)
            except AssertionError as failure:
                faults.append(f"{workers} {worker} {scheduler}: {failure}")
                break
            blows += 1
            strikes += any(worker in what for worker in cluster.workers)
            tokens = PEACE_TOKENS if strikes == 2 else 1
            strikes %= 2
            gap = load.await_tokens_each(tokens, patience + tokens * 0.1)
            if gap is None:
                faults.append(f"{workers} {worker} {scheduler}: stalled after {what}")
            faults += filter(None, [books(cluster)])
            if tokens == 1 or gap is None:
                slowest = max(slowest, gap or patience)
            time.sleep(dice.random() * 0.3)
        load.settle(list(load.open))
        faults += load.wrong
        gaps += load.gaps
        try:
            cluster.assert_at_rest(20)
        except AssertionError as failure:
            faults.append(f"{workers} {worker}: {failure}")
        if faults:
            cluster.print_logs()
    return blows, load.ended, slowest, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=10,
                        help="seconds after which a stream that does not get on counts as stalled")
    parser.add_argument("--weight", action="append", default=[], metavar="KIND=WEIGHT",
                        help=f"how often a kind of process is struck beside the others, instead of "
                             f"{', '.join(f'{kind}={weight}' for kind, weight in WEIGHTS.items())}")
    args = parser.parse_args()
    for kind, _, weight in (given.partition("=") for given in args.weight):
        if kind not in WEIGHTS or not weight.replace(".", "", 1).isdigit():
            parser.error(f"--weight {kind}={weight}: say one of {', '.join(WEIGHTS)}, and a number")
        WEIGHTS[kind] = float(weight)
    dice = random.Random(args.seed)
    requests = make_requests(dice)
    with Cluster(workers=MIXED, worker={"pool_mib": 384}) as quiet:
        truth = requests_mix.run(quiet, requests)
    end = time.monotonic() + 60 * args.minutes
    blows, ended, slowest, faults = 0, 0, 0.0, []
    tally, gaps = collections.Counter(), []
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < end and not faults:
            more, streams, gap, faults = soak_one(dice, requests, truth, args.patience, tally, gaps)
            blows, ended, slowest = blows + more, ended + streams, max(slowest, gap)
            print(f"{blows} blows, {ended} streams ended as undisturbed, a token each within {slowest:.1f} s",
                  flush=True)
    for what, times in sorted(tally.items()):
        print(f"{times:6} {what}")
    if gaps:
        gaps.sort()
        p50, p99 = gaps[len(gaps) // 2], gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)]
        print(f"longest gap of each of {len(gaps)} streams: p50 {p50:.2f} s, p99 {p99:.2f} s, max {gaps[-1]:.2f} s")
    for fault in faults:
        print("FAULT", fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
