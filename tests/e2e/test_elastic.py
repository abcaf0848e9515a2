"""A request over several workers (`scheduler.elastic: auto`): prompts longer than any pool, replies that
outgrow theirs, and every worker that holds a part killed amid the stream. What comes back is what one
worker with a large pool answers, token for token and bit for bit in its log probabilities.

    test_elastic.py [-v]             the suite's
    test_elastic.py long [TOKENS]    by hand and nightly: 200,000 tokens of a small model over three workers

On GPUs (BATON_TEST_DEVICE=cuda) the workers share one, or BATON_TEST_GPUS of them in turn; then queries
travel to the keys, few as these are, unless BATON_TEST_IN_PLACE_KEYS says otherwise.
"""

import http.client
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest

import random_model
import requests_mix
from cluster import DEVICE, MIXED, Cluster, wait_until

THREE = [("mixed0", "mixed"), ("mixed1", "mixed"), ("mixed2", "mixed")]
AUTO = {"elastic": "auto"}
GPUS = int(os.environ.get("BATON_TEST_GPUS", "1"))
IN_PLACE_KEYS = int(os.environ.get("BATON_TEST_IN_PLACE_KEYS", "0"))
PLACES = {name: {"gpu": str(i % GPUS), "in_place_keys": IN_PLACE_KEYS}
          for i, (name, _) in enumerate(THREE)} if DEVICE == "cuda" else {}
BLOCKS = 40          # of 16 tokens, in each of the three pools
ALL = 3 * BLOCKS * 16


def ids(count, salt=0):
    """No two stretches of the prompt are alike."""
    return [5 + (i * i * 7 + i * 131 + salt * 977) % 4000 for i in range(count)]


def ask(cluster, prompt, tokens=16):
    status, reply = cluster.post("/v1/completions", {
        "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "temperature": 0, "logprobs": 3,
        "timeout_s": 1500}, timeout=1600)
    if status != 200:
        raise AssertionError(reply)
    return reply["choices"]


def counters(cluster):
    return cluster.show("info")["counters"]


class Three(Cluster):
    """Its front end has heard of all the pools."""

    def wait_ready(self, seconds=60):
        super().wait_ready(seconds)
        longest = str(self.show("info")["max_context"])
        wait_until(lambda: longest in self.get("/v1/models")[1], seconds, f"{longest} tokens in /v1/models")


class Deaths:
    """What happens to the three amid the stream of `amid(cluster)`, which ends as `streamed` did."""

    slowly = {}    # options of three()

    def kill_each(self, **options):
        for victim, _ in THREE:
            with self.subTest(victim=victim), self.three(**self.slowly, **options) as cluster:
                stream = self.amid(cluster)
                cluster.restart(victim)
                self.assertEqual(stream.finish(), self.streamed)
                cluster.assert_at_rest()

    def test_any_of_them_dies(self):
        self.kill_each(memory=False)

    def test_any_of_them_dies_and_its_pool_is_kept(self):
        self.kill_each()

    def test_the_scheduler_dies(self):
        """The workers have mapped each other's pools; the next scheduler has to ask anew."""
        with self.three(**self.slowly) as cluster:
            stream = self.amid(cluster)
            cluster.restart("scheduler")
            self.assertEqual(stream.finish(), self.streamed)
            cluster.assert_at_rest()


