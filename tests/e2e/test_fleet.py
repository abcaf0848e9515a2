"""What routers in front of several servers read: loads in replies' heads, and what each worker's pool holds."""

import http.client
import itertools
import json
import struct
import tempfile
import time
import unittest

from cluster import Cluster, free_port, wait_until
from zmq_reader import DEALER, SUB, Socket, unpack

FORMAT, REPORT = "endpoint-load-metrics-format", "endpoint-load-metrics"


def ask(cluster, path, body=None, headers=None):
    """(status, the report in the reply's head)"""
    connection = http.client.HTTPConnection("127.0.0.1", next(iter(cluster.frontends.values())), timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body),
                           {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        response.read()
        return response.status, response.getheader(REPORT)
    finally:
        connection.close()


class Renders(unittest.TestCase):
    """A router may ask which tokens a request is; they are those that the request then has."""

    def check(self, cluster):
        chat = {"messages": [{"role": "user", "content": "Hi there"}], "max_tokens": 2}
        status, told = cluster.post("/v1/chat/completions/render", {**chat, "stream": True})
        self.assertEqual(status, 200, told)
        tokens = told["token_ids"]
        self.assertEqual(tokens, cluster.post("/tokenize", {"messages": chat["messages"]})[1]["tokens"])
        status, refused = cluster.post("/v1/chat/completions/render", {**chat, "max_tokens": -1, "stream": True})
        self.assertEqual((status, refused["error"]["param"]), (400, "max_tokens"))
        status, told = cluster.post("/v1/completions/render", {"prompt": ["Hi", [5, 6]], "max_tokens": 2})
        self.assertEqual([one["token_ids"] for one in told], [cluster.post("/tokenize", {"prompt": "Hi"})[1]["tokens"], [5, 6]])
        self.assertEqual(cluster.show("requests"), [], "nothing has run")
        self.assertEqual(len(tokens), cluster.post("/v1/chat/completions", chat)[1]["usage"]["prompt_tokens"])

    def test_with_the_models_own_format(self):
        with Cluster(workers=[("mixed0", "mixed")], fake=True) as cluster:
            self.check(cluster)

    def test_with_a_template(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}[assistant]")
            file.flush()
            with Cluster(workers=[("mixed0", "mixed")], fake=True, frontend={"chat_template": file.name}) as cluster:
                self.check(cluster)


class Loads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(workers=[("mixed0", "mixed")], fake=True,
                                                    scheduler={"max_running": 2}))

    def report(self, path, body):
        status, text = ask(self.cluster, path, body, {FORMAT: "JSON"})
        self.assertTrue(text.startswith("JSON {"), text)
        return status, json.loads(text.removeprefix("JSON "))

    def test_a_reply_tells_the_load_where_it_is_asked_to(self):
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        for stream in (False, True):
            status, report = self.report("/v1/chat/completions", {**chat, "stream": stream})
            self.assertEqual(status, 200)
            self.assertGreater(report["application_utilization"], 0)
            self.assertGreater(report["rps_fractional"], 0)
            self.assertEqual(set(report["named_metrics"]),
                             {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"})
        self.assertEqual(ask(self.cluster, "/v1/chat/completions", chat), (200, None))
        self.assertEqual(ask(self.cluster, "/v1/chat/completions", chat, {FORMAT: "BIN"}), (200, None))
        status, text = ask(self.cluster, "/v1/completions", {"prompt": "x", "max_tokens": 2}, {FORMAT: "text"})
        self.assertRegex(text, r"^TEXT application_utilization=[\d.e-]+, rps_fractional=[\d.]+, named_metrics\.kv")

    def test_other_pages_and_refusals_tell_it_too(self):
        self.assertEqual(self.report("/health", None)[0], 200)
        self.assertEqual(self.report("/v1/completions", {"prompt": "x", "max_tokens": -1})[0], 400)

    def test_it_rises_with_the_load(self):
        calm = self.report("/health", None)[1]
        streams = [self.cluster.stream("Hello", max_tokens=1900, ignore_eos=True) for _ in range(40)]

        def busy():
            report = self.report("/health", None)[1]
            return report if report["named_metrics"]["num_requests_waiting"] > 0 else None
        report = wait_until(busy, 20, "requests wait")
        self.assertGreater(report["application_utilization"], 1)
        self.assertLess(calm["application_utilization"], report["application_utilization"])
        for stream in streams:
            stream.leave()

    def test_a_successor_writes_the_same_head_again(self):
        name, port = next(iter(self.cluster.frontends.items()))
        for stream in (True, False):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": "Hello", "max_tokens": 3000, "ignore_eos": True, "stream": stream}), {FORMAT: "JSON"})
            if stream:
                response = connection.getresponse()
                response.readline()
            else:
                wait_until(lambda: self.cluster.show("requests"), 10, "it runs")
            self.cluster.restart(name)
            if not stream:
                response = connection.getresponse()
            self.assertTrue(response.getheader(REPORT).startswith("JSON "))
            text = response.read().decode()
            self.assertIn("data: [DONE]" if stream else '"completion_tokens":3000', text)
            connection.close()
            self.cluster.wait_ready()
            self.assertIn('\nbaton_replies_taken_over_total{model_name="demo"} 1\n', self.cluster.get("/metrics")[1])


class Caches(unittest.TestCase):
    """A router's books of two workers' pools, kept by what the scheduler publishes."""

    def setUp(self):
        self.endpoint, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))

    def cluster(self, **scheduler):
        return self.enterContext(Cluster(workers=[("mixed0", "mixed"), ("mixed1", "mixed")], fake=True, worker={
            "pool_blocks": 96}, scheduler={
            "kv_events": self.endpoint, "kv_events_replay": self.replay, **scheduler}))

    def replayed(self, start=0):
        """[(number, payload)] of what the scheduler still has."""
        got = []
        with Socket(DEALER, self.replay) as client:
            client.send(b"", struct.pack(">q", start))
            while True:
                frames = client.receive()
                self.assertIsNotNone(frames, "the end of the replay does not come")
                empty, number, payload = frames
                self.assertEqual(empty, b"")
                number = struct.unpack(">q", number)[0]
                if number == -1:
                    self.assertEqual(payload, b"")
                    return got
                got.append((number, unpack(payload)))

    @staticmethod
    def books(messages):
        """{rank: {hash: tokens}}; checks that each event fits what came before it."""
        held = {}
        for _, (_, events, rank) in messages:
            blocks = held.setdefault(rank, {})
            for event in events:
                if event["type"] == "AllBlocksCleared":
                    blocks.clear()
                elif event["type"] == "BlockRemoved":
                    for block in event["block_hashes"]:
                        del blocks[block]
                else:
                    size = event["block_size"]
                    assert len(event["token_ids"]) == size * len(event["block_hashes"]), event
                    assert event["parent_block_hash"] is None or event["parent_block_hash"] in blocks, event
                    for i, block in enumerate(event["block_hashes"]):
                        assert block not in blocks, event
                        blocks[block] = event["token_ids"][i * size:(i + 1) * size]
        return held

    def wait_books(self, cluster):
        """The books by replay, once they count as many blocks as the scheduler has cached."""
        def equal():
            if cluster.show("requests") or not cluster.pools_at_rest():
                return None
            held = self.books(self.replayed())
            cached = sorted(pool["cached"] for pool in cluster.show("kv"))
            return held if cached == sorted(len(held.get(rank, {})) for rank in range(2)) else None
        return wait_until(equal, 20, f"books agree: {cluster.show('kv')}")

    def test_events_replayed_are_what_is_cached_through_evictions_and_deaths(self):
        cluster = self.cluster()
        with Socket(SUB, self.endpoint, timeout_s=0.2) as listener:
            def heard_of():
                cluster.post("/v1/completions", {"prompt": f"{time.monotonic()}" * 20, "max_tokens": 4})
                return listener.receive()
            first = wait_until(heard_of, 20, "the listener hears something")
            for i in range(40):
                status, _ = cluster.post("/v1/completions", {"prompt": f"{i}: " + "a story of blocks. " * 20,
                                                             "max_tokens": 40, "ignore_eos": True})
                self.assertEqual(status, 200)
            held = self.wait_books(cluster)
            self.assertGreater(sum(map(len, held.values())), 10)
            # The same, as it came by itself.
            listener.timeout(1)
            heard = [(struct.unpack(">q", first[1])[0], unpack(first[2]))]
            while (frames := listener.receive()) is not None:
                topic, number, payload = frames
                heard.append((struct.unpack(">q", number)[0], unpack(payload)))
                self.assertRegex(topic.decode(), r"^kv@mixed[01]@demo$")
            numbers = [number for number, _ in heard]
            self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
            self.assertEqual(heard, self.replayed(numbers[0]))
            self.assertIn("BlockRemoved", {event["type"] for _, (_, events, _) in heard for event in events})
        # A worker whose pool nobody keeps: all of it is gone. (Its process dies with the memory process's lease.)
        cluster.kill("memory")
        for name in ("mixed0", "mixed1"):
            cluster.kill(name)
            cluster.start(name)
        cluster.start("memory")
        cluster.wait_ready()
        self.assertEqual(sum(map(len, self.wait_books(cluster).values())), 0)
        # A new scheduler counts from 0 and begins with AllBlocksCleared.
        cluster.restart("scheduler")
        cluster.wait_ready()
        messages = wait_until(lambda: len(got := self.replayed()) >= 2 and got, 20, "both workers are told of")
        self.assertEqual(messages[0][0], 0)
        self.assertEqual({rank: events[0] for _, (_, events, rank) in reversed(messages)},
                         {rank: {"type": "AllBlocksCleared"} for rank in range(2)})

    def test_arrays_and_a_name_where_they_are_asked_for(self):
        cluster = self.cluster(kv_events_arrays=True, kv_events_pod="10.0.0.1:8000")
        with Socket(SUB, self.endpoint) as listener:
            attempts = itertools.count()

            def stored():
                # A prompt that is nowhere cached each time: a subscription may come too late for the first ones.
                prompt = f"{next(attempts)} stories of blocks. " * 20
                cluster.post("/v1/completions", {"prompt": prompt, "max_tokens": 4})
                listener.timeout(0.3)
                while (frames := listener.receive()) is not None:
                    self.assertEqual(frames[0], b"kv@10.0.0.1:8000@demo")
                    for event in unpack(frames[2])[1]:
                        if event[0] == "BlockStored" and event[2] is None:  # not the rest of a prompt half heard
                            return event
                return None
            event = wait_until(stored, 30, "a block is stored")
        self.assertEqual(len(event), 8)
        _, hashes, parent, tokens, size, lora, medium, _ = event
        self.assertEqual((len(tokens), parent, lora, medium), (size * len(hashes), None, None, "GPU"))


if __name__ == "__main__":
    unittest.main()
