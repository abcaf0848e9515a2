"""Processes are replaced under their supervisor: baton-ctl show processes and restart, while clients read streams."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

import cluster
from cluster import wait_until
from supervised import PROGRAMS, Supervised

# The same programs but for the version of the protocol (tests/e2e/CMakeLists.txt).
OTHER = cluster.BIN / "other"
PROMPTS = ["The moon", "Once upon a time", "In the beginning", "A ship", "My name", "Two and two"]
NAMES = ["memory", "scheduler", "prefill0", "decode0", "frontend0"]


def long(tokens):
    """A stream of just so many tokens."""
    return {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}


class Load(threading.Thread):
    """A client that reads one stream after another and remembers whatever differs from the undisturbed text."""

    def __init__(self, baton, prompt, expected, tokens):
        super().__init__(daemon=True)
        self.baton, self.prompt, self.expected, self.tokens = baton, prompt, expected, tokens
        self.over = threading.Event()
        self.wrong = []
        self.whole = 0

    def run(self):
        while not self.over.is_set():
            try:
                text, _, reason = self.baton.stream(self.prompt, **long(self.tokens)).finish()
            except AssertionError as failure:
                self.wrong.append(str(failure))
                continue
            if text == self.expected:
                self.whole += 1
            else:
                self.wrong.append(f"{reason}: {text!r} for {self.expected!r}")


class UpgradeTest(unittest.TestCase):
    def test_processes_are_shown(self):
        with Supervised() as baton:
            shown = baton.known()
            names = ["supervisor", *sorted([*NAMES, "frontend0.twin"])]
            self.assertEqual(names, [p["name"] for p in shown])
            self.assertEqual({"supervisor", "memory", "scheduler", "worker", "frontend", "twin"},
                             {p["kind"] for p in shown})
            self.assertEqual({"up"}, {p["state"] for p in shown})
            self.assertEqual({0}, {p["restarts"] for p in shown})
            self.assertEqual(baton.supervisor.pid, shown[0]["pid"])
            for process in shown:
                self.assertLess(abs(time.time() - process["since"]), 60 * cluster.PATIENCE)
            decode = next(p for p in shown if p["name"] == "decode0")
            os.kill(decode["pid"], signal.SIGSTOP)
            frozen = {**dict.fromkeys(names, "up"), "decode0": "frozen"}
            wait_until(lambda: {p["name"]: p["state"] for p in baton.known()} == frozen, 5, "decode0 alone is frozen")
            os.kill(decode["pid"], signal.SIGKILL)
            wait_until(lambda: baton.lives()["decode0"][1] == 1, 20, "the next life is counted")
            code, text, _ = baton.baton_ctl("show", "processes")
            self.assertEqual(0, code)
            self.assertRegex(text, r"(?m)^decode0 +worker +\d+ +\w+ +[\d.]+ s +1$")

    def test_a_rolling_restart_under_load(self):
        tokens = 800  # seconds of reading: every restart meets streams
        with Supervised() as baton:
            loads = []
            for prompt in PROMPTS:
                text, _, _ = baton.stream(prompt, **long(tokens)).finish()
                loads.append(Load(baton, prompt, text, tokens))
            for load in loads:
                load.start()
            before = baton.lives()
            for name in ("supervisor", "memory", "scheduler", "prefill0", "decode0", "frontend0"):
                whole = sum(load.whole for load in loads)
                code, said, complaint = baton.restart_words(name)
                self.assertEqual((0, ""), (code, complaint))
                self.assertIn(f"{name} is replaced", said)
                print(said.strip(), flush=True)
                wait_until(lambda: sum(load.whole for load in loads) >= whole + len(loads), 60, "streams go on")
            for load in loads:
                load.over.set()
            for load in loads:
                load.join(60 * cluster.PATIENCE)
                self.assertFalse(load.is_alive())
            self.assertEqual([], [wrong for load in loads for wrong in load.wrong])
            after = baton.lives()
            self.assertEqual((before["supervisor"][0], 1), after["supervisor"])  # the same process
            for name in ("memory", "scheduler", "prefill0", "decode0", "frontend0"):
                self.assertNotEqual(before[name][0], after[name][0], name)
            baton.assert_at_rest()

    def test_everything_is_replaced_in_order(self):
        with Supervised() as baton:
            before = baton.lives()
            stream = baton.stream("The moon", **long(20))
            whole = stream.finish()
            code, said, complaint = baton.restart_words("all", "--rolling")
            self.assertEqual((0, ""), (code, complaint))
            replaced = [line.split()[0] for line in said.splitlines()]
            self.assertEqual(["supervisor", "memory", "scheduler", "decode0", "prefill0", "frontend0"], replaced)
            after = baton.lives()
            for name in NAMES:
                self.assertNotEqual(before[name][0], after[name][0], name)
            baton.wait_ready()
            self.assertEqual(whole, baton.stream("The moon", **long(20)).finish())

    def test_a_front_end_leaves_its_streams_to_the_next(self):
        with Supervised() as baton:
            whole = baton.stream("The moon", **long(1000)).finish()
            stream = baton.stream("The moon", **long(1000))
            stream.wait_pieces(1)
            began = time.monotonic()
            code, _, complaint = baton.restart_words("frontend0")
            self.assertEqual((0, ""), (code, complaint))
            self.assertFalse(stream.done.is_set(), "nobody waited for its end")
            self.assertLess(time.monotonic() - began, 5 * cluster.PATIENCE)
            self.assertEqual(whole, stream.finish())
            baton.wait_ready()

    def test_what_cannot_be_restarted_is_said(self):
        with Supervised() as baton:
            code, _, complaint = baton.restart_words("decode7")
            self.assertEqual(1, code)
            self.assertIn("no process decode7 is known in", complaint)
            baton.place("worker", pathlib.Path("/nonexistent"))
            code, said, complaint = baton.restart_words("all", "--rolling", "--within", "5")
            self.assertEqual(1, code)
            self.assertIn("decode0 is not up again after 5 s", complaint)
            self.assertIn("logs/decode0.log", complaint)
            self.assertNotIn("prefill0", said)  # nothing is begun after a failure
            # One that fails to start is replaced all the same, once what is on disk can run.
            baton.place("worker", cluster.BIN)
            code, _, complaint = baton.restart_words("all", "--rolling")
            self.assertEqual((0, ""), (code, complaint))
            baton.wait_ready()

    def test_another_protocol_version_waits_for_the_streams(self):
        with Supervised() as baton:
            whole = baton.stream("The moon", **long(1000)).finish()
            before = baton.lives()
            for program in PROGRAMS:
                if program != "grammar":
                    baton.place(program, OTHER)
            code, _, complaint = baton.restart_words("decode0")
            self.assertEqual(1, code)
            self.assertIn("speaks another protocol version", complaint)
            self.assertEqual(before, baton.lives())
            stream = baton.stream("The moon", **long(1000))
            stream.wait_pieces(1)
            code, said, complaint = baton.restart_words("all", "--rolling")
            self.assertEqual((0, ""), (code, complaint), said)
            self.assertIn("front ends drain, then all is replaced at once", said)
            self.assertEqual(whole, stream.finish())
            baton.wait_ready()
            self.assertEqual(whole, baton.stream("The moon", **long(1000)).finish())
            protocols = {p["protocol"] for p in baton.known() if p["kind"] != "supervisor"}
            self.assertEqual(1, len(protocols))
            self.assertGreater(protocols.pop(), 1_000_000)

    def test_a_process_of_another_version_is_refused(self):
        with Supervised() as baton:
            baton.place("worker", OTHER)
            pid = baton.lives()["decode0"][0]
            os.kill(pid, signal.SIGKILL)
            log = baton.folder / "run" / "logs" / "scheduler.log"
            wait_until(lambda: "the peer speaks protocol version 10000" in log.read_text(), 20, "it is said")
            self.assertNotEqual("ready", baton.worker_state("decode0"))
            self.assertEqual(20, baton.stream("The moon", **long(20)).finish()[1])
            baton.place("worker", cluster.BIN)
            code, _, complaint = baton.restart_words("decode0")
            self.assertEqual((0, ""), (code, complaint))


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
