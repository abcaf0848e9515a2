"""`baton-ctl trace`: what a pair under a supervisor does, whoever is killed meanwhile, as one file of trace
events."""

import collections
import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time
import unittest

from cluster import MIXED, PATIENCE, Cluster, wait_until
from supervised import Supervised


class Tracing:
    """The program itself, beside whatever the test does."""

    def __init__(self, cluster, *words, seconds=3.0):
        self.file = cluster.folder / "trace.out.json"
        command = [cluster.bin / "baton-ctl", "--socket", cluster.folder / "run" / "admin.sock", "trace",
                   "--seconds", str(seconds), "-o", self.file, *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self):
        out, complaint = self.process.communicate(timeout=60 * PATIENCE)
        return self.process.returncode, out, complaint

    def events(self):
        return Events(json.loads(self.file.read_text()))


class Events:
    """A file of trace events, checked as whoever opens it would have to."""

    def __init__(self, file):
        self.file = file
        self.all = file["traceEvents"]
        self.processes = {event["pid"]: event["args"]["name"] for event in self.all
                          if event["ph"] == "M" and event["name"] == "process_name"}

    def process(self, event):
        """The name alone."""
        return self.processes[event["pid"]].split(" ")[0]

    def find(self, phase, name=None, process=None):
        return [event for event in self.all
                if event["ph"] == phase and name in (None, event["name"]) and
                process in (None, self.process(event))]

    def check(self):
        """The trace event format: phases and their fields, slices that nest, begins with ends, arrows
        with both ends, each inside of a slice."""
        tracks = collections.defaultdict(list)
        for event in self.all:
            assert event["ph"] in "MXibensf", event
            assert isinstance(event["name"], str) and isinstance(event["pid"], int), event
            assert event["pid"] in self.processes, event
            if event["ph"] != "M":
                assert event["ts"] >= 0, event
            if event["ph"] == "X":
                assert event["dur"] >= 0, event
                tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
            if event["ph"] == "i":
                assert event["s"] in "gpt", event
        named = {(event["pid"], event["tid"]) for event in self.find("M", "thread_name")}
        assert set(tracks) <= named, (set(tracks), named)
        for slices in tracks.values():
            open_slices = []
            for begin, end, event in sorted(slices, key=lambda one: (one[0], -one[1])):
                while open_slices and open_slices[-1] <= begin + 0.001:
                    open_slices.pop()
                assert not open_slices or end <= open_slices[-1] + 0.001, event
                open_slices.append(end)
        stacks = collections.defaultdict(list)
        for event in self.all:
            key = event["pid"], event.get("cat"), event.get("id")
            if event["ph"] == "b":
                stacks[key].append((event["name"], event["ts"]))
            elif event["ph"] == "e":
                name, begin = stacks[key].pop()
                assert name == event["name"] and begin <= event["ts"], event
        assert not any(stacks.values()), stacks
        starts = {(event["cat"], event["id"]): event for event in self.find("s")}
        ends = {(event["cat"], event["id"]): event for event in self.find("f")}
        assert set(starts) == set(ends)
        for event in [*starts.values(), *ends.values()]:
            inside = [1 for begin, end, _ in tracks[event["pid"], event["tid"]]
                      if begin - 0.001 <= event["ts"] <= end + 0.001]
            assert inside, event
        for key, start in starts.items():
            assert start["ts"] <= ends[key]["ts"] + 0.001, (start, ends[key])
        return starts, ends


class Load:
    """Streams one after another, a few at a time, until it is told to stop."""

    def __init__(self, cluster, width=4, tokens=60):
        self.cluster = cluster
        self.tokens = tokens
        self.stopped = threading.Event()
        self.finished = 0
        self.failures = []
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(width)]
        for thread in self.threads:
            thread.start()

    def _run(self, number):
        turn = 0
        while not self.stopped.is_set():
            turn += 1
            try:
                self.cluster.stream(f"Stream {number} asks for the {turn}th time what a hand-off is, please",
                                    max_tokens=self.tokens, ignore_eos=True).finish()
                self.finished += 1
            except AssertionError as failure:
                self.failures.append(str(failure))

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def named_request(cluster, name, **fields):
    connection = http.client.HTTPConnection("127.0.0.1", next(iter(cluster.frontends.values())), timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(fields),
                           {"Content-Type": "application/json", "X-Request-Id": name})
        response = connection.getresponse()
        response.read()
        return response.status


