"""What lies in several pools comes together again where it decodes (`scheduler.elastic_gather: auto`): while a
stream goes on, its blocks are pulled into its worker's pool, and whoever dies amid that, what comes back is what
one worker answers. On GPUs as test_elastic.py says.
"""

import unittest

import test_spread
from cluster import wait_until
from test_elastic import THREE, counters


class Gather(test_spread.SpreadPrompt, unittest.TestCase):
    slowly = {"worker": {"step_delay_ms": 10, "pull_delay_ms": 400}}
    answer_tokens, streamed_tokens = 60, 200

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
            self.assertEqual(self.ask(cluster), self.answer)
            numbers = counters(cluster)
            self.assertEqual((numbers["spreads"], numbers["gathers"]), (1, 1))
            self.assertGreater(numbers["gathered_blocks"], 1500 // 16 // 2)
            self.assertEqual(numbers["growth_blocks_moved"], 0)
            self.assertEqual(numbers["computed_tokens"], len(self.prompt))
            # All of the prompt is found by the next one that begins alike.
            self.assertEqual(self.ask(cluster), self.answer)
            self.assertLess(counters(cluster)["computed_tokens"], len(self.prompt) + 100)
            cluster.assert_at_rest()

    def test_off_it_stays_where_it_was_computed(self):
        with self.three(scheduler={"elastic_gather": "off"}) as cluster:
            self.readable(cluster)
            self.assertEqual(self.ask(cluster), self.answer)
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
            self.assertEqual(self.ask(cluster), self.answer)
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
