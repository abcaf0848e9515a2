"""Kill and freeze every process, in every order, under open streams: each stream must end with exactly
the tokens of an undisturbed run, and the pools must be empty afterwards.

Each class is a test of its own for ctest. Steps are slow (`step_delay_ms`), so that few tokens, and
little computing, last from the first blow to the last: that every blow met every stream open is
asserted, not hoped for."""

import itertools
import signal
import sys
import time
import unittest

from cluster import PATIENCE, Cluster, wait_until
import requests_mix

STREAMS = 32


class Streams(unittest.TestCase):
    """A cluster and 32 open streams for each test; the tokens they must end with."""
    tokens = 300
    step_delay_ms = 25
    frontends = ("frontend0",)

    @classmethod
    def setUpClass(cls):
        cls.requests = requests_mix.mix(STREAMS, cls.tokens)
        for request in cls.requests:
            request["min_tokens"] = request["max_tokens"]
        with Cluster(workers=[("mixed0", "mixed")], worker={"pool_mib": 384}) as quiet:
            cls.expected = requests_mix.run(quiet, cls.requests)

    def setUp(self):
        worker = {"pool_mib": 384, "step_delay_ms": self.step_delay_ms}
        self.cluster = Cluster(worker=worker, frontends=self.frontends)
        self.cluster.__enter__()
        self.streams = [self.cluster.stream(**request) for request in self.requests]
        self.await_token_each()

    def tearDown(self):
        if not self._finished:
            self.cluster.print_logs()
        self.cluster.stop()

    _finished = False

    def await_token_each(self):
        """Every stream gets a token after the last blow, and is still open for the next one."""
        marks = [stream.pieces for stream in self.streams]
        for stream, mark in zip(self.streams, marks):
            stream.wait_pieces(mark + 1, 60)
        ended = [f"{i}: {stream.pieces} pieces, {stream.error or 'no error'}"
                 for i, stream in enumerate(self.streams) if stream.done.is_set()]
        self.assertEqual(ended, [], "streams ended before the blows did; make them longer")

    def kill_two(self, pair, restart):
        """At once, and back in the order `restart`."""
        for name in pair:
            self.cluster.kill(name)
        for name in restart:
            self.cluster.start(name)
        self.await_token_each()

    def check(self):
        for i, stream in enumerate(self.streams):
            self.assertEqual(stream.finish(180), self.expected[i], f"stream {i}")
        self.cluster.assert_at_rest()
        self._finished = True


class Kills(Streams):
    step_delay_ms = 35  # three blows, one after another

    def test_worker_killed_and_restarted(self):
        for name in ("decode0", "prefill0", "decode0"):
            self.cluster.restart(name)
            self.await_token_each()
        self.check()

    def test_scheduler_killed_twice(self):
        for _ in range(2):
            self.cluster.restart("scheduler")
            self.await_token_each()
        self.check()

    def test_decode_worker_stays_dead(self):
        self.cluster.kill("decode0")
        self.await_token_each()
        self.check()

    def test_no_prefill_worker_lives(self):
        self.cluster.kill("prefill0")
        self.await_token_each()
        self.cluster.restart("decode0")  # everything must be prefilled again, on a decode worker
        self.check()


class Bounds(Streams):
    """These measure, so nothing runs beside them."""

    def test_next_token_within_two_seconds_of_a_kill(self):
        before = time.monotonic()
        self.cluster.kill("decode0")
        killed = time.monotonic()
        self.cluster.start("decode0")
        self.await_token_each()
        first = min(stream.arrivals[-1] for stream in self.streams if stream.arrivals[-1] > killed)
        # Two seconds plus the load time; the demo model loads in well under one.
        self.assertLess(first - before, 3 * PATIENCE)
        self.check()

    def test_drain_hands_over_within_eight_seconds(self):
        start = time.monotonic()
        self.cluster.signal("decode0", signal.SIGTERM)
        self.assertEqual(self.cluster.processes["decode0"].wait(20 * PATIENCE), 0)
        self.assertLess(time.monotonic() - start, 9 * PATIENCE)
        self.cluster.start("decode0")
        self.check()


