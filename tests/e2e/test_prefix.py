"""The prefix cache in real processes: the next turn of a chat pulls what the decode worker wrote, whoever
dies meanwhile; a trace finds in a server what an offline simulation says. Tokens are the same without it."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

from cluster import MIXED, SOURCE, Cluster, wait_until

PROMPT = "What is Baton? Tell me what it does with prompts, and with what follows them. "
POOL_BLOCKS = 6  # of 512 tokens
LOADGEN = SOURCE / "tools" / "loadgen"


def turns(first_answer):
    """The two turns of a chat, as parameters of completions."""
    first = {"prompt": PROMPT, "max_tokens": 150, "min_tokens": 150, "temperature": 0.8, "seed": 5}
    second = {"prompt": PROMPT + first_answer + " And why?", "max_tokens": 40, "min_tokens": 40,
              "temperature": 0.8, "seed": 6}
    return first, second


class NextTurn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Cluster(scheduler={"prefix_cache": False}) as cluster:
            first, _ = turns("")
            cls.first = cluster.stream(**first).finish()
            second = cluster.stream(**turns(cls.first[0])[1])
            cls.second = second.finish()
            assert second.usage["prompt_tokens_details"] == {"cached_tokens": 0}, second.usage
            cls.prompt_tokens = second.usage["prompt_tokens"]
            assert cluster.show("info")["counters"]["cached_tokens"] == 0

    def cluster(self, **options):
        return Cluster(scheduler={"prefix_pull_tokens": 16}, **options)

    def ask_first(self, cluster):
        first, second = turns(self.first[0])
        self.assertEqual(cluster.stream(**first).finish(), self.first)
        wait_until(lambda: cluster.show("requests") == [], 10, "the first turn is over")
        return second

    def wait_for_pull(self, cluster):
        wait_until(lambda: any(r["phase"] == "pull" for r in cluster.show("requests")), 20,
                   "the prefix is being pulled")

    def test_it_is_pulled_from_the_decode_worker(self):
        with self.cluster() as cluster:
            second = self.ask_first(cluster)
            stream = cluster.stream(**second)
            self.assertEqual(stream.finish(), self.second)
            counters = cluster.show("info")["counters"]
            self.assertEqual(counters["prefix_pulls"], 1)
            self.assertGreater(counters["pulled_prefix_tokens"], 100)
            cached = counters["cached_tokens"] + counters["pulled_prefix_tokens"]
            self.assertEqual(stream.usage["prompt_tokens_details"], {"cached_tokens": cached})
            self.assertGreater(cached, self.prompt_tokens // 2)
            # Whole replies say it, too; now the prefill worker knows all of it.
            status, reply = cluster.post("/v1/completions", second)
            self.assertEqual((status, reply["choices"][0]["text"]), (200, self.second[0]))
            self.assertGreaterEqual(reply["usage"]["prompt_tokens_details"]["cached_tokens"], cached)
            self.assertEqual(cluster.show("info")["counters"]["prefix_pulls"], 1)
            messages = [{"role": "user", "content": PROMPT}]
            for repeated in (False, True):
                status, reply = cluster.post("/v1/chat/completions",
                                             {"messages": messages, "max_tokens": 2})
                details = reply["usage"]["prompt_tokens_details"]
                self.assertEqual((status, details["cached_tokens"] > 0), (200, repeated), reply)
            metrics = cluster.get("/metrics")[1]
            self.assertRegex(metrics, r"vllm:prefix_cache_hits_total\{[^}]*\} [1-9]")
            cluster.assert_at_rest()

    def test_the_source_dies_while_it_is_read(self):
        with self.cluster(per_worker={"prefill0": {"pull_delay_ms": 1000}}) as cluster:
            second = self.ask_first(cluster)
            stream = cluster.stream(**second)
            self.wait_for_pull(cluster)
            cluster.restart("decode0")
            self.assertEqual(stream.finish(), self.second)
            self.assertEqual(cluster.show("info")["counters"]["prefix_pulls"], 1)
            cluster.wait_ready()
            cluster.assert_at_rest()

    def test_the_target_dies_while_it_reads(self):
        with self.cluster(per_worker={"prefill0": {"pull_delay_ms": 1000}}) as cluster:
            second = self.ask_first(cluster)
            stream = cluster.stream(**second)
            self.wait_for_pull(cluster)
            cluster.restart("prefill0")
            self.assertEqual(stream.finish(), self.second)
            cluster.wait_ready()
            cluster.assert_at_rest()

    def test_the_client_leaves_meanwhile(self):
        with self.cluster(per_worker={"prefill0": {"pull_delay_ms": 1000}}) as cluster:
            second = self.ask_first(cluster)
            stream = cluster.stream(**second)
            self.wait_for_pull(cluster)
            stream.leave()
            cluster.assert_at_rest()
            self.assertEqual(cluster.stream(**second).finish(), self.second)

    def test_a_source_that_cannot_be_read(self):
        with self.cluster(per_worker={"prefill0": {"fault_unmappable": True}}) as cluster:
            second = self.ask_first(cluster)
            self.assertEqual(cluster.stream(**second).finish(), self.second)
            self.assertEqual(cluster.show("info")["counters"]["prefix_pulls"], 0)
            workers = {w["name"]: w for w in cluster.show("workers")}
            self.assertEqual(workers["prefill0"]["unreachable"], ["decode0"])
            cluster.assert_at_rest()


def small_trace():
    """Conversations behind two system prompts, more blocks than the pool holds."""
    rng = random.Random(4)
    trace, chats, last = [], [], 10
    for i in range(24):
        if chats and rng.random() < 0.6:
            ids, length = chats[rng.randrange(len(chats))]
            length += rng.randint(40, 400)
        else:
            ids, length = [rng.randint(1, 3)], rng.randint(520, 1400)
        while len(ids) < length // 512:
            last += 1
            ids = [*ids, last]
        if length > 2300:
            continue
        chats.append((ids, length))
        last += 1
        tail = [last] if length % 512 else []
        trace.append({"timestamp": 100 * i, "input_length": length, "output_length": rng.randint(1, 30),
                      "hash_ids": ids[:length // 512] + tail})
    # A prompt that ends with its block: the last one is computed again each time.
    trace += [{"timestamp": 5000 + i, "input_length": 1024, "output_length": 1 + 600 * (i == 1),
               "hash_ids": [1, 500]} for i in range(3)]
    return trace


class Replay(unittest.TestCase):
    """tools/loadgen prefix_replay, blocks of 512 tokens."""

    def replay(self, cluster, *arguments):
        port = next(iter(cluster.frontends.values()))
        done = subprocess.run(
            [sys.executable, LOADGEN, "prefix_replay", "--trace", self.trace, "--capacity", str(POOL_BLOCKS), "--url",
             f"127.0.0.1:{port}", *map(str, arguments)], capture_output=True, text=True, timeout=280)
        print(done.stdout)
        return done

    def test_a_server_finds_what_the_simulation_says(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.trace = folder / "trace.jsonl"
        self.trace.write_text("".join(json.dumps(line) + "\n" for line in small_trace()))
        options = {"workers": MIXED, "worker": {"tokens_per_block": 512, "pool_blocks": POOL_BLOCKS, "pool_mib": 0}}
        with Cluster(**options) as cluster:
            done = self.replay(cluster, "--outputs", folder / "with")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("difference +0.0000, 0 requests differ", done.stdout)
            cluster.assert_at_rest()
            counters = cluster.show("info")["counters"]
            self.assertGreater(counters["cached_tokens"], 0.2 * counters["prefill_tokens"])
            self.assertLess(counters["cached_tokens"], 0.8 * counters["prefill_tokens"])
            # Again, with what is left in the pool from before: nothing of it may be found, or in the way.
            self.assertEqual(self.replay(cluster, "--requests", 8).returncode, 0)
            done = self.replay(cluster, "--at_once", 4)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("difference", done.stdout)
        with Cluster(**options, scheduler={"prefix_cache": False}) as cluster:
            done = self.replay(cluster, "--outputs", folder / "without")
            self.assertEqual(done.returncode, 1, "nothing is found, and it says so")
        self.assertEqual((folder / "with").read_text(), (folder / "without").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
