"""A request over several workers of which each has ranks (`scheduler.elastic: auto`): ranks inside, pools of several
workers between. What comes back is what one process with a large pool answers, token for token and bit for bit in
its log probabilities, whichever process of them dies or stands still amid it.

On GPUs (BATON_TEST_DEVICE=cuda) there must be BATON_TEST_GPUS of them: four, or two that both groups share,
where a rank and that one of the other group whose keys it reads have one each. Queries travel to the keys, few as these
are, unless BATON_TEST_IN_PLACE_KEYS says otherwise.
"""

import os
import pathlib
import signal
import tempfile
import time
import unittest

import random_model
from cluster import DEVICE, MIXED, Cluster, wait_until
from test_elastic import IN_PLACE_KEYS, Three, ask, counters, ids

TWO = [("mixed0", "mixed"), ("mixed1", "mixed")]
BLOCKS = 40  # of 16 tokens, in each of the two pools
# A prompt longer than a pool is computed by one worker after the other; from 900 tokens on by both at once.
ELASTIC = {"elastic": "auto", "elastic_prompt_tokens": 900, "prompt_chunk": 64}
GPUS = int(os.environ.get("BATON_TEST_GPUS", "1"))
LONGER_THAN_A_POOL = ids(800)
SPREAD = ids(1100, 3)


class Requests:
    """What is asked, and what one process answers."""

    everywhere = {}  # options of all clusters

    @classmethod
    def setUpClass(cls):
        with Cluster(workers=MIXED, worker={"pool_blocks": 4 * BLOCKS}, **cls.everywhere) as cluster:
            cls.answers = [ask(cluster, LONGER_THAN_A_POOL), ask(cluster, SPREAD)]
            cls.grown = cls.grow(cluster).finish()
            cls.spread = cls.begin(cluster).finish()

    @staticmethod
    def begin(cluster):
        """A prompt that both compute at the same time."""
        return cluster.stream(SPREAD, max_tokens=20, min_tokens=20, temperature=0.8, seed=3)

    @staticmethod
    def grow(cluster):
        """A reply that outgrows the pool in which it begins."""
        return cluster.stream(ids(620, 5), max_tokens=90, min_tokens=90, temperature=0.8, seed=4)

    def two(self, ranks=(2, 2), **options):
        worker = {"pool_blocks": BLOCKS, "threads": 1, **options.pop("worker", {})}
        places = {name: {"ranks": each} for (name, _), each in zip(TWO, ranks)}
        if DEVICE == "cuda":
            for i, (name, _) in enumerate(TWO):
                first = 2 * i % GPUS
                gpus = [str(first + rank) for rank in range(ranks[i])]
                places[name]["gpu"] = ",".join(reversed(gpus) if i == 1 and GPUS == 2 else gpus)
                places[name]["in_place_keys"] = IN_PLACE_KEYS
        return Three(workers=TWO, worker=worker, per_worker=places, scheduler=ELASTIC, **self.everywhere, **options)

    def check(self, *ranks):
        with self.two(ranks) as cluster:
            self.assertEqual(cluster.show("info")["max_context"], 2 * BLOCKS * 16)
            self.assertEqual([ask(cluster, LONGER_THAN_A_POOL), ask(cluster, SPREAD)], self.answers)
            self.assertEqual(self.grow(cluster).finish(), self.grown)
            numbers = counters(cluster)
            self.assertEqual(numbers["spreads"], 1)
            self.assertEqual(numbers["spread_failures"], 0)
            self.assertGreaterEqual(numbers["growths"], 2)
            self.assertEqual(numbers["growth_blocks_moved"], 0)
            together = [self.begin(cluster), self.grow(cluster)]
            self.assertEqual([stream.finish() for stream in together], [self.spread, self.grown])
            cluster.assert_at_rest()


RANKS_HAVE_DEVICES = unittest.skipUnless(DEVICE == "cpu" or GPUS > 1, "ranks need a GPU each")


