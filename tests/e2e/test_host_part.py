"""Pools with a host part in real processes: what a pool of few blocks has no room for is kept in host memory
and comes back. Tokens are those of each request alone, whoever dies meanwhile."""

import unittest

from cluster import MIXED, PAIR, Cluster, wait_until
import requests_mix

SMALL = 40       # blocks of a pool that holds three or four of the requests
ALWAYS = {"swap": "always"}


class SameTokens(requests_mix.AgainstSolo):
    requests = requests_mix.mix(16, tokens=150)

    def test_on_one_worker(self):
        counters = self.check(workers=MIXED, scheduler=ALWAYS,
                              worker={"pool_blocks": SMALL, "host_pool_blocks": 400})
        self.assertGreater(counters["preemptions"], 0)
        self.assertGreater(counters["blocks_out"], 0)
        self.assertGreater(counters["blocks_in"], 0)

    def test_where_a_pair_decodes(self):
        counters = self.check(workers=PAIR, scheduler=ALWAYS, worker={"host_pool_blocks": 400},
                              per_worker={"decode0": {"pool_blocks": SMALL}})
        self.assertGreater(counters["handoffs"], 0)
        self.assertGreater(counters["preemptions"], 0)
        self.assertGreater(counters["blocks_out"], 0)

    def test_where_both_of_a_pair_are_short(self):
        counters = self.check(workers=PAIR, scheduler=ALWAYS,
                              worker={"pool_blocks": SMALL, "host_pool_blocks": 400})
        self.assertGreater(counters["blocks_out"], 0)

    def test_a_host_part_of_a_few_blocks(self):
        """Most of what is kept there is forgotten again: computed anew, never a failure."""
        counters = self.check(workers=MIXED, scheduler=ALWAYS,
                              worker={"pool_blocks": SMALL, "host_pool_blocks": 5})
        self.assertGreater(counters["preemptions"], 0)
        self.assertGreater(counters["blocks_out"], 5)

    def test_never(self):
        counters = self.check(workers=MIXED, scheduler={"swap": "never"},
                              worker={"pool_blocks": SMALL, "host_pool_blocks": 400})
        self.assertGreater(counters["preemptions"], 0)
        self.assertEqual((counters["blocks_out"], counters["blocks_in"]), (0, 0))


class Deaths(unittest.TestCase):
    """Processes die while blocks go out and come in."""

    @classmethod
    def setUpClass(cls):
        cls.requests = requests_mix.mix(16, tokens=150)
        with Cluster(workers=MIXED) as quiet:
            cls.expected = requests_mix.run(quiet, cls.requests)

    def check(self, blows, **options):
        """Every blow falls after more blocks have gone out since the one before it."""
        with Cluster(scheduler=ALWAYS, worker={"pool_blocks": SMALL, "host_pool_blocks": 400, "step_delay_ms": 5},
                     **options) as cluster:
            streams = [cluster.stream(**request) for request in self.requests]
            for name in blows:
                before = cluster.show("info")["counters"]["blocks_out"]
                wait_until(lambda: cluster.show("info")["counters"]["blocks_out"] > before + 5, 60, "blocks go out")
                cluster.restart(name)
                if name == "scheduler":
                    cluster.wait_ready()
            self.assertGreater(sum(not s.done.is_set() for s in streams), 0, "all had ended before the last blow")
            self.assertEqual([s.finish() for s in streams], self.expected)
            cluster.wait_ready()
            cluster.assert_at_rest()

    def test_of_the_only_worker(self):
        self.check(["mixed0", "mixed0"], workers=MIXED)

    def test_of_each_of_a_pair(self):
        self.check(["decode0", "prefill0", "decode0"], workers=PAIR)

    def test_of_the_scheduler(self):
        self.check(["scheduler"], workers=PAIR)


class OtherPools(unittest.TestCase):
    def test_a_prefix_is_pulled_out_of_another_workers_host_part(self):
        """The answer to the first turn was decoded on decode0 and has left its pool when the second turn comes."""
        prompt = "What is Baton? Tell me what it does with prompts, and with what follows them. "
        first = {"prompt": prompt, "max_tokens": 150, "min_tokens": 150, "temperature": 0.8, "seed": 5}
        others = [{"prompt": f"({i}) How does a computer work?", "max_tokens": 120, "min_tokens": 120,
                   "temperature": 1.0, "seed": i} for i in range(8)]
        with Cluster(workers=MIXED, scheduler={"prefix_cache": False}) as cluster:
            answer = cluster.stream(**first).finish()
            second = {**first, "prompt": prompt + answer[0] + " And why?", "max_tokens": 40, "min_tokens": 40}
            wanted = cluster.stream(**second).finish()
        with Cluster(scheduler={**ALWAYS, "prefix_pull_tokens": 16}, worker={"host_pool_blocks": 400},
                     per_worker={"decode0": {"pool_blocks": SMALL}}) as cluster:
            self.assertEqual(cluster.stream(**first).finish(), answer)
            requests_mix.run(cluster, others)
            wait_until(lambda: cluster.show("requests") == [], 10, "the others are over")
            before = cluster.show("info")["counters"]
            self.assertGreater(before["blocks_out"], 0)
            stream = cluster.stream(**second)
            self.assertEqual(stream.finish(), wanted)
            counters = cluster.show("info")["counters"]
            self.assertEqual(counters["prefix_pulls"], before["prefix_pulls"] + 1)
            self.assertGreater(counters["pulled_prefix_tokens"] - before["pulled_prefix_tokens"], 100)
            cluster.assert_at_rest()


if __name__ == "__main__":
    unittest.main()
