#!/usr/bin/env python3
"""A model with latent keys and values in real processes: hand-offs, host parts, prefix hits, beams and checksums
move its blocks as any others, and the tokens are those of each request alone."""

import pathlib
import tempfile
import unittest

from cluster import DEVICE, MIXED, PAIR, Cluster
import random_model
import requests_mix
from test_elastic import Three, ask, counters, ids

CHECK = {"check_pulls": True}


class Latent(requests_mix.AgainstSolo):
    requests = requests_mix.mix(12, tokens=90)
    sizes = {}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        model = random_model.write(pathlib.Path(cls.folder.name) / "model", **random_model.LATENT | cls.sizes)
        cls.everywhere = {"model": model}
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_pair_whose_copies_are_checked(self):
        counters = self.check(workers=PAIR, worker=CHECK)
        self.assertGreaterEqual(counters["handoffs"], len(self.requests) - 2)
        self.assertEqual(counters["damaged_blocks"], 0)

    def test_chunks_preemption_and_a_host_part(self):
        counters = self.check(workers=MIXED, scheduler={"swap": "always", "prompt_chunk": 5},
                              worker={"pool_blocks": 30, "host_pool_blocks": 300, "threads": 2})
        self.assertGreater(counters["preemptions"], 0)
        self.assertGreater(counters["blocks_in"], 0)

    def test_a_wrong_copy_is_noticed(self):
        # Few enough wrong blocks, 2 of the 24 to 32 that are pulled, that no request can meet three of them.
        counters = self.check(workers=PAIR, worker=CHECK, per_worker={"decode0": {"fault_wrong_block": 11}})
        self.assertGreater(counters["damaged_blocks"], 0)

    def test_prefix_hits_and_beams(self):
        prompt = [7 + (i * 37) % 3000 for i in range(120)]
        beams = {"prompt": prompt, "max_tokens": 30, "ignore_eos": True, "n": 3, "use_beam_search": True}
        found = []
        for workers in (PAIR, MIXED):
            with Cluster(workers=workers, **self.everywhere) as cluster:
                texts = [cluster.stream(prompt, max_tokens=40, temperature=0.9, seed=3, ignore_eos=True).finish()
                         for _ in range(2)]
                self.assertEqual(texts[0], texts[1])
                status, reply = cluster.post("/v1/completions", beams)
                self.assertEqual(status, 200, reply)
                self.assertGreater(cluster.show("info")["counters"]["cached_tokens"], 0)
                found.append((texts[0], reply["choices"]))
                cluster.assert_at_rest()
        self.assertEqual(found[0], found[1])

    def test_a_prompt_longer_than_a_pool(self):
        prompt = ids(800)
        with Cluster(workers=MIXED, worker={"pool_blocks": 120}, **self.everywhere) as cluster:
            want = ask(cluster, prompt)
        two = [("mixed0", "mixed"), ("mixed1", "mixed")]
        with Three(workers=two, worker={"pool_blocks": 40}, scheduler={"elastic": "auto", "prompt_chunk": 64},
                   **self.everywhere) as cluster:
            self.assertEqual(ask(cluster, prompt), want)
            self.assertGreater(counters(cluster)["growths"], 0)
            cluster.assert_at_rest()


@unittest.skipUnless(DEVICE == "cuda", "on CPUs one kernel has all sizes")
class Tiles(Latent):
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


if __name__ == "__main__":
    unittest.main()
