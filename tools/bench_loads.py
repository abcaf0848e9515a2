"""A table of set-ups against open-loop loads: bench_gpu.py --loads. Servers start once for each set-up."""

import contextlib
import json
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from loadgen import judge, loads, replay  # noqa: E402

STANDARD = ["2048/256@8", "2048/256@16", "2048/256@20", "mix@8", "mix@16"]
WARM_UP = "4x1024/32"
ROLES = ("prefill", "decode", "mixed")
START_S = 25  # what the estimate takes for start, warm-up and stop of a set-up
_COUNTERS = ("handoffs", "local_prefills", "remote_prefills", "preemptions", "blocks_out", "blocks_in",
             "prefill_tokens", "cached_tokens", "errors")


def workers(setup):
    """("pair", ...) -> [(name, role)]. "3p1d" is three prefill workers and one decode worker."""
    named = {"pair": "1p1d", "mixed": "1m", "mixed2": "2m"}
    counts, number = {}, ""
    for letter in named.get(setup, setup):
        if letter.isdigit():
            number += letter
        elif letter in "pdm" and number and int(number) > 0 and letter not in counts:
            counts[letter], number = int(number), ""
        else:
            raise ValueError(f"{setup!r} is no set-up: pair, mixed, mixed2, or counts such as 1p3d or 4m")
    if number or not counts or sum(counts.values()) > 16:
        raise ValueError(f"{setup!r} is no set-up: pair, mixed, mixed2, or counts such as 1p3d or 4m")
    roles = {"p": "prefill", "d": "decode", "m": "mixed"}
    return [(f"{roles[letter]}{i}", roles[letter]) for letter, n in counts.items() for i in range(n)]


TOP = ("log_level", "max_context", "awake_ms")


def settings(words):
    """["scheduler.prompt_chunk=512", "awake_ms=0"] -> {"scheduler": {"prompt_chunk": 512}, "top": {"awake_ms": 0}};
    values are JSON or plain text. The sections called by a role or a name are for the workers of that role or name."""
    sections = {name: {} for name in ("scheduler", "worker", "frontend", *ROLES)}
    known, sections["top"] = list(sections), {}  # keys that stand outside of sections
    for word in words:
        key, equals, value = word.partition("=")
        section, dot, name = key.rpartition(".")
        is_section = section in known or section.rstrip("0123456789") in ROLES
        if not (equals and name) or (not is_section if dot else name not in TOP):
            raise ValueError(f"{word!r} is not SECTION.KEY=VALUE; a section is one of {', '.join(known)}, or a worker "
                             f"as mixed0; keys without one are {', '.join(TOP)}")
        try:
            value = json.loads(value)
        except ValueError:
            pass
        sections.setdefault(section or "top", {})[name] = value
    return sections


def of_workers(names, sections):
    """What `sections` says of roles and of workers, for each worker."""
    return {name: {**sections[role], **sections.get(name, {})} for name, role in names}


def shown(load):
    """A load's name in tables: of a file only the last part."""
    return pathlib.Path(load).name if load.endswith(".jsonl") else load


class StepLogs:
    """Step logs of all workers, read from where the last reading ended."""

    def __init__(self, folder, names):
        self.files = {name: folder / f"{name}.steps" for name in names}
        self._read = dict.fromkeys(names, 0)

    def news(self):
        lines = {}
        for name, file in self.files.items():
            text = file.read_text() if file.exists() else ""
            lines[name] = text[self._read[name]:].splitlines()
            self._read[name] = len(text)
        return lines


