"""What lies in several pools comes together again where it decodes (`scheduler.elastic_gather: auto`): while a
stream goes on, its blocks are pulled into its worker's pool, and whoever dies amid that, what comes back is what
one worker answers. On GPUs as test_elastic.py says.
"""

import unittest

import test_spread
from cluster import MIXED, Cluster, wait_until
from test_elastic import PLACES, THREE, Deaths, ask, counters, ids

POOL = {"threads": 1, "pool_blocks": 160}   # holds the prompt and its reply


class Gather(Deaths, unittest.TestCase):
    slowly = {"worker": {"step_delay_ms": 10, "pull_delay_ms": 400}}
    prompt = ids(1500, 3)
    others = test_spread.Spread.others
    readable = staticmethod(test_spread.Spread.readable)

    @classmethod
    def setUpClass(cls):
        with Cluster(workers=MIXED, worker=POOL) as cluster:
            cls.answer = ask(cluster, cls.prompt, 60)
            cls.streamed = cls.begin(cluster).finish()
            cls.solo = [cluster.stream(**request).finish() for request in cls.others]

    @classmethod
    def begin(cls, cluster):
        return cluster.stream(cls.prompt, max_tokens=200, min_tokens=200, temperature=0.8, seed=3)

    def three(self, **options):
        worker = {**POOL, **options.pop("worker", {})}
        return Cluster(workers=THREE, worker=worker, per_worker=PLACES,
                       scheduler={**test_spread.SPREAD, **options.pop("scheduler", {})}, **options)

    @staticmethod
    def lies_in(cluster):
        requests = cluster.show("requests")
        return requests[0]["lies_in"] if requests else ""

    def amid(self, cluster):
        """A stream that decodes while its blocks are pulled together."""
        self.readable(cluster)
        stream = self.begin(cluster)
        wait_until(lambda: counters(cluster)["gathers"] == 1, 30, "blocks are gathered")
        return stream

    def test_it_decodes_in_one_pool_and_is_found_there(self):
        with self.three() as cluster:
            self.readable(cluster)
            self.assertEqual(ask(cluster, self.prompt, 60), self.answer)
            numbers = counters(cluster)
            self.assertEqual((numbers["spreads"], numbers["gathers"]), (1, 1))
            self.assertGreater(numbers["gathered_blocks"], 1500 // 16 // 2)
            self.assertEqual(numbers["growth_blocks_moved"], 0)
            self.assertEqual(numbers["computed_tokens"], len(self.prompt))
            # All of the prompt is found by the next one that begins alike.
            self.assertEqual(ask(cluster, self.prompt, 60), self.answer)
            self.assertLess(counters(cluster)["computed_tokens"], len(self.prompt) + 100)
            cluster.assert_at_rest()

    def test_off_it_stays_where_it_was_computed(self):
        with self.three(scheduler={"elastic_gather": "off"}) as cluster:
            self.readable(cluster)
            self.assertEqual(ask(cluster, self.prompt, 60), self.answer)
            self.assertEqual(counters(cluster)["gathers"], 0)
            cluster.assert_at_rest()

    def test_beside_others(self):
        with self.three(worker={"pull_delay_ms": 50}) as cluster:
            self.readable(cluster)
            long = self.begin(cluster)
            streams = [cluster.stream(**request) for request in self.others]
            self.assertEqual([stream.finish() for stream in streams], self.solo)
            self.assertEqual(long.finish(), self.streamed)
            cluster.assert_at_rest()

    def test_checked_pulls(self):
        with self.three(worker={"check_pulls": True}) as cluster:
            self.readable(cluster)
            self.assertEqual(ask(cluster, self.prompt, 60), self.answer)
            self.assertEqual(counters(cluster)["gathers"], 1)
            cluster.assert_at_rest()

    def test_a_worker_that_drains_has_its_blocks_back(self):
        """Long before drain_s, and nothing is computed again."""
        with self.three(scheduler={"drain_s": 60}, **self.slowly) as cluster:
            stream = self.amid(cluster)
            where = self.lies_in(cluster)
            leaving = next(name for name, _ in THREE if f"{name}: " in where and f"to {name}" not in where)
            cluster.ctl(f"set worker {leaving} drain")
            wait_until(lambda: leaving not in self.lies_in(cluster), 20, f"{leaving} is left")
            self.assertEqual(stream.finish(), self.streamed)
            self.assertEqual(counters(cluster)["computed_tokens"], len(self.prompt))
            cluster.ctl(f"set worker {leaving} ready")
            cluster.assert_at_rest()

    def test_the_client_leaves_amid_it(self):
        with self.three(**self.slowly) as cluster:
            self.amid(cluster).leave()
            cluster.assert_at_rest()


if __name__ == "__main__":
    unittest.main()