class Pairs(Streams):
    """Two processes die at once: every ordered pair, and both orders of coming back."""
    tokens = 400

    def test_same_order_back(self):
        for pair in itertools.permutations(("scheduler", "prefill0", "decode0"), 2):
            self.kill_two(pair, restart=pair)
        self.check()

    def test_reverse_order_back(self):
        for pair in itertools.permutations(("scheduler", "prefill0", "decode0"), 2):
            self.kill_two(pair, restart=reversed(pair))
        self.check()


class FrontEndPairs(Streams):
    """The same where one of the two is a second front end, whose streams go on as the others do."""
    tokens = 500  # four blows, each after a stream of its own
    step_delay_ms = 60
    frontends = ("frontend0", "frontend1")

    def kill_front_end_and(self, name):
        said = {"prompt": "What is Baton?", "max_tokens": 40, "min_tokens": 40, "temperature": 0}
        whole = self.cluster.stream(**said).finish()
        for pair in ((name, "frontend1"), ("frontend1", name)):
            for restart in (pair, reversed(pair)):
                self.await_second_front_end()
                kept = self.cluster.stream(frontend="frontend1", **said)
                kept.wait_pieces(1, 60)
                self.assertFalse(kept.done.is_set(), kept.error)
                self.kill_two(pair, restart)
                self.assertEqual(kept.finish(), whole)
        self.await_second_front_end()
        again = self.cluster.stream("What is Baton?", "frontend1", max_tokens=8, min_tokens=8)
        self.assertEqual(again.finish()[1], 8)
        self.check()

    def await_second_front_end(self):
        wait_until(lambda: self.cluster.get("/health", "frontend1")[0] == 200, 30, "it serves")

    def test_scheduler(self):
        self.kill_front_end_and("scheduler")

    def test_prefill_worker(self):
        self.kill_front_end_and("prefill0")

    def test_decode_worker(self):
        self.kill_front_end_and("decode0")


class Freezes(Streams):
    # The processes that are not frozen go on: this lasts longer than the eight seconds.
    step_delay_ms = 40

    def test_for_a_second(self):
        for name in ("decode0", "prefill0", "scheduler", "frontend0"):
            self.cluster.freeze(name, 1)
            self.await_token_each()
        self.check()

    def test_decode_worker_for_eight_seconds(self):
        self.cluster.freeze("decode0", 8)
        self.await_token_each()
        self.check()

    def test_prefill_worker_for_eight_seconds(self):
        self.cluster.freeze("prefill0", 8)
        self.await_token_each()
        self.check()

    def test_scheduler_for_eight_seconds(self):
        self.cluster.freeze("scheduler", 8)
        self.await_token_each()
        self.check()

    def test_front_end_for_eight_seconds(self):
        self.cluster.freeze("frontend0", 8)
        self.await_token_each()
        self.check()


class FrozenForAMinute(Streams):
    def test_decode_worker(self):
        self.cluster.freeze("decode0", 60)
        self.check()  # the other worker took over: the streams may have ended before the thaw
        wait_until(lambda: self.cluster.worker_state("decode0") == "ready", 10, "decode0 is back")

    def test_scheduler(self):
        self.cluster.freeze("scheduler", 60)
        self.await_token_each()
        self.check()


class KillerRequest(unittest.TestCase):
    def test_three_workers_and_no_fourth(self):
        """A prompt that holds the fault token aborts every worker that runs it."""
        with Cluster(worker={"fault_token": 777}) as cluster:
            innocent = cluster.stream("What is Baton?", max_tokens=300, min_tokens=300, seed=5)
            innocent.wait_pieces(1)
            killer = cluster.stream([1, 5, 777, 6], max_tokens=20)
            deaths = 0
            end = time.monotonic() + 60 * PATIENCE
            while time.monotonic() < end:
                over = killer.done.is_set()  # before the last count: the third death comes first
                for name in ("prefill0", "decode0"):
                    if cluster.processes[name].poll() is not None:
                        deaths += 1
                        cluster.start(name)
                if over:
                    break
                time.sleep(0.02)
            self.assertIsNotNone(killer.error)
            self.assertIn("worker", killer.error)
            if deaths != 3:
                cluster.print_logs()
            self.assertEqual(deaths, 3)
            text, tokens, _ = innocent.finish()
            self.assertEqual(tokens, 300)
            cluster.wait_ready()
            cluster.assert_at_rest()


if __name__ == "__main__":
    sys.exit(unittest.main())