class Elastic(Deaths, unittest.TestCase):
    """Prompts and replies that no pool of the three holds alone."""

    everywhere = {}                     # options of all clusters
    nearly_all = ids(ALL - 40)          # the prompt needs nearly all three
    grown = ids(30, 1)                  # the reply does
    many = [{"prompt": ids(100 + 37 * i, i), "max_tokens": 300 - 20 * i, "min_tokens": 300 - 20 * i,
             "temperature": [0.0, 0.9][i % 2], "seed": i} for i in range(6)]

    @classmethod
    def setUpClass(cls):
        with Cluster(workers=MIXED, worker={"pool_blocks": 4 * BLOCKS}, **cls.everywhere) as cluster:
            cls.long_answer = ask(cluster, cls.nearly_all)
            cls.grown_answer = ask(cluster, cls.grown, ALL - 100)
            cls.streamed = cluster.stream(cls.nearly_all[:1200], max_tokens=400, min_tokens=400,
                                          temperature=0.8, seed=3).finish()
            cls.solo = [cluster.stream(**request).finish() for request in cls.many]

    def three(self, **options):
        worker = {"pool_blocks": BLOCKS, **options.pop("worker", {})}
        return Three(workers=THREE, worker=worker, per_worker=PLACES,
                     scheduler={**AUTO, **options.pop("scheduler", {})}, **self.everywhere, **options)

    def test_a_prompt_of_nearly_all_pools(self):
        with self.three() as cluster:
            self.assertEqual(cluster.show("info")["max_context"], ALL)
            self.assertEqual(ask(cluster, self.nearly_all), self.long_answer)
            numbers = counters(cluster)
            self.assertGreaterEqual(numbers["growths"], 2)
            self.assertEqual(numbers["growth_blocks_moved"], 0)
            self.assertEqual(numbers["computed_tokens"], len(self.nearly_all))
            status, reply = cluster.post("/v1/completions", {"prompt": ids(ALL + 5), "max_tokens": 4})
            self.assertEqual(status, 400, reply)
            _, page = cluster.get("/metrics")
            wait_until(lambda: "baton_growths_total 0" not in cluster.get("/metrics")[1], 10, "growths in /metrics")
            self.assertIn("baton_growths_total", page)
            cluster.assert_at_rest()

    def test_it_is_told_where_a_request_lies(self):
        with self.three() as cluster:
            stream = cluster.stream(self.nearly_all[:1800], max_tokens=60, min_tokens=60)
            lies_in = wait_until(lambda: next((each["lies_in"] for each in cluster.show("requests")
                                               if each["lies_in"].count(", ") == 2 and "then" not in each["lies_in"]),
                                              None), 20, "it lies in three pools")
            self.assertEqual(sorted(part.split(":")[0] for part in lies_in.split(", ")), [name for name, _ in THREE])
            stream.finish()
            connection = http.client.HTTPConnection(cluster.address, next(iter(cluster.frontends.values())))
            connection.request("POST", "/v1/completions",
                               json.dumps({"prompt": ids(1800, 9), "max_tokens": 2}),
                               {"Content-Type": "application/json", "X-Request-Id": "spans"})
            connection.getresponse().read()
            connection.close()
            code, text, _ = wait_until(
                lambda: (answer := cluster.baton_ctl("explain", "spans"))[0] == 0 and answer, 10, "spans is explained")
            self.assertEqual(text.count("no block was left for it"), 2, text)

    def test_off_it_is_refused(self):
        with self.three(scheduler={"elastic": "off"}) as cluster:
            self.assertEqual(cluster.show("info")["max_context"], BLOCKS * 16)
            status, reply = cluster.post("/v1/completions", {"prompt": self.nearly_all, "max_tokens": 4})
            self.assertEqual(status, 400, reply)

    def test_a_reply_outgrows_two_pools(self):
        with self.three() as cluster:
            self.assertEqual(ask(cluster, self.grown, ALL - 100), self.grown_answer)
            numbers = counters(cluster)
            self.assertGreaterEqual(numbers["growths"], 2)
            self.assertEqual(numbers["preemptions"], 0)
            self.assertEqual(numbers["growth_blocks_moved"], 0)
            cluster.assert_at_rest()

    def test_growth_under_load_of_both_kinds(self):
        with self.three() as cluster:
            long = cluster.stream(self.nearly_all[:1200], max_tokens=400, min_tokens=400, temperature=0.8, seed=3)
            streams = [cluster.stream(**request) for request in self.many]
            self.assertEqual([stream.finish() for stream in streams], self.solo)
            self.assertEqual(long.finish(), self.streamed)
            numbers = counters(cluster)
            self.assertGreater(numbers["growths"], 2)
            self.assertEqual(numbers["growth_blocks_moved"], 0)
            cluster.assert_at_rest()

    def test_checked_pulls_and_a_host_part(self):
        with self.three(worker={"check_pulls": True, "host_pool_blocks": 60}) as cluster:
            self.assertEqual(ask(cluster, self.nearly_all), self.long_answer)
            streams = [cluster.stream(**request) for request in self.many]
            self.assertEqual([stream.finish() for stream in streams], self.solo)
            cluster.assert_at_rest()

    def begun(self, cluster):
        """The stream of `streamed`, of which some tokens have come."""
        stream = cluster.stream(self.nearly_all[:1200], max_tokens=400, min_tokens=400, temperature=0.8, seed=3)
        stream.wait_pieces(20)
        return stream

    def amid(self, cluster):
        stream = self.begun(cluster)
        where = cluster.show("requests")[0]["lies_in"]
        self.assertIn("mixed", where)
        return stream

    def test_one_drains(self):
        # Longer than the stream takes on a busy machine: behind it the request would have two pools left.
        with self.three(scheduler={"drain_s": 60}) as cluster:
            stream = self.begun(cluster)
            # One that it lies in already: it could not grow into another one that drains.
            where = cluster.show("requests")[0]["lies_in"].split(":")[0]
            cluster.ctl(f"set worker {where} drain")
            self.assertEqual(stream.finish(), self.streamed)
            cluster.ctl(f"set worker {where} ready")
            cluster.assert_at_rest()


