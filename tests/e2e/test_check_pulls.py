#!/usr/bin/env python3
"""worker.check_pulls: copies of blocks that are not what was computed are noticed, and never served."""

import re
import unittest

from cluster import Cluster, wait_until

PROMPT = [100 + (i * 37) % 3000 for i in range(150)]
CHECK = {"check_pulls": True}


def tokens_of(cluster, seeds, **fields):
    """What streams beside each other say, by seed."""
    streams = [cluster.stream([5 + seed, *PROMPT], max_tokens=24, temperature=0.8, seed=seed, ignore_eos=True,
                              **fields) for seed in seeds]
    return [stream.finish()[0] for stream in streams]


def counters(cluster):
    return cluster.show("info")["counters"]


def warnings(cluster, at_least=0):
    """A thread of its own writes the log: a reply may be here before the line that tells of its cause."""
    def lines():
        return [line for line in (cluster.folder / "scheduler.log").read_text().splitlines() if "DAMAGED" in line]

    wait_until(lambda: len(lines()) >= at_least, 10, f"{at_least} warnings")
    return lines()


def metric(cluster, name):
    return int(re.search(rf"^{name}\{{.*\}} (\d+)$", cluster.get("/metrics")[1], re.M)[1])


class CheckedPulls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Cluster() as cluster:
            cls.wanted = tokens_of(cluster, range(6))

    def test_nothing_is_found_where_nothing_is_wrong(self):
        with Cluster(worker=CHECK) as cluster:
            self.assertEqual(self.wanted, tokens_of(cluster, range(6)))
            found = counters(cluster)
            self.assertEqual((6, 0), (found["handoffs"], found["damaged_blocks"]))
            cluster.assert_at_rest()

    def test_a_wrong_copy_is_computed_again(self):
        with Cluster(worker=CHECK, per_worker={"decode0": {"fault_wrong_block": 3}}) as cluster:
            self.assertEqual(self.wanted, tokens_of(cluster, range(6)))
            found = counters(cluster)["damaged_blocks"]
            self.assertGreater(found, 0)
            for line in warnings(cluster, at_least=1):
                self.assertRegex(line, r"decode0 pulled from prefill0 .* source blocks [0-9 ]+, request [0-9]+-[0-9]+")
            # The front end is told with its next heartbeat.
            wait_until(lambda: metric(cluster, "baton_kv_blocks_damaged_total") == found, 10, "in /metrics")
            cluster.assert_at_rest()

    def test_without_the_check_it_is_served(self):
        """The planted fault is one."""
        with Cluster(per_worker={"decode0": {"fault_wrong_block": 1}}) as cluster:
            self.assertNotEqual(self.wanted, tokens_of(cluster, range(6)))
            self.assertEqual(0, counters(cluster)["damaged_blocks"])

    def test_a_request_whose_copies_are_always_wrong_ends_with_an_error(self):
        with Cluster(worker=CHECK, per_worker={"decode0": {"fault_wrong_block": 1}}) as cluster:
            status, reply = cluster.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})
            self.assertEqual(500, status)
            self.assertIn("damaged", str(reply))
            self.assertEqual(3, len(warnings(cluster, at_least=3)))
            cluster.assert_at_rest()

    def test_a_wrong_prefix_is_computed(self):
        """The prefill worker's cache is lost; what it pulls instead out of the decode worker's pool is wrong."""
        with Cluster(worker=CHECK, per_worker={"prefill0": {"fault_wrong_block": 1}},
                     scheduler={"prefix_pull_tokens": 16}, memory=False) as cluster:
            self.assertEqual(self.wanted[:1], tokens_of(cluster, [0]))
            cluster.assert_at_rest()
            cluster.restart("prefill0")
            wait_until(lambda: cluster.worker_state("prefill0") == "ready", 20, "prefill0 is back")
            self.assertEqual(self.wanted[:1], tokens_of(cluster, [0]))
            found = counters(cluster)
            self.assertEqual(1, found["prefix_pulls"])
            self.assertGreater(found["damaged_blocks"], 0)
            self.assertIn("prefill0 pulled from decode0", warnings(cluster, at_least=1)[0])
            cluster.assert_at_rest()

    def test_blocks_that_were_swapped_out_and_pulled_keep_their_sums(self):
        """A pool that holds little, a host part that holds more, and a second worker that pulls from both."""
        workers = [("mixed0", "mixed"), ("mixed1", "mixed")]
        prompts = [[10 + k, *PROMPT] for k in range(12)]
        with Cluster(workers=workers, worker={**CHECK, "pool_mib": 0, "pool_blocks": 40, "host_pool_blocks": 160},
                     scheduler={"swap": "always", "prefix_pull_tokens": 16}) as cluster:
            for _ in range(3):
                for begin in range(0, len(prompts), 4):
                    streams = [cluster.stream(p, max_tokens=20, temperature=0) for p in prompts[begin:begin + 4]]
                    for stream in streams:
                        stream.finish()
            found = counters(cluster)
            self.assertGreater(found["blocks_out"], 0)
            self.assertGreater(found["prefix_pulls"] + found["blocks_in"], 0)
            self.assertEqual(0, found["damaged_blocks"], warnings(cluster))
            cluster.assert_at_rest()
            parts = [part for part in cluster.show("kv") if part["part"] == "host"]
            used = sum(part["total"] - part["free"] for part in parts)
            self.assertGreater(used, 0)
            wanted = {"baton_kv_blocks_out_total": found["blocks_out"],
                      "baton_kv_blocks_in_total": found["blocks_in"],
                      "baton_kv_host_blocks": 2 * 160, "baton_kv_host_blocks_used": used}
            wait_until(lambda: {name: metric(cluster, name) for name in wanted} == wanted, 10, f"{wanted} in /metrics")


if __name__ == "__main__":
    unittest.main()
