"""The pair against one mixed worker, and what the hand-off may cost: exact tokens everywhere."""

import json
import pathlib
import re
import sys
import tempfile
import time
import unittest

from cluster import DEVICE, MIXED, PAIR, PATIENCE, Cluster, wait_until
import random_model
import requests_mix

# Sent by clocks, not by requests.
PULSE = {"WorkerHeartbeat", "FrontendHeartbeat", "FrontendWelcome", "Hello", "Register",
         "Registered", "Welcome", "FrontendHello"}


def queue_bytes(cluster):
    types = cluster.show("queue")["by_type"]
    return sum(count["bytes"] for name, count in types.items() if name not in PULSE)


class SameTokens(requests_mix.AgainstSolo):
    requests = requests_mix.mix(24)

    def test_mixed_batch_on_one_worker(self):
        self.check(workers=MIXED)

    def test_pair(self):
        counters = self.check()
        self.assertGreaterEqual(counters["handoffs"], len(self.requests) - 2)

    def test_two_and_two(self):
        self.check(workers=[("prefill0", "prefill"), ("prefill1", "prefill"),
                            ("decode0", "decode"), ("decode1", "decode")])

    def test_other_chunks_budget_and_threads(self):
        self.check(scheduler={"prompt_chunk": 3, "token_budget": 29}, worker={"threads": 2})

    def test_preemption_keeps_the_tokens(self):
        counters = self.check(worker={"pool_blocks": 40})
        self.assertGreater(counters["preemptions"], 0)

    def test_full_decode_pool_holds_prefill_back(self):
        counters = self.check(per_worker={"decode0": {"pool_blocks": 16}})
        self.assertGreater(counters["handoffs"], 0)

    def test_short_prompts_stay_on_the_decode_worker(self):
        counters = self.check(scheduler={"local_prefill": {"tokens": 100000}})
        self.assertEqual(counters["handoffs"], 0)
        self.assertEqual(counters["remote_prefills"], 0)

    def test_two_front_ends(self):
        with Cluster(frontends=("frontend0", "frontend1")) as cluster:
            streams = [cluster.stream(frontend=f"frontend{i % 2}", **request)
                       for i, request in enumerate(self.requests)]
            self.assertEqual([stream.finish() for stream in streams], self.solo)
            # One of them dies: the other's streams go on, and its own wait for its next process.
            mine = cluster.stream("What is Baton?", frontend="frontend1", max_tokens=400,
                                  min_tokens=400, seed=1)
            other = cluster.stream("What is Baton?", frontend="frontend0", max_tokens=4000,
                                   min_tokens=4000, seed=1)
            mine.wait_pieces(3)
            other.wait_pieces(3)
            cluster.kill("frontend0")
            self.assertEqual(mine.finish()[1], 400)
            self.assertFalse(other.done.is_set())
            cluster.start("frontend0")
            seen = other.pieces
            other.wait_pieces(seen + 3)
            other.leave()
            cluster.assert_at_rest(5)