@RANKS_HAVE_DEVICES
class Groups(Requests, unittest.TestCase):
    def test_of_two_ranks_each(self):
        self.check(2, 2)

    @unittest.skipUnless(DEVICE == "cuda", "on CPUs a pool has all heads")
    def test_a_group_and_one_gpu_share_nothing(self):
        with self.two((2, 1)) as cluster:
            self.assertEqual(cluster.show("info")["max_context"], BLOCKS * 16)
            self.assertEqual(ask(cluster, ids(300, 9)), ask(cluster, ids(300, 9)))
            cluster.assert_at_rest()

    @unittest.skipUnless(DEVICE == "cpu", "on GPUs a rank has a pool of its heads")
    def test_a_group_and_one_process(self):
        """A pool on CPUs has all heads, however many ranks write it."""
        self.check(2, 1)


class OfAFamily(Requests):
    family = {}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.everywhere = {"model": random_model.write(pathlib.Path(folder.name) / "model", **cls.family)}
        super().setUpClass()


@unittest.skipUnless(DEVICE == "cpu", "refused on several GPUs")
class Experts(OfAFamily, unittest.TestCase):
    family = random_model.EXPERTS

    def test_more_ranks_than_kv_heads(self):
        self.check(4, 2)


@unittest.skipUnless(DEVICE == "cpu", "refused on several GPUs")
class Latent(OfAFamily, unittest.TestCase):
    family = random_model.LATENT

    def test_of_two_ranks_each(self):
        self.check(2, 2)