class Trace(unittest.TestCase):
    def test_under_load_with_a_killed_worker(self):
        with Supervised() as cluster:
            load = Load(cluster)
            wait_until(lambda: load.finished >= 2, 60, "the load runs")
            tracing = Tracing(cluster, seconds=6 * PATIENCE)
            time.sleep(0.8 * PATIENCE)
            self.assertEqual(named_request(cluster, "mine", prompt="What is Baton?", max_tokens=6), 200)
            self.assertEqual(named_request(cluster, "wrong", prompt=7), 400)
            victim = cluster.pid("decode0")
            cluster.kill("decode0")
            code, out, complaint = tracing.finish()
            load.stop()
            self.assertEqual((code, out), (0, ""), complaint)
            self.assertEqual(load.failures, [])
            self.assertNotIn("nothing was told", complaint)
            self.assertNotIn("overwritten", complaint)
            events = tracing.events()
            starts, ends = events.check()

            # Everybody is there, the killed worker and its successor both.
            names = collections.Counter(name.split(" ")[0] for name in events.processes.values())
            self.assertEqual(set(names), {"scheduler", "prefill0", "decode0", "frontend0", "memory", "supervisor"})
            self.assertEqual(names["decode0"], 2)
            self.assertIn(f"decode0 (process {victim})", events.processes.values())
            died = events.find("i", "decode0 died")
            self.assertEqual(len(died), 1)
            self.assertEqual((events.processes[died[0]["pid"]], died[0]["s"]), (f"decode0 (process {victim})", "g"))
            self.assertIn("killed by signal 9", died[0]["args"]["how"])
            self.assertIn("1 death", complaint)
            self.assertTrue(events.find("i", "starts decode0", "supervisor"))
            self.assertTrue(events.find("i", "keeps the pool of decode0", "memory"))
            self.assertTrue(events.find("X", "lease", "memory"))

            # The last step before the death, and steps of both lives; nothing of the dead one is later.
            decoded = [event for event in events.find("X", process="decode0") if event["tid"] == 2]
            by_life = collections.Counter(event["pid"] for event in decoded)
            self.assertEqual(len(by_life), 2, by_life)
            for event in decoded:
                if event["pid"] == died[0]["pid"]:
                    self.assertLessEqual(event["ts"] + event["dur"], died[0]["ts"] + 0.001)
            last = max(event["ts"] + event["dur"] for event in decoded if event["pid"] == died[0]["pid"])
            self.assertLess(died[0]["ts"] - last, 300_000 * PATIENCE)
            self.assertTrue(events.find("X", "prefill", "prefill0"))

            # Pulls cross from the pool that is read to the worker that reads.
            crossings = [(events.process(start), events.process(ends[key]))
                         for key, start in starts.items() if key[0] == "pull"]
            self.assertIn(("prefill0", "decode0"), crossings)
            self.assertTrue(set(crossings) <= {("prefill0", "decode0"), ("decode0", "prefill0")}, set(crossings))
            self.assertTrue([key for key in starts if key[0] == "plan"])
            labelled = [event for event in events.find("X", "pull") if event["args"].get("request")]
            self.assertTrue(labelled)

            # Requests by their names, with their parts.
            begun = events.find("b", "mine")
            self.assertEqual(len(begun), 1)
            mine = [event["name"] for event in events.all if event.get("id") == begun[0]["id"] and
                    event["ph"] == "b"]
            self.assertEqual(mine[:2], ["mine", "read"])
            self.assertLessEqual({"queue", "prefill", "decode"}, set(mine))
            end = events.find("e", "mine")[0]
            self.assertEqual((end["args"]["status"], end["args"]["tokens"]), (200, 6))
            self.assertTrue(events.find("n", "first token"))
            refused = events.find("i", "refused", "frontend0")
            self.assertEqual([event["args"]["status"] for event in refused], [400])
            # Someone was under way when the trace ended, and someone when it began.
            self.assertTrue([event for event in events.find("e") if "unfinished" in event["args"]])
            # Nothing is left behind but the page that processes look at.
            left = sorted(path.name for path in (cluster.folder / "run").glob("*trace*"))
            self.assertEqual(left, ["trace.control", "trace.lock"])

            # Once more: a second trace of the same processes, ended early by Ctrl-C.
            again = Tracing(cluster, seconds=60)
            time.sleep(1.5 * PATIENCE)
            cluster.stream("And again?", max_tokens=4).finish()
            busy, _, why = cluster.baton_ctl("trace", "-o", str(cluster.folder / "no.json"))
            self.assertEqual(busy, 1)
            self.assertIn("another trace runs", why)
            again.process.send_signal(signal.SIGINT)
            code, _, complaint = again.finish()
            self.assertEqual(code, 0, complaint)
            events = again.events()
            events.check()
            self.assertTrue(events.find("X", "decode", "decode0"))
            self.assertFalse(events.find("i", "decode0 died"))

    def test_without_a_supervisor_and_a_tool_that_dies(self):
        with Cluster(workers=MIXED, fake=True) as cluster:
            tracing = Tracing(cluster, seconds=3 * PATIENCE)
            wait_until(lambda: (cluster.folder / "run" / "mixed0.trace").exists(), 10, "it records")
            cluster.stream("one", max_tokens=5).finish()
            cluster.kill("scheduler")  # nobody is there to tell of it but the tool
            time.sleep(0.3 * PATIENCE)
            cluster.start("scheduler")
            code, _, complaint = tracing.finish()
            self.assertEqual(code, 0, complaint)
            events = tracing.events()
            events.check()
            self.assertEqual(len(events.find("i", "scheduler died")), 1)
            cluster.wait_ready()

            # A tool that is killed: the trace ends at its time, and the next one finds nothing of it.
            killed = Tracing(cluster, seconds=2 * PATIENCE)
            ring = cluster.folder / "run" / "mixed0.trace"
            wait_until(ring.exists, 10, "it records")
            killed.process.kill()
            killed.finish()
            cluster.stream("two", max_tokens=5).finish()
            time.sleep(2.5 * PATIENCE)
            size = os.stat(ring).st_size
            before = ring.read_bytes()
            cluster.stream("three", max_tokens=5).finish()
            self.assertEqual(before, ring.read_bytes(), f"of {size} bytes")
            last = Tracing(cluster, seconds=0.5)
            self.assertEqual(last.finish()[0], 0)
            events = last.events()
            events.check()
            self.assertEqual(events.find("X", "decode", "mixed0"), [])

    def test_what_it_refuses(self):
        with Cluster(workers=MIXED, fake=True, frontends=()) as cluster:
            for words, why in ((["--seconds", "0"], "--seconds"),
                               (["-o", "/nowhere/file.json", "--seconds", "0.2"], "/nowhere/file.json: cannot be written"),
                               (["--run-dir", "/nowhere", "--seconds", "0.2"], "/nowhere is no folder")):
                code, _, complaint = cluster.baton_ctl("trace", *words)
                self.assertNotEqual(code, 0, words)
                self.assertIn(why, complaint)
            code, out, complaint = cluster.baton_ctl("trace", "--seconds", "0.2", "-o", "-")
            self.assertEqual(code, 0, complaint)
            Events(json.loads(out)).check()
            self.assertIn("trace [--seconds S] [-o FILE]", cluster.baton_ctl("help")[1])


if __name__ == "__main__":
    unittest.main()