@unittest.skipUnless(DEVICE == "cpu", "the keys of CPU workers")
class Setup(unittest.TestCase):
    """What is chosen is shown with its key, each key overrides it, and what cannot fit is said."""

    def test_chosen_and_overridden(self):
        template = pathlib.Path(tempfile.mkdtemp(prefix="baton-e2e-")) / "mine.jinja"
        self.addCleanup(lambda: (template.unlink(), template.parent.rmdir()))
        template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        with Cluster(worker={"pool_mib": 0}) as cluster:
            chosen = {line["what"]: line for line in cluster.show("setup")}
        self.assertEqual(chosen["context"]["chosen"], "32768 tokens")
        self.assertEqual(chosen["tokenizer"]["chosen"], "tokenizer.model")
        self.assertEqual(chosen["chat template"]["chosen"], "chat_format.json")
        self.assertRegex(chosen["decode0 weights"]["chosen"],
                         r"^bf16, 0\.\d\d GiB(, \d+ MiB shared with prefill0)?$")
        tokens = int(re.search(r"(\d+) tokens", chosen["prefill0 KV pool"]["chosen"]).group(1))
        self.assertGreaterEqual(tokens, 32768)
        options = {"dtype": "f32", "pool_blocks": 100, "pool_mib": 0, "threads": 2}
        with Cluster(worker=options, top={"max_context": 1000},
                     frontend={"chat_template": str(template)}) as cluster:
            lines = {line["what"]: line["chosen"] for line in cluster.show("setup")}
            self.assertEqual(lines["context"], "1000 tokens")
            self.assertEqual(lines["chat template"], str(template))
            self.assertIn("decode on cpu, 2 threads", lines["decode0"])
            self.assertRegex(lines["decode0 weights"], r"^f32, ")
            self.assertIn(": 1600 tokens", lines["decode0 KV pool"])
            status, reply = cluster.post("/v1/completions", {"prompt": [5] * 1000, "max_tokens": 1})
            self.assertEqual(status, 400, reply)
            status, reply = cluster.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})
            self.assertEqual(status, 200, reply)

    def test_too_little_memory_is_said_with_the_arithmetic(self):
        cluster = Cluster(workers=MIXED, worker={"memory_mib": 80})
        try:
            cluster.start("scheduler")
            cluster.start("mixed0")
            self.assertNotEqual(cluster.processes["mixed0"].wait(60), 0)
            log = (cluster.folder / "mixed0.log").read_text()
            self.assertRegex(log, r"not enough memory: weights 0\.\d\d GiB \(bf16\) \+ KV pool .* "
                                  r"memory_mib allows 0\.08 GiB")
        finally:
            cluster.stop()


class Limits(unittest.TestCase):
    def test_200_beside_20000(self):
        with Cluster(worker={"pool_mib": 256}) as cluster:
            long = cluster.stream("Count for ever.", max_tokens=20000, min_tokens=20000, seed=1)
            long.wait_pieces(1)
            short = cluster.stream("Count a little.", max_tokens=200, min_tokens=200, seed=2)
            self.assertEqual(short.finish()[1], 200)
            self.assertFalse(long.done.is_set())
            long.leave()
            cluster.assert_at_rest(5)

    def test_deadline_ends_a_request(self):
        with Cluster(worker={"step_delay_ms": 20}) as cluster:
            stream = cluster.stream("hello", max_tokens=5000, min_tokens=5000, timeout_s=1)
            stream.done.wait(20)
            self.assertIn("deadline", stream.error or "")
            cluster.assert_at_rest(5)

    def test_client_that_leaves_frees_its_blocks(self):
        with Cluster(worker={"step_delay_ms": 5}) as cluster:
            streams = [cluster.stream("hello", max_tokens=5000, min_tokens=5000, seed=i)
                       for i in range(8)]
            for stream in streams:
                stream.wait_pieces(2)
            for stream in streams:
                stream.leave()
            cluster.assert_at_rest(5)


class QueueBytes(unittest.TestCase):
    """Only control data crosses the queue: at most 16 bytes a prompt token, whatever the KV weighs."""

    def bytes_for(self, cluster, prompt_tokens):
        before = queue_bytes(cluster)
        prompt = [5 + i % 1000 for i in range(prompt_tokens)]
        stream = cluster.stream(prompt, max_tokens=4, min_tokens=4, temperature=0)
        stream.finish(300)
        wait_until(lambda: cluster.show("requests") == [], 10, "acknowledged")
        return queue_bytes(cluster) - before

    def growth(self, **options):
        with Cluster(worker={"pool_mib": 128}, **options) as cluster:
            small = self.bytes_for(cluster, 100)
            large = self.bytes_for(cluster, 10_000)
            self.assertGreaterEqual(cluster.show("info")["counters"]["handoffs"], 2)
        print(f"queue bytes: {small} at 100 tokens, {large} at 10,000: "
              f"{(large - small) / 9_900:.2f} a token")
        return small, large

    def test_bytes_a_prompt_token_do_not_depend_on_the_model(self):
        with tempfile.TemporaryDirectory() as folder:
            results = []
            for head_dim in (32, 64):
                model = random_model.write(pathlib.Path(folder) / str(head_dim), head_dim=head_dim,
                                           num_hidden_layers=2)
                results.append(self.growth(model=model))
        for small, large in results:
            self.assertLessEqual((large - small) / 9_900, 16)
            self.assertLessEqual(small, 100 * 16 + 2000)
        self.assertAlmostEqual(results[0][1], results[1][1], delta=200)