@unittest.skipUnless(DEVICE == "cuda", "GPUs have kernels of their own for such heads")
class OnTiles(Elastic):
    """The same with heads for which GPUs have tiled kernels; the demo model's take the plain one."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.everywhere = {"model": random_model.write(pathlib.Path(cls.folder.name) / "model", head_dim=64,
                                                      num_hidden_layers=4)}
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_default_mode_gathers_a_prompts_keys(self):
        """Prompts have other kernels than in deterministic mode, whose sums are in no fixed order."""
        asked = {"prompt": self.nearly_all, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        told = []
        for workers, blocks, places in ((MIXED, 4 * BLOCKS, {}), (THREE, BLOCKS, PLACES)):
            with Three(workers=workers, worker={"pool_blocks": blocks, "deterministic": False}, per_worker=places,
                       scheduler=AUTO, **self.everywhere) as cluster:
                status, reply = cluster.post("/v1/completions", asked, timeout=300)
                self.assertEqual(status, 200, reply)
                told.append([value["logprob"] for entry in reply["choices"][0]["prompt_logprobs"] if entry
                             for value in entry.values()])
                self.assertEqual(counters(cluster)["growths"] >= 2, workers is THREE)
        self.assertEqual(len(told[0]), len(told[1]))
        # 0.1: many times what bf16 rounds off, and far below what a block of another sequence changes.
        self.assertLess(max(abs(one - other) for one, other in zip(*told)), 0.1)


def long(tokens):
    """Two small layers, of which the last one computes the last row alone: with the demo model's twelve, the squares
    of so many tokens take hours on two cores, and its context is 32,768."""
    with tempfile.TemporaryDirectory() as folder:
        model = random_model.write(pathlib.Path(folder) / "model", hidden_size=64, num_hidden_layers=2,
                                   num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                                   intermediate_size=64, max_position_embeddings=262144)
        prompt = ids(tokens)
        blocks = tokens // 16 + 100
        scheduler = {"prompt_chunk": 4096, "token_budget": 4096}
        answers = []
        for workers, each in ((MIXED, blocks), (THREE, blocks // 3)):
            with Three(workers=workers, model=model, worker={"pool_blocks": each}, per_worker=PLACES,
                       scheduler={**scheduler, **AUTO}) as cluster:
                began = time.monotonic()
                answers.append(ask(cluster, prompt))
                print(f"{tokens} tokens over {len(workers)}: {time.monotonic() - began:.1f} s, "
                      f"{counters(cluster)['growths']} growths", flush=True)
                cluster.assert_at_rest()
        if answers[0] != answers[1]:
            raise SystemExit("the answers differ")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "long":
        long(int(sys.argv[2]) if len(sys.argv) > 2 else 200_000)
    else:
        unittest.main()
