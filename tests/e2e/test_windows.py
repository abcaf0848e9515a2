#!/usr/bin/env python3
"""Models whose layers have sliding windows, in real processes: what windows have left behind is given back, and
tokens and log probabilities are to the bit those of a worker that keeps everything (worker.kv_groups: off).
On GPUs (BATON_TEST_DEVICE=cuda) BATON_TEST_GPUS says how many there are: ranks need two."""

import os
import pathlib
import tempfile
import unittest

from cluster import DEVICE, MIXED, PAIR, Cluster, wait_until
import random_model
import requests_mix

WINDOW = 48
# Heads for which GPUs have their tiled kernels; CPUs need no such size.
HEADS = {"cpu": {}, "cuda": {"head_dim": 64}}[DEVICE]
EVERYWHERE = dict(HEADS, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=WINDOW,
                  num_hidden_layers=4, max_position_embeddings=2048)
# Two of six layers see everything: a group of them, and two groups with a window.
MIXED_LAYERS = dict(HEADS, architectures=["MinistralForCausalLM"], model_type="ministral", sliding_window=WINDOW,
                    num_hidden_layers=6, max_position_embeddings=2048,
                    layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2)


def words(count, first=7):
    return [first + (i * 37) % 3000 for i in range(count)]


def long_mix():
    """Prompts and answers of several windows; every third one begins like another."""
    requests = requests_mix.mix(9, tokens=150)
    for i, request in enumerate(requests):
        if i % 3:
            request["prompt"] = words(130 + 40 * i, first=7 + 100 * (i % 2))
    return requests


class AgainstOneThatKeepsAll:
    model = {}
    everywhere = {}
    requests = long_mix()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.everywhere = {"model": random_model.write(pathlib.Path(cls.folder.name) / "model", **cls.model)}
        cls.asked = {"prompt": words(300), "max_tokens": 60, "temperature": 0, "logprobs": 3, "ignore_eos": True}
        cls.beams = {"prompt": words(200), "max_tokens": 80, "ignore_eos": True, "n": 3, "use_beam_search": True}
        with Cluster(workers=MIXED, worker={"kv_groups": "off"}, **cls.everywhere) as cluster:
            cls.solo = [requests_mix.run(cluster, [request])[0] for request in cls.requests]
            cls.scored = cluster.post("/v1/completions", cls.asked)[1]["choices"]
            cls.found = cluster.post("/v1/completions", cls.beams)[1]["choices"]
            assert cluster.show("workers") and "groups" not in str(cluster.ctl("show setup"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, **options):
        with Cluster(**self.everywhere, **options) as cluster:
            self.assertIn("window of 48", cluster.ctl("show setup"))
            self.assertEqual(requests_mix.run(cluster, self.requests), self.solo)
            status, reply = cluster.post("/v1/completions", self.asked)
            self.assertEqual(status, 200, reply)
            self.assertEqual(reply["choices"], self.scored)
            cluster.assert_at_rest()
            return cluster.show("info")["counters"]

    def test_chunks(self):
        self.check(workers=MIXED, scheduler={"prompt_chunk": 7})

    def test_pair_whose_copies_are_checked(self):
        counters = self.check(workers=PAIR, worker={"check_pulls": True})
        self.assertGreaterEqual(counters["handoffs"], len(self.requests) - 2)
        self.assertEqual(counters["damaged_blocks"], 0)

    @unittest.skipUnless(DEVICE == "cpu" or int(os.environ.get("BATON_TEST_GPUS", "1")) > 1, "ranks need a GPU each")
    def test_ranks(self):
        if DEVICE == "cuda" and self.model is MIXED_LAYERS:
            self.skipTest("ranks on GPUs compute Llama's pattern")
        self.check(workers=MIXED, worker={"ranks": 2, "threads": 1})

    def test_a_tight_pool_and_a_host_part(self):
        counters = self.check(workers=MIXED, scheduler={"swap": "always", "prompt_chunk": 32},
                              worker={"pool_blocks": self.tight, "host_pool_blocks": 300})
        self.assertGreater(counters["blocks_out"], 0)
        # With windows everywhere nearly all growth is given back before: whether anybody must make room is chance.
        self.assertGreaterEqual(counters["preemptions"], 0 if self.model is EVERYWHERE else 1)

    def test_prefix_hits_and_beams(self):
        for workers in (PAIR, MIXED):
            with Cluster(workers=workers, **self.everywhere) as cluster:
                for _ in range(2):
                    self.assertEqual(cluster.post("/v1/completions", self.asked)[1]["choices"], self.scored)
                status, reply = cluster.post("/v1/completions", self.beams)
                self.assertEqual(status, 200, reply)
                self.assertEqual(reply["choices"], self.found)
                self.assertGreater(cluster.show("info")["counters"]["cached_tokens"], 250)
                cluster.assert_at_rest()

    def test_a_worker_is_killed(self):
        for workers in (PAIR, MIXED):
            with Cluster(workers=workers, **self.everywhere) as cluster:
                streams = [cluster.stream(**request) for request in self.requests]
                for stream in streams[:4]:
                    stream.wait_pieces(20)
                cluster.restart(workers[-1][0])
                self.assertEqual([stream.finish() for stream in streams], self.solo)
                cluster.assert_at_rest()


class WindowsEverywhere(AgainstOneThatKeepsAll, unittest.TestCase):
    model = EVERYWHERE
    tight = 7

    def test_a_sequence_holds_its_window_alone(self):
        """48 tokens of window are three blocks, and two more where it begins and grows."""
        most = WINDOW // 16 + 2
        with Cluster(workers=MIXED, worker={"pool_blocks": most}, scheduler={"prompt_chunk": 16},
                     **self.everywhere) as cluster:
            # The pool has room for 80 tokens; prompt and answer have 1,300.
            status, reply = cluster.post("/v1/completions", {"prompt": words(1000), "max_tokens": 300,
                                                             "ignore_eos": True, "temperature": 0})
            self.assertEqual(status, 200, reply)
            self.assertEqual(reply["usage"]["completion_tokens"], 300)
            self.assertLessEqual(max(pool["total"] for pool in cluster.show("kv")), most)
            cluster.assert_at_rest()


class SomeLayersSeeAll(AgainstOneThatKeepsAll, unittest.TestCase):
    model = MIXED_LAYERS
    tight = 55

    def test_a_long_sequence_holds_less(self):
        with Cluster(workers=MIXED, **self.everywhere) as cluster:
            stream = cluster.stream(words(1000), max_tokens=400, ignore_eos=True)
            stream.wait_pieces(50)
            owned = cluster.show("kv")[0]["owned"]
            # One group of 1,050 to 1,400 tokens, two of 48.
            self.assertGreaterEqual(owned, 66)
            self.assertLessEqual(owned, 88 + 2 * (3 + 2))
            stream.finish()
            wait_until(lambda: cluster.show("kv")[0]["owned"] == 0, 10, "at rest")


if __name__ == "__main__":
    unittest.main()