class Table:
    def __init__(self, cluster_class, options):
        self.cluster_class = cluster_class
        self.o = options
        self.results = []
        self.began = time.monotonic()

    def estimate_s(self):
        seconds = 0.0
        for load in self.o.loads:
            trace = loads.requests(load, self.o.seed, self.o.seconds)
            seconds += loads.arrival_seconds(trace) + min(self.o.drain_s, 10)
        return len(self.o.setups) * (START_S + seconds)

    def left_s(self):
        return self.o.limit_s - (time.monotonic() - self.began)

    def tell(self, line):
        print(json.dumps(line), flush=True)
        if self.o.out:
            with open(self.o.out, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")

    def run(self):
        print(f"about {self.estimate_s():.0f} s; ends after {self.o.limit_s:.0f} s at the latest", flush=True)
        for setup in self.o.setups:
            if self.left_s() < START_S:
                print(f"{setup}: no time left", flush=True)
                continue
            try:
                self.run_setup(setup)
            except (AssertionError, OSError, RuntimeError) as error:
                self.tell({"setup": setup, "error": str(error)[:1000]})
        print(judge.table(self.results))
        for r in self.results:
            for worker, steps in r.get("steps", {}).items():
                if steps["steps"]:
                    print(f"{r['setup']} {r['load']} {worker}: {steps['steps']} steps of {steps['rows']:.0f} rows "
                          f"at most, {steps['run_p50_us'] / 1000:.2f} ms each (median), device idle between "
                          f"them {100 * steps['idle_share']:.2f} % of the time")
        print(f"took {time.monotonic() - self.began:.0f} s")

    def run_setup(self, setup):
        name, _, own = setup.partition(":")
        given = settings([*self.o.set, *filter(None, own.split(","))])
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder_name, contextlib.ExitStack() as stack:
            names = workers(name)
            logs = StepLogs(pathlib.Path(folder_name), [worker for worker, _ in names])
            each = of_workers(names, given)
            if self.o.step_log:
                for worker, file in logs.files.items():
                    each[worker]["step_log"] = str(file)
            cluster = stack.enter_context(self.cluster_class(
                workers=names, model=self.o.model, build=self.o.build / "bin", top=given["top"],
                scheduler={**self.o.scheduler, **given["scheduler"]},
                frontend={"max_streams": 65536, **given["frontend"]},
                worker={**self.o.worker, **given["worker"]}, per_worker=each))
            self.tell({"setup": setup, "start_s": round(time.monotonic() - began, 2)})
            self.client(cluster, loads.requests(WARM_UP, self.o.seed - 1, 1), self.o.seed - 1)
            for index, load in enumerate(self.o.loads):
                trace = loads.requests(load, self.o.seed + index, self.o.seconds)
                if self.left_s() < loads.arrival_seconds(trace) + 5:
                    print(f"{setup} {load}: no time left", flush=True)
                    continue
                self.run_load(cluster, setup, load, trace, index, logs)

    def run_load(self, cluster, setup, load, trace, index, logs):
        before, _ = cluster.show("info")["counters"], logs.news()
        log = None
        if self.o.logs:
            safe = "".join(c if c.isalnum() else "-" for c in f"{setup}-{shown(load)}")
            log = self.o.logs / f"{index}-{safe}.jsonl"
        report = self.client(cluster, trace, self.o.seed + index, log)
        after = cluster.show("info")["counters"]
        line = {"setup": setup, "load": shown(load), **report,
                "counters": {key: after[key] - before[key] for key in _COUNTERS}}
        if self.o.step_log:
            line["steps"] = {worker: judge.steps(lines) for worker, lines in logs.news().items()}
        self.results.append(line)
        self.tell(line)
        self.rest(cluster)

    def client(self, cluster, trace, seed, log=None):
        port = next(iter(cluster.frontends.values()))
        drain = max(5.0, min(self.o.drain_s, self.left_s() - loads.arrival_seconds(trace)))
        return replay.run(self.o.client, "127.0.0.1", port, trace, seed=seed, ids=self.o.ids, drain_s=drain,
                          log=log)

    def rest(self, cluster):
        """The next load begins on an idle server: what the client gave up is being cancelled."""
        end = time.monotonic() + 20
        while cluster.show("requests") and time.monotonic() < end:
            time.sleep(0.1)