class Unreachable(unittest.TestCase):
    """A decode worker that cannot map the prefill worker's pool."""

    def test_start_up_names_the_pair_and_every_answer_is_right(self):
        prompts = ["What is Baton?", "What is a KV cache? " * 20, [1, 5, 9, 12]]

        def answers(cluster):
            streams = [cluster.stream(prompt, max_tokens=40, seed=i, temperature=0.8)
                       for i, prompt in enumerate(prompts)]
            return [stream.finish()[:2] for stream in streams]

        with Cluster() as cluster:
            wanted = answers(cluster)
        with Cluster(per_worker={"decode0": {"fault_unmappable": True}}) as cluster:
            log = cluster.folder / "scheduler.log"
            said = r"decode0 \(.*\) and prefill0 \(.*\) cannot reach each other"
            wait_until(lambda: re.search(said, log.read_text()), 10, said)
            began = time.monotonic()
            self.assertEqual(answers(cluster), wanted)
            self.assertLess(time.monotonic() - began, 20 * PATIENCE)
            self.assertEqual(cluster.show("info")["counters"]["pull_failures"], 0)
            workers = {w["name"]: w for w in cluster.show("workers")}
            self.assertEqual(workers["decode0"]["unreachable"], ["prefill0"])
            self.assertEqual(workers["prefill0"]["unreachable"], [])
            cluster.assert_at_rest()


class Order(unittest.TestCase):
    """Claims of order, proved from the scheduler's event trace with a slow pull."""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.jsonl"
            with Cluster(scheduler={"event_log": str(trace), "prompt_chunk": 32},
                         per_worker={"decode0": {"pull_delay_ms": 300}}) as cluster:
                running = cluster.stream("Tell me about Baton.", max_tokens=3000, min_tokens=3000,
                                         seed=1)
                running.wait_pieces(2, 30)
                late = cluster.stream("What is a KV cache? " * 20, max_tokens=5, min_tokens=5,
                                      seed=2)
                late.finish()
                running.leave()
                cluster.assert_at_rest()
            cls.events = [json.loads(line) for line in trace.read_text().splitlines()]
        pulls = [e for e in cls.events if e["event"] == "pull"]
        cls.request = pulls[-1]["request"]
        cls.pulls = [e for e in pulls if e["request"] == cls.request]
        pulls = {e["pull"] for e in cls.pulls}
        cls.answers = [e for e in cls.events
                       if e["event"] == "pull_done" and e["pull"] in pulls]

    def number(self, **what):
        """Place in the trace of the first event that has these values."""
        for event in self.events:
            if all(event.get(key) == value for key, value in what.items()):
                return event["n"]
        self.fail(f"no event {what}")

    def test_blocks_are_pulled_while_the_prompt_still_runs(self):
        last_chunk = max(e["n"] for e in self.events if e["event"] == "plan" and
                         any(row["request"] == self.request for row in e["rows"]))
        self.assertGreater(len(self.pulls), 2)
        first_token = self.number(event="token", request=self.request, first_index=0)
        self.assertLess(self.pulls[0]["n"], first_token)
        self.assertLess(self.pulls[0]["n"], last_chunk + 100)

    def test_first_token_leaves_before_the_pull_is_done(self):
        first_token = self.number(event="token", request=self.request, first_index=0)
        self.assertLess(first_token, max(e["n"] for e in self.answers))

    def test_no_decode_step_waits_for_a_pull(self):
        start, end = self.pulls[0]["n"], max(e["n"] for e in self.answers)
        steps = [e for e in self.events if start < e["n"] < end and
                 e["event"] == "result" and e["worker"] == "decode0"]
        self.assertGreater(len(steps), 3)

    def test_decoding_begins_after_the_last_pull(self):
        added = next(e["n"] for e in self.events if e["event"] == "plan" and
                     any(a["request"] == self.request and a["decode"] for a in e["add"]))
        self.assertGreater(added, max(e["n"] for e in self.answers))