@RANKS_HAVE_DEVICES
class Deaths(Requests, unittest.TestCase):
    def serve(self, **options):
        worker = {"step_delay_ms": 10, "rank_timeout_s": 1, **options.pop("worker", {})}
        return self.two(worker=worker, **options)

    def amid_prompt(self, cluster, blocks=BLOCKS):
        # A prompt that one pool holds is not dealt out before each has mapped the other's.
        wait_until(lambda: cluster.show("info")["max_context"] > blocks * 16, 20, "pools are read")
        stream = self.begin(cluster)
        wait_until(lambda: counters(cluster)["spreads"] == 1 and counters(cluster)["computed_tokens"] > 200, 20,
                   "the prompt is under way")
        self.assertEqual(stream.pieces, 0)
        return stream

    def amid_reply(self, cluster):
        """It lies in both pools."""
        before = counters(cluster)["growths"]
        stream = self.grow(cluster)
        wait_until(lambda: counters(cluster)["growths"] > before, 20, "it has grown")
        return stream

    def start_again(self, cluster, victim):
        """All processes of its worker: they end by themselves when one of them has."""
        group = cluster.processes_of(victim.partition(".")[0])
        wait_until(lambda: all(cluster.processes[process].poll() is not None for process in group), 5,
                   f"all of {group} have ended")
        for process in group:
            cluster.start(process)

    def hit(self, cluster, stream, victim, number, want):
        began = time.monotonic()
        cluster.signal(victim, number)
        self.start_again(cluster, victim)
        self.assertEqual(stream.finish(60), want)
        print(f"{victim} {number.name}: answered after {time.monotonic() - began:.1f} s", flush=True)
        cluster.wait_ready()
        cluster.assert_at_rest()

    def test_any_process_dies(self):
        # A prompt first: what a second one would take is predicted by then, and it may go to one worker alone.
        for in_prompt, in_reply in (("mixed0.0", ("mixed0.1", "mixed1.0")), ("mixed1.1", ())):
            with self.subTest(in_prompt=in_prompt), self.serve() as cluster:
                self.hit(cluster, self.amid_prompt(cluster), in_prompt, signal.SIGKILL, self.spread)
                for victim in in_reply:
                    self.hit(cluster, self.amid_reply(cluster), victim, signal.SIGKILL, self.grown)

    def test_a_rank_dies_and_nobody_keeps_its_pool(self):
        with self.serve(memory=False) as cluster:
            self.hit(cluster, self.amid_prompt(cluster), "mixed0.1", signal.SIGKILL, self.spread)
            self.hit(cluster, self.amid_reply(cluster), "mixed1.1", signal.SIGKILL, self.grown)

    def test_a_rank_stands_still(self):
        with self.serve() as cluster:
            self.hit(cluster, self.amid_prompt(cluster), "mixed1.1", signal.SIGSTOP, self.spread)
            stream = self.amid_reply(cluster)
            runs = cluster.show("requests")[0]["worker"]
            self.hit(cluster, stream, f"{runs}.1", signal.SIGSTOP, self.grown)

    def test_a_rank_of_one_whose_pool_is_only_read_stands_still(self):
        with self.serve() as cluster:
            stream = self.amid_reply(cluster)
            runs = cluster.show("requests")[0]["worker"]
            victim = {"mixed0": "mixed1", "mixed1": "mixed0"}[runs] + ".1"
            cluster.signal(victim, signal.SIGSTOP)
            self.assertEqual(stream.finish(60), self.grown)
            cluster.signal(victim, signal.SIGCONT)
            cluster.assert_at_rest()

    def test_a_rank_stands_still_while_its_group_is_idle(self):
        """The first to need it is no step: the other worker gets another pool, which is to be mapped."""
        with self.serve() as cluster:
            self.assertEqual(ask(cluster, LONGER_THAN_A_POOL), self.answers[0])
            cluster.assert_at_rest()
            began = time.monotonic()
            cluster.signal("mixed0.1", signal.SIGSTOP)
            for process in cluster.processes_of("mixed1"):
                cluster.kill(process)
            wait_until(lambda: cluster.kept()["pool:mixed1"]["state"] == "waits", 10, "nobody has its pool")
            self.assertEqual(cluster.baton_ctl("memory", "drop", "pool:mixed1")[0], 0)
            for process in cluster.processes_of("mixed1"):
                cluster.start(process)
            # Found by the thread that maps pools, after rank_timeout_s, on GPUs 20 s; the scheduler calls that hung after 30 s.
            group = cluster.processes_of("mixed0")
            wait_until(lambda: all(cluster.processes[process].poll() is not None for process in group),
                       12 if DEVICE == "cpu" else 27,
                       "mixed0 has missed its rank")
            print(f"missed after {time.monotonic() - began:.1f} s", flush=True)
            self.assertEqual(cluster.processes["mixed0.0"].returncode, 5, "a rank was lost")
            self.assertIn("rank 1 does not come", (cluster.folder / "mixed0.0.log").read_text())
            for process in group:
                cluster.start(process)
            cluster.wait_ready()
            self.assertIn("mixed0: goes on with its pool", (cluster.folder / "scheduler.log").read_text())
            self.assertEqual(ask(cluster, LONGER_THAN_A_POOL), self.answers[0])
            cluster.assert_at_rest()

    def test_rank_0_stands_still(self):
        """The other worker has given up waiting for its layers, and computes the prompt alone."""
        blocks = 3 * BLOCKS
        with self.serve(worker={"pool_blocks": blocks}) as cluster:
            stream = self.amid_prompt(cluster, blocks)
            cluster.signal("mixed1.0", signal.SIGSTOP)
            self.assertEqual(stream.finish(60), self.spread)
            cluster.signal("mixed1.0", signal.SIGKILL)
            self.start_again(cluster, "mixed1.0")
            cluster.wait_ready()
            cluster.assert_at_rest()

    def test_one_drains(self):
        with self.serve() as cluster:
            stream = self.amid_prompt(cluster)
            cluster.ctl("set worker mixed1 drain")
            cluster.ctl("set worker mixed1 ready")
            self.assertEqual(stream.finish(60), self.spread)
            stream = self.amid_reply(cluster)
            cluster.ctl("set worker mixed0 drain")
            self.assertEqual(stream.finish(60), self.grown)
            cluster.ctl("set worker mixed0 ready")
            cluster.assert_at_rest()


if __name__ == "__main__":
    unittest.main()
