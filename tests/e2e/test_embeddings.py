"""Vectors instead of text, with real processes: /v1/embeddings, /v1/rerank, /v1/score and Ollama's, against what
transformers makes of the same checkpoint (tests/golden/make_pooling.py), and across deaths."""

import base64
import json
import math
import os
import signal
import struct
import subprocess
import threading
import time
import unittest

from cluster import BIN, DEVICE, MIXED, PAIR, SOURCE, Cluster, wait_until

MODEL = SOURCE / "tests" / "golden" / "models" / "qwen3_embedding"
GOLDEN = json.loads((SOURCE / "tests" / "golden" / "pooling.json").read_text())
NEAR = 5e-4  # of values of vectors of length 1, and of scores


def cluster(workers=MIXED, task="auto", **options):
    return Cluster(workers=workers, model=MODEL, top={"model_task": task, **options.pop("top", {})}, **options)


def texts(count):
    """Some hundred tokens each, with common beginnings."""
    return [f"The scheduler owns every block of every pool, and text {i % 7} says so. " * (2 + i % 9) + str(i)
            for i in range(count)]


class Near(unittest.TestCase):
    def assert_near(self, got, wanted):
        self.assertEqual(len(got), len(wanted))
        worst = max(abs(a - b) for a, b in zip(got, wanted))
        self.assertLess(worst, NEAR)

    def embed(self, at, **body):
        status, reply = at.post("/v1/embeddings", body)
        self.assertEqual(status, 200, reply)
        self.assertEqual([entry["index"] for entry in reply["data"]], list(range(len(reply["data"]))))
        return [entry["embedding"] for entry in reply["data"]], reply