class Admin(unittest.TestCase):
    def test_commands(self):
        with Cluster() as cluster:
            self.assertEqual({w["name"]: w["role"] for w in cluster.show("workers")}, dict(PAIR))
            for worker in cluster.show("workers"):
                self.assertLessEqual({"name", "role", "state", "pid", "term", "steps", "sequences"},
                                     worker.keys())
            for pool in cluster.show("kv"):
                self.assertEqual(set(pool), {"worker", "part", "allocation", "total", "free", "owned",
                                             "cached", "fenced"})
            mode = (cluster.folder / "run" / "admin.sock").stat().st_mode & 0o777
            self.assertEqual(mode, 0o600)
            self.assertIn("show info", cluster.ctl("help"))
            self.assertTrue(cluster.ctl("nonsense").startswith("error:"))
            self.assertTrue(cluster.ctl("set worker nobody drain").startswith("error:"))
            self.assertEqual(cluster.ctl("set worker decode0 drain"), "ok\n")
            self.assertEqual(cluster.ctl("wait worker decode0 drained 10s", 20), "ok\n")
            # With decode0 drained the prefill worker decodes, and nothing fails.
            self.assertEqual(cluster.stream("hello", max_tokens=20, min_tokens=20).finish()[1], 20)
            self.assertEqual(cluster.ctl("set worker decode0 ready"), "ok\n")
            self.assertEqual(cluster.ctl("wait worker decode0 ready 60s"), "ok\n")
            self.assertTrue(cluster.ctl("wait worker nobody ready 100ms").startswith("error:"))

    def test_roles_change_under_load(self):
        """Prefill and decode workers swap roles, twice, and nobody notices."""
        def role_of(cluster, name):
            return next(w["role"] for w in cluster.show("workers") if w["name"] == name)

        requests = [{"prompt": f"{n} prompts", "max_tokens": 120, "min_tokens": 120, "seed": n,
                     "temperature": 0.8} for n in range(8)]
        with Cluster() as quiet:
            expected = [quiet.stream(**request).finish() for request in requests]
        with Cluster(worker={"step_delay_ms": 5}) as cluster:
            self.assertTrue(cluster.ctl("set worker decode0 role both").startswith("error: usage"))
            streams = []
            for turn in range(4):
                for request in requests[2 * turn:2 * turn + 2]:
                    streams.append(cluster.stream(**request))
                streams[-1].wait_pieces(5)
                first, second = ("prefill", "decode") if turn % 2 else ("decode", "prefill")
                self.assertEqual(cluster.ctl(f"set worker prefill0 role {first}"), "ok\n")
                self.assertEqual(cluster.ctl(f"set worker decode0 role {second}"), "ok\n")
                self.assertEqual(role_of(cluster, "prefill0"), first)
            for stream, wanted in zip(streams, expected):
                self.assertEqual(stream.finish(), wanted)
            cluster.ctl("set worker decode0 role mixed")
            cluster.restart("decode0")
            wait_until(lambda: cluster.worker_state("decode0") == "ready", 30, "decode0 is back")
            cluster.restart("scheduler")
            cluster.wait_ready()
            self.assertEqual(role_of(cluster, "decode0"), "mixed", "the worker tells the next scheduler")
            self.assertEqual(role_of(cluster, "prefill0"), "prefill")
            cluster.assert_at_rest()

    def test_cancel(self):
        with Cluster(worker={"step_delay_ms": 5}) as cluster:
            stream = cluster.stream("hello", max_tokens=5000, min_tokens=5000)
            stream.wait_pieces(2)
            request = cluster.show("requests")[0]["id"]
            self.assertEqual(cluster.ctl(f"cancel {request}"), "ok\n")
            self.assertTrue(stream.done.wait(10))
            cluster.assert_at_rest(5)


class StartOrder(unittest.TestCase):
    def test_any_order(self):
        """The scheduler comes last, then everything is restarted one by one."""
        cluster = Cluster()
        try:
            for name in ("frontend0", "decode0", "prefill0"):
                cluster.start(name)
            time.sleep(0.5)
            self.assertEqual(cluster.get("/health")[0], 503)
            cluster.start("scheduler")
            cluster.wait_ready()
            for name in ("prefill0", "frontend0", "scheduler", "decode0"):
                cluster.restart(name)
                time.sleep(0.3)
                cluster.wait_ready()
                self.assertEqual(cluster.stream("hi", max_tokens=8, min_tokens=8).finish()[1], 8)
            cluster.assert_at_rest()
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(unittest.main())
