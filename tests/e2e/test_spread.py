"""A long prompt that three workers compute at the same time (`scheduler.elastic: auto`), chunk by chunk in turns: what
comes back is what one worker answers, token for token and bit for bit in its log probabilities, whoever of them dies
or stands still amid the prompt. On GPUs as test_elastic.py says.
"""

import signal
import time
import unittest

from cluster import MIXED, Cluster, wait_until
from test_elastic import PLACES, THREE, Deaths, ask, counters, ids

SPREAD = {"elastic": "auto", "elastic_prompt_tokens": 256, "prompt_chunk": 64}
ONE_THREAD = {"threads": 1, "pool_blocks": 160}


class SpreadPrompt(Deaths):
    """A prompt that three workers compute together, what one worker answers to it, and what others ask beside it."""
    prompt = ids(1500, 3)
    answer_tokens, streamed_tokens = 16, 40
    others = [{"prompt": ids(60 + 31 * i, i), "max_tokens": 60, "min_tokens": 60,
               "temperature": [0.0, 0.9][i % 2], "seed": i} for i in range(5)]

    @classmethod
    def setUpClass(cls):
        with Cluster(workers=MIXED, worker=ONE_THREAD) as cluster:
            cls.answer = cls.ask(cluster)
            cls.streamed = cls.begin(cluster).finish()
            cls.solo = [cluster.stream(**request).finish() for request in cls.others]

    @classmethod
    def ask(cls, cluster):
        return ask(cluster, cls.prompt, cls.answer_tokens)

    @classmethod
    def begin(cls, cluster):
        return cluster.stream(cls.prompt, max_tokens=cls.streamed_tokens, min_tokens=cls.streamed_tokens,
                              temperature=0.8, seed=3)

    def three(self, **options):
        worker = {**ONE_THREAD, **options.pop("worker", {})}
        return Cluster(workers=THREE, worker=worker, per_worker=PLACES,
                       scheduler={**SPREAD, **options.pop("scheduler", {})}, **options)

    @staticmethod
    def readable(cluster):
        """Every worker has mapped the others' pools: before that a prompt stays on one."""
        wait_until(lambda: cluster.show("info")["max_context"] > 0, 10, "pools are read")
        time.sleep(0.5)


class Spread(SpreadPrompt, unittest.TestCase):
    slowly = {"worker": {"step_delay_ms": 30}}

    def test_it_is_what_one_worker_answers(self):
        with self.three() as cluster:
            self.readable(cluster)
            self.assertEqual(self.ask(cluster), self.answer)
            numbers = counters(cluster)
            self.assertEqual(numbers["spreads"], 1)
            self.assertGreaterEqual(numbers["spread_chunks"], 20)
            self.assertEqual(numbers["spread_failures"], 0)
            self.assertEqual(numbers["growth_blocks_moved"], 0)
            self.assertEqual(numbers["computed_tokens"], len(self.prompt))
            cluster.assert_at_rest()

    def test_beside_others(self):
        with self.three() as cluster:
            self.readable(cluster)
            long = self.begin(cluster)
            streams = [cluster.stream(**request) for request in self.others]
            self.assertEqual([stream.finish() for stream in streams], self.solo)
            self.assertEqual(long.finish(), self.streamed)
            self.assertEqual(counters(cluster)["spread_failures"], 0)
            cluster.assert_at_rest()

    def test_pools_that_do_not_hold_it_alone(self):
        with self.three(worker={"pool_blocks": 40}) as cluster:
            self.readable(cluster)
            self.assertEqual(self.ask(cluster), self.answer)
            self.assertEqual(counters(cluster)["spreads"], 1)
            cluster.assert_at_rest()

    def test_checked_pulls(self):
        with self.three(worker={"check_pulls": True}) as cluster:
            self.readable(cluster)
            self.assertEqual(self.ask(cluster), self.answer)
            cluster.assert_at_rest()

    def amid(self, cluster):
        """A stream whose prompt three workers are computing."""
        self.readable(cluster)
        stream = self.begin(cluster)
        wait_until(lambda: counters(cluster)["spreads"] == 1 and counters(cluster)["computed_tokens"] > 300, 20,
                   "the prompt is under way")
        self.assertEqual(stream.pieces, 0)
        return stream

    def test_any_of_them_stands_still(self):
        for victim, _ in THREE:
            with self.subTest(victim=victim), self.three(**self.slowly) as cluster:
                stream = self.amid(cluster)
                began = time.monotonic()
                cluster.signal(victim, signal.SIGSTOP)
                self.assertEqual(stream.finish(30), self.streamed)
                print(f"{victim} stands still: answered after {time.monotonic() - began:.1f} s", flush=True)
                cluster.signal(victim, signal.SIGCONT)
                wait_until(lambda: cluster.worker_state(victim) == "ready", 20, f"{victim} is back")
                cluster.assert_at_rest()

    def test_two_of_them_die(self):
        with self.three(**self.slowly) as cluster:
            stream = self.amid(cluster)
            for victim in ("mixed0", "mixed1"):
                cluster.kill(victim)
            for victim in ("mixed0", "mixed1"):
                cluster.start(victim)
            self.assertEqual(stream.finish(), self.streamed)
            cluster.assert_at_rest()

    def test_one_drains_and_the_client_leaves(self):
        with self.three(**self.slowly) as cluster:
            stream = self.amid(cluster)
            cluster.ctl("set worker mixed1 drain")
            self.assertEqual(stream.finish(), self.streamed)
            cluster.ctl("set worker mixed1 ready")
            self.begin(cluster).leave()
            cluster.assert_at_rest()


if __name__ == "__main__":
    unittest.main()