class Embeddings(Near):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(cluster(frontend={"dialects": ["openai", "ollama"]}))

    def test_are_those_of_transformers(self):
        golden = GOLDEN["embeddings"]
        vectors, reply = self.embed(self.cluster, input=[entry["text"] for entry in golden])
        for vector, entry in zip(vectors, golden):
            self.assert_near(vector, entry["vector"])
        self.assertEqual(reply["usage"]["prompt_tokens"], sum(len(entry["ids"]) for entry in golden))
        by_ids, _ = self.embed(self.cluster, input=[entry["ids"] for entry in golden])
        self.assertEqual(by_ids, vectors, "the same tokens, to the bit")

    @unittest.skipUnless(DEVICE == "cpu", "ranks are processes on CPUs")
    def test_two_ranks_give_the_same_bits(self):
        wanted, _ = self.embed(self.cluster, input=texts(9))
        with cluster(worker={"ranks": 2}) as ranked:
            self.assertEqual(wanted, self.embed(ranked, input=texts(9))[0])

    def test_one_text_one_list_of_tokens(self):
        entry = GOLDEN["embeddings"][1]
        (text,), _ = self.embed(self.cluster, input=entry["text"])
        (tokens,), _ = self.embed(self.cluster, input=entry["ids"])
        self.assertEqual(text, tokens)
        self.assertAlmostEqual(sum(value * value for value in text), 1, places=5)

    def test_bytes_and_fewer_dimensions(self):
        entry = GOLDEN["embeddings"][2]
        (numbers,), _ = self.embed(self.cluster, input=entry["text"])
        (packed,), _ = self.embed(self.cluster, input=entry["text"], encoding_format="base64")
        self.assert_near(struct.unpack(f"<{len(numbers)}f", base64.b64decode(packed)), numbers)
        (short,), _ = self.embed(self.cluster, input=entry["text"], dimensions=8)
        scale = math.sqrt(sum(value * value for value in entry["vector"][:8]))
        self.assert_near(short, [value / scale for value in entry["vector"][:8]])

    def test_a_cached_beginning_changes_no_bit(self):
        text = texts(1)[0] + " once more"
        (first,), cold = self.embed(self.cluster, input=text, cache_salt="own")
        (again,), warm = self.embed(self.cluster, input=text, cache_salt="own")
        self.assertEqual(first, again)
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreater(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.cluster.assert_at_rest()

    def test_as_ollama_asks(self):
        golden = GOLDEN["embeddings"][:2]
        status, reply = self.cluster.post("/api/embed", {"model": "demo", "input": [e["text"] for e in golden]})
        self.assertEqual(status, 200, reply)
        for vector, entry in zip(reply["embeddings"], golden):
            self.assert_near(vector, entry["vector"])
        self.assertEqual(reply["prompt_eval_count"], sum(len(e["ids"]) for e in golden))
        status, reply = self.cluster.post("/api/embeddings", {"model": "demo:latest", "prompt": golden[0]["text"]})
        self.assertEqual(status, 200, reply)
        self.assert_near(reply["embedding"], golden[0]["vector"])
        status, reply = self.cluster.post("/api/show", {"model": "demo"})
        self.assertEqual(reply["capabilities"], ["embedding"])

    def test_what_it_does_not_do(self):
        for path, body in (("/v1/completions", {"prompt": "Hello"}),
                           ("/v1/rerank", {"query": "a", "documents": ["b"]})):
            status, reply = self.cluster.post(path, body)
            self.assertEqual(status, 400, (path, reply))
            self.assertIn("model_task: embed", json.dumps(reply), path)
        status, reply = self.cluster.post("/v1/embeddings", {"input": "word " * 2000})
        self.assertEqual((status, reply["error"]["param"]), (400, "input"), reply)
        vectors, reply = self.embed(self.cluster, input="word " * 2000, truncate_prompt_tokens=-1)
        self.assertEqual(reply["usage"]["prompt_tokens"], 1023)

    def test_the_setup_says_what_it_is_served_for(self):
        lines = {line["what"]: line for line in self.cluster.show("setup")}
        self.assertEqual(lines["task"]["chosen"], "embed")


class Scores(Near):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(cluster(workers=PAIR, task="rerank"))

    def test_are_those_of_transformers(self):
        for entry in GOLDEN["pairs"]:
            ask = {"query": entry["query"], "documents": [entry["document"]]}
            if "instruction" in entry:
                ask["instruction"] = entry["instruction"]
            status, reply = self.cluster.post("/v1/rerank", ask)
            self.assertEqual(status, 200, reply)
            self.assertLess(abs(reply["results"][0]["relevance_score"] - entry["score"]), NEAR, entry["query"])
            self.assertEqual(reply["usage"]["prompt_tokens"], len(entry["ids"]))

    def test_the_best_first_and_scores_in_order(self):
        documents = [entry["document"] for entry in GOLDEN["pairs"]]
        query = "What is the capital of China?"
        status, reply = self.cluster.post("/rerank", {"query": query, "documents": documents,
                                                      "return_documents": True})
        self.assertEqual(status, 200, reply)
        scores = [result["relevance_score"] for result in reply["results"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        for result in reply["results"]:
            self.assertEqual(result["document"]["text"], documents[result["index"]])
        status, few = self.cluster.post("/v2/rerank", {"query": query, "documents": documents, "top_n": 2})
        self.assertEqual([result["index"] for result in few["results"]],
                         [result["index"] for result in reply["results"][:2]])
        status, listed = self.cluster.post("/score", {"text_1": query, "text_2": documents})
        self.assertEqual(status, 200, listed)
        self.assertEqual({entry["index"]: entry["score"] for entry in listed["data"]},
                         {result["index"]: result["relevance_score"] for result in reply["results"]})
        self.cluster.assert_at_rest()

    def test_it_makes_no_embeddings(self):
        status, reply = self.cluster.post("/v1/embeddings", {"input": "a"})
        self.assertEqual((status, reply["error"]["code"]), (400, "wrong_task"), reply)


class Asker(threading.Thread):
    """One request, whose reply is looked at later."""

    def __init__(self, at, body):
        super().__init__(daemon=True)
        self.at, self.body, self.result = at, body, None
        self.start()

    def run(self):
        try:
            self.result = self.at.post("/v1/embeddings", self.body)
        except Exception as failure:  # the test looks at it
            self.result = 0, repr(failure)


class Deaths(Near):
    def undisturbed(self, count):
        with cluster() as calm:
            vectors, _ = self.embed(calm, input=texts(count))
        return vectors

    def test_a_worker_dies_amid_200(self):
        wanted = self.undisturbed(200)
        for workers, victim in ((MIXED, "mixed0"), (PAIR, "prefill0")):
            with cluster(workers=workers, worker={"step_delay_ms": 5},
                         scheduler={"token_budget": 128, "prompt_chunk": 48}) as at:
                asker = Asker(at, {"input": texts(200)})
                wait_until(lambda: at.show("info")["counters"]["computed_tokens"] > 1500, 30, "some are computed")
                at.restart(victim)
                asker.join(120)
                status, reply = asker.result
                self.assertEqual(status, 200, reply)
                self.assertEqual([entry["embedding"] for entry in reply["data"]], wanted, workers)
                at.assert_at_rest()

    def test_the_scheduler_and_the_front_end_die(self):
        wanted = self.undisturbed(80)
        for victim in ("scheduler", "frontend0"):
            with cluster(worker={"step_delay_ms": 10}, scheduler={"token_budget": 128}) as at:
                asker = Asker(at, {"input": texts(80)})
                wait_until(lambda: at.show("info")["counters"]["computed_tokens"] > 1000, 30, "some are computed")
                at.restart(victim)
                asker.join(120)
                status, reply = asker.result
                self.assertEqual(status, 200, (victim, reply))
                self.assertEqual([entry["embedding"] for entry in reply["data"]], wanted, victim)


class Refusals(unittest.TestCase):
    def refused(self, program, *options):
        done = subprocess.run([BIN / program, *map(str, options)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stdout + done.stderr

    def test_a_model_without_yes_or_no_ranks_nothing(self):
        text = self.refused("baton-frontend", "--run_dir", "/tmp/baton-e2e-nobody", "--model", SOURCE / "demo" / "model",
                            "--model_task", "rerank", "--port", 0)
        self.assertIn("model_task: rerank", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
